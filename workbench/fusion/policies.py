"""Fusion policies: what each framework, rule or plan sends in one message.

A policy is a callable that maps a GRADIENTS table to one bucket number a gradient, in the order the
buckets are sent: 0 first, then the same number or the next. So a policy is a way of cutting the
backward order. With a column `dtype` in GRADIENTS the policies of frameworks send one type of data
a message, and then the members of one type are consecutive among those of their type. A policy
with a clock of its own returns the numbers as `Timed`, with the time each message is launched.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import pandas as pd

from ..base.checks import check_callable, numbers, one_number, shown, whole_workers
from ..base.units import KIB, MIB, MS
from . import grouping

_PADDING = 16  # bytes a gradient, for batched copies: horovod/common/ops/cuda/cuda_kernels.h
_ATOMIC_UNIT = 8 * 64  # bytes of a float64 times FUSION_BUFFER_ATOMIC_UNIT, horovod/common/common.h


class Timed(NamedTuple):
    """Bucket numbers of a policy with a clock, and the launch of each bucket in s."""

    numbers: np.ndarray
    launch_s: np.ndarray


class Policy(Protocol):
    """Which gradients share a message: any callable policy(gradients) -> bucket numbers."""

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray | Timed:
        """Return one bucket number per gradient of a GRADIENTS table, or a Timed with launches."""


@dataclass(frozen=True)
class PerTensor:
    """One message a gradient: wait-free back-propagation without fusion."""

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray:
        return np.arange(len(gradients))


@dataclass(frozen=True)
class OneMessage:
    """All gradients in one message, sent when the last is ready: whole model after backward."""

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray:
        return np.zeros(len(gradients), dtype="int64")


@dataclass(frozen=True)
class FixedBuffer:
    """A constant buffer, sent when it is full, or when timeout_s is over.

    closes="before": a gradient that would exceed the buffer opens the next, and one above it
    travels alone; the time-out counts from the bucket's first gradient, and a bucket whose time is
    up leaves then. closes="after": the gradient that reaches the buffer is included; the time-out
    counts from the closing before and is looked at when a gradient is ready. The latter, with
    64 MiB and 5 ms, is the rule of the simulator of "Is Network the Bottleneck of Distributed
    Training?" (NetAI 2020). Sizes are known ahead: a full bucket leaves with its last gradient,
    without waiting for the one that does not fit.
    """

    buffer_bytes: int
    timeout_s: float | None = None
    closes: str = "before"

    def __post_init__(self):
        check_limit(self.buffer_bytes, "FixedBuffer buffer_bytes")
        if self.timeout_s is not None:
            _seconds(self.timeout_s, "FixedBuffer timeout_s")
        if self.closes not in ("before", "after"):
            raise ValueError(
                f'FixedBuffer closes: expected "before" or "after", got {shown(self.closes)}'
            )

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray | Timed:
        doubt_limit(self.buffer_bytes, gradients, "FixedBuffer buffer_bytes")
        fill = grouping.fill_before if self.closes == "before" else grouping.fill_after
        sizes, ready = gradients["nbytes"].to_list(), gradients["ready_s"].to_list()
        timeout_s = np.inf if self.timeout_s is None else self.timeout_s
        first, launches = fill(sizes, ready, self.buffer_bytes, timeout_s)
        grouped = _from_first(first, len(sizes))
        return grouped if self.timeout_s is None else Timed(grouped, np.array(launches))


@dataclass(frozen=True)
class DDPBuckets:
    """PyTorch DDP's buckets: one closes after the gradient that brings it to its limit.

    The first bucket's limit is first_bytes, every later one's cap_bytes; the gradient that crosses
    the limit is included, so buckets overshoot. The defaults are DDP's own (1 MiB, then 25 MiB);
    `bucket_cap_mb=25` given by hand has no small first bucket: DDPBuckets(25 * MIB, 25 * MIB).
    caps, when given, are the limits of `bucket_cap_mb_list` in bytes, one a bucket and the last for
    all that follow. A type of data has buckets, and a first limit, of its own. Buckets are sent
    strictly in order. These are the buckets from the second iteration on, rebuilt in the order
    gradients get ready; in the first, recent versions send one message unless unused parameters
    are looked for or caps are given.
    Source: compute_bucket_assignment_by_size, torch/csrc/distributed/c10d/reducer.cpp (2.14).
    A limit below 1 KiB is warned of where gradients are large: it may be meant in MiB.
    """

    first_bytes: int = 1 * MIB
    cap_bytes: int = 25 * MIB
    caps: tuple = ()

    def __post_init__(self):
        object.__setattr__(self, "caps", _whole(self.caps, "DDPBuckets caps", "(8 * MIB, ...)"))
        for name in ("first_bytes", "cap_bytes"):
            check_limit(getattr(self, name), f"DDPBuckets {name}")
        for cap in self.caps:
            check_limit(cap, "DDPBuckets caps")

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray:
        limits = self.caps or (self.first_bytes, self.cap_bytes)
        doubt_limit(min(limits), gradients, "DDPBuckets")
        messages = grouping.close_after(gradients["nbytes"].to_list(), limits, kinds(gradients))
        return _from_members(messages)


@dataclass(frozen=True)
class DeepSpeedBuckets:
    """DeepSpeed's ZeRO 1 and 2: reduce_bucket_size counts elements, and closes before overflow.

    A gradient that would exceed it makes the bucket leave, when that gradient is ready, for its
    hook is what sends the bucket (overlap_comm=true, on a stream that waits for the compute
    before); one above it travels alone. element_bytes: of the data type gradients travel in.
    Source: reduce_independent_p_g_buckets_and_remove_grads of stage_1_and_2.py, the default that
    of config.py, both in deepspeed/runtime/zero.
    """

    elements: int = 500_000_000
    element_bytes: int = 4

    def __post_init__(self):
        for name in ("elements", "element_bytes"):
            expected = f"DeepSpeedBuckets {name}: expected a number above 0"
            value = one_number(getattr(self, name), expected, "elements are counted, not bytes")
            if not 0 < value < np.inf:
                raise ValueError(f"{expected}, got {shown(value)}")

    def __call__(self, gradients: pd.DataFrame) -> Timed:
        sizes, ready = gradients["nbytes"].to_list(), gradients["ready_s"].to_numpy(float)
        limit = self.elements * self.element_bytes
        first, _ = grouping.fill_before(sizes, ready.tolist(), limit, np.inf)
        return Timed(_from_first(first, len(sizes)), np.append(ready[first[1:]], ready[-1]))


@dataclass(frozen=True)
class HorovodFusion:
    """Horovod's fusion: cycles of a background thread, with two clocks.

    Parameters
    ----------
    threshold_bytes : HOROVOD_FUSION_THRESHOLD; 0 is no fusion; by default 64 MiB up to version
        0.20 and 128 MiB from 0.21. Rounded up to a multiple of local_size * 512
    cycle_s : HOROVOD_CYCLE_TIME in s; by default 5 ms up to 0.20 and 1 ms from 0.21
    version : of Horovod, as text
    local_size : workers on a node
    phase_s : a tick of the thread on backward's clock; real ones come at any phase
    host_share : where GRADIENTS have no `enqueued_s`, a gradient is enqueued at this share of its
        ready time, since the host runs ahead of the GPU. 0.5 is that of a public trace of
        ResNet-50 on a V100: 34 to 38 ms of the host for 66 ms of backward
    negotiation_s : s a cycle to agree on what is ready on all ranks: a small all-reduce while all
        gradients are in the response cache (1,024 entries), else a gather and a broadcast

    The host's clock decides what shares a message: at a tick all that is enqueued is packed,
    closing before the threshold is exceeded, with look-ahead over types of data, each gradient
    padded to 16 bytes from 0.21. The GPU's clock decides when it starts: up to 0.22 the thread
    waits before each message until its last gradient is ready, and does not tick meanwhile, so
    later gradients pile up; from 0.23 the wait is on the GPU's stream. The network never blocks
    the thread (NCCL). The response cache keeps its order from one iteration to the next.
    Source: horovod/common/operations.cc and controller.cc.
    """

    threshold_bytes: int | None = None
    cycle_s: float | None = None
    version: str = "0.28.1"
    local_size: int = 1
    phase_s: float = 0.0
    host_share: float = 0.5
    negotiation_s: float = 0.0

    def __post_init__(self):
        old = self._release < (0, 21)
        if self.threshold_bytes is None:
            object.__setattr__(self, "threshold_bytes", (64 if old else 128) * MIB)
        if self.cycle_s is None:
            object.__setattr__(self, "cycle_s", (5 if old else 1) * MS)
        for name in ("cycle_s", "host_share", "negotiation_s"):
            _seconds(getattr(self, name), f"HorovodFusion {name}")
        expected = "HorovodFusion phase_s: expected s"
        if not np.isfinite(one_number(self.phase_s, expected, "a tick on backward's clock")):
            raise ValueError(f"HorovodFusion phase_s: expected finite s, got {self.phase_s}")
        _workers(self.local_size, "HorovodFusion local_size")
        if self.threshold_bytes != 0:
            check_limit(self.threshold_bytes, "HorovodFusion threshold_bytes", "bytes from 0 up")

    @property
    def _release(self) -> tuple[int, ...]:
        found = re.match(r"v?(\d+)\.(\d+)", self.version) if isinstance(self.version, str) else None
        if not found:
            raise ValueError(
                f"HorovodFusion version: expected text such as '0.20.3', got {shown(self.version)}"
            )
        return int(found[1]), int(found[2])

    def __call__(self, gradients: pd.DataFrame) -> Timed:
        if self.threshold_bytes:
            doubt_limit(self.threshold_bytes, gradients, "HorovodFusion threshold_bytes")
        unit = self.local_size * _ATOMIC_UNIT
        threshold = -(-self.threshold_bytes // unit) * unit
        pad = _PADDING if self._release >= (0, 21) else 1
        sizes = [-(-size // pad) * pad for size in gradients["nbytes"].to_list()]
        types, ready = kinds(gradients), gradients["ready_s"].to_numpy(float)
        messages, launches = grouping.cycles(
            _enqueued(gradients, self.host_share),
            ready,
            lambda batch: grouping.pack(batch, sizes, threshold, types),
            cycle_s=self.cycle_s,
            phase_s=self.phase_s,
            negotiation_s=self.negotiation_s,
            blocks=self._release < (0, 23),
        )
        return Timed(_from_members(messages), np.array(launches))


@dataclass(frozen=True)
class MergedGradients:
    """The merged gradients of MG-WFBP (INFOCOM 2019): a greedy rule from a price of the link.

    A gradient joins the open message when it is ready before that message ends, and either the
    message has not started or waiting costs less than the latency saved; see grouping.merge.
    """

    cost: Callable
    n_workers: int

    def __post_init__(self):
        check_callable(self.cost, "MergedGradients cost", "Ring(Link(alpha, beta))")
        _workers(self.n_workers, "MergedGradients n_workers")

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray:
        ready, sizes = gradients["ready_s"].to_numpy(float), gradients["nbytes"].to_numpy("int64")
        first = grouping.merge(ready, sizes, price(self.cost, self.n_workers))
        return _from_first(first, len(sizes))


@dataclass(frozen=True)
class OptimalFusion:
    """Adaptive tensor fusion (ours): the grouping whose last message ends first, for any cost.

    Exact over all groupings of consecutive gradients on one serial queue; see grouping.optimum.
    """

    cost: Callable
    n_workers: int

    def __post_init__(self):
        check_callable(self.cost, "OptimalFusion cost", "Ring(Link(alpha, beta))")
        _workers(self.n_workers, "OptimalFusion n_workers")

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray:
        ready, sizes = gradients["ready_s"].to_numpy(float), gradients["nbytes"].to_numpy("int64")
        first, _ = grouping.optimum(ready, sizes, price(self.cost, self.n_workers))
        return _from_first(first, len(sizes))


@dataclass(frozen=True)
class Plan:
    """A grouping written down: how many gradients have been sent when each message closes.

    Plan(boundaries=(2, 5)) and Plan(counts=(2, 3)) are the same two messages of five gradients;
    each field is filled in from the other. Raises ValueError for a table of another length.
    """

    boundaries: tuple = field(default=(), repr=False)
    counts: tuple = ()

    def __post_init__(self):
        for each in (self.boundaries, self.counts):
            if not np.iterable(each):
                raise ValueError(f"Plan: expected whole numbers, got {shown(each)}; Plan((2, 5))")
        if (len(self.boundaries) == 0) == (len(self.counts) == 0):
            raise ValueError("Plan: expected boundaries or counts, one of the two, not empty")
        name = "boundaries" if len(self.boundaries) else "counts"
        given = np.array(_whole(getattr(self, name), f"Plan {name}", f"Plan({name}=(2, 5))"))
        counts = given if name == "counts" else np.diff(given, prepend=0)
        if (counts < 1).any():
            row = int(np.flatnonzero(counts < 1)[0])
            wanted = "counts from 1 up" if name == "counts" else "boundaries that rise, from 1 up"
            raise ValueError(f"Plan {name}: expected {wanted}; got {given[row]} in row {row}")
        object.__setattr__(self, "counts", tuple(counts.tolist()))
        object.__setattr__(self, "boundaries", tuple(np.cumsum(counts).tolist()))

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray:
        planned, n = self.boundaries[-1], len(gradients)
        if planned != n:
            which = (
                f"row {planned}, {gradients['name'].iloc[planned]!r}, is the first left out"
                if planned < n
                else f"row {n - 1}, {gradients['name'].iloc[-1]!r}, is the last there is"
            )
            raise ValueError(
                f"Plan: covers {planned} gradients, the table has {n}: {which}. Make the plan for "
                "this table: optimal_fusion(gradients, cost, n_workers)"
            )
        return np.repeat(np.arange(len(self.counts)), self.counts)


def price(cost: Callable, n_workers: int) -> Callable:
    """Return cost as a function of bytes alone: sizes, shape (k,) -> s; a lone worker pays 0.

    The function raises ValueError when the cost gives anything but finite s from 0 up.
    """

    def seconds(nbytes: np.ndarray) -> np.ndarray:
        given = cost(nbytes, n_workers) if n_workers > 1 else 0.0
        what, expected = f"cost {shown(cost)}", "finite s from 0 up for every message"
        return np.broadcast_to(numbers(given, what, expected), np.shape(nbytes))

    return seconds


def _from_first(first, n_gradients: int) -> np.ndarray:
    """Return bucket numbers from the position of each bucket's first gradient."""
    return np.searchsorted(first, np.arange(n_gradients), side="right") - 1


def _from_members(messages: list[list[int]]) -> np.ndarray:
    """Return bucket numbers from each message's members, in sending order."""
    bucket = np.empty(sum(map(len, messages)), dtype="int64")
    for number, members in enumerate(messages):
        bucket[members] = number
    return bucket


def kinds(gradients: pd.DataFrame) -> list:
    """Return each gradient's type of data as text, "" where it is not known."""
    if "dtype" not in gradients:
        return [""] * len(gradients)
    return ["" if pd.isna(kind) else str(kind) for kind in gradients["dtype"]]


def _enqueued(gradients: pd.DataFrame, host_share: float) -> np.ndarray:
    """Return when the host enqueued each gradient, in s; host_share of ready_s when not known."""
    if "enqueued_s" in gradients:
        return gradients["enqueued_s"].to_numpy(float)
    return host_share * gradients["ready_s"].to_numpy(float)


def check_limit(nbytes, what: str, expected: str = "bytes above 0"):
    """Raise ValueError unless nbytes is a size above 0."""
    expected = f"{what}: expected {expected}"
    if not one_number(nbytes, expected, "write 25 MiB as 25 * MIB") > 0:
        raise ValueError(f"{expected}, got {shown(nbytes)}")


def doubt_limit(nbytes, gradients: pd.DataFrame, what: str):
    """Warn of a limit so small beside the gradients that it may be in MiB."""
    if nbytes < KIB and gradients["nbytes"].sum() >= MIB:
        warnings.warn(
            f"{what}: {shown(nbytes)} bytes: sizes are bytes, "
            f"{shown(nbytes)} MiB is {shown(nbytes)} * MIB",
            stacklevel=3,
        )


def _seconds(value, what: str):
    if not 0 <= one_number(value, f"{what}: expected a number from 0 up", "times are s") < np.inf:
        raise ValueError(f"{what}: expected a finite number from 0 up, got {shown(value)}")


def _workers(value, what: str):
    try:
        one = whole_workers(value).ndim == 0
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    if not one:
        raise ValueError(f"{what}: expected one number, got several")


def _whole(values, what: str, example: str) -> tuple[int, ...]:
    """Return whole numbers as a tuple, so that a policy stays hashable, or raise ValueError."""
    if isinstance(values, str) or not np.iterable(values):
        raise ValueError(f"{what}: expected several whole numbers, got {shown(values)}; {example}")
    array = numbers(list(values), what, "whole numbers from 0 up")
    if (array % 1).any():
        raise ValueError(f"{what}: expected whole numbers, got {shown(array[array % 1 > 0][0])}")
    return tuple(array.astype("int64").tolist())
