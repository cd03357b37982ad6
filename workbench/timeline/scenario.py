"""A training set-up to predict: what is trained, on how many workers, over which link."""

import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from numbers import Real
from typing import Protocol

import numpy as np
import pandas as pd

from ..base.checks import (
    a_cost,
    a_policy,
    call_of,
    checked,
    numbers,
    one_worker_count,
    optional,
    real,
    refuse,
    require,
    shown,
    whole,
    yes_or_no,
)
from ..base.units import counted, format_bytes, format_seconds
from ..costs import Cost
from ..costs.words import UNITS, prices
from ..fusion import (
    DDPBuckets,
    DeepSpeedBuckets,
    FixedBuffer,
    HorovodFusion,
    MergedGradients,
    OneMessage,
    OptimalFusion,
    PerTensor,
    Plan,
    Policy,
    check_gradients,
)

_POLICIES = (PerTensor, OneMessage, FixedBuffer, DDPBuckets, DeepSpeedBuckets, HorovodFusion)
_POLICIES += (MergedGradients, OptimalFusion, Plan)
_ROUNDING = 1e-9  # relative; times read from files meet the limits below to about this
_MANY, _SMALL = 32, 64  # gradients, and bytes of their mean: no model has so many so small
_SLOW = 10  # iterations that an empty message may take two workers
_SLOW_HOP = 0.1  # s, slower than any link round the world
_DEAR = 10_000  # iterations that a message of all gradients may take two workers
_OTHER_UNIT = 0.002  # if a time is in ms, backward is at most 1/1000 of T1, else about 2/3


class Jitter(Protocol):
    """By how much the slowest worker is late: any callable jitter(n_workers) -> seconds."""

    def __call__(self, n_workers):
        """Return the expected s by which the slowest of n_workers exceeds their mean; 0 for 1."""


def _finite(launch_s, name: str):
    flat = np.ndim(launch_s) < 2 and not isinstance(launch_s, Mapping)
    values = np.asarray(pd.Series(launch_s, dtype=object)) if flat else []
    ok = all(isinstance(v, Real) and not isinstance(v, bool) and abs(v) < np.inf for v in values)
    expected = "finite s since backward began, one number or one per bucket"
    require(ok and len(values), name, expected, launch_s)


def from_0(do: str):
    """Return a check for one number from 0 up."""
    return real("one finite number from 0 up", lambda value: value >= 0, do)


# the check of each field; those that involve two fields are in Scenario
FIELDS = {
    "gradients": lambda table, name: check_gradients(table),
    "one_worker_s": real(
        "one number of s above 0",
        lambda s: s > 0,
        "Take the median: iterations(run.events)['duration_s'].median()",
    ),
    "backward_s": real(
        "one number of s from 0 up",
        lambda s: s >= 0,
        "Take the last gradient's ready time: gradients(run)['ready_s'].max()",
    ),
    "n_workers": one_worker_count,
    "all_reduce": a_cost,
    "fusion": a_policy,
    "overlap": yes_or_no,
    "micro_batches": whole(1, "Write micro_batches=2"),
    "n_streams": whole(1, "Write n_streams=2"),
    "slowdown": from_0("0.1 is 10 % slower: fit_slowdown(run).factor - 1"),
    "jitter": optional(call_of("NormalJitter(std_s)")),
    "launch_s": _finite,
    "fixed_s": from_0("Give it in s"),
}


@checked(**FIELDS)
@dataclass(frozen=True, eq=False)
class Scenario:
    """One training set-up to predict; vary it with `dataclasses.replace`.

        Tn = T1 + exposed + idle + slowed + jitter(n) + fixed        scaling factor = T1 / Tn

    Parameters
    ----------
    gradients : GRADIENTS table, in the order backward makes them
    one_worker_s : T1, s per iteration on one worker, with all its micro-batches and data loading
    backward_s : s from the begin of backward to its end, at most one_worker_s plus fixed_s
    n_workers : number of workers, each with the same batch
    all_reduce : cost(nbytes, n_workers) -> s, vectorised
    fusion : policy, gradients -> one bucket number per gradient
    overlap : False makes every message wait for the end of backward
    micro_batches : forward and backward passes per iteration (gradient accumulation); only the
        last backward sends messages; gradients and backward_s are those of one pass
    n_streams : queues that share the link; bucket k waits for bucket k - n_streams only, and m
        messages that transfer at the same time run at 1/m of the bandwidth each
    slowdown : f from 0 up; compute runs 1 + f times slower while a message is in flight, which
        delays ready times and the end of backward (`slowed`). f = fit_slowdown(run).factor - 1
    jitter : n_workers -> s by which the slowest worker is later than the mean one, such as
        SampleJitter(durations); added to Tn. None if workers are always equally fast
    launch_s : when the host launches the messages, s since backward began, one number or one per
        bucket: start_k >= launch_k. Waiting for a launch after backward is `idle`
    fixed_s : s added to every iteration of two or more workers and never hidden: the cost of an
        optimisation, negotiation, loading data from shared storage; backward_s may include some

    Raises ValueError for impossible values, for example a gradient ready after backward ended.
    Warns if a value may be in another unit: backward below 0.2 % of T1, the last gradient ready
    within 0.2 % of backward, many gradients of a few bytes, or a message that takes many
    iterations.
    """

    gradients: pd.DataFrame
    one_worker_s: float
    backward_s: float
    n_workers: int
    all_reduce: Cost
    fusion: Policy
    overlap: bool = True
    micro_batches: int = 1
    n_streams: int = 1
    slowdown: float = 0.0
    jitter: Jitter | None = None
    launch_s: float | Sequence[float] | np.ndarray | pd.Series = 0.0
    fixed_s: float = 0.0

    def __post_init__(self):
        swapped = hasattr(self.fusion, "with_parameters")  # what costs have
        swapped = swapped or isinstance(self.all_reduce, _POLICIES)
        got = f"{shown(self.all_reduce)} and {shown(self.fusion)}"
        do = "Name the two: all_reduce=..., fusion=..."
        require(not swapped, "all_reduce, fusion", "a cost and a policy", found=got, do=do)
        last = self.gradients["ready_s"].iloc[-1]
        times = self.one_worker_s, self.backward_s, self.micro_batches, self.fixed_s
        if not times_are_possible(last, *times):
            self._refuse_times(last)
        for doubt in self._doubts(last):
            warnings.warn(doubt, stacklevel=4)

    def _doubts(self, last: float):
        """Yield which values are possible but may be in another unit, in words."""
        backward_s, t1 = self.backward_s, shown(self.one_worker_s)
        if times_are_doubtful(self.one_worker_s, backward_s, self.micro_batches):
            share = 100 * self.micro_batches * backward_s / self.one_worker_s
            yield (
                "one_worker_s may be in another unit: backward takes only "
                f"{share:.3g} % of it ({shown(backward_s)} of {t1} s); both are in s"
            )
        if 0 < last < _OTHER_UNIT * backward_s and backward_s >= 1:
            yield (
                "backward_s may be in another unit: the last gradient is ready after only "
                f"{100 * last / backward_s:.3g} % of it ({last:.6g} of {shown(backward_s)} s); "
                "all times are in s"
            )
        n, nbytes = len(self.gradients), float(self.gradients["nbytes"].sum())
        if n >= _MANY and 0 < nbytes < _SMALL * n:
            yield f"gradients: nbytes may be in another unit: {n} have {nbytes:.6g} bytes in all"
        yield from self._dear_prices(nbytes)

    def _dear_prices(self, nbytes: float):
        """Yield prices that no link has: two workers alone would wait for many iterations."""
        cost, limit_s = self.all_reduce, self.one_worker_s
        if not getattr(getattr(cost, "cost", cost), "parameters", None):
            return  # a cost that is not the price of a link may be anything
        empty_s, full_s = (float(cost(size, 2)) for size in (0.0, nbytes))
        if empty_s > max(_SLOW * limit_s, _SLOW_HOP):
            yield (
                f"all_reduce: an empty message of 2 workers takes {format_seconds(empty_s)}, an "
                f"iteration {format_seconds(limit_s)}; latency per hop, alpha, is in s"
            )
        if full_s - empty_s > _DEAR * limit_s:
            yield (
                f"all_reduce: all gradients take 2 workers {full_s:.3g} s, an iteration "
                f"{format_seconds(limit_s)}; the price beta is in s per byte, 1/bandwidth"
            )

    def __repr__(self) -> str:
        n, nbytes = len(self.gradients), int(self.gradients["nbytes"].sum())
        one_worker, backward = map(format_seconds, (self.one_worker_s, self.backward_s))
        cost, policy = _in_words(self.all_reduce), _in_words(self.fusion)
        return (
            f"Scenario: {counted(n, 'gradient')}, {format_bytes(nbytes)}; "
            f"{counted(int(self.n_workers), 'worker')}, T1 {one_worker}, backward {backward}"
            f"{'' if self.overlap else ', no overlap'}{self._besides()}\n"
            f"  all_reduce {cost}\n  fusion {policy}"
        )

    def _besides(self) -> str:
        """Return in words which fields differ from their defaults."""
        parts = {
            f"{self.micro_batches} micro-batches": self.micro_batches > 1,
            f"{self.n_streams} streams": self.n_streams > 1,
            f"compute slowed by {100 * self.slowdown:.3g} %": self.slowdown > 0,
            "jitter": self.jitter is not None,
            "launch times": np.any(np.asarray(self.launch_s) != 0),
            f"{format_seconds(self.fixed_s)} fixed": self.fixed_s > 0,
        }
        return "".join(f", {words}" for words, given in parts.items() if given)

    def _refuse_times(self, last: float):
        """Raise ValueError for the limit of `times_are_possible` that the times exceed."""
        least, got = f"at least the last ready time, {last:.6g} s", shown(self.backward_s)
        early = f"{got}, which is {last - self.backward_s:.3g} s earlier"
        in_time = last <= self.backward_s * (1 + _ROUNDING)
        require(in_time, "Scenario backward_s", least, found=early)
        m, most = self.micro_batches, f"at most one_worker_s, {shown(self.one_worker_s)} s"
        each = f" for each of {m} micro-batches" if m > 1 else ""
        fixed = f", plus fixed_s, {shown(self.fixed_s)} s" if self.fixed_s > 0 else ""
        longer_s = m * (self.backward_s - self.fixed_s) - self.one_worker_s
        late = f"{got}, which is {longer_s:.3g} s longer"
        refuse("Scenario backward_s", most + each + fixed, found=late)


def _in_words(value) -> str:
    """Return a cost by its prices and anything else by its repr, cut to a line."""
    parameters, inner = getattr(value, "parameters", None), getattr(value, "cost", None)
    known = isinstance(parameters, dict) and parameters
    if known and all(name.startswith(tuple(UNITS)) for name in parameters):
        return f"{type(value).__name__}: {prices(parameters, 'nbytes')}"
    if callable(inner) and is_dataclass(value):  # a cost adjusted by optimisations
        given = ((field.name, getattr(value, field.name), field.default) for field in fields(value))
        changed = [
            f"{name}={shown(now)}"
            for name, now, default in given
            if now is not inner and now != default
        ]
        return f"{_in_words(inner)}; adjusted: {', '.join(changed)}"
    return textwrap.shorten(repr(value), 88, placeholder=" ...")


def times_are_possible(last_ready_s, one_worker_s, backward_s, micro_batches, fixed_s):
    """Return whether backward contains the gradients and an iteration its passes, one per row.

    What an optimisation computes within backward, such as coding, is in fixed_s and not in T1.
    """
    contained = last_ready_s <= backward_s * (1 + _ROUNDING)
    return contained & (micro_batches * (backward_s - fixed_s) <= one_worker_s * (1 + _ROUNDING))


def times_are_doubtful(one_worker_s, backward_s, micro_batches):
    """Return whether backward is so short that units may differ, one per row."""
    return micro_batches * backward_s < _OTHER_UNIT * one_worker_s


def fixed_of(scenario: Scenario) -> float:
    """Return the fixed time of an iteration, s: fixed_s, or 0 for one worker."""
    return scenario.fixed_s if scenario.n_workers > 1 else 0.0


def host_launches(buckets, launch_s) -> np.ndarray:
    """Return the host's launch of each bucket's message, s since backward began, shape (K,).

    The later of a scenario's launch_s and the column launch_s that a policy with a clock adds.
    """
    n_buckets = len(buckets["nbytes"])  # of a table or of its columns
    launch = one_each(launch_s, n_buckets, "launch_s")
    if "launch_s" not in buckets:
        return launch
    return np.maximum(launch, one_each(buckets["launch_s"], n_buckets, "launch_s of buckets"))


def seconds_alone(all_reduce, nbytes, n_workers) -> np.ndarray:
    """Return the cost of each message when alone, s; 0 for one worker, which sends nothing.

    nbytes and n_workers broadcast. Raises ValueError if the cost is not finite s from 0 up.
    """
    nbytes, workers = np.asarray(nbytes), np.asarray(n_workers)
    shape = np.broadcast_shapes(nbytes.shape, workers.shape)
    given, what = all_reduce(nbytes, workers), f"all_reduce: result of {shown(all_reduce)}"
    return np.where(workers > 1, _of_shape(given, shape, what), 0.0)


def latency_alone(all_reduce, seconds: np.ndarray, n_workers) -> np.ndarray:
    """Return the part of messages' costs that an empty message has too, s; it shares no link."""
    return np.minimum(seconds_alone(all_reduce, np.zeros_like(seconds), n_workers), seconds)


def seconds_late(jitter: Jitter | None, n_workers) -> np.ndarray:
    """Return by how many s the slowest of n_workers is expected to be later than the mean one."""
    workers = np.asarray(n_workers, float)
    if jitter is None:
        return np.zeros(workers.shape)
    given, what = jitter(workers), f"jitter: result of {shown(jitter)}"
    return np.where(workers > 1, _of_shape(given, workers.shape, what), 0.0)


def _of_shape(given, shape: tuple, what: str) -> np.ndarray:
    """Return the result of a cost or a jitter as floats of a shape, or raise ValueError."""
    seconds = numbers(given, what, "finite s from 0 up")
    try:
        return np.broadcast_to(seconds, shape)
    except ValueError:
        expected = f"one time, or times of shape {shape}"
        refuse(what, expected, found=f"shape {seconds.shape}")


def a_scenario(value, name: str = "scenario"):
    """Raise ValueError unless value is a Scenario."""
    predicted = isinstance(getattr(value, "scenario", None), Scenario)
    do = "Build one: Scenario(gradients, one_worker_s, ...)"
    do = "Pass prediction.scenario" if predicted else do
    require(isinstance(value, Scenario), name, "a Scenario", value, do)


def one_each(values, n_buckets: int, name: str) -> np.ndarray:
    """Return the values as finite floats, one per bucket."""
    if isinstance(values, float):
        found = np.array([values])
    elif isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype == float:
        found = values
    else:
        found = np.asarray(pd.Series(values).to_numpy(float, na_value=np.nan))
    fits = len(found) in (1, n_buckets)
    require(fits, name, f"one number or {n_buckets}, one per bucket", found=f"{len(found)}")
    wrong = found[~np.isfinite(found)]
    require(not wrong.size, name, "finite s", *wrong[:1])
    return np.broadcast_to(found, n_buckets)
