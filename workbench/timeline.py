"""OSF, the scaling factor considering overlap: when each message runs and what that costs.

Backward makes the gradients in order; a fusion policy groups them into buckets k = 1..K, ready at
R_k and costing C_k; one serial queue sends them:

    start_k = max(R_k, end_{k-1}, launch_k)        end_k = start_k + C_k
    exposed = max(0, end_K - backward end)         Tn = T1 + exposed
    scaling factor = T1 / Tn                       (batch per worker fixed: weak scaling)

OSF is from "Modeling and Optimizing the Scaling Performance in Distributed Deep Learning Training"
(WWW '22, doi 10.1145/3485447.3511981). Its abstract tells of a recursive model with overlap and
tensor fusion; the recursion above is our reconstruction.
"""

import itertools
import textwrap
import warnings
from dataclasses import dataclass, fields, replace

import numpy as np
import pandas as pd

from .checks import check_callable, one_number, shown, whole_workers
from .costs import LinkCost
from .fusion import DDPBuckets, OneMessage, PerTensor, check_gradients, fuse
from .tables import BUCKETS, EVENTS, check
from .units import format_bytes, format_seconds

_POLICIES = (PerTensor, OneMessage, DDPBuckets)
_ROUNDING = 1e-9  # relative; times read from files meet the limits below to about this
_OTHER_UNIT = 0.02  # backward takes about two thirds of an iteration; milliseconds as s, 1/1000


@dataclass(frozen=True, eq=False)
class Scenario:
    """One training set-up to predict; vary it with `dataclasses.replace`.

    Parameters
    ----------
    gradients : GRADIENTS table, in the order backward makes them
    one_worker_s : T1, s of an iteration on one worker
    backward_s : s from backward's begin to its end, within one_worker_s
    n_workers : workers, each with the same batch
    all_reduce : cost(nbytes, n_workers) -> s, vectorised
    fusion : policy, gradients -> one bucket number a gradient
    overlap : False makes every message wait for the end of backward

    Raises ValueError when a value cannot be, for example a gradient ready after backward ended;
    warns when backward is under 2 % of T1, which then may be in another unit.
    """

    gradients: pd.DataFrame
    one_worker_s: float
    backward_s: float
    n_workers: int
    all_reduce: object
    fusion: object
    overlap: bool = True

    def __post_init__(self):
        check_gradients(self.gradients)
        check_callable(self.all_reduce, "all_reduce", "Ring(Link(alpha, beta))")
        check_callable(self.fusion, "fusion", "DDPBuckets()")
        if isinstance(self.fusion, LinkCost) or isinstance(self.all_reduce, _POLICIES):
            raise ValueError(
                f"expected all_reduce a cost and fusion a policy, got {shown(self.all_reduce)} and "
                f"{shown(self.fusion)}; name the two: all_reduce=..., fusion=..."
            )
        if whole_workers(self.n_workers).ndim:
            raise ValueError("n_workers: expected one number; use sweep for several")
        if not isinstance(self.overlap, bool | np.bool_):
            raise ValueError(f"overlap: expected True or False, got {shown(self.overlap)}")
        for name, advice in _TIMES.items():
            one_number(getattr(self, name), f"{name}: expected one number of s", advice)
        self._refuse_times()

    def __repr__(self) -> str:
        n, nbytes = len(self.gradients), int(self.gradients["nbytes"].sum())
        one_worker, backward = map(format_seconds, (self.one_worker_s, self.backward_s))
        cost, policy = (textwrap.shorten(repr(v), 80) for v in (self.all_reduce, self.fusion))
        return (
            f"Scenario: {_count(n, 'gradient')}, {format_bytes(nbytes)}; "
            f"{_count(int(self.n_workers), 'worker')}, T1 {one_worker}, backward {backward}"
            f"{'' if self.overlap else ', no overlap'}\n"
            f"  all_reduce {cost}\n  fusion {policy}"
        )

    def _refuse_times(self):
        """Raise ValueError, or warn, unless last ready <= backward_s <= one_worker_s."""
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
        if not self.backward_s <= self.one_worker_s * (1 + _ROUNDING):
            raise ValueError(
                f"backward_s: expected at most one_worker_s, {shown(self.one_worker_s)} s; "
                f"got {shown(self.backward_s)}, which is "
                f"{self.backward_s - self.one_worker_s:.3g} s longer"
            )
        if self.backward_s < _OTHER_UNIT * self.one_worker_s:
            warnings.warn(
                "one_worker_s may be in another unit: backward takes only "
                f"{100 * self.backward_s / self.one_worker_s:.3g} % of it "
                f"({shown(self.backward_s)} of {shown(self.one_worker_s)} s); both are in s",
                stacklevel=4,
            )


@dataclass(frozen=True, eq=False)
class Prediction:
    """What OSF says of a scenario: its TIMELINE, Tn in s, exposed communication in s, T1/Tn."""

    scenario: Scenario
    timeline: pd.DataFrame
    iteration_s: float
    exposed_comm_s: float
    scaling_factor: float

    def __repr__(self) -> str:
        times = map(format_seconds, (self.iteration_s, self.exposed_comm_s))
        return (
            f"Prediction: scaling factor {self.scaling_factor:.3f} on "
            f"{_count(int(self.scenario.n_workers), 'worker')}\n"
            "  iteration {}, exposed communication {}, ".format(*times)
            + _count(len(self.timeline), "message")
        )

    def to_events(self) -> pd.DataFrame:
        """Return one predicted iteration of rank 0 as EVENTS, so that it measures like a real one.

        Compute runs on stream 0: forward from 0 to T1 - backward_s, then backward, a row up to each
        ready time; messages run on stream 1, each launched while the compute before its ready time
        runs; a `ProfilerStep#0` annotation spans 0 to Tn. All compute but backward sits before
        backward, the optimiser's share included: that moves no exposed time.
        """
        forward_s = max(0.0, self.scenario.one_worker_s - self.scenario.backward_s)
        edges = np.unique([0.0, *self.timeline["ready_s"], self.scenario.backward_s])
        end_s = forward_s + self.scenario.backward_s + self.exposed_comm_s
        rows = [
            _event("annotation", "ProfilerStep#0", 0.0, end_s, stream=-1, thread=0),
            _event("compute", "forward", 0.0, forward_s, stream=0),
            *(
                _event("compute", "backward", forward_s + low, forward_s + high, stream=0)
                for low, high in itertools.pairwise(edges.tolist())
            ),
        ]
        n_workers = int(self.scenario.n_workers)
        if n_workers > 1:  # a lone worker sends nothing
            before = np.searchsorted(edges, self.timeline["ready_s"]) - 1
            launches = np.where(before < 0, 0.0, forward_s + edges[before])
            sent = self.timeline[["nbytes", "start_s", "end_s"]].itertuples(index=False)
            for number, (launch_s, (nbytes, start_s, stop_s)) in enumerate(
                zip(launches.tolist(), sent, strict=True)
            ):
                span = forward_s + start_s, forward_s + stop_s
                comm = _event("comm", "all_reduce", *span, stream=1)
                comm |= {"op": "all_reduce", "nbytes": nbytes, "n_workers": n_workers}
                launch = _event("host", "launch", launch_s, launch_s, stream=-1, thread=0)
                rows += [row | {"correlation": number} for row in (launch, comm)]
        return pd.DataFrame(rows, columns=list(EVENTS)).astype(_EVENT_TYPES)


def schedule(buckets: pd.DataFrame, seconds, launch_s=0.0) -> pd.DataFrame:
    """Return the TIMELINE of buckets sent one after another, in the table's order.

        start_k = max(R_k, end_{k-1}, launch_k)        end_k = start_k + C_k

    C_k is `seconds`, launch_k the host's launch of the message (0 when unknown); each is one
    number or one a bucket, launch_s on the clock of ready_s. This is our reconstruction of OSF's
    recursion. Raises ValueError for a length that differs or a time that is not a finite number.
    """
    check(buckets, BUCKETS, "buckets")
    ready = _one_each(buckets["ready_s"], len(buckets), "ready_s of buckets")
    costs = _one_each(seconds, len(buckets), "seconds")
    launches = _one_each(launch_s, len(buckets), "launch_s")
    if (costs < 0).any():
        raise ValueError(f"seconds: expected costs from 0 s up, got {costs.min()}")
    starts, ends, end = [], [], -np.inf
    for ready_k, cost_k, launch_k in zip(
        ready.tolist(), costs.tolist(), launches.tolist(), strict=True
    ):
        start = max(ready_k, end, launch_k)
        end = start + cost_k
        starts.append(start)
        ends.append(end)
    return buckets.assign(start_s=starts, end_s=ends)


def last_end(arrival_s, seconds) -> np.ndarray:
    """Return the end of the last message in closed form: max over k of (R_k + sum of C_j, j >= k).

    The recursion unrolled, which is linear in max-plus algebra. arrival_s, shape (K, ...), is
    max(R_k, launch_k); seconds, shape (K, ...), is C_k; the result has the shape that remains.
    """
    remaining = np.cumsum(np.flip(seconds, axis=0), axis=0)
    return np.max(np.flip(arrival_s, axis=0) + remaining, axis=0)


def predict(scenario: Scenario) -> Prediction:
    """Return the prediction of OSF (our reconstruction) for one scenario.

    Tn = T1 + exposed, exposed = max(0, end of the last message - end of backward), and the scaling
    factor is T1 / Tn: 1 when every message hides behind backward, and for one worker.
    """
    _check_scenario(scenario, "predict")
    buckets = _buckets(scenario)
    seconds = _seconds(scenario, buckets, scenario.n_workers)
    timeline = schedule(buckets, seconds, 0.0 if scenario.overlap else scenario.backward_s)
    exposed_s = max(0.0, float(timeline["end_s"].iloc[-1]) - scenario.backward_s)
    iteration_s = scenario.one_worker_s + exposed_s
    factor = scenario.one_worker_s / iteration_s
    return Prediction(scenario, timeline, iteration_s, exposed_s, factor)


def sweep(scenario: Scenario, executor=None, **grid) -> pd.DataFrame:
    """Return one row a combination of the grid's values, in the order of itertools.product.

    Each keyword is a field of Scenario with a list of values; columns are those fields, then
    iteration_s and exposed_comm_s (s) and scaling_factor. All n_workers are computed at once;
    `executor`, any concurrent.futures.Executor, spreads the other combinations.

        sweep(scenario, n_workers=range(1, 1025), fusion=[PerTensor(), DDPBuckets()])

    Raises ValueError for an unknown field, a field without values, or values a Scenario refuses.
    """
    _check_scenario(scenario, "sweep")
    if not (executor is None or hasattr(executor, "map")):
        raise ValueError(
            f"sweep: executor: expected a concurrent.futures.Executor, got {shown(executor)}; "
            "name the field to vary: sweep(scenario, n_workers=[1, 2, 4])"
        )
    grid = {name: _values(name, values) for name, values in grid.items()}
    workers = whole_workers(grid.get("n_workers", [scenario.n_workers]))
    if workers.ndim != 1:
        raise ValueError("sweep: n_workers: expected a flat list of numbers, got lists in a list")
    others = {name: values for name, values in grid.items() if name != "n_workers"}
    scenarios = [
        replace(scenario, **dict(zip(others, values, strict=True)))
        for values in itertools.product(*others.values())
    ]
    run = map if executor is None else executor.map
    exposed = np.array(list(run(_exposed, scenarios, [workers] * len(scenarios))))
    one_worker = np.array([each.one_worker_s for each in scenarios])[:, None]
    exposed_s = _in_order(exposed, grid, len(workers))
    one_worker_s = _in_order(np.broadcast_to(one_worker, exposed.shape), grid, len(workers))
    columns = zip(*itertools.product(*grid.values()), strict=True) if grid else ()
    return pd.DataFrame(
        {name: pd.Series(list(values)) for name, values in zip(grid, columns, strict=True)}
        | {
            "iteration_s": one_worker_s + exposed_s,
            "exposed_comm_s": exposed_s,
            "scaling_factor": one_worker_s / (one_worker_s + exposed_s),
        }
    )


_TIMES = {
    "one_worker_s": "take the median: iterations(run.events)['duration_s'].median()",
    "backward_s": "take the last gradient's ready time: gradients(run)['ready_s'].max()",
}


def _check_scenario(scenario, caller: str):
    if not isinstance(scenario, Scenario):
        advice = "build one: Scenario(gradients, one_worker_s, ...)"
        if isinstance(scenario, Prediction):
            advice = "pass prediction.scenario"
        raise ValueError(f"{caller}: expected a Scenario, got {shown(scenario)}; {advice}")


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _exposed(scenario: Scenario, workers: np.ndarray) -> np.ndarray:
    """Return the exposed communication in s for each number of workers, by the closed form."""
    buckets = _buckets(scenario)
    seconds = _seconds(scenario, buckets, workers)
    ready = buckets["ready_s"].to_numpy()
    arrival = ready if scenario.overlap else np.full_like(ready, scenario.backward_s)
    return np.maximum(0.0, last_end(arrival[:, None], seconds) - scenario.backward_s)


def _buckets(scenario: Scenario) -> pd.DataFrame:
    buckets = fuse(scenario.gradients, scenario.fusion)
    # a ready time beyond the end of backward by rounding is not exposed communication
    return buckets.assign(ready_s=buckets["ready_s"].clip(upper=scenario.backward_s))


def _seconds(scenario: Scenario, buckets: pd.DataFrame, n_workers) -> np.ndarray:
    """Return the cost of each bucket in s, shape (n_buckets,) + shape of n_workers."""
    workers = np.asarray(n_workers)
    nbytes = buckets["nbytes"].to_numpy().reshape(-1, *[1] * workers.ndim)
    seconds = np.asarray(scenario.all_reduce(nbytes, workers), dtype=float)
    seconds = np.broadcast_to(seconds, (len(buckets), *workers.shape))
    if not ((seconds >= 0) & (seconds < np.inf)).all():
        raise ValueError(
            f"all_reduce: expected a cost of finite s from 0 up for every bucket; "
            f"{shown(scenario.all_reduce)} gave {seconds.min():.6g} to {seconds.max():.6g}"
        )
    return np.where(workers > 1, seconds, 0.0)


def _in_order(values: np.ndarray, grid: dict, n_counts: int) -> np.ndarray:
    """Return values, shape (combinations of the other fields, counts), in the grid's own order."""
    names = list(grid)
    shape = [len(grid[name]) for name in names if name != "n_workers"]
    block = values.reshape(*shape, n_counts)
    return np.moveaxis(block, -1, names.index("n_workers") if "n_workers" in grid else -1).ravel()


def _values(name: str, values) -> list:
    known = [field.name for field in fields(Scenario)]
    if name not in known:
        raise ValueError(f"sweep: expected fields of Scenario, {', '.join(known)}; got {name!r}")
    if np.isscalar(values) or isinstance(values, pd.DataFrame) or not np.iterable(values):
        raise ValueError(
            f"sweep: {name}: expected a list of values, got {shown(values)}; write {name}=[...]"
        )
    values = list(values)
    if not values:
        raise ValueError(f"sweep: {name}: expected at least one value, got an empty list")
    return values


def _one_each(values, n_buckets: int, name: str) -> np.ndarray:
    """Return the values as finite floats, one a bucket."""
    numbers = np.asarray(pd.Series(values).to_numpy(float, na_value=np.nan))
    if len(numbers) not in (1, n_buckets):
        raise ValueError(
            f"{name}: expected one number or {n_buckets}, one a bucket; got {len(numbers)}"
        )
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name}: expected finite s; got {numbers[~np.isfinite(numbers)][0]}")
    return np.broadcast_to(numbers, n_buckets)


_EVENT_TYPES = {
    "rank": "Int64",
    "stream": "int64",
    "thread": "int64",
    "iteration": "int64",
    "kind": "str",
    "op": "str",
    "name": "str",
    "group": "str",
    "nbytes": "Int64",
    "n_workers": "Int64",
    "correlation": "int64",
    "start_s": "float64",
    "end_s": "float64",
}


def _event(kind: str, name: str, start_s: float, end_s: float, stream: int, thread=-1) -> dict:
    place = {"rank": 0, "stream": stream, "thread": thread, "iteration": 0, "correlation": -1}
    what = {"kind": kind, "op": "", "name": name, "group": ""}
    what |= {"nbytes": pd.NA, "n_workers": pd.NA}
    return place | what | {"start_s": start_s, "end_s": end_s}
