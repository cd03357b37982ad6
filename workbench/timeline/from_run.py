"""From a recorded run, a single GPU's trace included, to a scenario with any number of workers.

There is one road: whatever was recorded becomes a Profile, and `scenario_of` makes the scenario.
If a recording lacks something, functions raise a ValueError that says what is missing and how to
record it; `or_why` returns that sentence in place of the result.
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

import numpy as np
import pandas as pd

from ..base.checks import instance, require, shown
from ..base.tables import GRADIENTS, check, rows_of
from ..base.units import format_seconds
from ..traces import gradients, iterations
from .scenario import Scenario

_EXPECTED = "a folder that `python -m workbench.capture profile` wrote"
_RESUME = "Run the same command again, which completes a recording that was cut"


@dataclass(frozen=True)
class OneWorker:
    """T1, the iteration time of one worker: seconds, and `how` it is known, in words."""

    seconds: float
    how: str

    def __repr__(self) -> str:
        return f"one worker takes {format_seconds(self.seconds)} per iteration: {self.how}"


def one_worker(run) -> OneWorker:
    """Return T1 of a run, as far as its recording contains it.

    For one worker: the median of unprofiled iterations if recorded (iteration_s, plain in
    run.json, s each), otherwise of traced ones. For several workers T1 is estimated as the median
    over ranks and iterations of duration minus exposed communication, which still includes the
    profiler's cost and the slow-down of compute by messages. Raises ValueError if no compute was
    recorded, or if messages were sent but not recorded.
    """
    single, unprofiled = not _several(run), unprofiled_iterations(run.info)
    if single and len(unprofiled):
        how = f"median of {len(unprofiled)} unprofiled iterations"
        return OneWorker(float(np.median(unprofiled)), how)
    spent = spent_of(run)
    why = "so the time of one worker alone is unknown"
    if not (spent["compute_s"] > 0).any():
        raise ValueError(
            f"run: {run.name}: no compute was recorded, {why}. Record with PyTorch's profiler"
        )
    seconds = spent["duration_s"] - spent["exposed_comm_s"].astype("Float64")
    if seconds.isna().any():
        raise ValueError(
            f"run: {run.name}: communication was not recorded, {why}. "
            "Record with ProfilerActivity.CUDA, or one worker alone"
        )
    what = "" if single else ", minus their exposed communication: an estimate"
    number = "1 traced iteration" if len(spent) == 1 else f"median of {len(spent)} traced ones"
    return OneWorker(float(seconds.median()), f"{number}, including the profiler's cost{what}")


def spent_of(run) -> pd.DataFrame:
    """Return ITERATIONS without its warning of unknown communication, for code that checks <NA>."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="iterations: rank .* called collectives")
        return iterations(run)


def _several(run) -> bool:
    return (run.info.get("world_size") or 1) > 1 or (run.events["kind"] == "comm").any()


def unprofiled_iterations(info: Mapping) -> np.ndarray:
    """Return the unprofiled iterations in run.json, s; empty if there are none."""
    kinds = info.get("iteration_s")
    times = kinds.get("plain") if isinstance(kinds, Mapping) else None
    times = times if isinstance(times, list) else []
    ok = all(isinstance(s, Real) and not isinstance(s, bool) and 0 < s < np.inf for s in times)
    return np.array(times if ok else [], float)


@dataclass(frozen=True, eq=False)
class Profile:
    """What a forecast needs of one worker.

    gradients : GRADIENTS
    one_worker_s : T1, s
    backward_s : measured end of backward, s since it began; 0 if not measured
    fixed_s : what DistributedDataParallel itself adds to an iteration, s; 0 if not measured
    """

    gradients: pd.DataFrame
    one_worker_s: float
    backward_s: float = 0.0
    fixed_s: float = 0.0


def scenario_of(run, all_reduce, n_workers: int, fusion, sizes=None) -> Scenario:
    """Return the scenario of a recorded run, a single GPU's trace included, on n workers.

    run : a Run that holds a backward pass, or a Profile
    all_reduce, n_workers, fusion : as in Scenario
    sizes : table of gradient sizes (name, nbytes; backward order) if the recording has none, such
        as `sizes_of("resnet50", models)`

    T1 is that of `one_worker(run)`; gradients, the end of backward and fixed_s are those that
    `python -m workbench.capture profile` timed without the profiler, if the run's folder has them.
    Otherwise gradients are those of `gradients(run)`, backward ends with the last of them, and
    fixed_s is 0. Raises ValueError if gradients, their sizes or T1 are missing, or if `sizes`
    lacks these columns or has the wrong length.
    """
    profile = run if isinstance(run, Profile) else _profile_of(run, sizes)
    last_s = profile.gradients["ready_s"].iloc[-1]
    return Scenario(
        profile.gradients,
        one_worker_s=profile.one_worker_s,
        backward_s=max(profile.backward_s, last_s),
        n_workers=n_workers,
        all_reduce=all_reduce,
        fusion=fusion,
        fixed_s=profile.fixed_s,
    )


def recorded_profile(folder: str | Path) -> Profile:
    """Return the Profile in a folder that `python -m workbench.capture profile` wrote.

    Raises ValueError for any other folder, and for a recording that was cut or is damaged.
    """
    folder, found = Path(folder), []
    require(folder.is_dir(), str(folder), _EXPECTED, found="no such folder")
    try:
        found = unprofiled_iterations(json.loads((folder / "run.json").read_text("utf-8")))
    except (OSError, ValueError, AttributeError):
        pass
    missing = "no run.json with iteration_s of unprofiled iterations"
    require(len(found), str(folder), _EXPECTED, found=missing, do=_RESUME)
    return _timed(folder, float(np.median(found)))


def _profile_of(run, sizes) -> Profile:
    expected = (
        "a table with columns name and nbytes (bytes), one row per gradient in backward order"
    )
    instance(pd.DataFrame | None, expected, "Pass table[['name', 'nbytes']]")(sizes, "sizes")
    require(hasattr(run, "ledger"), "run", "a Run", run, "Pass load_run(path)")
    one_worker_s = one_worker(run).seconds
    folder = Path(str(run.ledger["file"].iloc[0])).parent if len(run.ledger) else Path()
    # run.json is read only with the whole folder, and only one worker's backward never waits
    timed = len(unprofiled_iterations(run.info)) and not _several(run)
    if timed and (folder / "gradients.csv").is_file():
        return _timed(folder, one_worker_s)
    ready = gradients(run, sizes)
    unknown = int(ready["nbytes"].isna().sum())
    if unknown:
        raise ValueError(
            f"run: {run.name}: {unknown} of {len(ready)} gradients have no size. Record with "
            "torch.profiler.profile(record_shapes=True), or pass those of the model: sizes=, "
            "SIZES in notebook 00"
        )
    return Profile(ready, one_worker_s, 0.0, wrapper_s(folder / "wrapper.csv") if timed else 0.0)


def _timed(folder: Path, one_worker_s: float) -> Profile:
    """Return the Profile of the tables that a recording without the profiler left in a folder."""
    gradients = _numbers(folder / "gradients.csv", "name", "nbytes", "ready_s")
    times = _numbers(folder / "iterations_rank0.csv", "kind", "backward_s")
    backward_s = times.loc[times["kind"] == "hooks", "backward_s"].median()
    spread = rows_of(folder / "ready_rank0.csv", ("name", "ready_s")).astype({"ready_s": float})
    for name, each in spread.groupby("name")["ready_s"].agg(["min", "max"]).items():
        found = gradients["name"].map(each).fillna(gradients["ready_s"])
        gradients[f"ready_{name}_s"] = found  # a parameter without a gradient has none
    return Profile(gradients, one_worker_s, backward_s, wrapper_s(folder / "wrapper.csv"))


def _numbers(path: Path, *columns: str) -> pd.DataFrame:
    """Return the rows of a recorded table, or raise ValueError if there are none."""
    rows = rows_of(path, columns)
    missing = f"no {path.name} with rows"
    require(len(rows), str(path.parent), _EXPECTED, found=missing, do=_RESUME)
    words = rows.columns.intersection(["name", "kind"])
    return rows.drop(columns=words).apply(pd.to_numeric).assign(**rows[words])[rows.columns]


def wrapper_s(path: str | Path) -> float:
    """Return what DistributedDataParallel adds to an iteration, s: 0 if it was not timed.

    path : the CSV of `time_wrapper`; the result is the median difference of its pairs, at least 0
    """
    pairs = rows_of(Path(path), ("plain_s", "wrapped_s"))[["plain_s", "wrapped_s"]].astype(float)
    added_s = (pairs["wrapped_s"] - pairs["plain_s"]).median()
    return 0.0 if pairs.empty else max(0.0, float(added_s))


def sizes_of(named, models: pd.DataFrame) -> pd.DataFrame | None:
    """Return the gradient sizes (name, nbytes; backward order) that a name stands for.

    named : a model in `models`, a CSV with columns name and nbytes (bytes), or None for none
    models : model, name, nbytes, one row per gradient, as in data/models/gradients.csv

    Raises ValueError for any other name, and for a CSV without these columns or with a size that
    is not a whole number of bytes.
    """
    if named is None:
        return None
    known = models["model"].unique().tolist()
    if named in known:
        return models.loc[models["model"] == named, ["name", "nbytes"]].reset_index(drop=True)
    is_file = isinstance(named, str | Path) and Path(named).is_file()
    expected = f"a CSV with columns name and nbytes, or one of {', '.join(known)}"
    require(is_file, "sizes", expected, named)
    needed = {column: GRADIENTS[column] for column in ("name", "nbytes")}
    table = check(pd.read_csv(named, comment="#"), needed, str(named))[list(needed)]
    nbytes = pd.to_numeric(table["nbytes"], errors="coerce")
    wrong = table["nbytes"][~(nbytes.gt(0) & nbytes.mod(1).eq(0))]
    where = [f"{shown(value)} in row {row}" for row, value in wrong.items()]
    require(wrong.empty, f"{named}: nbytes", "whole bytes above 0", found=", ".join(where[:1]))
    return table.assign(name=table["name"].astype("str"), nbytes=nbytes.astype("int64"))
