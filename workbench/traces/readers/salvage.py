"""What can be read of a cut or broken JSON trace: events one at a time, and what was lost where."""

import codecs
import json
import re
from dataclasses import dataclass

_DECODER = json.JSONDecoder(strict=False)  # control characters inside strings are let through
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_GAP = re.compile(r"[\s,]*")
_END = re.compile(r'\](?=\s*(?:$|\}\s*$|,\s*"))')  # of the list of events, not inside an event
# N/A stood bare in the first traces of Kineto.
_BARE = re.compile(r"(?<=:)\s*(?:[-+]?(?:inf|nan)(?:inity)?|N/A)\s*(?=[,}\]])", re.IGNORECASE)


@dataclass
class Place:
    """How far into a file reading has come: bytes and lines passed."""

    byte: int = 0
    line: int = 1

    def advance(self, data: bytes, n: int) -> None:
        """Pass the first n bytes of the data."""
        self.byte += n
        self.line += data.count(b"\n", 0, n)

    def at(self, text: str, position: int) -> str:
        before = text[:position]
        line = self.line + before.count("\n")
        return f"line {line}, byte {self.byte + len(before.encode())}"


def salvage_fields(data: bytes) -> tuple[dict, str]:
    """The `key: value` pairs at the head of a JSON object, as far as they make sense; the rest."""
    text, fields, position = data.decode(errors="replace"), {}, 0
    try:
        while True:
            key, position = _DECODER.raw_decode(text, _GAP.match(text, position).end())
            position = _GAP.match(text, text.index(":", position) + 1).end()
            fields[key], position = _DECODER.raw_decode(text, position)
    except (ValueError, TypeError, RecursionError):
        return fields, text[position:]


def salvage_events(data: bytes, place: Place, *, final: bool):
    """Read the events at the head of the data: (events, what is left, LEDGER rows, list closed).

    Reading stops at the list's end, or before the last event when it is not whole and more data
    follow (`final` is False). What is left is text that has been mended.
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
            lost.append(_row("event", 1, f"no object at {place.at(text, position)}", kept=False))
        position = after


def _next_event(text: str) -> re.Pattern:
    """Where the next event begins: with a key that events begin with, so not inside an event."""
    first = re.match(r'[\s,]*\{\s*"([^"\\]{0,99})"\s*:', text)
    keys = {"ph", "name", "cat"} | ({first[1]} if first else set())
    any_key = "|".join(map(re.escape, sorted(keys)))
    return re.compile(r'\}\s*,\s*(?=\{\s*"(?:' + any_key + r')"\s*:)')


def _needs_more(error: Exception, text: str) -> bool:
    """Whether decoding failed for the text's end rather than for what stands in it."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip())


def _text(data: bytes, place: Place, final: bool) -> tuple[str, bytes, list[dict]]:
    """The data as text, with what JSON may not hold replaced, and the start of a cut character."""
    lost = []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, tail = decoder.decode(data, final), decoder.getstate()[0]
    try:
        data[: len(data) - len(tail)].decode()
    except UnicodeDecodeError as error:
        why = f"not UTF-8 from byte {place.byte + error.start} on: replaced"
        lost.append(_row("byte", 0, why, kept=True))
    text, n = _CONTROL.subn("\ufffd", text)
    if n:
        lost.append(_row("character", 0, f"{n} control characters replaced", kept=True))
    text, n = _BARE.subn("null", text)
    if n:
        lost.append(_row("number", 0, f"{n} infinite or undefined numbers left out", kept=True))
    return text, tail, lost


def _row(what: str, n: int, why: str, *, kept: bool) -> dict:
    return {"what": what, "n_events": n, "kept": kept, "why": why, "warn": True}


def _broken(text: str, position: int, place: Place, error: Exception, *, cut: bool) -> dict:
    where = place.at(text, position)
    if not text[position:].strip():
        return _row("event", 0, f"the file ends at {where} without closing its list", kept=True)
    if cut:
        return _row("event", 1, f"the file is cut: its last event, at {where}", kept=False)
    message = str(error).split(":")[0]
    return _row("event", 1, f"does not decode, at {where}: {message}", kept=False)
