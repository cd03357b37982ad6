"""Optimisations compared one by one and together: compare, ablate, and a catalogue of them."""

import itertools
import math
from collections.abc import Mapping

import pandas as pd

from ..base.checks import checked, instance, one_of, one_worker_count, require
from ..base.units import MIB
from ..costs import Link, Tree
from ..fusion import FixedBuffer
from ..timeline import Scenario, predict
from .optimisations import (
    AdaptiveFusion,
    Compression,
    FasterLink,
    HalfPrecision,
    HierarchicalAllReduce,
    OtherCollective,
    Overlap,
    PriorityScheduling,
    TensorFusion,
    Together,
    an_optimisation,
    free,
    returned,
)
from .optimum import headroom
from .workloads import SECONDS, Accumulation, FasterCompute, LargerBatch, LocalSGD

COMPARISON = {
    "label": "the optimisation; baseline is the scenario as it is",
    "one_worker_s": "T1 of an iteration, s",
    "iteration_s": "Tn, s",
    "exposed_comm_s": "s",
    "own_cost_s": "s of Tn that the optimisation itself costs: Tn less Tn if it were free",
    "samples": "samples per iteration, relative to the baseline",
    "scaling_factor": "T1 / Tn of this row",
    "speedup": "samples per second, relative to the baseline",
    "note": "whether T1 differs, what is not modelled, and whether it is slower",
}
ABLATION = {
    "order": "number of the order, from 1; 0 for rows outside any order",
    "label": "the optimisation added, baseline, or a bound of headroom",
    "kind": "baseline, optimisation or bound",
    "iteration_s": "Tn with it and those before it, s",
    "exposed_comm_s": "s, with it and those before it",
    "scaling_factor": "T1 / Tn, with it and those before it",
    "speedup": "samples per second with it and those before it, relative to the baseline",
    "gain": "speedup less the speedup before it was added",
    "alone": "speedup - 1 if added to the baseline alone",
    "interaction": "gain - alone: below 0 if others have gained some of it already",
}
SHAPLEY = {
    "label": "the optimisation, all together, or a bound of headroom for the baseline",
    "kind": "optimisation, total or bound",
    "gain": "its share of the total speedup - 1: its mean gain over all orders",
    "alone": "its gain if added first; for the total, their sum",
    "last": "its gain if added last; for the total, their sum",
    "least": "its smallest gain in any order",
    "most": "its largest gain in any order",
    "interaction": "gain - alone",
}
_MOST = {"given": 100, "all": 6, "shapley": 12}
_A_LINK = instance(Link, "a Link", "Write Link(alpha, beta)")


@checked(link=_A_LINK, inside=_A_LINK, workers_per_node=one_worker_count, kernel_s=SECONDS)
def catalogue(
    link: Link, inside: Link, workers_per_node: int, cast_s_per_byte: float, kernel_s: float
) -> dict:
    """Return every optimisation at a usual setting, by label: what `compare` takes.

    link : of a ring through all nodes, which has the whole network adapter of a node
    inside : the link inside a node; workers share the adapter in a hierarchical all-reduce
    cast_s_per_byte : s per byte of float32 to cast to float16
    kernel_s : s to launch a kernel

    int8 reads gradients twice to encode, with two kernels, and once to decode. The last four change
    the batch or the compute of an iteration, and so T1.
    """
    between = Link(link.alpha, workers_per_node * link.beta)
    once, launch = cast_s_per_byte, kernel_s
    return {
        "overlap": Overlap(),
        "buffer of 64 MiB": TensorFusion(FixedBuffer(64 * MIB)),
        "adaptive fusion": AdaptiveFusion(),
        "hierarchical": HierarchicalAllReduce(inside, workers_per_node, between),
        "fp16": HalfPrecision(once),
        "int8": Compression(4, 1.5 * once, 2 * launch, once, launch),
        "priority": PriorityScheduling(),
        "tree": OtherCollective(Tree(link)),
        "link twice as fast": FasterLink(2),
        "batch twice as large": LargerBatch(2),
        "4 micro-batches": Accumulation(4),
        "local SGD, 4 steps": LocalSGD(4),
        "device twice as fast": FasterCompute(2),
    }


@checked(optimisation=an_optimisation)
def predict_with(scenario: Scenario, optimisation):
    """Return the prediction of a scenario under an optimisation.

    It is a Prediction, or what an optimisation with another schedule returns.
    """
    found = returned(optimisation(scenario), optimisation)
    return predict(found) if isinstance(found, Scenario) else found


def compare(scenario: Scenario, optimisations: Mapping) -> pd.DataFrame:
    """Return COMPARISON: one row for the baseline and one for each labelled optimisation alone.

    `Together((...))` is several at once.
    """
    _refuse(optimisations, "compare")
    base = predict(scenario)
    rows = [_compared("baseline", base, base, 1.0, 0.0, "")]
    for label, optimisation in optimisations.items():
        found = predict_with(scenario, optimisation)
        own_s = found.iteration_s - predict_with(scenario, free(optimisation)).iteration_s
        note = getattr(optimisation, "assumes", "")
        rows.append(_compared(label, found, base, _samples(optimisation, found, base), own_s, note))
    return pd.DataFrame(rows, columns=list(COMPARISON))


@checked(order=one_of(_MOST))
def ablate(
    scenario: Scenario,
    optimisations: Mapping,
    order: str = "given",
    bounds: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return what each of several labelled optimisations adds, with their interaction, and bounds.

    order : "given": ABLATION, the baseline, then one row each, added one after another; "all": the
        same rows for every order of up to 6; "shapley": SHAPLEY, one row each, with its mean gain
        over all orders of up to 12; these add up to the total
    bounds : headroom(scenario) if known; otherwise it is computed

    Orders differ in which gain is counted first. A set of optimisations is always applied as
    `Together` does, so its total gain does not depend on the order. The bounds are those of
    headroom: what fusion alone could gain at most, with the baseline's bytes, link and compute. A
    faster link or fewer bytes may gain more than "bandwidth only" and "perfect overlap". Only "no
    communication" bounds every optimisation that does not change compute and batches.
    """
    _refuse(optimisations, "ablate")
    expected = f"at most {_MOST[order]} for order={order!r}"
    do = "Choose fewer" if order == "shapley" else "Use order='shapley'"
    few = len(optimisations) <= _MOST[order]
    require(few, "optimisations", expected, len(optimisations), do)
    sets = _Sets(scenario, dict(optimisations))
    table = _shapley(sets) if order == "shapley" else _in_order(sets, order)
    found = sets.bounds(headroom(scenario) if bounds is None else bounds)
    return pd.concat([table, found[list(table)]], ignore_index=True)


class _Sets:
    """The prediction of each set of optimisations, computed once."""

    def __init__(self, scenario: Scenario, optimisations: dict):
        self.scenario, self.optimisations = scenario, optimisations
        self.found: dict = {}

    def __call__(self, labels):
        """Return the prediction and the speedup of a set of labels."""
        labels = frozenset(labels)
        if labels not in self.found:
            chosen = Together(tuple(o for n, o in self.optimisations.items() if n in labels))
            found = predict_with(self.scenario, chosen)
            base = self(())[0] if labels else found
            speedup = _samples(chosen, found, base) * base.iteration_s / found.iteration_s
            self.found[labels] = found, speedup
        return self.found[labels]

    def gain(self, label, before) -> float:
        """Return what a label adds to the speedup of those before it."""
        return self({*before, label})[1] - self(before)[1]

    def bounds(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the bounds of headroom's table, with the speedup each would be."""
        table = table.query("kind == 'bound'")
        speedup = self(())[0].iteration_s / table["iteration_s"]
        gains = {name: speedup - 1 for name in ("gain", "alone", "last", "least", "most")}
        return table.drop(columns="gain").assign(
            order=0, label=table["what"], speedup=speedup, interaction=0.0, **gains
        )


def _in_order(sets: _Sets, order: str) -> pd.DataFrame:
    labels = tuple(sets.optimisations)
    orders = itertools.permutations(labels) if order == "all" else [labels]
    rows = [_added(sets, 0, "baseline", "baseline", (), 0.0, 0.0)]
    for number, each in enumerate(orders, start=1):
        for k, label in enumerate(each):
            gain, alone = sets.gain(label, each[:k]), sets.gain(label, ())
            rows.append(_added(sets, number, label, "optimisation", each[: k + 1], gain, alone))
    return pd.DataFrame(rows, columns=list(ABLATION))


def _added(sets: _Sets, number: int, label, kind: str, until, gain: float, alone: float) -> tuple:
    found, speedup = sets(until)
    times = found.iteration_s, found.exposed_comm_s, found.scaling_factor
    return number, label, kind, *times, speedup, gain, alone, gain - alone


def _shapley(sets: _Sets) -> pd.DataFrame:
    labels, k = list(sets.optimisations), len(sets.optimisations)
    rows = []
    for label in labels:
        others, share, gains = [n for n in labels if n != label], 0.0, []
        for size in range(k):
            weight = math.factorial(size) * math.factorial(k - size - 1) / math.factorial(k)
            found = [sets.gain(label, before) for before in itertools.combinations(others, size)]
            share += weight * sum(found)
            gains += found
        alone, last = gains[0], gains[-1]
        ends = min(gains), max(gains)
        rows.append((label, "optimisation", share, alone, last, *ends, share - alone))
    total = sets(labels)[1] - 1
    alone, last = (sum(row[at] for row in rows) for at in (3, 4))
    rows.append(("all together", "total", total, alone, last, total, total, total - alone))
    return pd.DataFrame(rows, columns=list(SHAPLEY))


def _compared(label, found, base, samples: float, own_s: float, assumes: str) -> dict:
    one_worker_s = found.scenario.one_worker_s
    other = abs(one_worker_s / base.scenario.one_worker_s - 1) > 1e-12
    note = f"scaling factor relative to its own T1, {one_worker_s:.4g} s" if other else ""
    speedup = samples * base.iteration_s / found.iteration_s
    slower = "slower than the baseline" if speedup < 1 - 1e-12 else ""
    return {
        "label": label,
        "one_worker_s": one_worker_s,
        "iteration_s": found.iteration_s,
        "exposed_comm_s": found.exposed_comm_s,
        "own_cost_s": own_s,
        "samples": samples,
        "scaling_factor": found.scaling_factor,
        "speedup": speedup,
        "note": "; ".join(filter(None, (slower, note, assumes))),
    }


def _samples(optimisation, found, base) -> float:
    """Return samples per iteration of all workers, relative to the baseline."""
    workers = found.scenario.n_workers / base.scenario.n_workers
    return float(getattr(optimisation, "samples", 1.0) * workers)


def _refuse(optimisations, caller: str):
    ok, do = isinstance(optimisations, Mapping) and optimisations, "Write {'fp16': HalfPrecision()}"
    require(ok, f"{caller} optimisations", "{label: optimisation}", optimisations, do)
    other = "labels other than 'baseline', which is the scenario as it is"
    require("baseline" not in optimisations, f"{caller} optimisations", other, "baseline")
    for label, optimisation in optimisations.items():
        an_optimisation(optimisation, f"{caller} {label}")
