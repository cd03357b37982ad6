"""What messages cost: collectives of many sizes, timed between some or all workers."""

import contextlib
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm.auto import tqdm

from ..base.checks import count, numbers, shown
from ..base.tables import rows_of
from ..base.units import KIB, MIB
from .folder import Folder, Table
from .hooks import Clock
from .workers import Workers, current

OPS = ("all_reduce", "reduce_scatter", "all_gather")
COLUMNS = (
    "op",
    "n_workers",
    "n_nodes",
    "nbytes",
    "seconds",
    "low_s",
    "high_s",
    "min_s",
    "p90_s",
    "repetitions",
)
_ROUND = 10  # repetitions between two looks at the interval
_MOST = 2000  # repetitions
_FILE = "collectives.csv"


def sweep_collectives(
    folder: str | Path,
    *,
    ops: Iterable[str] = OPS[:1],
    n_workers: Iterable[int] | None = None,
    smallest: int = KIB,
    largest: int = 64 * MIB,
    tight: float = 0.05,
    seconds: float = 1.5,
    least: int = 3,
    label: str = "",
    workers: Workers | None = None,
) -> Path:
    """Time collectives of doubling sizes between workers and write MEASUREMENTS as CSV.

    Parameters
    ----------
    folder : gets collectives.csv and run.json; one with part of the rows is completed
    ops : of OPS
    n_workers : sub-worlds, each of the first so many workers, nodes one after another; all workers
        by default
    smallest, largest : bytes of a message; of an all-gather what each worker has in the end, of a
        reduce-scatter what each has in the beginning, as nccl-tests counts
    tight : repeated until the 95 % interval of the median is within this share of it
    seconds : or until so many s have gone by; then the next size
    least : repetitions at least, however long they take: on slow networks large messages vary
    label : what run.json says of the sweep
    workers : those of the process group by default

    A repetition's time is its slowest worker's, from a barrier to the call's return (on a GPU to
    the end of the collective). Before the first, the message is sent twice to warm up. Columns:
    MEASUREMENTS with seconds (median), low_s and high_s (the interval's, by order statistics),
    min_s, p90_s, repetitions. An op that the backend does not have is left out, and named in
    run.json. Raises ValueError for less than two workers and arguments that make no sweep.
    """
    workers = workers or current()
    each = [workers.n_workers] if n_workers is None else _listed(n_workers, "n_workers", "(2, 4)")
    counts = sorted({count(n, "n_workers", 1) for n in each})
    ops = list(dict.fromkeys(_listed(ops, "ops", '("all_reduce",)')))
    smallest, largest = count(smallest, "smallest", 4), count(largest, "largest", 4)
    tight, seconds = (
        float(numbers(x, name)) for x, name in ((tight, "tight"), (seconds, "seconds"))
    )
    _check(ops, counts, smallest, largest, workers)
    settings = {"command": "collectives", "label": label, "ops": ops, "workers": counts}
    settings |= {"smallest": smallest, "largest": largest, "tight": tight, "seconds": seconds}
    settings |= {"least": count(least, "least", 1)}
    out = Folder(folder, settings, workers)
    if out.complete:
        return out.path
    measure = _Measure(workers, counts, tight, seconds, least)
    there = [op for op in ops if measure.available(op)]
    sizes = [smallest * 2**k for k in range((largest // smallest).bit_length())]
    cells = [(n, op, _whole(op, s, n)) for n, op, s in itertools.product(counts, there, sizes)]
    _sweep(out, list(dict.fromkeys(cells)), measure)
    missing = [op for op in ops if op not in there]
    return out.finish({"unavailable": missing, "units": _UNITS})


_UNITS = {
    "collectives.csv": "nbytes in bytes; seconds (median), low_s and high_s (95 % interval of the "
    "median), min_s and p90_s in s, of the slowest worker",
    "load_average": "runnable processes over the minute before the run",
}


def _listed(values, name: str, example: str) -> list:
    """Return what an iterable holds, or raise ValueError for a text or a single value."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name}: expected several such as {example}, got {shown(values)}")
    return list(values)


def _whole(op: str, nbytes: int, n_workers: int) -> int:
    """Return the bytes of a message of about so many that all workers can share alike."""
    each = 4 if op == "all_reduce" else 4 * n_workers  # float32
    return max(each, nbytes // each * each)


def _sweep(out: Folder, cells: list, measure: "_Measure") -> None:
    """Time the cells that the table does not have yet; rank 0 holds and writes the table."""
    first = out.workers.rank == 0
    with _continued(out) if first else contextlib.nullcontext() as table:
        done = _done(out.path / _FILE) if first else set()
        for cell in tqdm(cells, desc="messages", unit="message", disable=not first):
            if out.workers.slowest([float(cell in done)])[0]:
                continue
            row = measure(*cell)
            if first:
                table.add(row)


def _continued(out: Folder) -> Table:
    """Open the table with the whole rows it had; what is left of a cut one goes."""
    path = out.path / _FILE
    before = rows_of(path, COLUMNS)
    comments = [
        f"source: workbench.capture collectives, {out.notes['kind']}, {out.notes['date']}",
        f"hardware: {out.notes['hardware']}; load average before: {out.notes['load_average']:.2f}",
        f"software: {json.dumps(out.notes['software'])}; "
        f"threads a worker: {out.notes['threads_per_worker']}",
        _UNITS["collectives.csv"],
    ]
    return Table(path, COLUMNS, comments, before)


def _done(path: Path) -> set[tuple]:
    rows = rows_of(path, COLUMNS)
    return {(int(row["n_workers"]), row["op"], int(row["nbytes"])) for _, row in rows.iterrows()}


class _Measure:
    """Times one collective of one size between the first so many workers."""

    def __init__(self, workers: Workers, counts: list[int], tight: float, seconds: float, least):
        self.workers, self.tight, self.seconds, self.least = workers, tight, seconds, least
        self.clock = Clock(workers.device)
        # Every worker takes part in making every group, also those that are not in it.
        self.groups = {n: dist.new_group(list(range(n))) for n in counts}

    def available(self, op: str) -> bool:
        """Return whether the backend has the collective, which all workers find out together."""
        try:
            self._call(op, _whole(op, 4, self.workers.n_workers), self.workers.n_workers, None)()
        except (RuntimeError, ValueError) as error:
            if "support" not in str(error) and "implement" not in str(error):
                raise
            return False
        return True

    def __call__(self, n_workers: int, op: str, nbytes: int) -> list:
        """Return a row of the table on the ranks that took part; the others wait."""
        row = []
        if self.workers.rank < n_workers:
            group = self.groups[n_workers]
            times = self._times(self._call(op, nbytes, n_workers, group), group)
            middle, nodes = statistics.median(times), self.workers.nodes_of(n_workers)
            ends = (*interval(times), times[0], times[int(0.9 * len(times))])
            row = [op, n_workers, nodes, nbytes, middle, *ends, len(times)]
        self.workers.meet()
        return row

    def _times(self, once: Callable, group) -> list[float]:
        """Return the slowest worker's times, sorted, of enough repetitions."""
        began, times = time.perf_counter(), []
        once()
        # All workers see the same numbers, so that all stop after the same repetition.
        (estimate,) = self.workers.slowest([self._timed(once, group)], group)
        n = max(self.least, min(_ROUND, int(self.seconds / max(estimate, 1e-6))))
        while True:
            own = [self._timed(once, group) for _ in range(n)]
            *slowest, spent = self.workers.slowest([*own, time.perf_counter() - began], group)
            times = sorted(times + slowest)
            low, high = interval(times)
            narrow = len(times) >= _ROUND and high - low <= 2 * self.tight * statistics.median(
                times
            )
            if narrow or spent > self.seconds or len(times) >= _MOST:
                return times

    def _timed(self, once: Callable, group) -> float:
        dist.barrier(group)
        self.clock.wait()
        began = time.perf_counter()
        once()
        self.clock.wait()
        return time.perf_counter() - began

    def _call(self, op: str, nbytes: int, n_workers: int, group) -> Callable:
        """Return the collective as a call without arguments; zeros, whose sums never overflow."""
        whole = torch.zeros(nbytes // 4, device=self.clock.device)
        if op == "all_reduce":
            return lambda: dist.all_reduce(whole, group=group)
        share = torch.zeros(nbytes // 4 // n_workers, device=self.clock.device)
        # Renamed in torch 2.13; the old names warn there.
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        if op == "reduce_scatter":
            return lambda: scatter(share, whole, group=group)
        return lambda: gather(whole, share, group=group)


def interval(times: list[float]) -> tuple[float, float]:
    """Return the ends of the 95 % interval of the median of sorted times, by order statistics.

    The k-th of n sorted times is below the median with the chance of k or more heads of n coins;
    so ranks n / 2 -+ 0.98 sqrt(n), rounded outwards, hold it with 95 % or more (Conover,
    Practical Nonparametric Statistics, section 3.2). Fewer than 6 times give the least and most.
    """
    n = len(times)
    reach = 1.96 / 2 * math.sqrt(n)
    low = max(0, math.floor(n / 2 - reach) - 1)
    high = min(n - 1, math.ceil(n / 2 + reach))
    return times[low], times[high]


def _check(ops: list, counts: list[int], smallest: int, largest: int, workers: Workers) -> None:
    if workers.n_workers < 2:
        raise ValueError(
            "a collective needs 2 or more workers, got 1: start with "
            "torchrun --standalone --nproc-per-node 2 -m workbench.capture collectives ..."
        )
    if not 4 <= smallest <= largest or smallest % 4:
        raise ValueError(
            "sizes: expected 4 <= smallest <= largest, smallest a multiple of 4 bytes (float32), "
            f"got {smallest} and {largest}"
        )
    for op in ops:
        if op not in OPS:
            raise ValueError(f"ops: expected {', '.join(OPS)}, got {shown(op)}")
    for n in counts:
        if not 2 <= n <= workers.n_workers:
            raise ValueError(f"n_workers: expected 2 to {workers.n_workers}, got {n}")
