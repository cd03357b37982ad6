"""The best that fusion can do, what bounds it, and the plain settings that come near.

Adaptive tensor fusion, ours: the grouping of consecutive gradients whose last message ends first,
exact for any cost on one serial queue (`grouping.optimum`). Many groupings tie, so compare scaling
factors, never groupings; and when one message saturates the link there is no headroom.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd

from ..base.checks import one_number, shown
from ..base.units import MIB
from ..fits import untimed
from ..fusion import (
    DDPBuckets,
    DeepSpeedBuckets,
    HorovodFusion,
    OneMessage,
    OptimalFusion,
    PerTensor,
    Plan,
    check_gradients,
    grouping,
    partition,
)
from ..fusion.frameworks import FRAMEWORKS, as_given, cap_list, phases, variations
from ..fusion.policies import price
from ..timeline import Scenario, predict, sweep
from ..timeline.scenario import check_scenario

HEADROOM = {
    "what": "the present policy, a plain one, the optimum, or a bound",
    "kind": "present, policy, optimum or bound",
    "n_messages": "messages an iteration; <NA> for bounds",
    "exposed_comm_s": "s",
    "iteration_s": "Tn, s",
    "scaling_factor": "T1 / Tn",
    "gain": "scaling factor over the present one's, less 1",
    "note": "of the optimum: whether it gains more than the noise",
}
LOSS = {
    "value": "of the setting, in the framework's unit: MiB, of DeepSpeed elements",
    "cycle_ms": "Horovod's cycle, ms; NaN for others",
    "setting": "text to paste",
    "iteration_s": "Tn, s",
    "scaling_factor": "T1 / Tn",
    "loss": "1 - scaling factor / that of the optimum",
    "tied": "bool: within the noise of the best row",
}
RECOMMENDATION = {
    "framework": "whose setting; as it is and optimum are the first rows",
    "setting": "text to paste; the default itself where it is kept",
    "n_messages": "messages an iteration; of Horovod the mean over phases of its ticks",
    "iteration_s": "Tn, s",
    "scaling_factor": "T1 / Tn",
    "loss": "1 - scaling factor / that of the optimum",
    "tie_low": "lowest setting around the best that is within the noise of it, in the unit of "
    "LOSS; NaN where there is no one number",
    "tie_high": "highest one, likewise",
    "default_loss": "loss of the policy as given, by default the framework's own; NaN for other "
    "rows",
    "note": "whether to keep the default, what was gained, and which sizes were never timed",
    "paste": "the note as a comment, and the setting below it",
}
_PIECES = 1000  # of large gradients, for the optimum with partitioning: a fine enough grid


def optimal_fusion(gradients: pd.DataFrame, cost, n_workers: int, slack_s: float = 0.0) -> Plan:
    """Return the Plan whose last message ends first, over all groupings of consecutive gradients.

        E(i) = min over j <= i of max(E(j - 1), R_i) + C(S(j..i))

    R_i is when gradient i is ready, S(j..i) the bytes of gradients j to i, C the cost of a message:
    exact on one serial queue for any cost, in O(L^2). With slack_s above 0, the fewest messages of
    all groupings that end at most slack_s s later (up to 64 messages, else the optimum itself).
    Types of data are not told apart.

    Large gradients may be cut by giving `partition(gradients, piece_bytes)`: the plan is then the
    optimum over all groupings that cut only between gradients or at whole multiples of piece_bytes
    within one, never worse than without, and no better for a cost alpha + beta S: pieces of one
    gradient are ready together.

    Raises ValueError for GRADIENTS that cannot be sent, and for what is no cost or no workers.
    """
    check_gradients(gradients)
    expected = "slack_s: expected s from 0 up"
    if not one_number(slack_s, expected, "1 ms is 0.001") >= 0:
        raise ValueError(f"{expected}, got {shown(slack_s)}")
    numbers = OptimalFusion(cost, n_workers)(gradients)
    if slack_s > 0:
        ready, sizes = _arrays(gradients)
        seconds = price(cost, n_workers)
        deadline_s = grouping.optimum(ready, sizes, seconds)[1][-1] + slack_s
        first = grouping.fewest(ready, sizes, seconds, deadline_s)
        numbers = (
            numbers
            if first is None
            else np.repeat(np.arange(len(first)), np.diff(first, append=len(sizes)))
        )
    return Plan(counts=tuple(np.bincount(numbers).tolist()))


def optimal(scenario: Scenario, slack_s: float = 0.0) -> Scenario:
    """Return the scenario with the plan that is optimal for it as the fusion policy.

    See optimal_fusion: on one queue, from the times at which the scenario lets gradients be sent.
    Raises ValueError for launch times a bucket, which are those of other messages.
    """
    plan = optimal_fusion(_ready(scenario), scenario.all_reduce, scenario.n_workers, slack_s)
    return replace(scenario, fusion=plan)


def headroom(scenario: Scenario, noise: float = 0.01) -> pd.DataFrame:
    """Return HEADROOM, what fusion could gain: the present policy, plain ones, optimum, and bounds.

    The optimum, also with large gradients cut into pieces, is found for one queue
    and compute that is not slowed, and then predicted with all that the scenario names. No
    grouping on one queue is above a bound:

        bandwidth only    the optimum when a message costs C(S) - C(0)
        perfect overlap   Tn = max(T1, the least total cost of all groupings)
        no communication  Tn = T1

    noise is the relative difference of iteration times that a measurement cannot tell.
    """
    _noise(noise)
    now = predict(scenario)
    piece_bytes = _piece_bytes(scenario.gradients["nbytes"].to_numpy("int64"))
    cut = replace(scenario, gradients=partition(scenario.gradients, piece_bytes))
    ready, sizes = _arrays(_ready(cut))  # what bounds the pieces bounds whole gradients too
    cost = price(scenario.all_reduce, scenario.n_workers)
    empty = cost(np.zeros(1, "int64"))[0]
    without_latency = grouping.optimum(ready, sizes, lambda s: np.maximum(cost(s) - empty, 0.0))
    bandwidth = without_latency[1][-1]
    least = grouping.optimum(np.zeros(len(sizes)), sizes, cost)[1][-1]
    rows = [
        _predicted(scenario, "as it is", "present"),
        _predicted(replace(scenario, fusion=PerTensor()), "one message a gradient", "policy"),
        _predicted(replace(scenario, fusion=OneMessage()), "one message in all", "policy"),
        _predicted(optimal(scenario), "optimum", "optimum"),
        _predicted(optimal(cut), f"optimum, pieces of {piece_bytes // MIB} MiB", "optimum"),
        _bound(scenario, "bandwidth only", max(0.0, bandwidth - scenario.backward_s)),
        _bound(scenario, "perfect overlap", max(0.0, least - scenario.one_worker_s)),
        _bound(scenario, "no communication", 0.0),
    ]
    table = pd.DataFrame(rows).astype({"n_messages": "Int64"})
    note = _verdict(now.iteration_s, table["iteration_s"].iloc[3], noise)
    return table.assign(
        gain=table["scaling_factor"] / now.scaling_factor - 1,
        note=np.where(table["what"] == "optimum", note, ""),
    )


def loss_curve(
    scenario: Scenario, policy=None, noise: float = 0.01, values: Iterable | None = None
) -> pd.DataFrame:
    """Return LOSS: how each plain setting of a framework fares against the optimum, a row each.

    Parameters
    ----------
    scenario : what is trained; its own policy does not count
    policy : whose settings are varied, all else kept: DDPBuckets() (bucket_cap_mb in MiB, the
        default), HorovodFusion() (HOROVOD_FUSION_THRESHOLD in MiB beside cycles of 1 to 50 ms, the
        mean over four phases of the ticks), DeepSpeedBuckets() (reduce_bucket_size in elements),
        FixedBuffer(...) (MiB)
    noise : relative difference of iteration times that a measurement cannot tell
    values : settings to try, in the unit above; by default round ones up to the whole model
    """
    _noise(noise)
    best = predict(optimal(scenario)).scaling_factor
    settings = variations(scenario.gradients, DDPBuckets() if policy is None else policy, values)
    policies = [phases(setting.policy) for setting in settings]
    swept = sweep(scenario, fusion=list(itertools.chain(*policies)))["iteration_s"].to_numpy()
    counts = np.array(list(map(len, policies)))
    iteration_s = np.add.reduceat(swept, np.cumsum(counts) - counts) / counts
    factor = scenario.one_worker_s / iteration_s
    return (
        pd.DataFrame(settings)
        .drop(columns="policy")
        .assign(
            iteration_s=iteration_s,
            scaling_factor=factor,
            loss=1 - factor / best,
            tied=iteration_s <= iteration_s.min() * (1 + noise),
        )
    )


def recommend(
    scenario: Scenario,
    noise: float = 0.01,
    policies: Iterable = (DDPBuckets(), HorovodFusion(), DeepSpeedBuckets()),
    fit=None,
) -> pd.DataFrame:
    """Return RECOMMENDATION: one plain setting of each framework as text to paste, and the optimum.

    Parameters
    ----------
    scenario : what is trained; its own policy is the first row only
    noise : relative difference of iteration times that a measurement cannot tell
    policies : whose settings are tried, each as given being the default that may be kept. They say
        version, workers a node, bytes an element: HorovodFusion(version="0.20.3")
    fit : of the all-reduce; with it rows say which sizes of messages it was never timed at

    Where the policy as given is within the noise of the best setting it is kept, and the row is
    about it. Otherwise, of the settings around the best that are tied with it, the one that sends
    the fewest messages is taken: small ones are priced with the least ground.

    The first rows are the scenario as it is, whose note says when there is no headroom, and the
    optimum; the last is, as a list of DDP's caps, the fewest messages within the noise of it, whose
    note says where the row of DDP, or the default, does no worse. DeepSpeed is priced by the
    scenario's all_reduce, though it may reduce-scatter.
    """
    _noise(noise)
    optimum = optimal(scenario)
    best, now = predict(optimum), predict(scenario)
    unseen_s = max(0.0, scenario.backward_s - best.timeline["end_s"].iloc[-1])
    short = optimal(scenario, slack_s=noise * best.iteration_s + unseen_s)
    caps, listed = cap_list(scenario.gradients, short.fusion)
    rows = [
        _row("as it is", repr(scenario.fusion), [now], best),
        _row("optimum", repr(optimum.fusion), [best], best),
    ]
    rows[0]["note"] = _verdict(now.iteration_s, best.iteration_s, noise)
    rows += [_advice(scenario, policy, noise, best) for policy in policies]
    row = _row("PyTorch DDP", caps, [predict(replace(scenario, fusion=listed))], best)
    plain_s = predict(replace(scenario, fusion=DDPBuckets())).iteration_s
    row["note"] = _beside_plain(row["iteration_s"], plain_s, rows[2:])
    rows.append(row)
    for row in rows:
        sizes = row.pop("sizes")
        doubt = untimed(fit, sizes) if fit is not None and scenario.n_workers > 1 else ""
        row["note"] = "; ".join(filter(None, [row["note"], doubt]))
        told = ": ".join(filter(None, [f"# {row['framework']}", row["note"]]))
        row["paste"] = told if row["note"].startswith("no better") else f"{told}\n{row['setting']}"
    return pd.DataFrame(rows)[list(RECOMMENDATION)]


def _advice(scenario: Scenario, policy, noise: float, best) -> dict:
    """Return the row of one framework: its policy as given, or a setting that is better."""
    curve = loss_curve(scenario, policy, noise)
    least_s = curve["iteration_s"].min()
    given = [predict(replace(scenario, fusion=each)) for each in phases(policy)]
    given_s = np.mean([each.iteration_s for each in given])
    zone = _tie_zone(curve)
    if given_s <= least_s * (1 + noise):
        row = _row(FRAMEWORKS[type(policy)], as_given(policy), given, best)
        row["note"] = f"keep the default: no round setting gains more than {noise:.2%}"
    else:
        setting, sent = _fewest(scenario, policy, zone)
        row = _row(FRAMEWORKS[type(policy)], setting, sent, best)
        tied = f", tied from {zone['value'].min():,.10g} to {zone['value'].max():,.10g}"
        loss = f"{row['loss']:.2%} below the optimum, the default "
        row["note"] = f"{loss}{1 - scenario.one_worker_s / given_s / best.scaling_factor:.2%}"
        row["note"] += tied if len(zone) > 1 else ""
    row["tie_low"], row["tie_high"] = float(zone["value"].min()), float(zone["value"].max())
    row["default_loss"] = 1 - scenario.one_worker_s / given_s / best.scaling_factor
    return row


def _fewest(scenario: Scenario, policy, zone: pd.DataFrame) -> tuple[str, list]:
    """Return the setting of the zone that sends the fewest messages, and what it predicts."""
    known = variations(scenario.gradients, policy, zone["value"])
    found = {
        each.setting: [predict(replace(scenario, fusion=p)) for p in phases(each.policy)]
        for each in known
        if each.setting in set(zone["setting"])
    }
    few = {text: np.mean([len(p.timeline) for p in sent]) for text, sent in found.items()}
    times = dict(zip(zone["setting"], zone["iteration_s"], strict=True))
    setting = min(found, key=lambda text: (few[text], times[text]))
    return setting, found[setting]


def _beside_plain(listed_s: float, default_s: float, rows: list[dict]) -> str:
    """Return the note on a list of caps: whether it is worth it, and what it needs."""
    note, plain = "torch 2.13 or later", [r for r in rows if r["framework"] == "PyTorch DDP"]
    if default_s <= listed_s:
        return f"no better than the default: keep that; a list needs {note}"
    if any(row["iteration_s"] <= listed_s for row in plain):
        setting = plain[0]["setting"].split(", ")[-1].rstrip(")")
        return f"no better than {setting}; a list needs {note}"
    return note


def _ready(scenario: Scenario) -> pd.DataFrame:
    """Return the gradients with the times from which the scenario lets them be sent."""
    check_scenario(scenario, "optimum")
    if np.ndim(scenario.launch_s):
        raise ValueError(
            "launch_s: expected one number, for other policies send other messages; got "
            f"{np.size(scenario.launch_s)}: pass replace(scenario, launch_s=0.0)"
        )
    earliest = max(scenario.launch_s, 0.0 if scenario.overlap else scenario.backward_s)
    ready = scenario.gradients["ready_s"].clip(upper=scenario.backward_s)
    table = scenario.gradients.drop(columns="enqueued_s", errors="ignore")
    if scenario.n_workers == 1:  # who sends nothing, waits for no launch
        return table.assign(ready_s=ready)
    return table.assign(ready_s=ready.clip(lower=earliest))


def _arrays(gradients: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    return gradients["ready_s"].to_numpy(float), gradients["nbytes"].to_numpy("int64")


def _piece_bytes(sizes: np.ndarray) -> int:
    """Return a power of two of MiB that cuts all gradients together into some _PIECES at most."""
    return MIB * 2 ** max(0, math.ceil(math.log2(max(1, sizes.sum()) / _PIECES / MIB)))


def _predicted(scenario: Scenario, what: str, kind: str) -> dict:
    prediction = predict(scenario)
    return {
        "what": what,
        "kind": kind,
        "n_messages": len(prediction.timeline),
        "exposed_comm_s": prediction.exposed_comm_s,
        "iteration_s": prediction.iteration_s,
        "scaling_factor": prediction.scaling_factor,
    }


def _bound(scenario: Scenario, what: str, exposed_s: float) -> dict:
    iteration_s = scenario.one_worker_s + exposed_s
    return {
        "what": what,
        "kind": "bound",
        "n_messages": pd.NA,
        "exposed_comm_s": exposed_s,
        "iteration_s": iteration_s,
        "scaling_factor": scenario.one_worker_s / iteration_s,
    }


def _verdict(now_s: float, best_s: float, noise: float) -> str:
    if now_s <= best_s * (1 + noise):
        return f"no headroom: the optimum gains {now_s / best_s - 1:.2%}, noise {noise:.2%}"
    return f"headroom: the optimum gains {now_s / best_s - 1:.1%}"


def _row(framework: str, setting: str, predictions: list, best) -> dict:
    """Return a row of recommend, about predictions whose mean counts."""
    iteration_s = np.mean([each.iteration_s for each in predictions])
    factor = best.scenario.one_worker_s / iteration_s
    return {
        "framework": framework,
        "setting": setting,
        "n_messages": np.mean([len(each.timeline) for each in predictions]),
        "iteration_s": iteration_s,
        "scaling_factor": factor,
        "loss": 1 - factor / best.scaling_factor,
        "tie_low": np.nan,
        "tie_high": np.nan,
        "default_loss": np.nan,
        "note": "",
        "sizes": pd.concat([each.timeline["nbytes"] for each in predictions]),
    }


def _tie_zone(curve: pd.DataFrame) -> pd.DataFrame:
    """Return the rows on both sides of the best, with its cycle, up to which all are tied."""
    chosen = curve.loc[curve["iteration_s"].idxmin()]
    same = curve if pd.isna(chosen["cycle_ms"]) else curve[curve["cycle_ms"] == chosen["cycle_ms"]]
    same = same.sort_values("value")
    values, tied = same["value"].to_numpy(), same["tied"].to_numpy()
    low = high = int(np.flatnonzero(values == chosen["value"])[0])
    while low > 0 and tied[low - 1]:
        low -= 1
    while high < len(values) - 1 and tied[high + 1]:
        high += 1
    return same.iloc[low : high + 1]


def _noise(noise):
    expected = "noise: expected a share of the iteration time from 0 to below 1"
    if not 0 <= one_number(noise, expected, "1 % is 0.01") < 1:
        raise ValueError(f"{expected}, got {shown(noise)}; 1 % is 0.01")
