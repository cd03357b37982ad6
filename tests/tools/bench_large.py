"""How load time and memory grow with a trace, on generated ones of 0.1 to 2 GB: `make bench-large`.

Each size is written to a temporary folder, loaded by separate processes that keep only the device
rows, and removed. The traces are synthetic: steps of 1,000 kernels, each with its operators, launch
and flow events as PyTorch writes them; every 50th kernel is an all-reduce that overlaps compute.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

GB = 10**9
PEAK_GB, SLOPE = 1.5, 1.25  # required: peak memory at any size, times the seconds of the smallest
KERNELS, MESSAGE = 1000, 50  # kernels a step; each so many is an all-reduce
HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "synthetic"}],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1700000000000000000,
  "traceEvents": [
"""
X = '  {{\n    "ph": "X", "cat": "{}", "name": "{}", "pid": {}, "tid": {},\n'
TIMES = '    "ts": {:.3f}, "dur": {:.3f},\n    "args": {{\n      {}\n    }}\n  }},\n'
FLOW = '  {{\n    "ph": "{}", "id": {}, "pid": {}, "tid": {}, "ts": {:.3f},\n    '
FLOW += '"cat": "ac2g", "name": "ac2g", "bp": "e"\n  }},\n'
KERNEL = '"External id": {0}, "queued": 0, "device": 0, "context": 1, "stream": {1},\n'
KERNEL += '      "correlation": {0}, "registers per thread": 16, "shared memory": 0,\n'
KERNEL += '      "blocks per SM": 0.3, "warps per SM": 1.2, "grid": [24, 1, 1],\n'
KERNEL += '      "block": [128, 1, 1], "est. achieved occupancy %": 2{2}'
MESSAGE_ARGS = ', "Collective name": "allreduce", "In msg nelems": 1048576, "dtype": "Float",\n'
MESSAGE_ARGS += '      "Group size": 2, "Process Group Name": "0"'
COMPUTE = "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>, 2>(int)"
LOAD = """
import json, sys, time
from workbench.traces import load_run
start, cpu = time.perf_counter(), time.process_time()
run = load_run(sys.argv[1], keep="kernels")
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
with open("/proc/self/status") as status:
    peak = int(next(line for line in status if line.startswith("VmHWM:")).split()[1]) * 1024
kinds = run.events["kind"].value_counts()
print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak, "comm": int(kinds["comm"]),
                  "compute": int(kinds["compute"]), "events": int(run.ledger["n_events"].sum())}))
"""


def complete(cat: str, name: str, pid: int, tid: int, ts: float, dur: float, args: str) -> str:
    return X.format(cat, name, pid, tid) + TIMES.format(ts, dur, args)


def one_kernel(i: int, ts: float) -> list[str]:
    """A kernel launched at `ts` us: operators, the launch, the flow between them, the kernel."""
    message = i % MESSAGE == MESSAGE - 1
    op = "c10d::allreduce_" if message else "aten::add"
    kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)" if message else COMPUTE
    stream, dur = (20, 310.25) if message else (7, 8.5)
    shapes = f'"External id": {i}, "Ev Idx": {2 * i}, "Input Dims": [[64, 1024], [64, 1024], []],\n'
    shapes += '      "Input type": ["float", "float", "Scalar"]'
    launch = f'"External id": {i}, "cbid": 211, "correlation": {i}'
    more = MESSAGE_ARGS if message else ""
    return [
        complete("cpu_op", op, 100, 100, ts, 9.125, shapes),
        complete("cpu_op", "aten::empty_strided", 100, 100, ts + 1, 2.5, f'"External id": {i}'),
        complete("cuda_runtime", "cudaLaunchKernel", 100, 100, ts + 4, 4.25, launch),
        FLOW.format("s", i, 100, 100, ts + 4),
        complete("kernel", kernel, 0, stream, ts + 20, dur, KERNEL.format(i, stream, more)),
        FLOW.format("f", i, 0, stream, ts + 20),
        complete("cpu_op", "detach", 100, 100, ts + 9.25, 0.5, f'"External id": {i}'),
    ]


def write(path: Path, size: float) -> dict[str, int]:
    """Write a trace of about `size` bytes; return its numbers of rows and events."""
    kernels = events = written = 0
    ts = 1000.0
    with path.open("w") as file:
        written += file.write(HEAD)
        while written < size:
            step = [one_kernel(kernels + i, ts + 10.0 * i) for i in range(KERNELS)]
            name, length = f"ProfilerStep#{kernels // KERNELS}", 10.0 * KERNELS
            lines = [complete("user_annotation", name, 100, 100, ts, length - 0.5, '"Ev Idx": 0')]
            lines += [line for kernel in step for line in kernel]
            written += file.write("".join(lines))
            kernels, events, ts = kernels + KERNELS, events + len(lines), ts + length
        file.write('  {"name": "Record Window End", "ph": "i", "ts": 0, "s": "g"}\n  ]\n}\n')
    comm = kernels // MESSAGE
    return {"compute": kernels - comm, "comm": comm, "events": events + 1}


def load(path: Path) -> dict:
    """What a fresh process needs to load the trace, imports left out of its time only."""
    run = subprocess.run(
        [sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(f"a load broke: {path.name}\n{run.stderr[-3000:]}")
    return json.loads(run.stdout)


def measure(size: float, repeats: int) -> dict[str, float]:
    """Write, load and remove a trace of `size` GB; print and return its seconds a GB and peak."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.json"
        free = shutil.disk_usage(folder).free
        if free < 1.2 * size * GB:
            raise SystemExit(f"{folder}: {free / GB:.1f} GB free, {1.2 * size:.1f} GB needed")
        written = write(path, size * GB)
        runs = [load(path) for _ in range(repeats)]
        true_size = path.stat().st_size / GB
    wrong = {key: runs[0][key] for key in written if runs[0][key] != written[key]}
    if wrong:
        raise SystemExit(f"loaded {wrong}, but written: {written}")
    median = {k: statistics.median(run[k] for run in runs) for k in ("seconds", "cpu")}
    found = {k: value / true_size for k, value in median.items()}
    found["peak"] = max(run["peak"] for run in runs) / GB
    times = f"{median['seconds']:10.2f}{found['seconds']:10.2f}{found['cpu']:10.2f}"
    print(f"{true_size:6.2f}{written['events']:12,d}{times}{found['peak']:10.2f}", flush=True)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sizes", type=float, nargs="+", default=[0.1, 0.5, 1, 2], help="in GB")
    options.add_argument("--repeats", type=int, default=3, help="loads of each; the median counts")
    chosen = options.parse_args()
    columns = ["events", "load, s", "s a GB", "CPU s/GB", "peak, GB"]
    print(f"{'GB':>6}{columns[0]:>12}" + "".join(f"{name:>10}" for name in columns[1:]))
    found = [measure(size, chosen.repeats) for size in sorted(chosen.sizes)]
    peak = max(each["peak"] for each in found)
    verdict(f"peak memory {peak:.2f} GB, under {PEAK_GB} GB required", peak < PEAK_GB)
    for what, name in (("seconds", "s"), ("cpu", "CPU s, whatever else the machine does")):
        slope = found[-1][what] / found[0][what]
        text = f"slope ratio {slope:.2f}: a GB of the largest by one of the smallest, in {name}"
        verdict(f"{text}; {SLOPE} at most", slope <= SLOPE)


def verdict(text: str, met: bool) -> None:
    print(f"{'met' if met else 'NOT MET'}: {text}")


if __name__ == "__main__":
    main()
