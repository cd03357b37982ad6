"""From files to what each iteration did.

    run = load_run(path)        # a file, a folder with one trace per rank, a pattern, a list, a tar
    iterations(run)             # where each rank's time goes
    gradients(run)              # size of each gradient, and when backward has it ready
    timed = read_measurements(path)

The format of a file is detected from its content, never from its name; files may be gzipped:

    PyTorch profiler (Kineto) on CUDA, ROCm or CPU   load_run
    Nsight Systems exports (SQLite)                  load_run; one rank per device
    Horovod timelines                                load_run; negotiation, queue, fused messages
    MXNet, ByteScheduler, BytePS, TensorFlow         load_run
    NCCL profiler output                             load_run
    PyTorch execution traces                         add_sizes(run, path): sizes that a trace lacks
    CSV of nvprof and `nsys stats`                   read_totals: sums only, overlap is unknown
    nccl-tests, rccl-tests, OSU, look-up tables,     read_measurements: timed collectives
    CSV, any DataFrame

How to record, next to PyTorch's profiler (README). Horovod's timeline has no backward pass, so
record one GPU with the profiler for a forecast. For Nsight Systems put each iteration into a
range, `torch.cuda.nvtx.range_push(f"iteration {i}")` and `range_pop()`, and record between
`torch.cuda.profiler.start()` and `stop()`:

    horovodrun -np 4 --timeline-filename $PWD/myrun.json --timeline-mark-cycles python train.py
    nsys profile --trace=cuda,nvtx --cuda-graph-trace=node \\
        --capture-range=cudaProfilerApi --capture-range-end=stop -o myrun python train.py
    nsys export --type=sqlite --include-blobs=true --output=myrun.sqlite myrun.nsys-rep

Columns of a CSV or DataFrame are found by their usual names, with the unit in the name:
`size_mib` or `Size (KiB)`, `time_us` or `latency_ms`, `n_workers`, `world_size`, `ranks` or
`gpus`; `nbytes` and `seconds` need no unit. Rename others first:

    read_measurements(table.rename(columns={"team": "n_workers", "took": "time_us"}))
    read_measurements("log.txt").assign(n_workers=8)  # if the file does not say

`load_run(path, patterns={"fast_reduce": "all_reduce"})` names communication kernels that are not
known. A damaged file yields what is left of it and one warning; `run.ledger` accounts for every
event. Rank clocks are aligned; the remaining skew is reported. `load_run(path, keep="kernels")`
streams files larger than memory, `executor=` reads ranks in parallel, and `cache=True` makes the
second load instant.
"""

from .breakdown import (
    all_reduces,
    collectives,
    gradients,
    gradients_by_iteration,
    iterations,
    medians,
    stragglers,
)
from .crosscheck import cross_check
from .run import Run, add_sizes, load_run, read_events, read_measurements, read_totals
from .tracks import Lanes, lanes

__all__ = [
    "Lanes",
    "Run",
    "add_sizes",
    "all_reduces",
    "collectives",
    "cross_check",
    "gradients",
    "gradients_by_iteration",
    "iterations",
    "lanes",
    "load_run",
    "medians",
    "read_events",
    "read_measurements",
    "read_totals",
    "stragglers",
]
