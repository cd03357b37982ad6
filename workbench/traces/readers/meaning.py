"""What the rows of a PyTorch trace mean: work on the host, messages, gradients, iterations.

Functions complete columns of a table in place, which `kineto` has just built.
"""

import bisect
import re

import msgspec
import numpy as np
import pandas as pd

from .collectives import collective, dtype_bytes
from .source import entry

NULL = msgspec.Raw(b"null")  # a shape that was not recorded
_GRADIENT = "torch::autograd::AccumulateGrad"
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_CALL = re.compile(r"^(?:nccl|rccl|gloo|mpi|ucc|xccl):|^c10d::|^record_param_comms$")
_GPU_CALL = re.compile(r"^(?:nccl|rccl|xccl):|^record_param_comms$")
_HOST_MESSAGE = re.compile(r"^(?:gloo|mpi):")
_WAITING = re.compile(r"wait|synchronize|barrier", re.IGNORECASE)


def has_shape(name: str) -> bool:
    """Return whether the input's shape in a row of this name is a message or a gradient."""
    return name == _GRADIENT or _CALL.search(name) is not None


def is_needed(name: str) -> bool:
    """Return whether a host row of this name places or describes device rows."""
    return _STEP.fullmatch(name) is not None or _CALL.search(name) is not None


def place_host_work(table: pd.DataFrame, info: dict) -> list[dict]:
    """Without a GPU, operators of the main thread compute and `gloo:` rows communicate."""
    if table["kind"].isin(["compute", "comm", "memory"]).any():
        return []
    launches_kernels = table["category"].isin(["cuda_runtime", "cuda_driver", "runtime"]).any()
    if info["devices"] or launches_kernels or info["backend"] in ("nccl", "rccl"):
        return [entry("device rows", 0, _NO_KERNELS, warn=True)]
    name = table["name"].astype(object)
    host, main = table["kind"] == "host", table["thread"] == _main_thread(table)
    message = name.map(lambda n: bool(_HOST_MESSAGE.search(n))).to_numpy(bool)
    call = name.map(lambda n: bool(_CALL.search(n) or _WAITING.search(n))).to_numpy(bool)
    work = (table["category"] == "cpu_op") | (table["category"] == "operator")
    table.loc[host & main & work & ~call, "kind"] = "compute"
    table.loc[message, "kind"] = "comm"
    _pair_with_calls(table, name)
    return [entry("device rows", 0, _HOST_RUN)] if len(table) else []


_NO_MESSAGES = (
    "the host called collectives, but the profiler recorded no communication kernel, "
    "so the time of communication is unknown, not 0"
)
_NO_KERNELS = "the profiler recorded no GPU kernel, so compute and communication are unknown"
_HOST_RUN = "no GPU in this run: the main thread's operators compute, gloo annotations communicate"


def _pair_with_calls(table: pd.DataFrame, name: pd.Series) -> None:
    """Give each message on the host and its call a common correlation; the profiler has none.

    Calls are served in order: the k-th call of a collective is its k-th message, if both are as
    many.
    """
    ops = name.map(collective)
    asks = name.str.startswith("c10d::") & (table["kind"] == "host")
    order = table.sort_values("start_ns", kind="stable").index
    number = 0
    for op in ops[table["kind"] == "comm"].unique():
        calls, messages = (
            order[(mask & (ops == op))[order]] for mask in (asks, table["kind"] == "comm")
        )
        if len(calls) == len(messages):
            ids = number + np.arange(len(calls))
            table.loc[calls, "correlation"] = table.loc[messages, "correlation"] = ids
            number += len(calls)


def _main_thread(table: pd.DataFrame) -> int:
    """Return the thread of the iterations, or else of the most operators."""
    steps = table.loc[_steps(table), "thread"]
    threads = steps if len(steps) else table.loc[table["kind"] == "host", "thread"]
    return int(threads.mode().iloc[0]) if len(threads) else -1


def _steps(table: pd.DataFrame) -> np.ndarray:
    """Return a mask of the host rows that span one iteration each."""
    categories = table["name"].cat.categories
    steps = [bool(_STEP.fullmatch(name)) for name in categories]
    return (np.array(steps, dtype=bool)[table["name"].cat.codes]) & (table["stream"] == -1)


def number_iterations(table: pd.DataFrame, launch: np.ndarray) -> list[dict]:
    """Set `iteration`: the step in which a host row starts or a device row was launched.

    launch : of `launches`
    """
    steps = table[_steps(table)].sort_values("start_ns", kind="stable")
    if steps.empty:
        why = "no ProfilerStep in the file: all of it is one iteration, number 0"
        return [entry("iterations", 0, why)] if len(table) else []
    numbers = steps["name"].astype(object).map(lambda n: int(_STEP.fullmatch(n)[1])).to_numpy()
    once = _once(steps, numbers)
    steps, numbers = steps[once], numbers[once]
    remarks = []
    if len(set(numbers)) < len(numbers):
        numbers = numbers[0] + np.arange(len(numbers))
        why = "ProfilerStep numbers repeat: counted on from the first"
        remarks.append(entry("iterations", 0, why))
    starts, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    time = table["start_ns"].to_numpy().copy()
    device = (table["stream"] != -1).to_numpy()
    launched = device & (launch >= 0)
    time[launched] = time[launch[launched]]
    step = np.searchsorted(starts, time, side="right") - 1
    inside = (step >= 0) & (time < ends[step])
    table["iteration"] = np.where(inside, numbers[step], -1)
    orphans = int((device & (launch < 0) & table["kind"].ne("annotation")).sum())
    if orphans:
        remarks.append(entry("iterations", 0, no_launch(orphans)))
    return remarks


def no_launch(n: int) -> str:
    """Return a remark about n device rows without a recorded launch."""
    rows = "row has" if n == 1 else "rows have"
    return f"{n} device {rows} no recorded launch: put where they start"


def _once(steps: pd.DataFrame, numbers: np.ndarray) -> np.ndarray:
    """Return a mask of the steps, by start, that no earlier one of the same number overlaps.

    The profiler repeats a step on each thread that it follows.
    """
    until, once = {}, []
    spans = zip(numbers.tolist(), steps["start_ns"], steps["end_ns"], strict=True)
    for number, start, end in spans:
        once.append(number not in until or start >= until[number])
        if once[-1]:
            until[number] = end
    return np.array(once)


def launches(table: pd.DataFrame) -> np.ndarray:
    """Return the position of the host row that launched each row (same correlation), or -1."""
    correlation = table["correlation"].to_numpy()
    host = np.flatnonzero((table["stream"].to_numpy() == -1) & (correlation != -1))
    order = host[np.argsort(correlation[host], kind="stable")]
    ids = correlation[order]
    if ids.size == 0:
        return np.full(len(table), -1)
    found = np.minimum(np.searchsorted(ids, correlation), ids.size - 1)
    hit = (ids[found] == correlation) & (correlation != -1)
    return np.where(hit, order[found], -1)


def describe_messages(
    table: pd.DataFrame, details: dict, info: dict, launch: np.ndarray
) -> list[dict]:
    """Set op, group, nbytes and n_workers of comm rows from their arguments or their call.

    details : arguments of some rows by position, here and below
    """
    rows = np.flatnonzero(table["kind"] == "comm")
    if rows.size == 0:
        asked = any(map(_GPU_CALL.search, table["name"].cat.categories))
        return [entry("comm rows", 0, _NO_MESSAGES, warn=True)] if asked else []
    names, code = table["name"].cat.categories.tolist(), table["name"].cat.codes.to_numpy()
    sizes = {str(g.get("pg_name")): g.get("pg_size") for g in info["groups"]}
    only = next(iter(sizes.values())) if len(sizes) == 1 else None
    described = []
    for row, call in zip(rows.tolist(), _calls(table, details, rows, launch), strict=True):
        own, asked = details[row], details[call if call >= 0 else row]
        asked_name = names[code[call]] if call >= 0 else ""
        described.append(_message(own, asked, names[code[row]], asked_name, only))
    ops, groups, nbytes, workers = zip(*described, strict=True)
    table["op"], table["group"] = (texts(len(table), rows, each) for each in (ops, groups))
    table.loc[rows, "nbytes"] = pd.array(nbytes, dtype="Int64")
    table.loc[rows, "n_workers"] = pd.array(workers, dtype="Int64")
    return []


def texts(n: int, rows=slice(0), values=()) -> pd.Categorical:
    """Return a column of n texts, empty except in some rows; its categories are those used."""
    categories = sorted({*values} if len(values) == n else {"", *values})
    codes = np.zeros(n, dtype=np.int32)  # the empty text sorts first
    codes[rows] = pd.Categorical(values, categories=categories).codes
    return pd.Categorical.from_codes(codes, categories)


def _message(own, asked, name: str, asked_name: str, only_group: int | None):
    """Return op, group, bytes and workers of one comm row, from it and its host call."""
    op = collective(_text(own.collective)) or collective(name)
    if not op and asked_name:
        op = collective(_text(asked.collective)) or collective(asked_name)
    n = _positive(own.group_size) or _positive(asked.group_size) or _positive(only_group)
    nbytes = _stated_bytes(own) or _stated_bytes(asked)
    if not nbytes:
        nbytes = _shape_bytes(own) or _shape_bytes(asked)
        if op in ("all_gather", "gather"):  # the shape is what one worker gives
            nbytes = nbytes * (n or 0)
    return op or "unknown", _group(own) or _group(asked), _positive(nbytes), n


def _text(value) -> str:
    return value if isinstance(value, str) else ""


def _group(args) -> str:
    """Return the recorded name and members of a process group."""
    parts = (args.group, args.members)
    return " ".join(str(part) for part in parts if isinstance(part, str | int | list))


def _positive(value) -> int | None:
    return value if isinstance(value, int) and 0 < value < 2**63 else None


def _stated_bytes(args) -> int:
    """Return bytes from the message fields: the larger side, as nccl-tests counts; or 0."""
    size = dtype_bytes(_text(args.dtype))
    if not size:
        return 0
    return max(_positive(args.elements_in) or 0, _positive(args.elements_out) or 0) * size


def _shape_bytes(args) -> int:
    """Return bytes of the first input from its shape and type; 0 if not recorded."""
    if args.dims is NULL:
        return 0
    shape, dtype = _first(args.dims), _first(args.types)
    size = dtype_bytes(dtype) if isinstance(dtype, str) else None
    if size is None or not isinstance(shape, list):
        return 0
    while shape and isinstance(shape[0], list):  # a list of tensors
        shape = shape[0]
    return int(np.prod(shape, dtype=object)) * size if all(map(_positive, shape)) else 0


def _first(raw: msgspec.Raw):
    values = msgspec.json.decode(raw)
    return values[0] if isinstance(values, list) and values else None


def _calls(table: pd.DataFrame, details: dict, rows: np.ndarray, launch: np.ndarray) -> list[int]:
    """Return the position of the host call of each comm row, -1 if none is found.

    By the External id of the row or its launch; otherwise the innermost call, preferably with a
    shape, that was open on the launching thread at the launch.
    """
    host = (table["stream"] == -1) & (table["kind"] != "comm")
    is_call = np.array([bool(_CALL.search(n)) for n in table["name"].cat.categories], dtype=bool)
    calls = np.flatnonzero(is_call[table["name"].cat.codes] & host)
    start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    external, thread = table["external"].to_numpy(), table["thread"].to_numpy()
    by_id = dict(zip(external[calls[::-1]].tolist(), calls[::-1].tolist(), strict=True))
    calls = calls[np.argsort(start[calls], kind="stable")]
    for ambiguous in _shared_ids(external[calls], start[calls], end[calls]):
        by_id.pop(ambiguous, None)
    by_thread = {t: calls[thread[calls] == t].tolist() for t in np.unique(thread[calls]).tolist()}
    opened = {t: start[same].tolist() for t, same in by_thread.items()}
    found, by = [], launch[rows]
    columns = external[rows], np.where(by < 0, -1, external[by]), thread[by], start[by], by >= 0
    for *ids, lane, time, launched in zip(*(each.tolist() for each in columns), strict=True):
        near = [by_id[each] for each in ids if each in by_id]
        if not near and launched and lane in by_thread:
            until = bisect.bisect_right(opened[lane], time)
            near = [c for c in by_thread[lane][max(0, until - 8) : until] if end[c] >= time]
        best = max(near, key=lambda c: (_shape_bytes(details[c]) > 0, start[c]), default=-1)
        found.append(best)
    return found


def _shared_ids(ids: np.ndarray, start: np.ndarray, end: np.ndarray) -> set[int]:
    """Return External ids that identify no call: -1, 0, or shared by successive calls.

    Calls are in order of their start. Those open at one time are one call and what it called.
    """
    until, shared = {}, {-1, 0}
    values, counts = np.unique(ids, return_counts=True)
    several = np.isin(ids, values[(counts > 1) & (values != -1) & (values != 0)])
    spans = (column[several].tolist() for column in (ids, start, end))
    for number, begin, finish in zip(*spans, strict=True):
        first, last = until.get(number, (begin, finish))
        if begin >= last and begin > first:
            shared.add(number)
        until[number] = first, max(last, finish)
    return shared


def size_gradients(table: pd.DataFrame, details: dict) -> None:
    """Set nbytes of operators that accumulate a gradient, if shapes were recorded."""
    categories = table["name"].cat.categories
    if _GRADIENT not in categories:
        return
    rows = np.flatnonzero(table["name"].cat.codes == categories.get_loc(_GRADIENT))
    sizes = [_gradient_bytes(details[row]) for row in rows]
    table.loc[rows, "nbytes"] = pd.array(sizes, dtype="Int64")


def _gradient_bytes(args) -> int | None:
    shape, dtype = _first(args.dims), _first(args.types)
    if shape == [] and isinstance(dtype, str):
        return dtype_bytes(dtype)  # a scalar
    return _positive(_shape_bytes(args))
