"""Intervals told by two events (ph B and E): which end belongs to which beginning."""

from collections.abc import Hashable
from typing import Any

UNFINISHED = "unfinished: begins and never ends"
NO_BEGINNING = "an end without a beginning"
JOINED = "end of an interval: joined with its beginning"


class Pairs:
    """The intervals open in each lane, a lane being a process and a thread of the trace.

    Ends come in the order of the file: the latest beginning first, or the latest of the end's name.
    n_open : how many intervals have not ended
    """

    def __init__(self):
        self._open: dict[Hashable, list[list]] = {}
        self.n_open = 0

    def begin(self, lane: Hashable, name: str, what: Any) -> None:
        """Open an interval; `end` will return `what`."""
        self.n_open += 1
        entry = [what]
        for where in (lane, (lane, name)):
            self._open.setdefault(where, []).append(entry)

    def end(self, lane: Hashable, name: str | None) -> Any:
        """What is open in the lane: of that name, where the end has one; None for nothing."""
        entries = self._open.get((lane, name) if name else lane, [])
        while entries:
            entry = entries.pop()
            if entry:  # it may have ended by way of the other list
                self.n_open -= 1
                return entry.pop()
        return None
