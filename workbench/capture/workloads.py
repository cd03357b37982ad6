"""What is trained: a model, its batches and its loss; built in, or from a user's function."""

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

from ..base.checks import checked, instance, one_of, refuse, require, shown
from .models import BERT, GPT2, LSTM, VGG16, ResNet50, Transformer


def _steps_alone(optimizer, name: str) -> None:
    """Raise ValueError unless step() needs no closure, as that of LBFGS does."""
    try:
        ok = not isinstance(optimizer, type)
        if optimizer is not None:
            inspect.signature(optimizer.step).bind()
    except (AttributeError, TypeError):
        ok = False
    require(ok, name, "one whose step() needs no closure", optimizer)


def _is_json(about, name: str) -> None:
    """Raise ValueError unless about is a dict of JSON values."""
    try:
        json.dumps(about, allow_nan=False)
        ok = isinstance(about, dict)
    except (TypeError, ValueError):
        ok = False
    require(ok, name, "a dict of JSON values", about)


@checked(
    model=instance(nn.Module, "a torch.nn.Module"),
    batches=instance(Iterable, "an iterable"),
    loss=instance(Callable, "a function of outputs and targets"),
    optimizer=_steps_alone,
    about=_is_json,
)
@dataclass(frozen=True)
class Workload:
    """One worker's training.

    model : on any device; it is moved to the worker's
    batches : (inputs, targets), without end or starting again when it ends; inputs are a tensor, or
        a tuple or dict of tensors that the model takes as its arguments
    loss : loss(model(inputs), targets) -> scalar tensor
    optimizer : steps at the end of an iteration, without a closure; SGD by default
    about : notes for run.json, as values of JSON
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
    least: int = 1  # least size: an image is halved five times
    most: int | None = None  # largest size: positions that the model knows
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
    batch : samples per worker
    small : the built-in model at a size for tests
    size : pixels per side of an image, or tokens of a sequence; the model's own by default
    seed : of the model's weights and the random batch, which is the same in every iteration
    """
    torch.manual_seed(seed)
    if ":" in name:
        given = "small" if small else "size"
        require(not (small or size), given, f"none for {name}, which has its own", size or small)
        return _of_user(name, batch)
    one_of(MODELS, "Or name module:function for one of yours")(name, "model")
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
    expected = f"{model.least} to {most}" if most else f"{model.least} or more"
    require(model.least <= size <= (most or size), "size", f"{expected} for {name}", size)
    normalised = name != "resnet50" or batch > 1 or size > 32
    do = "Or take images of more than 32 pixels: fewer leave one value per channel to normalise"
    require(normalised, "batch", "2 or more", batch, do)


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
    """Return what module:function makes; modules are searched for in the current folder, too."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        make = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        expected = "module:function, the module importable from this folder"
        refuse("model", expected, found=f"{name}: {error}")
    expected = "a function of a batch size alone that returns a Workload"
    require(_takes(make, batch), "model", expected, found=f"{name}, which cannot be called so")
    made = make(batch)
    found = f"{shown(made)} from {name}({batch})"
    require(isinstance(made, Workload), "model", "a workbench.capture.Workload", found=found)
    return replace(made, about={"batch_per_worker": batch} | made.about)


def _takes(make, batch: int) -> bool:
    """Return whether make(batch) can be called, by its signature if it has one."""
    try:
        inspect.signature(make).bind(batch)
    except TypeError:
        return False
    except ValueError:  # of a builtin, which has none
        return callable(make)
    return True
