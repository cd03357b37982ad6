"""A training set-up to predict: what is trained, on how many workers, over which link."""

import textwrap
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from numbers import Real

import numpy as np
import pandas as pd

from ..base.checks import check_callable, numbers, one_number, shown, whole_workers
from ..base.units import counted, format_bytes, format_seconds
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
    check_gradients,
)

_POLICIES = (PerTensor, OneMessage, FixedBuffer, DDPBuckets, DeepSpeedBuckets, HorovodFusion)
_POLICIES += (MergedGradients, OptimalFusion, Plan)
_ROUNDING = 1e-9  # relative; times read from files meet the limits below to about this
_MANY, _SMALL = 32, 64  # gradients, and bytes of their mean: no model has so many so small
_SLOW = 10  # iterations that an empty message may take two workers
_SLOW_HOP = 0.1  # s, slower than any link round the world
_DEAR = 10_000  # iterations that a message of all gradients may take two workers
_OTHER_UNIT = 0.002  # ms beside s: backward is at most 1/1000 then, else about two thirds


@dataclass(frozen=True, eq=False)
class Scenario:
    """One training set-up to predict; vary it with `dataclasses.replace`.

        Tn = T1 + exposed + idle + slowed + jitter(n) + fixed        scaling factor = T1 / Tn

    Parameters
    ----------
    gradients : GRADIENTS table, in the order backward makes them
    one_worker_s : T1, s of an iteration on one worker, all its micro-batches and data loading
    backward_s : s from backward's begin to its end, within one_worker_s but for what fixed_s tells
    n_workers : workers, each with the same batch
    all_reduce : cost(nbytes, n_workers) -> s, vectorised
    fusion : policy, gradients -> one bucket number a gradient
    overlap : False makes every message wait for the end of backward
    micro_batches : forward and backward passes an iteration (gradient accumulation); only the last
        backward sends, and gradients and backward_s are its own. The equation stays: the same
        exposed time beside a longer T1
    n_streams : queues that share the link; bucket k waits for bucket k - n_streams only, and m
        messages that transfer side by side run at 1/m of the bandwidth (see `queues.share`)
    slowdown : f from 0 up; compute runs 1 + f times slower while a message is in flight, so ready
        times and the end of backward move: that is `slowed`. f = fit_slowdown(run).factor - 1
    jitter : n_workers -> s by which the slowest worker is later than the mean one, such as
        SampleJitter(durations); added to Tn. None for workers that are always alike
    launch_s : when the host launches the messages, s since backward began, one number or one a
        bucket: start_k >= launch_k. Waiting for it after backward is `idle`
    fixed_s : s that every iteration of two or more workers takes besides, hidden by nothing: what
        an optimisation costs, negotiation, loading data through a shared storage; backward_s may
        hold some of it

    Raises ValueError when a value cannot be, for example a gradient ready after backward ended;
    warns of what may be in another unit: backward under 0.2 % of T1, or the last gradient ready in
    0.2 % of backward; many gradients of a few bytes; a link on which iterations wait for a message.
    """

    gradients: pd.DataFrame
    one_worker_s: float
    backward_s: float
    n_workers: int
    all_reduce: object
    fusion: object
    overlap: bool = True
    micro_batches: int = 1
    n_streams: int = 1
    slowdown: float = 0.0
    jitter: object = None
    launch_s: object = 0.0
    fixed_s: float = 0.0

    def __post_init__(self):
        for name, check in FIELDS.items():
            if name == "n_workers":  # the last of the checks of types, as both are named in it
                self._refuse_swapped()
            check(getattr(self, name))
        last = self.gradients["ready_s"].iloc[-1]
        times = self.one_worker_s, self.backward_s, self.micro_batches, self.fixed_s
        if not times_are_possible(last, *times):
            self._refuse_times()
        for doubt in self._doubts():
            warnings.warn(doubt, stacklevel=3)

    def _doubts(self):
        """Yield what may be in another unit, in words: all of it is possible, but odd."""
        last, backward_s = self.gradients["ready_s"].iloc[-1], self.backward_s
        if times_are_doubtful(self.one_worker_s, backward_s, self.micro_batches):
            yield (
                "one_worker_s may be in another unit: backward takes only "
                f"{100 * self.micro_batches * backward_s / self.one_worker_s:.3g} % of it "
                f"({shown(backward_s)} of {shown(self.one_worker_s)} s); both are in s"
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
        """Yield prices that no link has: two workers alone would wait for iterations."""
        cost, limit_s = self.all_reduce, self.one_worker_s
        if not getattr(getattr(cost, "cost", cost), "parameters", None):
            return  # a cost that is no price of a link may be anything
        empty_s, full_s = (float(cost(size, 2)) for size in (0.0, nbytes))
        if empty_s > max(_SLOW * limit_s, _SLOW_HOP):
            yield (
                f"all_reduce: an empty message of 2 workers takes {format_seconds(empty_s)}, an "
                f"iteration {format_seconds(limit_s)}; its latency a hop, alpha, is in s"
            )
        if full_s - empty_s > _DEAR * limit_s:
            yield (
                f"all_reduce: all gradients take 2 workers {full_s:.3g} s, beside an iteration of "
                f"{format_seconds(limit_s)}; its price of a byte, beta, is in s a byte, 1/bandwidth"
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
        """Return what differs from the plain model, in words."""
        fixed = 0.0 if self.fixed_s == 0 else format_seconds(self.fixed_s)
        parts = {
            f"{self.micro_batches} micro-batches": self.micro_batches > 1,
            f"{self.n_streams} streams": self.n_streams > 1,
            f"compute slowed by {100 * self.slowdown:.3g} %": self.slowdown > 0,
            "jitter": self.jitter is not None,
            "launch times": np.any(np.asarray(self.launch_s) != 0),
            f"{fixed} besides": self.fixed_s > 0,
        }
        return "".join(f", {words}" for words, told in parts.items() if told)

    def _refuse_swapped(self):
        cost_for_policy = hasattr(self.fusion, "with_parameters")  # what costs have
        if cost_for_policy or isinstance(self.all_reduce, _POLICIES):
            raise ValueError(
                f"expected all_reduce a cost and fusion a policy, got {shown(self.all_reduce)} and "
                f"{shown(self.fusion)}; name the two: all_reduce=..., fusion=..."
            )

    def _refuse_times(self):
        """Raise ValueError for whichever limit of `times_are_possible` the times do not meet."""
        last = self.gradients["ready_s"].iloc[-1]
        if not 0 < self.one_worker_s < np.inf:
            raise ValueError(f"one_worker_s: expected s above 0, got {shown(self.one_worker_s)}")
        if not 0 <= self.backward_s < np.inf:
            raise ValueError(f"backward_s: expected s from 0 up, got {shown(self.backward_s)}")
        if not last <= self.backward_s * (1 + _ROUNDING):
            raise ValueError(
                f"backward_s: expected the last gradient's ready time, {last:.6g} s, or later; "
                f"got {shown(self.backward_s)}, which is {last - self.backward_s:.3g} s earlier"
            )
        m, most = self.micro_batches, f"one_worker_s, {shown(self.one_worker_s)} s"
        each = f" for each of {m} micro-batches" if m > 1 else ""
        beside = f", and fixed_s, {shown(self.fixed_s)} s" if self.fixed_s > 0 else ""
        longer_s = m * (self.backward_s - self.fixed_s) - self.one_worker_s
        raise ValueError(
            f"backward_s: expected at most {most}{each}{beside}; "
            f"got {shown(self.backward_s)}, which is {longer_s:.3g} s longer"
        )


def _in_words(value) -> str:
    """Return a cost by its prices, whatever has none by its repr, short enough for a line."""
    told, inner = getattr(value, "parameters", None), getattr(value, "cost", None)
    if isinstance(told, dict) and told and all(name.startswith(tuple(UNITS)) for name in told):
        return f"{type(value).__name__}: {prices(told, 'nbytes')}"
    if callable(inner) and is_dataclass(value):  # a cost adjusted by optimisations
        given = ((field.name, getattr(value, field.name), field.default) for field in fields(value))
        changed = [
            f"{name}={shown(now)}"
            for name, now, plain in given
            if now is not inner and now != plain
        ]
        return f"{_in_words(inner)}; adjusted: {', '.join(changed)}"
    return textwrap.shorten(repr(value), 88, placeholder=" ...")


def times_are_possible(last_ready_s, one_worker_s, backward_s, micro_batches, fixed_s):
    """Return whether backward holds the gradients and an iteration its passes, one a row.

    What an optimisation computes within backward, such as coding, is in fixed_s and not in T1.
    """
    return (
        (0 < one_worker_s)
        & (one_worker_s < np.inf)
        & (0 <= backward_s)
        & (last_ready_s <= backward_s * (1 + _ROUNDING))
        & (micro_batches * (backward_s - fixed_s) <= one_worker_s * (1 + _ROUNDING))
    )


def times_are_doubtful(one_worker_s, backward_s, micro_batches):
    """Return whether backward is so short that the times may be in different units, one a row."""
    return micro_batches * backward_s < _OTHER_UNIT * one_worker_s


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
    """Return what each message costs when alone, s; 0 for a lone worker, who sends nothing.

    nbytes and n_workers broadcast. Raises ValueError for a cost that is no finite s from 0 up.
    """
    nbytes, workers = np.asarray(nbytes), np.asarray(n_workers)
    shape = np.broadcast_shapes(nbytes.shape, workers.shape)
    given, what = all_reduce(nbytes, workers), f"all_reduce: what {shown(all_reduce)} gave"
    return np.where(workers > 1, _of_shape(given, shape, what), 0.0)


def latency_alone(all_reduce, seconds: np.ndarray, n_workers) -> np.ndarray:
    """Return the part of messages' costs that an empty message has too, s: no link is shared."""
    return np.minimum(seconds_alone(all_reduce, np.zeros_like(seconds), n_workers), seconds)


def seconds_late(jitter, n_workers) -> np.ndarray:
    """Return by how many s the slowest of n_workers is expected to be later than the mean one."""
    workers = np.asarray(n_workers, float)
    if jitter is None:
        return np.zeros(workers.shape)
    given, what = jitter(workers), f"jitter: what {shown(jitter)} gave"
    return np.where(workers > 1, _of_shape(given, workers.shape, what), 0.0)


def _of_shape(given, shape: tuple, what: str) -> np.ndarray:
    """Return what a cost or a jitter gave as floats of the shape asked for, or raise ValueError."""
    seconds = numbers(given, what, "finite s from 0 up")
    try:
        return np.broadcast_to(seconds, shape)
    except ValueError:
        raise ValueError(
            f"{what}: expected one time, or times of shape {shape}; got shape {seconds.shape}"
        ) from None


def check_scenario(scenario, caller: str):
    """Raise ValueError for what is no Scenario."""
    if not isinstance(scenario, Scenario):
        predicted = isinstance(getattr(scenario, "scenario", None), Scenario)
        advice = "build one: Scenario(gradients, one_worker_s, ...)"
        advice = "pass prediction.scenario" if predicted else advice
        raise ValueError(f"{caller}: expected a Scenario, got {shown(scenario)}; {advice}")


def one_each(values, n_buckets: int, name: str) -> np.ndarray:
    """Return the values as finite floats, one a bucket."""
    if isinstance(values, float):
        found = np.array([values])
    elif isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype == float:
        found = values
    else:
        found = np.asarray(pd.Series(values).to_numpy(float, na_value=np.nan))
    if len(found) not in (1, n_buckets):
        raise ValueError(
            f"{name}: expected one number or {n_buckets}, one a bucket; got {len(found)}"
        )
    if not np.isfinite(found).all():
        raise ValueError(f"{name}: expected finite s; got {found[~np.isfinite(found)][0]}")
    return np.broadcast_to(found, n_buckets)


def _time(name: str, advice: str):
    return lambda value: one_number(value, f"{name}: expected one number of s", advice)


def _one_count(n_workers):
    if whole_workers(n_workers).ndim:
        raise ValueError("n_workers: expected one number; use sweep for several")


def _whole(name: str):
    def check(value):
        expected = f"{name}: expected one whole number from 1 up"
        one_number(value, expected, f"write {name}=2")
        if not (1 <= value < np.inf and value == int(value)):
            raise ValueError(f"{expected}, got {shown(value)}")

    return check


def _amount(name: str, advice: str):
    def check(value):
        expected = f"{name}: expected one finite number from 0 up"
        one_number(value, expected, advice)
        numbers(value, name)

    return check


def _yes_or_no(overlap):
    if not isinstance(overlap, bool | np.bool_):
        raise ValueError(f"overlap: expected True or False, got {shown(overlap)}")


def _jitter(jitter):
    return jitter is None or check_callable(jitter, "jitter", "NormalJitter(std_s)")


def _launch(launch_s):
    flat = np.ndim(launch_s) < 2 and not isinstance(launch_s, Mapping)
    values = np.asarray(pd.Series(launch_s, dtype=object)) if flat else []
    plain = all(isinstance(v, Real) and not isinstance(v, bool) and abs(v) < np.inf for v in values)
    if not (plain and len(values)):
        raise ValueError(
            "launch_s: expected finite s since backward began, one number or one a bucket; "
            f"got {shown(launch_s)}"
        )


# the check of each field, alone; those of two fields together are Scenario's
FIELDS = {
    "gradients": check_gradients,
    "all_reduce": lambda v: check_callable(v, "all_reduce", "Ring(Link(alpha, beta))"),
    "fusion": lambda v: check_callable(v, "fusion", "DDPBuckets()"),
    "n_workers": _one_count,
    "overlap": _yes_or_no,
    "one_worker_s": _time(
        "one_worker_s", "take the median: iterations(run.events)['duration_s'].median()"
    ),
    "backward_s": _time(
        "backward_s", "take the last gradient's ready time: gradients(run)['ready_s'].max()"
    ),
    "micro_batches": _whole("micro_batches"),
    "n_streams": _whole("n_streams"),
    "slowdown": _amount("slowdown", "0.1 is 10 % slower: fit_slowdown(run).factor - 1"),
    "jitter": _jitter,
    "launch_s": _launch,
    "fixed_s": _amount("fixed_s", "give it in s"),
}
