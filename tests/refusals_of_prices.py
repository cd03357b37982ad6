"""What costs, fusion and fits refuse: rows of test_refusals."""

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from timings import gradients, timings

from workbench import MIB
from workbench.costs import (
    Affine,
    BatchTime,
    FlatRing,
    HalvingDoubling,
    Hierarchical,
    Interpolated,
    Link,
    LinkCost,
    NcclTuner,
    NodesCost,
    ParameterServer,
    Piecewise,
    Ring,
    Tree,
    bus_bandwidth,
)
from workbench.fits import (
    choose,
    curves,
    fit_all_reduce,
    fit_batch_time,
    fit_collective,
    fit_slowdown,
    held_out,
    next_measurement,
    residuals,
)
from workbench.fits.diagnostics import corners, shown_workers
from workbench.fusion import (
    DDPBuckets,
    DeepSpeedBuckets,
    FixedBuffer,
    HorovodFusion,
    MergedGradients,
    OptimalFusion,
    PerTensor,
    Plan,
    Timed,
    fuse,
    partition,
)
from workbench.fusion.frameworks import variations

LINK = Link(1e-5, 1e-9)
TIMED = pd.DataFrame({"n_workers": 2, "nbytes": [1e3, 1e6], "seconds": [1e-4, 1e-3]})
TWICE = pd.concat([TIMED, TIMED["seconds"]], axis=1)
MIXED = TIMED.assign(op=["all_reduce", "broadcast"])


def tuner(**given):
    chosen = dict(version="2.9.9", architecture="Volta", algorithm="Ring", protocol="LL")
    sizes = dict(workers_per_node=8, inside_bandwidth=1e11, between_bandwidth=1e10, n_channels=2)
    return NcclTuner(**chosen | sizes | given)


COSTS = [
    (lambda: Link(-1e-6, 0.0), "Link alpha", -1e-6),
    (lambda: Link(0.0, "1"), "Link beta", "1"),
    (lambda: Link(0.0, True), "Link beta", True),
    (lambda: Link(0.0, float("inf")), "Link beta", float("inf")),
    (lambda: Link(0.0, [1e-9, 2e-9]), "Link beta", "an array"),
    (lambda: Ring(5), "Ring link", 5),
    (lambda: Affine(Link), "Affine link", Link),
    (lambda: Ring(fit_all_reduce(timings(Ring(LINK)))), "Ring link", "Pass fit.model.link"),
    (lambda: Ring(LINK, "gossip"), "Ring op", "gossip"),
    (lambda: Ring(LINK, ["all_reduce"]), "Ring op", "list"),
    (lambda: bus_bandwidth(1, 1.0, 2, "gossip"), "op", "gossip"),
    (lambda: bus_bandwidth(1, [1.0, 0.0], 2), "seconds", 0),
    (lambda: bus_bandwidth(1, -1.0, 2), "seconds", -1),
    (lambda: ParameterServer(LINK, 0), "n_servers", 0),
    (lambda: ParameterServer(LINK, [1, 2]), "n_servers", "an array"),
    (lambda: ParameterServer(LINK, None), "n_servers", None),
    (lambda: Hierarchical(LINK, LINK, 2.5), "Hierarchical workers_per_node", 2.5),
    (lambda: FlatRing(LINK, LINK, "4"), "FlatRing workers_per_node", "4"),
    (lambda: FlatRing(LINK, 5, 4), "FlatRing between", 5),
    (lambda: Piecewise(alpha=-1e-6), "Piecewise alpha", -1e-6),
    (lambda: Piecewise(floor_s=float("inf")), "Piecewise floor_s", float("inf")),
    (lambda: Piecewise(betas=(1e-9, -1e-9), breaks=(10,)), "Piecewise betas", -1e-9),
    (lambda: Piecewise(betas=(1e-9,), breaks=(10,)), "Piecewise betas", "1 betas"),
    (lambda: Piecewise(betas=(1, 1, 1), breaks=(10, 10)), "Piecewise breaks", "(10.0, 10.0)"),
    (lambda: Piecewise(betas=(1, 1), breaks=(0,)), "Piecewise breaks", "(0.0,)"),
    (lambda: Piecewise(Link), "Piecewise kind", Link),
    (lambda: Piecewise(Ring(LINK)), "Piecewise kind", "Ring"),
    (lambda: Piecewise("ring"), "Piecewise kind", "ring"),
    (lambda: Piecewise(ParameterServer), "Piecewise kind", ParameterServer),
    (lambda: Piecewise(max), "Piecewise kind", "max"),
    (lambda: Piecewise(Ring, breaks=None)(8, 2), "Piecewise breaks", None),
    (lambda: Interpolated(5), "table", 5),
    (lambda: Interpolated(TIMED.drop(columns="seconds")), "table", "seconds"),
    (lambda: Interpolated(TWICE), "table", "seconds"),
    (lambda: Interpolated(TIMED.assign(seconds=0.0)), "table", 0),
    (lambda: Interpolated(TIMED.assign(seconds=-1.0)), "table", -1),
    (lambda: Interpolated(TIMED.assign(n_workers=1)), "table", "none"),
    (lambda: Interpolated(TIMED.assign(op="gossip")), "op", "gossip"),
    (lambda: Interpolated(MIXED), "table", "all_reduce, broadcast"),
    (lambda: BatchTime(-1, 0), "BatchTime fixed_s", -1),
    (lambda: BatchTime(0, float("nan")), "BatchTime per_sample_s", float("nan")),
    (lambda: tuner(version="2.8"), "NcclTuner version", "2.8"),
    (lambda: tuner(version=["2.9.9"]), "NcclTuner version", "list"),
    (lambda: tuner(architecture="Hopper"), "NcclTuner architecture", "Hopper"),
    (lambda: tuner(algorithm="NVLS"), "NcclTuner algorithm", "NVLS"),
    (lambda: tuner(protocol="simple"), "NcclTuner protocol", "simple"),
    (lambda: tuner(link="PCIe"), "NcclTuner link", "PCIe"),
    (lambda: tuner(cpu="ARM"), "NcclTuner cpu", "ARM"),
    (lambda: tuner(n_channels=0), "NcclTuner n_channels", 0),
    (lambda: tuner(workers_per_node=1.5), "NcclTuner workers_per_node", 1.5),
    (lambda: tuner(inside_bandwidth=0), "NcclTuner inside_bandwidth", 0),
    (lambda: tuner(between_bandwidth=[1, 2]), "NcclTuner between_bandwidth", "list"),
]


RING = Ring(Link(0.1, 1e-4))


def fused(sizes=(5, 7, 9), ready=None, policy=PerTensor(), **columns):  # noqa: B008
    return fuse(gradients(list(sizes), ready, **columns), policy)


FUSION = [
    (lambda: fused(policy=DDPBuckets), "fusion", DDPBuckets),
    (lambda: fused(policy="ddp"), "fusion", "ddp"),
    (lambda: fused(()), "gradients", "empty"),
    (lambda: fuse(gradients([5]).drop(columns="ready_s"), PerTensor()), "gradients", "ready_s"),
    (lambda: fused(pd.array([5, pd.NA, pd.NA])), "gradients nbytes", "2 of 3 unknown, first 'g1'"),
    (lambda: fused(pd.array([pd.NA])), "gradients nbytes", "gradients(run, sizes="),
    (lambda: fused([5, -7]), "nbytes of row 1", -7),
    (lambda: fused([5, 2.5]), "nbytes of row 1", 2.5),
    (lambda: fused(["5", "7"]), "nbytes of row 0", "got 5"),
    (lambda: fused([5, "7 MiB"]), "nbytes of row 1", "got 7 MiB"),
    (lambda: fused([5, True]), "nbytes of row 1", True),
    (lambda: fused([5, 2j]), "nbytes of row 0", "5"),
    (lambda: fused([5, 2**70]), "nbytes of row 1", "less than 2**63"),
    (lambda: fused([2**62, 2**62]), "nbytes of row 1", "less than 2**63"),
    (lambda: fused([5, 7], pd.to_timedelta([1, 2], unit="s")), "ready_s of row 0"),
    (lambda: fused([5, 7], [0.0, "1 s"]), "ready_s of row 1", "got 1 s"),
    (lambda: fused([5, 7], [0.0, np.nan]), "ready_s of row 1", np.nan),
    (lambda: fused([5, 7], [-1.0, 0.0]), "ready_s of row 0", "-1.0"),
    (lambda: fused([5, 7, 9], [1.0, 3.0, 2.0]), "ready_s of row 2", "2.0"),
    (lambda: fused([5, 7], enqueued_s=[0.5, 2.5]), "enqueued_s of row 1", 2.5),
    *(
        (lambda n=n: fused(policy=lambda table: n), "<lambda>", str(n))
        for n in ([1, 2, 3], [0, 2, 3], [0, 1, 0], [0.0, 0.5, 1.0], [0.0, np.nan, 1.0], list("abc"))
    ),
    (lambda: fused(policy=lambda table: [0, 1]), "<lambda>", "(2,)"),
    (lambda: fused(policy=lambda table: [1, 0, 0], dtype=list("aba")), "<lambda>", "[1, 0, 0]"),
    (lambda: fused(policy=lambda t: Timed([0, 0, 1], [2.5, 7.0, 8.0])), "<lambda>", 3),
    *((lambda v=v: partition(gradients([5]), v), "piece_bytes", v) for v in (0, 2.5, np.inf, "1")),
    (lambda: DDPBuckets(0), "DDPBuckets first_bytes", 0),
    (lambda: DDPBuckets("25MiB"), "DDPBuckets first_bytes", "25MiB"),
    (lambda: DDPBuckets(True), "DDPBuckets first_bytes", True),
    (lambda: DDPBuckets(cap_bytes=np.nan), "DDPBuckets cap_bytes", np.nan),
    (lambda: DDPBuckets(caps=(MIB, 0)), "DDPBuckets caps", 0),
    (lambda: DDPBuckets(caps=MIB), "DDPBuckets caps", MIB),
    (lambda: FixedBuffer([25 * MIB]), "FixedBuffer buffer_bytes", "list"),
    (lambda: FixedBuffer(MIB, -1.0), "FixedBuffer timeout_s", -1),
    (lambda: FixedBuffer(MIB, closes="full"), "FixedBuffer closes", "full"),
    (lambda: DeepSpeedBuckets(0), "DeepSpeedBuckets elements", 0),
    (lambda: DeepSpeedBuckets(5, "half"), "DeepSpeedBuckets element_bytes", "half"),
    (lambda: HorovodFusion(-1), "HorovodFusion threshold_bytes", -1),
    (lambda: HorovodFusion(cycle_s=-1), "HorovodFusion cycle_s", -1),
    (lambda: HorovodFusion(version=0.2), "HorovodFusion version", 0.2),
    (lambda: HorovodFusion(version="new"), "HorovodFusion version", "new"),
    (lambda: HorovodFusion(local_size=0), "HorovodFusion local_size", 0),
    (lambda: HorovodFusion(phase_s=None), "HorovodFusion phase_s", None),
    (lambda: HorovodFusion(phase_s=np.nan), "HorovodFusion phase_s", np.nan),
    (lambda: HorovodFusion(host_share="half"), "HorovodFusion host_share", "half"),
    (lambda: HorovodFusion(negotiation_s=-1), "HorovodFusion negotiation_s", -1),
    (lambda: MergedGradients(Ring, 4), "MergedGradients cost", Ring),
    (lambda: OptimalFusion(RING, 0), "OptimalFusion n_workers", 0),
    (lambda: OptimalFusion(RING, [2, 4]), "OptimalFusion n_workers", "an array"),
    (lambda: fused(policy=OptimalFusion(lambda b, n: b * np.nan, 4)), "cost <lambda>", np.nan),
    (lambda: fused(policy=MergedGradients(lambda b, n: b * np.nan, 4)), "cost <lambda>", np.nan),
    (lambda: fused([1] * 7, policy=Plan((2, 5))), "Plan", "row 5, 'g5'"),
    (lambda: fused([1] * 4, policy=Plan((2, 5))), "Plan", "row 3, 'g3'"),
    (lambda: Plan(), "Plan"),
    (lambda: Plan((2,), (2,)), "Plan"),
    (lambda: Plan((2, 2)), "Plan boundaries", "2 in row 1"),
    (lambda: Plan(counts=(2, 0)), "Plan counts", "0 in row 1"),
    (lambda: Plan(counts=(2, 0.5)), "Plan counts", 0.5),
    (lambda: Plan(5), "Plan boundaries", 5),
    (lambda: Plan(counts="25"), "Plan counts", "25"),
    (lambda: Plan((-1, 5)), "Plan boundaries", -1),
    (lambda: variations(gradients([5]), PerTensor()), "policy", "PerTensor"),
]


MEASURED = timings(Ring(LINK), noise=0.05)
BATCHES = pd.DataFrame({"batch": [8, 16, 32], "seconds": [1e-3, 2e-3, 4e-3]})
MILLISECONDS = MEASURED.assign(seconds=lambda t: t["seconds"].where(t["n_workers"] != 8, 1.0))


@cache
def fitted(kind=Ring, sizes=None, workers=None, **given):
    sizes, workers = sizes or [2**k for k in range(10, 29, 2)], workers or (2, 8, 32)
    return fit_all_reduce(timings(Ring(LINK), sizes, workers, noise=0.05), kind, **given)


def refit(table=MEASURED, **given):
    return fit_all_reduce(table, **given)


def with_row(name, value, row=3, table=MEASURED):
    table = table.astype({name: object})
    table.loc[row, name] = value
    return table


def advice(fit=None, target=(MIB, 8), **given):
    return next_measurement(fit or fitted(), target, **given)


def events(**given):
    row = dict(rank=0, stream=7, iteration=0, kind="compute", name="gemm", start_s=0.0, end_s=1.0)
    return pd.DataFrame([row | given])


FITS = [
    *(
        (lambda n=n, v=v: refit(with_row(n, v)), f"{n} of row 3")
        for n, v in (
            ("seconds", 0.0), ("seconds", -1.0), ("seconds", np.nan), ("seconds", np.inf),
            ("nbytes", -8), ("nbytes", pd.NA), ("nbytes", "1 MiB"), ("n_workers", 0),
            ("n_workers", 2.5),
        )
    ),
    *(
        (lambda n=n, v=v: refit(MEASURED.assign(**{n: v})), f"measurements {n}")
        for n, v in (
            ("seconds", pd.to_timedelta(1, unit="s")), ("seconds", pd.Timestamp("2020-01-01")),
            ("seconds", 1j), ("n_workers", True),
        )
    ),
    (lambda: refit(MEASURED.drop(columns="seconds")), "measurements", "seconds"),
    (lambda: refit(MEASURED.assign(op="all_gather")), "measurements op", "all_gather"),
    (lambda: refit(MEASURED, min_bytes=2**30), "measurements", "0 to fit, 30 set aside (below"),
    (lambda: refit(timings(Ring(LINK), [2**20], [8])), "measurements", "1 to fit, 0 set aside"),
    (lambda: refit(timings(Ring(LINK), [2**20] * 3, [8])), "measurements", "alpha and beta"),
    (
        # the same bytes per worker, so a moved byte always comes with the same hops
        lambda: refit(MEASURED[MEASURED["nbytes"] / MEASURED["n_workers"] == 2**13]),
        "measurements",
        "alpha and beta",
    ),
    (lambda: refit("sweep.csv"), "measurements", "sweep.csv"),
    (lambda: refit(Path("a.csv")), "measurements", "PosixPath"),
    (lambda: refit(fitted()), "measurements", "Fit"),
    (lambda: refit(method="ols"), "Method name", "ols"),
    (lambda: refit(weights="none"), "Method weights", "none"),
    (lambda: refit(quantile=90), "Method quantile", 90),
    (lambda: refit(outliers="drop"), "outliers", "drop"),
    (lambda: refit(min_bytes="1MiB"), "min_bytes", "1MiB"),
    (lambda: refit(min_bytes=np.nan), "min_bytes", np.nan),
    *((lambda v=v: fit_collective(MEASURED, v), "op", v) for v in (None, 5)),
    *(
        (lambda kind=kind: refit(kind=kind), "kind", kind)
        for kind in (
            "ring", Link, LINK, lambda link: link, dict, np.sin, BatchTime, BatchTime(1, 1),
            NodesCost, LinkCost, ParameterServer, Interpolated(TIMED),
        )
    ),
    (lambda: refit(kind=Ring(LINK, "reduce")), "kind", "one of reduce"),
    *(
        (
            lambda kind=kind: fit_collective(MEASURED.assign(op="all_gather"), "all_gather", kind),
            "kind",
            "one of all_reduce",
        )
        for kind in (HalvingDoubling, Tree, Hierarchical, Piecewise(Tree, breaks=None))
    ),
    *(
        (lambda n=n: refit(MEASURED.assign(n_nodes=n), kind=FlatRing), "n_nodes of row 0", str(n))
        for n in (0, -1, "two", 64)
    ),
    (lambda: refit(MEASURED.assign(seconds=1e-12)), "row 0", "bytes/s"),
    (lambda: refit(MEASURED.assign(seconds=1e4)), "row 5", "bytes/s"),
    (lambda: refit(MEASURED.assign(nbytes=0.5)), "row 0", "0.5 bytes"),
    (lambda: refit(with_row("seconds", 1e300, row=0)), "row 0", 1e300),
    (lambda: refit(MILLISECONDS), "measurements"),
    (lambda: fitted().interval("gamma"), "interval", "gamma"),
    (lambda: fitted().interval(["alpha"]), "interval", "list"),
    *((lambda v=v: fitted().predict(MIB, 8, v), "level", v) for v in (0, 1, 95, "95 %", True)),
    (lambda: fitted().predict([1, 2, 3], [2, 4]), "nbytes and n_workers", "3 and 2"),
    *((lambda v=v: fitted().draws(v, None), "n", v) for v in (-1, 2.0, 2.5, True)),
    *((lambda v=v: fitted().draws(3, v), "rng", v) for v in (None, 0)),
    (lambda: fitted(sizes=(8, 2**20), workers=(8,)).draws(3, np.random.default_rng()), "draws"),
    *((lambda v=v: fitted().card(v), "held_out", v) for v in ("x", {"a": 1}, [], [0.1, np.inf])),
    (lambda: fit_batch_time(None), "table", "NoneType"),
    (lambda: fit_batch_time(BATCHES, "seconds"), "x", "seconds"),
    (lambda: fit_batch_time(BATCHES.rename(columns={"batch": "size"})), "table", "batch"),
    (lambda: fit_batch_time(with_row("seconds", 0.0, 1, BATCHES)), "seconds of row 1", "0.0"),
    (lambda: fit_batch_time(with_row("batch", -1, 1, BATCHES)), "batch of row 1", -1),
    (lambda: fit_batch_time(with_row("seconds", 1e300, 1, BATCHES)), "table row 1", 1e300),
    (lambda: fit_batch_time(BATCHES.assign(batch=8)), "table batch", 1),
    (lambda: fit_batch_time(BATCHES.assign(batch=True)), "table batch", "bool"),
    (lambda: held_out(fitted(), "bytes"), "leave", "bytes"),
    (lambda: held_out(fitted(), folds=5.0), "folds", 5.0),
    (lambda: held_out(fitted(workers=(8,)), "n_workers"), "leave", 8),
    (lambda: held_out(fitted(sizes=(4 * MIB, 6 * MIB, 8 * MIB)), "large"), "leave", "1.04858e+06"),
    (lambda: held_out(fitted(), folds=1), "folds", 1),
    (lambda: held_out(Ring(LINK)), "fit", "Ring"),
    (lambda: choose([]), "fits", "none"),
    (lambda: choose({"Tree": "one size"}), "fits", "Tree: one size"),
    (lambda: choose(Ring(LINK)), "fits", "Ring"),
    (lambda: choose([Ring(LINK)]), "fits 0", "Ring"),
    (lambda: choose([fit_batch_time(BATCHES)]), "fits", "BatchTime"),
    (lambda: choose([fitted()], by="size"), "by", "size"),
    (lambda: choose([fitted(workers=(8,))], by="n_workers"), "by", "Ring: "),
    (lambda: choose([fitted(), fitted(min_bytes=MIB)]), "fits", "Ring of 30 and Ring 2 of 15"),
    (lambda: advice(target=25 * MIB), "target", 25 * MIB),
    (lambda: advice(target=([], [])), "target", "none"),
    (lambda: advice(target=([1, 2, 3], [2, 4])), "nbytes and n_workers", "3 and 2"),
    (lambda: advice(target=(MIB, 1)), "target"),
    (lambda: advice(target=pd.DataFrame({"nbytes": [1]})), "target", "n_workers"),
    (lambda: advice(candidates=([], [])), "candidates", "none"),
    (lambda: advice(candidates=(MIB, 1)), "candidates"),
    (lambda: advice(candidates=(-1, 8)), "candidates", -1),
    (lambda: advice(level=95), "level", 95),
    (lambda: advice(n=0), "n", 0),
    (lambda: advice(fitted(Interpolated)), "fit", "Interpolated"),
    (lambda: advice(fitted(sizes=(8, 2**20), workers=(8,))), "fit", "more points"),
    (lambda: advice(fitted(FlatRing, workers=(2, 4)), (MIB, 16)), "target", "alpha_between"),
    *((lambda f=f: f(Ring(LINK)), "fit", "Ring") for f in (curves, residuals, shown_workers)),
    (lambda: corners(fit_all_reduce), "fit", "fit_all_reduce"),
    (lambda: fit_slowdown(events().drop(columns="name")), "events", "name"),
    (lambda: fit_slowdown(events(), by="shape"), "by", "shape"),
    (lambda: fit_slowdown(events(), level=95), "level", 95),
    *((lambda v=v: fit_slowdown(events(end_s=v)), "end_s of row 0", v) for v in (np.nan, "late")),
]  # fmt: skip
