"""The best that fusion can do, its bounds, and the settings that come close.

Adaptive tensor fusion, ours: the grouping of consecutive gradients whose last message ends first,
exact for any cost on one serial queue (`grouping.optimum`). Many groupings tie, so compare scaling
factors, never groupings. If one message saturates the link there is no headroom.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pandas as pd

from ..base.checks import a_policy, checked, optional, real, require
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
from ..timeline.scenario import a_scenario, from_0

HEADROOM = {
    "what": "the present policy, a simple one, the optimum, or a bound",
    "kind": "present, policy, optimum or bound",
    "n_messages": "messages per iteration; <NA> for bounds",
    "exposed_comm_s": "s",
    "iteration_s": "Tn, s",
    "scaling_factor": "T1 / Tn",
    "gain": "scaling factor / the present one's - 1",
    "note": "for the optimum: whether it gains more than the noise",
}
LOSS = {
    "value": "of the setting, in the framework's unit: MiB, or elements for DeepSpeed",
    "cycle_ms": "cycle of Horovod, ms; NaN for others",
    "setting": "text to paste",
    "iteration_s": "Tn, s",
    "scaling_factor": "T1 / Tn",
    "loss": "1 - scaling factor / that of the optimum",
    "tied": "bool: within the noise of the best row",
}
RECOMMENDATION = {
    "framework": "framework of the setting; the first rows are as it is and optimum",
    "setting": "text to paste; the default if it is kept",
    "n_messages": "messages per iteration; for Horovod the mean over phases of its ticks",
    "iteration_s": "Tn, s",
    "scaling_factor": "T1 / Tn",
    "loss": "1 - scaling factor / that of the optimum",
    "tie_low": "lowest setting next to the best that ties with it, in the unit of LOSS; NaN if "
    "there is no such number",
    "tie_high": "highest such setting",
    "default_loss": "loss of the policy as given, by default the framework's default; NaN for "
    "other rows",
    "note": "whether to keep the default, the gain, and which sizes were not timed",
    "paste": "the note as a comment, and the setting below it",
}
_PIECES = 1000  # of large gradients, for the optimum with partitioning: a fine enough grid


_NOISE = real("a share from 0 to below 1", lambda value: 0 <= value < 1, "1 % is 0.01")


@checked(slack_s=from_0("1 ms is 0.001"))
def optimal_fusion(gradients: pd.DataFrame, cost, n_workers: int, slack_s: float = 0.0) -> Plan:
    """Return the Plan whose last message ends first, over all groupings of consecutive gradients.

        E(i) = min over j <= i of max(E(j - 1), R_i) + C(S(j..i))

    R_i is when gradient i is ready, S(j..i) the bytes of gradients j to i, C the cost of a message:
    exact on one serial queue for any cost, in O(L^2). With slack_s above 0, the grouping with the
    fewest messages that ends at most slack_s s later (up to 64 messages, else the optimum).
    Types of data may share a message.

    To cut large gradients pass `partition(gradients, piece_bytes)`: the plan is then the optimum
    over groupings that cut between gradients or at multiples of piece_bytes within one. It is never
    worse than without, and no better for a cost alpha + beta S, since pieces of a gradient are
    ready together.
    """
    check_gradients(gradients)
    numbers = OptimalFusion(cost, n_workers)(gradients)
    if slack_s > 0:
        ready, sizes = _arrays(gradients)
        seconds = price(cost, n_workers)
        deadline_s = grouping.optimum(ready, sizes, seconds)[1][-1] + slack_s
        first = grouping.fewest(ready, sizes, seconds, deadline_s)
        if first is not None:
            numbers = np.repeat(np.arange(len(first)), np.diff(first, append=len(sizes)))
    return Plan(counts=tuple(np.bincount(numbers).tolist()))


@checked(scenario=a_scenario)
def optimal(scenario: Scenario, slack_s: float = 0.0) -> Scenario:
    """Return the scenario with the plan that is optimal for it as the fusion policy.

    See optimal_fusion; on one queue, from the times at which the scenario allows messages.
    Raises ValueError for launch times per bucket, which belong to other messages.
    """
    plan = optimal_fusion(_ready(scenario), scenario.all_reduce, scenario.n_workers, slack_s)
    return replace(scenario, fusion=plan)


@checked(scenario=a_scenario, noise=_NOISE)
def headroom(scenario: Scenario, noise: float = 0.01) -> pd.DataFrame:
    """Return HEADROOM, what fusion could gain: present and simple policies, optimum, and bounds.

    The optimum, also with large gradients cut into pieces, is found for one queue and compute that
    messages do not slow, and then predicted with all fields of the scenario. No grouping on one
    queue exceeds a bound:

        bandwidth only    the optimum when a message costs C(S) - C(0)
        perfect overlap   Tn = max(T1, the least total cost of all groupings)
        no communication  Tn = T1

    noise : relative difference of iteration times too small to measure
    """
    piece_bytes = _piece_bytes(scenario.gradients["nbytes"].to_numpy("int64"))
    cut = replace(scenario, gradients=partition(scenario.gradients, piece_bytes))
    ready, sizes = _arrays(_ready(cut))  # bounds of pieces bound whole gradients too
    cost = price(scenario.all_reduce, scenario.n_workers)
    empty = cost(np.zeros(1, "int64"))[0]
    without_latency = grouping.optimum(ready, sizes, lambda s: np.maximum(cost(s) - empty, 0.0))
    bandwidth = without_latency[1][-1]
    least = grouping.optimum(np.zeros(len(sizes)), sizes, cost)[1][-1]
    tried = [
        ("as it is", "present", scenario),
        ("one message a gradient", "policy", replace(scenario, fusion=PerTensor())),
        ("one message in all", "policy", replace(scenario, fusion=OneMessage())),
        ("optimum", "optimum", optimal(scenario)),
        (f"optimum, pieces of {piece_bytes // MIB} MiB", "optimum", optimal(cut)),
    ]
    bounds = {
        "bandwidth only": max(0.0, bandwidth - scenario.backward_s),
        "perfect overlap": max(0.0, least - scenario.one_worker_s),
        "no communication": 0.0,
    }
    made = [(what, kind, predict(each)) for what, kind, each in tried]
    rows = [
        (what, kind, len(found.timeline), found.exposed_comm_s, found.iteration_s)
        for what, kind, found in made
    ]
    t1 = float(scenario.one_worker_s)
    rows += [(what, "bound", pd.NA, s, t1 + s) for what, s in bounds.items()]
    table = pd.DataFrame(rows, columns=list(HEADROOM)[:5]).astype({"n_messages": "Int64"})
    note = _verdict(made[0][2].iteration_s, made[3][2].iteration_s, noise)
    factor = t1 / table["iteration_s"]
    return table.assign(
        scaling_factor=factor,
        gain=factor / factor[0] - 1,
        note=np.where(table["what"] == "optimum", note, ""),
    )


@checked(scenario=a_scenario, policy=optional(a_policy), noise=_NOISE)
def loss_curve(
    scenario: Scenario, policy=None, noise: float = 0.01, values: Iterable | None = None
) -> pd.DataFrame:
    """Return LOSS: each setting of a framework compared with the optimum, one row per setting.

    Parameters
    ----------
    scenario : what is trained; its own policy is ignored
    policy : its settings are varied: DDPBuckets() (the default; bucket_cap_mb in MiB),
        HorovodFusion() (HOROVOD_FUSION_THRESHOLD in MiB and cycles of 1 to 50 ms, mean over four
        phases of the ticks), DeepSpeedBuckets() (reduce_bucket_size in elements), FixedBuffer(...)
        (MiB)
    noise : relative difference of iteration times too small to measure
    values : settings to try, in the unit above; by default round ones up to the whole model
    """
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


@checked(scenario=a_scenario, noise=_NOISE)
def recommend(
    scenario: Scenario,
    noise: float = 0.01,
    policies: Iterable = (DDPBuckets(), HorovodFusion(), DeepSpeedBuckets()),
    fit=None,
) -> pd.DataFrame:
    """Return RECOMMENDATION: a setting of each framework as text to paste, and the optimum.

    Parameters
    ----------
    scenario : what is trained; its own policy is only in the first row
    noise : relative difference of iteration times too small to measure
    policies : frameworks whose settings are tried; each as given is the default. They include
        version, workers per node, bytes per element: HorovodFusion(version="0.20.3")
    fit : of the all-reduce; with it notes name sizes of messages that were not timed

    A default within the noise of the best setting is kept. Otherwise, among the settings tied with
    the best, the one with the fewest messages is recommended, because prices of small messages are
    the least certain.

    The first rows are the scenario as it is, whose note reports missing headroom, and the optimum.
    The last row is a list of DDP's caps with the fewest messages within the noise of the optimum;
    its note says whether the row of DDP or the default is as good. DeepSpeed is priced by the
    scenario's all_reduce, though it may reduce-scatter.
    """
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
        text = ": ".join(filter(None, [f"# {row['framework']}", row["note"]]))
        row["paste"] = text if row["note"].startswith("no better") else f"{text}\n{row['setting']}"
    return pd.DataFrame(rows)[list(RECOMMENDATION)]


def _advice(scenario: Scenario, policy, noise: float, best) -> dict:
    """Return the row of one framework: its policy as given, or a better setting."""
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
    """Return the setting of the zone that sends the fewest messages, and its predictions."""
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
    """Return the note on a list of caps: whether it gains anything, and its requirement."""
    note, plain = "torch 2.13 or later", [r for r in rows if r["framework"] == "PyTorch DDP"]
    if default_s <= listed_s:
        return f"no better than the default: keep that; a list needs {note}"
    if any(row["iteration_s"] <= listed_s for row in plain):
        setting = plain[0]["setting"].split(", ")[-1].rstrip(")")
        return f"no better than {setting}; a list needs {note}"
    return note


def _ready(scenario: Scenario) -> pd.DataFrame:
    """Return the gradients with the earliest times at which the scenario sends them."""
    n, do = np.size(scenario.launch_s), "Pass replace(scenario, launch_s=0.0)"
    require(not np.ndim(scenario.launch_s), "scenario launch_s", "one number", n, do)
    earliest = max(scenario.launch_s, 0.0 if scenario.overlap else scenario.backward_s)
    ready = scenario.gradients["ready_s"].clip(upper=scenario.backward_s)
    table = scenario.gradients.drop(columns="enqueued_s", errors="ignore")
    if scenario.n_workers == 1:  # which sends nothing
        return table.assign(ready_s=ready)
    return table.assign(ready_s=ready.clip(lower=earliest))


def _arrays(gradients: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    return gradients["ready_s"].to_numpy(float), gradients["nbytes"].to_numpy("int64")


def _piece_bytes(sizes: np.ndarray) -> int:
    """Return a power of two of MiB that cuts all gradients into about _PIECES pieces at most."""
    return MIB * 2 ** max(0, math.ceil(math.log2(max(1, sizes.sum()) / _PIECES / MIB)))


def _verdict(now_s: float, best_s: float, noise: float) -> str:
    if now_s <= best_s * (1 + noise):
        return f"no headroom: the optimum gains {now_s / best_s - 1:.2%}, noise {noise:.2%}"
    return f"headroom: the optimum gains {now_s / best_s - 1:.1%}"


def _row(framework: str, setting: str, predictions: list, best) -> dict:
    """Return a row of recommend with the means of the predictions."""
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
    """Return the rows tied with the best without a gap, at the same cycle."""
    chosen = curve.loc[curve["iteration_s"].idxmin()]
    same = curve if pd.isna(chosen["cycle_ms"]) else curve[curve["cycle_ms"] == chosen["cycle_ms"]]
    same = same.sort_values("value")
    values, tied = same["value"].to_numpy(), same["tied"].to_numpy()
    at = int(np.flatnonzero(values == chosen["value"])[0])
    runs = np.cumsum(~tied)  # constant within a run of tied rows
    return same[tied & (runs == runs[at])]
