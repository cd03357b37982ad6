"""Traces of PyTorch's profiler (Kineto, Chrome trace format): bytes -> EVENTS of one rank.

Times are microseconds, whatever `displayTimeUnit` says, counted from `baseTimeNanoseconds` if the
file has it. They stay integers, in ns, until the origin of the run is known.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Union

import msgspec
import numpy as np
import pandas as pd

from . import chrome, meaning
from .batches import Batches
from .collectives import is_communication
from .pairs import JOINED, NO_BEGINNING, UNFINISHED, Pairs
from .source import Source, entry

_Number = int | float | str | None


class _Args(msgspec.Struct, gc=False):
    correlation: _Number = -1
    external: _Number = msgspec.field(name="External id", default=-1)
    stream: _Number = -1
    device: _Number = -1
    collective: Any = msgspec.field(name="Collective name", default=None)
    elements_in: Any = msgspec.field(name="In msg nelems", default=None)
    elements_out: Any = msgspec.field(name="Out msg nelems", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    members: Any = msgspec.field(name="Process Group Ranks", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    dtype: Any = None
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=meaning.NULL)
    types: msgspec.Raw = msgspec.field(name="Input type", default=meaning.NULL)


class _Event(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """A complete event: an interval."""

    cat: str | None = ""
    name: str = ""
    ts: _Number = None
    dur: _Number = None
    pid: _Number = None
    tid: _Number = -1
    args: _Args | None = None


class _ExactEvent(_Event, gc=False, tag="X"):
    """The same with undecoded times."""

    ts: msgspec.Raw = meaning.NULL
    dur: msgspec.Raw = meaning.NULL


class _Begin(_ExactEvent, gc=False, tag="B"):
    """The beginning of an interval."""


class _End(msgspec.Struct, gc=False, tag_field="ph", tag="E"):
    name: str | None = None
    ts: msgspec.Raw = meaning.NULL
    pid: _Number = None
    tid: _Number = -1


# All other phases of the Chrome trace format are only counted, so no field is decoded.
_OTHERS = {
    phase: msgspec.defstruct(f"_{ord(phase)}", [], tag_field="ph", tag=phase, gc=False)
    for phase in "XBEiICbnestfpSTFPNODMVvRc(),="
}
_WHOLE, _BEGIN, _END = (_OTHERS.pop(phase) for phase in "XBE")
_PHASE = {other: phase for phase, other in _OTHERS.items()}
_ANY = Union[(_Event, _BEGIN, _END, *_PHASE)]
_ANY_EXACT = Union[(_ExactEvent, _BEGIN, _END, *_PHASE)]
_ANY_HALF = Union[(_WHOLE, _Begin, _End, *_PHASE)]  # for batches that contain some

_CATEGORIES = {
    "compute": "kernel",
    "memory": "gpu_memcpy memcpy gpu_memset memset",
    "host": "cpu_op operator cuda_runtime cuda_driver runtime driver python_function overhead",
    "annotation": "user_annotation gpu_user_annotation cuda_sync trace",
}
_KINDS = {cat: kind for kind, cats in _CATEGORIES.items() for cat in cats.split()}
_AUTOGRAD = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}
_ALL_KINDS = sorted({*_KINDS.values(), "comm"})
_DEVICE_ANNOTATIONS = ("gpu_user_annotation", "cuda_sync")
_NO_HALF = "half of an interval (ph B or E) with a field of an unexpected type"
# Above this a float64 in microseconds may round to the wrong ns: half its last place nears 0.5 ns.
_FLOAT_LIMIT_US = 2.0**42
_LIMIT_US = 2.3e15  # year 2042: int64 ns hold a base, a start and a duration, and differences
_NO_ARGS = _Args()
NO_DEVICE_ROWS = (
    "no row of a GPU, so the host's operators are the compute, and "
    'keep="kernels" would drop them. Load it with keep="all"'
)
_NO_HOST_ROWS = "no device row: left out because only kernels are kept"
# Host rows that launch nothing, describe no message and span no iteration: most of a file.
_BULK = {"cpu_op", "operator", "python_function", "overhead"}


def recognises(head: bytes) -> bool:
    """Return whether the file may be a trace in JSON; other formats in JSON come first."""
    return head.lstrip()[:1] in (b"{", b"[")


def read(source: Source) -> tuple[pd.DataFrame, dict, list[dict]]:
    """Return EVENTS of one rank, what the file says about itself, and LEDGER rows: see `decode`."""
    return decode(source.chunks(), source.file, source.keep)


def decode(chunks: Iterable[bytes], file: str, keep: str = "all"):
    """Decode one trace from the chunks of its bytes.

    EVENTS have `start_ns` and `end_ns`, int64 since the epoch or the boot. The ledger lists what
    does not decode, and where. With keep="kernels" host rows place and describe the device rows
    before they are left out. Raises ValueError if the file contains no trace.
    """
    batches = Batches(chunks, _ANY, file)
    columns = _Columns(only_kernels=keep == "kernels")
    for batch in batches:
        columns.add(batch, batches.again)
    if columns.pairs.n_open:
        columns.dropped["ph B", UNFINISHED] = columns.pairs.n_open
    info = _info(batches.fields)
    ledger = batches.lost + [
        entry(what, n, why, kept=False, warn=why in (UNFINISHED, NO_BEGINNING, _NO_HALF))
        for (what, why), n in columns.dropped.items()
    ]
    if columns.lost_compute():
        raise ValueError(f"{file}: {NO_DEVICE_ROWS}")
    if not columns.parts:
        raise ValueError(_empty(file, ledger))
    table, categories, remarks = _table(columns, info)
    if columns.only_kernels:
        table, categories, dropped = _device_rows(table, categories)
        ledger += dropped
    ledger += _counts(categories, kept=True) + remarks
    return table, info, [row | {"file": file, "rank": info["rank"]} for row in ledger]


def _counts(categories: pd.Categorical, *, kept: bool) -> list[dict]:
    """Return one LEDGER row per category."""
    unknown = "category not known: kept as host rows"
    return [
        entry(f"category {cat or 'none'}", n, ("" if cat in _KINDS else unknown), kept=True)
        if kept
        else entry(f"category {cat or 'none'}", n, _NO_HOST_ROWS, kept=False)
        for cat, n in categories.value_counts().items()
        if n
    ]


def _device_rows(table: pd.DataFrame, categories: pd.Categorical):
    """Return the rows of work on the device, their categories, and LEDGER rows of the others."""
    work = table["kind"].isin(chrome.WORK).to_numpy()
    dropped = _counts(categories[~work], kept=False)
    return table[work].reset_index(drop=True), categories[work], dropped


def _empty(file: str, ledger: list[dict]) -> str:
    found = "; ".join(f"{r['n_events']} {r['what']}: {r['why']}" for r in ledger[:5])
    return f"{file}: not a trace: expected events with ph X, ts and dur; found {found or 'none'}"


def _info(fields: dict) -> dict:
    """Return rank, world size, back end, process groups and devices, if the file names them."""
    said, devices = fields.get("distributedInfo"), fields.get("deviceProperties")
    said = said if isinstance(said, dict) else {}
    devices = devices if isinstance(devices, list) else []
    groups = said.get("pg_config") if isinstance(said.get("pg_config"), list) else []
    return {
        "rank": _natural(said.get("rank"), 2**31),
        "world_size": _natural(said.get("world_size"), 2**31),
        "backend": said.get("backend"),
        "devices": [str(d.get("name") or "") for d in devices if isinstance(d, dict)],
        "groups": [g for g in groups if isinstance(g, dict)],
        "base_ns": _natural(fields.get("baseTimeNanoseconds"), _LIMIT_US * 1000) or 0,
    }


def _natural(value, limit: float) -> int | None:
    """Return the whole number in a field if it is from 0 up to the limit, or None."""
    number = _integer(value)
    return number if number is not None and 0 <= number < limit else None


@dataclass
class _Columns:
    """The complete events, column by column, so that memory holds no event twice.

    parts : one dict of int64 arrays per batch (see `_columns`)
    details : arguments of the rows that describe a message or a gradient, by position
    describe : whether rows of a name do, by the code of the name
    dropped : events left out, counted by (what, why)
    pairs : the intervals that have begun (ph B) and not ended
    """

    only_kernels: bool = False
    names: chrome.Codes = field(default_factory=chrome.Codes)
    cats: chrome.Codes = field(default_factory=chrome.Codes)
    parts: list[dict] = field(default_factory=list)
    details: dict[int, _Args] = field(default_factory=dict)
    describe: list[bool] = field(default_factory=list)
    dropped: Counter = field(default_factory=Counter)
    pairs: Pairs = field(default_factory=Pairs)
    n_rows: int = 0

    def add(self, batch: list, again: Callable) -> None:
        types = Counter(map(type, batch))
        for other, phase in _PHASE.items():
            if types[other]:
                why = chrome.LEFT_OUT.get(phase, "not a complete event (ph X)")
                self.dropped[f"ph {phase}", why] += types[other]
        events = [event for event in batch if type(event) is _Event]
        if _inexact([event.ts for event in events]):
            events = [event for event in again(_ANY_EXACT) if type(event) is _ExactEvent]
        if n_halves := types[_BEGIN] + types[_END]:
            events += self._paired(again(_ANY_HALF), n_halves)
        if self.only_kernels:
            events = self._without_bulk(events)
        events, start, end = self._usable(events)
        if not events:
            return
        columns, args = self._columns(events)
        for i in np.flatnonzero(self._describing(columns["name"])).tolist():
            self.details[self.n_rows + i] = _apart(args[i])
        self.parts.append(columns | {"start_ns": start, "end_ns": end})
        self.n_rows += len(events)

    def _paired(self, batch: list, n_halves: int) -> list[_Event]:
        """Return the intervals that end in this batch, which contains n_halves of intervals."""
        halves = [half for half in batch if type(half) in (_Begin, _End)]
        if len(halves) < n_halves:
            self.dropped["ph B or E", _NO_HALF] += n_halves - len(halves)
        events = []
        for half in halves:
            lane = half.pid, half.tid
            if type(half) is _Begin:
                args = half.args and _apart(half.args)
                time = half.ts.copy()
                event = _Event(half.cat, half.name, time, None, half.pid, half.tid, args)
                self.pairs.begin(lane, half.name, event)
            elif (event := self.pairs.end(lane, half.name)) is None:
                self.dropped["ph E", NO_BEGINNING] += 1
            else:
                event.dur = _between(event.ts, half.ts)
                events.append(event)
                self.dropped["ph E", JOINED] += 1
        return events

    def _describing(self, name: np.ndarray) -> np.ndarray:
        """Return a mask of the rows whose arguments describe a message or a gradient."""
        new = self.names.text[len(self.describe) :]
        self.describe += [meaning.has_shape(name) or is_communication(name) for name in new]
        return np.array(self.describe)[name]

    def _without_bulk(self, events: list[_Event]) -> list[_Event]:
        needed = set(filter(meaning.is_needed, {event.name for event in events}))
        kept = []
        for event, cat in zip(events, _categories(events), strict=True):
            if cat.lower() in _BULK and event.name not in needed:
                self.dropped[f"category {cat.lower()}", _NO_HOST_ROWS] += 1
            else:
                kept.append(event)
        return kept

    def _columns(self, events: list[_Event]) -> tuple[dict, list[_Args]]:
        args = [event.args or _NO_ARGS for event in events]
        columns = {
            "name": _from(map(self.names.__getitem__, [e.name for e in events]), len(events)),
            "cat": _from(map(self.cats.__getitem__, _categories(events)), len(events)),
            "tid": _integers([event.tid for event in events]),
            "stream": _integers([each.stream for each in args]),
            "correlation": _integers([each.correlation for each in args]),
            "external": _integers([each.external for each in args]),
        }
        columns["device"] = np.full(len(events), -1)
        on_stream = np.flatnonzero(columns["stream"] >= 0)
        columns["device"][on_stream] = _integers([args[i].device for i in on_stream.tolist()])
        return columns, args

    def _usable(self, events: list[_Event]):
        """Return the events with a time, their starts and ends in ns; the others are counted."""
        start = _nanoseconds([event.ts for event in events])
        duration = _nanoseconds([event.dur for event in events])
        unknown = (start == _UNKNOWN) | (duration == _UNKNOWN)
        negative = ~unknown & (duration < 0)
        if not (unknown | negative).any():
            return events, start, start + duration
        self.dropped["ph X", chrome.NO_TIME] += int(unknown.sum())
        for cat in _categories([events[i] for i in np.flatnonzero(negative)]):
            work = _KINDS.get(cat.lower()) in ("compute", "memory")
            self.dropped["ph X", "negative dur" if work else "unfinished: negative dur"] += 1
        self.dropped = +self.dropped
        usable = ~(unknown | negative)
        kept = [event for event, good in zip(events, usable, strict=True) if good]
        return kept, start[usable], (start + duration)[usable]

    def lost_compute(self) -> bool:
        """Return whether host rows of a file without GPU rows were dropped: they compute."""
        seen = {_KINDS.get(cat.lower()) for cat in self.cats}
        rows = self.n_rows or any(why == _NO_HOST_ROWS for _, why in self.dropped)
        return self.only_kernels and bool(rows) and not seen & {"compute", "memory"}

    def joined(self) -> dict:
        """Return each column whole, and release the parts one by one."""
        keys = list(self.parts[0])
        return {key: np.concatenate([part.pop(key) for part in self.parts]) for key in keys}


def _categories(events: list[_Event]) -> list[str]:
    """Return categories as written; the autograd profiler named them by the process alone."""
    return [event.cat or _AUTOGRAD.get(event.pid, "") for event in events]


def _from(values: Iterable[int], n: int) -> np.ndarray:
    return np.fromiter(values, dtype=np.int64, count=n)


def _integers(values: list) -> np.ndarray:
    """Return the int64 of each value, -1 if there is none."""
    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):  # text, null or a very large number among them
        known = {value: _integer(value) for value in set(values)}
    known = {value: -1 if number is None else number for value, number in known.items()}
    return _from(map(known.__getitem__, values), len(values))


def _integer(value) -> int | None:
    """Return the whole number in a field, also from text (`7`, `stream 7`), or None."""
    if isinstance(value, str):
        digits = re.fullmatch(r"(?:stream )?(-?\d{1,19})", value.strip())
        value = int(digits[1]) if digits else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    if 2**63 <= value < 2**64 and isinstance(value, int):
        value -= 2**64  # an unsigned number of 64 bits: another int64 for each, so ids still match
    return int(value) if abs(value) < 2**63 else None


_UNKNOWN = np.iinfo(np.int64).min


def _inexact(times: list) -> bool:
    """Return whether floats among the times are too large to resolve 1 ns."""
    kinds = set(map(type, times))
    if float not in kinds:
        return False
    floats = times if kinds == {float} else [t for t in times if type(t) is float]
    return not np.max(np.abs(np.array(floats))) < _FLOAT_LIMIT_US


def _nanoseconds(values: list) -> np.ndarray:
    """Convert decoded microseconds to int64 ns or `_UNKNOWN`; exact for floats below the limit."""
    kinds = set(map(type, values))
    array = np.array(values) if kinds <= {int, float} else np.array([], dtype=object)
    # The least int64 has no positive counterpart, so sizes are compared as floats.
    numeric = array.dtype.kind in "iuf"
    if not (numeric and np.max(np.abs(array.astype(float)), initial=0) < _LIMIT_US):
        return np.array([_exact_ns(value) for value in values], dtype=np.int64)
    if array.dtype.kind != "f":
        return array.astype(np.int64) * 1000
    whole = np.floor(array)
    # The fraction of a float below the limit is exact, so only one rounding happens.
    return whole.astype(np.int64) * 1000 + np.rint((array - whole) * 1000).astype(np.int64)


def _between(start: msgspec.Raw, end: msgspec.Raw) -> str | None:
    """Return the time between two in us, as text that loses no ns; None if unknown."""
    times = [_exact_ns(time) for time in (start, end)]
    return None if _UNKNOWN in times else str(Decimal(times[1] - times[0]) / 1000)


def _apart(args: _Args) -> _Args:
    """Copy the shapes, so that the bytes of the batch can be released."""
    if args.dims is not meaning.NULL:
        args.dims, args.types = args.dims.copy(), args.types.copy()
    return args


def _exact_ns(value) -> int:
    text = bytes(value).decode().strip('"') if type(value) is msgspec.Raw else str(value)
    try:
        us = Decimal(text)
    except ArithmeticError:
        return _UNKNOWN
    return round(us * 1000) if us.is_finite() and abs(us) < _LIMIT_US else _UNKNOWN


def _table(columns: _Columns, info: dict) -> tuple[pd.DataFrame, pd.Categorical, list[dict]]:
    """Return EVENTS of one rank with times in ns, the category of each row, and LEDGER rows."""
    column = columns.joined()
    name = column["name"]
    lower = chrome.Codes()
    cat = np.array([lower[cat.lower()] for cat in columns.cats])[column["cat"]]
    kind = pd.Categorical([_KINDS.get(cat, "host") for cat in lower], categories=_ALL_KINDS)[cat]
    kernel = np.array([cat == "kernel" for cat in lower])[cat]
    kind[kernel & np.array([is_communication(name) for name in columns.names])[name]] = "comm"
    on_device = (
        kind.isin(chrome.WORK) | np.array([cat in _DEVICE_ANNOTATIONS for cat in lower])[cat]
    )
    stream = np.where(column["stream"] < 0, column["tid"], column["stream"])
    stream, remarks = _by_device(stream, column["device"], kernel, on_device)
    table = chrome.table(
        info["rank"],
        len(cat),
        stream=np.where(on_device, stream, -1),
        thread=np.where(on_device, -1, column["tid"]),
        kind=kind,
        op=meaning.texts(len(cat)),
        name=pd.Categorical.from_codes(name, columns.names.text),
        group=meaning.texts(len(cat)),
        correlation=column["correlation"],
        start_ns=column["start_ns"] + info["base_ns"],
        end_ns=column["end_ns"] + info["base_ns"],
        category=pd.Categorical.from_codes(cat, lower.text),
        external=column["external"],
    )
    remarks += meaning.place_host_work(table, info)
    details = defaultdict(_Args, columns.details)
    launch = meaning.launches(table)
    remarks += meaning.describe_messages(table, details, info, launch)
    meaning.size_gradients(table, details)
    remarks += meaning.number_iterations(table, launch)
    table["kind"] = table["kind"].cat.remove_unused_categories()
    return table.drop(columns=["category", "external"]), table["category"].array, remarks


def _by_device(stream: np.ndarray, device: np.ndarray, kernels: np.ndarray, on_device: np.ndarray):
    """Return stream numbers that differ between the GPUs of one process, and LEDGER rows."""
    if np.unique(device[kernels & (device >= 0)]).size < 2:
        return stream, []
    known = on_device & (device >= 0) & (device < 2**31)
    scale = 1000
    while scale <= stream[known].max(initial=0) and scale < 10**9:
        scale *= 10
    why = f"taken together as one rank; stream = {scale} x device + stream"
    remark = entry("streams", 0, f"several GPUs in one process: {why}")
    return np.where(known, scale * np.where(known, device, 0) + stream, stream), [remark]
