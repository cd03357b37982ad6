"""Strong and weak scaling: the same batch shared among more workers, or more batches."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pandas as pd

from ..base.checks import above_0, check_callable, one_number, shown
from ..base.tables import check
from ..fusion import DDPBuckets
from .prediction import predict, sweep
from .scenario import Scenario, check_scenario

SCALING = {
    "n_workers": "workers",
    "one_worker_s": "T1: s of a worker's iteration with its share of the batch, alone",
    "iteration_s": "Tn, s",
    "exposed_comm_s": "s",
    "scaling_factor": "T1 / Tn",
    "speedup": "samples a second over those of one worker",
    "efficiency": "speedup / n_workers",
}
TIMES = ("ready_s", "ready_min_s", "ready_max_s")  # of GRADIENTS and their spread


def weak_scaling(scenario: Scenario, n_workers: Iterable[int]) -> pd.DataFrame:
    """Return SCALING with the batch per worker fixed: efficiency is the scaling factor.

    speedup = n T1 / Tn, as n workers train on n batches at a time.
    """
    table = sweep(scenario, n_workers=n_workers)
    table = table.assign(one_worker_s=scenario.one_worker_s, efficiency=table["scaling_factor"])
    table["speedup"] = table["n_workers"] * table["efficiency"]
    return table[list(SCALING)]


def strong_scaling(
    scenario: Scenario, n_workers: Iterable[int], one_worker_s: Callable
) -> pd.DataFrame:
    """Return SCALING with the batch of all workers together fixed: speedup = T1(1) / Tn.

    one_worker_s(n) is the time of an iteration on one worker alone with one n-th of the batch, s:

        strong_scaling(scenario, [1, 2, 4], lambda n: batch_time(256 / n))

    It must tell the time of one worker with the whole batch, one_worker_s(1), whatever the
    scenario's own. Backward takes the same share of it at every n (see with_compute). The scaling
    factor compares with one worker on the same share of the batch, so efficiency, which also loses
    what a small batch costs, is lower.

    Raises ValueError when one_worker_s is not callable or gives no s above 0.
    """
    check_scenario(scenario, "strong_scaling")
    check_callable(one_worker_s, "one_worker_s", "lambda(n: batch_time(batch / n))")
    if not np.iterable(n_workers):
        raise ValueError(f"n_workers: expected a list of them, got {shown(n_workers)}; [1, 2, 4]")
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

    Another batch or a faster device. The spread of ready times scales too; times of the host
    (launch_s) and fixed_s stay as they are.
    """
    one_number(one_worker_s, "one_worker_s: expected one number of s", "return s from it")
    if not 0 < one_worker_s < np.inf:
        raise ValueError(f"one_worker_s: expected s above 0, got {shown(one_worker_s)}")
    factor = float(one_worker_s) / scenario.one_worker_s
    table = scenario.gradients
    times = {name: table[name] * factor for name in TIMES if name in table}
    return replace(
        scenario,
        gradients=table.assign(**times),
        one_worker_s=float(one_worker_s),
        backward_s=scenario.backward_s * factor,
    )


_FORECAST = ["predicted_s", "error", "predicted_factor", "scaling_factor", "note"]


def beside_measured(scenario: Scenario, measured: pd.DataFrame) -> pd.DataFrame:
    """Return measured iteration times with what the scenario predicts for as many workers.

    measured : n_workers and iteration_s (s). Its rows of one worker, where there are any, tell T1
        as their median, for that of a trace holds the profiler's cost. Forecasts of another source
        in it, such as `workbench.capture compare` writes, go; where it has a column policy, all
        rows are to have one, the scenario's: ddp where that is DDPBuckets

    Adds predicted_s, scaling_factor (of the prediction) and error, predicted / measured - 1. Raises
    ValueError for times that are not above 0, and for several policies.
    """
    check(measured, {"n_workers": "workers", "iteration_s": "s an iteration"}, "measured")
    check_scenario(scenario, "beside_measured")
    policies = [str(each) for each in measured["policy"].unique()] if "policy" in measured else []
    other = isinstance(scenario.fusion, DDPBuckets) and policies != ["ddp"]
    if policies and (other or len(policies) > 1):
        raise ValueError(
            f"measured: policy: expected one, that of the forecast{' (ddp)' * other}, got "
            f"{shown(', '.join(policies))}; keep its rows. Others are forecast by `python -m "
            "workbench.capture compare`"
        )
    above_0(measured["iteration_s"], "measured: iteration_s")
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
