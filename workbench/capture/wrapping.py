"""What DistributedDataParallel adds to an iteration of one worker, which sends no messages."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch.distributed as dist
from tqdm.auto import tqdm

from ..base.checks import checked, integer, require
from ..base.tables import rows_of
from .apply import in_ddp
from .folder import Table
from .hooks import trained
from .machine import machine, origin
from .training import Training
from .workers import Workers, check_alone, current
from .workloads import Workload

_WARM_UP = 3  # iterations; buckets are regrouped after the first
_COLUMNS = ("iteration", "plain_s", "wrapped_s")


@checked(iterations=integer())
def time_wrapper(make: Callable[[], Workload], path: str | Path, *, iterations: int = 20) -> Path:
    """Time iterations of one worker with and without DistributedDataParallel, in pairs.

    make : returns the workload, with a new model at each call: two are trained in turns
    path : of the CSV; a complete one is left as it is

    The difference is hooks, copies into messages and back, and calls that send nothing. Columns:
    iteration, plain_s, wrapped_s (s).
    """
    path, workers = Path(path), current()
    check_alone(workers, "time_wrapper")
    if len(rows_of(path, _COLUMNS)) == iterations:
        return path
    comments = [
        *origin(machine(workers), "profile"),
        "s per iteration of one worker, without and with DistributedDataParallel, in turns",
    ]
    with _group(workers), Table(path, _COLUMNS, comments) as table:
        bare, wrapped = (Training(make(), workers) for _ in range(2))
        own = bare.bare is not wrapped.bare
        require(own, "make", "a new model at each call", found="the same twice")
        unused = len(wrapped.order()) < len(trained(wrapped.model))
        wrapped.model = in_ddp(wrapped.model, find_unused_parameters=unused)
        for number in tqdm(range(-_WARM_UP, iterations), desc="wrapper", unit="pair"):
            pair = bare.iterate().iteration_s, wrapped.iterate().iteration_s
            if number >= 0:
                table.add([number, *pair])
    return path


@contextlib.contextmanager
def _group(workers: Workers) -> Iterator[None]:
    """Provide a process group: the one there is, or one of this worker alone."""
    if dist.is_initialized():
        yield
        return
    backend = "nccl" if workers.device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
