"""Elasticities of the scaling factor, in closed form from the critical bucket.

The last message ends at A_c + sum of C_j, j >= c, where c is the critical bucket and A_c its
arrival: its ready time, its launch, or the end of backward without overlap. So with one queue, and
if communication bounds the iteration,

    dTn/dp = sum of dC_j/dp, j >= c         for a price p of the link
    dTn/dx = (dT1 + dA_c - dB)/dx           when compute takes longer

and the elasticity of the scaling factor T1/Tn to p is (p/T1) dT1/dp - (p/Tn) dTn/dp: its change in
per cent if p grows by 1 %. If all are 0, backward hides all messages.
"""

from dataclasses import fields, is_dataclass, replace

import numpy as np
import pandas as pd

from ..base.checks import checked, require
from ..costs import Adjusted
from ..fits.regimes import tangent
from ..fusion import fuse
from ..timeline import Prediction, Scenario, predict
from ..timeline.scenario import a_scenario, host_launches, latency_alone, seconds_alone
from .workloads import enqueued_by

SENSITIVITY = {
    "parameter": "a price of the link, bytes, backward (without forward), compute (T1) or buffer",
    "value": "its value in SI units; 1 for a share of all",
    "elasticity": "% of the scaling factor per % of the parameter",
    "method": "critical bucket, or half to double: ln(SF(2x) / SF(x/2)) / ln 4",
    "note": "meaning of the parameter",
}
_LIMITS = ("buffer_bytes", "cap_bytes", "threshold_bytes", "elements")
_STEP = 1e-6  # relative: costs and arrivals are linear between their breaks


@checked(scenario=a_scenario)
def sensitivity(scenario: Scenario, fit=None) -> pd.DataFrame:
    """Return SENSITIVITY, the largest elasticity first.

    Prices are those of `all_reduce.parameters`. The buffer, which acts in steps, is halved and
    doubled. If two buckets are critical, or backward only just hides all messages, the elasticity
    has a kink; the value returned is that of the first bucket.

    fit : of the all-reduce; notes say which prices it does not determine

    Raises ValueError for several streams or a slow-down, which have no closed form.
    """
    found = f"n_streams={scenario.n_streams}, slowdown={scenario.slowdown:g}"
    closed = scenario.n_streams == 1 and scenario.slowdown == 0
    do = "Take replace(scenario, n_streams=1, slowdown=0.0)"
    require(closed, "scenario", "one stream and no slow-down", found=found, do=do)
    free = {} if fit is None else _free(fit)
    prediction = predict(scenario)
    one_worker_s, iteration_s = scenario.one_worker_s, prediction.iteration_s
    first = _critical(prediction)
    after = np.arange(len(prediction.timeline)) >= first
    rows = [
        (name, value, -float(more_s[after].sum()) / iteration_s, "critical bucket", note)
        for name, value, more_s, note in _prices(scenario, prediction.timeline["nbytes"])
    ]
    moves_s = _arrival_moves(scenario, first) - scenario.backward_s if after.any() else 0.0
    backward_s = int(scenario.micro_batches) * scenario.backward_s
    for name, more_s, note in (
        ("backward", backward_s, "forward unchanged"),
        ("compute", one_worker_s, "forward and backward"),
    ):
        elasticity = more_s / one_worker_s - (more_s + moves_s) / iteration_s
        rows.append((name, more_s, elasticity, "critical bucket", note))
    table = pd.DataFrame([*rows, *_buffer(scenario)], columns=list(SENSITIVITY))
    table["note"] = table["note"].mask(table["parameter"].isin(free), table["parameter"].map(free))
    order = np.argsort(-table["elasticity"].abs(), kind="stable")
    return table.iloc[order].reset_index(drop=True)


def _critical(prediction: Prediction) -> int:
    """Return the index of the first critical bucket, or the number of buckets if all are hidden."""
    if prediction.exposed_comm_s + prediction.idle_s == 0:
        return len(prediction.timeline)
    return int(prediction.explain()["critical"].to_numpy().argmax())


def _prices(scenario: Scenario, nbytes: pd.Series):
    """Yield name, value, s added to each message per e-fold of it, and a note."""
    cost, n, sizes = scenario.all_reduce, scenario.n_workers, nbytes.to_numpy(float)
    priced = price_slopes(cost, sizes, n)
    for name, (value, slopes) in priced.items():
        yield name, value, value * slopes * (n > 1), ""
    if not priced:
        seconds = seconds_alone(cost, sizes, n)
        latency = latency_alone(cost, seconds, n)
        yield "latency", 1.0, latency, "cost of an empty message"
        yield "transfer", 1.0, seconds - latency, "the rest of each message"
    up, down = (seconds_alone(cost, sizes * (1 + step), n) for step in (_STEP, -_STEP))
    yield "bytes", float(sizes.sum()), (up - down) / (2 * _STEP), "messages unchanged"


def price_slopes(cost, nbytes: np.ndarray, n_workers) -> dict:
    """Return price -> (value, dC/dprice of each message), empty for a cost without parameters."""
    if isinstance(cost, Adjusted):
        inner = price_slopes(cost.cost, nbytes / cost.compression, n_workers)
        return {
            name: (value, slope / (cost.latency if _is_latency(name) else cost.bandwidth))
            for name, (value, slope) in inner.items()
        }
    values, slopes = getattr(cost, "parameters", {}), tangent(cost, nbytes, n_workers)
    return {name: (values[name], slopes[name].to_numpy()) for name in slopes if name in values}


def _is_latency(name: str) -> bool:
    return name.startswith(("alpha", "floor"))


def _arrival_moves(scenario: Scenario, bucket: int) -> float:
    """Return the s by which an e-fold of backward delays a bucket's arrival.

    The policy is called again, because one with a clock may launch at times of backward.
    """
    late, early = (_arrival(scenario, bucket, 1 + step) for step in (_STEP, -_STEP))
    return (late - early) / (2 * _STEP)


def _arrival(scenario: Scenario, bucket: int, stretch: float) -> float:
    table, backward_s = scenario.gradients, scenario.backward_s * stretch
    ready_s = table["ready_s"] * stretch
    buckets = fuse(enqueued_by(table, ready_s).assign(ready_s=ready_s), scenario.fusion)
    bucket = min(bucket, len(buckets) - 1)  # a clock may cut differently
    ready_s = min(float(buckets["ready_s"].iloc[bucket]), backward_s)
    launch_s = float(host_launches(buckets, scenario.launch_s)[bucket])
    return max(ready_s, launch_s, 0.0 if scenario.overlap else backward_s)


def _buffer(scenario: Scenario):
    """Yield the rows of the limits of a fusion policy."""
    policy = scenario.fusion
    if not is_dataclass(policy) or np.ndim(scenario.launch_s):
        return
    for name in (field.name for field in fields(policy) if field.name in _LIMITS):
        value = getattr(policy, name)
        half, double = (
            replace(scenario, fusion=replace(policy, **{name: limit}))
            for limit in (max(min(1, value), value / 2), 2 * value)
        )
        ratio = predict(double).scaling_factor / predict(half).scaling_factor
        yield "buffer", float(value), float(np.log(ratio) / np.log(4)), "half to double", name


def _free(fit) -> dict[str, str]:
    """Return the notes on prices that a fit does not determine."""
    do = "Make one: fit_all_reduce(measurements)"
    require(hasattr(fit, "undetermined"), "fit", "a Fit", fit, do)
    return {name: f"not determined {why}" for name, why in fit.undetermined().items()}
