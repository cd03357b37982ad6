"""The study on emulated networks: what one worker and timed messages predict, and measurements.

`make study` writes data/runs/study, whose tables are read here. A prediction rests on profiles.csv
(one worker, no network) and collectives.csv (all-reduces alone) only; cells.csv is compared with.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from ..base.checks import above_0, instance, numbers, one_of, refuse, require, shown
from ..base.tables import MEASUREMENTS, check
from ..base.units import MIB
from ..costs import Interpolated
from ..fusion import DDPBuckets, FixedBuffer, OneMessage, PerTensor
from ..timeline import Scenario, predict, scenario_of
from ..timeline.from_run import Profile
from ..whatif import optimal
from .cells import VALIDATION, summary
from .gain import GAIN, verdict

PROFILES = {
    "model": "what was trained",
    "scale": "factor by which real gradients are larger",
    "name": "of a gradient, in the order of backward",
    "nbytes": "bytes",
    "ready_s": "s since backward began, median over iterations",
    "one_worker_s": "T1 of the model, s",
    "backward_s": "from the beginning to the end of backward, s",
    "wrapper_s": "what hooks and copies into messages add to T1, s",
}
CELLS = {
    "network": "rate each way, and delay one way if there is one",
    "n_workers": "workers",
    "model": "what was trained",
    "policy": "of `policies`",
    "n_messages": "messages per iteration",
    "iteration_s": "median over iterations, s",
    "low_s": "lower end of the median's 95 % interval, s",
    "high_s": "upper end of it, s",
}
_CONSTANT, _ADAPTIVE = "64 MiB", "adaptive"  # the two that the paper's abstract compares
_TABLES = {
    "profiles": PROFILES,
    "collectives": {"network": CELLS["network"]} | MEASUREMENTS,
    "cells": CELLS,
}
_NAMES = {
    "resnet50": "ResNet-50",
    "vgg16_bn": "VGG-16-BN",
    "bert_base": "BERT-Base",
    "lstm": "LSTM",
}
_CELL = ["network", "n_workers", "model"]
_CELLS_OF = ["case", "n_workers", "model"]  # of VALIDATION
_OF_MODEL = ["scale", "one_worker_s", "backward_s", "wrapper_s"]  # on each row of its profile


@dataclass(frozen=True, eq=False)
class Study:
    """What a study measured.

    profiles : PROFILES; collectives : MEASUREMENTS with a column network; cells : CELLS
    info : run.json, with what the machine was and how the networks were made
    """

    profiles: pd.DataFrame
    collectives: pd.DataFrame
    cells: pd.DataFrame
    info: dict


def read_study(folder: Path | str) -> Study:
    """Return the study in a folder that `make study` wrote."""
    tables = {}
    for name, columns in _TABLES.items():
        path = Path(folder) / f"{name}.csv"
        tables[name] = check(_read(path, partial(pd.read_csv, comment="#")), columns, str(path))
    return Study(**tables, info=_read(Path(folder) / "run.json", json.load))


def _read(path: Path, parse: Callable):
    """Return what a file of a study contains, or raise ValueError naming the file."""
    try:
        with path.open(encoding="utf-8") as file:
            return parse(file)
    except (OSError, ValueError) as error:
        why = str(error).strip().splitlines()[0]
        refuse(str(path), "what `make study` writes", found=why)


def scenario(profile: pd.DataFrame, collectives: pd.DataFrame, n_workers: int) -> Scenario:
    """Return the scenario of a model on a network, with DDP's buckets.

    profile : PROFILES of one model
    collectives : MEASUREMENTS of one network, between which the price of a message is interpolated

    fixed_s is what hooks and copies cost one worker.
    """
    check(profile, PROFILES, "profile")
    check(collectives, MEASUREMENTS, "collectives")
    known = profile[["model", *_OF_MODEL]].drop_duplicates()
    expected = f"rows of one model, with one {', '.join(_OF_MODEL)}"
    require(len(known) == 1, "profile", expected, found=f"{len(known)} of these")
    above_0(profile["scale"], "profile scale")
    timed = collectives.query("op == 'all_reduce' and n_workers == @n_workers")
    expected = f"all-reduces timed with {shown(n_workers)} workers"
    require(len(timed), "collectives", expected, found="none")
    times = known.iloc[0][["one_worker_s", "backward_s", "wrapper_s"]].astype(float)
    recorded = Profile(profile[["name", "nbytes", "ready_s"]].reset_index(drop=True), *times)
    return scenario_of(recorded, Interpolated(timed), n_workers, DDPBuckets())


def policies(scenario: Scenario, scale: int) -> dict:
    """Return the fusion policies of the study by name.

    scale : real gradients are larger by this factor, and so is the buffer "64 MiB to scale"; a
        buffer of 64 MiB contains a whole model of the study, as one message does

    Adaptive is the optimum for the scenario.
    """
    return {
        "per tensor": PerTensor(),
        "one message": OneMessage(),
        "DDP": DDPBuckets(),
        _CONSTANT: FixedBuffer(64 * MIB),
        "64 MiB to scale": FixedBuffer(64 * MIB // scale),
        _ADAPTIVE: optimal(scenario).fusion,
    }


def predicted(study: Study) -> pd.DataFrame:
    """Return VALIDATION of the scaling factor, T1 / Tn, one row per cell; no cell is left out.

    case is the network, method the policy. More columns: low and high, the 95 % interval of the
    measured factor's median; n_messages as sent, and predicted_messages.

    Raises ValueError if a cell occurs twice, has no time, or has no profile, timed messages or
    policy of `policies`.
    """
    instance(Study, "a Study", "Pass read_study(folder)")(study, "study")
    cells = _once(check(study.cells, CELLS, "cells"), [*_CELL, "policy"], "cells")
    for name in ("iteration_s", "low_s", "high_s"):
        above_0(cells[name], f"cells {name}")
    keys = cells[_CELL].drop_duplicates().itertuples(index=False)
    forecast = pd.concat([_forecasts(study, *key) for key in keys])
    for policy in cells["policy"].unique():
        one_of(forecast["policy"].unique())(policy, "cells policy")
    table = cells.merge(forecast, on=[*_CELL, "policy"], how="left")
    one_worker_s = table["one_worker_s"]
    measured = one_worker_s / table["iteration_s"]
    table = table.rename(columns={"network": "case", "policy": "method"}).assign(
        model=table["model"].replace(_NAMES),
        dataset="emulated networks",
        quantity="scaling factor",
        measured=measured,
        low=one_worker_s / table["high_s"],
        high=one_worker_s / table["low_s"],
        error=table["predicted"] / measured - 1,
        calibrated_on="one worker, and all-reduces alone",
        note="",
    )
    return table[[*VALIDATION, "low", "high", "n_messages", "predicted_messages"]]


def _forecasts(study: Study, network: str, n_workers: int, model: str) -> pd.DataFrame:
    """Return the predicted scaling factor and messages of each policy."""
    profile = check(study.profiles, PROFILES, "profiles").query("model == @model")
    timed = check(study.collectives, _TABLES["collectives"], "collectives")
    timed = timed.query("network == @network")
    for what, rows, value in (("profiles", profile, model), ("collectives", timed, network)):
        require(len(rows), what, f"rows of {shown(value)}, which has cells", found="none")
    base = scenario(profile, timed, n_workers)
    rows = []
    for name, policy in policies(base, int(profile["scale"].iloc[0])).items():
        made = predict(replace(base, fusion=policy))
        rows.append((name, made.scaling_factor, len(made.timeline)))
    table = pd.DataFrame(rows, columns=["policy", "predicted", "predicted_messages"])
    cell = {"network": network, "n_workers": n_workers, "model": model}
    return table.assign(**cell, one_worker_s=base.one_worker_s)


def _once(table: pd.DataFrame, key: list, what: str) -> pd.DataFrame:
    """Return the table, or raise ValueError unless it has rows, and one row per key."""
    found = "an empty one" if len(table) else "no row"
    whole = len(table) and not table[key].isna().any(axis=None)
    require(whole, what, f"rows, each with {', '.join(key)}", found=found)
    twice = table.loc[table.duplicated(key), key].to_numpy().tolist()
    require(not twice, what, "each cell once", found=f"{twice[:1]} twice")
    return table


def _checked(table: pd.DataFrame, over: str, what: str, more: tuple = ()) -> pd.DataFrame:
    """Return the table of `predicted`, or raise ValueError unless each cell has all methods once.

    over : the method that others are compared with; more : further columns with numbers above 0
    """
    check(table, VALIDATION | dict.fromkeys(more, "of measured, see `predicted`"), what)
    _once(table, [*_CELLS_OF, "method"], what)
    for name in ("measured", "predicted", *more):
        above_0(table[name], f"{what} {name}")
    methods = table["method"].unique()
    one_of(methods)(over, f"{what} method")
    cells = pd.MultiIndex.from_frame(table[_CELLS_OF])
    for name in methods:
        lacks = cells[~cells.isin(cells[table["method"] == name])].tolist()
        found = f"no {name} for {lacks[:1]}"
        require(not lacks, f"{what} method", "each cell with every method", found=found)
    return table


def without_overlap(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table of `predicted` with a simpler prediction: one message after backward.

    That is T1 + w + C(all bytes) for every method, which needs no recursion; its errors show what
    OSF adds.
    """
    _checked(table, "one message", "without_overlap")
    one = table[table["method"] == "one message"].set_index(_CELLS_OF)["predicted"]
    simple = one.loc[pd.MultiIndex.from_frame(table[_CELLS_OF])].to_numpy()
    return table.assign(predicted=simple, error=simple / table["measured"] - 1)


def errors(table: pd.DataFrame, by: tuple = ("n_workers",)) -> pd.DataFrame:
    """Return the errors of predictions as shares of what was measured, one row per group.

    table : VALIDATION. Columns: those of by, cells, mean_absolute, p95 (95th percentile of the
    absolute errors), largest, mean_error.
    """
    by = [by] if isinstance(by, str) else list(by)
    require(by, "by", "names of columns to group by", found="none")
    check(table, VALIDATION | dict.fromkeys(by, "to group by"), "errors")
    numbers(pd.to_numeric(table["error"], "coerce").abs(), "errors error", "finite numbers")
    return summary(table, by, p95=lambda each: np.quantile(each, 0.95))


def gains(table: pd.DataFrame) -> pd.DataFrame:
    """Return GAIN of the adaptive plan over every other policy, as measured.

    table : of `predicted`. More columns: predicted_gain; noise, by how much the gain may be off
    by the intervals of the two medians.
    """
    _checked(table, _ADAPTIVE, "gains", ("low", "high"))
    of = {name: rows.set_index(_CELLS_OF) for name, rows in table.groupby("method", sort=False)}
    own = of.pop(_ADAPTIVE)
    require(of, "gains method", f"others next to {_ADAPTIVE}", found="none")
    parts = [_gain(own, other.loc[own.index]).assign(baseline=name) for name, other in of.items()]
    found = pd.concat(parts).reset_index().rename(columns={"case": "network"})
    found = found.assign(source="emulated networks")
    return found[[*GAIN, "predicted_gain", "noise"]]


def _gain(own: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Return what one policy gains over another, cell by cell."""
    gain = own["measured"] / other["measured"] - 1
    half = [(each["high"] - each["low"]) / 2 / each["measured"] for each in (own, other)]
    return pd.DataFrame(
        {
            "constant": other["measured"],
            "adaptive": own["measured"],
            "gain": gain,
            "verdict": verdict(gain),
            "predicted_gain": own["predicted"] / other["predicted"] - 1,
            "noise": np.hypot(*half),
        }
    )


def paired_gains(table: pd.DataFrame) -> pd.DataFrame:
    """Return GAIN of the adaptive plan twice: each baseline as measured, then as predicted.

    table : of `predicted`. Names of baselines say which: "64 MiB: measured".
    """
    _checked(table, _ADAPTIVE, "paired_gains", ("low", "high"))
    forecast = table.assign(**dict.fromkeys(("measured", "low", "high"), table["predicted"]))
    found = {"measured": gains(table), "predicted": gains(forecast)}
    parts = [
        rows[rows["baseline"] == baseline].assign(baseline=f"{baseline}: {what}")
        for baseline in found["measured"]["baseline"].unique()
        for what, rows in found.items()
    ]
    return pd.concat(parts, ignore_index=True)[list(GAIN)]


def speedups(table: pd.DataFrame, over: str = "one message") -> pd.DataFrame:
    """Return how many times as fast as with one policy the others train, mean over models.

    table : of `predicted`. Two rows per network and number of workers, measured and predicted, one
    column per policy; geometric means.
    """
    _checked(table, over, "speedups")
    logs = np.log(table.set_index([*_CELLS_OF, "method"])[["measured", "predicted"]])
    ratios = logs - logs.xs(over, level="method").reindex(logs.index.droplevel("method")).to_numpy()
    means = ratios.groupby(["case", "n_workers", "method"], sort=False).mean()
    means.columns.name = "speedup"
    wide = np.exp(means).stack().unstack("method")
    order = [name for name in table["method"].unique() if name != over]
    rows = logs.index.droplevel(["model", "method"]).unique()
    both = [(*row, what) for row in rows for what in means]
    return wide.loc[both, order]
