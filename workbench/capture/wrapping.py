"""What DistributedDataParallel costs an iteration by itself, without a message between workers."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tqdm.auto import tqdm

from ..base.checks import count
from ..base.tables import rows_of
from .folder import Table
from .hooks import trained
from .machine import machine
from .training import Training
from .workers import Workers, check_alone, current
from .workloads import Workload

_WARM_UP = 3  # iterations; it regroups its buckets after the first
_COLUMNS = ("iteration", "plain_s", "wrapped_s")


def time_wrapper(make: Callable[[], Workload], path: str | Path, *, iterations: int = 20) -> Path:
    """Time iterations of a lone worker with and without DistributedDataParallel, in pairs.

    make : the workload, anew at each call: it is trained twice side by side
    path : of the CSV; one that is complete is left as it is

    What it adds is its hooks, copies into messages and back, and calls that send nothing. Columns:
    iteration, plain_s, wrapped_s (s). Raises ValueError for several workers, and where make returns
    the same model twice.
    """
    path, workers = Path(path), current()
    check_alone(workers, "time_wrapper")
    count(iterations, "iterations", 1)
    if len(rows_of(path, _COLUMNS)) == iterations:
        return path
    said = machine(workers)
    comments = [
        f"source: workbench.capture profile, {said['kind']}, {said['date']}",
        f"hardware: {said['hardware']}",
        "s an iteration of one worker, plain and in DistributedDataParallel, in turns",
    ]
    with _group(workers), Table(path, _COLUMNS, comments) as table:
        plain, wrapped = (Training(make(), workers) for _ in range(2))
        if plain.bare is wrapped.bare:
            raise ValueError("make: expected a model of its own at each call, got the same twice")
        unused = len(wrapped.order()) < len(trained(wrapped.model))
        on_gpu = workers.device.type == "cuda"
        wrapped.model = DistributedDataParallel(
            wrapped.model,
            device_ids=[workers.device] if on_gpu else None,
            find_unused_parameters=unused,
        )
        for number in tqdm(range(-_WARM_UP, iterations), desc="wrapper", unit="pair"):
            pair = plain.iterate().iteration_s, wrapped.iterate().iteration_s
            if number >= 0:
                table.add([number, *pair])
    return path


@contextlib.contextmanager
def _group(workers: Workers) -> Iterator[None]:
    """Have a process group, of this worker alone unless there is one."""
    if dist.is_initialized():
        yield
        return
    backend = "nccl" if workers.device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
