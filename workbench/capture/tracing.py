"""Traces of a few iterations by torch's profiler."""

import gzip
import json
import os
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, schedule

from .training import Times, Training

WARM_UP = 2  # iterations; the first ones under the profiler are slower
# What a trace says of the machine or the person (host_name, traceName with its path) stays out.
_KEYS = (
    "schemaVersion",
    "deviceProperties",
    "record_shapes",
    "distributedInfo",
    "displayTimeUnit",
    "baseTimeNanoseconds",
    "traceEvents",
)


def traced(training: Training, iterations: int, marks: list, path: Path) -> list[Times]:
    """Profile a few iterations, write their trace, and return their times; marks are theirs.

    A Chrome trace as torch writes it, with shapes, packed; without the names of host and files.
    """
    activities = [ProfilerActivity.CPU]
    if training.clock.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    plan = schedule(wait=0, warmup=WARM_UP, active=iterations, repeat=1)
    times = []
    with profile(activities=activities, schedule=plan, record_shapes=True, acc_events=True) as p:
        for number in range(WARM_UP + iterations):
            if number == WARM_UP:
                marks.clear()
            times.append(training.iterate(marks))
            p.step()
    _write(p, path)
    return times[WARM_UP:]


def _write(profiled: profile, path: Path) -> None:
    raw = path.with_suffix(".raw")
    profiled.export_chrome_trace(str(raw))
    trace = json.loads(raw.read_text(encoding="utf-8"))
    trace = {key: trace[key] for key in _KEYS if key in trace}
    trace.setdefault("distributedInfo", {"rank": 0, "world_size": 1})  # torch omits it for one
    # mtime=0 and no name in the header: the same trace gives the same bytes anywhere.
    packed = gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), 9, mtime=0)
    raw.write_bytes(packed)
    os.replace(raw, path)  # so that a trace is whole or not there
