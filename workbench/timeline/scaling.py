"""Strong and weak scaling: one batch shared among more workers, or one batch per worker."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pandas as pd

from ..base.checks import above_0, call_of, checked, require
from ..base.tables import table_of
from ..fusion import DDPBuckets
from .prediction import predict, sweep
from .scenario import FIELDS, Scenario, a_scenario

SCALING = {
    "n_workers": "workers",
    "one_worker_s": "T1: s per iteration of one worker alone with its share of the batch",
    "iteration_s": "Tn, s",
    "exposed_comm_s": "s",
    "scaling_factor": "T1 / Tn",
    "speedup": "samples per s over those of one worker",
    "efficiency": "speedup / n_workers",
}
TIMES = ("ready_s", "ready_min_s", "ready_max_s")  # of GRADIENTS and their spread


def weak_scaling(scenario: Scenario, n_workers: Iterable[int]) -> pd.DataFrame:
    """Return SCALING with the batch per worker fixed: efficiency is the scaling factor.

    speedup = n T1 / Tn, as n workers train on n batches per iteration.
    """
    table = sweep(scenario, n_workers=n_workers)
    table = table.assign(one_worker_s=scenario.one_worker_s, efficiency=table["scaling_factor"])
    table["speedup"] = table["n_workers"] * table["efficiency"]
    return table[list(SCALING)]


@checked(scenario=a_scenario, one_worker_s=call_of("lambda(n: batch_time(batch / n))"))
def strong_scaling(
    scenario: Scenario, n_workers: Iterable[int], one_worker_s: Callable
) -> pd.DataFrame:
    """Return SCALING with the batch of all workers together fixed: speedup = T1(1) / Tn.

    one_worker_s : n -> s per iteration of one worker alone with 1/n of the batch, also for n = 1,
        which replaces the scenario's T1

        strong_scaling(scenario, [1, 2, 4], lambda n: batch_time(256 / n))

    Backward takes the same share of it at every n (see with_compute). The scaling factor compares
    with one worker on the same share of the batch; efficiency is lower, since it includes the cost
    of small batches.
    """
    require(np.iterable(n_workers), "n_workers", "a list of them", n_workers, "Write [1, 2, 4]")
    whole_s = with_compute(scenario, one_worker_s(1)).one_worker_s
    rows = []
    for n in n_workers:
        shared = with_compute(scenario, one_worker_s(n))
        found = predict(replace(shared, n_workers=n))
        times = shared.one_worker_s, found.iteration_s, found.exposed_comm_s, found.scaling_factor
        speedup = whole_s / found.iteration_s
        rows.append((n, *times, speedup, speedup / n))
    return pd.DataFrame(rows, columns=list(SCALING))


def with_compute(scenario: Scenario, one_worker_s: float) -> Scenario:
    """Return the scenario with compute that takes one_worker_s: backward and ready times scale.

    For another batch or a faster device. The spread of ready times scales too; times of the host
    (launch_s) and fixed_s do not change.
    """
    FIELDS["one_worker_s"](one_worker_s, "one_worker_s")
    factor = float(one_worker_s) / scenario.one_worker_s
    table = scenario.gradients
    times = {name: table[name] * factor for name in TIMES if name in table}
    return replace(
        scenario,
        gradients=table.assign(**times),
        one_worker_s=float(one_worker_s),
        backward_s=scenario.backward_s * factor,
    )


_MEASURED = {"n_workers": "workers", "iteration_s": "s per iteration"}
_FORECAST = ["predicted_s", "error", "predicted_factor", "scaling_factor", "note"]


@checked(scenario=a_scenario, measured=table_of(_MEASURED))
def beside_measured(scenario: Scenario, measured: pd.DataFrame) -> pd.DataFrame:
    """Return measured iteration times with what the scenario predicts for as many workers.

    measured : n_workers and iteration_s (s). The median of its rows of one worker, if any, replaces
        T1, because that of a trace includes the profiler's cost. Columns of other forecasts, such
        as `workbench.capture compare` writes, are replaced; a column policy must have one value,
        the scenario's: ddp for DDPBuckets

    Adds predicted_s, scaling_factor (of the prediction) and error, predicted / measured - 1. Raises
    ValueError for times that are not above 0, and for several policies.
    """
    policies = [str(each) for each in measured["policy"].unique()] if "policy" in measured else []
    other = isinstance(scenario.fusion, DDPBuckets) and policies != ["ddp"]
    one = not policies or not (other or len(policies) > 1)
    expected = f"one, that of the forecast{' (ddp)' * other}"
    do = "Keep its rows; `python -m workbench.capture compare` forecasts others"
    require(one, "measured policy", expected, ", ".join(policies), do)
    above_0(measured["iteration_s"], "measured iteration_s")
    measured = measured.drop(columns=_FORECAST, errors="ignore")
    alone_s = measured.loc[measured["n_workers"] == 1, "iteration_s"].median()
    mine = with_compute(scenario, alone_s) if alone_s > 0 else scenario
    found = sweep(mine, n_workers=measured["n_workers"].tolist())
    predicted_s = found["iteration_s"].to_numpy()
    return measured.assign(
        predicted_s=predicted_s,
        scaling_factor=found["scaling_factor"].to_numpy(),
        error=predicted_s / measured["iteration_s"].to_numpy() - 1,
    )
