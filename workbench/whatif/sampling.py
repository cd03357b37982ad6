"""Scaling factors of random draws of the link's price and of compute.

All draws are predicted at once by the closed form of one queue, where it holds.
"""

from dataclasses import replace

import numpy as np
import pandas as pd

from ..base.checks import checked, integer, optional, real, require
from ..costs import LinkCost, NodesCost
from ..costs.adjusted import around
from ..fusion import fuse
from ..timeline import Scenario, predict
from ..timeline.queues import beyond_compute
from ..timeline.scenario import a_scenario, host_launches, seconds_alone, seconds_late
from .workloads import enqueued_by

_CV = real("a number from 0 to below 0.3", lambda v: 0 <= v < 0.3, "2 % is 0.02")


@checked(n_draws=integer(2), compute_cv=optional(_CV))
class Draws:
    """Scaling factors of draws of the link and of compute, by number of workers."""

    def __init__(self, scenario, fit, n_draws, rng, compute_cv):
        refuse_fit(scenario, fit, "band")
        rng = np.random.default_rng(20220425) if rng is None else rng
        self.scenario = replace(scenario, all_reduce=around(scenario.all_reduce, fit.model))
        self.costs = fit.draws(n_draws, rng)
        self.drawn = _Drawn(self.costs)
        self.table = fuse(scenario.gradients, scenario.fusion)
        self.factors, self.ready = _compute_draws(scenario.gradients, n_draws, rng, compute_cv)
        varies = self.ready is not None or np.ptp(self.factors) > 0
        self.one_by_one = scenario.n_streams > 1 or ("launch_s" in self.table and varies)

    def expected(self, n_workers) -> float:
        return predict(replace(self.scenario, n_workers=int(n_workers))).scaling_factor

    def __call__(self, n_workers) -> np.ndarray:
        """Return the scaling factor of each draw, shape (n_draws,)."""
        if self.one_by_one:
            return self._predicted(int(n_workers))
        scenario, table = self.scenario, self.table
        backward_s = scenario.backward_s * self.factors
        one_worker_s = scenario.one_worker_s * self.factors
        ready = self._bucket_ready()
        cost = around(scenario.all_reduce, self.drawn)
        nbytes = table["nbytes"].to_numpy(float)[:, None]
        seconds = seconds_alone(cost, np.broadcast_to(nbytes, ready.shape), int(n_workers))
        launch = host_launches(table, scenario.launch_s)[:, None]
        launch = np.maximum(launch, 0.0 if scenario.overlap else backward_s)
        if n_workers == 1:
            launch = np.zeros_like(ready)
        ready = np.minimum(ready, backward_s)
        parts = beyond_compute(ready, launch, seconds, backward_s, scenario.slowdown)
        besides = float(seconds_late(scenario.jitter, n_workers)) + (
            scenario.fixed_s if n_workers > 1 else 0.0
        )
        return one_worker_s / (one_worker_s + sum(parts) + besides)

    def _bucket_ready(self) -> np.ndarray:
        """Return when each bucket is ready in each draw, shape (K, n_draws)."""
        if self.ready is None:
            return self.table["ready_s"].to_numpy(float)[:, None] * self.factors
        return self.ready[_last_members(self.scenario)]

    def _predicted(self, n_workers: int) -> np.ndarray:
        scenario, found = self.scenario, []
        for draw, (cost, factor) in enumerate(zip(self.costs, self.factors, strict=True)):
            gradients = scenario.gradients
            ready = gradients["ready_s"] * factor if self.ready is None else self.ready[:, draw]
            changed = replace(
                scenario,
                gradients=enqueued_by(gradients, ready).assign(ready_s=ready),
                one_worker_s=scenario.one_worker_s * factor,
                backward_s=scenario.backward_s * factor,
                all_reduce=around(scenario.all_reduce, cost),
                n_workers=n_workers,
            )
            found.append(predict(changed).scaling_factor)
        return np.array(found)


class _Drawn:
    """All draws of a cost as one: seconds of shape (K, n_draws) from bytes of that shape."""

    def __init__(self, costs: list):
        self.costs = costs
        self.linear = isinstance(costs[0], LinkCost | NodesCost)
        if self.linear:
            self.values = pd.DataFrame([cost.parameters for cost in costs])

    def __call__(self, nbytes, n_workers):
        nbytes = np.asarray(nbytes, float)
        if self.linear:
            columns = self.costs[0].columns(nbytes[:, :1], n_workers)
            return sum(columns[name] * self.values[name].to_numpy() for name in columns)
        each = [cost(nbytes[:, k], n_workers) for k, cost in enumerate(self.costs)]
        return np.column_stack([np.broadcast_to(one, len(nbytes)) for one in each])


def _compute_draws(gradients: pd.DataFrame, n_draws: int, rng, compute_cv):
    """Return factors of compute, shape (n_draws,), and ready times (L, n_draws) where they vary."""
    if compute_cv is not None:
        factors = 1 + compute_cv * rng.standard_normal(n_draws)
        return np.maximum(factors, 1e-3), None  # below 0.3 only one draw in 2,000 comes near 0
    if not {"ready_min_s", "ready_max_s"} <= set(gradients):
        return np.ones(n_draws), None
    low, mid, high = (
        gradients[name].to_numpy(float)[:, None]
        for name in ("ready_min_s", "ready_s", "ready_max_s")
    )
    wrong = ~((low <= mid * (1 + 1e-9)) & (mid <= high * (1 + 1e-9)))[:, 0]
    row = int(wrong.argmax())
    expected = f"{low[row, 0]:.6g} to {high[row, 0]:.6g} s, ready_min_s to ready_max_s"
    do = "Scale all three, or give compute_cv"
    require(not wrong.any(), f"gradients ready_s of row {row}", expected, mid[row, 0], do)
    at = rng.uniform(-1, 1, n_draws)
    ready = mid + np.where(at < 0, (mid - low) * at, (high - mid) * at)
    ready = np.maximum.accumulate(ready, axis=0)
    return ready[-1] / mid[-1] if mid[-1, 0] > 0 else np.ones(n_draws), ready


def _last_members(scenario: Scenario) -> np.ndarray:
    """Return the position of the gradient that each bucket waits for."""
    grouped = scenario.fusion(scenario.gradients)
    bucket = np.asarray(getattr(grouped, "numbers", grouped)).astype(int)
    last = np.zeros(bucket.max() + 1, dtype=int)
    np.maximum.at(last, bucket, np.arange(len(bucket)))
    return last


def refuse_fit(scenario, fit, caller: str):
    """Raise ValueError unless there is a Scenario and a Fit of the time of messages."""
    a_scenario(scenario, caller)
    ok = getattr(fit, "inputs", ()) == ("nbytes", "n_workers")  # a fit of batches has others
    require(ok, f"{caller} fit", "a Fit of messages", fit, "Make one: fit_all_reduce(measurements)")
