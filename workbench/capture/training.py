"""One iteration of training, timed in its parts."""

import time
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from .apply import apply_plan
from .clock import Clock
from .hooks import ready_marks, trained
from .workers import Workers
from .workloads import Workload


class Times(NamedTuple):
    """Seconds of an iteration: its parts on the device's clock, all of it on the host's."""

    data_s: float
    forward_s: float
    backward_s: float
    update_s: float
    iteration_s: float


class Training:
    """A workload on a worker's device, in parallel where there are several workers.

    policy : None is DistributedDataParallel with its defaults, else what apply_plan takes
    order, how : its gradients and how; "auto" tries a backward first, and takes "hooks" unless
        gradients get ready in the order given

    .model is what is trained, .bare the model in it. Raises ValueError for one with nothing to
    train.
    """

    def __init__(self, work: Workload, workers: Workers, policy=None, order=None, how="auto"):
        if not trained(work.model):
            raise ValueError(
                "model: it has no parameter that requires a gradient, so nothing to train"
            )
        self.clock = Clock(workers.device)
        self.loss = work.loss
        self._batches = _again_and_again(work.batches)
        self.model = self.bare = work.model.to(workers.device)
        self.optimizer = work.optimizer or torch.optim.SGD(self.bare.parameters(), lr=1e-3)
        if how == "auto" and order is not None and workers.n_workers > 1:
            # torch goes by the order it sees, in which its limits may make other messages.
            other = float(self.order() != _names(order))
            how = "hooks" if workers.slowest([other])[0] else how
        self.model = _in_parallel(self.bare, workers, policy, order, how)

    def iterate(self, marks: list | None = None) -> Times:
        """Train one iteration; backward's beginning is added to marks, under the name ""."""
        clock, began = self.clock, time.perf_counter()
        parts = [clock.mark()]
        with record_function("data"):
            inputs, targets = (_moved(x, clock.device) for x in next(self._batches))
        parts.append(clock.mark())
        with record_function("forward"):
            value = self.loss(_called(self.model, inputs), targets)
        parts.append(clock.mark())
        if marks is not None:
            marks.append(("", parts[-1]))
        with record_function("backward"):
            value.backward()
        parts.append(clock.mark())
        with record_function("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        parts.append(clock.mark())
        clock.wait()
        whole = time.perf_counter() - began
        return Times(*map(clock.between, parts[:-1], parts[1:]), whole)

    def order(self) -> list[str]:
        """Return the order in which gradients get ready, seen in a backward of no consequence."""
        with ready_marks(self.bare, self.clock) as marks:
            inputs, targets = (_moved(x, self.clock.device) for x in next(self._batches))
            self.loss(_called(self.model, inputs), targets).backward()
            self.optimizer.zero_grad()
        return [name for name, _ in marks]


def _names(order) -> list[str]:
    return list(order["name"] if isinstance(order, pd.DataFrame) else order)


def _in_parallel(model: nn.Module, workers: Workers, policy, order, how) -> nn.Module:
    if workers.n_workers < 2:
        return model
    if policy is not None:
        return apply_plan(model, policy, order, how=how)
    on_gpu = workers.device.type == "cuda"
    return DistributedDataParallel(model, device_ids=[workers.device] if on_gpu else None)


def _again_and_again(batches) -> Iterator:
    while True:
        before = 0
        for batch in batches:
            yield batch
            before += 1
        if not before:
            raise ValueError("batches: expected (inputs, targets) at least once, got none")


def _moved(x, device: torch.device):
    """Return tensors, also within tuples, lists and dicts, on the device."""
    if isinstance(x, torch.Tensor):
        return x.to(device, non_blocking=True)
    if isinstance(x, dict):
        return {key: _moved(value, device) for key, value in x.items()}
    if isinstance(x, tuple | list):
        return tuple(_moved(value, device) for value in x)
    return x


def _called(model: nn.Module, inputs):
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
