"""NCCL's NVTX ranges in an export of Nsight Systems: sizes, communicators, ranks.

Each range has a payload whose fields NVTX_PAYLOAD_SCHEMA_ENTRIES describes (in NCCL's source:
nvtx_payload_schemas.h). `nsys export --include-blobs=true` keeps it in NVTX_EVENTS.binaryData: a
header of 32 bytes (domain, schema, bytes of the payload and of the whole), then the fields.
`--dynamic-tables=all` writes one table per schema (Nsight Systems 2026.4, SQLite schema 3.28).
"""

import re
import struct
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
# "The size of one message, not the total bytes": what one worker gives to, or takes from, each.
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
    needed = {"domainId", "schemaId", "name", "type", "offset"}
    if not needed <= tables.get("NVTX_PAYLOAD_SCHEMA_ENTRIES", set()):
        return {}
    schemas: dict = {}
    query = 'SELECT domainId, schemaId, name, type, "offset" FROM NVTX_PAYLOAD_SCHEMA_ENTRIES'
    for domain, schema, name, kind, offset in db.execute(query):
        offset = offset or 0  # not written for the first
        if name in _FIELDS and kind in _TYPES and isinstance(offset, int) and offset >= 0:
            field = (_FIELDS[name], offset, _TYPES[kind])
            schemas.setdefault((domain, schema), []).append(field)
    return schemas


def _fields(db, tables: dict[str, set]) -> dict[int, dict]:
    """Return eventId -> its fields, from the tables of payloads that some exports have."""
    names, found = {}, {}
    if {"originalName", "sanitizedName"} <= tables.get("NVTX_EXPORT_TRANSLATION", set()):
        names = dict(db.execute("SELECT sanitizedName, originalName FROM NVTX_EXPORT_TRANSLATION"))
    for table, columns in tables.items():
        here = {c: _FIELDS[said] for c in columns if (said := names.get(c, c)) in _FIELDS}
        if re.fullmatch(r"DYNAMIC_NVTXPAYLOAD_DATATYPE_[\d_]+", table) and "eventId" in columns:
            wanted = ", ".join(quoted(column) for column in ["eventId", *here])
            for event, *values in db.execute(f"SELECT {wanted} FROM {quoted(table)}"):
                found[event] = _sound(dict(zip(here.values(), values, strict=True)))
    return found


def _sound(fields: dict) -> dict:
    """Return the fields with possible values."""
    return {
        name: value
        for name, value in fields.items()
        if isinstance(value, int) and (name == "comm" or 0 <= value < _LIMITS[name])
    }


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


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
    if whole != len(data) or whole != size + _HEADER.size:
        return {}
    found = {}
    for name, offset, form in schemas.get((domain, schema), []):
        if offset + struct.calcsize(form) <= size:
            (found[name],) = struct.unpack_from(form, data, _HEADER.size + offset)
    return _sound(found)


def ranks(found: list[dict]) -> dict[tuple, tuple[int, int]]:
    """Return (process, device) -> rank and number of ranks in the largest communicator."""
    worlds: dict = {}
    for call in found:
        if {"n_ranks", "rank", "device"} <= call.keys() and call["rank"] < call["n_ranks"]:
            lane = (call["process"], call["device"])
            worlds.setdefault(lane, set()).add((call["n_ranks"], call["rank"]))
    known = {}
    for lane, seen in worlds.items():
        largest = [(rank, n) for n, rank in seen if n == max(seen)[0]]
        if len(largest) == 1:
            known[lane] = largest[0]
    return known


def kernel_messages(found: list[dict], launched: pd.DataFrame) -> list[dict]:
    """Return op, bytes and workers of kernels launched (process, thread, time in ns), or {}.

    A kernel is launched within its call, or within the end of the group of its calls. A kernel
    that carries a whole group has the sum of its sizes, if all are of one collective.
    """
    sizes = {call["comm"]: call["n_ranks"] for call in found if {"comm", "n_ranks"} <= call.keys()}
    told: list[dict] = [{} for _ in range(len(launched))]
    by_thread: dict = {}
    for call in found:
        by_thread.setdefault((call["process"], call["thread"]), []).append(call)
    for lane, rows in launched.reset_index(drop=True).groupby(["process", "thread"]):
        windows = list(_windows(by_thread.get(lane, [])))
        at = np.searchsorted([window["start"] for window, _ in windows], rows["time"], "right") - 1
        for n, mine in rows.groupby(at):
            window, group = windows[n] if n >= 0 else ({"end": -(2**63)}, [])
            mine = mine.index[mine["time"] <= window["end"]]
            each = [[call] for call in group] if len(group) == len(mine) else [group]
            if len(each) == len(mine):
                for row, carried in zip(mine, each, strict=True):
                    told[row] = _message(carried, sizes)
    return told


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
    if op == "send_recv":  # the larger side, as several of them may make up a collective
        sent = sum(call["nbytes"] for call in carried if "send" in call["name"].lower())
        total = max(sent, sum(call["nbytes"] for call in carried) - sent)
    else:
        each = 1 if op not in _OF_ONE else n
        total = None if each is None else each * sum(call["nbytes"] for call in carried)
    total = total if total is not None and 0 < total < 2**62 else None
    return {"op": op, "nbytes": total, "n_workers": n}
