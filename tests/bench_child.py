"""One side of bench_load.py, in the Python that has the package: load on request, report.

    python bench_child.py workbench|hta RANK FILE

Each line on standard input asks for one load; each is answered by a line of JSON on the pipe that
was standard output. What the packages print themselves goes to standard error.
"""

import gc
import json
import os
import resource
import sys
import time


def memory(field: str) -> float:
    """A field of /proc/self/status (VmRSS now, VmHWM peak), in bytes."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024.0


def loader(package: str, rank: int, file: str):
    """The public load call of a package, and its version."""
    if package == "workbench":
        from importlib.metadata import version

        from workbench.traces import load_run

        return lambda: load_run(file), version("osf-workbench")
    import logging
    from importlib.metadata import version

    from hta.trace_analysis import TraceAnalysis

    logging.disable(logging.INFO)
    # Told to keep the last iteration, it loads what load_run loads.
    options = {"trace_files": {rank: file}, "include_last_profiler_step": True}
    return lambda: TraceAnalysis(**options), version("traceinsight")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    package, rank, file = sys.argv[1:]
    load, version = loader(package, int(rank), file)
    gc.collect()
    imported = memory("VmRSS")
    answers.write(json.dumps({"version": version, "imported_bytes": imported}) + "\n")
    for _ in sys.stdin:
        start = time.perf_counter()
        loaded = load()
        seconds = time.perf_counter() - start
        del loaded
        gc.collect()
        # Peaks since the process began, imports and earlier loads included. HTA parses in a forked
        # child, whose peak the system gives once it has ended.
        child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024.0
        answer = {"seconds": seconds, "peak_bytes": memory("VmHWM"), "child_bytes": child}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
