"""The workers of a run: who they are, how they meet, and what ends them when one is lost.

A launcher's environment says who this worker is: torchrun's (RANK, WORLD_SIZE, LOCAL_RANK,
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
    """This worker among its like: its rank, how many there are, a node's share, its device."""

    rank: int = 0
    n_workers: int = 1
    workers_per_node: int = 1
    device: torch.device = torch.device("cpu")
    backend: str = "none"

    def nodes_of(self, n_workers: int) -> int:
        """Return how many nodes the first so many workers are on; ranks fill one after another."""
        return -(-n_workers // self.workers_per_node)

    def meet(self) -> None:
        """Wait for all workers."""
        if self.n_workers > 1:
            dist.barrier()

    def slowest(self, seconds: list[float], group=None) -> list[float]:
        """Return the largest of all workers' values, each by each."""
        if self.n_workers == 1:
            return seconds
        together = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        dist.all_reduce(together, dist.ReduceOp.MAX, group=group)
        return together.tolist()


def current() -> Workers:
    """Return the workers of the process group this process is in; a lone one where it is in none.

    For use inside a program that made its process group itself.
    """
    if not dist.is_initialized():
        return Workers(device=_device())
    size = dist.get_world_size()
    each = int(announced(os.environ).get("LOCAL_WORLD_SIZE", size))
    return Workers(dist.get_rank(), size, each, _device(), dist.get_backend())


@contextlib.contextmanager
def joined(backend: str | None = None, device: str = "auto", timeout_s: float = 120.0) -> Iterator:
    """Join the process group the launcher announces, for a while; yields the Workers.

    backend : nccl where there is a GPU and gloo where there is none by default; or mpi
    device : cpu, cuda, or auto
    timeout_s : how long a worker may not answer before the others end, with one message

    Raises ValueError for a backend or device that this torch does not have.
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
        raise ValueError(
            f"workers: {os.environ.get('WORLD_SIZE')} did not meet at "
            f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')} within {timeout_s} s "
            f"(rank {os.environ.get('RANK')}): {str(error).splitlines()[0]}"
        ) from None
    workers = replace(current(), device=chosen)
    with watched(workers.rank, workers.n_workers, timeout_s, has_store=backend != "mpi"):
        yield workers
        workers.meet()  # so that none takes another's leaving for its loss
    # Not after an error: what waits for a lost worker would wait here, too.
    dist.destroy_process_group()


def check_alone(workers: Workers, what: str) -> None:
    """Raise ValueError for several workers."""
    if workers.n_workers > 1:
        raise ValueError(f"{what}: expected one worker, got {workers.n_workers}")


def announced(environment: dict) -> dict:
    """Return what a launcher's environment says, under the names that torch reads.

    SLURM names no address to meet at: it is the first host of the job, and the port follows from
    the numbers of job and step, so that two of them on a host do not meet. The script of a job is
    told how many tasks the job has, too, but is alone: only a step's tasks are workers.
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
    """Return the digits a text begins with: of SLURM's 8(x3),4 tasks on nodes the first node's."""
    return re.match(r"[0-9]*", text)[0]


def _first_host(nodelist: str) -> str:
    """Return the first of SLURM's list of hosts: gpu[03-05,9],cpu1 -> gpu03."""
    first = re.match(r"[^,\[]+", nodelist)
    number = re.match(r"[^,\[]+\[(\w+)", nodelist)
    return (first[0] if first else "") + (number[1] if number else "")


def _device(device: str = "auto") -> torch.device:
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: this torch sees no GPU; expected --device cpu")
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    # A launcher may show each worker a GPU of its own only, which then is number 0.
    index = int(_said("LOCAL_RANK", os.environ) or 0) % torch.cuda.device_count()
    return torch.device("cuda", index)


def _check_backend(backend: str, device: torch.device) -> None:
    has = {
        "nccl": dist.is_nccl_available(),
        "gloo": dist.is_gloo_available(),
        "mpi": dist.is_mpi_available(),
    }
    if not has.get(backend):
        there = ", ".join(name for name, available in has.items() if available)
        raise ValueError(f"backend: expected one this torch has ({there}), got {backend!r}")
    if backend == "nccl" and device.type != "cuda":
        raise ValueError("backend: nccl needs a GPU, and the device is the CPU; take gloo")
