"""Sharded training (ZeRO, FSDP): reduce-scatter and all-gather in place of the all-reduce.

A bucket of the scenario is a unit that is gathered and scattered as a whole, k = 1..K in the order
of backward. Unit k computes its backward, b_k, and in the reverse order its forward, f_k. Gathers G
(all-gather) and scatters R (reduce-scatter) are sent in this order, each as soon as the tasks it
waits for have ended:

    full shard     forward: G_K .. G_1, f_k after G_k; backward: G_1, G_2, R_1, G_3, R_2 .. R_K
                   G_k after f_k, b_k after its G_k, R_k after b_k
    keep gathered  the same without the second G: gathered parameters are kept
    zero 2         R_k after b_k; after all of them G_1 .. G_K, the next forward's parameters

G_k also waits for the compute of the unit `ahead` places before it, which limits the units gathered
at a time. Without prefetch the second G_{k+1} is sent after R_k. Sources: torch/distributed/fsdp
(FULL_SHARD, SHARD_GRAD_OP, BACKWARD_PRE, limit_all_gathers: 2 in flight) and DeepSpeed's ZeRO stage
2; the schedule is our reconstruction.
"""

import numpy as np
import pandas as pd

from ..base import intervals
from ..base.checks import a_cost, checked, one_of, optional, require, whole, yes_or_no
from ..base.units import counted
from ..fusion import fuse
from .export import as_events, event, message
from .prediction import Predicted
from .replay import COMPUTE, Task, replay
from .scenario import Scenario, a_scenario, fixed_of, latency_alone, seconds_alone

_COMPUTE = ("forward", "backward")
_KINDS = ("full shard", "keep gathered", "zero 2")


class ShardedPrediction(Predicted):
    """What is predicted of sharded training.

    timeline : one row per task: op (forward, backward, all_gather, reduce_scatter), unit (bucket
        number in the order of backward; after the last, backward beyond the last gradient), nbytes
        (<NA> for compute), start_s and end_s (s since the iteration began)
    """

    def to_events(self) -> pd.DataFrame:
        """Return the iteration as EVENTS: compute on stream 0, queues on streams from 1 up."""
        begin_s = self.jitter_s + fixed_of(self.scenario)
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

    def _sent(self) -> str:
        return counted(int((~self.timeline["op"].isin(_COMPUTE)).sum()), "message")


@checked(
    scenario=a_scenario,
    kind=one_of(_KINDS),
    all_gather=optional(a_cost),
    reduce_scatter=optional(a_cost),
    prefetch=yes_or_no,
    ahead=whole(),
)
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
    scenario : its fusion cuts the units; n_streams 1 sends all in one queue (FSDP1), 2 sends
        reduce-scatters in a second one (FSDP2); slowdown, jitter and fixed_s as in predict
    kind : "full shard", "keep gathered" or "zero 2"
    all_gather, reduce_scatter : cost(nbytes, n_workers) -> s, nbytes of the whole unit; None for
        half the scenario's all_reduce, which is exact for a ring
    prefetch : whether backward's next all-gather is sent before the reduce-scatter
    ahead : units that may be gathered at a time, from 1 up

    Forward is T1 minus backward, shared among units like backward. Parameters have as many bytes
    as gradients. Raises ValueError for a scenario without overlap, with micro-batches or launch
    times, which this schedule does not support.
    """
    _refuse(scenario)
    # with several types of data: in the order in which backward completes the units
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
    exposed_s = max(0.0, busy - compute) if scenario.n_workers > 1 else 0.0
    alone_s = max(scenario.one_worker_s, scenario.backward_s)  # backward may hold coding
    slowed_s = max(0.0, compute - alone_s) if scenario.slowdown else 0.0
    return ShardedPrediction.of(scenario, timeline, exposed_s, slowed_s=slowed_s)


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
    """Return (op, unit, tasks it waits for) of all tasks, each queue in sending order."""
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
    """Return the latency and the transfer time of each unit's message, s."""
    seconds = seconds_alone(cost, table["nbytes"].to_numpy(), n_workers)
    latency = latency_alone(cost, seconds, n_workers)
    return list(zip(latency.tolist(), (seconds - latency).tolist(), strict=True))


def _halved(all_reduce):
    return lambda nbytes, n_workers: 0.5 * np.asarray(all_reduce(nbytes, n_workers), dtype=float)


def _refuse(scenario: Scenario):
    unknown = {
        "overlap=False": not scenario.overlap,
        f"micro_batches={scenario.micro_batches}": scenario.micro_batches > 1,
        "launch_s": bool(np.any(np.asarray(scenario.launch_s) != 0)),
        f"n_streams={scenario.n_streams}": scenario.n_streams > 2,
    }
    found = ", ".join(name for name, given in unknown.items() if given)
    expected = "overlap, one micro-batch, no launch times and 1 or 2 streams"
    require(not found, "scenario", expected, found=found, do="Vary it with dataclasses.replace")
