"""From what was recorded to a forecast: a Scenario, and what each policy would make of it."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd

from ..costs import Interpolated
from ..fusion import DDPBuckets, FixedBuffer, OneMessage, PerTensor
from ..optimum import optimal
from ..timeline import Scenario, predict
from ..traces import read_measurements
from ..units import MIB
from .folder import rows_of
from .wrapping import wrapper_s


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
    try:
        gradients = pd.read_csv(profile / "gradients.csv", comment="#")
        notes = json.loads((profile / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(
            f"{profile}: no {Path(error.filename).name}; expected a folder that "
            "`python -m workbench.capture profile` wrote"
        ) from None
    times = rows_of(profile / "iterations_rank0.csv")
    wrapper = profile / "wrapper.csv"
    backward = times[times["kind"] == "hooks"]["backward_s"].astype(float)
    return Scenario(
        gradients,
        one_worker_s=float(pd.Series(notes["iteration_s"]["plain"]).median()),
        backward_s=max(float(backward.median()), gradients["ready_s"].iloc[-1]),
        n_workers=n_workers,
        all_reduce=_price(collectives),
        fusion=DDPBuckets() if fusion is None else fusion,
        fixed_s=wrapper_s(wrapper) if wrapper.exists() else 0.0,
    )


def _price(collectives) -> Interpolated:
    path = collectives
    if isinstance(path, str | Path) and Path(path).is_dir():
        path = Path(path) / "collectives.csv"
    table = read_measurements(path)
    table = table[table["op"] == "all_reduce"]
    if table.empty:
        raise ValueError(f"{path}: expected timed all-reduces (op all_reduce), found none")
    return Interpolated(table.reset_index(drop=True))


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
