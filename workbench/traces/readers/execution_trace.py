"""Execution traces of PyTorch (Chakra's host traces too): which messages there were, never when.

An execution trace lists the operators of one rank as nodes, with shapes and types but no times, so
it is refused as a trace. The messages in it complete a Kineto trace of the same run that was
recorded without shapes: `called_messages`, then `join`.
"""

import re
import warnings
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from ...base.tables import EVENTS, check
from ...base.units import GIB
from .collectives import collective, dtype_bytes
from .salvage import Place, salvage_events
from .source import Source

MESSAGES = {
    "node": "node's number in the execution trace",
    "rf_id": "record function's number, <NA> when unknown",
    "op": "name of the collective",
    "name": "as written in the file",
    "nbytes": "bytes of the message, the larger of what goes in and out; <NA> when unknown",
    "dtype": "type of its elements, empty when unknown",
    "n_workers": "workers in the group, <NA> when unknown",
    "group": "process group, empty when unknown",
}
_LARGEST = 2 * GIB
_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_TENSOR = re.compile(r"Tensor\(([^()]*)\)")
_BACKEND_CALL = re.compile(r"(?:nccl|rccl|gloo|mpi|ucc):")
_GROUPS = "process_group:init"
_CALL = "record_param_comms"
_NOTHING = msgspec.Raw(b"null")


class _Node(msgspec.Struct, gc=False):
    """The operators' fields that tell of messages, as written: few nodes need them decoded."""

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
    """Whether `nodes` is a list at the top level of the JSON, whatever the file's name says."""
    found = _NODES.search(head)
    if not found or not head.lstrip().startswith(b"{"):
        return False
    before = head[: found.start()].rstrip().removesuffix(b",")
    try:
        fields = msgspec.json.decode(before + b"}", type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return b'"schema"' in before and b'"traceEvents"' not in before
    return "traceEvents" not in fields


def read(source: Source):
    """Always raises ValueError: there are no times in it. What is damaged is told as well."""
    nodes, damage = _nodes(source)
    n = len(_messages(nodes))
    raise ValueError(
        f"{source.file}: an execution trace ({len(nodes)} nodes, {n} messages) holds no times: "
        "expected a trace with ts and dur. Load the Kineto trace of the same run; where that lacks "
        "the sizes of messages, workbench.traces.add_sizes(run, path) fills them in"
        f"{''.join(f'. {why}' for why in damage)}"
    )


def called_messages(source: Source) -> pd.DataFrame:
    """The collectives of an execution trace in the order of their calls: columns as in `MESSAGES`.

    What is damaged is warned of, and the nodes around it are read. Raises ValueError when the file
    holds no node.
    """
    nodes, damage = _nodes(source)
    if not nodes:
        found = "; ".join(damage) or "an empty list"
        raise ValueError(f"{source.file}: no node of an execution trace under nodes: {found}")
    if damage := damage + source.damage:
        warnings.warn(f"{source.file}: {'. '.join(damage)}", stacklevel=2)
    table = pd.DataFrame(_messages(nodes), columns=list(MESSAGES))
    whole = dict.fromkeys(["node", "rf_id", "nbytes", "n_workers"], "Int64")
    text = dict.fromkeys(["op", "name", "dtype", "group"], "str")
    table = table.astype(whole | text)
    return table.sort_values("node", kind="stable", ignore_index=True)


def join(events: pd.DataFrame, messages: pd.DataFrame) -> pd.DataFrame:
    """EVENTS of one rank whose comm rows have the sizes and groups that the messages tell.

    EVENTS carry no number that the execution trace knows, so messages are matched by their order:
    all of them when there are as many as comm rows and no op differs, else op by op where the
    counts agree; for the others a warning says that they cannot be linked. What the trace itself
    tells stays. Raises ValueError when nothing can be linked, or for more than one rank.
    """
    check(events, {column: EVENTS[column] for column in ("rank", "kind", "op")}, "events")
    check(messages, MESSAGES, "messages")
    if events["rank"].nunique(dropna=False) > 1:
        raise ValueError(
            f"join: expected EVENTS of one rank, got ranks {events['rank'].unique().tolist()}. "
            "An execution trace is of one rank: select its rows first"
        )
    comm = events[events["kind"] == "comm"].sort_values("start_s", kind="stable")
    rows, found, unlinked = _pairs(comm["op"].astype(str), messages["op"])
    if not len(rows):
        raise ValueError(
            "join: linking is impossible: no Record function id, and the counts differ "
            f"({'; '.join(unlinked) or 'no messages'}). Record both traces over the same iterations"
        )
    if unlinked:
        warnings.warn(f"join: cannot be linked: {'; '.join(unlinked)}", stacklevel=2)
    told = messages.iloc[found].set_index(comm.index[rows])
    op = events["op"].astype("str")
    unnamed = op.loc[told.index].isin(["", "unknown"])
    op.loc[told.index[unnamed]] = told.loc[unnamed, "op"]
    return events.assign(
        op=op.astype("category") if events["op"].dtype == "category" else op,
        nbytes=events["nbytes"].astype("Int64").fillna(told["nbytes"].reindex(events.index)),
        n_workers=events["n_workers"]
        .astype("Int64")
        .fillna(told["n_workers"].reindex(events.index)),
    )


def _pairs(rows: pd.Series, called: pd.Series) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Positions of comm rows and of the messages they carry, and what has no partner."""
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
    """The nodes, and where the file is damaged."""
    data = source.whole("an execution trace", _LARGEST)
    try:
        return msgspec.json.decode(data, type=_Trace).nodes, []
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return _salvaged(data, str(error))


def _salvaged(data: bytes, error: str) -> tuple[list[_Node], list[str]]:
    """The nodes one at a time, around what is broken."""
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
        except (msgspec.MsgspecError, ValueError, RecursionError):
            damage.append(f"A node is not as expected: {str(item)[:60]!r}")
    return nodes, damage + [f"{row['n_events']} {row['what']}: {row['why']}" for row in lost]


def _messages(nodes: list[_Node]) -> list[dict]:
    calls = [node for node in nodes if node.name == _CALL]
    calls = calls or [node for node in nodes if _BACKEND_CALL.match(node.name)]
    groups = _groups(nodes)
    return [message for node in calls if (message := _message(node, groups))]


def _message(node: _Node, groups: dict) -> dict | None:
    """One call as a row; None for what moves nothing, such as a wait."""
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
    """Bytes from the counts in the attributes, else from the tensors in and out."""
    counts = [_whole(attrs.get(f"{side}_msg_nelems")) or 0 for side in ("in", "out")]
    size = dtype_bytes(str(attrs.get("dtype")))
    if max(counts) and size:
        return max(counts) * size
    given = _tensor_bytes(values[:1])
    taken = _tensor_bytes(_side(node.outputs, _NOTHING)[0][:1])
    if op == "all_gather" and taken <= given:  # only one worker's part is told
        return given * n if n and given else None
    return _whole(max(given, taken))


def _tensor_bytes(value) -> int:
    """Bytes of the tensors in a value: (tensor, storage, offset, elements, bytes each, device)."""
    if not isinstance(value, list):
        return 0
    if len(value) == 6 and isinstance(value[5], str):
        elements, each = _whole(value[3]), _whole(value[4])
        return elements * each if elements and each else 0
    return sum(map(_tensor_bytes, value))


def _side(values: msgspec.Raw, types: msgspec.Raw) -> tuple[list, list]:
    """Values and types of the inputs or outputs, in the older layout and in the newer."""
    decoded, kinds = _decoded(values), _decoded(types)
    if isinstance(decoded, dict):
        decoded, kinds = decoded.get("values"), decoded.get("types")
    return (decoded if isinstance(decoded, list) else []), (
        kinds if isinstance(kinds, list) else []
    )


def _attrs(node: _Node) -> dict:
    attrs = _decoded(node.attrs)
    attrs = [a for a in attrs if isinstance(a, dict)] if isinstance(attrs, list) else []
    return {a["name"]: a.get("value") for a in attrs if isinstance(a.get("name"), str)}


def _decoded(raw: msgspec.Raw) -> Any:
    """The value, None where it is not even text: what is passed over is not checked for that."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _groups(nodes: list[_Node]) -> dict[str, int]:
    """Size of each process group, from the node that lists them."""
    sizes = {}
    for node in nodes:
        if _GROUPS not in node.name:
            continue
        for value in _side(node.inputs, _NOTHING)[0][:1]:
            try:
                listed = msgspec.json.decode(str(value), type=list[dict[str, Any]])
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
            for group in listed:
                ranks = group.get("ranks")
                n = _whole(group.get("group_size")) or (
                    len(ranks) if isinstance(ranks, list) else 0
                )
                sizes |= {str(group.get("pg_name")): n} if n else {}
    return sizes


def _whole(value) -> int | None:
    """A positive number that fits, else None."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 < value < 2**62 else None
