"""What the rows of a PyTorch trace mean: work on the host, messages, gradients, iterations.

Each function completes columns of a table that `kineto` has just built and still owns.
"""

import bisect
import re

import msgspec
import numpy as np
import pandas as pd

from .collectives import collective, dtype_bytes

NULL = msgspec.Raw(b"null")  # in the place of a shape that was not recorded
_GRADIENT = "torch::autograd::AccumulateGrad"
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_CALL = re.compile(r"^(?:nccl|rccl|gloo|mpi|ucc|xccl):|^c10d::|^record_param_comms$")
_GPU_CALL = re.compile(r"^(?:nccl|rccl|xccl):|^record_param_comms$")
_HOST_MESSAGE = re.compile(r"^(?:gloo|mpi):")
_WAITING = re.compile(r"wait|synchronize|barrier", re.IGNORECASE)


def has_shape(name: str) -> bool:
    """Whether the shape of such a row's input is a message's or a gradient's size."""
    return name == _GRADIENT or _CALL.search(name) is not None


def is_needed(name: str) -> bool:
    """Whether a host row of this name places or describes rows of the device."""
    return _STEP.fullmatch(name) is not None or _CALL.search(name) is not None


def place_host_work(table: pd.DataFrame, info: dict) -> list[dict]:
    """In a run without a GPU the main thread's operators compute and `gloo:` rows communicate."""
    if table["kind"].isin(["compute", "comm", "memory"]).any():
        return []
    launches_kernels = table["category"].isin(["cuda_runtime", "cuda_driver", "runtime"]).any()
    if info["devices"] or launches_kernels or info["backend"] in ("nccl", "rccl"):
        return [_remark("device rows", NO_KERNELS) | {"warn": True}]
    name = table["name"].astype(object)
    host, main = table["kind"] == "host", table["thread"] == _main_thread(table)
    message = name.map(lambda n: bool(_HOST_MESSAGE.search(n))).to_numpy(bool)
    call = name.map(lambda n: bool(_CALL.search(n) or _WAITING.search(n))).to_numpy(bool)
    work = (table["category"] == "cpu_op") | (table["category"] == "operator")
    table.loc[host & main & work & ~call, "kind"] = "compute"
    table.loc[message, "kind"] = "comm"
    _pair_with_calls(table, name)
    return [_remark("device rows", HOST_RUN)] if len(table) else []


NO_MESSAGES = (
    "the host called collectives, but the profiler recorded no communication kernel, "
    "so the time of communication is unknown, not 0"
)
NO_KERNELS = "the profiler recorded no GPU kernel, so compute and communication are unknown"
HOST_RUN = "no GPU in this run: the main thread's operators compute, gloo annotations communicate"


def _pair_with_calls(table: pd.DataFrame, name: pd.Series) -> None:
    """Give each message on the host, and the call that asked for it, a correlation of their own.

    The profiler gives none here. Calls are served in order, so the k-th call of a collective is the
    k-th message, as long as there are as many of both.
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


def _remark(what: str, why: str) -> dict:
    return {"what": what, "n_events": 0, "kept": True, "why": why}


def _main_thread(table: pd.DataFrame) -> int:
    """Thread of the iterations, else of the most operators."""
    steps = table.loc[_steps(table), "thread"]
    threads = steps if len(steps) else table.loc[table["kind"] == "host", "thread"]
    return int(threads.mode().iloc[0]) if len(threads) else -1


def _steps(table: pd.DataFrame) -> np.ndarray:
    """Mask of the host rows that span one iteration each."""
    categories = table["name"].cat.categories
    steps = [bool(_STEP.fullmatch(name)) for name in categories]
    return (np.array(steps, dtype=bool)[table["name"].cat.codes]) & (table["stream"] == -1)


def number_iterations(table: pd.DataFrame, launch: np.ndarray) -> list[dict]:
    """Set `iteration`: of the step a host row starts in; of its launch for a device row.

    `launch` is what `launches` tells.
    """
    steps = table[_steps(table)].sort_values("start_ns", kind="stable")
    if steps.empty:
        why = "no ProfilerStep in the file: all of it is one iteration, number 0"
        return [_remark("iterations", why)] if len(table) else []
    numbers = steps["name"].astype(object).map(lambda n: int(_STEP.fullmatch(n)[1])).to_numpy()
    once = _once(steps, numbers)
    steps, numbers = steps[once], numbers[once]
    remarks = []
    if len(set(numbers)) < len(numbers):
        numbers = numbers[0] + np.arange(len(numbers))
        remarks.append(
            _remark("iterations", "ProfilerStep numbers repeat: counted on from the first")
        )
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
        rows = "row has" if orphans == 1 else "rows have"
        why = f"{orphans} device {rows} no recorded launch: put where they start"
        remarks.append(_remark("iterations", why))
    return remarks


def _once(steps: pd.DataFrame, numbers: np.ndarray) -> np.ndarray:
    """Mask of the steps (in order of start) that no earlier one of the same number overlaps.

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
    """Position of the host row that launched each row (same correlation), -1 where none is."""
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
    """Set op, group, nbytes and n_workers of comm rows from their arguments, else from their call.

    `details` holds the arguments of some rows by position; so it does for the functions below.
    """
    rows = np.flatnonzero(table["kind"] == "comm")
    if rows.size == 0:
        asked = any(map(_GPU_CALL.search, table["name"].cat.categories))
        return [_remark("comm rows", NO_MESSAGES) | {"warn": True}] if asked else []
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
    """A column of n texts, empty but for the values of some rows; its categories are those used."""
    categories = sorted({*values} if len(values) == n else {"", *values})
    codes = np.zeros(n, dtype=np.int32)  # the empty text sorts first
    codes[rows] = pd.Categorical(values, categories=categories).codes
    return pd.Categorical.from_codes(codes, categories)


def _message(own, asked, name: str, asked_name: str, only_group: int | None):
    """Op, group, bytes, workers of one comm row: its arguments and name, and its host call's."""
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
    """A process group's name and members, as far as the profiler recorded them."""
    parts = (args.group, args.members)
    if parts == (None, None):  # most often, and soonest said
        return ""
    return " ".join(str(part) for part in parts if isinstance(part, str | int | list))


def _positive(value) -> int | None:
    return value if isinstance(value, int) and 0 < value < 2**63 else None


def _stated_bytes(args) -> int:
    """Bytes from the profiler's message fields: the larger side, as nccl-tests counts; else 0."""
    size = dtype_bytes(_text(args.dtype))
    if not size:
        return 0
    return max(_positive(args.elements_in) or 0, _positive(args.elements_out) or 0) * size


def _shape_bytes(args) -> int:
    """Bytes of an operator's first input from its shape and type; 0 when not recorded."""
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
    """Position of the host call behind each comm row, -1 where none is found.

    By External id when the row or its launch carries the call's; else the innermost call with a
    shape (or without) that was open on the launching thread at the launch.
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
    """External ids that tell no call: none (-1 or 0), or shared by calls one after another.

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
    """Set nbytes of the operators that accumulate a gradient, where shapes were recorded."""
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
