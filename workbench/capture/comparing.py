"""Predicted and measured iterations of recorded runs of several workers."""

import json
from collections.abc import Iterable
from dataclasses import replace
from os import PathLike
from pathlib import Path

import pandas as pd

from ..base.checks import above_0, integer, require, shown
from ..base.tables import rows_of
from ..fusion import Plan
from ..timeline import Scenario, predict
from .collectives import interval
from .forecast import recorded_scenario, untimed_workers
from .plans import read_plan

COMPARED = {
    "run": "folder of `train`",
    "policy": "as requested",
    "n_workers": "workers",
    "n_messages": "messages per iteration, as sent",
    "predicted_s": "s per iteration",
    "iteration_s": "s per iteration, median on rank 0",
    "low_s": "lower end of its 95 % interval, s",
    "high_s": "upper end of it, s",
    "error": "predicted_s / iteration_s - 1",
    "predicted_factor": "scaling factor, T1 / Tn, predicted",
    "scaling_factor": "as measured, with T1 of the profile",
    "note": "why not to trust the row, if that can be seen",
}
_ABOVE = 1.02  # a scaling factor that no noise explains
_SAME = ("model", "batch", "small", "size")  # settings that profile and run share


def compared(profile: str | Path, collectives, runs: Iterable[str | Path]) -> pd.DataFrame:
    """Return COMPARED, one row per run: its messages as sent, predicted from one worker.

    profile, collectives : as recorded_scenario takes them; runs : folders that `train` wrote

    Raises ValueError for a folder without a complete run of several workers, and for a run of
    another model or batch than the profile's.
    """
    several = isinstance(runs, Iterable) and not isinstance(runs, str | PathLike)
    require(several, "runs", "a list of folders", runs)
    profile, rows = Path(profile), []
    for run in map(Path, runs):
        notes, (plan, names) = _notes(run), _sent(run)
        _check_same(run, notes, _notes(profile), profile)
        n_workers = notes.get("world_size")
        integer(2)(n_workers, f"{run} world_size")
        scenario = _as_sent(recorded_scenario(profile, collectives, n_workers), plan, names, run)
        made, seconds = predict(scenario), sorted(_unprofiled_s(run))
        measured_s, (low_s, high_s) = float(pd.Series(seconds).median()), interval(seconds)
        row = {
            "run": run.name,
            "policy": notes.get("settings", {}).get("policy", ""),
            "n_workers": n_workers,
            "n_messages": len(plan.counts),
            "predicted_s": made.iteration_s,
            "iteration_s": measured_s,
            "low_s": low_s,
            "high_s": high_s,
            "error": made.iteration_s / measured_s - 1,
            "predicted_factor": made.scaling_factor,
            "scaling_factor": scenario.one_worker_s / measured_s,
            "note": _note(scenario, measured_s),
        }
        rows.append(row)
    return pd.DataFrame(rows, columns=list(COMPARED))


def _note(scenario: Scenario, measured_s: float) -> str:
    faster = scenario.one_worker_s > _ABOVE * measured_s
    other_load = "faster than the profile's one worker: record both again under one load"
    return "; ".join(filter(None, [other_load * faster, untimed_workers(scenario)]))


def _as_sent(scenario: Scenario, plan: Plan, names: list[str], run: Path) -> Scenario:
    """Return the scenario with a run's messages, and gradients in their order.

    Messages are sent in order, so none is ready before those in front of it.
    """
    known = scenario.gradients.set_index("name")
    other = sorted(set(names) ^ set(known.index))[:1]
    require(not other, str(run), "the gradients of the profile", found=f"another: {other}")
    table = known.loc[names].reset_index()
    table["ready_s"] = table["ready_s"].cummax()
    return replace(scenario, gradients=table, fusion=plan)


def _notes(folder: Path) -> dict:
    try:
        notes = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        valid = isinstance(notes.get("settings", {}), dict)
    except (OSError, ValueError, AttributeError):
        valid = False
    expected = "a folder of workbench.capture, with run.json"
    require(valid, str(folder), expected, found="another")
    do = "Run its command again to complete it"
    require(notes.get("complete", True), str(folder), "a complete run", found="a cut one", do=do)
    return notes


def _sent(run: Path) -> tuple[Plan, list[str]]:
    """Return the messages that a run of several workers sent."""
    try:
        return read_plan(run / "plan.json")
    except OSError:
        expected = f"{run}: expected a complete run of several workers, as `train` writes it"
        raise ValueError(f"{expected}, got no plan.json") from None


def _unprofiled_s(run: Path) -> list[float]:
    times = rows_of(run / "iterations_rank0.csv", ("kind", "iteration_s"))
    found = times[times["kind"] == "plain"]["iteration_s"]
    require(len(found), str(run), "unprofiled iterations in iterations_rank0.csv", found="none")
    return above_0(found.astype(float), f"{run} iteration_s").tolist()


def _check_same(run: Path, notes: dict, of_profile: dict, profile: Path) -> None:
    asked, known = notes.get("settings", {}), of_profile.get("settings", {})
    for name in _SAME:
        if name in asked and name in known:
            expected = f"{name} {shown(known[name])}, as in {profile}"
            same, do = asked[name] == known[name], "Profile the same training"
            require(same, str(run), expected, asked[name], do)
