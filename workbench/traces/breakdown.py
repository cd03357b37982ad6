"""From EVENTS to what each iteration did: ITERATIONS, COLLECTIVES, GRADIENTS, MEASUREMENTS."""

import warnings

import numpy as np
import pandas as pd

from ..base import intervals
from ..base.tables import COLLECTIVES, EVENTS, GRADIENTS, ITERATIONS, MEASUREMENTS, check

_NEEDED = {column: meaning for column, meaning in EVENTS.items() if column != "group"}
_WORK = ["compute", "comm", "memory"]
_CALLED = r"^(?:nccl|rccl|xccl):|^record_param_comms$"
_LATE_S = 1e-3  # by which the clocks of ranks may differ before a pairing is doubted
_GRADIENT = "torch::autograd::AccumulateGrad"


def iterations(events: pd.DataFrame) -> pd.DataFrame:
    """ITERATIONS: how each rank of a run (or of its EVENTS) spent each iteration.

    An iteration lasts from the start of its first kernel to that of the next iteration's first;
    the last one to the end of the last kernel. So the iterations of a rank add up to the span of
    its kernels: no idle time between them is lost, and copies before or after it do not count.
    Communication is exposed where no compute runs, copies and sets (memory) where neither runs; a
    wait for other ranks inside a message is part of it, which `stragglers` tells apart;
    what is left is idle.
    Where the host called collectives but no communication was recorded, its time, exposed time and
    with them the idle time are <NA>, with a warning.
    Raises ValueError when there is no device row to measure.
    """
    events = _events(events)
    work = work_of(events)
    rows = [
        {"rank": rank, "iteration": number, **_spend(mine, low, high)}
        for rank, mine in work.groupby("rank", dropna=False)
        for number, low, high in windows(mine[mine["iteration"] >= 0])
    ]
    table = pd.DataFrame(rows, columns=list(ITERATIONS)).astype({"rank": "Int64"})
    return _without_unknown(table, events)


def _without_unknown(table: pd.DataFrame, events: pd.DataFrame) -> pd.DataFrame:
    """Say <NA>, and not 0, of the communication of ranks whose messages were not recorded."""
    called = events["name"].astype("str").str.contains(_CALLED)
    seen = events.loc[events["kind"] == "comm", "rank"].unique()
    ranks = [rank for rank in events.loc[called, "rank"].unique() if rank not in seen]
    unknown = table["rank"].isin(ranks)
    if not unknown.any():
        return table
    warnings.warn(
        f"iterations: rank {', '.join(map(str, ranks))} called collectives, but no communication "
        "kernel was recorded: communication and idle time are <NA>, unknown",
        stacklevel=3,
    )
    columns = ["comm_s", "exposed_comm_s", "idle_s"]
    return table.assign(**{c: table[c].astype("Float64").mask(unknown) for c in columns})


def _events(run) -> pd.DataFrame:
    """The EVENTS of a run, or the table itself, checked."""
    table = run if isinstance(run, pd.DataFrame) else getattr(run, "events", run)
    table = check(table, _NEEDED, "events")
    return table if table.index.is_unique else table.reset_index(drop=True)


def work_of(events: pd.DataFrame) -> pd.DataFrame:
    """The rows of compute, comm and memory; ValueError when none lies inside an iteration."""
    work = events[events["kind"].isin(_WORK)]
    if not (work["iteration"] >= 0).any():
        raise ValueError(
            "events: no compute, comm or memory row inside an iteration. The profiler recorded no "
            "GPU kernel: record again with ProfilerActivity.CUDA (run.ledger tells what was found)"
        )
    return work


def windows(work: pd.DataFrame) -> list[tuple]:
    """(iteration, low, high) of one rank's iterations, in s, from its work inside iterations."""
    if work.empty:
        return []
    kernels = work[work["kind"] != "memory"]
    first = (kernels if len(kernels) else work).groupby("iteration")["start_s"].min().sort_values()
    end = (kernels if len(kernels) else work)["end_s"].max()
    return list(zip(first.index, first, [*first.iloc[1:], end], strict=True))


def _spend(work: pd.DataFrame, low: float, high: float) -> dict:
    """One iteration's seconds by kind; sums of the same spans, so the parts add up."""
    spans = {}
    for kind in _WORK:
        of_kind = work[work["kind"] == kind]
        start, end = of_kind["start_s"].to_numpy(), of_kind["end_s"].to_numpy()
        spans[kind] = intervals.union(*intervals.clip(start, end, low, high))
    compute, comm, memory = (intervals.measure(*spans[kind]) for kind in _WORK)
    busy = _both(spans["compute"], spans["comm"])
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


def _both(a: tuple, b: tuple) -> tuple:
    return intervals.union(*(np.concatenate(pair) for pair in zip(a, b, strict=True)))


def collectives(events: pd.DataFrame) -> pd.DataFrame:
    """COLLECTIVES: each message once, the rows of all ranks joined.

    Ranks are paired by the order of a collective within its iteration and process group; where a
    rank misses a message, so that this pairs what never ran together, by their ends. A message is
    ready when the last kernel of the compute stream launched before it has ended (without a GPU:
    when it is launched, since the host computes). Unknown launches and sizes stay <NA>.
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
            f"collectives: {many.sum()} messages are seen from more ranks than their group has: "
            "the traces do not tell the groups apart, so ranks may be paired wrongly",
            stacklevel=2,
        )
    return table[list(COLLECTIVES)]


def _ordered_messages(events: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """All comm rows with launch_s, ready_s and order, and the columns that name a message."""
    events = events if "group" in events else events.assign(group="")
    parts = [_messages(mine) for _, mine in events.groupby("rank", dropna=False)]
    rows = pd.concat(parts or [_messages(events)]).sort_values("start_s", kind="stable")
    keys = ["iteration", "op", "group", "n_workers"]
    order = rows.groupby(["rank", *keys], dropna=False).cumcount()
    return _repaired(rows.assign(order=order), keys), [*keys, "order"]


def _repaired(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Pair anew, by ends, the messages of an iteration of which a rank misses some.

    All ranks leave a collective together, so a rank cannot come after another has left; and its
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
    """Number of each row's message: rows of different ranks that end together, of one size."""
    numbers = pd.Series(-1, index=mine.index)
    number, seen, left, size = -1, set(), -np.inf, None
    ends = mine.sort_values("end_s", kind="stable")
    for row, rank, nbytes, start, end in zip(
        ends.index,
        ends["rank"],
        ends["nbytes"].fillna(-1),
        ends["start_s"],
        ends["end_s"],
        strict=True,
    ):
        if number < 0 or rank in seen or nbytes != size or start > left + _LATE_S:
            number, seen, left, size = number + 1, set(), end, nbytes
        seen.add(rank)
        numbers[row] = number
    return numbers.to_numpy()


def _messages(mine: pd.DataFrame) -> pd.DataFrame:
    """One rank's comm rows with launch_s and ready_s."""
    comm = mine[mine["kind"] == "comm"].astype({"op": "str"})
    launch = _launch_times(mine)
    launched = launch[comm.index]
    if (comm["stream"] >= 0).any():
        ready = _ready(mine, launch, launched.fillna(-np.inf).to_numpy())
    else:
        ready = launched.fillna(comm["start_s"]).to_numpy()
    return comm.astype({"group": "str"}).assign(launch_s=launched, ready_s=ready)


def _launch_times(mine: pd.DataFrame) -> pd.Series:
    """When the host launched each row of one rank, in s; NaN where that was not recorded."""
    host = mine[(mine["stream"] == -1) & (mine["correlation"] != -1) & (mine["kind"] == "host")]
    times = host.drop_duplicates("correlation").set_index("correlation")["start_s"]
    device = (mine["stream"] >= 0) | (mine["kind"] == "comm")
    # Mapped first and masked then: masked integers would turn to floats and lose their last digits.
    return mine["correlation"].map(times).where(device & (mine["correlation"] != -1))


def _ready(mine: pd.DataFrame, launch: pd.Series, moments: np.ndarray) -> np.ndarray:
    """End of the last kernel of the compute stream launched by each moment (s); NaN before any."""
    kernels = _compute_stream(mine)
    launched = launch[kernels.index].fillna(kernels["start_s"])
    order = np.argsort(launched.to_numpy(), kind="stable")
    ends = np.maximum.accumulate(kernels["end_s"].to_numpy()[order])
    n = np.searchsorted(launched.to_numpy()[order], moments, side="right")
    return np.r_[np.nan, ends][n]


def _compute_stream(mine: pd.DataFrame) -> pd.DataFrame:
    """The rows of the stream that computes most."""
    kernels = mine[(mine["kind"] == "compute") & (mine["stream"] >= 0)]
    busy = (kernels["end_s"] - kernels["start_s"]).groupby(kernels["stream"]).sum()
    return kernels[kernels["stream"] == busy.idxmax()] if len(busy) else kernels


def all_reduces(events: pd.DataFrame) -> pd.DataFrame:
    """MEASUREMENTS of a run's all-reduces: transfer time only, never the wait for stragglers.

    The wait is known when all ranks of a message are loaded; a warning tells of the others.
    """
    found = collectives(events)
    found = found[found["op"] == "all_reduce"]
    _warn_of_waits(found, "all_reduces")
    table = found.assign(seconds=found["transfer_s"], n_nodes=pd.NA).astype({"n_nodes": "Int64"})
    return table[list(MEASUREMENTS)].reset_index(drop=True)


def _warn_of_waits(found: pd.DataFrame, what: str):
    partly = (found["n_ranks_seen"] < found["n_workers"]).fillna(False)
    if partly.any():
        warnings.warn(
            f"{what}: {partly.sum()} of {len(found)} messages are seen from some of their "
            "ranks only, so their time includes waiting for the others. Load all ranks together",
            stacklevel=3,
        )


def medians(events: pd.DataFrame, op: str = "all_reduce") -> pd.DataFrame:
    """MEASUREMENTS of a run's collectives, each message once: the median over iterations.

    A message is known by its place among those of its op in an iteration, its size and workers.
    `n_iterations`, `seconds_min` and `seconds_max` keep the spread. Times are transfer times, never
    the wait for stragglers; messages of unknown size or workers, and those whose ranks' clocks
    leave no time, are left out with a warning. Raises ValueError when none is left.
    """
    found = collectives(events)
    found = found[found["op"] == op]
    _warn_of_waits(found, "medians")
    unknown = (found["nbytes"].isna() | found["n_workers"].isna()).to_numpy()
    none = ~unknown & ~(found["transfer_s"] > 0).to_numpy()
    if (unknown | none).all():
        raise ValueError(
            f"events: expected messages of {op} with a size, workers and a time; got {len(found)}, "
            f"{unknown.sum()} of unknown size or workers, {none.sum()} without a time"
        )
    if (unknown | none).any():
        warnings.warn(
            f"medians: left out {unknown.sum()} of {len(found)} messages of unknown size or "
            f"workers and {none.sum()} without a time",
            stacklevel=2,
        )
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
    """GRADIENTS out of a run or its EVENTS, one GPU's included: medians over ranks and iterations.

    `ready_min_s` and `ready_max_s` keep the spread. `sizes` (name, nbytes; backward order, as in
    data/models) names the gradients, and sizes them when the trace was recorded without shapes;
    sizes stay <NA> without either. Iterations with an unusual number of gradients are left out
    with a warning. Raises ValueError when `sizes` does not fit the trace.
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
    ready = each[count == usual].groupby("index")
    table = pd.DataFrame(
        {
            "name": [str(index) for index in range(usual)],
            "nbytes": ready["nbytes"].max().array,
            "ready_s": ready["ready_s"].median().to_numpy(),
            "ready_min_s": ready["ready_s"].min().to_numpy(),
            "ready_max_s": ready["ready_s"].max().to_numpy(),
        }
    )
    return table if sizes is None else _sized(table, sizes)


def _sized(table: pd.DataFrame, sizes: pd.DataFrame) -> pd.DataFrame:
    check(sizes, {"name": GRADIENTS["name"], "nbytes": GRADIENTS["nbytes"]}, "sizes")
    if len(sizes) != len(table):
        raise ValueError(
            f"sizes: expected {len(table)} gradients as in the trace, got {len(sizes)}. "
            "Pass the sizes of the model that was trained, in backward order"
        )
    known = table["nbytes"].notna().to_numpy()
    given = sizes["nbytes"].to_numpy()
    other = np.flatnonzero(known & (table["nbytes"].fillna(0).to_numpy() != given))
    if other.size:
        i = other[0]
        raise ValueError(
            f"sizes: gradient {i} has {table['nbytes'][i]} bytes in the trace and {given[i]} in "
            "the table. Pass the sizes of the model and type that was trained, in backward order"
        )
    return table.assign(name=sizes["name"].to_numpy(), nbytes=pd.array(given, dtype="Int64"))


def gradients_by_iteration(events: pd.DataFrame) -> pd.DataFrame:
    """Each gradient: rank, iteration, index, nbytes, ready_s, backward_start_s.

    PyTorch accumulates each gradient in an `AccumulateGrad` operator, in backward's order. The
    gradient is ready when the last kernel that was launched on the compute stream before the end of
    that operator has ended (running maximum); without a GPU, when the operator ends. `ready_s` is
    s since backward began (`backward_start_s`, s since the run's first event): the start of its
    first kernel, or of its first operator without a GPU.
    Raises ValueError when there is no such operator.
    """
    events = _events(events)
    operators = events[(events["name"] == _GRADIENT) & (events["iteration"] >= 0)]
    if operators.empty:
        raise ValueError(
            f"events: no {_GRADIENT} operator, so no gradient can be placed. Expected a PyTorch "
            "trace of training with ProfilerActivity.CPU"
        )
    parts = []
    for rank, mine in events.groupby("rank", dropna=False):
        launch = _launch_times(mine)
        for number, found in mine[mine.index.isin(operators.index)].groupby("iteration"):
            found = found.sort_values("start_s", kind="stable")
            n = _passes(found)
            since = found["end_s"].iloc[-len(found) // n - 1] if n > 1 else -np.inf
            part = _backward(mine, launch, found.iloc[-len(found) // n :], since)
            parts.append(part.assign(rank=rank, iteration=number, passes=n))
    columns = ["rank", "iteration", "index", "nbytes", "ready_s", "backward_start_s"]
    table = pd.concat(parts, ignore_index=True)
    if (n := table["passes"].max()) > 1:
        warnings.warn(
            f"gradients: {n} backward passes in an iteration (gradient accumulation); kept the "
            "last of each, the one whose gradients are sent",
            stacklevel=3,
        )
    return table[columns].astype({"rank": "Int64"})


def _passes(found: pd.DataFrame) -> int:
    """Backward passes among an iteration's accumulating operators: 1 unless it is plainly more.

    More passes repeat the same sizes, and between two of them lies a forward pass: a gap far longer
    than any within a pass.
    """
    sizes, starts = found["nbytes"].to_numpy(float, na_value=-1), found["start_s"].to_numpy()
    gaps = np.diff(starts)
    for n in range(len(found) // 2, 1, -1):
        length = len(found) // n
        if length * n != len(found) or (sizes < 0).any():
            continue
        between = np.arange(length - 1, len(gaps), length)
        within = np.delete(gaps, between)
        if (sizes.reshape(n, length) == sizes[:length]).all() and (
            gaps[between].min() > 3 * within.max(initial=0.0)
        ):
            return n
    return 1


def _backward(mine: pd.DataFrame, launch: pd.Series, found: pd.DataFrame, since: float):
    """Ready times of one backward pass from its accumulating operators, in order.

    `since` is when the pass before it in the iteration ended, s.
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
    """When the host began backward, s: the first operator of it on the thread of the gradients."""
    thread, number = found["thread"].iloc[0], found["iteration"].iloc[0]
    near = mine[(mine["thread"] == thread) & (mine["iteration"] == number)]
    of_backward = near["name"].astype("str").str.contains("evaluate_function|Backward")
    return min(near.loc[of_backward, "start_s"].min(), found["start_s"].min())


def stragglers(events: pd.DataFrame) -> pd.DataFrame:
    """Which rank the others wait for: rank, n_last (messages it came to last), caused_wait_s, ...

    At each message every other rank waits from its own arrival to the last one's; the rank that
    comes last causes all of that waiting. `waited_s` is what the rank itself spent waiting, and
    `transfer_s` what was left of its communication. Sorted by `caused_wait_s`, s summed over the
    other ranks. Raises ValueError with fewer than two ranks.
    """
    events = _events(events)
    ranks = events["rank"].unique()
    if len(ranks) < 2:
        got = f"one rank, {ranks[0]}" if len(ranks) else "no row"
        raise ValueError(
            "events: expected the rows of two or more ranks to tell who waits for whom; "
            f"got {got}. Load all ranks of the run together"
        )
    rows, keys = _ordered_messages(events)
    joined = rows.groupby(keys, dropna=False)
    last = joined["start_s"].transform("max")
    rows = rows.assign(
        waited_s=last - rows["start_s"],
        transfer_s=rows["end_s"] - last,
        n_last=(rows["start_s"] == last) & (joined["start_s"].transform("size") > 1),
    )
    caused = joined["start_s"].transform("size") * (last - joined["start_s"].transform("mean"))
    tied = rows.assign(one=rows["n_last"]).groupby(keys, dropna=False)["one"].transform("sum")
    rows = rows.assign(caused_wait_s=(caused / tied.clip(lower=1)).where(rows["n_last"], 0.0))
    columns = ["n_last", "caused_wait_s", "waited_s", "transfer_s"]
    table = rows.groupby("rank")[columns].sum().reset_index()
    return table.sort_values("caused_wait_s", ascending=False, ignore_index=True)


def repeating(events: pd.DataFrame, least: int = 3) -> pd.DataFrame:
    """Names that recur at a steady period, which may mark iterations where no step was recorded.

    Columns: name, n, period_s (median), spread (interquartile range of the periods over their
    median), longest period first. Use one with `split`. `least` is the fewest occurrences.
    """
    events = _events(events)
    rows = events[events["kind"].isin(["host", "annotation", "compute", "comm"])]
    rows = rows[rows["rank"].isna() | (rows["rank"] == rows["rank"].min())]
    found = []
    for name, starts in rows.groupby("name", observed=True)["start_s"]:
        periods = np.diff(np.sort(starts.to_numpy()))
        if len(periods) >= least - 1 and np.median(periods) > 0:
            low, middle, high = np.quantile(periods, [0.25, 0.5, 0.75])
            found.append((name, len(starts), middle, (high - low) / middle))
    table = pd.DataFrame(found, columns=["name", "n", "period_s", "spread"])
    steady = table[table["spread"] < 0.1]
    return steady.sort_values("period_s", ascending=False, ignore_index=True)


def split(events: pd.DataFrame, name: str) -> pd.DataFrame:
    """EVENTS with iterations that begin wherever a row called `name` starts, numbered from 0.

    Rows before the first are outside (-1). A device row belongs to the iteration of its launch.
    Raises ValueError when a rank has no such row.
    """
    events = _events(events)
    number = pd.Series(-1, index=events.index)
    for rank, mine in events.groupby("rank", dropna=False):
        starts = np.sort(mine.loc[mine["name"] == name, "start_s"].to_numpy())
        if starts.size == 0:
            raise ValueError(
                f"events: rank {rank} has no row called {name!r}; repeating(events) lists names"
            )
        begun = _launch_times(mine).fillna(mine["start_s"])
        number[mine.index] = np.searchsorted(starts, begun, side="right") - 1
    return events.assign(iteration=number)
