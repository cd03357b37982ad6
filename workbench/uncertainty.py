"""How sure a forecast is: bands, the knee with its range, elasticities, and where it extrapolates.

What is uncertain is the price of the link, as drawn from a fit, and compute, as it varied while it
was measured. Both are propagated through the recursion, all draws at once.
"""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd

from .bands import share
from .checks import one_number, shown, whole_workers
from .costs import LinkCost, NodesCost
from .fusion import fuse
from .optimising import Adjusted, around
from .queues import beyond_compute
from .scenario import Scenario, host_launches, seconds_alone, seconds_late
from .sensitivity import SENSITIVITY, sensitivity
from .timeline import predict, sweep

__all__ = ["SENSITIVITY", "band", "extrapolation", "knee", "knee_range", "sensitivity"]
BAND = {
    "n_workers": "workers",
    "scaling_factor": "T1 / Tn with the fitted price and the measured compute",
    "low": "lower end of the band",
    "high": "upper end of the band",
    "median": "of the draws",
    "extrapolated": "times beyond what was measured, the worst message; 1 inside",
    "why": "what is beyond the measurements, empty inside",
}
_UP_TO = 4096  # workers, where nothing else is asked


def band(
    scenario: Scenario,
    fit,
    n_workers,
    level: float = 0.95,
    n_draws: int = 1000,
    rng: np.random.Generator | None = None,
    compute_cv: float | None = None,
) -> pd.DataFrame:
    """Return BAND: the scaling factor at each number of workers, with its band.

    Parameters
    ----------
    scenario : what is trained; fit.model takes the place of its all_reduce, within what
        optimisations have adjusted of it
    fit : of the all-reduce, such as fit_all_reduce(measurements); its draws give the link's share
    n_workers : one number or several
    level : share of the draws between low and high
    n_draws : how many
    rng : of the draws; None for a generator of a fixed seed, so that figures come out the same
    compute_cv : coefficient of variation of compute, 0.02 for 2 %, all of it by one normal factor a
        draw. None takes the range ready_min_s to ready_max_s of the gradients, where they have it:
        a draw has each gradient ready at the same place within its range, uniform below and above
        its median, and the rest of T1 by the factor of the last; otherwise compute is certain

    The band is that of the forecast's inputs: it does not tell whether the model itself holds
    beyond what was measured, which `extrapolated` is there for. A policy with a clock, or several
    streams, has each draw predicted by itself, which takes some ms a draw.

    Raises ValueError for a fit without draws, a level or a number of draws that cannot be.
    """
    counts = np.atleast_1d(whole_workers(n_workers))
    tails = 0.5 - share(level) / 2, 0.5, 0.5 + level / 2
    found = _Draws(scenario, fit, n_draws, rng, compute_cv)
    rows = [(n, *np.quantile(found(n), tails)) for n in counts.tolist()]
    table = pd.DataFrame(rows, columns=["n_workers", "low", "median", "high"])
    table = table.assign(
        n_workers=counts.astype("int64"), scaling_factor=[found.expected(n) for n in counts]
    )
    beyond = extrapolation(scenario, fit, counts)
    return table.assign(extrapolated=beyond["extrapolated"], why=beyond["why"])[list(BAND)]


def extrapolation(scenario: Scenario, fit, n_workers=None) -> pd.DataFrame:
    """Return how far each forecast reaches beyond what the fit was measured on.

    Columns n_workers; extrapolated, how many times the worst message is beyond the measured bytes
    or workers, 1 inside and infinite for a price that the fit leaves free; nbytes, that message's;
    why, in words, empty inside. A lone worker sends nothing, so nothing is beyond.
    """
    _refuse(scenario, fit, "extrapolation")
    counts = np.atleast_1d(whole_workers(scenario.n_workers if n_workers is None else n_workers))
    sizes = np.unique(fuse(scenario.gradients, scenario.fusion)["nbytes"].to_numpy(float))
    cost = scenario.all_reduce
    sent = sizes / (cost.compression if isinstance(cost, Adjusted) else 1.0)
    told = fit.predict(*(each.ravel() for each in np.meshgrid(sent, counts)))
    factor = told["extrapolated"].to_numpy(float).reshape(len(counts), len(sent))
    factor = np.where(counts[:, None] > 1, factor, 1.0)
    worst = factor.argmax(axis=1)
    why = told["why"].astype("str").to_numpy().reshape(factor.shape)
    rows = np.arange(len(counts))
    beyond = factor[rows, worst]
    return pd.DataFrame(
        {
            "n_workers": counts.astype("int64"),
            "extrapolated": beyond,
            "nbytes": sent[worst],
            "why": pd.array(np.where(beyond > 1, why[rows, worst], ""), dtype="str"),
        }
    )


def knee(scenario: Scenario, threshold: float = 0.5, n_workers=None) -> int:
    """Return the largest number of workers that still pays: its marginal gain is above threshold.

        gain(n_i) = (n_i SF(n_i) - n_{i-1} SF(n_{i-1})) / (n_i - n_{i-1})

    is what each worker added since the number before trains, over what one trains alone.

    threshold : a share, 0.5 for half a lone worker
    n_workers : rising numbers to choose from; None for 1, 2, 4 ... 4096

    Returns the first of them when none pays, and warns when the last still does: the knee is then
    beyond it.
    """
    counts = _choices(n_workers, threshold)
    factors = sweep(scenario, n_workers=counts.tolist())["scaling_factor"].to_numpy()
    found = int(_knees(counts, factors[:, None], threshold)[0])
    if found == counts[-1]:
        warnings.warn(
            f"knee: {found} workers, the most that were asked for, still pay; give n_workers more",
            stacklevel=2,
        )
    return found


def knee_range(
    scenario: Scenario,
    fit,
    threshold: float = 0.5,
    n_workers=None,
    level: float = 0.95,
    n_draws: int = 1000,
    rng: np.random.Generator | None = None,
    compute_cv: float | None = None,
) -> pd.DataFrame:
    """Return the knee with its range from the draws, one row.

    Columns knee, with the fitted price; low and high, between which the knees of a share `level` of
    the draws lie; at_least, True when high is the last of n_workers and may be beyond; extrapolated
    and why, of the knee, as in BAND. Arguments as of knee and band.
    """
    counts, tail = _choices(n_workers, threshold), 0.5 - share(level) / 2
    found = _Draws(scenario, fit, n_draws, rng, compute_cv)
    expected = np.array([[found.expected(n)] for n in counts])
    best = int(_knees(counts, expected, threshold)[0])
    drawn = _knees(counts, np.stack([found(n) for n in counts]), threshold)
    low, high = np.quantile(drawn, [tail, 1 - tail], method="inverted_cdf").astype(int).tolist()
    beyond = extrapolation(scenario, fit, best).iloc[0]
    row = {"knee": best, "low": low, "high": high, "at_least": high == counts[-1]}
    return pd.DataFrame([row | {name: beyond[name] for name in ("extrapolated", "why")}])


def _knees(counts: np.ndarray, factors: np.ndarray, threshold: float) -> np.ndarray:
    """Return the knee of each column of scaling factors, shape (numbers of workers, columns)."""
    trained = counts[:, None] * factors
    gains = np.diff(trained, axis=0) / np.diff(counts)[:, None]
    pays = np.vstack([np.ones((1, factors.shape[1]), bool), gains > threshold])
    return counts[len(counts) - 1 - pays[::-1].argmax(axis=0)]


class _Draws:
    """Scaling factors of draws of the link and of compute, by number of workers."""

    def __init__(self, scenario, fit, n_draws, rng, compute_cv):
        _refuse(scenario, fit, "band")
        rng = np.random.default_rng(20220425) if rng is None else rng
        self.scenario = replace(scenario, all_reduce=around(scenario.all_reduce, fit.model))
        self.costs = fit.draws(_whole_draws(n_draws), rng)
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
        last = _last_members(self.scenario)
        return self.ready[last]

    def _predicted(self, n_workers: int) -> np.ndarray:
        scenario, found = self.scenario, []
        for draw, (cost, factor) in enumerate(zip(self.costs, self.factors, strict=True)):
            gradients = scenario.gradients
            ready = gradients["ready_s"] * factor if self.ready is None else self.ready[:, draw]
            gradients = gradients.assign(ready_s=ready)
            changed = replace(
                scenario,
                gradients=gradients,
                one_worker_s=scenario.one_worker_s * factor,
                backward_s=max(scenario.backward_s * factor, gradients["ready_s"].iloc[-1]),
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
        what = "compute_cv: expected a number from 0 to below 0.3"
        if not 0 <= one_number(compute_cv, what, "2 % is 0.02") < 0.3:
            raise ValueError(f"{what}, got {shown(compute_cv)}; 2 % is 0.02")
        factors = 1 + compute_cv * rng.standard_normal(n_draws)
        return np.maximum(factors, 1e-3), None  # below 0.3 only one draw in 2,000 comes near 0
    if not {"ready_min_s", "ready_max_s"} <= set(gradients):
        return np.ones(n_draws), None
    low, mid, high = (
        gradients[name].to_numpy(float)[:, None]
        for name in ("ready_min_s", "ready_s", "ready_max_s")
    )
    wrong = ~((low <= mid * (1 + 1e-9)) & (mid <= high * (1 + 1e-9)))[:, 0]
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"gradients: ready_s of row {row}: expected it between ready_min_s and ready_max_s, "
            f"{low[row, 0]:.6g} to {high[row, 0]:.6g} s; got {mid[row, 0]:.6g}. Scale all three, "
            "or give compute_cv"
        )
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


def _choices(n_workers, threshold: float) -> np.ndarray:
    expected = "threshold: expected a share from 0 to below 1"
    if not 0 <= one_number(threshold, expected, "half a worker is 0.5") < 1:
        raise ValueError(f"{expected}, got {shown(threshold)}; half a worker is 0.5")
    if n_workers is None:
        return 2 ** np.arange(int(np.log2(_UP_TO)) + 1)
    counts = np.atleast_1d(whole_workers(n_workers)).astype("int64")
    if counts.ndim != 1 or len(counts) < 2 or (np.diff(counts) <= 0).any():
        raise ValueError("n_workers: expected two or more rising numbers; write [1, 2, 4, 8]")
    return counts


def _whole_draws(n_draws) -> int:
    expected = "n_draws: expected a whole number from 2 up"
    if not (one_number(n_draws, expected, "write 1000") >= 2 and n_draws == int(n_draws)):
        raise ValueError(f"{expected}, got {shown(n_draws)}; write 1000")
    return int(n_draws)


def _refuse(scenario, fit, caller: str):
    if not isinstance(scenario, Scenario):
        raise ValueError(f"{caller}: expected a Scenario, got {shown(scenario)}")
    if getattr(fit, "inputs", ()) != ("nbytes", "n_workers"):  # a fit of batches has another
        raise ValueError(
            f"{caller}: expected a Fit of messages, got {shown(fit)}; "
            "make one: fit_all_reduce(measurements)"
        )
