"""From what was recorded to a forecast: a Scenario, and what each policy would make of it."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from ..base.checks import require
from ..base.units import MIB
from ..costs import Interpolated
from ..fusion import DDPBuckets, FixedBuffer, OneMessage, PerTensor
from ..timeline import Scenario, predict, scenario_of
from ..timeline.from_run import recorded_profile
from ..traces import read_measurements
from ..whatif import optimal


def recorded_scenario(profile: str | Path, collectives, n_workers: int, fusion=None) -> Scenario:
    """Return the scenario of a recorded profile on a link whose messages were timed.

    profile : folder that `profile` wrote
    collectives : folder or file that `collectives` wrote, or any timings read_measurements takes;
        the price of an all-reduce is Interpolated between them
    fusion : DDPBuckets() by default

    Raises ValueError for a folder without a profile, and for timings without an all-reduce.
    """
    policy = DDPBuckets() if fusion is None else fusion
    return scenario_of(recorded_profile(profile), _price(collectives), n_workers, policy)


def _price(collectives) -> Interpolated:
    path = collectives
    if isinstance(path, str | Path) and Path(path).is_dir():
        path = Path(path) / "collectives.csv"
    table = read_measurements(path)
    table = table[table["op"] == "all_reduce"]
    require(len(table), str(path), "timed all-reduces (op all_reduce)", found="none")
    return Interpolated(table.reset_index(drop=True))


def untimed_workers(scenario: Scenario) -> str:
    """Return a note if messages were timed with other numbers of workers only, else ""."""
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
    """Return the scenario with its optimal plan, and the forecasts of this and the usual policies.

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
