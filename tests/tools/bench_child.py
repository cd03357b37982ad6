"""One side of bench_load.py, in the Python that has the package: load on request, report.

    python bench_child.py SIDE '{"RANK": "FILE", ...}'

Each line on standard input asks for one load; each is answered by a line of JSON on the pipe that
was standard output. What the packages print themselves goes to standard error.
"""

import functools
import gc
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path


def memory(field: str) -> float:
    """A field of /proc/self/status (VmRSS now, VmHWM peak), in bytes."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024.0


def timed(load) -> float:
    """Seconds of one load; what it loaded lives until the clock has stopped."""
    start = time.perf_counter()
    loaded = load()
    seconds = time.perf_counter() - start
    del loaded
    gc.collect()
    return seconds


# Each side imports what it needs and returns its name and a call that loads once: its seconds.


def workbench(files: dict[int, str]):
    from workbench.traces import load_run

    path = _path(files)
    return f"workbench {version('osf-workbench')}", lambda: timed(lambda: load_run(path))


def workbench_unpacked(files: dict[int, str]):
    """The very files that JsonProfile reads."""
    return "workbench, unpacked files", workbench(files)[1]


def workbench_2_processes(files: dict[int, str]):
    from workbench.traces import load_run

    path = _path(files)

    def load():
        with ProcessPoolExecutor(2) as executor:
            return load_run(path, executor)

    return "workbench, ProcessPoolExecutor(2)", lambda: timed(load)


def workbench_cache(files: dict[int, str]):
    from workbench.traces import load_run

    path = _path(files)

    def reopen() -> float:
        with tempfile.TemporaryDirectory() as folder:
            load = functools.partial(load_run, path, cache=folder)
            load()
            return timed(load)

    return "workbench, reopened from its cache", reopen


def hta(files: dict[int, str]):
    import logging

    from hta.trace_analysis import TraceAnalysis

    logging.disable(logging.WARNING)
    # Told to keep the last iteration, it loads what load_run loads.
    options = {"trace_files": files, "include_last_profiler_step": True}
    return f"HTA {version('traceinsight')}", lambda: timed(lambda: TraceAnalysis(**options))


def json_profile(files: dict[int, str]):
    """One file after another, none of them kept; it reads no gzip, so its files are unpacked."""
    from torch._inductor.analysis.profile_analysis import JsonProfile

    def load() -> float:
        return sum(timed(functools.partial(JsonProfile, file)) for file in files.values())

    return f"JsonProfile, torch {version('torch')}", load


def floor(files: dict[int, str]):
    """What no loader of these files can beat by much: unpack, check and index the JSON."""
    import simdjson
    from isal import igzip

    def parse(file: str):
        return simdjson.Parser().parse(igzip.decompress(Path(file).read_bytes()))

    def load() -> float:
        return sum(timed(functools.partial(parse, file)) for file in files.values())

    return f"floor: isal {version('isal')}, pysimdjson {version('pysimdjson')}", load


def _path(files: dict[int, str]) -> Path:
    first = Path(next(iter(files.values())))
    return first if len(files) == 1 else first.parent


SIDES = [
    workbench,
    workbench_unpacked,
    workbench_2_processes,
    workbench_cache,
    hta,
    json_profile,
    floor,
]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sides = {side.__name__: side for side in SIDES}
    files = {int(rank): file for rank, file in json.loads(sys.argv[2]).items()}
    name, load = sides[sys.argv[1]](files)
    gc.collect()
    answers.write(json.dumps({"name": name, "imported_bytes": memory("VmRSS")}) + "\n")
    for _ in sys.stdin:
        answers.write(json.dumps({"seconds": load(), "peak_bytes": memory("VmHWM")}) + "\n")


if __name__ == "__main__":
    main()
