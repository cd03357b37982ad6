"""OSF, the scaling factor considering overlap: when each message runs and what that costs.

Backward makes the gradients in order; a fusion policy groups them into buckets k = 1..K, ready at
R_k and costing C_k; one serial queue sends them:

    start_k = max(R_k, end_{k-1}, launch_k)        end_k = start_k + C_k
    exposed = max(0, end_K - backward end)         Tn = T1 + exposed
    scaling factor = T1 / Tn                       (batch per worker fixed: weak scaling)

OSF is from "Modeling and Optimizing the Scaling Performance in Distributed Deep Learning Training"
(WWW '22, doi 10.1145/3485447.3511981). Its abstract describes a recursive model with overlap and
tensor fusion; the recursion above is our reconstruction, and so is what Scenario adds to it.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..base.checks import checked, one_of, require, whole_workers
from ..base.units import counted, format_seconds
from ..fusion import fuse
from .explain import explain
from .export import as_events, chrome_trace, event, message
from .grid import Grid, exposed_and_besides
from .queues import after_backward, last_end, on_the_clock, schedule, side_by_side
from .scenario import (
    FIELDS,
    Scenario,
    a_scenario,
    fixed_of,
    host_launches,
    latency_alone,
    seconds_alone,
    seconds_late,
)

__all__ = ["Prediction", "Scenario", "last_end", "predict", "schedule", "sweep"]


@dataclass(frozen=True, eq=False)
class Predicted:
    """One predicted iteration; each schedule has a class of its own with its timeline.

        iteration_s = T1 + exposed_comm_s + idle_s + slowed_s + jitter_s + fixed_s of the scenario

    timeline : table of what runs when
    iteration_s : Tn
    exposed_comm_s : s for which compute waits for messages
    scaling_factor : T1 / Tn
    idle_s : s after backward in which nothing runs because the host has not launched a message
    slowed_s : s by which messages slow compute
    jitter_s : s by which the slowest worker is expected to be later than the mean one
    """

    scenario: Scenario
    timeline: pd.DataFrame
    iteration_s: float
    exposed_comm_s: float
    scaling_factor: float
    idle_s: float = 0.0
    slowed_s: float = 0.0
    jitter_s: float = 0.0

    @classmethod
    def of(cls, scenario: Scenario, timeline: pd.DataFrame, exposed_s, idle_s=0.0, slowed_s=0.0):
        """Return the prediction with these s beyond compute, jitter and fixed_s."""
        one_worker_s = float(scenario.one_worker_s)
        jitter_s = float(seconds_late(scenario.jitter, scenario.n_workers))
        iteration_s = one_worker_s + exposed_s + idle_s + slowed_s + jitter_s + fixed_of(scenario)
        factor = one_worker_s / iteration_s
        return cls(scenario, timeline, iteration_s, exposed_s, factor, idle_s, slowed_s, jitter_s)

    def __repr__(self) -> str:
        times = map(format_seconds, (self.iteration_s, self.exposed_comm_s))
        others = {"idle": self.idle_s, "slowed": self.slowed_s, "jitter": self.jitter_s}
        more = "".join(f"{name} {format_seconds(s)}, " for name, s in others.items() if s > 0)
        return (
            f"{type(self).__name__}: scaling factor {self.scaling_factor:.3f} on "
            f"{counted(int(self.scenario.n_workers), 'worker')}\n"
            "  iteration {}, exposed communication {}, ".format(*times)
            + more
            + self._sent()
        )

    def _sent(self) -> str:
        return counted(len(self.timeline), "message")

    def to_chrome_trace(self) -> str:
        """Return `to_events` as a trace in JSON, which Perfetto opens and load_run reads.

        Path("predicted.json").write_text(prediction.to_chrome_trace())
        """
        return chrome_trace(self.to_events())


class Prediction(Predicted):
    """What OSF predicts for a scenario; timeline is a TIMELINE, one row per message."""

    def explain(self) -> pd.DataFrame:
        """Return why each message starts when it does: EXPLANATION, one row per bucket.

        `branch` is the largest term of the maximum, `waited_s` its delay, `critical` whether the
        bucket bounds the iteration, and `why` the reason in words.
        """
        scenario = self.scenario
        return explain(
            self.timeline,
            _launches(scenario, self.timeline),
            seconds_alone(scenario.all_reduce, self.timeline["nbytes"], scenario.n_workers),
            scenario.backward_s + self.slowed_s,
            scenario.n_streams,
        )

    def to_events(self) -> pd.DataFrame:
        """Return one predicted iteration of rank 0 as EVENTS, to be measured like a real one.

        Compute runs on stream 0: forward and backward of each micro-batch, the last backward cut
        at each ready time. Messages run on streams from 1 up, one stream per queue; each is
        launched by the host, or else during the compute before its ready time. A `ProfilerStep#0`
        annotation spans 0 to Tn. Rank 0 is the slowest worker: its forward is longer by jitter_s.
        fixed_s is idle time before the last backward, except for the part within backward. All
        other compute, the optimiser's included, runs before it, which changes no exposed time.
        """
        scenario, m = self.scenario, int(self.scenario.micro_batches)
        rows = self._forward()
        fixed_s = fixed_of(scenario)
        pass_s = scenario.one_worker_s / m
        backward_s = min(scenario.backward_s, pass_s + fixed_s)  # one worker codes nothing
        begin_s = rows[-1]["end_s"] + min(fixed_s, pass_s + fixed_s - backward_s)
        backward_end_s = backward_s + self.slowed_s
        edges = np.unique(np.minimum([0.0, *self.timeline["ready_s"], np.inf], backward_end_s))
        end_s = begin_s + backward_end_s + self.idle_s + self.exposed_comm_s
        rows.insert(0, event("annotation", "ProfilerStep#0", 0.0, end_s, thread=0))
        rows += (
            event("compute", "backward", begin_s + low, begin_s + high, stream=0)
            for low, high in itertools.pairwise(edges.tolist())
        )
        if scenario.n_workers > 1:
            rows += self._messages(begin_s, edges)
        return as_events(rows)

    def _forward(self) -> list[dict]:
        """Return the rows of compute before the last backward."""
        scenario, m = self.scenario, int(self.scenario.micro_batches)
        forward_s = max(0.0, scenario.one_worker_s - m * scenario.backward_s) / m
        rows, now = [], 0.0
        for _ in range(m - 1):
            middle, end = now + forward_s, now + scenario.one_worker_s / m
            rows.append(event("compute", "forward", now, middle, stream=0))
            rows.append(event("compute", "backward", middle, end, stream=0))
            now = end
        return [
            *rows,
            event("compute", "forward", now, now + forward_s + self.jitter_s, stream=0),
        ]

    def _messages(self, begin_s: float, edges: np.ndarray) -> list[dict]:
        """Return the launches and runs of the messages; edges are where backward is cut, s."""
        scenario, table = self.scenario, self.timeline
        ready, host = table["ready_s"].to_numpy(), _launches(scenario, table)
        before = np.searchsorted(edges, ready) - 1
        early = np.where(before < 0, 0.0, begin_s + edges[before])
        launch = np.where(host > ready, begin_s + host, early).tolist()
        start, end = (begin_s + table[name].to_numpy() for name in ("start_s", "end_s"))
        n_workers, streams = int(scenario.n_workers), int(scenario.n_streams)
        rows = zip(table["nbytes"], launch, start.tolist(), end.tolist(), strict=True)
        return [
            row
            for k, (nbytes, *times) in enumerate(rows)
            for row in message(k, "all_reduce", nbytes, n_workers, 1 + k % streams, times)
        ]


@checked(scenario=a_scenario)
def predict(scenario: Scenario) -> Prediction:
    """Return the prediction of OSF (our reconstruction) for one scenario.

    Tn = T1 + exposed and the other parts (see Predicted), exposed = max(0, end of the last
    message - end of backward), and the scaling factor is T1 / Tn: 1 if backward hides every
    message, and for one worker.
    """
    table = _on_time(fuse(scenario.gradients, scenario.fusion), scenario.backward_s)
    nbytes, n_workers = table["nbytes"].to_numpy(), scenario.n_workers
    seconds = seconds_alone(scenario.all_reduce, nbytes, n_workers)
    launch = _launches(scenario, table)
    if scenario.n_streams == 1:
        timeline = schedule(table, seconds, launch, scenario.slowdown)
    else:
        latency = latency_alone(scenario.all_reduce, seconds, n_workers)
        ready, streams = table["ready_s"].to_numpy(), int(scenario.n_streams)
        times = side_by_side(ready, latency, seconds - latency, launch, streams, scenario.slowdown)
        timeline = on_the_clock(table, *times, scenario.slowdown)
    start_s, end_s = (timeline[name].to_numpy() for name in ("start_s", "end_s"))
    spent = after_backward(start_s, end_s, scenario.backward_s, scenario.slowdown)
    return Prediction.of(scenario, timeline, *spent)


def _launches(scenario: Scenario, table: pd.DataFrame) -> np.ndarray:
    """Return the earliest start of each message, s: the host's launch, or the end of backward."""
    if scenario.n_workers == 1:
        return np.zeros(len(table))
    earliest = 0.0 if scenario.overlap else scenario.backward_s
    return np.maximum(host_launches(table, scenario.launch_s), earliest)


def _on_time(table: pd.DataFrame, backward_s: float) -> pd.DataFrame:
    # a ready time beyond the end of backward by rounding is not exposed communication
    return table.assign(ready_s=table["ready_s"].clip(upper=backward_s))


def _an_executor(value, name: str):
    expected = "a concurrent.futures.Executor or None"
    do = "Name the field to vary: sweep(scenario, n_workers=[1, 2, 4])"
    require(value is None or hasattr(value, "map"), name, expected, value, do)


@checked(scenario=a_scenario, executor=_an_executor)
def sweep(scenario: Scenario, executor=None, **grid) -> pd.DataFrame:
    """Return one row per combination of the grid's values, in the order of itertools.product.

    Each keyword is a field of Scenario with a list of values; columns are those fields, then
    iteration_s and exposed_comm_s (s) and scaling_factor. Combinations are computed together in
    closed form (one by one with several streams, which have none); `executor`, any
    concurrent.futures.Executor, computes blocks of them in parallel.

        sweep(scenario, n_workers=range(1, 1025), fusion=[PerTensor(), DDPBuckets()])

    Raises ValueError for an unknown field, a field without values, or values that a Scenario
    refuses.
    """
    grid = {name: _values(name, values) for name, values in grid.items()}
    table = Grid(scenario, grid)
    one_worker_s, n_workers = table.numbers("one_worker_s"), table.numbers("n_workers")
    parts = table.parts()
    run = map if executor is None else executor.map
    exposed_s, besides_s = np.empty(table.n_rows), np.empty(table.n_rows)
    for part, found in zip(parts, run(exposed_and_besides, [p for p, _ in parts]), strict=True):
        exposed_s[part[1]], besides_s[part[1]] = found
    besides_s += table.jitter_s() + np.where(n_workers > 1, table.numbers("fixed_s"), 0.0)
    iteration_s = one_worker_s + exposed_s + besides_s
    return pd.DataFrame(
        {name: pd.Series([values[i] for i in table.at[name]]) for name, values in grid.items()}
        | {
            "iteration_s": iteration_s,
            "exposed_comm_s": exposed_s,
            "scaling_factor": one_worker_s / iteration_s,
        }
    )


def _values(name: str, values) -> list:
    one_of(FIELDS)(name, "sweep")
    single = np.isscalar(values) or isinstance(values, pd.DataFrame) or not np.iterable(values)
    require(not single, name, "a list of values", values, f"Write {name}=[...]")
    values = list(values)
    require(values, name, "at least one value", found="an empty list")
    if name == "n_workers":
        require(whole_workers(values).ndim == 1, name, "a flat list of numbers", found="lists")
    elif name != "gradients":  # which are checked where they are cut
        for value in values:
            FIELDS[name](value, name)
    return values
