"""Training iterations timed in their parts, and a few of them profiled into a trace."""

import gzip
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from ..base.checks import require, shown
from .apply import apply_plan, in_ddp
from .hooks import Clock, check_trained, ready_marks, trained
from .workers import Workers
from .workloads import Workload

PROFILER_WARM_UP = 2  # iterations; the first ones under the profiler are slower
# Keys of a trace that are kept; host_name and traceName would name the machine and the person.
_KEYS = (
    "schemaVersion",
    "deviceProperties",
    "record_shapes",
    "distributedInfo",
    "displayTimeUnit",
    "baseTimeNanoseconds",
    "traceEvents",
)


class Times(NamedTuple):
    """Seconds of an iteration: its parts on the device's clock, the whole on the host's."""

    data_s: float
    forward_s: float
    backward_s: float
    update_s: float
    iteration_s: float


class Training:
    """A workload on a worker's device, in parallel if there are several workers.

    policy : None is DistributedDataParallel with its defaults, otherwise what apply_plan takes
    order, how : its gradients and how; "auto" takes "hooks" unless gradients get ready in the order
        given

    Several workers try a backward first, which shows that order, and whether a parameter has no
    gradient: then find_unused_parameters is set. .model is what is trained, .bare the model in it.
    Raises ValueError for a model with nothing to train, for batches that are not pairs, and for a
    loss that is not a scalar of the parameters.
    """

    def __init__(self, work: Workload, workers: Workers, policy=None, order=None, how="auto"):
        check_trained(work.model)
        sends = policy is None or workers.n_workers > 1
        do = "Start 2 or more, such as with torchrun --standalone --nproc-per-node 2"
        require(sends, "policy", "None for one worker, which sends no messages", policy, do)
        self.clock = Clock(workers.device)
        self.loss = work.loss
        self._batches = _again_and_again(work.batches)
        self.model = self.bare = work.model.to(workers.device)
        self.optimizer = work.optimizer or torch.optim.SGD(self.bare.parameters(), lr=1e-3)
        if workers.n_workers > 1:
            self.model = _in_parallel(self, workers, policy, order, how)

    def iterate(self, marks: list | None = None) -> Times:
        """Train one iteration; the beginning of backward is added to marks under the name ""."""
        clock, began = self.clock, time.perf_counter()
        parts = [clock.mark()]
        with record_function("data"):
            inputs, targets = self._batch()
        parts.append(clock.mark())
        with record_function("forward"):
            value = self._value(inputs, targets)
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
        """Return the order in which gradients get ready in a backward that updates nothing."""
        with ready_marks(self.bare, self.clock) as marks:
            self._value(*self._batch()).backward()
            self.optimizer.zero_grad()
        return [name for name, _ in marks]

    def _batch(self) -> tuple:
        batch = next(self._batches)
        pair = isinstance(batch, tuple | list)
        found = shown(batch) + (f" of {len(batch)}" if pair else "")
        require(pair and len(batch) == 2, "batches", "pairs (inputs, targets)", found=found)
        return tuple(_moved(each, self.clock.device) for each in batch)

    def _value(self, inputs, targets) -> torch.Tensor:
        value = self.loss(_called(self.model, inputs), targets)
        tensor = isinstance(value, torch.Tensor)
        found = shown(value) + (f" of shape {tuple(value.shape)}" if tensor else "")
        ok = tensor and value.numel() == 1 and value.requires_grad
        require(ok, "loss", "a scalar tensor that depends on parameters", found=found)
        return value


def _in_parallel(training: Training, workers: Workers, policy, order, how) -> nn.Module:
    model, seen = training.bare, training.order()
    names = order["name"] if isinstance(order, pd.DataFrame) else order or ()
    found = len(set(seen)) < len(trained(model)), seen != list(names)
    unused, other = workers.slowest(list(map(float, found)))
    options = {"find_unused_parameters": True} if unused else {}
    if policy is not None:
        # torch follows the order it sees, in which its limits may make other messages.
        how = "hooks" if how == "auto" and order is not None and other else how
        return apply_plan(model, policy, order, how=how, **options)
    return in_ddp(model, **options)


def _again_and_again(batches) -> Iterator:
    total = 0
    while True:
        before = total
        for batch in batches:
            yield batch
            total += 1
        do = "Pass a list or a DataLoader, which begin again, or a generator that does not end"
        require(total > before, "batches", "(inputs, targets) without end", total, do)


def _moved(x, device: torch.device):
    """Return tensors, also inside tuples, lists and mappings, on the device."""
    if hasattr(x, "to"):  # a tensor, or an object that moves its own, such as a PackedSequence
        return x.to(device, non_blocking=True) if isinstance(x, torch.Tensor) else x.to(device)
    if isinstance(x, Mapping):
        return {key: _moved(value, device) for key, value in x.items()}
    if isinstance(x, tuple | list):
        return tuple(_moved(value, device) for value in x)
    return x


def _called(model: nn.Module, inputs):
    if isinstance(inputs, Mapping):
        return model(**inputs)
    # Not isinstance: _moved makes tuples of named ones, and other tuples are one input.
    return model(*inputs) if type(inputs) is tuple else model(inputs)


def traced(training: Training, iterations: int, marks: list, path: Path) -> list[Times]:
    """Profile a few iterations, write their trace, and return their times; fills marks.

    A Chrome trace as torch writes it, with shapes, compressed, without names of host and files.
    """
    activities = [ProfilerActivity.CPU]
    if training.clock.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    plan = schedule(wait=0, warmup=PROFILER_WARM_UP, active=iterations, repeat=1)
    times = []
    with profile(activities=activities, schedule=plan, record_shapes=True, acc_events=True) as p:
        for number in range(PROFILER_WARM_UP + iterations):
            if number == PROFILER_WARM_UP:
                marks.clear()
            times.append(training.iterate(marks))
            p.step()
    _write(p, path)
    return times[PROFILER_WARM_UP:]


def _write(profiled: profile, path: Path) -> None:
    raw = path.with_suffix(".raw")
    profiled.export_chrome_trace(str(raw))
    trace = json.loads(raw.read_text(encoding="utf-8"))
    trace = {key: trace[key] for key in _KEYS if key in trace}
    trace.setdefault("distributedInfo", {"rank": 0, "world_size": 1})  # torch omits it for one
    # mtime=0 and no name in the header: the same trace gives the same bytes anywhere.
    packed = gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), 9, mtime=0)
    raw.write_bytes(packed)
    os.replace(raw, path)  # so that a trace is complete or not there
