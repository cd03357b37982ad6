"""From a recorded run, one GPU's trace included, to a scenario of any number of workers.

A recording may lack what a step needs: functions then raise a ValueError that says what is missing
and how to record it; `or_why` puts the sentence in the place of the result.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

import numpy as np
import pandas as pd

from ..base.checks import shown
from ..base.tables import GRADIENTS, check
from ..base.units import format_seconds
from ..traces import gradients, iterations
from .scenario import Scenario


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
    profiler's cost and what messages slow compute by. Raises ValueError where no compute was
    recorded, or messages were sent but not recorded.
    """
    lone, plain = not _several(run), plain_iterations(run)
    if lone and len(plain):
        how = f"median of {len(plain)} plain iterations, timed without a profiler"
        return OneWorker(float(np.median(plain)), how)
    spent = spent_of(run)
    if not (spent["compute_s"] > 0).any():
        raise ValueError(
            f"run: {run.name}: no compute was recorded, so what one worker alone would take is "
            "unknown. Record with PyTorch's profiler"
        )
    seconds = spent["duration_s"] - spent["exposed_comm_s"].astype("Float64")
    if seconds.isna().any():
        raise ValueError(
            f"run: {run.name}: communication was not recorded, so what one worker alone would take "
            "is unknown. Record with ProfilerActivity.CUDA, or one worker alone"
        )
    what = "" if lone else ", their exposed communication taken off: an estimate"
    told = "1 traced iteration" if len(spent) == 1 else f"median of {len(spent)} traced iterations"
    how = f"{told}, with what the profiler costs{what}"
    return OneWorker(float(seconds.median()), how)


def spent_of(run) -> pd.DataFrame:
    """Return ITERATIONS without its warning of unknown communication, for who looks for <NA>."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="iterations: rank .* called collectives")
        return iterations(run)


def _several(run) -> bool:
    return (run.info.get("world_size") or 1) > 1 or (run.events["kind"] == "comm").any()


def plain_iterations(run) -> np.ndarray:
    """Return the iterations of run.json timed without a profiler, s; empty where there are none."""
    told = run.info.get("iteration_s")
    times = told.get("plain") if isinstance(told, Mapping) else None
    times = times if isinstance(times, list) else []
    ok = all(isinstance(s, Real) and not isinstance(s, bool) and 0 < s < np.inf for s in times)
    return np.array(times if ok else [], float)


def scenario_of(run, all_reduce, n_workers: int, fusion, sizes=None) -> Scenario:
    """Return the scenario of a recorded run, one GPU's trace included, on n workers.

    run : a Run that holds a backward pass
    all_reduce, n_workers, fusion : as Scenario takes them
    sizes : table of gradients' sizes (name, nbytes; backward order) where the trace has none, such
        as `sizes_of("resnet50", models)`

    Gradients and the end of backward are those of `gradients(run)`, T1 that of `one_worker(run)`.
    Raises ValueError where the run has no gradients, does not tell their sizes or T1, or sizes are
    no such table, or of another number of gradients.
    """
    if not isinstance(sizes, pd.DataFrame | None):
        raise ValueError(
            "sizes: expected a table with columns name and nbytes (bytes), a row a gradient in "
            f"backward order, got {type(sizes).__name__}; pass table[['name', 'nbytes']]"
        )
    ready = gradients(run, sizes)
    unknown = int(ready["nbytes"].isna().sum())
    if unknown:
        raise ValueError(
            f"run: {run.name}: {unknown} of {len(ready)} gradients have no size. Record with "
            "torch.profiler.profile(record_shapes=True), or pass the model's own: sizes=, SIZES in "
            "notebook 00"
        )
    backward_s = ready["ready_s"].iloc[-1]
    return Scenario(ready, one_worker(run).seconds, backward_s, n_workers, all_reduce, fusion)


def sizes_of(named, models: pd.DataFrame) -> pd.DataFrame | None:
    """Return the sizes of gradients (name, nbytes; backward order) that a name stands for.

    named : a model of `models`, a CSV with columns name and nbytes (bytes), or None for none
    models : model, name, nbytes, a row a gradient, as data/models/gradients.csv

    Raises ValueError for a name that is neither, a CSV without these columns, or a size that is
    no number of bytes.
    """
    if named is None:
        return None
    known = models["model"].unique().tolist()
    if named in known:
        return models.loc[models["model"] == named, ["name", "nbytes"]].reset_index(drop=True)
    if not isinstance(named, str | Path) or not Path(named).is_file():
        raise ValueError(
            f"sizes: expected a CSV with columns name and nbytes, or one of {', '.join(known)}; "
            f"got {shown(named)}"
        )
    needed = {column: GRADIENTS[column] for column in ("name", "nbytes")}
    table = check(pd.read_csv(named, comment="#"), needed, str(named))[list(needed)]
    whole = pd.to_numeric(table["nbytes"], errors="coerce")
    if not (whole.gt(0) & whole.mod(1).eq(0)).all():
        wrong = table["nbytes"][~(whole.gt(0) & whole.mod(1).eq(0))]
        raise ValueError(
            f"{named}: nbytes: expected whole bytes above 0, got {shown(wrong.iloc[0])} in row "
            f"{wrong.index[0]}"
        )
    return table.assign(name=table["name"].astype("str"), nbytes=whole.astype("int64"))
