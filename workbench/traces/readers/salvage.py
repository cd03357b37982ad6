"""What can be read of a cut or broken JSON trace: events one at a time, and what was lost where."""

import codecs
import json
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from .source import entry

NOT_DECODED = (msgspec.MsgspecError, ValueError, RecursionError)
_DECODER = json.JSONDecoder(strict=False)  # accepts control characters in strings
_CONTROLS = bytes({*range(32)} - {*b"\t\n\r"})
_CONTROL = re.compile(f"[{re.escape(_CONTROLS.decode())}]")
_GAP = re.compile(r"[\s,]*")
_END = re.compile(r'\](?=\s*(?:$|\}\s*$|,\s*"))')  # of the list of events, not inside an event
# The first traces of Kineto contain a bare N/A.
_BARE = re.compile(r":\s*(?:[-+]?(?:inf|nan)(?:inity)?|N/A)\s*(?=[,}\]])", re.IGNORECASE)
_MOST_FIELDS = 10_000  # of the top level; a trace has about ten


@dataclass
class Place:
    """Position in a file: bytes and lines passed."""

    byte: int = 0
    line: int = 1

    def advance(self, data: bytes, n: int) -> None:
        """Pass the first n bytes of the data."""
        self.byte += n
        self.line += data.count(b"\n", 0, n)

    def at(self, text: str = "", position: int = 0) -> str:
        """Return the line and byte of a position in the text that begins here, in words."""
        before = text[:position]
        line = self.line + before.count("\n")
        return f"line {line}, byte {self.byte + len(before.encode())}"


def decoded(data, kind: Any = Any) -> Any:
    """Return JSON decoded as a type, or None if that fails."""
    try:
        return msgspec.json.decode(data, type=kind)
    except NOT_DECODED:
        return None


def salvage_fields(data: bytes) -> tuple[dict, str]:
    """Return the `key: value` pairs at the start of a JSON object, and the text behind them."""
    text, fields, position = data.decode(errors="replace"), {}, 0
    try:
        for _ in range(_MOST_FIELDS):
            key, position = _DECODER.raw_decode(text, _GAP.match(text, position).end())
            position = _GAP.match(text, text.index(":", position) + 1).end()
            fields[key], position = _DECODER.raw_decode(text, position)
    except (ValueError, TypeError, RecursionError):
        pass
    return fields, text[position:]


def salvage_events(data: bytes, place: Place, *, final: bool):
    """Return the events at the start of the data, what is left, LEDGER rows, and if the list ended.

    final : no more data follow. If False, reading stops before the last event unless it is whole.
    What is left is repaired text.
    """
    text, tail, lost = _text(data, place, final)
    events, position = [], 0
    next_event = _next_event(text)
    while True:
        position = _GAP.match(text, position).end()
        if _END.match(text, position):
            return events, text[position + 1 :].encode() + tail, lost, True
        try:
            event, after = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            again = next_event.search(text, position)
            if not final and (again is None or _needs_more(error, text)):
                return events, text[position:].encode() + tail, lost, False
            lost.append(_broken(text, position, place, error, cut=again is None))
            if again is None:
                return events, b"", lost, False
            position = again.end()
            continue
        if isinstance(event, dict):
            events.append(event)
        else:
            why = f"not an object at {place.at(text, position)}"
            lost.append(entry("event", 1, why, kept=False, warn=True))
        position = after


def _next_event(text: str) -> re.Pattern:
    """Return a pattern for the start of an event: its first key is one that events start with."""
    first = re.match(r'[\s,]*\{\s*"([^"\\]{0,99})"\s*:', text)
    keys = {"ph", "name", "cat"} | ({first[1]} if first else set())
    any_key = "|".join(map(re.escape, sorted(keys)))
    return re.compile(r'\}\s*,\s*(?=\{\s*"(?:' + any_key + r')"\s*:)')


def _needs_more(error: Exception, text: str) -> bool:
    """Return whether decoding failed because the text ends."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip())


def _text(data: bytes, place: Place, final: bool) -> tuple[str, bytes, list[dict]]:
    """Return the data as repaired text, the bytes of a cut last character, and LEDGER rows."""
    repairs, decoder = [], codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(data, final)
    except UnicodeDecodeError as error:
        repairs.append(("byte", f"not UTF-8 from byte {place.byte + error.start} on: replaced"))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data, final)
    if n := len(data) - len(data.translate(None, _CONTROLS)):
        text = _CONTROL.sub("\ufffd", text)
        repairs.append(("character", f"{n} control characters replaced"))
    text, n = _BARE.subn(":null", text)
    if n:
        repairs.append(("number", f"{n} infinite or undefined numbers left out"))
    return text, decoder.getstate()[0], [entry(what, 0, why, warn=True) for what, why in repairs]


def _broken(text: str, position: int, place: Place, error: Exception, *, cut: bool) -> dict:
    where = place.at(text, position)
    if not text[position:].strip():
        return entry("event", 0, f"the file ends at {where} without closing its list", warn=True)
    why = f"does not decode, at {where}: {str(error).split(':')[0]}"
    why = f"the file is cut: its last event, at {where}" if cut else why
    return entry("event", 1, why, kept=False, warn=True)
