"""The machine of a run in words: hardware, software, date."""

import contextlib
import os
import platform
from datetime import UTC, datetime
from importlib import metadata

import torch

from ..base.units import format_bytes
from .workers import Workers


def machine(workers: Workers) -> dict:
    """Return what run.json says about the machine of a run, without the name of the host."""
    cuda = workers.device.type == "cuda"
    where = "GPU run" if cuda else "CPU run, no GPU: times are not those of a GPU cluster"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpu = torch.cuda.get_device_name(workers.device) if cuda else "no GPU"
    return {
        "kind": f"{where}; communication: {workers.backend}",
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": f"{gpu}; CPU {_cpu()} ({os.cpu_count()} cores, {format_bytes(memory)} memory)",
        "software": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda or "none",
            "workbench": metadata.version("osf-workbench"),
        },
        "backend": workers.backend,
        "device": workers.device.type,
        "world_size": workers.n_workers,
        "n_nodes": workers.nodes_of(workers.n_workers),
        "threads_per_worker": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
    }


def origin(notes: dict, command: str) -> list[str]:
    """Return the first comments of a table: what wrote it, when, and on which hardware."""
    source = f"source: workbench.capture {command}, {notes['kind']}, {notes['date']}"
    return [source, f"hardware: {notes['hardware']}"]


def _cpu() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()
