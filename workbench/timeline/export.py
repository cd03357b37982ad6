"""Predictions in the form of recordings: EVENTS, and EVENTS as a Chrome trace.

The code that measures a real iteration also measures a predicted one, and Perfetto shows both.
"""

import json

import pandas as pd

from ..base.checks import require
from ..base.tables import EVENTS, check

_TYPES = {
    "rank": "Int64",
    "stream": "int64",
    "thread": "int64",
    "iteration": "int64",
    "kind": "str",
    "op": "str",
    "name": "str",
    "group": "str",
    "nbytes": "Int64",
    "n_workers": "Int64",
    "correlation": "int64",
    "start_s": "float64",
    "end_s": "float64",
}
# category of a row in PyTorch's traces; a message is a kernel whose name says so
_CATEGORIES = {
    "compute": "kernel",
    "comm": "kernel",
    "memory": "gpu_memcpy",
    "host": "cuda_runtime",
    "annotation": "user_annotation",
}


def event(kind: str, name: str, start_s: float, end_s: float, stream=-1, thread=-1) -> dict:
    """Return a row of EVENTS in iteration 0 of rank 0, without the fields of messages."""
    place = {"rank": 0, "stream": stream, "thread": thread, "iteration": 0, "correlation": -1}
    what = {"kind": kind, "op": "", "name": name, "group": ""}
    what |= {"nbytes": pd.NA, "n_workers": pd.NA}
    return place | what | {"start_s": start_s, "end_s": end_s}


def message(number: int, op: str, nbytes: int, n_workers: int, stream: int, times) -> list[dict]:
    """Return the rows of a message's launch and run; times are launch, start and end, s.

    `number` correlates the two; each stream is a process group.
    """
    launch_s, start_s, end_s = times
    launch = event("host", "launch", launch_s, launch_s, thread=0)
    comm = event("comm", op, start_s, end_s, stream=stream)
    comm |= {"op": op, "nbytes": nbytes, "n_workers": n_workers}
    comm |= {"group": str(stream - 1) if stream > 1 else ""}
    return [row | {"correlation": number} for row in (launch, comm)]


def as_events(rows: list[dict]) -> pd.DataFrame:
    """Return rows as an EVENTS table with the types of its columns."""
    return pd.DataFrame(rows, columns=list(EVENTS)).astype(_TYPES)


def chrome_trace(events: pd.DataFrame) -> str:
    """Return the EVENTS of one rank as a trace in JSON, which Perfetto and `load_run` read.

    Each row is a complete event (ph X) with the fields that PyTorch's profiler writes; times are in
    us, rounded to ns. Raises ValueError for a missing column or rows of several ranks.
    """
    check(events, EVENTS, "events")
    ranks = events["rank"].unique()
    require(len(ranks) == 1, "events", "the rows of one rank", found=f"{len(ranks)} ranks")
    rank = 0 if pd.isna(ranks[0]) else int(ranks[0])
    rows = [_complete(row, rank) for row in events.to_dict("records")]
    lanes = {(row["tid"], row["args"].get("stream", -1) >= 0) for row in rows}
    names = [_named("thread_name", _lane(*lane), rank, lane[0]) for lane in sorted(lanes)]
    world = events["n_workers"].max()
    trace = {
        "distributedInfo": {"rank": rank, "world_size": 1 if pd.isna(world) else int(world)},
        "displayTimeUnit": "ms",
        "traceEvents": [_named("process_name", f"rank {rank}", rank, 0), *names, *rows],
    }
    return json.dumps(trace)


def _complete(row: dict, rank: int) -> dict:
    on_device = row["stream"] >= 0
    args = {} if row["correlation"] < 0 else {"correlation": row["correlation"]}
    if on_device:
        args |= {"device": 0, "stream": row["stream"]}
    name, category = row["name"], _CATEGORIES[row["kind"]]
    if row["kind"] == "host" and row["correlation"] < 0:
        category = "cpu_op"
    if row["kind"] == "comm":
        name = f"nccl {row['op'] or row['name']}"
        args |= {"Collective name": row["op"]}
        if not pd.isna(row["nbytes"]):
            args |= {"dtype": "Byte", "In msg nelems": int(row["nbytes"])}
            args |= {"Out msg nelems": int(row["nbytes"])}
        if not pd.isna(row["n_workers"]):
            args |= {"Group size": int(row["n_workers"])}
        if row["group"]:
            args |= {"Process Group Name": row["group"]}
    start, end = (round(1e9 * row[time]) for time in ("start_s", "end_s"))
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    lane = {"pid": rank, "tid": row["stream"] if on_device else 1000 + max(0, row["thread"])}
    return {"ph": "X", "cat": category, "name": name} | lane | times | {"args": args}


def _lane(tid: int, on_device: bool) -> str:
    return f"stream {tid}" if on_device else f"host thread {tid - 1000}"


def _named(what: str, name: str, pid: int, tid: int) -> dict:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
