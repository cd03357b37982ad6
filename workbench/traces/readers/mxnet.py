"""Chrome traces around MXNet: of its profiler, of ByteScheduler, and of BytePS' worker or server.

    MXNet          lanes cpu/0, gpu/0 ...: operators compute, KVStore and Horovod ones communicate,
                   copies are memory; other lanes (its API, the user's) are host
    ByteScheduler  one lane per tensor: PUSH_PULLCOMMUNICATION is comm, PUSH_PULLQUEUE host
    BytePS worker  one process per tensor: PUSH, PULL, REDUCE and BROADCAST are comm, COPYD2H and
                   COPYH2D memory, the tensor's total (with its queueing) an annotation
    BytePS server  one process per tensor: push-9 and pull-9 are requests of worker 9, comm

All times are those of the host, so no row has a stream; `thread` numbers the lanes. None of the
four contains sizes, workers or its rank. Formats: mxnet/src/profiler/profiler.cc, ByteScheduler's
common/profiler.py and BytePS' docs/timeline.md.
"""

import re

import numpy as np

from . import chrome
from .collectives import collective
from .source import Source

_SCHEDULER = re.compile(r"([A-Z_]+)(COMMUNICATION|QUEUE)")
_REQUEST = re.compile(r"(push|pull)-\d+")
_STAGE = re.compile(
    r"\.(COORDINATE_REDUCE|REDUCE|COPYD2H|PCIE_REDUCE|COORDINATE_PUSH|PUSH|PULL|COPYH2D"
    r"|COORDINATE_BROADCAST|BROADCAST|COMPRESS|DECOMPRESS)$"
)
_DEVICE = re.compile(r"(cpu|gpu)(?:/\d+| pinned/| shared/)")
_BARE = re.compile(rb'"name"\s*:\s*"(?:[A-Z_]+(?:COMMUNICATION|QUEUE)|(?:push|pull)-\d+)"')
_SEEN = re.compile(
    rb'"args"\s*:\s*\{\s*"name"\s*:\s*"(?:cpu|gpu)/\d+"|"pid"\s*:\s*"Comm\.[^"]{1,500}"'
)
_NOT_WORK = re.compile(r"Wait|Delete|Setup|Sync|\[.*Var\]", re.IGNORECASE)
_COPY = re.compile(r"Copy(?:CPU|GPU)|CrossDeviceCopy|Memcpy", re.IGNORECASE)
_STORE = re.compile(r"KVStore.*?(Push ?Pull|Push|Pull|Reduce|Broadcast)|horovod", re.IGNORECASE)


def recognises(head: bytes) -> bool:
    """Return whether the file is one of the four."""
    if head.lstrip()[:1] not in (b"[", b"{") or b'"schemaVersion"' in head:
        return False
    # ByteScheduler and the server of BytePS write no categories; PyTorch does, in every event.
    bare = b'"cat"' not in head and _BARE.search(head) is not None
    return bare or _SEEN.search(head) is not None


def read(source: Source):
    """Return EVENTS (with `start_ns`, `end_ns`), what the file says about itself, and LEDGER rows.

    Raises ValueError if the file contains no finished interval.
    """
    spans = chrome.Intervals()
    stream, lost = chrome.events(source)
    for event in stream:
        spans.add(event)
    keep = spans.usable()
    lost = chrome.without_closing(lost)
    if not keep.size:
        raise chrome.nothing(source, spans.dropped, lost, "intervals of MXNet or BytePS")
    column = spans.columns(keep)
    has_gpu, meanings = _has_gpu(spans, column["lane"]), {}
    pairs = list(zip(column["name"].tolist(), column["lane"].tolist(), strict=True))
    for name, lane in dict.fromkeys(pairs):
        pid, tid = spans.lanes.text[lane]
        label = spans.labels.get(pid, str(pid))
        meanings[name, lane] = _meaning(spans.names.text[name], label, tid, has_gpu)
    names = np.array(spans.names.text, dtype=object)
    kinds, ops = zip(*(meanings[pair] for pair in pairs), strict=True)
    columns = {"thread": column["lane"], "kind": list(kinds), "op": list(ops)}
    columns |= {"name": names[column["name"]], "start_ns": column["start"], "end_ns": column["end"]}
    notes = [*lost, "the file has no iterations: all of it is iteration 0"]
    if "compute" not in kinds:
        notes.append("no row of compute: this file records communication only")
    made, ledger = chrome.finish(source, None, columns, spans.dropped, notes)
    return made, chrome.info(), ledger


def _has_gpu(spans: chrome.Intervals, lanes: np.ndarray) -> bool:
    """Return whether anything ran in a lane of a GPU: MXNet also names lanes of absent GPUs."""
    labels = (spans.labels.get(spans.lanes.text[lane][0], "") for lane in np.unique(lanes))
    return any(label.startswith("gpu/") for label in labels)


def _meaning(name: str, label: str, tid, has_gpu: bool) -> tuple[str, str]:
    """Return kind and op of the intervals of this name in a process."""
    if found := _SCHEDULER.fullmatch(name):
        return ("comm", _op(found[1])) if found[2] == "COMMUNICATION" else ("host", "")
    if found := _REQUEST.fullmatch(name):
        return "comm", found[1]
    if name.startswith("Comm."):
        return _stage(name, tid)
    device = _DEVICE.fullmatch(label)
    if not device or _NOT_WORK.search(name):
        return "host", ""
    if found := _STORE.search(name):
        return "comm", _op((found[1] or name).replace(" ", "_"))
    if _COPY.search(name):
        return "memory", ""
    return ("compute" if device[1] == "gpu" or not has_gpu else "host"), ""


def _stage(name: str, tid) -> tuple[str, str]:
    found = _STAGE.search(name)
    if not found or tid == "total":
        return "annotation", ""
    if found[1] in ("PUSH", "PULL", "REDUCE", "BROADCAST"):
        return "comm", _op(found[1])
    return ("memory" if found[1].startswith("COPY") else "host"), ""


def _op(asked: str) -> str:
    """Convert `ALLREDUCE` to all_reduce; operations of a parameter server keep their names."""
    return collective(asked) or re.sub(r"push_?pull", "push_pull", asked.lower().strip("_"))
