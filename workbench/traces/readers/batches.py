"""A JSON trace of any size in batches of events, so that memory holds one batch, not the file.

A trace is `{field: value, ..., "traceEvents": [event, ...], field: value, ...}` or a bare list of
events. msgspec decodes one batch at a time; a batch that does not decode is read event by event
(see `salvage`), so one bad byte costs one event.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ...base.units import format_bytes
from .salvage import NOT_DECODED, Place, decoded, salvage_events, salvage_fields
from .source import entry

BATCH_BYTES = 2**19  # small enough to stay in the processor's caches
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_NEXT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat)"\s*:)')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
LARGEST_BYTES = 2**27  # of one event, or of everything before the events
FIELDS_BYTES = 2**25  # of the other fields that are decoded, on each side of the events
_PHASE = b'"ph"'  # once in each event
_MORE = "behind the end of the first list of events, as in joined files: not read. Split the file"
_TRIES = 4  # splits tried before a batch counts as broken


class Batches:
    """Iterate to get lists of events; afterwards `fields` and `lost` are complete.

    fields : the other top-level fields of the trace
    lost : LEDGER rows of what did not decode, and where
    """

    def __init__(self, chunks: Iterable[bytes], event_type: Any, file: str):
        self._chunks, self._file = iter(chunks), file
        self._decoder = msgspec.json.Decoder(list[event_type])
        self._one, self._one_type = msgspec.json.Decoder(event_type), event_type
        self._buffer, self._ended, self._closed = bytearray(), False, False
        self._place = Place()
        self._current: bytes | list = []
        self.fields: dict = {}
        self.lost: list[dict] = []

    def __iter__(self) -> Iterator[list]:
        self._find_events()
        self._fill(BATCH_BYTES)
        while self._buffer:
            self._drop(0)
            yield from self._batch()
            self._fill(BATCH_BYTES)
        if not self._closed and not any("cut" in row["why"] for row in self.lost):
            where = self._place.at()
            self._lose(f"the file ends at {where} without closing its list", n_events=0)

    def _fill(self, size: int) -> None:
        """Read on until the buffer holds `size` bytes or the file has ended."""
        while len(self._buffer) < size and not self._ended:
            chunk = next(self._chunks, None)
            self._ended = chunk is None
            self._buffer += chunk or b""

    def _drop(self, n: int) -> None:
        """Drop the first n bytes and the gap behind them."""
        rest = self._buffer[n:].lstrip(b" \t\r\n,")
        self._place.advance(self._buffer, len(self._buffer) - len(rest))
        self._buffer = rest

    def _find_events(self) -> None:
        """Read the fields before the events; leave the buffer at the first event."""
        self._fill(1024)
        self._drop(0)
        if self._buffer[:1] == b"[":
            return self._drop(1)
        if self._buffer[:1] != b"{":
            start = bytes(self._buffer[:40])
            raise ValueError(f"{self._file}: not a trace: expected JSON, it begins with {start!r}")
        seen = 0
        while not (found := _EVENTS.search(self._buffer, max(0, seen - 64))):
            seen = len(self._buffer)
            self._fill(seen + BATCH_BYTES)
            if len(self._buffer) == seen or seen > LARGEST_BYTES:
                why = "JSON, but not a trace: expected a list under traceEvents"
                raise ValueError(f"{self._file}: {why}")
        self.fields |= salvage_fields(bytes(self._buffer[1 : min(found.start(), FIELDS_BYTES)]))[0]
        self._drop(found.end())

    def _batch(self) -> Iterator[list]:
        """Decode the events at the start of the buffer; all of them if the file has ended."""
        for at in [len(self._buffer)] if self._ended else self._splits():
            events, end = self._try(at, b"" if self._ended else b"]")
            if events is not None:
                self._closed = self._ended
                self._drop(at)
                yield events
                return
            if end:
                yield self._try(end, b"")[0]
                self._drop(end)
                self._fields_behind()
                return
        yield from self._piecewise()

    def _splits(self) -> list[int]:
        """Return where an event may end, the last first. A wrong place does not decode."""
        for size in (2**14, 2**16):  # near, unless events are large
            start = max(0, len(self._buffer) - size)
            found = [m.start() + 1 for m in _BETWEEN.finditer(self._buffer, start)]
            if len(found) >= _TRIES:
                break
        return found[: -_TRIES - 1 : -1]

    def _try(self, at: int, closing: bytes) -> tuple[list | None, int]:
        """Return the events up to `at`, or None and where the list ends if more follows it."""
        with memoryview(self._buffer) as buffer:
            text = b"".join((b"[", buffer[:at], closing))
        try:
            return self._decode(text), 0
        except (msgspec.DecodeError, RecursionError) as error:
            trailing = _TRAILING.search(str(error))
            return None, int(trailing[1]) - 2 if trailing else 0  # counted from 1, behind our "["

    def _decode(self, events: bytes) -> list:
        """Decode a list; events of an unexpected type are counted as lost."""
        self._current = events
        try:
            return self._decoder.decode(events)
        except msgspec.ValidationError:
            self._current = msgspec.json.decode(events, type=list[msgspec.Raw])
            return self._each(self._current)

    def again(self, event_type: Any) -> list:
        """Return the current batch decoded as another type that accepts the same events."""
        if isinstance(self._current, bytes):
            try:
                return msgspec.json.decode(self._current, type=list[event_type])
            except msgspec.ValidationError:
                self._current = msgspec.json.decode(self._current, type=list[msgspec.Raw])
        # an event that was lost then is lost now
        pairs = ((decoded(piece, self._one_type), piece) for piece in self._current)
        found = [decoded(piece, event_type) for first, piece in pairs if first is not None]
        return [event for event in found if event is not None]

    def _fields_behind(self) -> None:
        self._closed = True
        self._fill(FIELDS_BYTES)
        fields, rest = salvage_fields(bytes(self._buffer))
        again = fields.pop("traceEvents", None)
        self.fields |= fields
        self._buffer.clear()
        n_events, tail = len(again) if isinstance(again, list) else 0, rest.encode()
        for chunk in itertools.chain([b""], self._chunks):  # damage of the packing shows at the end
            tail += chunk
            n_events += tail.count(_PHASE)
            tail = tail[1 - len(_PHASE) :]
        self._ended = True
        if n_events:
            self._lose(_MORE, n_events)

    def _encoded(self, event: dict) -> bytes:
        try:
            return msgspec.json.encode(event)
        except UnicodeEncodeError:
            self._lose("half of a surrogate pair in a text: replaced", n_events=0)
            return json.dumps(event, ensure_ascii=False).encode(errors="replace")

    def _each(self, pieces: Iterable) -> list:
        found = []
        for piece in pieces:
            try:
                found.append(self._one.decode(piece))
            except NOT_DECODED as error:
                self._lose(str(error).replace("$", "event", 1))
        return found

    def _lose(self, why: str, n_events: int = 1) -> None:
        for row in self.lost:
            if row["why"] == why:
                row["n_events"] += n_events
                return
        self.lost.append(entry("event", n_events, why, kept=not n_events, warn=True))

    def _piecewise(self) -> Iterator[list]:
        """Read the buffer event by event, up to one that needs more data."""
        if (size := len(self._buffer)) > LARGEST_BYTES and not self._ended:
            return self._skip()
        data, final = bytes(self._buffer), self._ended
        objects, rest, lost, closed = salvage_events(data, self._place, final=final)
        self.lost += lost
        self._place.advance(self._buffer, max(0, size - len(rest)))
        self._buffer[:] = rest
        self._current = [self._encoded(event) for event in objects]
        yield self._each(self._current)
        if closed:
            self._fields_behind()
        elif not objects and not final:
            self._fill(min(4 * size, LARGEST_BYTES + 1))  # an event larger than a batch

    def _skip(self) -> None:
        """Pass over an event that is too large, without storing it, up to the next one."""
        most = format_bytes(LARGEST_BYTES)
        self._lose(f"larger than the limit of {most}, at {self._place.at()}: left out")
        while not (found := _NEXT.search(self._buffer)) and not self._ended:
            self._drop(max(0, len(self._buffer) - 2**10))
            self._fill(len(self._buffer) + BATCH_BYTES)
        self._drop(found.end() if found else len(self._buffer))
