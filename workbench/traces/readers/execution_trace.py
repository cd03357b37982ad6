"""Execution traces of PyTorch (also Chakra's host traces): which messages there were, not when.

An execution trace lists the operators of one rank as nodes, with shapes and types but no times, so
it is refused as a trace. Its messages complete a Kineto trace of the same run that was recorded
without shapes: `called_messages`, then `join`.
"""

import itertools
import re
import warnings
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from ...base.checks import refuse, require
from ...base.tables import EVENTS, check
from ...base.units import GIB
from .collectives import collective, dtype_bytes
from .salvage import NOT_DECODED, Place, decoded, salvage_events
from .source import Source

MESSAGES = {
    "node": "number of the node in the execution trace",
    "rf_id": "number of the record function, <NA> if unknown",
    "op": "name of the collective",
    "name": "name in the file",
    "nbytes": "bytes of the message, the larger of input and output; <NA> if unknown",
    "dtype": "type of its elements, empty if unknown",
    "n_workers": "workers in the group, <NA> if unknown",
    "group": "process group, empty if unknown",
}
_LARGEST = 2 * GIB
_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_TENSOR = re.compile(r"Tensor\(([^()]*)\)")
_BACKEND_CALL = re.compile(r"(?:nccl|rccl|gloo|mpi|ucc):")
_GROUPS = "process_group:init"
_CALL = "record_param_comms"
_NOTHING = msgspec.Raw(b"null")


class _Node(msgspec.Struct, gc=False):
    """The fields that describe messages, undecoded: few nodes need them."""

    id: Any = None
    name: str = ""
    rf_id: Any = None
    inputs: msgspec.Raw = _NOTHING
    input_types: msgspec.Raw = _NOTHING
    outputs: msgspec.Raw = _NOTHING
    attrs: msgspec.Raw = _NOTHING


class _Trace(msgspec.Struct):
    nodes: list[_Node]


def recognises(head: bytes) -> bool:
    """Return whether `nodes` is a list at the top level of the JSON."""
    found = _NODES.search(head)
    if not found or not head.lstrip().startswith(b"{"):
        return False
    before = head[: found.start()].rstrip().removesuffix(b",")
    fields = decoded(before + b"}", dict[str, msgspec.Raw])
    if fields is None:
        return b'"schema"' in before and b'"traceEvents"' not in before
    return "traceEvents" not in fields


def read(source: Source):
    """Always raise ValueError, which also reports damage: the file contains no times."""
    nodes, damage = _nodes(source)
    n = len(_messages(nodes))
    found = f"an execution trace ({len(nodes)} nodes, {n} messages) without times"
    do = "Load the Kineto trace of the same run; workbench.traces.add_sizes(run, path) completes it"
    refuse(source.file, "a trace with ts and dur", found=found, do=". ".join([do, *damage]))


def called_messages(source: Source) -> pd.DataFrame:
    """Return the collectives of an execution trace in the order of their calls; see `MESSAGES`.

    Damage is warned of, and the nodes around it are read.
    """
    nodes, damage = _nodes(source)
    found = "; ".join(damage) or "an empty list"
    require(nodes, source.file, "nodes of an execution trace under nodes", found=found)
    if damage := damage + source.damage:
        warnings.warn(f"{source.file}: {'. '.join(damage)}", stacklevel=2)
    table = pd.DataFrame(_messages(nodes), columns=list(MESSAGES))
    whole = dict.fromkeys(["node", "rf_id", "nbytes", "n_workers"], "Int64")
    text = dict.fromkeys(["op", "name", "dtype", "group"], "str")
    table = table.astype(whole | text)
    return table.sort_values("node", kind="stable", ignore_index=True)


def join(events: pd.DataFrame, messages: pd.DataFrame) -> pd.DataFrame:
    """Return EVENTS of one rank with the sizes and groups of the messages in its comm rows.

    The two have no number in common, so messages are matched by their order: all of them if there
    are as many as comm rows and no op differs, otherwise op by op where the counts agree; a
    warning names the others. Known values stay. Raises ValueError if nothing can be linked.
    """
    check(events, {column: EVENTS[column] for column in ("rank", "kind", "op")}, "events")
    check(messages, MESSAGES, "messages")
    ranks = events["rank"].unique().tolist()
    do = "An execution trace is of one rank: select its rows first"
    require(len(ranks) < 2, "events", "EVENTS of one rank", found=f"ranks {ranks}", do=do)
    comm = events[events["kind"] == "comm"].sort_values("start_s", kind="stable")
    rows, found, unlinked = _pairs(comm["op"].astype(str), messages["op"])
    counts = "; ".join(unlinked)
    if not len(rows):
        why = "linking is impossible: no Record function id, and the counts differ"
        do = "Record both traces over the same iterations"
        raise ValueError(f"messages: {why} ({counts or 'no messages'}). {do}")
    if unlinked:
        warnings.warn(f"messages: cannot be linked: {counts}", stacklevel=2)
    linked = messages.iloc[found].set_index(comm.index[rows])
    op = events["op"].astype("str")
    unnamed = op.loc[linked.index].isin(["", "unknown"])
    op.loc[linked.index[unnamed]] = linked.loc[unnamed, "op"]
    filled = {
        column: events[column].astype("Int64").fillna(linked[column].reindex(events.index))
        for column in ("nbytes", "n_workers")
    }
    op = op.astype("category") if events["op"].dtype == "category" else op
    return events.assign(op=op, **filled)


def _pairs(rows: pd.Series, called: pd.Series) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return positions of comm rows and of their messages, and what has no partner."""
    rows, called = rows.to_numpy(), called.to_numpy()
    if len(rows) == len(called) and (np.isin(rows, ["", "unknown"]) | (rows == called)).all():
        return np.arange(len(rows)), np.arange(len(rows)), []
    pairs, unlinked = [], []
    for op in dict.fromkeys([*rows, *called]):
        mine, theirs = np.flatnonzero(rows == op), np.flatnonzero(called == op)
        if mine.size == theirs.size and op not in ("", "unknown"):
            pairs.append((mine, theirs))
        else:
            unlinked.append(f"{op or 'unknown'}: {mine.size} in the trace, {theirs.size} calls")
    joined = [np.concatenate(side) for side in zip(*pairs, strict=True)] if pairs else [[], []]
    return *(np.asarray(side, dtype=int) for side in joined), unlinked


def _nodes(source: Source) -> tuple[list[_Node], list[str]]:
    """Return the nodes, and where the file is damaged."""
    data = source.whole("an execution trace", _LARGEST)
    try:
        return msgspec.json.decode(data, type=_Trace).nodes, []
    except NOT_DECODED as error:
        return _salvaged(data, str(error))


def _salvaged(data: bytes, error: str) -> tuple[list[_Node], list[str]]:
    """Return the nodes around the damage, and where it is."""
    said = re.search(r"\(byte (\d+)\)", error)
    damage = [f"It is damaged ({error})"]
    if said:
        line = data.count(b"\n", 0, int(said[1])) + 1
        damage = [f"It is damaged at line {line}, byte {said[1]} ({error.split(' (byte')[0]})"]
    found = _NODES.search(data)
    if not found:
        return [], damage
    place = Place(found.end(), data.count(b"\n", 0, found.end()) + 1)
    objects, _, lost, _ = salvage_events(data[found.end() :], place, final=True)
    nodes = []
    for item in objects:
        try:
            nodes.append(msgspec.json.decode(msgspec.json.encode(item), type=_Node))
        except NOT_DECODED:
            damage.append(f"A node is not as expected: {str(item)[:60]!r}")
    return nodes, damage + [f"{row['n_events']} {row['what']}: {row['why']}" for row in lost]


def _messages(nodes: list[_Node]) -> list[dict]:
    calls = [node for node in nodes if node.name == _CALL]
    calls = calls or [node for node in nodes if _BACKEND_CALL.match(node.name)]
    groups = _groups(nodes)
    return [message for node in calls if (message := _message(node, groups))]


def _message(node: _Node, groups: dict) -> dict | None:
    """Return one call as a row; None for a call that moves nothing, such as a wait."""
    attrs = _attrs(node)
    values, types = _side(node.inputs, node.input_types)
    words = [attrs.get("collective_name"), *values, node.name]
    name = next((word for word in words if isinstance(word, str) and collective(word)), None)
    if name is None:
        return None
    op = collective(name)
    group = attrs.get("pg_name")
    n = _whole(attrs.get("pg_size")) or groups.get(group)
    n = n or (next(iter(groups.values())) if len(groups) == 1 else None)
    tensor = _TENSOR.search(str(types[:1]))
    dtype = str(attrs.get("dtype") or (tensor[1] if tensor else ""))
    return {
        "node": _whole(node.id),
        "rf_id": _whole(node.rf_id) or _whole(attrs.get("rf_id")),
        "op": op,
        "name": name,
        "nbytes": _nbytes(node, attrs, values, op, n),
        "dtype": dtype,
        "n_workers": n,
        "group": "" if group is None else str(group),
    }


def _nbytes(node: _Node, attrs: dict, values: list, op: str, n: int | None) -> int | None:
    """Return bytes from the counts in the attributes, or else from the tensors in and out."""
    counts = [_whole(attrs.get(f"{side}_msg_nelems")) or 0 for side in ("in", "out")]
    size = dtype_bytes(str(attrs.get("dtype")))
    if max(counts) and size:
        return max(counts) * size
    given = _tensor_bytes(values[:1])
    taken = _tensor_bytes(_side(node.outputs, _NOTHING)[0][:1])
    if op == "all_gather" and taken <= given:  # only the part of one worker is recorded
        return given * n if n and given else None
    return _whole(max(given, taken))


def _tensor_bytes(value) -> int:
    """Return bytes of the tensors in a value: (tensor, storage, offset, elements, size, device)."""
    if not isinstance(value, list):
        return 0
    if len(value) == 6 and isinstance(value[5], str):
        elements, each = _whole(value[3]), _whole(value[4])
        return elements * each if elements and each else 0
    return sum(map(_tensor_bytes, value))


def _side(values: msgspec.Raw, types: msgspec.Raw) -> tuple[list, list]:
    """Return values and types of the inputs or outputs, in the older or the newer layout."""
    both = decoded(values), decoded(types)
    if isinstance(both[0], dict):
        both = both[0].get("values"), both[0].get("types")
    return tuple(each if isinstance(each, list) else [] for each in both)


def _attrs(node: _Node) -> dict:
    attrs = decoded(node.attrs)
    attrs = [a for a in attrs if isinstance(a, dict)] if isinstance(attrs, list) else []
    return {a["name"]: a.get("value") for a in attrs if isinstance(a.get("name"), str)}


def _groups(nodes: list[_Node]) -> dict[str, int]:
    """Return the size of each process group, from the node that lists them."""
    sizes = {}
    for node in nodes:
        listing = _side(node.inputs, _NOTHING)[0][:1] if _GROUPS in node.name else []
        groups = (decoded(str(value), list[dict[str, Any]]) or [] for value in listing)
        for group in itertools.chain.from_iterable(groups):
            ranks = group.get("ranks")
            n = _whole(group.get("group_size")) or len(ranks if isinstance(ranks, list) else [])
            sizes |= {str(group.get("pg_name")): n} if n else {}
    return sizes


def _whole(value) -> int | None:
    """Return a positive number that fits 62 bits, or None."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 < value < 2**62 else None
