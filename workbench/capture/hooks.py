"""Parameters that are trained, and hooks that record when each gradient is ready."""

import contextlib
import time
from collections.abc import Iterator

import torch
from torch import nn

from ..base.checks import require


class Clock:
    """Marks in time: the host's clock, or events on the GPU's current stream."""

    def __init__(self, device: torch.device):
        self.device = device

    def mark(self):
        """Return a mark: now on the host, or when the GPU has finished the work queued so far."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        """Wait until the device has finished all queued work, so that marks can be read."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def between(self, first, last) -> float:
        """Return the seconds from one mark to another."""
        if self.device.type != "cuda":
            return last - first
        return first.elapsed_time(last) / 1e3  # elapsed_time is in ms


@contextlib.contextmanager
def ready_marks(model: nn.Module, clock: Clock) -> Iterator[list]:
    """Yield a list that gets each gradient's name and mark when it is accumulated.

    A hook costs the host a mark, about 1 us (on a GPU an event, recorded on the stream of
    backward); the hooks are removed afterwards.
    """
    marks: list = []

    def hook(name: str):
        return lambda _: marks.append((name, clock.mark()))

    handles = [
        parameter.register_post_accumulate_grad_hook(hook(name))
        for name, parameter in trained(model).items()
    ]
    try:
        yield marks
    finally:
        for handle in handles:
            handle.remove()


def check_trained(model: nn.Module, what: str = "model") -> None:
    """Raise ValueError unless the model has gradients, all of known and constant size."""
    require(trained(model), what, "a parameter that requires a gradient", found="none")
    for name, parameter in trained(model).items():
        lazy = isinstance(parameter, nn.parameter.UninitializedParameter)
        require(not lazy, what, "initialised parameters", found=name, do="Run a forward first")
        require(not parameter.is_meta, what, "parameters on a device", found=f"{name} on meta")
    for name, part in model.named_modules():
        sparse = getattr(part, "sparse", False) is True
        require(not sparse, what, "dense gradients (sparse=False)", found=f"sparse ones of {name}")


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of an unwrapped model that get a gradient, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def sizes(model: nn.Module) -> dict[str, int]:
    """Return the bytes of each gradient by name, in order of registration."""
    return {name: p.numel() * p.element_size() for name, p in trained(model).items()}
