"""NVTX ranges of NCCL in an export of Nsight Systems: sizes, communicators, ranks.

Each range has a payload whose fields NVTX_PAYLOAD_SCHEMA_ENTRIES describes (in NCCL's source:
nvtx_payload_schemas.h). `nsys export --include-blobs=true` keeps it in NVTX_EVENTS.binaryData: a
header of 32 bytes (domain, schema, bytes of the payload and of the whole), then the fields.
`--dynamic-tables=all` writes one table per schema (Nsight Systems 2026.4, SQLite schema 3.28).
"""

import re
import struct
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pandas as pd

from .collectives import collective

_HEADER = struct.Struct("<I4xI4xQQ")
_FIELDS = {
    "NCCL communicator ID": "comm",
    "Message size [bytes]": "nbytes",
    "No. of ranks": "n_ranks",
    "Rank": "rank",
    "CUDA device": "device",
}
# NVTX_PAYLOAD_ENTRY_TYPE_INT, UINT, INT32, UINT32, INT64, UINT64, SIZE
_TYPES = {5: "<i", 6: "<I", 15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q"}
_LIMITS = {"nbytes": 2**62, "n_ranks": 2**24, "rank": 2**24, "device": 2**16}
_TABLE = re.compile(r"NVTX_EVENTS(?:_V?\d+)?", re.IGNORECASE)
_PAYLOADS = re.compile(r"DYNAMIC_NVTXPAYLOAD_DATATYPE_[\d_]+")
# Their size is that of one message between two workers, not the total.
_OF_ONE = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


def calls(db, tables: dict[str, set]) -> list[dict]:
    """Return NCCL's ranges by start: name, process, thread, start, end (ns) and known _FIELDS."""
    schemas, fields = _schemas(db, tables), _fields(db, tables)
    has_strings, found = {"id", "value"} <= tables.get("StringIds", set()), []
    for table, columns in tables.items():
        if _TABLE.fullmatch(table) and {"start", "end", "globalTid"} <= columns:
            for event, payload, call in _calls(db, table, columns, has_strings):
                found.append(call | (fields.get(event) or _decoded(payload, schemas)))
    return sorted(found, key=lambda call: call["start"])


def _schemas(db, tables: dict[str, set]) -> dict[tuple, list[tuple]]:
    """Return (domain, schema) -> (name here, offset, format) of its fields of interest."""
    schemas: dict = {}
    columns = ("domainId", "schemaId", "name", "type", "offset")
    rows = select(db, tables, "NVTX_PAYLOAD_SCHEMA_ENTRIES", *columns)
    for domain, schema, name, kind, offset in rows:
        offset = offset or 0  # missing for the first field
        if name in _FIELDS and kind in _TYPES and isinstance(offset, int) and offset >= 0:
            field = (_FIELDS[name], offset, _TYPES[kind])
            schemas.setdefault((domain, schema), []).append(field)
    return schemas


def _fields(db, tables: dict[str, set]) -> dict[int, dict]:
    """Return eventId -> its fields, from the tables of payloads in some exports."""
    found, translation = {}, ("sanitizedName", "originalName")
    names = dict(select(db, tables, "NVTX_EXPORT_TRANSLATION", *translation))
    for table in filter(_PAYLOADS.fullmatch, tables):
        here = {c: _FIELDS[said] for c in tables[table] if (said := names.get(c, c)) in _FIELDS}
        for event, *values in select(db, tables, table, "eventId", *here):
            found[event] = _sound(dict(zip(here.values(), values, strict=True)))
    return found


def _sound(fields: dict) -> dict:
    """Return the fields with possible values."""
    whole = {name: value for name, value in fields.items() if isinstance(value, int)}
    return {k: v for k, v in whole.items() if k == "comm" or 0 <= v < _LIMITS[k]}


def quoted(name: str) -> str:
    """Return a name of a table or a column for SQL."""
    return '"' + name.replace('"', '""') + '"'


def select(db, tables: dict[str, set], table: str, *columns: str, where: str = "") -> Iterator:
    """Yield these columns of each row; nothing if the table or one of them is missing."""
    if set(columns) <= tables.get(table, set()):
        yield from db.execute(
            f"SELECT {', '.join(map(quoted, columns))} FROM {quoted(table)} {where}"
        )


def _calls(db, table: str, columns: set, has_strings: bool) -> Iterator[tuple]:
    """Yield eventId, payload and the other fields of NCCL's ranges."""
    join = has_strings and "textId" in columns
    names = ['e."text"'] * ("text" in columns) + ["s.value"] * join + ["NULL"]
    name = f"COALESCE({', '.join([*names, 'NULL'])})"
    more = [f'e."{c}"' if c in columns else "NULL" for c in ("eventId", "binaryData")]
    rows = db.execute(
        f"""SELECT {name}, e."globalTid", e."start", e."end", {", ".join(more)}
        FROM {quoted(table)} e {'LEFT JOIN StringIds s ON s.id = e."textId"' * join}
        WHERE {name} GLOB 'nccl[A-Z]*' AND typeof(e."globalTid") = 'integer'
        AND typeof(e."start") = 'integer' AND typeof(e."end") = 'integer'"""
    )
    for name, thread, start, end, event, payload in rows:
        call = {"name": str(name), "process": thread >> 24, "thread": thread & 0xFFFFFF}
        yield event, payload, call | {"start": start, "end": end}


def _decoded(data, schemas: dict) -> dict:
    """Return the fields of a payload, if its header agrees with its length and a schema."""
    if not isinstance(data, bytes) or len(data) < _HEADER.size:
        return {}
    domain, schema, size, whole = _HEADER.unpack_from(data)
    if not whole == len(data) == size + _HEADER.size:
        return {}
    fields = schemas.get((domain, schema), [])
    inside = [(k, at, form) for k, at, form in fields if at + struct.calcsize(form) <= size]
    return _sound(
        {k: struct.unpack_from(form, data, _HEADER.size + at)[0] for k, at, form in inside}
    )


def ranks(found: list[dict]) -> dict[tuple, tuple[int, int]]:
    """Return (process, device) -> rank and number of ranks in the largest communicator."""
    worlds: dict = {}
    for call in found:
        if {"n_ranks", "rank", "device"} <= call.keys() and call["rank"] < call["n_ranks"]:
            lane = (call["process"], call["device"])
            worlds.setdefault(lane, set()).add((call["n_ranks"], call["rank"]))
    largest = {k: [(rank, n) for n, rank in v if n == max(v)[0]] for k, v in worlds.items()}
    return {lane: each[0] for lane, each in largest.items() if len(each) == 1}


def kernel_messages(found: list[dict], launched: pd.DataFrame) -> list[dict]:
    """Return op, bytes and workers of kernels launched (process, thread, time in ns), or {}.

    A kernel is launched within its call, or within the end of the group of its calls. A kernel
    that carries a whole group has the sum of its sizes, if all are of one collective.
    """
    sizes = {call["comm"]: call["n_ranks"] for call in found if {"comm", "n_ranks"} <= call.keys()}
    moved: list[dict] = [{} for _ in range(len(launched))]
    by_thread = defaultdict(list)
    for call in found:
        by_thread[call["process"], call["thread"]].append(call)
    for lane, rows in launched.reset_index(drop=True).groupby(["process", "thread"]):
        windows = list(_windows(by_thread[lane]))
        at = np.searchsorted([window["start"] for window, _ in windows], rows["time"], "right") - 1
        for n, mine in rows.groupby(at):
            window, group = windows[n] if n >= 0 else ({"end": -(2**63)}, [])
            mine = mine.index[mine["time"] <= window["end"]]
            each = [[call] for call in group] if len(group) == len(mine) else [group]
            if len(each) == len(mine):
                for row, carried in zip(mine, each, strict=True):
                    moved[row] = _message(carried, sizes)
    return moved


def _windows(mine: list[dict]) -> Iterator[tuple[dict, list[dict]]]:
    """Yield each range of one thread in which kernels are launched, and the calls they carry."""
    depth, waiting = 0, []
    for call in mine:
        if call["name"] == "ncclGroupStart":
            depth += 1
        elif call["name"] == "ncclGroupEnd":
            depth = max(depth - 1, 0)
            if depth == 0:
                yield call, waiting
                waiting = []
        elif "nbytes" in call and depth:
            waiting.append(call)
        elif "nbytes" in call:
            yield call, [call]


def _message(carried: list[dict], sizes: dict) -> dict:
    """Return what a kernel that carries these calls moves."""
    ops = {collective(call["name"]) for call in carried}
    comms = {call.get("comm") for call in carried}
    if len(ops) != 1 or len(comms) != 1:
        return {}
    op, n = ops.pop(), sizes.get(comms.pop())
    total = sum(call["nbytes"] for call in carried)
    if op == "send_recv":  # the larger side, since several can form a collective
        sent = sum(call["nbytes"] for call in carried if "send" in call["name"].lower())
        total = max(sent, total - sent)
    elif op in _OF_ONE:
        total *= n or 0
    return {"op": op, "nbytes": total if 0 < total < 2**62 else None, "n_workers": n}
