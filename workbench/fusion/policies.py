"""Fusion policies: what each framework, rule or plan sends in one message.

A policy is a callable that maps a GRADIENTS table to one bucket number per gradient, in the order
the buckets are sent: 0 first, then the same number or the next. So a policy is a way of cutting the
backward order. If GRADIENTS has a column `dtype`, the policies of frameworks send one dtype per
message, and the members of a bucket are consecutive among the gradients of their dtype. A policy
with its own clock returns the numbers as `Timed`, with the launch time of each message.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import NamedTuple, Protocol

import numpy as np
import pandas as pd

from ..base.checks import (
    a_cost,
    checked,
    numbers,
    one_of,
    one_worker_count,
    optional,
    real,
    refuse,
    require,
    shown,
)
from ..base.units import KIB, MIB, MS
from . import grouping

_PADDING = 16  # bytes per gradient, for batched copies: horovod/common/ops/cuda/cuda_kernels.h
_ATOMIC_UNIT = 8 * 64  # bytes of a float64 times FUSION_BUFFER_ATOMIC_UNIT, horovod/common/common.h


_seconds = real("a finite number of s from 0 up", lambda value: value >= 0)


def check_limit(value, name: str):
    """Raise ValueError unless value is a size in bytes above 0."""
    ok = isinstance(value, Real) and not isinstance(value, bool) and value > 0
    require(ok, name, "bytes above 0", value, "Write 25 MiB as 25 * MIB")


class Timed(NamedTuple):
    """Bucket numbers of a policy with its own clock, and the launch of each bucket in s."""

    numbers: np.ndarray
    launch_s: np.ndarray


class Policy(Protocol):
    """Which gradients share a message: any callable policy(gradients) -> bucket numbers."""

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray | Timed:
        """Return one bucket number per gradient of a GRADIENTS table, or a Timed with launches."""


@dataclass(frozen=True)
class PerTensor:
    """One message per gradient: wait-free back-propagation without fusion."""

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray:
        return np.arange(len(gradients))


@dataclass(frozen=True)
class OneMessage:
    """All gradients in one message, sent when the last is ready."""

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray:
        return np.zeros(len(gradients), dtype="int64")


@checked(buffer_bytes=check_limit, timeout_s=optional(_seconds), closes=one_of(("before", "after")))
@dataclass(frozen=True)
class FixedBuffer:
    """A constant buffer, sent when it is full or after timeout_s.

    closes="before": a gradient that would exceed the buffer opens the next, and a larger one
    travels alone; the time-out counts from the bucket's first gradient, and the bucket leaves when
    it expires. closes="after": the gradient that fills the buffer is included; the time-out counts
    from the previous closing and is checked when a gradient is ready. The latter, with 64 MiB and
    5 ms, is the rule of the simulator of "Is Network the Bottleneck of Distributed Training?"
    (NetAI 2020). Sizes are known ahead: a full bucket leaves with its last gradient, without
    waiting for the one that does not fit.
    """

    buffer_bytes: int
    timeout_s: float | None = None
    closes: str = "before"

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray | Timed:
        doubt_limit(self.buffer_bytes, gradients, "FixedBuffer buffer_bytes")
        fill = grouping.fill_before if self.closes == "before" else grouping.fill_after
        sizes, ready = gradients["nbytes"].to_list(), gradients["ready_s"].to_list()
        timeout_s = np.inf if self.timeout_s is None else self.timeout_s
        first, launches = fill(sizes, ready, self.buffer_bytes, timeout_s)
        grouped = _from_first(first, len(sizes))
        return grouped if self.timeout_s is None else Timed(grouped, np.array(launches))


@checked(first_bytes=check_limit, cap_bytes=check_limit)
@dataclass(frozen=True)
class DDPBuckets:
    """PyTorch DDP's buckets: one closes after the gradient that brings it to its limit.

    The first bucket's limit is first_bytes, every later one's cap_bytes; the gradient that crosses
    the limit is included, so buckets overshoot. The defaults are those of DDP (1 MiB, then 25 MiB);
    with an explicit `bucket_cap_mb=25` there is no small first bucket:
    DDPBuckets(25 * MIB, 25 * MIB). caps are the limits of `bucket_cap_mb_list` in bytes, one per
    bucket and the last for all that follow. Each dtype has its own buckets and its own first
    limit. Buckets are sent strictly in order. These are the buckets from the second iteration on,
    rebuilt in the order gradients get ready; in the first, recent versions send one message unless
    they look for unused parameters or caps are set.
    Source: compute_bucket_assignment_by_size, torch/csrc/distributed/c10d/reducer.cpp (2.14).
    A limit below 1 KiB with large gradients causes a warning: it may be meant in MiB.
    """

    first_bytes: int = 1 * MIB
    cap_bytes: int = 25 * MIB
    caps: tuple = ()

    def __post_init__(self):
        object.__setattr__(self, "caps", _whole(self.caps, "DDPBuckets caps", "(8 * MIB, ...)"))
        for cap in self.caps:
            check_limit(cap, "DDPBuckets caps")

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray:
        limits = self.caps or (self.first_bytes, self.cap_bytes)
        doubt_limit(min(limits), gradients, "DDPBuckets")
        messages = grouping.close_after(gradients["nbytes"].to_list(), limits, kinds(gradients))
        return _from_members(messages)


_above_0 = real("a finite number above 0", lambda value: value > 0)


@checked(elements=_above_0, element_bytes=_above_0)
@dataclass(frozen=True)
class DeepSpeedBuckets:
    """DeepSpeed's ZeRO 1 and 2: reduce_bucket_size counts elements, and closes before overflow.

    When a gradient that would exceed it is ready, the hook of that gradient sends the bucket
    (overlap_comm=true, on a stream that waits for the compute before); a larger gradient travels
    alone. element_bytes is the size of the data type in which gradients travel.
    Source: reduce_independent_p_g_buckets_and_remove_grads of stage_1_and_2.py, the default that
    of config.py, both in deepspeed/runtime/zero.
    """

    elements: int = 500_000_000
    element_bytes: int = 4

    def __call__(self, gradients: pd.DataFrame) -> Timed:
        sizes, ready = gradients["nbytes"].to_list(), gradients["ready_s"].to_numpy(float)
        limit = self.elements * self.element_bytes
        first, _ = grouping.fill_before(sizes, ready.tolist(), limit, np.inf)
        return Timed(_from_first(first, len(sizes)), np.append(ready[first[1:]], ready[-1]))


@checked(
    threshold_bytes=optional(real("bytes from 0 up", lambda value: value >= 0)),
    cycle_s=optional(_seconds),
    local_size=one_worker_count,
    phase_s=real("a finite number of s"),
    host_share=_seconds,
    negotiation_s=_seconds,
)
@dataclass(frozen=True)
class HorovodFusion:
    """Horovod's fusion: cycles of a background thread, with two clocks.

    Parameters
    ----------
    threshold_bytes : HOROVOD_FUSION_THRESHOLD; 0 is no fusion; by default 64 MiB up to version
        0.20 and 128 MiB from 0.21. Rounded up to a multiple of local_size * 512
    cycle_s : HOROVOD_CYCLE_TIME in s; by default 5 ms up to 0.20 and 1 ms from 0.21
    version : version of Horovod, as text
    local_size : workers per node
    phase_s : time of a tick of the thread since backward began; any phase is possible
    host_share : if GRADIENTS have no `enqueued_s`, a gradient is enqueued at this share of its
        ready time, since the host runs ahead of the GPU. 0.5 is that of a public trace of
        ResNet-50 on a V100: 34 to 38 ms of the host for 66 ms of backward
    negotiation_s : s per cycle to agree on what is ready on all ranks: a small all-reduce while
        all gradients are in the response cache (1,024 entries), else a gather and a broadcast

    The host's clock decides what shares a message: at a tick everything enqueued is packed,
    closing before the threshold is exceeded, with look-ahead over dtypes, each gradient padded to
    16 bytes from 0.21. The GPU's clock decides when a message starts: up to 0.22 the thread waits
    before each message until its last gradient is ready and does not tick meanwhile, so later
    gradients pile up; from 0.23 the wait is on the GPU's stream. The network never blocks the
    thread (NCCL). The response cache keeps its order from one iteration to the next.
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

    @property
    def _release(self) -> tuple[int, ...]:
        found = re.match(r"v?(\d+)\.(\d+)", self.version) if isinstance(self.version, str) else None
        require(found, "HorovodFusion version", "text such as '0.20.3'", self.version)
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


@checked(cost=a_cost, n_workers=one_worker_count)
@dataclass(frozen=True)
class MergedGradients:
    """The merged gradients of MG-WFBP (INFOCOM 2019): a greedy rule that uses the cost.

    A gradient joins the open message if it is ready before that message ends, and either the
    message has not started or waiting costs less than the latency saved; see grouping.merge.
    """

    cost: Callable
    n_workers: int

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray:
        first = grouping.merge(*_arrays(gradients), price(self.cost, self.n_workers))
        return _from_first(first, len(gradients))


@checked(cost=a_cost, n_workers=one_worker_count)
@dataclass(frozen=True)
class OptimalFusion:
    """Adaptive tensor fusion (ours): the grouping whose last message ends first, for any cost.

    Exact over all groupings of consecutive gradients on one serial queue; see grouping.optimum.
    """

    cost: Callable
    n_workers: int

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray:
        first, _ = grouping.optimum(*_arrays(gradients), price(self.cost, self.n_workers))
        return _from_first(first, len(gradients))


@dataclass(frozen=True)
class Plan:
    """A given grouping: how many gradients have been sent when each message closes.

    Plan(boundaries=(2, 5)) and Plan(counts=(2, 3)) are the same two messages of five gradients;
    each field is computed from the other. Raises ValueError for a table of another length.
    """

    boundaries: tuple = field(default=(), repr=False)
    counts: tuple = ()

    def __post_init__(self):
        given = {
            name: _whole(getattr(self, name), f"Plan {name}", f"Plan({name}=(2, 5))")
            for name in ("boundaries", "counts")
        }
        (name, row), *others = [pair for pair in given.items() if pair[1]] or [("", ())]
        require(row and not others, "Plan", "boundaries or counts, one of the two, not empty")
        counts = np.array(row) if name == "counts" else np.diff(row, prepend=0)
        wrong = int((counts < 1).argmax())
        wanted = "counts from 1 up" if name == "counts" else "boundaries that rise, from 1 up"
        found = f"{row[wrong]} in row {wrong}"
        require(counts[wrong] >= 1, f"Plan {name}", wanted, found=found)
        object.__setattr__(self, "counts", tuple(counts.tolist()))
        object.__setattr__(self, "boundaries", tuple(np.cumsum(counts).tolist()))

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray:
        planned, n = self.boundaries[-1], len(gradients)
        row, where = (planned, "first left out") if planned < n else (n - 1, "last of the table")
        if planned != n:
            found = f"{n}: row {row}, {gradients['name'].iloc[row]!r}, is the {where}"
            do = "Make the plan for this table: optimal_fusion(gradients, cost, n_workers)"
            refuse("Plan", f"{planned} gradients", do=do, found=found)
        return np.repeat(np.arange(len(self.counts)), self.counts)


def price(cost: Callable, n_workers: int) -> Callable:
    """Return cost as a function of bytes alone: sizes, shape (k,) -> s; 0 for one worker.

    The function raises ValueError if the cost returns anything but finite s from 0 up.
    """

    def seconds(nbytes: np.ndarray) -> np.ndarray:
        given = cost(nbytes, n_workers) if n_workers > 1 else 0.0
        what, expected = f"cost {shown(cost)}", "finite s from 0 up for every message"
        return np.broadcast_to(numbers(given, what, expected), np.shape(nbytes))

    return seconds


def _arrays(gradients: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return ready times in s and bytes."""
    return gradients["ready_s"].to_numpy(float), gradients["nbytes"].to_numpy("int64")


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
    """Return each gradient's dtype as text, "" if it is not known."""
    if "dtype" not in gradients:
        return [""] * len(gradients)
    return ["" if pd.isna(kind) else str(kind) for kind in gradients["dtype"]]


def _enqueued(gradients: pd.DataFrame, host_share: float) -> np.ndarray:
    """Return when the host enqueued each gradient, in s; host_share of ready_s if not known."""
    if "enqueued_s" in gradients:
        return gradients["enqueued_s"].to_numpy(float)
    return host_share * gradients["ready_s"].to_numpy(float)


def doubt_limit(nbytes, gradients: pd.DataFrame, what: str):
    """Warn of a limit so small compared with the gradients that it may be in MiB."""
    if nbytes < KIB and gradients["nbytes"].sum() >= MIB:
        warnings.warn(
            f"{what}: {shown(nbytes)} bytes is very small. Sizes are in bytes: write "
            f"{shown(nbytes)} * MIB for {shown(nbytes)} MiB",
            stacklevel=3,
        )


def _whole(values, what: str, example: str) -> tuple[int, ...]:
    """Return whole numbers as a tuple, so that a policy stays hashable, or raise ValueError."""
    several, expected = np.iterable(values) and not isinstance(values, str), "whole numbers"
    require(several, what, f"several {expected}", values, f"Write {example}")
    array = numbers(list(values), what, f"{expected} from 0 up")
    if (array % 1).any():
        refuse(what, expected, array[array % 1 > 0][0])
    return tuple(array.astype("int64").tolist())
