"""Intervals of two events (ph B and E): which end belongs to which beginning."""

from collections.abc import Hashable
from typing import Any

UNFINISHED = "unfinished: begins and never ends"
NO_BEGINNING = "an end without a beginning"
JOINED = "end of an interval: joined with its beginning"


class Pairs:
    """The open intervals of each lane, which is a process and a thread of the trace.

    An end closes the latest beginning, or the latest of its name.
    n_open : number of intervals that have not ended
    """

    def __init__(self):
        self._open: dict[Hashable, list[list]] = {}
        self.n_open = 0

    def begin(self, lane: Hashable, name: str, what: Any) -> None:
        """Open an interval; its `end` returns `what`."""
        self.n_open += 1
        entry = [what]
        for where in (lane, (lane, name)):
            self._open.setdefault(where, []).append(entry)

    def end(self, lane: Hashable, name: str | None) -> Any:
        """Return what is open in the lane, of that name if the end has one; None for nothing."""
        entries = self._open.get((lane, name) if name else lane, [])
        while entries:
            entry = entries.pop()
            if entry:  # it may have ended by way of the other list
                self.n_open -= 1
                return entry.pop()
        return None
