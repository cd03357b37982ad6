"""How long a widget takes from a slider's move to the new picture, for `make bench`.

Every control of every widget is moved at random, and timed until the picture is there: what the
kernel does, without the page. No picture can be faster than the PNG of an empty figure, shown for
comparison. Memory is what the process holds after the moves over what it held once all controls
had been moved a few times. Exits 1 if a widget is slower than required or grows. `--cpu` judges
the time of this process alone, on a machine that does other things.
"""

import argparse
import gc
import io
import random
import resource
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from ipywidgets import Checkbox, FloatLogSlider, FloatRangeSlider, IntSlider, SelectionRangeSlider
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from workbench import whatif
from workbench.explore import (
    explore_fit,
    explore_fusion,
    explore_run,
    explore_scaling,
    explore_steps,
    explore_timeline,
    explore_whatif,
)
from workbench.figures import paper
from workbench.fits import fit_all_reduce
from workbench.fusion import DDPBuckets, PerTensor
from workbench.timeline import Scenario
from workbench.traces import load_run, read_measurements

ROOT = Path(__file__).resolve().parents[2]
MEDIAN_MS, P95_MS, GROWN_MB = 100.0, 200.0, 10.0  # required
SETTLED = 150  # moves after which what is kept of the latest settings is full


def v100() -> Scenario:
    """Return ResNet-50 as traced on one V100, on 32 of them."""
    rows = pd.read_csv(ROOT / "data/published/v100_backward_trace.csv", comment="#")
    rows = rows[rows["model"] == "resnet50"].reset_index(drop=True)
    table = rows.assign(name=rows["index"].astype(str))[["name", "nbytes", "ready_s"]]
    times = rows["one_worker_s"].iloc[0], rows["ready_s"].max()
    return Scenario(table, *times, 32, ring().model, DDPBuckets())


def ring():
    """Return the fit of all-reduces timed on 32 GPUs over 100 Gbit/s."""
    return fit_all_reduce(sweeps()["ring"], min_bytes=2**20)


def sweeps() -> dict:
    """Return measured sweeps by label."""
    folder = ROOT / "data/published"
    files = {"ring": "nccl_32gpu_100gbit_ring.csv", "as chosen": "nccl_32gpu_100gbit.csv"}
    return {label: read_measurements(folder / name) for label, name in files.items()}


def explorers():
    """Yield every widget's name and a call that makes it."""
    scenario, tables = v100(), sweeps()
    tried = {
        "overlap": whatif.Overlap(),
        "adaptive fusion": whatif.AdaptiveFusion(),
        "fp16": whatif.HalfPrecision(),
        "4 times fewer bytes": whatif.Compression(4),
        "priorities": whatif.PriorityScheduling(),
    }
    yield "timeline", lambda: explore_timeline(scenario)
    yield "scaling", lambda: explore_scaling(scenario)
    yield "steps", lambda: explore_steps(scenario)
    yield "run", lambda: explore_run(load_run(ROOT / "data/runs/resnet50-cpu-2"))
    yield "fit", lambda: explore_fit(tables)
    yield "fusion", lambda: explore_fusion(scenario)
    plain = replace(scenario, fusion=PerTensor(), overlap=False)
    yield "what-if", lambda: explore_whatif(plain, tried)


def move(control, rng: random.Random):
    """Move a control somewhere in its range, as a hand might."""
    if isinstance(control, Checkbox):
        control.value = not control.value
    elif isinstance(control, SelectionRangeSlider):
        control.index = tuple(sorted(rng.sample(range(len(control.options)), 2)))
    elif hasattr(control, "options"):
        control.index = rng.randrange(len(control.options))
    elif isinstance(control, FloatRangeSlider):
        control.value = tuple(sorted(rng.uniform(control.min, control.max) for _ in range(2)))
    elif isinstance(control, FloatLogSlider):
        control.value = control.base ** rng.uniform(control.min, control.max)
    elif isinstance(control, IntSlider):
        control.value = rng.randint(control.min, control.max)
    else:
        raise ValueError(f"control: expected one that can be moved, got {type(control).__name__}")


def moved(explorer, n: int, rng: random.Random, clock=time.perf_counter):
    """Make n moves that change something; yield the control and the s of each by the clock."""
    controls = explorer._controls
    while n:
        name = rng.choice([name for name, each in controls.items() if len(_places(each)) > 1])
        before, start = controls[name].value, clock()
        move(controls[name], rng)
        if controls[name].value != before:
            n -= 1
            yield name, clock() - start


def _places(control):
    return control.options if hasattr(control, "options") else (0, 1)


def figures_alive() -> int:
    """Return how many figures exist after a garbage collection."""
    gc.collect()
    return sum(isinstance(each, Figure) for each in gc.get_objects())


def held_mb() -> float:
    """Return the memory of this process in MB after a garbage collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def both() -> np.ndarray:
    """Return the time by two clocks: wall time, and CPU time of this process."""
    return np.array([time.perf_counter(), time.process_time()])


def empty_ms() -> float:
    """Return the median ms of an empty axes in a figure of one column as PNG."""
    times = []
    with mpl.rc_context(paper()):
        for _ in range(21):
            start = time.perf_counter()
            figure = Figure()
            FigureCanvasAgg(figure)
            figure.subplots()
            figure.savefig(io.BytesIO(), format="png", pil_kwargs={"compress_level": 1})
            times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


def timed(make, n: int, cpu: bool, reference_ms: float) -> tuple[str, bool]:
    """Return a line of the table, and whether the widget is as fast and as small as required."""
    rng = random.Random(20220425)
    start = time.perf_counter()
    explorer, first_s = make(), time.perf_counter() - start
    before, times, by = figures_alive(), [], {}
    for k, (name, seconds) in enumerate(moved(explorer, n, rng, both)):
        times.append(1e3 * seconds)
        by.setdefault(name, []).append(1e3 * seconds[int(cpu)])
        if k == min(SETTLED, n // 2):
            settled = held_mb()
    wall, own = np.transpose(times)
    grown, left = held_mb() - settled, figures_alive() - before
    judged = own if cpu else wall
    median, p95 = np.median(judged), np.quantile(judged, 0.95)
    met = median < MEDIAN_MS and p95 < P95_MS and grown < GROWN_MB and left <= 0
    slowest = max(by, key=lambda name: np.quantile(by[name], 0.95))
    three = "{:6.0f} {:6.0f} {:6.0f}".format
    line = (
        f"{1e3 * first_s:6.0f}  {three(np.median(wall), np.quantile(wall, 0.95), wall.max())}  "
        f"{three(np.median(own), np.quantile(own, 0.95), own.max())}  "
        f"{np.median(wall) / reference_ms:5.1f}  {grown:+6.1f} {left:4d}  "
        f"{'MET' if met else 'NOT MET'}  slowest: {slowest} {np.quantile(by[slowest], 0.95):.0f}"
    )
    return line, met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 moves per widget, not 500")
    parser.add_argument("--cpu", action="store_true", help="judge the time of this process alone")
    parser.add_argument("--only", nargs="*", help="widgets, such as fit")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    reference_ms = empty_ms()
    print(f"required: median < {MEDIAN_MS:g} ms, 95 of 100 < {P95_MS:g} ms, no growth; an empty "
          f"figure takes {reference_ms:.0f} ms")  # fmt: skip
    print(f"{'ms':<10} {'first':>6}  {'median':>6} {'p95':>6} {'max':>6}  {'CPU':>6} {'p95':>6} "
          f"{'max':>6}  {'empty':>5}  {'MB':>6} {'left':>4}")  # fmt: skip
    all_met = True
    for name, make in explorers():
        if options.only and name not in options.only:
            continue
        line, met = timed(make, 100 if options.quick else 500, options.cpu, reference_ms)
        print(f"{name:<10} {line}", flush=True)
        all_met &= met
    return int(not all_met)


if __name__ == "__main__":
    sys.exit(main())
