"""From what was recorded to a forecast: a Scenario, and what each policy would make of it."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pandas as pd

from ..base.units import MIB
from ..costs import Interpolated
from ..fusion import DDPBuckets, FixedBuffer, OneMessage, PerTensor
from ..timeline import Scenario, predict
from ..traces import read_measurements
from ..whatif import optimal
from .folder import rows_of
from .wrapping import wrapper_s

_EXPECTED = (
    "expected a folder that `python -m workbench.capture profile` wrote; the same command again "
    "completes one that was cut"
)


def recorded_scenario(profile: str | Path, collectives, n_workers: int, fusion=None) -> Scenario:
    """Return the scenario of a recorded profile on a link whose messages were timed.

    profile : folder that `profile` wrote; T1 is the median of its plain iterations, fixed_s what
        DistributedDataParallel by itself adds to them, where it was timed
    collectives : folder or file that `collectives` wrote, or any timings read_measurements takes;
        the price of an all-reduce is Interpolated between them
    fusion : DDPBuckets() by default

    Raises ValueError for a folder without a profile, and for timings without an all-reduce.
    """
    profile = Path(profile)
    gradients = _recorded(profile / "gradients.csv", "name", "nbytes", "ready_s")
    numbers = [column for column in gradients if column != "name"]
    gradients = gradients.assign(**{each: pd.to_numeric(gradients[each]) for each in numbers})
    one_worker_s = _one_worker_s(profile / "run.json")
    times = _recorded(profile / "iterations_rank0.csv", "kind", "backward_s")
    backward_s = times[times["kind"] == "hooks"]["backward_s"].astype(float).median()
    wrapper = profile / "wrapper.csv"
    return Scenario(
        gradients,
        one_worker_s=one_worker_s,
        backward_s=max(float(backward_s), gradients["ready_s"].iloc[-1]),
        n_workers=n_workers,
        all_reduce=_price(collectives),
        fusion=DDPBuckets() if fusion is None else fusion,
        fixed_s=wrapper_s(wrapper) if wrapper.exists() else 0.0,
    )


def _recorded(path: Path, *columns: str) -> pd.DataFrame:
    """Return the rows of a table of a profile, or raise ValueError where there are none."""
    rows = rows_of(path, columns)
    if rows.empty:
        raise ValueError(f"{path.parent}: no {path.name} with rows; {_EXPECTED}")
    return rows


def _one_worker_s(path: Path) -> float:
    """Return the median of the plain iterations, or raise ValueError where run.json has none."""
    try:
        seconds = json.loads(path.read_text(encoding="utf-8"))["iteration_s"]["plain"]
        return statistics.median(map(float, seconds))
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path.parent}: no {path.name} with iteration_s of plain iterations; {_EXPECTED}"
        ) from None


def _price(collectives) -> Interpolated:
    path = collectives
    if isinstance(path, str | Path) and Path(path).is_dir():
        path = Path(path) / "collectives.csv"
    table = read_measurements(path)
    table = table[table["op"] == "all_reduce"]
    if table.empty:
        raise ValueError(f"{path}: expected timed all-reduces (op all_reduce), found none")
    return Interpolated(table.reset_index(drop=True))


def untimed_workers(scenario: Scenario) -> str:
    """Return how many workers the messages of a recorded scenario were timed with, where not its.

    "" where they were timed with as many.
    """
    timed = sorted(set(scenario.all_reduce.table["n_workers"]))
    if scenario.n_workers in timed:
        return ""
    between = timed[0] < scenario.n_workers < timed[-1]
    how = "is interpolated" if between else "follows a ring's formula"
    return (
        f"all-reduces were timed with {', '.join(map(str, timed))} workers: their price with "
        f"{scenario.n_workers} {how}"
    )


def forecasts(scenario: Scenario) -> tuple[Scenario, pd.DataFrame]:
    """Return the scenario with its optimal plan, and what the usual policies would take beside it.

    Columns: policy (as `train` names it), n_messages, iteration_s (s), scaling_factor.
    """
    best = optimal(scenario)
    policies = {
        "per-tensor": PerTensor(),
        "one-message": OneMessage(),
        "ddp": DDPBuckets(),
        "fixed:64": FixedBuffer(64 * MIB),
        "plan": best.fusion,
    }
    made = {name: predict(replace(scenario, fusion=each)) for name, each in policies.items()}
    rows = [
        (name, len(each.timeline), each.iteration_s, each.scaling_factor)
        for name, each in made.items()
    ]
    columns = ["policy", "n_messages", "iteration_s", "scaling_factor"]
    return best, pd.DataFrame(rows, columns=columns)
