"""From a recorded run to a scenario, and what else only some recordings can tell.

A recording may lack what a step needs. Each function here then raises a ValueError that says what
is missing and how to record it; `or_why` puts that sentence in the place of the result.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

import numpy as np
import pandas as pd

from .checks import shown
from .iterations import collectives, gradients, iterations
from .tables import check
from .timeline import Scenario, predict
from .units import MIB, MS, format_seconds


class Absent(str):
    """A sentence in the place of a result: why there is none. It counts as false."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return str(self)


def or_why(compute: Callable, *args, **kwargs):
    """Return what `compute` gives, or as Absent why it cannot: its ValueError or missing file.

    or_why(scenario_of, run, cost, 8, DDPBuckets()) or another_scenario
    """
    try:
        return compute(*args, **kwargs)
    except (FileNotFoundError, ValueError) as error:
        return Absent(error)


@dataclass(frozen=True)
class OneWorker:
    """T1, the iteration time of one worker: seconds, and `how` it is known, in words."""

    seconds: float
    how: str

    def __repr__(self) -> str:
        return f"one worker takes {format_seconds(self.seconds)} an iteration: {self.how}"


def one_worker(run) -> OneWorker:
    """Return T1 of a run, as far as its recording tells.

    Of a lone worker the median of its plain iterations, if run.json has them (iteration_s, plain:
    s each, timed without a profiler), else of the traced ones. Of several workers it is estimated
    as the median over ranks and iterations of duration less exposed communication, which holds the
    profiler's cost and what messages slow compute by. Raises ValueError where nothing ran, or where
    messages were sent but not recorded.
    """
    lone, plain = not _several(run), _plain(run)
    if lone and len(plain):
        how = f"median of {len(plain)} plain iterations, timed without a profiler"
        return OneWorker(float(np.median(plain)), how)
    spent = iterations(run)
    seconds = spent["duration_s"] - spent["exposed_comm_s"].astype("Float64")
    if seconds.isna().any():
        raise ValueError(
            f"run: {run.name}: communication was not recorded, so what one worker alone would take "
            "is unknown. Record with ProfilerActivity.CUDA, or one worker alone"
        )
    what = "" if lone else ", their exposed communication taken off: an estimate"
    how = f"median of {len(spent)} traced iterations, with what the profiler costs{what}"
    found = float(seconds.median())
    if not found > 0:
        raise ValueError(f"run: {run.name}: nothing but communication was recorded, so no compute")
    return OneWorker(found, how)


def _several(run) -> bool:
    return (run.info.get("world_size") or 1) > 1 or (run.events["kind"] == "comm").any()


def _plain(run) -> np.ndarray:
    """Return the plain iterations of run.json, s; empty where it has none that are times."""
    told = run.info.get("iteration_s")
    times = told.get("plain") if isinstance(told, Mapping) else None
    times = times if isinstance(times, list) else []
    ok = all(isinstance(s, Real) and not isinstance(s, bool) and 0 < s < np.inf for s in times)
    return np.array(times if ok else [], float)


def scenario_of(run, all_reduce, n_workers: int, fusion, sizes=None) -> Scenario:
    """Return the scenario of a recorded run, one GPU's trace included, on n workers.

    run : a Run that holds a backward pass
    all_reduce, n_workers, fusion : as Scenario takes them
    sizes : gradients' sizes (name, nbytes; backward order) where the trace has none

    Gradients and the end of backward are those of `gradients(run)`, T1 that of `one_worker(run)`.
    Raises ValueError where the run has no gradients, or does not tell their sizes or T1.
    """
    ready = gradients(run, sizes)
    unknown = int(ready["nbytes"].isna().sum())
    if unknown:
        raise ValueError(
            f"run: {run.name}: {unknown} of {len(ready)} gradients have no size. Record with "
            "torch.profiler.profile(record_shapes=True), or pass sizes=, the model's own"
        )
    backward_s = ready["ready_s"].iloc[-1]
    return Scenario(ready, one_worker(run).seconds, backward_s, n_workers, all_reduce, fusion)


def profiler_cost(run) -> pd.Series:
    """Return the median of traced and of plain iterations (ms) and their ratio.

    Raises ValueError where the run has no plain iterations in its run.json.
    """
    plain, traced_s = _plain(run), iterations(run)["duration_s"].median()
    if not len(plain):
        raise ValueError(
            f"run: {run.name}: no plain iterations were timed beside the trace, so the profiler's "
            "own cost is unknown. python -m workbench.capture run times them"
        )
    plain_s = np.median(plain)
    ratio = traced_s / plain_s
    return pd.Series({"traced (ms)": traced_s / MS, "plain (ms)": plain_s / MS, "ratio": ratio})


def beside_gradients(run, found: pd.DataFrame, models: pd.DataFrame) -> pd.DataFrame:
    """Return the gradients found in a trace beside other sources: trace, other, source, ratio.

    found : gradients(run); models : model, nbytes, a row a gradient, as data/models/gradients.csv

    Sources are the parameters of the model that run.json names, or of one with as many gradients;
    the hooks' times beside the trace (gradients_rank*.csv, as `workbench.capture` writes them); and
    the run's own all-reduces. Sizes in MiB, times in ms. Raises ValueError where there is none.
    """
    size, last = found["nbytes"].sum() / MIB, found["ready_s"].iloc[-1] / MS
    model, of_model = _of_model(run, found, models)
    rows = [
        ("gradients (MiB)", size, of_model / MIB, f"parameters of {model}"),
        ("last gradient ready (ms)", last, _hooked(run) / MS, "hooks on the parameters"),
        ("gradients (MiB)", size, _sent(run) / MIB, "all-reduces of an iteration"),
    ]
    sized = found["nbytes"].notna().all()
    rows = [row for row in rows if row[2] > 0 and (sized or "MiB" not in row[0])]
    if not rows:
        raise ValueError(
            f"run: {run.name}: nothing tells the gradients a second time: no all-reduces with "
            "their sizes, no hooks' times, and no model with as many gradients"
        )
    table = pd.DataFrame(rows, columns=["quantity", "trace", "other", "source"])
    return table.assign(ratio=table["trace"] / table["other"]).set_index("quantity")


def _of_model(run, found: pd.DataFrame, models: pd.DataFrame) -> tuple[str, float]:
    """Return the model that was trained and its bytes: that named, else the nearest of as many."""
    table = models.groupby("model")["nbytes"].agg(["size", "sum"])
    named = str(run.info.get("model", "")).lower()
    if named in table.index:
        return named, float(table["sum"][named])
    alike = table.loc[table["size"] == len(found), "sum"]
    if alike.empty:
        return "", 0.0
    nearest = (alike - float(found["nbytes"].sum())).abs().idxmin()
    return f"{nearest}, which has as many", float(alike[nearest])


def _hooked(run) -> float:
    """Return when hooks saw the last gradient, s; 0 without their file beside the first trace."""
    path = Path(run.info["files"][0]).parent / f"gradients_rank{run.info['ranks'][0]}.csv"
    if not path.is_file():
        return 0.0
    needed = {"name": "parameter", "ready_s": "s since backward began"}
    hooks = check(pd.read_csv(path, comment="#"), needed, path)
    return float(hooks.groupby("name")["ready_s"].median().max())


def _sent(run) -> float:
    """Return the bytes that all-reduces send in an iteration, the median; 0 where not all tell."""
    sent = collectives(run)
    sent = sent[(sent["op"] == "all_reduce") & (sent["iteration"] >= 0)]
    if sent.empty or sent["nbytes"].isna().any():
        return 0.0
    return float(sent.groupby("iteration")["nbytes"].sum().median())


def sibling(path: Path | str, n_workers: int) -> Path:
    """Return the recording of the same training by n workers: NAME-2 beside NAME-1, say.

    Raises FileNotFoundError where there is none.
    """
    path = Path(path)
    ending = re.search(r"-\d+$", path.name)
    other = path.with_name(f"{path.name[: ending.start()]}-{n_workers}") if ending else path
    if other == path or not other.exists():
        raise FileNotFoundError(
            f"no recording of the same training with n_workers = {n_workers} beside {path.name}: "
            f"expected a folder NAME-{n_workers} next to one whose name ends in its workers"
        )
    return other


def forecast_beside(one, several, all_reduce, fusion) -> pd.DataFrame:
    """Return the forecast of a run of several workers, made from that of one, beside what it took.

    Columns forecast, measured and ratio of the scaling factor, compute (ms) and exposed
    communication (ms), medians. Both scaling factors take plain iterations where both runs have
    them, else traced ones. Raises ValueError where the two are not the same training.
    """
    for name, run in (("one", one), ("several", several)):
        if not hasattr(run, "events"):
            raise ValueError(f"{name}: expected a Run, got {shown(run)}; pass load_run(path)")
    n_workers = several.info.get("world_size") or several.events["rank"].nunique()
    counts = len(gradients(one)), len(gradients(several))
    if n_workers < 2 or counts[0] != counts[1]:
        raise ValueError(
            f"several: expected the same training by two workers or more, got n_workers = "
            f"{n_workers}, and {counts[1]} gradients beside {counts[0]} of one"
        )
    before, after = (iterations(run).median(numeric_only=True) for run in (one, several))
    plain = [np.median(times) for times in (_plain(one), _plain(several)) if len(times)]
    one_s, several_s = plain if len(plain) == 2 else (before["duration_s"], after["duration_s"])
    forecast = predict(scenario_of(one, all_reduce, int(n_workers), fusion))
    rows = {
        "scaling factor": (forecast.scaling_factor, one_s / several_s),
        "compute (ms)": (before["compute_s"] / MS, after["compute_s"] / MS),
        "exposed communication (ms)": (forecast.exposed_comm_s / MS, after["exposed_comm_s"] / MS),
    }
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["forecast", "measured"])
    return table.assign(ratio=table["forecast"] / table["measured"])
