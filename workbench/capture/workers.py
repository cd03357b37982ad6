"""The workers of a run: their ranks, how they meet, and how they end when one is lost.

A launcher's environment says which worker this is: torchrun's (RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), SLURM's (SLURM_PROCID, ...) or Open MPI's.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist

from ..base.checks import require
from .watch import watched

_LAUNCHERS = {  # our name -> SLURM's and Open MPI's
    "RANK": ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK"),
    "WORLD_SIZE": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"),
    "LOCAL_RANK": ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "LOCAL_WORLD_SIZE": (
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_NTASKS_PER_NODE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
}


@dataclass(frozen=True)
class Workers:
    """This worker and the others: its rank, their number, how many per node, its device."""

    rank: int = 0
    n_workers: int = 1
    workers_per_node: int = 1
    device: torch.device = torch.device("cpu")
    backend: str = "none"

    def nodes_of(self, n_workers: int) -> int:
        """Return how many nodes the first n_workers are on; ranks fill one node after another."""
        return -(-n_workers // self.workers_per_node)

    def meet(self) -> None:
        """Wait for all workers."""
        if self.n_workers > 1:
            dist.barrier()

    def slowest(self, seconds: list[float], group=None) -> list[float]:
        """Return the element-wise largest of all workers' values."""
        if self.n_workers == 1:
            return seconds
        together = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        dist.all_reduce(together, dist.ReduceOp.MAX, group=group)
        return together.tolist()


def current() -> Workers:
    """Return the workers of this process's group, or one worker without a group.

    For use inside a program that made its process group itself.
    """
    if not dist.is_initialized():
        return Workers(device=_device())
    size = dist.get_world_size()
    each = int(announced(os.environ).get("LOCAL_WORLD_SIZE", size))
    return Workers(dist.get_rank(), size, each, _device(), dist.get_backend())


@contextlib.contextmanager
def joined(backend: str | None = None, device: str = "auto", timeout_s: float = 120.0) -> Iterator:
    """Join the process group that the launcher announces, for a while; yields the Workers.

    backend : nccl, gloo or mpi; by default nccl on a GPU and gloo without one
    device : cpu, cuda, or auto
    timeout_s : how long a worker may be silent before the others end, with one message
    """
    environment = announced(os.environ)
    chosen = _device(device)
    backend = backend or ("nccl" if chosen.type == "cuda" else "gloo")
    _check_backend(backend, chosen)
    if int(environment.get("WORLD_SIZE", 1)) < 2 and backend != "mpi":
        yield Workers(device=chosen)
        return
    os.environ.update(environment)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    except (dist.DistError, ValueError) as error:
        names = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK")
        n, host, port, rank = map(os.environ.get, names)
        expected = f"workers: expected {n} at {host}:{port} within {timeout_s} s"
        why = str(error).splitlines()[0]
        raise ValueError(f"{expected}, got fewer (rank {rank}): {why}") from None
    workers = replace(current(), device=chosen)
    with watched(workers.rank, workers.n_workers, timeout_s, has_store=backend != "mpi"):
        yield workers
        workers.meet()  # so that none takes another's end for its loss
    # Not after an error: it would wait for a lost worker.
    dist.destroy_process_group()


def check_alone(workers: Workers, what: str) -> None:
    """Raise ValueError for several workers."""
    require(workers.n_workers < 2, what, "one worker", workers.n_workers)


def announced(environment: dict) -> dict:
    """Return what a launcher's environment says, under the names that torch reads.

    SLURM names no address to meet at: it is the first host of the job, and the port follows from
    the numbers of job and step, so that two of them on a host do not meet. The script of a job also
    gets the job's number of tasks, but is alone: only the tasks of a step are workers.
    """
    if "SLURM_TASK_PID" in environment and "SLURM_STEP_NUM_TASKS" not in environment:
        environment = {k: v for k, v in environment.items() if not k.startswith("SLURM_")}
    found = {name: _said(name, environment) for name in _LAUNCHERS}
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    numbers = (
        int(_digits(environment.get(f"SLURM_{each}_ID", "")) or 0) for each in ("JOB", "STEP")
    )
    port = 20_000 + sum(numbers) % 20_000
    found["MASTER_ADDR"] = environment.get("MASTER_ADDR") or (_first_host(hosts) if hosts else "")
    found["MASTER_PORT"] = environment.get("MASTER_PORT") or (str(port) if hosts else "")
    return {name: value for name, value in found.items() if value}


def _said(name: str, environment: dict) -> str:
    values = (_digits(environment.get(each, "")) for each in (name, *_LAUNCHERS[name]))
    return next((value for value in values if value), "")


def _digits(text: str) -> str:
    """Return the digits a text begins with: the first node's tasks from SLURM's 8(x3),4."""
    return re.match(r"[0-9]*", text)[0]


def _first_host(nodelist: str) -> str:
    """Return the first of SLURM's list of hosts: gpu[03-05,9],cpu1 -> gpu03."""
    return "".join(re.match(r"([^,\[]*)\[?(\w*)", nodelist).groups())


def _device(device: str = "auto") -> torch.device:
    found = device != "cuda" or torch.cuda.is_available()
    require(found, "device", "a GPU that this torch sees", found="none", do="Take --device cpu")
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    # A launcher may show each worker only its own GPU, which then is number 0.
    index = int(_said("LOCAL_RANK", os.environ) or 0) % torch.cuda.device_count()
    return torch.device("cuda", index)


def _check_backend(backend: str, device: torch.device) -> None:
    has = {
        "nccl": dist.is_nccl_available(),
        "gloo": dist.is_gloo_available(),
        "mpi": dist.is_mpi_available(),
    }
    there = ", ".join(name for name, available in has.items() if available)
    require(has.get(backend), "backend", f"one that this torch has ({there})", backend)
    usable = backend != "nccl" or device.type == "cuda"
    require(usable, "backend", "gloo on the CPU, as nccl needs a GPU", backend)
