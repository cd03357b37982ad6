"""What is trained: a model, its batches and its loss; built in, or a function of the user's."""

import itertools
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ..checks import shown
from .convolutional import VGG16, ResNet50
from .recurrent import LSTM
from .transformers import BERT, GPT2, Transformer


@dataclass(frozen=True)
class Workload:
    """One worker's training: what goes in, what comes out, and what is made smaller by it.

    model : on any device; it is moved to the worker's
    batches : (inputs, targets) again and again, without end or from the beginning when it ends;
        inputs are a tensor, or a tuple or dict of tensors that the model takes as its arguments
    loss : loss(model(inputs), targets) -> scalar tensor
    optimizer : steps at the end of an iteration; plain SGD when not given
    about : what run.json should say of it
    """

    model: nn.Module
    batches: Iterable
    loss: Callable
    optimizer: torch.optim.Optimizer | None = None
    about: dict = field(default_factory=dict)


def _next_sentence_too(outputs: tuple, targets: tuple) -> torch.Tensor:
    return sum(map(cross_entropy, outputs, targets))


@dataclass(frozen=True)
class _BuiltIn:
    """How a built-in model is made, small or not, and the size of its input."""

    make: Callable
    small: dict
    n_tokens: int = 0  # 0 for images
    small_tokens: int = 0
    size: int = 224  # pixels a side, or tokens of a sequence
    small_size: int = 32
    n_classes: int = 1000


_LAYERS = {"width": 32, "n_layers": 2, "n_heads": 2, "length": 32}
MODELS = {
    "resnet50": _BuiltIn(ResNet50, {"blocks": (1, 1, 1, 1), "width": 8}),
    "vgg16": _BuiltIn(VGG16, {"width": 8, "hidden": 64}),
    "bert-base": _BuiltIn(BERT, _LAYERS, 30522, 64, size=128, small_size=16),
    "gpt2-small": _BuiltIn(GPT2, _LAYERS, 50257, 64, size=256, small_size=16),
    "lstm": _BuiltIn(LSTM, {"width": 32}, 10_000, 64, size=35, small_size=8),
    "transformer": _BuiltIn(Transformer, {"width": 16}, 8192, 64, size=128, small_size=16),
}


def workload(
    name: str, batch: int, *, small: bool = False, size: int | None = None, seed: int = 0
) -> Workload:
    """Return a built-in workload, or what the user's `module:function` makes of a batch size.

    Parameters
    ----------
    name : of MODELS, or module:function; function(batch) returns a Workload
    batch : samples a worker
    small : the built-in model at a size for tests
    size : pixels a side of an image, or tokens of a sequence; the model's own by default
    seed : of the model's weights and the random batch, which is the same in every iteration

    Raises ValueError for an unknown name, and for a function that returns no Workload.
    """
    torch.manual_seed(seed)
    if ":" in name:
        return _of_user(name, batch)
    if name not in MODELS:
        raise ValueError(
            f"model: expected {', '.join(MODELS)}, or module:function for one of yours; "
            f"got {shown(name)}"
        )
    model = MODELS[name]
    size = size or (model.small_size if small else model.size)
    made = model.make(**_smaller(model) if small else {})
    batches, about = _batches(model, batch, size, small)
    loss = _next_sentence_too if name == "bert-base" else cross_entropy
    about["batch_per_worker"] = batch
    return Workload(made, itertools.repeat(batches), loss, about=about)


def _smaller(model: _BuiltIn) -> dict:
    count = {"n_tokens": model.small_tokens} if model.small_tokens else {"n_classes": 10}
    return model.small | count


def _batches(model: _BuiltIn, batch: int, size: int, small: bool) -> tuple[tuple, dict]:
    if not model.n_tokens:
        n_classes = 10 if small else model.n_classes
        images = torch.randn(batch, 3, size, size)
        return (images, torch.randint(n_classes, (batch,))), {"image_size": size}
    n_tokens = model.small_tokens if small else model.n_tokens
    tokens, targets = torch.randint(n_tokens, (2, batch, size))
    if model.make is BERT:
        targets = targets, torch.randint(2, (batch,))
    return (tokens, targets), {"sequence_length": size}


def _of_user(name: str, batch: int) -> Workload:
    """What module:function returns; modules are looked for in the folder of the call, too."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        make = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"model: no {name}: {error}. Expected module:function, the module importable from "
            "this folder"
        ) from None
    made = make(batch)
    if not isinstance(made, Workload):
        raise ValueError(
            f"model: {name}({batch}) returned {shown(made)}; expected a "
            "workbench.capture.Workload(model, batches, loss)"
        )
    return replace(made, about={"batch_per_worker": batch} | made.about)
