"""What is trained: a model, its batches and its loss; built in, or a function of the user's."""

import inspect
import itertools
import json
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ..base.checks import shown
from .models import BERT, GPT2, LSTM, VGG16, ResNet50, Transformer


@dataclass(frozen=True)
class Workload:
    """One worker's training: what goes in, what comes out, and what is made smaller by it.

    model : on any device; it is moved to the worker's
    batches : (inputs, targets) again and again, without end or from the beginning when it ends;
        inputs are a tensor, or a tuple or dict of tensors that the model takes as its arguments
    loss : loss(model(inputs), targets) -> scalar tensor
    optimizer : steps at the end of an iteration, without a closure; plain SGD when not given
    about : what run.json should say of it, as JSON takes it

    Raises ValueError for anything else.
    """

    model: nn.Module
    batches: Iterable
    loss: Callable
    optimizer: torch.optim.Optimizer | None = None
    about: dict = field(default_factory=dict)

    def __post_init__(self):
        for name, value, expected, fits in (
            ("model", self.model, "a torch.nn.Module", isinstance(self.model, nn.Module)),
            ("batches", self.batches, "an iterable", isinstance(self.batches, Iterable)),
            ("loss", self.loss, "a function of outputs and targets", callable(self.loss)),
            ("optimizer", self.optimizer, "one without closure", _steps_alone(self.optimizer)),
            ("about", self.about, "a dict that JSON takes whole", _is_json(self.about)),
        ):
            if not fits:
                raise ValueError(f"Workload {name}: expected {expected}, got {shown(value)}")


def _steps_alone(optimizer) -> bool:
    """Return whether step() needs nothing: no class, and no closure as of LBFGS."""
    if optimizer is None:
        return True
    try:
        inspect.signature(optimizer.step).bind()
    except (AttributeError, TypeError):
        return False
    return not isinstance(optimizer, type)


def _is_json(about) -> bool:
    try:
        json.dumps(about, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return isinstance(about, dict)


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
    least: int = 1  # of size: less leaves nothing of an image after it is halved five times
    most: int | None = None  # of size: positions that the model knows
    n_classes: int = 1000


_LAYERS = {"width": 32, "n_layers": 2, "n_heads": 2, "length": 32}
MODELS = {
    "resnet50": _BuiltIn(ResNet50, {"blocks": (1, 1, 1, 1), "width": 8}),
    "vgg16": _BuiltIn(VGG16, {"width": 8, "hidden": 64}, least=32),
    "bert-base": _BuiltIn(BERT, _LAYERS, 30522, 64, size=128, small_size=16, most=512),
    "gpt2-small": _BuiltIn(GPT2, _LAYERS, 50257, 64, size=256, small_size=16, most=1024),
    "lstm": _BuiltIn(LSTM, {"width": 32}, 10_000, 64, size=35, small_size=8),
    "transformer": _BuiltIn(
        Transformer, {"width": 16}, 8192, 64, size=128, small_size=16, most=128
    ),
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

    Raises ValueError for an unknown name, and for a function that takes no batch size or returns no
    Workload.
    """
    torch.manual_seed(seed)
    if ":" in name:
        if small or size:
            raise ValueError(f"small, size: they are of built-in models; {name} has its own size")
        return _of_user(name, batch)
    if name not in MODELS:
        raise ValueError(
            f"model: expected {', '.join(MODELS)}, or module:function for one of yours; "
            f"got {shown(name)}"
        )
    model = MODELS[name]
    size = size or (model.small_size if small else model.size)
    _check_size(name, batch, size, small)
    made = model.make(**_smaller(model) if small else {})
    batches, about = _batches(model, batch, size, small)
    loss = _next_sentence_too if name == "bert-base" else cross_entropy
    about["batch_per_worker"] = batch
    return Workload(made, itertools.repeat(batches), loss, about=about)


def _check_size(name: str, batch: int, size: int, small: bool) -> None:
    model = MODELS[name]
    most = model.small.get("length", model.most) if small else model.most
    if size < model.least or (most and size > most):
        expected = f"{model.least} to {most}" if most else f"{model.least} or more"
        raise ValueError(f"size: expected {expected} for {name}, got {size}")
    if name == "resnet50" and batch == 1 and size <= 32:
        raise ValueError(
            "batch: 1 image of 32 pixels or less leaves one value a channel, which cannot be "
            "normalised; expected a batch of 2 or more, or a larger size"
        )


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
    if not _takes(make, batch):
        raise ValueError(
            f"model: {name} cannot be called with a batch size alone; expected a function of that "
            "one argument that returns a Workload"
        )
    made = make(batch)
    if not isinstance(made, Workload):
        raise ValueError(
            f"model: {name}({batch}) returned {shown(made)}; expected a "
            "workbench.capture.Workload(model, batches, loss)"
        )
    return replace(made, about={"batch_per_worker": batch} | made.about)


def _takes(make, batch: int) -> bool:
    """Return whether make(batch) can be called, by its signature where it has one."""
    try:
        inspect.signature(make).bind(batch)
    except TypeError:
        return False
    except ValueError:  # of a builtin, which tells none
        return callable(make)
    return True
