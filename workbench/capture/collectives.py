"""Time collectives of many sizes between some or all workers."""

import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from tqdm.auto import tqdm

from ..base.checks import checked, integer, numbers, one_of, optional, require
from ..base.tables import MEASUREMENTS, rows_of
from ..base.units import KIB, MIB
from .folder import Folder, Table
from .hooks import Clock
from .machine import origin
from .workers import Workers, current

OPS = ("all_reduce", "reduce_scatter", "all_gather")
_COLUMNS = (*MEASUREMENTS, "low_s", "high_s", "min_s", "p90_s", "repetitions")
_ROUND = 10  # repetitions between two checks of the interval
_MOST = 2000  # repetitions
_FILE = "collectives.csv"
_BYTES = integer(4)
_UNITS = {
    "collectives.csv": "nbytes in bytes; seconds (median), low_s and high_s (95 % interval of the "
    "median), min_s and p90_s in s, of the slowest worker",
    "load_average": "runnable processes over the minute before the run",
}


def _several(values, name: str) -> None:
    """Raise ValueError for a text or a single value."""
    ok = isinstance(values, Iterable) and not isinstance(values, str)
    require(ok, name, "several values in a list", values)


@checked(
    ops=_several,
    n_workers=optional(_several),
    smallest=_BYTES,
    largest=_BYTES,
    tight=numbers,
    seconds=numbers,
    least=integer(),
)
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
    folder : for collectives.csv and run.json; one with part of the rows is completed
    ops : of OPS
    n_workers : sub-worlds, each of the first n workers, nodes one after another; all workers by
        default
    smallest, largest : bytes of a message: what each worker has at the end of an all-gather, or at
        the beginning of a reduce-scatter, as nccl-tests counts
    tight : repeat until the 95 % interval of the median is within this share of it
    seconds : or until that many s have passed; then comes the next size
    least : least number of repetitions, however long they take: on slow networks large messages
        vary
    label : a note for run.json
    workers : those of the process group by default

    A repetition's time is its slowest worker's, from a barrier to the return of the call (on a GPU
    to the end of the collective). Each message is sent twice before to warm up. Columns:
    MEASUREMENTS with seconds (median), low_s and high_s (the interval's, by order statistics),
    min_s, p90_s, repetitions. An op that the backend does not have is left out and named in
    run.json.
    """
    workers, ops = workers or current(), list(dict.fromkeys(ops))
    counts = sorted(set([workers.n_workers] if n_workers is None else n_workers))
    _check(ops, counts, smallest, largest, workers)
    smallest, largest, counts = int(smallest), int(largest), list(map(int, counts))
    tight, seconds = float(tight), float(seconds)
    settings = {"command": "collectives", "label": label, "ops": ops, "workers": counts}
    settings |= {"smallest": smallest, "largest": largest, "tight": tight, "seconds": seconds}
    out = Folder(folder, settings | {"least": int(least)}, workers)
    if out.complete:
        return out.path
    measure = _Measure(workers, counts, tight, seconds, least)
    there = [op for op in ops if measure.available(op)]
    sizes = [smallest * 2**k for k in range((largest // smallest).bit_length())]
    cells = [(n, op, _whole(op, s, n)) for n, op, s in itertools.product(counts, there, sizes)]
    _sweep(out, list(dict.fromkeys(cells)), measure)
    missing = [op for op in ops if op not in there]
    return out.finish({"unavailable": missing, "units": _UNITS})


def _check(ops: list, counts: list, smallest: int, largest: int, workers: Workers) -> None:
    do = "Start with torchrun --standalone --nproc-per-node 2 -m workbench.capture collectives ..."
    require(workers.n_workers > 1, "workers", "2 or more", workers.n_workers, do)
    ok = smallest <= largest and smallest % 4 == 0
    require(ok, "smallest", f"a multiple of 4 bytes (float32) up to {largest}", smallest)
    for op in ops:
        one_of(OPS)(op, "ops")
    for n in counts:
        integer(2)(n, "n_workers")
        require(n <= workers.n_workers, "n_workers", f"2 to {workers.n_workers}", n)


def _whole(op: str, nbytes: int, n_workers: int) -> int:
    """Return about that many bytes, which all workers can share evenly."""
    each = 4 if op == "all_reduce" else 4 * n_workers  # float32
    return max(each, nbytes // each * each)


def _sweep(out: Folder, cells: list, measure: "_Measure") -> None:
    """Time the cells that the table does not have yet; rank 0 keeps the table."""
    first = out.workers.rank == 0
    before = rows_of(out.path / _FILE, _COLUMNS) if first else None
    notes = out.notes
    source, hardware = origin(notes, "collectives")
    software, threads = json.dumps(notes["software"]), notes["threads_per_worker"]
    comments = [
        source,
        f"{hardware}; load average before: {notes['load_average']:.2f}",
        f"software: {software}; threads per worker: {threads}",
        _UNITS[_FILE],
    ]
    keeping = Table(out.path / _FILE, _COLUMNS, comments, before) if first else nullcontext()
    with keeping as table:
        key = ["n_workers", "op", "nbytes"]
        done = set(before[key].itertuples(index=False, name=None)) if first else set()
        for cell in tqdm(cells, desc="messages", unit="message", disable=not first):
            if out.workers.slowest([float(tuple(map(str, cell)) in done)])[0]:
                continue
            row = measure(*cell)
            if first:
                table.add(row)


class _Measure:
    """Times a collective of one size between the first n workers."""

    def __init__(self, workers: Workers, counts: list[int], tight: float, seconds: float, least):
        self.workers, self.tight, self.seconds, self.least = workers, tight, seconds, least
        self.clock = Clock(workers.device)
        # Every worker takes part in making every group, even if it is not in it.
        self.groups = {n: dist.new_group(list(range(n))) for n in counts}

    def available(self, op: str) -> bool:
        """Return whether the backend has the collective; all workers call this together."""
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
        """Return the slowest worker's times of enough repetitions, sorted."""
        began, times = time.perf_counter(), []
        once()
        # All workers see the same numbers, so all stop after the same repetition.
        (estimate,) = self.workers.slowest([self._timed(once, group)], group)
        n = max(self.least, min(_ROUND, int(self.seconds / max(estimate, 1e-6))))
        while True:
            own = [self._timed(once, group) for _ in range(n)]
            *slowest, spent = self.workers.slowest([*own, time.perf_counter() - began], group)
            times = sorted(times + slowest)
            (low, high), widest = interval(times), 2 * self.tight * statistics.median(times)
            narrow = len(times) >= _ROUND and high - low <= widest
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
        """Return the collective as a call without arguments; sums of zeros cannot overflow."""
        whole = torch.zeros(nbytes // 4, device=self.clock.device)
        if op == "all_reduce":
            return lambda: dist.all_reduce(whole, group=group)
        share = torch.zeros(nbytes // 4 // n_workers, device=self.clock.device)
        # Renamed in torch 2.13, where the old names warn.
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        if op == "reduce_scatter":
            return lambda: scatter(share, whole, group=group)
        return lambda: gather(whole, share, group=group)


def interval(times: list[float]) -> tuple[float, float]:
    """Return the ends of the 95 % interval of the median of sorted times, by order statistics.

    The k-th of n sorted times is below the median with the probability of k or more heads in n
    coin tosses; so ranks n / 2 -+ 0.98 sqrt(n), rounded outwards, contain it with 95 % or more
    (Conover, Practical Nonparametric Statistics, section 3.2). With fewer than 6 times the ends
    are the least and the largest.
    """
    n = len(times)
    reach = 1.96 / 2 * math.sqrt(n)
    low = max(0, math.floor(n / 2 - reach) - 1)
    high = min(n - 1, math.ceil(n / 2 + reach))
    return times[low], times[high]
