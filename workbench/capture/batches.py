"""How an iteration's time grows with the batch."""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from tqdm.auto import tqdm

from ..base.checks import count
from ..base.tables import rows_of
from .folder import Table
from .machine import machine
from .training import Times, Training
from .workers import check_alone, current
from .workloads import Workload

_WARM_UP = 2  # iterations
_COLUMNS = ("batch", "iteration", *Times._fields[:-1], "seconds")


def sweep_batches(
    make: Callable[[int], Workload],
    batches: Iterable[int],
    path: str | Path,
    *,
    iterations: int = 10,
) -> Path:
    """Time iterations of one worker at several batch sizes and write them for fit_batch_time.

    make : batch -> Workload; path : of the CSV; batch sizes it has already are left as they are,
    and those from the first on that does not fit into the GPU's memory are left out.
    Columns: batch (samples), iteration, data_s, forward_s, backward_s, update_s and seconds (all).
    Raises ValueError for a batch that is no number from 1 up, and for several workers.
    """
    path, workers = Path(path), current()
    check_alone(workers, "sweep_batches")
    batches = sorted({count(batch, "batches", 1) for batch in batches})
    count(iterations, "iterations", 1)
    before = rows_of(path, _COLUMNS)
    each = before["batch"].astype(int)
    before = before[each.map(each.value_counts()) >= iterations]
    done = set(before["batch"].astype(int))
    said = machine(workers)
    comments = [
        f"source: workbench.capture profile, {said['kind']}, {said['date']}",
        f"hardware: {said['hardware']}",
        "batch in samples a worker; times in s, parts on the device's clock",
    ]
    with Table(path, _COLUMNS, comments, before) as table:
        for batch in tqdm(batches, desc="batches", unit="batch"):
            if batch in done:
                continue
            try:
                training = Training(make(batch), workers)
                times = [training.iterate() for _ in range(_WARM_UP + iterations)]
            except torch.OutOfMemoryError:
                break  # what is larger does not fit either
            for number, each in enumerate(times[_WARM_UP:]):
                table.add([batch, number, *each])
    return path
