"""What the readers of Chrome traces share.

Times in microseconds become whole ns. An interval is one event (ph X) or two (ph B and E). A lane
is a process and a thread of the trace, whatever the tool uses them for.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from .batches import Batches
from .pairs import JOINED, NO_BEGINNING, UNFINISHED
from .source import Source, entry

_OPEN, _UNKNOWN = -(2**63), -(2**63) + 1  # in place of a time
_LARGEST_NS = 2**62
_COLUMNS = ("name", "lane", "start", "end", "parent", "opened", "closed")
WORK = ("compute", "comm", "memory")
NO_TIME = "ts or dur is missing or no usable number"
_REVERSED = "ends before it begins"
NOT_WANTED = "a host row: only kernels were asked for"
LEFT_OUT = {
    "M": "metadata: names a process or thread",
    "C": "counter: not an interval",
    **dict.fromkeys("iIR", "instant: takes no time"),
    **dict.fromkeys("stf", "flow arrow: links two events, takes no time"),
    **dict.fromkeys("NDO", "life of an object: not an interval"),
}


class Event(msgspec.Struct, gc=False):
    """An event with the fields that a reader may want."""

    ph: Any = ""
    name: Any = ""
    ts: Any = None
    dur: Any = None
    pid: Any = None
    tid: Any = None
    args: Any = None

    def arg(self, key: str):
        return self.args.get(key) if isinstance(self.args, dict) else None


class Codes(dict):
    """Values -> numbers, in the order they are first seen; `text` lists the values."""

    def __init__(self):
        super().__init__()
        self.text: list = []

    def __missing__(self, value) -> int:
        self[value] = len(self)
        self.text.append(value)
        return self[value]


def nanoseconds(us) -> int | None:
    """Convert decoded microseconds, also in text, to ns; None if they are not usable."""
    if isinstance(us, bool) or not isinstance(us, int | float | str):
        return None
    if isinstance(us, int):
        ns = us * 1000
    else:
        try:
            exact = Decimal(str(us)[:64])
            ns = round(exact * 1000) if exact.is_finite() and abs(exact) < _LARGEST_NS else None
        except ArithmeticError:
            return None
    return ns if ns is not None and abs(ns) < _LARGEST_NS else None


class Intervals:
    """The intervals of a trace, column by column, in the order of their beginnings.

    name, lane : codes of `names` and `lanes`; a lane is (pid, tid)
    start, end : ns as in the file
    parent : the interval that was open in the lane, -1 for none
    opened, closed : place in the file of the events that begin and end it
    labels : names of processes, by pid
    dropped : events left out, counted by (what, why)
    """

    def __init__(self):
        self.names, self.lanes, self.labels = Codes(), Codes(), {}
        self.name, self.lane, self.parent = array("q"), array("q"), array("q")
        self.start, self.end = array("q"), array("q")
        self.opened, self.closed, self._place = array("q"), array("q"), 0
        self.dropped: Counter = Counter()
        self._open: dict[Any, list[int]] = {}

    def add(self, event: Event) -> int:
        """Add one event; return the interval that it begins, ends or is, or -1."""
        self._place += 1
        phase = event.ph if isinstance(event.ph, str) else ""
        if phase == "X":
            return self._whole(event)
        if phase == "B":
            return self._begin(event)
        if phase == "E":
            return self._finish(event)
        if phase == "M" and event.name == "process_name" and event.arg("name") is not None:
            self.labels[key(event.pid)] = str(event.arg("name"))
        self.leave_out(event, LEFT_OUT.get(phase, "not an interval (ph X, or B and E)"))
        return -1

    def leave_out(self, event: Event, why: str) -> None:
        self.dropped[f"ph {str(event.ph)[:20] or 'none'}", why] += 1

    def usable(self) -> np.ndarray:
        """Return positions of the intervals with a start and an end; the others are counted."""
        start, end = (np.array(times, dtype=np.int64) for times in (self.start, self.end))
        unfinished = end == _OPEN
        unknown = ~unfinished & ((start == _UNKNOWN) | (end == _UNKNOWN))
        negative = ~unfinished & ~unknown & (end < start)
        for mask, why in (
            (unfinished, UNFINISHED),
            (unknown, NO_TIME),
            (negative, _REVERSED),
        ):
            self.dropped["interval", why] += int(mask.sum())
        self.dropped = +self.dropped
        return np.flatnonzero(~(unfinished | unknown | negative))

    def columns(self, keep: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of some intervals, by their positions."""
        return {c: np.array(getattr(self, c), dtype=np.int64)[keep] for c in _COLUMNS}

    def _append(self, event: Event, end: int) -> int:
        lane = self.lanes[key(event.pid), key(event.tid)]
        start = nanoseconds(event.ts)
        self.name.append(self.names[str(event.name)])
        self.lane.append(lane)
        self.start.append(_UNKNOWN if start is None else start)
        self.end.append(end)
        self.opened.append(self._place)
        self.closed.append(self._place)
        self.parent.append(self._latest(lane))
        return len(self.end) - 1

    def _whole(self, event: Event) -> int:
        start, duration = nanoseconds(event.ts), nanoseconds(event.dur)
        usable = start is not None and duration is not None
        return self._append(event, start + duration if usable else _UNKNOWN)

    def _begin(self, event: Event) -> int:
        row = self._append(event, _OPEN)
        for where in (self.lane[row], (self.lane[row], self.name[row])):
            self._open.setdefault(where, []).append(row)
        return row

    def _finish(self, event: Event) -> int:
        """End the latest open interval of the lane: of that name, if the event has one."""
        lane = self.lanes[key(event.pid), key(event.tid)]
        row = self._latest((lane, self.names[str(event.name)]) if event.name else lane)
        if row < 0:
            self.leave_out(event, NO_BEGINNING)
            return -1
        end = nanoseconds(event.ts)
        self.end[row] = _UNKNOWN if end is None else end
        self.closed[row] = self._place
        self.leave_out(event, JOINED)
        return row

    def _latest(self, where) -> int:
        rows = self._open.get(where, [])
        while rows and self.end[rows[-1]] != _OPEN:
            rows.pop()
        return rows[-1] if rows else -1


def key(value) -> int | str:
    """Return a process or thread as a key, whatever JSON value it is."""
    return value if isinstance(value, int | str) else str(value)


def events(source: Source) -> tuple[Iterable[Event], list[dict]]:
    """Return an iterator of events, and LEDGER rows of what did not decode, complete afterwards."""
    batches = Batches(source.chunks(), Event, source.file)
    return (event for batch in batches for event in batch), batches.lost


def table(rank: int | None, n: int, /, **columns) -> pd.DataFrame:
    """Return EVENTS of n rows with `start_ns` and `end_ns`; other columns are unknown or empty."""
    unknown = pd.arrays.IntegerArray(np.ones(n, dtype=np.int64), np.ones(n, dtype=bool))
    given = {"rank": unknown if rank is None else unknown.fillna(rank), "stream": -1, "thread": -1}
    given |= {"iteration": 0, "kind": "host", "op": "", "name": "", "group": ""}
    given |= {"nbytes": unknown.copy(), "n_workers": unknown.copy(), "correlation": -1} | columns
    text = dict.fromkeys(["name", "kind", "op", "group"], "category")
    numbers = dict.fromkeys(["stream", "thread", "iteration", "correlation"], "int64")
    return pd.DataFrame(given, index=range(n)).astype(text | numbers).copy()


def info(rank: int | None = None, *, ranks: list = (), **said) -> dict:
    """Return what a file says about itself; the rest is unknown.

    ranks : in a file of all ranks, the known ones
    """
    if ranks != ():
        rank = int(ranks[0]) if len(ranks) == 1 else None
        said["ranks"] = ranks if len(ranks) > 1 else []
    unknown = {"world_size": None, "backend": None, "devices": [], "groups": [], "base_ns": 0}
    return {"rank": rank} | unknown | said


def finish(source: Source, rank: int | None, columns: dict, dropped: Counter, notes: list):
    """Return EVENTS as `source.keep` wants them, and LEDGER rows that count every event.

    notes : sentences, and LEDGER rows
    """
    rows = [note if isinstance(note, dict) else entry("note", 0, note) for note in notes]
    made = table(rank, len(columns["name"]), **columns)
    if source.keep == "kernels":
        work = made["kind"].isin(WORK)
        dropped = dropped + Counter({("host rows", NOT_WANTED): int((~work).sum())})
        made = made[work].reset_index(drop=True)
    rows += [entry(f"{kind} rows", n) for kind, n in Counter(made["kind"]).items()]
    damage = (UNFINISHED, NO_BEGINNING, NO_TIME, _REVERSED)
    for (what, why), n in dropped.items():
        rows.append(entry(what, n, why, kept=False, warn=why in damage))
    return made, [row | {"file": source.file, "rank": rank} for row in rows]


def without_closing(lost: list[dict]) -> list[dict]:
    """Return the same rows without a warning of an open list, which the tool never closes."""
    closing = "without closing its list"
    return [row | {"warn": row["warn"] and closing not in row["why"]} for row in lost]


def nothing(source: Source, found: Counter, lost: list[dict], what: str) -> ValueError:
    """Return the error for a file without an interval: what was expected, and what it contains."""
    counts = [f"{n} {key}: {why}" for (key, why), n in found.items()]
    counts += [f"{row['n_events']} {row['what']}: {row['why']}" for row in lost]
    seen = "; ".join(counts[:5]) or "0 events"
    return ValueError(f"{source.file}: expected {what}; found {seen}")
