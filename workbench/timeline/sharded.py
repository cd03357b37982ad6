"""Sharded training (ZeRO, FSDP): reduce-scatter and all-gather in place of the all-reduce.

The buckets of a scenario are the units that are gathered and scattered together, k = 1..K in the
order of backward. Unit k computes its backward, b_k, and in the reverse order its forward, f_k.
Gathers G (all-gather) and scatters R (reduce-scatter) are sent in this order, each as soon as what
it waits for is over:

    full shard     forward: G_K .. G_1, f_k after G_k; backward: G_1, G_2, R_1, G_3, R_2 .. R_K
                   G_k after f_k, b_k after its G_k, R_k after b_k
    keep gathered  the same without the second G: what forward gathered is kept
    zero 2         R_k after b_k; after all of them G_1 .. G_K, the next forward's parameters

G_k also waits for the compute of the unit `ahead` places before it, so that few units are whole at
a time. Without prefetch the second G_{k+1} is sent after R_k. Sources: torch/distributed/fsdp
(FULL_SHARD, SHARD_GRAD_OP, BACKWARD_PRE, limit_all_gathers: 2 in flight) and DeepSpeed's ZeRO stage
2; the schedule is our reconstruction.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..base import intervals
from ..base.checks import shown
from ..fusion import fuse
from .export import as_events, chrome_trace, event, message
from .replay import COMPUTE, Task, replay
from .scenario import Scenario, check_scenario, latency_alone, seconds_alone, seconds_late

_COMPUTE = ("forward", "backward")
KINDS = ("full shard", "keep gathered", "zero 2")


@dataclass(frozen=True, eq=False)
class ShardedPrediction:
    """What is predicted of sharded training: iteration_s = T1 + exposed, slowed, jitter and fixed.

    timeline : a row a task: op (forward, backward, all_gather, reduce_scatter), unit (bucket's
        number in the order of backward; after the last, backward beyond the last gradient), nbytes
        (<NA> for compute), start_s and end_s (s since the iteration began)
    scaling_factor : T1 / iteration_s
    """

    scenario: Scenario
    timeline: pd.DataFrame
    iteration_s: float
    exposed_comm_s: float
    scaling_factor: float
    slowed_s: float
    jitter_s: float

    def to_events(self) -> pd.DataFrame:
        """Return the iteration as EVENTS: compute on stream 0, each queue on one from 1 on."""
        fixed_s = self.scenario.fixed_s if self.scenario.n_workers > 1 else 0.0
        begin_s = self.jitter_s + fixed_s
        rows = [
            event("annotation", "ProfilerStep#0", 0.0, self.iteration_s, thread=0),
            event("compute", "forward", 0.0, self.jitter_s, stream=0),
        ]
        for number, row in enumerate(self.timeline.itertuples(index=False)):
            start_s, end_s = begin_s + row.start_s, begin_s + row.end_s
            if row.op in _COMPUTE:
                rows.append(event("compute", row.op, start_s, end_s, stream=0))
            elif self.scenario.n_workers > 1:
                stream = int(self.scenario.n_streams) if row.op == "reduce_scatter" else 1
                times = start_s, start_s, end_s
                n_workers = int(self.scenario.n_workers)
                rows += message(number, row.op, row[2], n_workers, stream, times)
        return as_events(rows)

    def to_chrome_trace(self) -> str:
        """Return `to_events` as a trace in JSON, which Perfetto opens and load_run reads back."""
        return chrome_trace(self.to_events())


def predict_sharded(
    scenario: Scenario,
    kind: str = "full shard",
    all_gather=None,
    reduce_scatter=None,
    prefetch: bool = True,
    ahead: int = 2,
) -> ShardedPrediction:
    """Return the prediction for sharded training, in the schedule of the module's docstring.

    Parameters
    ----------
    scenario : its fusion cuts the units; n_streams 1 sends all in one queue (FSDP1), 2 gives
        reduce-scatters one of their own (FSDP2); slowdown, jitter and fixed_s hold as in predict
    kind : "full shard", "keep gathered" or "zero 2"
    all_gather, reduce_scatter : cost(nbytes, n_workers) -> s, nbytes of the whole unit; None for
        half the scenario's all_reduce, which is exact for a ring
    prefetch : whether backward's next all-gather is sent before the reduce-scatter
    ahead : units that may be whole at a time, from 1 up

    Forward is what T1 leaves beside backward, shared among units as backward is. Parameters travel
    with as many bytes as gradients. Raises ValueError for a scenario without overlap, with
    micro-batches or launch times, which this schedule does not know, or another kind.
    """
    _refuse(scenario, kind, ahead)
    # units of several types of data: in the order in which backward is through with them
    table = fuse(scenario.gradients, scenario.fusion)
    table = table.sort_values("ready_s", kind="stable", ignore_index=True)
    half = _halved(scenario.all_reduce)
    costs = {"all_gather": all_gather or half, "reduce_scatter": reduce_scatter or half}
    works = _compute(scenario, table) | {
        op: _latency_and_transfer(cost, table, scenario.n_workers) for op, cost in costs.items()
    }
    order = _order(kind, len(table), prefetch, int(ahead))
    lanes = {op: COMPUTE for op in _COMPUTE} | {"all_gather": 0, "reduce_scatter": 0}
    lanes["reduce_scatter"] = int(scenario.n_streams) - 1
    tasks = [Task(lanes[op], *works[op][unit], after) for op, unit, after in order]
    start_s, end_s = replay(tasks, scenario.slowdown)
    return _prediction(scenario, _timeline(order, table, start_s, end_s))


def _timeline(order: list[tuple], table: pd.DataFrame, start_s, end_s) -> pd.DataFrame:
    ops, units, _ = zip(*order, strict=True)
    op, nbytes = pd.Series(ops, dtype="str"), table["nbytes"].astype("Int64").reindex(units)
    nbytes = nbytes.reset_index(drop=True).mask(op.isin(_COMPUTE))
    timeline = pd.DataFrame({"op": op, "unit": units, "nbytes": nbytes})
    timeline = timeline.assign(start_s=start_s, end_s=end_s)
    return timeline.sort_values("start_s", kind="stable", ignore_index=True)


def _prediction(scenario: Scenario, timeline: pd.DataFrame) -> ShardedPrediction:
    computes = timeline["op"].isin(_COMPUTE).to_numpy()
    start, end = (timeline[name].to_numpy() for name in ("start_s", "end_s"))
    busy = intervals.measure(*intervals.union(start, end))
    compute = float((end - start)[computes].sum())
    jitter_s = float(seconds_late(scenario.jitter, scenario.n_workers))
    exposed_s = max(0.0, busy - compute) if scenario.n_workers > 1 else 0.0
    alone_s = max(scenario.one_worker_s, scenario.backward_s)  # backward may hold coding
    slowed_s = max(0.0, compute - alone_s) if scenario.slowdown else 0.0
    fixed_s = scenario.fixed_s if scenario.n_workers > 1 else 0.0
    iteration_s = scenario.one_worker_s + exposed_s + slowed_s + jitter_s + fixed_s
    factor = scenario.one_worker_s / iteration_s
    return ShardedPrediction(scenario, timeline, iteration_s, exposed_s, factor, slowed_s, jitter_s)


def _compute(scenario: Scenario, table: pd.DataFrame) -> dict:
    """Return s of forward and backward of each unit when no message is in flight."""
    ready = table["ready_s"].clip(upper=scenario.backward_s).to_numpy()
    backward = np.diff(np.r_[ready, scenario.backward_s], prepend=0.0)  # the last: what is left
    shares = np.full(len(ready), 1 / len(ready))
    if ready[-1] > 0:
        shares = backward[:-1] / ready[-1]
    forward_s = max(0.0, scenario.one_worker_s - scenario.backward_s)
    forward = forward_s * shares
    return {
        "forward": [(float(s), 0.0) for s in forward],
        "backward": [(float(s), 0.0) for s in backward],
    }


def _order(kind: str, n: int, prefetch: bool, ahead: int) -> list[tuple]:
    """Return (op, unit, tasks it waits for) of all tasks, each queue's in the order it is sent."""
    rows: list = []
    at: dict = {}

    def add(op, unit, *after):
        at[op, unit] = len(rows)  # of the gathers of a unit, the latest
        rows.append((op, unit, tuple(at[each] for each in after if each in at)))

    for unit in reversed(range(n)):
        if kind != "zero 2":
            add("all_gather", unit, ("forward", unit + ahead))
        add("forward", unit, ("all_gather", unit))
    gathered = kind == "full shard"
    for unit in range(n):
        if gathered and (unit == 0 or not prefetch):
            add("all_gather", unit, ("forward", unit), ("backward", unit - ahead))
        add("backward", unit, ("all_gather", unit))
        if gathered and prefetch and unit + 1 < n:
            add("all_gather", unit + 1, ("forward", unit + 1), ("backward", unit + 1 - ahead))
        add("reduce_scatter", unit, ("backward", unit))
    add("backward", n)
    if kind == "zero 2":
        last = [("reduce_scatter", n - 1), ("backward", n)]
        for unit in range(n):
            add("all_gather", unit, *last)
    return rows


def _latency_and_transfer(cost, table: pd.DataFrame, n_workers) -> list[tuple[float, float]]:
    """Return s of each unit's message that no other delays, and s that share the link."""
    seconds = seconds_alone(cost, table["nbytes"].to_numpy(), n_workers)
    latency = latency_alone(cost, seconds, n_workers)
    return list(zip(latency.tolist(), (seconds - latency).tolist(), strict=True))


def _halved(all_reduce):
    return lambda nbytes, n_workers: 0.5 * np.asarray(all_reduce(nbytes, n_workers), dtype=float)


def _refuse(scenario, kind: str, ahead: int):
    check_scenario(scenario, "predict_sharded")
    if kind not in KINDS:
        raise ValueError(f"kind: expected one of {', '.join(KINDS)}; got {shown(kind)}")
    if not (isinstance(ahead, int | np.integer) and ahead >= 1):
        raise ValueError(f"ahead: expected a whole number from 1 up, got {shown(ahead)}")
    unknown = {
        "overlap=False": not scenario.overlap,
        f"micro_batches={scenario.micro_batches}": scenario.micro_batches > 1,
        "launch_s": bool(np.any(np.asarray(scenario.launch_s) != 0)),
        f"n_streams={scenario.n_streams}": scenario.n_streams > 2,
    }
    found = ", ".join(name for name, given in unknown.items() if given)
    if found:
        raise ValueError(
            "predict_sharded: expected a scenario with overlap, one micro-batch, no launch times "
            f"and 1 or 2 streams; got {found}. Vary it with dataclasses.replace"
        )
