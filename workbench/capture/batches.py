"""How an iteration's time grows with the batch."""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from tqdm.auto import tqdm

from ..base.checks import checked, integer
from ..base.tables import rows_of
from .folder import Table
from .machine import machine, origin
from .training import Times, Training
from .workers import check_alone, current
from .workloads import Workload

_WARM_UP = 2  # iterations
_COLUMNS = ("batch", "iteration", *Times._fields[:-1], "seconds")


@checked(iterations=integer())
def sweep_batches(
    make: Callable[[int], Workload],
    batches: Iterable[int],
    path: str | Path,
    *,
    iterations: int = 10,
) -> Path:
    """Time iterations of one worker at several batch sizes and write them for fit_batch_time.

    make : batch -> Workload
    path : of the CSV; batch sizes that it has already are not timed again

    The sweep ends before the first batch size that does not fit into the GPU's memory. Columns:
    batch (samples), iteration, data_s, forward_s, backward_s, update_s and seconds (all).
    """
    path, workers = Path(path), current()
    check_alone(workers, "sweep_batches")
    for batch in (batches := list(batches)):
        integer()(batch, "batches")
    before = rows_of(path, _COLUMNS)
    each = before["batch"].astype(int)
    before = before[each.map(each.value_counts()) >= iterations]
    left = sorted({int(batch) for batch in batches} - set(before["batch"].astype(int)))
    comments = [
        *origin(machine(workers), "profile"),
        "batch in samples per worker; times in s, parts on the device's clock",
    ]
    with Table(path, _COLUMNS, comments, before) as table:
        for batch in tqdm(left, desc="batches", unit="batch"):
            try:
                training = Training(make(batch), workers)
                times = [training.iterate() for _ in range(_WARM_UP + iterations)]
            except torch.OutOfMemoryError:
                break  # larger ones do not fit either
            for number, each in enumerate(times[_WARM_UP:]):
                table.add([batch, number, *each])
    return path
