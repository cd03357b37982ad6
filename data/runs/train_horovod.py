"""Train ResNet-50 under Horovod on two CPU workers and keep Horovod's timeline as a run folder.

    export HOROVOD_TIMELINE=DYNAMIC HOROVOD_TIMELINE_MARK_CYCLES=1 PYTHONPATH=.
    horovodrun --gloo --network-interface lo -np 2 -H localhost:2 \\
        python data/runs/train_horovod.py NEW_FOLDER

DYNAMIC lets the timeline begin after the warm-up. Rank 0 alone writes one.
"""

import gzip
import json
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import horovod
import horovod.torch as hvd
import torch
from torch import nn

from workbench.capture.models import ResNet50

BATCH, IMAGE_SIZE, WARM_UP, ITERATIONS = 8, 96, 4, 3


def main(folder: Path) -> None:
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())
    load = os.getloadavg()[0]
    model = ResNet50()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    inputs = torch.randn(BATCH, 3, IMAGE_SIZE, IMAGE_SIZE)
    targets = torch.randint(1000, (BATCH,))

    def iterate() -> float:
        began = time.perf_counter()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()  # waits for every all-reduce, so the workers go in step
        optimizer.zero_grad()
        return time.perf_counter() - began

    seconds = {"plain": [iterate() for _ in range(WARM_UP + ITERATIONS)][WARM_UP:]}
    raw = folder / "rank0.raw"
    if hvd.rank() == 0:  # the only worker that writes one
        folder.mkdir(parents=True)
    hvd.start_timeline(str(raw), mark_cycles=True)
    seconds["timeline"] = [iterate() for _ in range(ITERATIONS)]
    hvd.stop_timeline()
    if hvd.rank() == 0:
        (folder / "rank0.json.gz").write_bytes(gzip.compress(raw.read_bytes(), 9, mtime=0))
        raw.unlink()
        text = json.dumps(about(model, seconds, load), indent=2) + "\n"
        (folder / "run.json").write_text(text, encoding="utf-8")


def about(model: nn.Module, seconds: dict, load: float) -> dict:
    parameters = list(model.parameters())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cpu = Path("/proc/cpuinfo").read_text().split("model name")[1].split("\n")[0].strip("\t: ")
    return {
        "kind": "CPU run, no GPU: times are not those of a GPU cluster; communication: gloo",
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": f"no GPU; CPU {cpu} ({os.cpu_count()} cores, {memory:.1f} GiB memory)",
        "software": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "horovod": horovod.__version__,
            "cuda": "none",
        },
        "backend": "gloo",
        "device": "cpu",
        "world_size": hvd.size(),
        "n_nodes": hvd.cross_size(),
        "threads_per_worker": torch.get_num_threads(),
        "model": type(model).__name__,
        "dtype": "float32",
        "batch_per_worker": BATCH,
        "image_size": IMAGE_SIZE,
        "n_gradients": len(parameters),
        "n_parameters": sum(p.numel() for p in parameters),
        "gradient_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "fusion_threshold_bytes": int(os.environ.get("HOROVOD_FUSION_THRESHOLD", 128 * 2**20)),
        "cycle_s": float(os.environ.get("HOROVOD_CYCLE_TIME", 1)) / 1e3,
        "n_iterations": ITERATIONS,
        "iteration_s": seconds,
        "load_average": load,
        "units": {
            "iteration_s": "seconds on rank 0's clock: plain, and with the timeline",
            "fusion_threshold_bytes": "HOROVOD_FUSION_THRESHOLD, the default of 128 MiB",
            "cycle_s": "HOROVOD_CYCLE_TIME, the default of 1 ms",
            "load_average": "runnable processes over the minute before the run",
            "rank0.json.gz": "Horovod's timeline of rank 0, times in microseconds",
        },
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
