"""Traces of PyTorch's profiler (Kineto, Chrome trace format): bytes -> one rank's EVENTS.

Times in a trace are microseconds, whatever `displayTimeUnit` says, on top of `baseTimeNanoseconds`
where the file has it. They stay integers, in ns, until the run's origin is known (see `traces`).
"""

import re
from collections import Counter
from decimal import Decimal
from typing import Any, Union

import msgspec
import numpy as np
import pandas as pd

from . import meaning
from .collectives import is_communication
from .salvage import salvage

Number = int | float | str | None


_NULL = msgspec.Raw(b"null")


class _Args(msgspec.Struct, gc=False):
    correlation: Number = None
    external: Number = msgspec.field(name="External id", default=None)
    stream: Number = None
    collective: Any = msgspec.field(name="Collective name", default=None)
    elements_in: Any = msgspec.field(name="In msg nelems", default=None)
    elements_out: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    dtype: Any = None
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NULL)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NULL)


class _Event(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A complete event: an interval."""

    cat: str | None = ""
    name: str = ""
    ts: Number = None
    dur: Number = None
    tid: Number = None
    args: _Args | None = None


class _ExactEvent(_Event, gc=False, tag="X"):
    ts: Decimal | None = None
    dur: Decimal | None = None


# Of all other phases of the Chrome trace format only the number counts: nothing else is decoded.
_OTHERS = {
    phase: msgspec.defstruct(f"_{ord(phase)}", [], tag_field="ph", tag=phase, gc=False)
    for phase in "BEiICbnestfPNODMVvRc(),"
}
_PHASE = {other: phase for phase, other in _OTHERS.items()}
_ANY = Union[(_Event, *_PHASE)]
_ANY_EXACT = Union[(_ExactEvent, *_PHASE)]


class _Trace(msgspec.Struct):
    traceEvents: list[_ANY] | msgspec.UnsetType = msgspec.UNSET
    distributedInfo: Any = None
    deviceProperties: Any = None
    baseTimeNanoseconds: Any = None


class _ExactTrace(_Trace):
    traceEvents: list[_ANY_EXACT] | msgspec.UnsetType = msgspec.UNSET


_KINDS = {
    "kernel": "compute",
    "gpu_memcpy": "memory",
    "memcpy": "memory",
    "gpu_memset": "memory",
    "memset": "memory",
    "cpu_op": "host",
    "operator": "host",
    "cuda_runtime": "host",
    "cuda_driver": "host",
    "runtime": "host",
    "driver": "host",
    "python_function": "host",
    "overhead": "host",
    "user_annotation": "annotation",
    "gpu_user_annotation": "annotation",
    "cuda_sync": "annotation",
    "trace": "annotation",
}
_WORK = ("compute", "comm", "memory")
_DEVICE_ANNOTATIONS = ("gpu_user_annotation", "cuda_sync")
_ARROW, _INSTANT = "flow arrow: links two events, takes no time", "instant: takes no time"
_NOT_INTERVALS = dict.fromkeys("stf", _ARROW) | dict.fromkeys("iI", _INSTANT)
_NOT_INTERVALS |= {"M": "metadata: names a process or thread", "C": "counter: not an interval"}
# Beyond this a float64 microsecond may round to the wrong ns: half its last place nears 0.5 ns.
_FLOAT_LIMIT_US = 2.0**42
_INT64_US = 9.2e15  # int64 ns end here
_NO_ARGS = _Args()


def read(data: bytes, file: str) -> tuple[pd.DataFrame, dict, list[dict]]:
    """Decode one trace.

    Returns the rank's EVENTS with `start_ns` and `end_ns` (int64, ns since the epoch or the boot)
    for the two times, what the file says of itself, and LEDGER rows. A file that does not decode
    whole is read event by event, and the ledger tells what was lost and where.
    Raises ValueError when nothing in it is a trace.
    """
    trace, found, ledger = _decode(data, file)
    del data  # large, and needed no more
    info = _info(trace)
    kept, dropped = _intervals(found)
    start, end, usable, unusable = _times(kept)
    kept = [event for event, good in zip(kept, usable, strict=True) if good]
    ledger += [_row(*key, n, kept=False) for key, n in (dropped + unusable).items()]
    if not kept:
        raise ValueError(_empty(file, ledger))
    table, remarks = _table(kept, start, end, info)
    categories = Counter(event.cat or "none" for event in kept)
    ledger += [_row(f"category {cat}", _known(cat), n, kept=True) for cat, n in categories.items()]
    for row in ledger + remarks:
        row |= {"file": file, "rank": info["rank"]}
    return table, info, ledger + remarks


def _empty(file: str, ledger: list[dict]) -> str:
    found = "; ".join(f"{r['n_events']} {r['what']}: {r['why']}" for r in ledger[:5])
    return f"{file}: not a trace: expected events with ph X, ts and dur; found {found or 'none'}"


def _row(what: str, why: str, n: int, *, kept: bool) -> dict:
    return {"what": what, "n_events": n, "kept": kept, "why": why}


def _known(cat: str) -> str:
    return "" if cat.lower() in _KINDS else "category not known: kept as host rows"


def _decode(data: bytes, file: str) -> tuple[_Trace, list[_Event], list[dict]]:
    """The header, the events, and LEDGER rows of what could not be decoded."""
    try:
        trace = msgspec.json.decode(data, type=_Trace)
        if trace.traceEvents is msgspec.UNSET:
            raise ValueError(f"{file}: JSON, but not a trace: expected a list under traceEvents")
        if any(map(_inexact, trace.traceEvents)):
            trace = msgspec.json.decode(data, type=_ExactTrace)
        return trace, trace.traceEvents, []
    except msgspec.MsgspecError:
        fields, objects, lost = salvage(data, file)
    found, odd = [], Counter()
    for item in objects:
        try:
            found.append(msgspec.json.decode(msgspec.json.encode(item), type=_ANY_EXACT))
        except (msgspec.MsgspecError, ValueError) as error:
            odd[str(error).removesuffix("`").replace(" - at `$", "", 1)] += 1
    lost += [
        _row("event", f"field {why}", n, kept=False) | {"warn": True} for why, n in odd.items()
    ]
    known = {name: fields.get(name) for name in _Trace.__struct_fields__ if name in fields}
    return _Trace(**{**known, "traceEvents": []}), found, lost


def _info(trace: _Trace) -> dict:
    """Rank, world size, back end, process groups and devices, as far as the file names them."""
    said = trace.distributedInfo if isinstance(trace.distributedInfo, dict) else {}
    devices = trace.deviceProperties if isinstance(trace.deviceProperties, list) else []
    groups = said.get("pg_config") if isinstance(said.get("pg_config"), list) else []
    return {
        "rank": _integer(said.get("rank")),
        "world_size": _integer(said.get("world_size")),
        "backend": said.get("backend"),
        "devices": [d.get("name") for d in devices if isinstance(d, dict)],
        "groups": [g for g in groups if isinstance(g, dict)],
        "base_ns": _integer(trace.baseTimeNanoseconds) or 0,
    }


def _integer(value) -> int | None:
    """The whole number a field holds, also as text (`7`, `stream 7`), else None."""
    if isinstance(value, str):
        digits = re.fullmatch(r"(?:stream )?(-?\d{1,19})", value.strip())
        value = int(digits[1]) if digits else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return int(value) if abs(value) < 2**63 else None


def _inexact(event) -> bool:
    return type(event) is _Event and type(event.ts) is float and event.ts >= _FLOAT_LIMIT_US


def _intervals(found: list) -> tuple[list[_Event], Counter]:
    """The complete events, and a count of the others by (what, why)."""
    types = Counter(map(type, found))
    dropped = Counter()
    for other, phase in _PHASE.items():
        if types[other]:
            why = _NOT_INTERVALS.get(phase, "not a complete event (ph X)")
            dropped[f"ph {phase}", why] = types[other]
    complete = [event for event in found if isinstance(event, _Event)]
    kept = [event for event in complete if event.ts is not None and event.dur is not None]
    for event in complete:
        _detach(event)
    if len(kept) < len(complete):
        dropped["ph X", "ts or dur is missing"] = len(complete) - len(kept)
    return kept, dropped


def _detach(event: _Event) -> None:
    """Keep the shapes that count on their own, so that the file's bytes can be freed."""
    args = event.args
    if args is not None and not (args.dims is _NULL and args.types is _NULL):
        needed = meaning.has_shape(event.name)
        args.dims = args.dims.copy() if needed else _NULL
        args.types = args.types.copy() if needed else _NULL


def _times(kept: list[_Event]):
    """Start and end in ns (int64) of the usable events, the mask, and why others are not usable."""
    start, duration = _nanoseconds([e.ts for e in kept]), _nanoseconds([e.dur for e in kept])
    unknown = (start == _UNKNOWN) | (duration == _UNKNOWN)
    negative = ~unknown & (duration < 0)
    unusable = Counter()
    for event in (kept[i] for i in np.flatnonzero(negative)):
        unfinished = _KINDS.get((event.cat or "").lower()) not in ("compute", "memory")
        unusable["ph X", "unfinished: negative dur" if unfinished else "negative dur"] += 1
    if unknown.any():
        unusable["ph X", "ts or dur is no usable number"] = int(unknown.sum())
    usable = ~(unknown | negative)
    return start[usable], (start + duration)[usable], usable, unusable


_UNKNOWN = np.iinfo(np.int64).min


def _nanoseconds(values: list) -> np.ndarray:
    """Microseconds as int, float, Decimal or text -> int64 ns, exactly, or `_UNKNOWN`."""
    array = np.array(values) if set(map(type, values)) <= {int, float} else np.array([], object)
    if array.dtype.kind not in "iuf":
        return np.array([_exact_ns(value) for value in values], dtype=np.int64)
    bad = ~(np.abs(array.astype(float)) < _INT64_US)
    array = np.where(bad, 0, array)
    whole = np.floor(array)
    # The fraction of a float below the limit is exact, so only one rounding happens.
    ns = whole.astype(np.int64) * 1000 + np.rint((array - whole) * 1000).astype(np.int64)
    return np.where(bad, _UNKNOWN, ns)


def _exact_ns(value) -> int:
    try:
        us = Decimal(str(value))
    except ArithmeticError:
        return _UNKNOWN
    return round(us * 1000) if us.is_finite() and abs(us) < _INT64_US else _UNKNOWN


def _table(kept: list[_Event], start, end, info: dict) -> tuple[pd.DataFrame, list[dict]]:
    """EVENTS of one rank with times in ns, and LEDGER rows of remarks."""
    cats = [(event.cat or "").lower() for event in kept]
    kind = _per_unique(cats, lambda cat: _KINDS.get(cat, "host"))
    codes, names = pd.factorize(np.array([event.name for event in kept], dtype=object))
    is_comm = np.array([is_communication(name) for name in names], dtype=bool)
    kind[(np.array(cats, dtype=object) == "kernel") & is_comm[codes]] = "comm"
    on_device = np.isin(kind, _WORK) | _per_unique(cats, lambda c: c in _DEVICE_ANNOTATIONS)
    args = [event.args or _NO_ARGS for event in kept]
    tids = _integers([event.tid for event in kept])
    streams = _integers([a.stream for a in args])
    table = pd.DataFrame(
        {
            "rank": pd.array([info["rank"]] * len(kept), dtype="Int64"),
            "stream": np.where(on_device, np.where(streams < 0, tids, streams), -1),
            "thread": np.where(on_device, -1, tids),
            "category": cats,
            "iteration": 0,
            "kind": kind,
            "op": "",
            "name": pd.Categorical.from_codes(codes, names),
            "nbytes": pd.array([None] * len(kept), dtype="Int64"),
            "n_workers": pd.array([None] * len(kept), dtype="Int64"),
            "correlation": _integers([a.correlation for a in args]),
            "start_ns": start + info["base_ns"],
            "end_ns": end + info["base_ns"],
        }
    )
    remarks = meaning.place_host_work(table, info)
    meaning.describe_messages(table, args, info)
    meaning.size_gradients(table, args)
    remarks += meaning.number_iterations(table)
    table = table.drop(columns="category")
    return table.astype({"kind": "category", "op": "category"}), remarks


def _per_unique(values: list, function) -> np.ndarray:
    """function(value) for each value, called once for each distinct one."""
    codes, uniques = pd.factorize(np.array(values, dtype=object))
    results = [function(value) for value in uniques]
    kind = bool if results and isinstance(results[0], bool) else object
    return np.array(results, dtype=kind)[codes] if results else np.array([], dtype=kind)


def _integers(values: list) -> np.ndarray:
    """int64 of each value, -1 where there is none."""
    known = {value: _integer(value) for value in set(values)}
    known = {value: -1 if number is None else number for value, number in known.items()}
    return np.fromiter((known[value] for value in values), dtype=np.int64, count=len(values))
