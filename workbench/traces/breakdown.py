"""From EVENTS to what each iteration did: ITERATIONS, COLLECTIVES, GRADIENTS, MEASUREMENTS."""

import warnings

import numpy as np
import pandas as pd

from ..base import intervals
from ..base.checks import refuse, require
from ..base.tables import COLLECTIVES, EVENTS, GRADIENTS, ITERATIONS, MEASUREMENTS, check

WORK_KINDS = ["compute", "comm", "memory"]
_NEEDED = {column: meaning for column, meaning in EVENTS.items() if column != "group"}
_CALLED = r"^(?:nccl|rccl|xccl):|^record_param_comms$"
_LATE_S = 1e-3  # the clocks of ranks may differ by so much before a pairing is doubted
_GRADIENT = "torch::autograd::AccumulateGrad"


def iterations(events: pd.DataFrame) -> pd.DataFrame:
    """Return ITERATIONS: how each rank of a run (or of its EVENTS) spent each iteration.

    An iteration lasts from the start of its first kernel to the start of the next iteration's
    first kernel, the last one to the end of the last kernel. The iterations of a rank therefore
    add up to the span of its kernels; copies before or after that span do not count.

    Communication is exposed where no compute runs, copies and sets (memory) where neither compute
    nor communication runs, and the rest is idle. Waiting for other ranks inside a message counts
    as communication; `stragglers` separates it. If the host called collectives but no
    communication was recorded, communication, exposed communication and idle time are <NA>, with
    a warning. Raises ValueError if there is no device row to measure.
    """
    events = _events(events)
    rows = [
        {"rank": rank, "iteration": number, **_spend(mine, low, high)}
        for rank, mine in work_of(events).groupby("rank", dropna=False)
        for number, low, high in windows(mine[mine["iteration"] >= 0])
    ]
    table = pd.DataFrame(rows, columns=list(ITERATIONS)).astype({"rank": "Int64"})
    return _without_unknown(table, events)


def _without_unknown(table: pd.DataFrame, events: pd.DataFrame) -> pd.DataFrame:
    """Return <NA> instead of 0 for the communication of ranks whose messages are not recorded."""
    called = events["name"].astype("str").str.contains(_CALLED)
    seen = events.loc[events["kind"] == "comm", "rank"].unique()
    ranks = [rank for rank in events.loc[called, "rank"].unique() if rank not in seen]
    unknown = table["rank"].isin(ranks)
    if not unknown.any():
        return table
    warnings.warn(
        f"iterations: rank {', '.join(map(str, ranks))} called collectives, but no communication "
        "kernel was recorded: communication and idle time are <NA>",
        stacklevel=3,
    )
    columns = ["comm_s", "exposed_comm_s", "idle_s"]
    return table.assign(**{c: table[c].astype("Float64").mask(unknown) for c in columns})


def _events(run) -> pd.DataFrame:
    """Return the EVENTS of a run, or the table itself, checked."""
    table = check(getattr(run, "events", run), _NEEDED, "events")
    return table if table.index.is_unique else table.reset_index(drop=True)


def work_of(events: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of compute, comm and memory, or raise ValueError if no iteration has any."""
    work = events[events["kind"].isin(WORK_KINDS)]
    require(
        (work["iteration"] >= 0).any(),
        "events",
        "compute, comm or memory rows in an iteration",
        found="none: the profiler recorded no GPU kernel",
        do="Record again with ProfilerActivity.CUDA (run.ledger lists what was found)",
    )
    return work


def spans_of(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts and the ends of rows, s."""
    return rows["start_s"].to_numpy(), rows["end_s"].to_numpy()


def windows(work: pd.DataFrame) -> list[tuple]:
    """Return (iteration, low, high) of one rank's iterations, in s, from its work in iterations."""
    if work.empty:
        return []
    kernels = work[work["kind"] != "memory"]
    kernels = kernels if len(kernels) else work
    first = kernels.groupby("iteration")["start_s"].min().sort_values()
    return list(zip(first.index, first, [*first.iloc[1:], kernels["end_s"].max()], strict=True))


def _spend(work: pd.DataFrame, low: float, high: float) -> dict:
    """Return one iteration's seconds by kind; sums of the same spans, so the parts add up."""
    spans = {
        kind: intervals.union(*intervals.clip(*spans_of(work[work["kind"] == kind]), low, high))
        for kind in WORK_KINDS
    }
    compute, comm, memory = (intervals.measure(*spans[kind]) for kind in WORK_KINDS)
    busy = [np.concatenate(each) for each in zip(spans["compute"], spans["comm"], strict=True)]
    exposed_comm = intervals.measure(*busy) - compute
    exposed_memory = memory - intervals.overlap(spans["memory"], busy)
    return {
        "duration_s": high - low,
        "compute_s": compute,
        "comm_s": comm,
        "exposed_comm_s": exposed_comm,
        "memory_s": memory,
        "exposed_memory_s": exposed_memory,
        "idle_s": high - low - compute - exposed_comm - exposed_memory,
    }


def collectives(events: pd.DataFrame) -> pd.DataFrame:
    """Return COLLECTIVES: each message once, with the rows of all ranks joined.

    Rows of different ranks are paired by the order of a collective within its iteration and
    process group, or by their ends if a rank lacks a message. A message is ready when the last
    kernel of the compute stream launched before it has ended; without a GPU, when it is launched,
    since the host computes. Unknown launches and sizes are <NA>.
    """
    events = _events(events)
    rows, keys = _ordered_messages(events)
    joined = rows.assign(n=1).groupby(keys, dropna=False, as_index=False)
    table = joined.agg(
        nbytes=("nbytes", "max"),
        n_ranks_seen=("n", "sum"),
        ready_s=("ready_s", "max"),
        launch_s=("launch_s", "max"),
        start_s=("start_s", "min"),
        arrival_s=("start_s", "max"),
        end_s=("end_s", "max"),
    ).sort_values("start_s", kind="stable", ignore_index=True)
    table = table.assign(
        index=table.groupby("iteration").cumcount(),
        wait_s=table["arrival_s"] - table["start_s"],
        transfer_s=table["end_s"] - table["arrival_s"],
    )
    many = (table["n_ranks_seen"] > table["n_workers"]).fillna(False)
    if many.any():
        warnings.warn(
            f"collectives: {many.sum()} messages have rows of more ranks than their group has: "
            "the traces do not name the groups, so ranks may be paired wrongly",
            stacklevel=2,
        )
    return table[list(COLLECTIVES)]


def _ordered_messages(events: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the comm rows with launch_s, ready_s and order, and the columns of a message."""
    events = events if "group" in events else events.assign(group="")
    parts = [_messages(mine) for _, mine in events.groupby("rank", dropna=False)]
    rows = pd.concat(parts or [_messages(events)]).sort_values("start_s", kind="stable")
    keys = ["iteration", "op", "group", "n_workers"]
    order = rows.groupby(["rank", *keys], dropna=False).cumcount()
    return _repaired(rows.assign(order=order), keys), [*keys, "order"]


def _repaired(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Pair messages by their ends in an iteration in which a rank lacks some.

    All ranks leave a collective together, so no rank can arrive after another has left, and its
    size is the same for all.
    """
    order = rows["order"].to_numpy().copy()
    at = pd.Series(np.arange(len(rows)), index=rows.index)
    for _, mine in rows.groupby(keys, dropna=False):
        if mine["rank"].nunique() > 1 and _impossible(mine):
            order[at[mine.index]] = _by_ends(mine)
    return rows.assign(order=order)


def _impossible(mine: pd.DataFrame) -> bool:
    message = mine.groupby("order")
    late = (message["start_s"].max() - message["end_s"].min()).max()
    return late > _LATE_S or message["nbytes"].nunique().max() > 1


def _by_ends(mine: pd.DataFrame) -> np.ndarray:
    """Return each row's message number: rows of different ranks that end together, of one size.

    Sizes are paired one by one, since messages on two threads may end in another order per rank.
    """
    numbers = pd.Series(-1, index=mine.index)
    number, seen, left, size = -1, set(), -np.inf, None
    ends = mine[["rank", "nbytes", "start_s", "end_s"]].fillna({"nbytes": -1})
    for row in ends.sort_values(["nbytes", "end_s"], kind="stable").itertuples():
        late = row.start_s > left + _LATE_S
        if number < 0 or late or row.rank in seen or row.nbytes != size:
            number, seen, left, size = number + 1, set(), row.end_s, row.nbytes
        seen.add(row.rank)
        numbers[row.Index] = number
    return numbers.to_numpy()


def _messages(mine: pd.DataFrame) -> pd.DataFrame:
    """Return one rank's comm rows with launch_s and ready_s."""
    comm = mine[mine["kind"] == "comm"].astype({"op": "str"})
    launch = _launch_times(mine)
    launched = launch[comm.index]
    if (comm["stream"] >= 0).any():
        ready = _ready(mine, launch, launched.fillna(-np.inf).to_numpy())
    else:
        ready = launched.fillna(comm["start_s"]).to_numpy()
    return comm.astype({"group": "str"}).assign(launch_s=launched, ready_s=ready)


def _launch_times(mine: pd.DataFrame) -> pd.Series:
    """Return when the host launched each row of one rank, in s; NaN if not recorded."""
    host = mine[(mine["stream"] == -1) & (mine["correlation"] != -1) & (mine["kind"] == "host")]
    times = host.drop_duplicates("correlation").set_index("correlation")["start_s"]
    device = (mine["stream"] >= 0) | (mine["kind"] == "comm")
    # Mapped before masking: masked integers would become floats and lose their last digits.
    return mine["correlation"].map(times).where(device & (mine["correlation"] != -1))


def _ready(mine: pd.DataFrame, launch: pd.Series, moments: np.ndarray) -> np.ndarray:
    """Return when the last kernel launched by each moment on the compute stream ends, s or NaN."""
    kernels = _compute_stream(mine)
    launched = launch[kernels.index].fillna(kernels["start_s"])
    order = np.argsort(launched.to_numpy(), kind="stable")
    ends = np.maximum.accumulate(kernels["end_s"].to_numpy()[order])
    n = np.searchsorted(launched.to_numpy()[order], moments, side="right")
    return np.r_[np.nan, ends][n]


def _compute_stream(mine: pd.DataFrame) -> pd.DataFrame:
    """Return the compute rows of the stream that computes most."""
    kernels = mine[(mine["kind"] == "compute") & (mine["stream"] >= 0)]
    busy = (kernels["end_s"] - kernels["start_s"]).groupby(kernels["stream"]).sum()
    return kernels[kernels["stream"] == busy.idxmax()] if len(busy) else kernels


def all_reduces(events: pd.DataFrame) -> pd.DataFrame:
    """Return MEASUREMENTS of a run's all-reduces: transfer times, without waiting for stragglers.

    The wait is known only if all ranks of a message are loaded; a warning counts the others.
    """
    found = _messages_of("all_reduce", events, "all_reduces")
    table = found.assign(seconds=found["transfer_s"], n_nodes=pd.NA).astype({"n_nodes": "Int64"})
    return table[list(MEASUREMENTS)].reset_index(drop=True)


def _messages_of(op: str, events: pd.DataFrame, caller: str) -> pd.DataFrame:
    """Return the COLLECTIVES of one op, with a warning if their times include waiting."""
    found = collectives(events)
    found = found[found["op"] == op]
    partly = (found["n_ranks_seen"] < found["n_workers"]).fillna(False)
    if partly.any():
        warnings.warn(
            f"{caller}: {partly.sum()} of {len(found)} messages have rows of some of their "
            "ranks only, so their time includes waiting for the others. Load all ranks together",
            stacklevel=3,
        )
    return found


def medians(events: pd.DataFrame, op: str = "all_reduce") -> pd.DataFrame:
    """Return MEASUREMENTS of a run's collectives, each message once: the median over iterations.

    A message is identified by its position among those of its op in an iteration, its size and its
    workers. `n_iterations`, `seconds_min` and `seconds_max` keep the spread. Times are transfer
    times, without waiting for stragglers. Messages of unknown size or workers are left out with a
    warning, and so are those without a positive time, as clocks that differ may leave them.
    Raises ValueError if none is left.
    """
    found = _messages_of(op, events, "medians")
    unknown = (found["nbytes"].isna() | found["n_workers"].isna()).to_numpy()
    none = ~unknown & ~(found["transfer_s"] > 0).to_numpy()
    left_out = f"{unknown.sum()} of unknown size or workers and {none.sum()} without a time"
    expected = f"{op} messages with a size, workers and a time"
    got = f"{len(found)} messages, {left_out}"
    require(not (unknown | none).all(), "events", expected, found=got)
    if (unknown | none).any():
        warnings.warn(f"medians: left out {left_out}, of {len(found)} messages", stacklevel=2)
    found = found[~(unknown | none)]
    place = found.groupby("iteration").cumcount()
    keys = ["op", "n_workers", "nbytes"]
    joined = found.assign(place=place).groupby(["place", *keys], sort=False, observed=True)
    table = joined["transfer_s"].agg(
        seconds="median", n_iterations="size", seconds_min="min", seconds_max="max"
    )
    table = table.reset_index().assign(n_nodes=pd.NA).astype({"n_nodes": "Int64"})
    return table[[*MEASUREMENTS, "n_iterations", "seconds_min", "seconds_max"]]


def gradients(run, sizes: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return GRADIENTS of a run or its EVENTS: medians over ranks and iterations.

    A run on one GPU is enough. `ready_min_s` and `ready_max_s` keep the spread. Iterations with an
    unusual number of gradients are left out with a warning.

    sizes : name and nbytes in backward order, as in data/models. Names the gradients, and sizes
        them if the trace was recorded without shapes; otherwise unknown sizes are <NA>

    Raises ValueError if `sizes` does not fit the trace.
    """
    each = gradients_by_iteration(run)
    keys = ["rank", "iteration"]
    count = each.groupby(keys, dropna=False)["index"].transform("size")
    usual = count[~each.duplicated(keys)].mode().max()
    if (odd := each[count != usual].drop_duplicates(keys)).size:
        found = ", ".join(f"{i} ({count[at]})" for at, i in odd["iteration"].items())
        warnings.warn(
            f"gradients: {usual} in most iterations; left out those with another number: {found}",
            stacklevel=2,
        )
    table = (
        each[count == usual]
        .groupby("index", as_index=False)
        .agg(
            nbytes=("nbytes", "max"),
            ready_s=("ready_s", "median"),
            ready_min_s=("ready_s", "min"),
            ready_max_s=("ready_s", "max"),
        )
    )
    table = table.rename(columns={"index": "name"}).astype({"name": "str"})
    return table if sizes is None else _sized(table, sizes)


def _sized(table: pd.DataFrame, sizes: pd.DataFrame) -> pd.DataFrame:
    check(sizes, {"name": GRADIENTS["name"], "nbytes": GRADIENTS["nbytes"]}, "sizes")
    do = "Pass the sizes of the model and type that was trained, in backward order"
    n = len(table)
    require(len(sizes) == n, "sizes", f"{n} gradients as in the trace", len(sizes), do)
    given = sizes["nbytes"].to_numpy()
    own = table["nbytes"].to_numpy(object, na_value=-1)
    for i in np.flatnonzero((own != given) & (own != -1))[:1]:
        refuse("sizes", f"{own[i]} bytes for gradient {i} as in the trace", given[i], do)
    return table.assign(name=sizes["name"].to_numpy(), nbytes=pd.array(given, dtype="Int64"))


def gradients_by_iteration(events: pd.DataFrame) -> pd.DataFrame:
    """Return each gradient: rank, iteration, index, nbytes, ready_s, backward_start_s.

    PyTorch accumulates each gradient in an `AccumulateGrad` operator, in the order of backward. A
    gradient is ready when the last kernel that was launched on the compute stream before the end
    of that operator has ended (running maximum); without a GPU, when the operator ends. `ready_s`
    is s since backward began, which is `backward_start_s` in s since the run's first event: the
    start of its first kernel, or of its first operator without a GPU.
    Raises ValueError if there is no such operator.
    """
    events = _events(events)
    operators = events[(events["name"] == _GRADIENT) & (events["iteration"] >= 0)]
    do = "Record training by PyTorch with ProfilerActivity.CPU"
    require(len(operators), "events", f"{_GRADIENT} operators", found="none", do=do)
    parts = []
    for rank, mine in events.groupby("rank", dropna=False):
        launch = _launch_times(mine)
        for number, found in mine[mine.index.isin(operators.index)].groupby("iteration"):
            found = found.sort_values("start_s", kind="stable")
            n = _passes(found)
            since = found["end_s"].iloc[-len(found) // n - 1] if n > 1 else -np.inf
            part = _backward(mine, launch, found.iloc[-len(found) // n :], since)
            parts.append(part.assign(rank=rank, iteration=number, passes=n))
    table = pd.concat(parts, ignore_index=True)
    if (n := table["passes"].max()) > 1:
        warnings.warn(
            f"gradients: {n} backward passes in an iteration (gradient accumulation); kept the "
            "last of each, the one whose gradients are sent",
            stacklevel=3,
        )
    columns = ["rank", "iteration", "index", "nbytes", "ready_s", "backward_start_s"]
    return table[columns].astype({"rank": "Int64"})


def _passes(found: pd.DataFrame) -> int:
    """Return the number of backward passes among an iteration's accumulating operators.

    Several passes repeat the same sizes, and between two of them runs a forward pass: a gap far
    longer than any within a pass. Without both there is one pass.
    """
    sizes, starts = found["nbytes"].to_numpy(float, na_value=-1), found["start_s"].to_numpy()
    gaps = np.diff(starts)
    for n in range(len(found) // 2, 1, -1):
        length = len(found) // n
        if length * n != len(found) or (sizes < 0).any():
            continue
        between = np.arange(length - 1, len(gaps), length)
        apart = gaps[between].min() > 3 * np.delete(gaps, between).max(initial=0.0)
        if apart and (sizes.reshape(n, length) == sizes[:length]).all():
            return n
    return 1


def _backward(mine: pd.DataFrame, launch: pd.Series, found: pd.DataFrame, since: float):
    """Return the ready times of one backward pass from its accumulating operators, in order.

    since : end of the pass before it in the iteration, s
    """
    first = _first_operator(mine[mine["start_s"] >= since], found)
    kernels = _compute_stream(mine)
    if len(kernels):
        ready = _ready(mine, launch, found["end_s"].to_numpy())
        began = kernels.loc[launch[kernels.index] >= first, "start_s"].min()
        began = ready[0] if np.isnan(began) else began
    else:
        ready, began = found["end_s"].to_numpy(), first
    ready = np.maximum.accumulate(np.maximum(ready, began)) - began
    table = pd.DataFrame({"index": np.arange(len(found)), "nbytes": found["nbytes"].array})
    return table.assign(ready_s=ready, backward_start_s=began)


def _first_operator(mine: pd.DataFrame, found: pd.DataFrame) -> float:
    """Return when the host began backward, s: its first operator on the thread of the gradients."""
    thread, number = found["thread"].iloc[0], found["iteration"].iloc[0]
    near = mine[(mine["thread"] == thread) & (mine["iteration"] == number)]
    of_backward = near["name"].astype("str").str.contains("evaluate_function|Backward")
    return min(near.loc[of_backward, "start_s"].min(), found["start_s"].min())


def stragglers(events: pd.DataFrame) -> pd.DataFrame:
    """Return one row per rank: n_last, caused_wait_s, waited_s, transfer_s.

    At each message every other rank waits from its own arrival to the last one's; the rank that
    arrives last causes all of that waiting, and ranks that tie share it. `n_last` counts the
    messages at which the rank was last, `waited_s` is what the rank itself waited, and
    `transfer_s` is the rest of its communication; s summed over messages. Sorted by
    `caused_wait_s`. Raises ValueError for fewer than two ranks.
    """
    events = _events(events)
    ranks = events["rank"].unique()
    found = f"{len(ranks)}: {', '.join(map(str, ranks))}" if len(ranks) else "no row"
    do = "Load all ranks of the run together"
    require(len(ranks) > 1, "events", "rows of two or more ranks", found=found, do=do)
    rows, keys = _ordered_messages(events)
    joined = rows.groupby(keys, dropna=False)
    start, last, n = rows["start_s"], *(joined["start_s"].transform(f) for f in ("max", "size"))
    is_last = (start == last) & (n > 1)
    caused = n * (last - joined["start_s"].transform("mean"))
    rows = rows.assign(n_last=is_last, waited_s=last - start, transfer_s=rows["end_s"] - last)
    tied = rows.groupby(keys, dropna=False)["n_last"].transform("sum")
    rows = rows.assign(caused_wait_s=(caused / tied.clip(lower=1)).where(is_last, 0.0))
    columns = ["n_last", "caused_wait_s", "waited_s", "transfer_s"]
    table = rows.groupby("rank")[columns].sum().reset_index()
    return table.sort_values("caused_wait_s", ascending=False, ignore_index=True)
