"""The loop closed: what was predicted for a run of several workers, beside what it measured."""

import json
from collections.abc import Iterable
from dataclasses import replace
from os import PathLike
from pathlib import Path

import pandas as pd

from ..base.checks import above_0, count, shown
from ..base.tables import rows_of
from ..fusion import Plan
from ..timeline import Scenario, predict
from .collectives import interval
from .forecast import recorded_scenario, untimed_workers
from .plans import read_plan

COMPARED = {
    "run": "folder of `train`",
    "policy": "as it was asked for",
    "n_workers": "workers",
    "n_messages": "messages an iteration, as sent",
    "predicted_s": "s an iteration",
    "iteration_s": "s an iteration, median of those measured on rank 0",
    "low_s": "lower end of its 95 % interval, s",
    "high_s": "upper end of it, s",
    "error": "predicted_s / iteration_s - 1",
    "predicted_factor": "scaling factor, T1 / Tn, predicted",
    "scaling_factor": "as measured, with T1 of the profile",
    "note": "why not to trust the row, where that can be seen",
}
_ABOVE = 1.02  # a scaling factor that no noise explains
_SAME = ("model", "batch", "small", "size")  # of settings, or the profile is of another training


def compared(profile: str | Path, collectives, runs: Iterable[str | Path]) -> pd.DataFrame:
    """Return COMPARED, a row a run: its messages as sent, predicted from one worker and timings.

    profile, collectives : as recorded_scenario takes them; runs : folders that `train` wrote

    Raises ValueError for a folder without a complete run of several workers, and for a run of
    another model or batch than the profile's.
    """
    if isinstance(runs, str | PathLike) or not isinstance(runs, Iterable):
        raise ValueError(f"runs: expected a list of folders, got {shown(runs)}")
    profile, rows = Path(profile), []
    for run in map(Path, runs):
        notes, (plan, names) = _notes(run), _sent(run)
        _check_same(run, notes, _notes(profile), profile)
        n_workers = count(notes.get("world_size"), f"{run}: world_size in run.json", 2)
        scenario = _as_sent(recorded_scenario(profile, collectives, n_workers), plan, names, run)
        made = predict(scenario)
        seconds = sorted(_plain_s(run))
        measured_s, ends = float(pd.Series(seconds).median()), interval(seconds)
        rows.append(
            [
                run.name,
                notes.get("settings", {}).get("policy", ""),
                n_workers,
                len(plan.counts),
                made.iteration_s,
                measured_s,
                *ends,
                made.iteration_s / measured_s - 1,
                made.scaling_factor,
                scenario.one_worker_s / measured_s,
                _note(scenario, measured_s),
            ]
        )
    return pd.DataFrame(rows, columns=list(COMPARED))


def _note(scenario: Scenario, measured_s: float) -> str:
    faster = scenario.one_worker_s > _ABOVE * measured_s
    other_load = "faster than the lone worker of the profile: record both again under one load"
    return "; ".join(filter(None, [other_load * faster, untimed_workers(scenario)]))


def _as_sent(scenario: Scenario, plan: Plan, names: list[str], run: Path) -> Scenario:
    """Return the scenario with a run's messages, and gradients in their order.

    Messages leave in order, so none is ready before those that it waits for.
    """
    known = scenario.gradients.set_index("name")
    if set(names) != set(known.index):
        other = sorted(set(names) ^ set(known.index))[0]
        raise ValueError(f"{run}: its gradients are not those of the profile, such as {other!r}")
    table = known.loc[names].reset_index()
    table["ready_s"] = table["ready_s"].cummax()
    return replace(scenario, gradients=table, fusion=plan)


def _notes(folder: Path) -> dict:
    try:
        notes = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if not isinstance(notes.get("settings", {}), dict):
            raise TypeError("settings are names and values")
    except (OSError, ValueError, TypeError, AttributeError):
        raise ValueError(
            f"{folder}: expected a folder of workbench.capture, with run.json"
        ) from None
    if not notes.get("complete", True):
        raise ValueError(f"{folder}: the run was cut; its own command again completes it")
    return notes


def _sent(run: Path) -> tuple[Plan, list[str]]:
    """Return the messages that a run of several workers sent."""
    try:
        return read_plan(run / "plan.json")
    except OSError:
        raise ValueError(
            f"{run}: no plan.json; expected a complete run of several workers, as `train` writes it"
        ) from None


def _plain_s(run: Path) -> list[float]:
    times = rows_of(run / "iterations_rank0.csv", ("kind", "iteration_s"))
    found = times[times["kind"] == "plain"]["iteration_s"]
    if not len(found):
        raise ValueError(f"{run}: no plain iteration in iterations_rank0.csv")
    return above_0(found.astype(float), f"{run}: iteration_s of plain iterations").tolist()


def _check_same(run: Path, notes: dict, of_profile: dict, profile: Path) -> None:
    asked, known = notes.get("settings", {}), of_profile.get("settings", {})
    for name in _SAME:
        if name in asked and name in known and asked[name] != known[name]:
            raise ValueError(
                f"{run}: trained with {name} {shown(asked[name])}, but {profile} is a profile with "
                f"{shown(known[name])}; profile the same"
            )
