"""When each gradient is ready: marks set by post-accumulate hooks."""

import contextlib
import time
from collections.abc import Iterator

import torch
from torch import nn


class Clock:
    """Marks in time: the host's clock, or events on the GPU's current stream."""

    def __init__(self, device: torch.device):
        self.device = device

    def mark(self):
        """Return a mark: now on the host, or once the GPU has done what it was given so far."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self) -> None:
        """Return when the device has done all it was given, so that marks can be read."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def between(self, first, last) -> float:
        """Return the s from one mark to another."""
        if self.device.type != "cuda":
            return last - first
        return first.elapsed_time(last) / 1e3  # elapsed_time is in ms


@contextlib.contextmanager
def ready_marks(model: nn.Module, clock: Clock) -> Iterator[list]:
    """Yield a list to which each gradient's name and mark is added once it is accumulated.

    A hook costs the host a mark, about 1 us (on a GPU an event, recorded on the stream backward
    runs on); the model has no hooks left afterwards.
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
    """Raise ValueError for a model without gradients, or with some of unknown or varying size."""
    if not trained(model):
        raise ValueError(f"{what}: it has no parameter that requires a gradient: nothing to train")
    for name, parameter in trained(model).items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(f"{what}: {name} is not initialised; run a forward first")
        if parameter.is_meta:
            raise ValueError(f"{what}: {name} is on no device (meta); make it on one")
    for name, part in model.named_modules():
        if getattr(part, "sparse", False) is True:
            raise ValueError(f"{what}: {name} has sparse gradients; expected sparse=False")


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a bare model that get a gradient, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def sizes(model: nn.Module) -> dict[str, int]:
    """Return the bytes of each gradient, by name in order of registration."""
    return {name: p.numel() * p.element_size() for name, p in trained(model).items()}
