"""TensorFlow's RunMetadata as a Chrome trace (`timeline.Timeline`): a process a device.

    /gpu:0/stream:12 Compute       kernels: comm by name, memory for copies and sets, else compute
                                   (newer: /gpu:0/context#0/stream#12:Kernel Compute)
    /gpu:0/stream:all Compute, /gpu:0/memcpy Compute      the same kernels, the same copies again
    /job:.../gpu:0 Compute         the host launching a GPU's operators: host
    /job:.../cpu:0 Compute         the CPU's operators: host, but compute in a run without a GPU

The lanes that repeat others are counted in the ledger and not kept, so no kernel counts twice.
`stream` is the GPU's own number, plus 1000 for each GPU before it. RecvTensor and the operators of
collectives on the CPU are comm. Format: tensorflow/python/client/timeline.py.
"""

import re
from collections import Counter

import pandas as pd

from . import chrome
from .collectives import collective, is_communication
from .source import Source

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
_REPEATED = "the same work once more: its stream's own lane has it"
_NO_STREAM = (
    "no kernel was recorded, so when the GPU computed is unknown: record with "
    "trace_level=FULL_TRACE and CUPTI at hand"
)
_NO_GPU = "no GPU in this file: operators on the CPU compute"
_GAP = 1000  # between the streams of one GPU and those of the next


def recognises(head: bytes) -> bool:
    """Whether processes are named as TensorFlow's timeline names devices."""
    return head.lstrip()[:1] == b"{" and _SEEN.search(head) is not None


def read(source: Source):
    """EVENTS (with `start_ns`, `end_ns`), what the file says of itself, and LEDGER rows.

    Raises ValueError when the file holds no interval.
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
    dropped = spans.dropped + Counter(
        {(lane, _REPEATED): n for lane, n in Counter(rows.loc[repeated, "label"]).items()}
    )
    rows = rows[~repeated]
    tasks = {task[1] for label in spans.labels.values() if (task := _TASK.search(label))}
    rank = int(tasks.pop()) if len(tasks) == 1 else None
    notes = [*lost, chrome.note_row("the file has no iterations: all of it is iteration 0")]
    kind, op = _meaning(rows, notes)
    made = chrome.table(
        rank,
        len(rows),
        stream=rows["stream"].to_numpy(),
        thread=rows["thread"].to_numpy(),
        kind=kind,
        op=op,
        name=rows["name"].to_numpy(),
        start_ns=rows["start"].to_numpy(),
        end_ns=rows["end"].to_numpy(),
    )
    made, ledger = chrome.ledger(source, rank, made, dropped, notes)
    return made, chrome.info(rank), ledger


def _rows(spans: chrome.Intervals, nodes: dict[int, str]) -> pd.DataFrame:
    """name, node (of the graph), label (of the device), gpu, own (stream told), stream, thread."""
    keep = spans.usable()
    lanes = [_lane(spans, pid) for pid, _ in spans.lanes.text]
    lane = [spans.lane[row] for row in keep]
    return pd.DataFrame(
        {
            "name": [spans.names.text[spans.name[row]] for row in keep],
            "node": [nodes.get(row, "") for row in keep.tolist()],
            "start": [spans.start[row] for row in keep],
            "end": [spans.end[row] for row in keep],
            "label": [lanes[n][0] for n in lane],
            "gpu": [lanes[n][1] for n in lane],
            "own": [lanes[n][2] for n in lane],
            "stream": [lanes[n][3] for n in lane],
            "thread": [-1 if lanes[n][1] else n for n in lane],
        }
    )


def _lane(spans: chrome.Intervals, pid) -> tuple[str, str, bool, int]:
    """Label of a process, its GPU or "", whether it is one stream, and that stream's number."""
    label = spans.labels.get(pid, str(pid))
    found = _LANE.fullmatch(label)
    if not found:
        return label, "", False, -1
    gpu = _GPU.match(found["gpu"])
    first = _GAP * int(gpu["number"]) if gpu else 0
    own = found["stream"] is not None
    # Lanes of no stream of their own get numbers behind any that a driver gives out.
    last = int(found["stream"]) if own else _GAP - (1 if "/memcpy" in label else 2)
    which = f"{gpu['task'] or ''} {gpu['number']}" if gpu else found["gpu"] or "/"
    return label, which, own, first + last


def _repeats(rows: pd.DataFrame) -> pd.Series:
    """Mask of the rows that stand in the lane of a stream too: as often as they do there."""
    key, on_gpu = ["gpu", "start", "end"], rows["gpu"] != ""
    nth = rows.groupby([*key, "label"]).cumcount().where(~rows["own"])
    nth = nth.fillna(rows[rows["own"]].groupby(key).cumcount()).astype("int64")
    moment = pd.MultiIndex.from_frame(rows[key].assign(nth=nth))
    return on_gpu & ~rows["own"] & moment.isin(moment[rows["own"]])


def _copies(rows: pd.DataFrame) -> pd.Series:
    """Mask of the rows that stand in a GPU's lane of copies, also those named by an operator."""
    work = pd.MultiIndex.from_frame(rows[["gpu", "start", "end", "name", "node"]])
    listed = rows["label"].str.contains(_COPY_LANE) & (rows["gpu"] != "")
    return (rows["gpu"] != "") & work.isin(work[listed])


def _meaning(rows: pd.DataFrame, notes: list) -> tuple[list[str], list[str]]:
    """Kind and op of each row; `notes` gets what is to be said of it."""
    on_gpu = rows["gpu"] != ""
    has_gpu = any(_GPU.match(label) for label in rows["label"].unique())
    kinds, ops = [], []
    each = zip(rows["name"], rows["node"], on_gpu, rows["copy"], strict=True)
    for name, node, device, copy in each:
        text = f"{name} {node.rsplit('/', 1)[-1]}"
        if device and (copy or _COPY.search(name)):
            kind, op = "memory", ""
        elif is_communication(name) if device else _COLLECTIVE.match(name):
            kind, op = "comm", _op(text)
        elif device and _COLLECTIVE.search(text):
            kind, op = "comm", _op(text)
        else:
            kind, op = ("compute" if device or not has_gpu else "host"), ""
        kinds.append(kind)
        ops.append(op)
    n_gpus = rows.loc[on_gpu, "gpu"].nunique()
    if n_gpus > 1:
        notes.append(chrome.note_row(f"{n_gpus} GPUs of one process: taken together as one rank"))
    if not has_gpu:
        notes.append(chrome.note_row(_NO_GPU))
    elif not on_gpu.any():
        notes.append(chrome.note_row(_NO_STREAM, warn=True))
    return kinds, ops


def _op(text: str) -> str:
    return "send_recv" if "RecvTensor" in text else collective(text) or "unknown"
