"""What ran where in one iteration of one rank: spans by lane, to draw."""

from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
import pandas as pd

from ..base.checks import require
from ..base.intervals import clip, intersection, measure, union
from ..base.tables import EVENTS, check
from .breakdown import spans_of, windows, work_of

LANES = {
    "lane": "stream of the device or thread of the host; the kind of work if these are many",
    "kind": "compute, comm (hidden by compute), exposed (not hidden) or memory",
    "start_s": "s since the iteration began",
    "end_s": "s since the iteration began",
}
_LABELS = {"compute": "compute", "comm": "communication", "memory": "copies"}
MOST_LANES = 10  # as a figure has room for; Horovod has one for each tensor


@dataclass(frozen=True, eq=False)
class Lanes:
    """One iteration of a rank: its duration in s, LANES, and the rows behind them.

    spans : LANES, sorted and disjoint within a lane and kind; the lane that computes most first
    rows : the rows of the iteration, clipped to it: stream, thread, kind and name of EVENTS, lane,
        and start_s and end_s in s since it began
    """

    rank: int | None
    iteration: int
    duration_s: float
    spans: pd.DataFrame
    rows: pd.DataFrame

    def spent(self, low_s: float = 0.0, high_s: float | None = None) -> dict[str, float]:
        """Return s of compute, comm, exposed, memory and idle from low_s to high_s.

        Each counts overlapping spans once; comm is the part hidden by compute, and memory includes
        hidden copies.
        """
        high_s = self.duration_s if high_s is None else high_s
        times = {}
        for kind in ("compute", "comm", "exposed", "memory"):
            mine = self.spans[self.spans["kind"] == kind]
            times[kind] = measure(*clip(mine["start_s"], mine["end_s"], low_s, high_s))
        busy = measure(*clip(self.spans["start_s"], self.spans["end_s"], low_s, high_s))
        return times | {"idle": high_s - low_s - busy}

    def longest(self, low_s: float = 0.0, high_s: float | None = None, n: int = 5) -> pd.DataFrame:
        """Return the n names that run longest from low_s to high_s: kind, name, n_rows, seconds.

        Without a device operators are nested, so a name's seconds include those of others.
        """
        high_s = self.duration_s if high_s is None else high_s
        rows = self.rows[(self.rows["end_s"] > low_s) & (self.rows["start_s"] < high_s)]
        seconds = rows["end_s"].clip(upper=high_s) - rows["start_s"].clip(lower=low_s)
        named = rows.assign(seconds=seconds).groupby(["kind", "name"], observed=True)["seconds"]
        table = named.agg(n_rows="size", seconds="sum").reset_index()
        return table.nlargest(n, "seconds").reset_index(drop=True)

    def of(self, lane: str) -> "Lanes":
        """Return a single lane."""
        spans, rows = (table[table["lane"] == lane] for table in (self.spans, self.rows))
        return replace(self, spans=spans, rows=rows)


def lanes(run, rank: int | None = None, iteration: int | None = None) -> Lanes:
    """Return what a rank of a run (or of its EVENTS) did in one iteration, lane by lane.

    The iteration is that of ITERATIONS, from its first kernel to the first of the next iteration,
    so the spans add up to its seconds. By default the first rank and its first iteration. Raises
    ValueError for an unknown rank or iteration.
    """
    events = check(getattr(run, "events", run), EVENTS, "events")
    mine, rank = _of_rank(events, rank)
    work = work_of(mine)
    found = {number: (low, high) for number, low, high in windows(work[work["iteration"] >= 0])}
    iteration = next(iter(found)) if iteration is None else iteration
    known = isinstance(iteration, Real) and iteration in found
    require(known, "iteration", f"one of {', '.join(map(str, found))}", iteration)
    low, high = found[iteration]
    duration_s = float(high - low)
    work = work[(work["end_s"] > low) & (work["start_s"] < high)]
    rows = work[["stream", "thread", "kind", "name"]].assign(
        start_s=(work["start_s"] - low).clip(lower=0.0),
        end_s=(work["end_s"] - low).clip(upper=duration_s),
        lane=_names(work),
    )
    return Lanes(rank, int(iteration), duration_s, _spans(rows, duration_s), rows)


def _of_rank(events: pd.DataFrame, rank) -> tuple[pd.DataFrame, int | None]:
    """Return the rows of a rank and its number; None for the first, or if no rank has one."""
    known = sorted(events["rank"].dropna().unique())
    if rank is None or rank is pd.NA:
        rank = known[0] if known else None
    if rank is None:
        return events, None
    expected = f"one of {', '.join(map(str, known))}" if known else "None: the files name no rank"
    require(isinstance(rank, Real) and rank in known, "rank", expected, rank)
    return events[(events["rank"] == rank).fillna(False)], int(rank)


def _names(work: pd.DataFrame) -> pd.Series:
    """Return the lane of each row: its stream or thread, or its kind if these are many."""
    streams, threads = (
        work[column].map({n: f"{column} {n}" for n in work[column].unique()})
        for column in ("stream", "thread")
    )
    place = streams.where(work["stream"] >= 0, threads)
    place = place if place.nunique() <= MOST_LANES else work["kind"].astype("str").map(_LABELS)
    return place.astype("category")


def _spans(rows: pd.DataFrame, duration_s: float) -> pd.DataFrame:
    """Return LANES: the union of each kind on each lane, with communication hidden or exposed."""
    start, end = union(*spans_of(rows[rows["kind"] == "compute"]))
    idle = np.r_[0.0, end], np.r_[start, duration_s]  # without compute
    parts = []
    order = _busiest_first(rows)
    by_lane = dict(list(rows.groupby(["lane", "kind"], observed=True)))
    for lane, kind in sorted(by_lane, key=lambda each: order.index(each[0])):
        mine = by_lane[lane, kind]
        found = {kind: union(*spans_of(mine))}
        if kind == "comm":
            hidden, exposed = (intersection(found["comm"], each) for each in ((start, end), idle))
            found = {"comm": hidden, "exposed": exposed}
        for name, (low, high) in found.items():
            parts.append(pd.DataFrame({"lane": lane, "kind": name, "start_s": low, "end_s": high}))
    nothing = pd.DataFrame(columns=list(LANES)).astype({"start_s": float, "end_s": float})
    table = pd.concat(parts or [nothing], ignore_index=True)
    return table.astype({"lane": "category", "kind": "category"})  # compared at every look


def _busiest_first(rows: pd.DataFrame) -> list[str]:
    """Return the lanes: those that compute most, then by number; kinds in a fixed order."""
    labels = list(_LABELS.values())
    if rows["lane"].isin(labels).all():
        return labels
    computed = (rows["end_s"] - rows["start_s"]).where(rows["kind"] == "compute", 0.0)
    by_lane = rows.assign(busy=-computed).groupby("lane", observed=True)
    table = by_lane.agg(busy=("busy", "sum"), stream=("stream", "max"), thread=("thread", "max"))
    return list(table.sort_values(["busy", "stream", "thread"]).index)
