"""What can be read of a cut or broken JSON trace: events one at a time, and what was lost."""

import json
import re

_DECODER = json.JSONDecoder(strict=False)  # control characters inside strings are let through
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_SPACE = re.compile(r"[\s,]*")
_NEXT = re.compile(r"\}\s*,\s*(?=\{)")
_BARE = re.compile(r"(?<=:)\s*[-+]?(?:inf|nan)(?:inity)?\s*(?=[,}\]])", re.IGNORECASE)


def salvage(data: bytes, file: str) -> tuple[dict, list[dict], list[dict]]:
    """Top-level fields, the events that decode, and LEDGER rows of what was lost and where.

    Raises ValueError when the data hold no list of events.
    """
    text, lost = _text(data)
    fields, position = {}, _skip(text, 0)
    if text.startswith("{", position):
        fields, position = _fields(text, position + 1, until="traceEvents")
    if not text.startswith("[", position):
        raise ValueError(f"{file}: not a trace: {_excerpt(text)}")
    events, position, broken = _events(text, position + 1)
    after, _ = _fields(text, position, until=None)
    return fields | after, events, lost + broken


def _text(data: bytes) -> tuple[str, list[dict]]:
    lost = []
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        text = data.decode(errors="replace")
        lost.append(_row("byte", 0, f"not UTF-8 from byte {error.start} on: replaced", kept=True))
    text, n = _CONTROL.subn("\ufffd", text)
    if n:
        lost.append(_row("character", 0, f"{n} control characters replaced", kept=True))
    text, n = _BARE.subn("null", text)
    if n:
        lost.append(_row("number", 0, f"{n} infinite or undefined numbers left out", kept=True))
    return text, lost


def _row(what: str, n: int, why: str, *, kept: bool) -> dict:
    return {"what": what, "n_events": n, "kept": kept, "why": why, "warn": True}


def _skip(text: str, position: int) -> int:
    return _SPACE.match(text, position).end()


def _excerpt(text: str) -> str:
    return f"it begins with {text[:60].strip()!r}" if text.strip() else "it is empty"


def _fields(text: str, position: int, until: str | None) -> tuple[dict, int]:
    """Read `key: value` pairs up to the key `until`; stop quietly where they stop making sense."""
    fields = {}
    try:
        while True:
            position = _skip(text, position)
            key, position = _DECODER.raw_decode(text, position)
            position = text.index(":", position) + 1
            position = _skip(text, position)
            if key == until:
                return fields, position
            fields[key], position = _DECODER.raw_decode(text, position)
    except (ValueError, TypeError, RecursionError):
        return fields, position


def _events(text: str, position: int) -> tuple[list[dict], int, list[dict]]:
    events, lost = [], []
    while True:
        position = _skip(text, position)
        if text.startswith("]", position):
            return events, position + 1, lost
        try:
            event, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            again = _NEXT.search(text, position)
            lost.append(_broken(text, position, error, cut=again is None))
            if again is None:
                return events, len(text), lost
            position = again.end()
            continue
        if isinstance(event, dict):
            events.append(event)
        else:
            lost.append(_row("event", 1, f"no object at character {position}", kept=False))


def _broken(text: str, position: int, error: Exception, *, cut: bool) -> dict:
    line = text.count("\n", 0, position) + 1
    where = f"line {line}, character {position}"
    if not text[position:].strip():
        return _row("event", 0, f"the file ends at {where} without closing its list", kept=True)
    if cut:
        return _row("event", 1, f"the file is cut: its last event, at {where}", kept=False)
    return _row("event", 1, f"does not decode, at {where}: {error}", kept=False)
