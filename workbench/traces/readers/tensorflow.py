"""TensorFlow's RunMetadata as a Chrome trace (`timeline.Timeline`): one process per device.

    /gpu:0/stream:12 Compute       kernels: comm by name, memory for copies and sets, else compute
                                   (newer: /gpu:0/context#0/stream#12:Kernel Compute)
    /gpu:0/stream:all Compute, /gpu:0/memcpy Compute      the same kernels, the same copies again
    /job:.../gpu:0 Compute         the host launching a GPU's operators: host
    /job:.../cpu:0 Compute         the CPU's operators: host, but compute in a run without a GPU

Lanes that repeat others are counted in the ledger and not kept, so no kernel counts twice.
`stream` is the number in the GPU, plus 1000 for each GPU before it. RecvTensor and operators of
collectives on the CPU are comm. Format: tensorflow/python/client/timeline.py.
"""

import re
from collections import Counter

import pandas as pd

from . import chrome
from .collectives import collective, is_communication
from .source import Source, entry

_SEEN = re.compile(
    rb'"args"\s*:\s*\{\s*"name"\s*:\s*"/[^"]{0,300}(?:job|device|[cg]pu|host):[^"]{0,300} '
    rb'(?:Compute|Tensors)"',
    re.IGNORECASE,
)
_LANE = re.compile(r"(?P<gpu>.*)/(?:stream[:#](?:(?P<stream>\d{1,9})|all)|memcpy)\b.*")
_GPU = re.compile(r"(?P<task>/job:.*/task:\d+)?.*\bgpu:(?P<number>\d{1,6})", re.IGNORECASE)
_TASK = re.compile(r"/job:worker/(?:replica:\d+/)?task:(\d{1,9})/")
_COPY_LANE = re.compile(r"/memcpy\b|:Memcpy|:Memset")
_COPY = re.compile(r"MEMCPY|MEMSET", re.IGNORECASE)
_COLLECTIVE = re.compile(r"Nccl|Collective(?:Reduce|Gather|Bcast)|Horovod|RecvTensor|AllReduce")
_REPEATED = "a repetition of rows in the lane of their stream"
_NO_STREAM = (
    "no kernel was recorded, so when the GPU computed is unknown: record with "
    "trace_level=FULL_TRACE and CUPTI installed"
)
_NO_GPU = "no GPU in this file: operators on the CPU compute"
_GAP = 1000  # between the streams of one GPU and those of the next


def recognises(head: bytes) -> bool:
    """Return whether processes have names of devices as in TensorFlow's timeline."""
    return head.lstrip()[:1] == b"{" and _SEEN.search(head) is not None


def read(source: Source):
    """Return EVENTS (with `start_ns`, `end_ns`), what the file says about itself, and LEDGER rows.

    Raises ValueError if the file contains no interval.
    """
    spans, nodes = chrome.Intervals(), {}
    stream, lost = chrome.events(source)
    for event in stream:
        row = spans.add(event)
        if row >= 0 and event.arg("name") is not None:
            nodes[row] = str(event.arg("name"))
    rows = _rows(spans, nodes)
    if rows.empty:
        raise chrome.nothing(source, spans.dropped, lost, "operators of TensorFlow (ph X)")
    repeated = _repeats(rows)
    rows["copy"] = _copies(rows)
    dropped = spans.dropped + Counter((lane, _REPEATED) for lane in rows.loc[repeated, "label"])
    rows = rows[~repeated]
    tasks = {task[1] for label in spans.labels.values() if (task := _TASK.search(label))}
    rank = int(tasks.pop()) if len(tasks) == 1 else None
    notes = [*lost, "the file has no iterations: all of it is iteration 0"]
    kind, op = _meaning(rows, notes)
    columns = {c: rows[c].to_numpy() for c in ("stream", "thread", "name", "start_ns", "end_ns")}
    columns |= {"kind": kind, "op": op}
    made, ledger = chrome.finish(source, rank, columns, dropped, notes)
    return made, chrome.info(rank), ledger


def _rows(spans: chrome.Intervals, nodes: dict[int, str]) -> pd.DataFrame:
    """Return name, node (of the graph), label (of the device), gpu, own (stream known) and more."""
    keep = spans.usable()
    column = spans.columns(keep)
    lanes = [_lane(spans, pid) for pid, _ in spans.lanes.text]
    lanes = pd.DataFrame(lanes, columns=["label", "gpu", "own", "stream"])
    return (
        lanes.iloc[column["lane"]]
        .reset_index(drop=True)
        .assign(
            name=[spans.names.text[code] for code in column["name"]],
            node=[nodes.get(row, "") for row in keep.tolist()],
            start_ns=column["start"],
            end_ns=column["end"],
            thread=lambda rows: column["lane"] * (rows["gpu"] == "") - (rows["gpu"] != ""),
        )
    )


def _lane(spans: chrome.Intervals, pid) -> tuple[str, str, bool, int]:
    """Return label of a process, its GPU or "", whether it is one stream, and the stream."""
    label = spans.labels.get(pid, str(pid))
    found = _LANE.fullmatch(label)
    if not found:
        return label, "", False, -1
    gpu = _GPU.match(found["gpu"])
    first = _GAP * int(gpu["number"]) if gpu else 0
    own = found["stream"] is not None
    # Lanes without a stream get numbers above any that a driver assigns.
    last = int(found["stream"]) if own else _GAP - (1 if "/memcpy" in label else 2)
    which = f"{gpu['task'] or ''} {gpu['number']}" if gpu else found["gpu"] or "/"
    return label, which, own, first + last


def _repeats(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of the rows that are in the lane of a stream too, as often as there."""
    key, on_gpu = ["gpu", "start_ns", "end_ns"], rows["gpu"] != ""
    nth = rows.groupby([*key, "label"]).cumcount().where(~rows["own"])
    nth = nth.fillna(rows[rows["own"]].groupby(key).cumcount()).astype("int64")
    moment = pd.MultiIndex.from_frame(rows[key].assign(nth=nth))
    return on_gpu & ~rows["own"] & moment.isin(moment[rows["own"]])


def _copies(rows: pd.DataFrame) -> pd.Series:
    """Return a mask of the rows that are in a GPU's lane of copies too."""
    work = pd.MultiIndex.from_frame(rows[["gpu", "start_ns", "end_ns", "name", "node"]])
    listed = rows["label"].str.contains(_COPY_LANE) & (rows["gpu"] != "")
    return (rows["gpu"] != "") & work.isin(work[listed])


def _meaning(rows: pd.DataFrame, notes: list) -> tuple[list[str], list[str]]:
    """Return kind and op of each row, and append to `notes`."""
    on_gpu = rows["gpu"] != ""
    has_gpu = any(_GPU.match(label) for label in rows["label"].unique())
    kinds, ops = [], []
    each = zip(rows["name"], rows["node"], on_gpu, rows["copy"], strict=True)
    for name, node, device, copy in each:
        text = f"{name} {node.rsplit('/', 1)[-1]}"
        if device and (copy or _COPY.search(name)):
            kind, op = "memory", ""
        elif (
            is_communication(name) or _COLLECTIVE.search(text)
            if device
            else _COLLECTIVE.match(name)
        ):
            kind, op = "comm", _op(text)
        else:
            kind, op = ("compute" if device or not has_gpu else "host"), ""
        kinds.append(kind)
        ops.append(op)
    n_gpus = rows.loc[on_gpu, "gpu"].nunique()
    if n_gpus > 1:
        notes.append(f"{n_gpus} GPUs of one process: taken together as one rank")
    if not has_gpu:
        notes.append(_NO_GPU)
    elif not on_gpu.any():
        notes.append(entry("note", 0, _NO_STREAM, warn=True))
    return kinds, ops


def _op(text: str) -> str:
    return "send_recv" if "RecvTensor" in text else collective(text) or "unknown"
