"""One table of refusals: what is called, which argument the message names, and the value it shows.

A row is (call, argument, value) or (call, argument): the call raises a ValueError whose text
before the first colon names the argument and whose text after it shows the value. Sentences are
free to improve. The checkers themselves are tested in test_checks.
"""

import math
from dataclasses import replace
from pathlib import Path

import figure_tables as ft
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import refusal
from explorers import OPTIONS, ten_gradients, timed
from refusals_of_prices import COSTS, FITS, FUSION
from test_timeline import scenario
from torch import nn

from workbench import capture, figures, timeline
from workbench.capture.plans import policy_of
from workbench.capture.training import Training
from workbench.capture.workers import Workers
from workbench.costs import Affine, BatchTime, Link, Ring
from workbench.explore import (
    explore_fit,
    explore_fusion,
    explore_run,
    explore_scaling,
    explore_steps,
    explore_timeline,
    explore_whatif,
)
from workbench.figures import distinct
from workbench.fits import fit_all_reduce, fit_batch_time
from workbench.fusion import DDPBuckets, DeepSpeedBuckets, PerTensor
from workbench.timeline import (
    NormalJitter,
    SampleJitter,
    Scenario,
    beside_measured,
    chrome_trace,
    predict,
    predict_sharded,
    schedule,
    strong_scaling,
)
from workbench.timeline.replay import Task, replay
from workbench.timeline.scenario import seconds_alone, seconds_late
from workbench.validation import cells, pollux, published
from workbench.whatif import (
    Accumulation,
    AdaptiveFusion,
    Compression,
    FasterCompute,
    FasterLink,
    HalfPrecision,
    HierarchicalAllReduce,
    LargerBatch,
    LocalSGD,
    PriorityScheduling,
    TensorFusion,
    Together,
    ablate,
    band,
    catalogue,
    compare,
    factors,
    headroom,
    knee,
    knee_range,
    loss_curve,
    optimal,
    optimal_fusion,
    predict_priority,
    recommend,
    sensitivity,
)

BASE = []

TRACES = []


LINK = Link(1e-5, 1e-9)
PER_GRADIENT = Scenario(
    pd.DataFrame({"name": ["b", "a"], "nbytes": [100, 200], "ready_s": [1.0, 2.0]}),
    one_worker_s=10.0, backward_s=5.0, n_workers=2, all_reduce=Affine(Link(1.0, 0.01)),
    fusion=PerTensor(),
)  # fmt: skip
NO_LINK = replace(PER_GRADIENT, all_reduce=lambda nbytes, n: 0 * nbytes)
TIMED = pd.DataFrame({"nbytes": [1e3, 1e5, 1e6], "seconds": [1e-5, 2e-4, 2e-3]})
FIT = fit_all_reduce(TIMED.assign(op="all_reduce", n_workers=2, n_nodes=1))
BATCHES = fit_batch_time(pd.DataFrame({"batch": [1, 2, 4], "seconds": [1.5, 2.1, 3.6]}))
ODD_RANGE = PER_GRADIENT.gradients.assign(ready_min_s=[2.0, 2.0], ready_max_s=[3.0, 3.0])
FP16, SEVEN = {"fp16": HalfPrecision()}, {str(k): FasterLink(2) for k in range(7)}
WHATIF = [
    (lambda: Compression(0.5), "Compression ratio", 0.5),
    (lambda: Compression(2, encode_s_per_byte=-1.0), "Compression encode_s_per_byte", -1),
    (lambda: FasterLink(0), "FasterLink bandwidth", 0),
    (lambda: FasterLink(2, 0), "FasterLink latency", 0),
    (lambda: FasterCompute("2"), "FasterCompute factor", "2"),
    (lambda: LargerBatch(2, BatchTime(1, 1)), "LargerBatch batch_time"),
    (lambda: LargerBatch(2, 3.0, 32), "LargerBatch batch_time", 3.0),
    (lambda: LargerBatch(2, lambda batch: 0.0, 32)(PER_GRADIENT), "batch_time", 0),
    (lambda: Accumulation(4, 5.5)(PER_GRADIENT), "Accumulation update_s", 5.5),
    (lambda: Accumulation(0), "Accumulation steps", 0),
    (lambda: LocalSGD(1.5), "LocalSGD steps", 1.5),
    (lambda: Together(HalfPrecision()), "Together optimisations", "HalfPrecision"),
    (
        lambda: Together((PriorityScheduling(), PriorityScheduling()))(PER_GRADIENT),
        "Together",
        "PriorityScheduling",
    ),
    (lambda: TensorFusion(DDPBuckets), "TensorFusion policy", DDPBuckets),
    (lambda: AdaptiveFusion()(replace(PER_GRADIENT, launch_s=[1.0, 2.0])), "launch_s"),
    (lambda: HierarchicalAllReduce(Link(0, 0), 2)(NO_LINK), "between", "<lambda>"),
    (lambda: compare(PER_GRADIENT, {}), "compare optimisations"),
    (lambda: compare(PER_GRADIENT, [HalfPrecision()]), "compare optimisations", "list"),
    (lambda: compare(PER_GRADIENT, {"baseline": HalfPrecision()}), "optimisations", "baseline"),
    (lambda: compare(PER_GRADIENT, {"fp16": HalfPrecision}), "fp16", HalfPrecision),
    (lambda: ablate(PER_GRADIENT, {"none": lambda s: None}), "<lambda>", None),
    (lambda: ablate(PER_GRADIENT, FP16, "random"), "order", "random"),
    (lambda: ablate(PER_GRADIENT, SEVEN, "all"), "optimisations", 7),
    (lambda: catalogue(1e-5, LINK, 4, 1e-10, 1e-5), "link", 1e-5),
    (lambda: catalogue(LINK, None, 4, 1e-10, 1e-5), "inside", None),
    (lambda: catalogue(LINK, LINK, 0, 1e-10, 1e-5), "workers_per_node", 0),
    (lambda: catalogue(LINK, LINK, [4], 1e-10, 1e-5), "workers_per_node", "array"),
    (lambda: catalogue(LINK, LINK, 4, -1.0, 1e-5), "cast_s_per_byte", -1),
    (lambda: catalogue(LINK, LINK, 4, 1e-10, None), "kernel_s", None),
    (lambda: band(PER_GRADIENT, FIT, [2], n_draws=1), "n_draws", 1),
    (lambda: band(PER_GRADIENT, FIT, [2], n_draws=100.0), "n_draws", 100.0),
    (lambda: band(PER_GRADIENT, FIT, [2], compute_cv=0.3), "compute_cv", 0.3),
    (lambda: band(PER_GRADIENT, FIT, [[2]]), "n_workers", "(1, 1)"),
    (lambda: band(PER_GRADIENT, FIT, [2], level=1), "level", 1),
    (lambda: band(replace(PER_GRADIENT, gradients=ODD_RANGE), FIT, [2]), "row 0", 1.0),
    (lambda: band(PER_GRADIENT, Ring(LINK), [2]), "band fit", "Ring"),
    (lambda: band(PER_GRADIENT, BATCHES, [2]), "band fit", "Fit"),
    (lambda: band(FIT, FIT, [2]), "band", "Fit"),
    (lambda: band(PER_GRADIENT, FIT, 0), "n_workers", 0),
    (lambda: band(PER_GRADIENT, FIT, []), "n_workers", "(0,)"),
    (lambda: knee_range(PER_GRADIENT, None), "fit", None),
    (lambda: knee(PER_GRADIENT, 1), "threshold", 1),
    (lambda: knee(PER_GRADIENT, n_workers=[2, 1]), "n_workers", "list"),
    (lambda: headroom(changed(launch_s=[1.0, 2.0, 3.0])), "launch_s", 3),
    *((lambda f=f: f(BY_HAND, noise=1.0), "noise", 1) for f in (headroom, recommend, loss_curve)),
    *((lambda f=f: f(predict(BY_HAND)), "", "Prediction") for f in (headroom, optimal, recommend)),
    (lambda: optimal_fusion(BY_HAND.gradients[::-1], Ring(LINK), 4), "ready_s of row 1", "got"),
    (lambda: optimal_fusion(BY_HAND.gradients, Ring, 4), "", Ring),
    (lambda: optimal_fusion(BY_HAND.gradients, Ring(LINK), 0), "n_workers", 0),
    (lambda: optimal_fusion(BY_HAND.gradients, Ring(LINK), 4, -1.0), "slack_s", -1),
    (lambda: optimal_fusion(BY_HAND.gradients, lambda nbytes, n: -1.0, 4), "", -1),
    (lambda: sensitivity(changed(n_streams=2)), "scenario", "n_streams=2"),
    (lambda: sensitivity(changed(slowdown=0.1)), "scenario", "slowdown=0.1"),
    (lambda: sensitivity(predict(BY_HAND)), "scenario", "Prediction"),
    (lambda: sensitivity(BY_HAND, FIT.model), "fit", "Ring"),
    (lambda: predict_priority(changed(n_streams=2)), "scenario", "n_streams=2"),
    (lambda: predict_priority(changed(slowdown=0.1)), "scenario", "slowdown=0.1"),
    (lambda: predict_priority(changed(launch_s=[1.0, 2.0])), "scenario", "launch_s"),
    (lambda: predict_priority(BY_HAND, forward_s=[1.0]), "forward_s", 1),
    (lambda: predict_priority(BY_HAND, forward_s=[3.0, 2.0, 1.0]), "forward_s", 6),
    (lambda: predict_priority(CLOCKED, fused=True), "scenario", "DeepSpeedBuckets"),
    (lambda: predict_priority(BY_HAND, 0), "piece_bytes", 0),
    (lambda: predict_priority(EVENTS), "scenario", "DataFrame"),
    (lambda: factors(BY_HAND, {"speed of light": [1.0]}), "values", "speed of light"),
    (lambda: factors(BY_HAND, {"bandwidth": [0.0]}), "values bandwidth", 0),
    (lambda: factors(BY_HAND, {"largest gradient": [1.5]}), "values largest gradient", 1.5),
    (lambda: factors(BY_HAND, {"stragglers": [math.nan]}), "values stragglers", math.nan),
]

BY_HAND = scenario()
OTHER_FIELDS = {
    "gradients": [BY_HAND.gradients.assign(nbytes=pd.array([100, pd.NA, 300]))],
    "one_worker_s": [0.0, math.nan, pd.Series([10.0]), "10", None, True],
    "backward_s": [10.1, 3.9, math.nan, pd.Series([10.0]), True],
    "n_workers": [0, 2.5, True, None, "8"],
    "all_reduce": [1e-3, Ring, Link, LINK, FIT],
    "fusion": ["ddp", DDPBuckets],
    "overlap": ["no"],
    "micro_batches": [0, 1.5, True],
    "n_streams": [0, "2", math.inf],
    "slowdown": [-0.1, None],
    "jitter": [0.1, NormalJitter],
    "launch_s": [math.nan, "1", [1.0, pd.NA], True, np.zeros((1, 2)), {0: 1.0}, []],
    "fixed_s": [math.nan, [1.0]],
}
OTHER_GRIDS = {
    "n_workers": [8, "8", None, [2.5], [True, 2], [[1, 2]], []],
    "fusion": [PerTensor(), [DDPBuckets]],
    "gradients": [BY_HAND.gradients],
    "slowdown": [[-0.1]],
    "backward_s": [[5.0, 50.0]],
    "launch_s": [[[1.0, 2.0]]],
    "workers": [[1, 2]],
}
BUCKETS = pd.DataFrame({"n_gradients": 1, "nbytes": 100, "ready_s": [1.0, 2.0]})
MEASURED = pd.DataFrame({"n_workers": [1, 2], "iteration_s": [5.0, 16.0]})
EVENTS = predict(BY_HAND).to_events()


def changed(**changes):
    return replace(BY_HAND, **changes)


TIMELINE = [
    *(
        (lambda name=name, value=value: changed(**{name: value}), name)
        for name, values in OTHER_FIELDS.items()
        for value in values
    ),
    *(
        (lambda name=name, value=value: timeline.sweep(BY_HAND, **{name: value}), "")
        for name, values in OTHER_GRIDS.items()
        for value in values
    ),
    (lambda: changed(n_workers=[2, 4]), "n_workers", "array"),
    (lambda: changed(fusion=Ring(LINK)), "all_reduce, fusion", "Affine and Ring"),
    (lambda: changed(all_reduce=DDPBuckets()), "all_reduce, fusion", "DDPBuckets and PerTensor"),
    (lambda: changed(backward_s=3.9), "Scenario backward_s", "3.9, which is 0.1 s earlier"),
    (lambda: changed(backward_s=12, fixed_s=1.5), "backward_s", "12, which is 0.5 s longer"),
    (lambda: changed(micro_batches=3), "backward_s", "5, which is 5 s longer"),
    (lambda: predict(changed(launch_s=[1.0, 2.0])), "launch_s", 2),
    (lambda: predict(changed(all_reduce=lambda nbytes, n: -1.0)), "all_reduce", -1),
    (lambda: timeline.sweep(BY_HAND, one_worker_s=[20.0, 10.0], micro_batches=[3]), "backward_s"),
    (lambda: timeline.sweep(BY_HAND, range(1, 9)), "executor", "range"),
    (lambda: timeline.sweep(Scenario), "scenario", Scenario),
    (lambda: predict(EVENTS), "scenario", "DataFrame"),
    (lambda: predict(predict(BY_HAND)), "scenario", "Prediction"),
    (lambda: seconds_alone(lambda nbytes, n: np.ones(3), [8, 9], 2), "all_reduce", "(3,)"),
    (lambda: seconds_late(lambda n: np.ones((2, 2)), [2, 3]), "jitter", "(2, 2)"),
    (lambda: schedule(BUCKETS, [1, 1, 1]), "seconds", 3),
    (lambda: schedule(BUCKETS, [1, math.nan]), "seconds", math.nan),
    (lambda: schedule(BUCKETS, [1, -1]), "seconds", -1),
    (lambda: schedule(BUCKETS, 1, pd.array([1, pd.NA])), "launch_s", math.nan),
    (lambda: schedule(BUCKETS.assign(ready_s=math.inf), 1), "ready_s", math.inf),
    (lambda: schedule(BUCKETS.drop(columns="nbytes"), 1), "buckets", "nbytes"),
    (lambda: SampleJitter([1.0]), "durations_s", "(1,)"),
    (lambda: SampleJitter([1.0, -1.0]), "durations_s", -1),
    (lambda: NormalJitter(-1.0), "std_s", -1),
    (lambda: NormalJitter([1.0]), "std_s", "list"),
    (lambda: NormalJitter(1.0)(0), "n_workers", 0),
    (lambda: replay([Task("a", 1.0, 0, (1,)), Task("b", 1.0, 0, (0,))]), "tasks", "[0, 1]"),
    (lambda: predict_sharded(changed(overlap=False)), "scenario", "overlap=False"),
    (lambda: predict_sharded(changed(micro_batches=2)), "scenario", "micro_batches=2"),
    (lambda: predict_sharded(changed(launch_s=1.0)), "scenario", "launch_s"),
    (lambda: predict_sharded(changed(n_streams=3)), "scenario", "n_streams=3"),
    (lambda: predict_sharded(BY_HAND, "zero"), "kind", "zero"),
    (lambda: predict_sharded(BY_HAND, ahead=0), "ahead", 0),
    (lambda: predict_sharded(EVENTS), "scenario", "DataFrame"),
    (lambda: strong_scaling(BY_HAND, [2], 5.0), "one_worker_s", 5),
    (lambda: strong_scaling(BY_HAND, [2], lambda n: -1.0), "one_worker_s", -1),
    (lambda: strong_scaling(predict(BY_HAND), [2], lambda n: 1.0), "scenario", "Prediction"),
    (lambda: strong_scaling(BY_HAND, 4, lambda n: 1.0), "n_workers", 4),
    (lambda: beside_measured(BY_HAND, MEASURED.assign(policy=["ddp", "x"])), "policy", "ddp, x"),
    (lambda: beside_measured(PER_DDP, MEASURED.assign(policy="plan")), "policy", "plan"),
    (lambda: beside_measured(BY_HAND, MEASURED.assign(iteration_s=-1)), "iteration_s", -1),
    (lambda: beside_measured(BY_HAND, MEASURED[["n_workers"]]), "measured", "iteration_s"),
    (lambda: beside_measured(None, MEASURED), "scenario", None),
    (lambda: chrome_trace(pd.concat([EVENTS, EVENTS.assign(rank=1)])), "events", "2 ranks"),
    (lambda: chrome_trace(EVENTS.drop(columns="correlation")), "events", "correlation"),
]
PER_DDP = changed(fusion=DDPBuckets())
CLOCKED = changed(fusion=DeepSpeedBuckets())

EMPTY = pd.DataFrame()
PLACED = pd.DataFrame(
    {
        "application": ["mine"],
        "n_nodes": 1,
        "n_workers": 2,
        "batch": 8,
        "step_s": 2.0,
        "sync_s": 1.0,
    }
)
VALIDATION = [
    (lambda: cells.validate_bcaffe(EMPTY, EMPTY), "trace", "run"),
    (lambda: cells.validate_ddl(EMPTY, {}, EMPTY), "throughput", "batch"),
    (lambda: cells.validate_horovod(EMPTY, EMPTY), "runs", "setting"),
    (lambda: cells.validate_pollux(PLACED, {}), "rows", "none"),
    (lambda: cells.rows_with(pd.DataFrame({"a": [1]}), "speed", a=2), "speed", "a 2"),
    (lambda: cells._solved(lambda price: price - 1, 1e-3, "beta"), "beta", "none"),
    (lambda: pollux.fit_placements(EMPTY, {}), "fit_placements", "application"),
    (lambda: pollux.fit_placements(PLACED, {}), "gradients", "mine"),
    (lambda: pollux.fit_placements(PLACED, {"mine": None}), "n_nodes", "two nodes"),
    (lambda: published.caption("data", "mona-lisa"), "name", "mona-lisa"),
    (lambda: published.published("nowhere"), "nowhere", "v100_backward_trace"),
]

WORK = capture.Workload(nn.Linear(1, 1), [()], nn.functional.mse_loss)


def sweep(**asked):
    return lambda: capture.sweep_collectives("x", workers=Workers(n_workers=2), **asked)


def work(**changed):
    return lambda: replace(WORK, **changed)


CAPTURE = [
    (lambda: capture.record(5, "x"), "work", 5),
    (lambda: capture.record(WORK, "x", iterations=0), "iterations", 0),
    (lambda: capture.record(WORK, "x", hooked=-1), "hooked", -1),
    (lambda: capture.record(WORK, "x", profiled=1.5), "profiled", 1.5),
    (lambda: capture.record(WORK, "x", settings={"path": Path()}), "settings", "JSON"),
    (lambda: Training(WORK, Workers(), PerTensor()), "policy", "PerTensor"),
    (lambda: capture.sweep_batches(5, [0], "x"), "batches", 0),
    (lambda: capture.time_wrapper(lambda: WORK, "x", iterations=0), "iterations", 0),
    (lambda: capture.sweep_collectives("x"), "workers", 1),
    (sweep(ops="all_reduce"), "ops", "all_reduce"),
    (sweep(ops=["all"]), "ops", "all"),
    (sweep(n_workers=2), "n_workers", 2),
    (sweep(n_workers=[2.5]), "n_workers", 2.5),
    (sweep(n_workers=[4]), "n_workers", 4),
    (sweep(smallest=6), "smallest", 6),
    (sweep(smallest=8, largest=4), "smallest", 8),
    (sweep(tight=math.nan), "tight", math.nan),
    (sweep(seconds=-1), "seconds", -1),
    (sweep(least=0), "least", 0),
    (work(model=nn.Linear), "model", nn.Linear),
    (work(batches=5), "batches", 5),
    (work(loss=None), "loss", None),
    (work(optimizer=torch.optim.SGD), "optimizer", torch.optim.SGD),
    (work(optimizer=torch.optim.LBFGS([torch.ones(1)])), "optimizer", "LBFGS"),
    (work(about={"loss": torch.ones(1)}), "about", "dict"),
    (work(about={"loss": math.nan}), "about", "dict"),
    (work(about="mine"), "about", "mine"),
    *(
        (lambda text=text: policy_of(text), "policy", text.removeprefix("fixed:"))
        for text in ("horovod", "plan:", "ddp:25", "", "fixed:big", "fixed:0", "fixed:nan")
    ),
    (lambda: capture.compared("x", "x", "runs"), "runs", "runs"),
]

FIGURES = [
    (ft.drawn("timeline", backward_s=None), "backward_s", None),
    (ft.drawn("timeline", backward_s="60 ms"), "backward_s", "60 ms"),
    (ft.drawn("scaling", fitted_to=ft.THREE), "fitted_to", ft.THREE),
    (ft.drawn("scaling", at=0), "at", 0),
    (ft.drawn("scaling", label="network"), "table", "missing column network"),
    (ft.drawn("scaling", measured=ft.KNEE), "measured", "missing column n_workers"),
    (ft.drawn("breakdown", ft.ITERATIONS[["rank", "iteration"]]), "iterations", "none"),
    *((ft.drawn("step", step=step), "step", step) for step in (3, -1, "last", 0.5)),
    (ft.drawn("overlap", {}), "predictions", "dict"),
    (ft.drawn("overlap", {"a": ft.THREE}), "predictions a", ft.THREE),
    (ft.drawn("overlap", ft.ways() | {"c": predict(replace(ft.THREE, backward_s=0.15))}),
     "predictions", "0.1 s and 0.15 s"),
    (ft.drawn("run", zoom=(2e-6, 1e-6)), "zoom", "(2e-06, 1e-06)"),
    (ft.drawn("run", zoom=(0, 1)), "zoom", "(0, 1)"),
    (ft.drawn("run", zoom=(0, "x")), "zoom", "'x'"),
    (ft.drawn("run", zoom=5), "zoom", 5),
    (ft.drawn("run", ft.lanes(ft.run()).of("stream 99")), "run", "none"),
    (ft.drawn("waterfall", ablate(ft.THREE, OPTIONS, "all")), "table", 6),
    (ft.drawn("curve", at=-1), "at", -1),
    (ft.drawn("models", fitted_to=-1), "fitted_to", -1),
    (ft.drawn("factors", ft.factors(ft.THREE).assign(model="a")), "axes", 1),
    (ft.drawn("parity", up_to=-1), "up_to", -1),
    (ft.drawn("parity", pd.concat([ft.cells(q, measured=[1.0], predicted=1.0)
                                for q in "ab"])), "quantity", "a, b"),
    (ft.drawn("fit", ft.FIT, table=ft.RING), "table", "Ring"),
    (ft.drawn("fit", ft.FIT, measured=ft.timed().drop(columns="nbytes")), "measured",
     "missing column nbytes"),
    (ft.drawn("residuals", against="cook"), "against", "cook"),
    (ft.drawn("qq", fit_all_reduce(ft.timed(), ft.Interpolated)), "fit", "Interpolated"),
    (lambda: figures.draw_residuals([ft.Figure().subplots()] * 5, ft.FIT), "axes", 5),
    (lambda: figures.paper("sosp"), "venue", "sosp"),
    (lambda: figures.paper("neurips", columns=2), "columns", 2),
    (lambda: figures.paper(ratio=0), "ratio", 0),
    (lambda: figures.paper(ratio="wide"), "ratio", "wide"),
    (lambda: figures.faults(None), "faults fig", None),
    *((lambda pt=pt: figures.faults(ft.Figure(), pt), "least_pt", pt) for pt in (0, "6")),
    (lambda: figures.describe(ft.Figure().subplots()), "describe fig", "Axes"),
    (lambda: distinct.seen("red", "mono"), "vision", "mono"),
]  # fmt: skip

FORECAST = ten_gradients()
TIMED = timed()
EXPLORE = [
    *(
        (lambda explore=explore: explore(predict(FORECAST)), "", "Prediction")
        for explore in (
            explore_fusion,
            explore_scaling,
            explore_steps,
            explore_timeline,
            lambda given: explore_whatif(given, OPTIONS),
        )
    ),
    (lambda: explore_timeline(FORECAST, "x/y"), "", "x/y"),  # what save would refuse
    (lambda: explore_fit(TIMED, name="x/y"), "", "x/y"),
    (lambda: explore_whatif(FORECAST, {}), ""),
    (lambda: explore_whatif(FORECAST, {"baseline": OPTIONS["fp16"]}), ""),
    *(
        (lambda named=named: explore_fusion(FORECAST, frameworks=named), "frameworks", named)
        for named in ({"optimum": FORECAST.fusion}, [FORECAST.fusion], 5)
    ),
    (lambda: explore_fit({}), "measurements", "none"),
    (lambda: explore_fit({"a": [1]}), "measurements 'a'", "list"),
    (lambda: explore_fit(TIMED.drop(columns="seconds")), "measurements", "seconds"),
    (lambda: explore_fit(TIMED, "line"), "kind", "line"),
    (lambda: explore_fit(TIMED[:1]), "measurements", 1),
    (lambda: explore_fit(TIMED, op="reduce"), "measurements", 0),
    (lambda: explore_fit(TIMED.assign(nbytes=TIMED["nbytes"].replace(1024, None))), "nbytes", None),
    (lambda: explore_run("run"), "", "str"),
    (lambda: explore_run(pd.DataFrame()), ""),
]

NOTEBOOKS = []

ROOMS = {
    "base": BASE, "traces": TRACES, "costs": COSTS, "fusion": FUSION, "fits": FITS,
    "timeline": TIMELINE, "whatif": WHATIF, "validation": VALIDATION, "capture": CAPTURE,
    "figures": FIGURES, "explore": EXPLORE, "notebooks": NOTEBOOKS,
}  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=f"{room}-{i}-{row[1]}")
        for room in ROOMS
        for i, row in enumerate(ROOMS[room])
    ],
)
def test_what_cannot_be_is_refused_by_name(row):
    refusal(*row)
