"""Horovod timelines: which tensor negotiated, queued, was copied and all-reduced, and when.

A lane is a tensor. Rank 0 writes the file, in whole microseconds, and often does not close it:

    NEGOTIATE_ALLREDUCE    host; ticks inside show when each rank was ready
    ALLREDUCE              annotation: the whole operation, with the parts
      WAIT_FOR_DATA, QUEUE ...     host
      MEMCPY_IN_FUSION_BUFFER ...  memory
      NCCL_ALLREDUCE, MPI_ ...     comm: the message

An operation without a comm part is the message. Times are those of the host, so no row has a
stream; `thread` numbers the tensors. Format: horovod/common/timeline.cc.
"""

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ...base.units import format_seconds
from . import chrome
from .collectives import collective, dtype_bytes
from .source import Source, entry

_LIBRARY = re.compile(r"(NCCL|MPI|GLOO|CCL|MLSL|DDL|HCCL|RCCL)_")
_SEEN = re.compile(
    rb'"name"\s*:\s*"(?:NEGOTIATE_[A-Z]+|WAIT_FOR_(?:OTHER_TENSOR_)?DATA|CYCLE_START'
    rb'|MEMCPY_(?:IN|OUT)_[A-Z_]+|(?:NCCL|MPI|GLOO|CCL|DDL)_[A-Z_]+)"|"start_time_since_epoch_in_micros"'
)
_SHAPE = re.compile(r"\[\s*(?:\d{1,18}(?:\s*,\s*\d{1,18})*)?\s*\]")
_WHOLE = re.compile(
    "NEGOTIATE_[A-Z]+|ALLREDUCE|ALLGATHER|BROADCAST|ALLTOALL|REDUCESCATTER|ADASUM|JOIN|BARRIER|ERROR"
)
_UNKNOWN = (None, None, None)
_WAITING = re.compile(r"QUEUE|WAIT_")
_TICK = "a rank is ready: takes no time, counted in n_workers"
_FUSED = "a tensor of a fused message: part of the message's row, bytes summed"
_PARTS = (
    "several collectives make up one operation (hierarchical), and the bytes of each are unknown: "
    "<NA>; horovod.tensor_phases(path) has those of the operation"
)
_WINDOW = "a Horovod timeline has no iterations: all of it is iteration 0"
_TURNS = "iterations are counted: every tensor is reduced once in each, all before any again"
_COORDINATOR = "rank 0: the coordinator alone writes a timeline"


def recognises(head: bytes) -> bool:
    """Return whether the file is a Horovod timeline, or the bracket of one that never began."""
    start = head.strip()
    if start == b"[":
        return True
    return start[:1] in (b"[", b"{") and b'"cat"' not in head and _SEEN.search(head) is not None


def read(source: Source) -> tuple[pd.DataFrame, dict, list[dict]]:
    """Return EVENTS (with `start_ns`, `end_ns`), what the file says about itself, and LEDGER rows.

    Tensors whose parts of one name overlap are one message: Horovod begins the tensors of a fused
    message one by one before it, and ends them one by one after it. It lasts from the last
    beginning to the first end and has the sum of the tensors' bytes, if all are known.
    Raises ValueError if the file contains no finished interval.
    """
    found = _walk(source)
    rows, lost = _rows(found), chrome.without_closing(found.lost)
    if rows.empty:
        raise _nothing(source, found)
    turns = _iterations(rows)
    rows, n_joined = _joined(rows)
    size, rank = max(found.ranks, default=-1) + 1 or None, 0
    columns = {c: rows[c].array for c in ("kind", "op", "name", "nbytes", "n_workers")}
    columns |= {"thread": rows["lane"].to_numpy()}
    columns |= {"iteration": 0 if turns is None else turns[rows.index].to_numpy()}
    columns |= {f"{c}_ns": rows[c].to_numpy() + found.base_ns for c in ("start", "end")}
    dropped = found.spans.dropped + Counter({("tensor rows", _FUSED): n_joined})
    notes = [*lost, _WINDOW if turns is None else _TURNS]
    notes += _notes(rows, found, n_joined)
    made, ledger = chrome.finish(source, rank, columns, dropped, notes)
    libraries = Counter(m[1].lower() for n in rows["name"] if (m := _LIBRARY.match(n)))
    backend = libraries.most_common(1)[0][0] if libraries else None
    said = {"one_file": True, "world_size": size, "backend": backend, "base_ns": found.base_ns}
    return made, chrome.info(rank, **said), ledger


def tensor_phases(path) -> pd.DataFrame:
    """Return what each operation spent its time on, one row per operation, in s.

    tensor, op, nbytes; n_workers ready, last_rank the last of them, late_s after the first;
    negotiate_s; queue_s (QUEUE and WAIT_ parts), memcpy_s, collective_s (NCCL_ALLREDUCE and the
    like), all_reduce_s: the whole operation, whatever `op` is. Each tensor of a fused message has
    the times of the whole.
    """
    source = Source(path)
    found = _walk(source)
    rows = _rows(found)
    if rows.empty:
        raise _nothing(source, found)
    seconds = (rows["end"] - rows["start"]) / 1e9
    part = {
        "queue_s": rows["name"].str.contains(_WAITING),
        "memcpy_s": rows["kind"] == "memory",
        "collective_s": rows["name"].str.match(_LIBRARY),
    }
    whole = rows[(rows["parent"] < 0) & ~rows["name"].str.startswith("NEGOTIATE_")]
    labels = [found.spans.labels.get(pid, str(pid)) for pid, _ in found.spans.lanes]
    asked = pd.Series(found.asked, dtype="int64").reindex(whole.index)
    ready = pd.DataFrame(
        [found.ready.get(row, _UNKNOWN) for row in asked],
        columns=["n_workers", "last_rank", "late_s"],
        index=whole.index,
    )
    sums = {
        key: seconds[mask].groupby(rows.loc[mask, "parent"]).sum().reindex(whole.index).fillna(0.0)
        for key, mask in part.items()
    }
    return pd.DataFrame(
        {
            "tensor": [labels[lane] for lane in whole["lane"]],
            "op": whole["name"].map(collective),
            "nbytes": whole["nbytes"],
            "n_workers": ready["n_workers"].astype("Int64"),
            "last_rank": ready["last_rank"].astype("Int64"),
            "late_s": ready["late_s"].astype(float),
            "negotiate_s": seconds.reindex(asked).to_numpy(),
            **sums,
            "all_reduce_s": seconds[whole.index],
        }
    ).reset_index(drop=True)


@dataclass
class _Found:
    """A timeline: its intervals, and what the events between them contain.

    ready : (ranks ready, last of them, s from the first to the last) by negotiation
    asked : the negotiation before an operation, by operation
    """

    spans: chrome.Intervals = field(default_factory=chrome.Intervals)
    lost: list[dict] = field(default_factory=list)
    nbytes: dict[int, int] = field(default_factory=dict)
    ready: dict[int, tuple] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)
    base_ns: int = 0


def _walk(source: Source) -> _Found:
    found = _Found()
    spans, ticks, negotiated = found.spans, defaultdict(dict), {}
    stream, found.lost = chrome.events(source)
    for event in stream:
        base = event.arg("start_time_since_epoch_in_micros")
        if isinstance(base, int) and 0 < base < 2**51:
            found.base_ns = base * 1000
        if _is_tick(event):
            found.ranks.add(int(event.name))
            ticks[chrome.key(event.pid)].setdefault(int(event.name), chrome.nanoseconds(event.ts))
            spans.leave_out(event, _TICK)
            continue
        row = spans.add(event)
        if row < 0 or not _is_whole(spans, row):
            continue
        lane, negotiation = chrome.key(event.pid), _is_negotiation(spans, row)
        if event.ph == "E" and negotiation:
            found.ready[row] = _readiness(ticks.pop(lane, {}))
            negotiated[lane] = row
        elif event.ph == "E":
            found.nbytes[row] = _bytes(event)
        elif lane in negotiated and not negotiation:
            found.asked[row] = negotiated.pop(lane)
    return found


def _is_tick(event: chrome.Event) -> bool:
    if event.ph != "X" or event.dur or chrome.nanoseconds(event.ts) is None:
        return False
    return re.fullmatch(r"\d{1,7}", str(event.name)) is not None


def _is_negotiation(spans: chrome.Intervals, row: int) -> bool:
    return spans.names.text[spans.name[row]].startswith("NEGOTIATE_")


def _is_whole(spans: chrome.Intervals, row: int) -> bool:
    """Return whether it is a negotiation or an operation, not a part, even if an end was lost."""
    return spans.parent[row] < 0 or _WHOLE.fullmatch(spans.names.text[spans.name[row]]) is not None


def _readiness(ticks: dict[int, int]) -> tuple:
    """Return how many ranks were ready, the last of them, and s from the first to it."""
    if not ticks:
        return _UNKNOWN
    last = max(ticks, key=ticks.get)
    return len(ticks), last, (ticks[last] - min(ticks.values())) / 1e9


def _bytes(event: chrome.Event) -> int | None:
    shape, dtype = event.arg("shape"), event.arg("dtype")
    if not (isinstance(shape, str) and isinstance(dtype, str) and _SHAPE.fullmatch(shape[:1000])):
        return None
    size = dtype_bytes(dtype)
    nbytes = math.prod(int(n) for n in re.findall(r"\d+", shape)) * (size or 0)
    return nbytes if size and nbytes < 2**53 else None


def _rows(found: _Found) -> pd.DataFrame:
    """Return the finished intervals by number: name, lane, start, end, parent, kind, op, bytes."""
    spans, keep = found.spans, found.spans.usable()
    rows = pd.DataFrame(spans.columns(keep), index=keep)
    names = pd.Series(list(spans.names), dtype=object)
    whole = rows["name"].map(names.str.fullmatch(_WHOLE)).to_numpy(bool)
    rows["parent"] = rows["parent"].where(~whole & rows["parent"].isin(keep), -1)
    rows["op"] = rows["name"].map(names.map(collective)).to_numpy(object)
    kind = rows["name"].map(names.map(_kind)).to_numpy(object)
    rows["name"] = rows["name"].map(names).to_numpy(object)
    messages = rows.loc[kind == "comm", "parent"].value_counts()
    outer = (kind == "annotation") & (rows["op"] != "")
    kind[outer & ~rows.index.isin(messages.index)] = "comm"
    rows["kind"], rows.loc[kind != "comm", "op"] = kind, ""
    owner = rows["parent"].where(rows["parent"] >= 0, rows.index.to_series())
    n_ready = {row: found.ready[asked][0] for row, asked in found.asked.items()}
    alone = (kind == "comm") & (owner.map(messages).fillna(1) == 1)
    rows["nbytes"] = owner.map(found.nbytes).astype("Int64").where(alone | (kind == "annotation"))
    rows["n_workers"] = owner.map(n_ready).astype("Int64").where(alone | (kind == "annotation"))
    return rows


def _kind(name: str) -> str:
    if name.startswith("MEMCPY_"):
        return "memory"
    if _LIBRARY.match(name) and collective(name):
        return "comm"
    return "annotation" if _WHOLE.fullmatch(name) and "NEGOTIATE_" not in name else "host"


def _joined(rows: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return rows with the tensors of a fused message as one, and how many rows that saved."""
    work = rows[rows["kind"].isin(["comm", "memory"])]
    order = work.sort_values(["name", "start", "opened"], kind="stable")
    columns = "name start end lane opened closed".split()
    group = _overlapping(*(order[c].to_numpy() for c in columns))
    if group.size == 0 or group[-1] + 1 == len(group):
        return rows, 0
    first = order.index[np.r_[True, np.diff(group) > 0]]
    by_message = order.groupby(group, sort=False)
    one = order.loc[first].assign(
        start=by_message["start"].max().to_numpy(),
        end=by_message["end"].min().to_numpy(),
        nbytes=by_message["nbytes"].agg(lambda n: n.sum(skipna=False)).astype("Int64").array,
        n_workers=by_message["n_workers"].max().array,
    )
    rows = pd.concat([rows.drop(order.index), one]).sort_index()
    return rows, len(order) - len(one)


def _overlapping(name, start, end, lane, opened, closed) -> np.ndarray:
    """Return the number of the message of each row; rows are sorted by name and start.

    Parts that last up to a microsecond only touch: then the order in the file decides.
    """
    group, number, until, last, lanes = np.empty(len(start), dtype=np.int64), -1, 0, 0, set()
    for i in range(len(start)):
        same = i > 0 and name[i] == name[i - 1] and lane[i] not in lanes
        alike = same and start[i] == start[i - 1] and end[i] == end[i - 1]
        within = same and (start[i] < until or (start[i] == until and opened[i] < last))
        if not (alike or within):
            number, lanes, until, last = number + 1, set(), end[i], closed[i]
        until, last = min(until, end[i]), min(last, closed[i])
        lanes.add(lane[i])
        group[i] = number
    return group


def _iterations(rows: pd.DataFrame) -> pd.Series | None:
    """Return the iteration of each row, if all tensors are reduced equally often, in turns."""
    asks = rows["name"].str.startswith("NEGOTIATE_")
    whole = rows[(rows["parent"] < 0) & ~asks]
    if (n := whole.groupby("lane").size()).nunique() != 1 or n.iloc[0] < 2:
        return None
    turn = whole.groupby("lane").cumcount()
    spans = whole.groupby(turn)["start"].agg(["min", "max"])
    if (spans["max"].to_numpy()[:-1] >= spans["min"].to_numpy()[1:]).any():
        return None
    asked = rows[asks].groupby("lane").cumcount()
    turn = pd.concat([turn, asked[asked < n.iloc[0]]])
    return turn.reindex(rows.index).fillna(rows["parent"].map(turn)).fillna(-1).astype("int64")


def _notes(rows: pd.DataFrame, found: _Found, n_joined: int) -> list:
    notes = ["no row of compute: Horovod records communication only", _COORDINATOR]
    if ready := [each for each in found.ready.values() if each[0] and each[0] > 1]:
        rank, times = Counter(last for _, last, _ in ready).most_common(1)[0]
        late = format_seconds(np.median([late for _, last, late in ready if last == rank]))
        why = f"rank {rank} was the last to be ready in {times} of {len(ready)} negotiations, "
        why += f"{late} (median) after the first rank"
        notes.append(entry("stragglers", 0, why))
    if n_joined:
        n = int(rows["kind"].isin(["comm", "memory"]).sum())
        why = f"{n + n_joined} rows of tensors are {n} rows of messages: {n_joined} were fused"
        notes.append(entry("fused messages", 0, why))
    operations = rows.loc[(rows["kind"] == "comm") & (rows["parent"] >= 0), "parent"]
    if operations.duplicated().any():
        notes.append(_PARTS)
    return notes


def _nothing(source: Source, found: _Found) -> ValueError:
    n = sum(found.spans.dropped.values())
    damaged = any(row["n_events"] for row in found.lost)
    if not found.spans.name and not damaged:
        why = f"a Horovod timeline with {n} events and no interval: the job ended before the "
        why += "first cycle. Let it run for some iterations and end by itself"
        return ValueError(f"{source.file}: {why}")
    return chrome.nothing(source, found.spans.dropped, found.lost, "a Horovod timeline's intervals")
