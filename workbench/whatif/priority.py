"""Priority scheduling with partition: the layer that the next forward needs first goes first.

P3 (Jayarajan et al., MLSys 2019) and ByteScheduler (Peng et al., SOSP 2019) cut each gradient into
pieces and, whenever the link is free, send a piece of the ready gradient whose layer is nearest to
the input. The next forward does not wait for all messages, as with one queue: each layer waits only
for its own gradient.

    forward of gradient g starts at max(end of forward before it, end of the last piece of g)
    Tn = end of the next iteration's forward - begin of this backward

Gradients g = 1..L are in the order of backward, and forward runs L..1. Forward of g = 1
waits for the last message, so none is left when the next backward begins: the first period is the
steady state.
"""

import heapq

import numpy as np
import pandas as pd

from ..base.checks import checked, numbers, require, yes_or_no
from ..base.units import counted
from ..fusion import fuse
from ..fusion.buckets import check_piece
from ..fusion.policies import doubt_limit
from ..timeline import Scenario
from ..timeline.prediction import Predicted
from ..timeline.scenario import a_scenario, seconds_alone

_ROUNDING = 1e-9


class PriorityPrediction(Predicted):
    """What is predicted of priority scheduling; exposed_comm_s delays the next forward.

    timeline : one row per gradient, or fused message, in the order of backward: name, nbytes,
        n_pieces, ready_s, start_s and end_s (start of its first piece, end of its last),
        forward_start_s and forward_end_s (of its layers in the next iteration); s since backward
        began
    """

    def _sent(self) -> str:
        return counted(int(self.timeline["n_pieces"].sum()), "piece")


@checked(scenario=a_scenario, fused=yes_or_no)
def predict_priority(
    scenario: Scenario,
    piece_bytes: int = 4_000_000,
    forward_s=None,
    piece_s: float = 0.0,
    fused: bool = False,
) -> PriorityPrediction:
    """Return the prediction for priority scheduling, in the schedule of the module's docstring.

    Parameters
    ----------
    scenario : with several micro-batches only the forward of the first waits
    piece_bytes : largest message; a piece being sent is not interrupted. Default: ByteScheduler's
        million float32; P3's slices are 160,000 bytes
    forward_s : s of forward of each gradient's layer, in the order of backward; the rest of T1
        runs after it. None takes T1 minus backward, shared among gradients like backward (an
        assumption if forward was not recorded)
    piece_s : s added per piece to schedule it
    fused : False sends each gradient alone, in pieces, like P3 and ByteScheduler, and ignores the
        scenario's fusion; True cuts its fused messages, and all layers of one wait for it

    Pieces are sent one by one; ByteScheduler's credit, which sends several at a time to hide
    latency, is not modelled. Raises ValueError for a scenario with several streams, a slow-down or
    launch times per bucket, for a policy with a clock, and if forward exceeds T1 minus backward.
    """
    _refuse(scenario)
    check_piece(piece_bytes, "piece_bytes")
    doubt_limit(piece_bytes, scenario.gradients, "piece_bytes")
    m = int(scenario.micro_batches)
    rest_s = max(0.0, scenario.one_worker_s - m * scenario.backward_s)
    ready = scenario.gradients["ready_s"].clip(upper=scenario.backward_s).to_numpy(float)
    forward = _forward(forward_s, ready, scenario, rest_s / m)
    units, forward = _units(scenario, forward, fused)
    sizes = units["nbytes"].to_numpy("int64")
    ready = units["ready_s"].clip(upper=scenario.backward_s).to_numpy(float)
    counts, seconds = _pieces(scenario, sizes, int(piece_bytes), piece_s)
    earliest = np.maximum(ready, _earliest(scenario))
    start, end = _sent(earliest, counts, seconds)
    begin, done = _forward_times(forward, end, scenario.backward_s)
    exposed_s = max(0.0, float(done[0] - scenario.backward_s - forward.sum()))
    timeline = pd.DataFrame(
        {
            "name": units["name"].to_numpy(),
            "nbytes": sizes,
            "n_pieces": counts,
            "ready_s": ready,
            "start_s": start,
            "end_s": end,
            "forward_start_s": begin,
            "forward_end_s": done,
        }
    )
    return PriorityPrediction.of(scenario, timeline, exposed_s)


def _forward(forward_s, ready: np.ndarray, scenario: Scenario, rest_s: float) -> np.ndarray:
    """Return s of forward of each gradient's layer."""
    if forward_s is None:
        backward = np.diff(np.append(ready[:-1], scenario.backward_s), prepend=0.0)
        whole_s = scenario.backward_s
        return rest_s * (backward / whole_s if whole_s else np.full(len(ready), 1 / len(ready)))
    forward = np.atleast_1d(numbers(forward_s, "forward_s"))
    each = f"{len(ready)} numbers, one per gradient"
    require(forward.shape == ready.shape, "forward_s", each, forward.size)
    most = f"at most T1 minus backward, {rest_s:.6g} s in all"
    require(forward.sum() <= rest_s * (1 + _ROUNDING), "forward_s", most, forward.sum())
    return forward


def _units(scenario: Scenario, forward: np.ndarray, fused: bool):
    """Return what is sent (name, nbytes, ready_s) and the s of forward of each."""
    if not fused:
        return scenario.gradients, forward
    grouped, table = scenario.fusion(scenario.gradients), fuse(scenario.gradients, scenario.fusion)
    expected, do = "a fusion policy without a clock", "Fuse by another policy, such as DDPBuckets()"
    require("launch_s" not in table, "scenario", expected, scenario.fusion, do)
    table = table.assign(name=[f"message {k}" for k in range(len(table))])
    table["forward_s"] = np.bincount(np.asarray(grouped).astype(int), weights=forward)
    # with several types of data a message sent later may be ready first
    table = table.sort_values("ready_s", kind="stable", ignore_index=True)
    return table, table.pop("forward_s").to_numpy()


def _earliest(scenario: Scenario) -> float:
    if scenario.n_workers == 1:
        return 0.0
    return max(float(scenario.launch_s), 0.0 if scenario.overlap else scenario.backward_s)


def _pieces(scenario: Scenario, sizes: np.ndarray, piece_bytes: int, piece_s: float):
    """Return pieces per gradient, shape (L,), and s of a full and of the last one, (L, 2)."""
    counts = np.maximum(-(-sizes // piece_bytes), 1)
    last = sizes - (counts - 1) * piece_bytes
    nbytes = np.column_stack([np.minimum(sizes, piece_bytes), last])
    own_s = piece_s if scenario.n_workers > 1 else 0.0
    return counts, seconds_alone(scenario.all_reduce, nbytes, scenario.n_workers) + own_s


def _sent(ready: np.ndarray, counts: np.ndarray, seconds: np.ndarray):
    """Return when each gradient's first piece starts and its last ends; the latest ready first."""
    start, end = np.full(len(ready), np.inf), np.zeros(len(ready))
    left, costs, times = counts.tolist(), seconds.tolist(), ready.tolist()
    waiting: list = []
    now, arrived = 0.0, 0
    while arrived < len(times) or waiting:
        if not waiting:
            now = max(now, times[arrived])
        while arrived < len(times) and times[arrived] <= now:
            heapq.heappush(waiting, -arrived)
            arrived += 1
        g = -waiting[0]
        start[g] = min(start[g], now)
        now += costs[g][left[g] == 1]
        left[g] -= 1
        if not left[g]:
            end[g] = now
            heapq.heappop(waiting)
    return start, end


def _forward_times(forward: np.ndarray, arrived: np.ndarray, backward_s: float):
    """Return start and end of forward of each gradient's layer, the last gradient's first."""
    begin, done, now = np.empty(len(forward)), np.empty(len(forward)), backward_s
    for g in reversed(range(len(forward))):
        begin[g] = max(now, arrived[g])
        done[g] = now = begin[g] + forward[g]
    return begin, done


def _refuse(scenario: Scenario):
    unknown = {
        f"n_streams={scenario.n_streams}": scenario.n_streams > 1,
        f"slowdown={scenario.slowdown}": scenario.slowdown > 0,
        "several launch_s": np.ndim(scenario.launch_s) > 0,
    }
    found = ", ".join(name for name, given in unknown.items() if given)
    expected = "one stream, no slow-down and one launch time"
    require(not found, "scenario", expected, found=found, do="Vary it with dataclasses.replace")
