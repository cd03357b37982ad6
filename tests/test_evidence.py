"""A recording's numbers compared with independent ones, each worked out here in another way."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, complete, launched, refusal

from workbench import MIB, MS
from workbench.costs import Link, Ring
from workbench.fusion import DDPBuckets, OneMessage
from workbench.timeline import Scenario, predict
from workbench.traces import gradients, iterations, load_run, medians
from workbench.validation import own_run

RUNS = ROOT / "data" / "runs"
COST = Ring(Link(10e-6, 1e-9))
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


@pytest.fixture(scope="module")
def lone():
    return load_run(RUNS / "resnet50-cpu-1")


@pytest.fixture(scope="module")
def pair():
    return load_run(RUNS / "resnet50-cpu-2")


@pytest.fixture(scope="module")
def models():
    return pd.read_csv(ROOT / "data" / "models" / "gradients.csv", comment="#")


@pytest.fixture
def gpu(write_trace):
    """One step: compute 0-100 us, an all-reduce 50-140 on another stream."""
    kernels = (("gemm", 1100, 100, 7), (ALL_REDUCE, 1150, 90, 20))
    events = [complete("user_annotation", "ProfilerStep#1", 1000, 500)]
    for k, (name, at, us, stream) in enumerate(kernels):
        events += launched(name, at, us, 1001 + k, k, stream=stream)
    return load_run(write_trace(events))


def test_the_profiler_costs_what_traced_iterations_take_more(lone):
    found = own_run.profiler_cost(lone)
    plain_s = np.median(lone.info["iteration_s"]["plain"])
    assert found["plain (ms)"] == pytest.approx(plain_s / MS)
    assert found["ratio"] == pytest.approx(iterations(lone)["duration_s"].median() / plain_s)


def test_gradients_are_compared_with_the_model_the_hooks_and_the_messages(pair, models):
    table = own_run.beside_gradients(pair, gradients(pair), models)
    assert table["source"].tolist() == [
        "parameters of resnet50",
        "hooks on the parameters",
        "all-reduces of an iteration",
    ]
    assert table["other"].iloc[[0, 2]].tolist() == pytest.approx([4 * 25_557_032 / MIB] * 2)
    assert table["ratio"].to_numpy() == pytest.approx(1, abs=0.05)  # two clocks on a busy CPU


def test_a_model_of_as_many_gradients_is_found_where_none_is_named(shared, models):
    run = load_run(shared / "traces" / "kineto" / "old-format-resnet50")
    table = own_run.beside_gradients(run, gradients(run), models)
    assert table["source"].tolist() == ["parameters of resnet50, which has as many"]
    assert table["ratio"].tolist() == [1]


def test_the_sibling_of_a_run_ends_in_its_workers(tmp_path):
    for name in ("net-1", "net-2", "other"):
        (tmp_path / name).mkdir()
    assert own_run.sibling(tmp_path / "net-1", 2) == tmp_path / "net-2"
    for name in ("net-2", "other"):
        with pytest.raises(FileNotFoundError, match=f"n_workers = 2 next to {name}"):
            own_run.sibling(tmp_path / name, 2)


def test_a_forecast_is_compared_with_the_run_of_several(lone, pair):
    table = own_run.forecast_beside(lone, pair, COST, DDPBuckets())
    ready = gradients(lone)
    plain = [np.median(run.info["iteration_s"]["plain"]) for run in (lone, pair)]
    made = predict(Scenario(ready, plain[0], ready["ready_s"].max(), 2, COST, DDPBuckets()))
    scaling, _, exposed = table.index
    assert table.loc[scaling, "forecast"] == pytest.approx(made.scaling_factor)
    assert table.loc[scaling, "measured"] == pytest.approx(plain[0] / plain[1])
    assert table.loc[exposed, "forecast"] == pytest.approx(made.exposed_comm_s / MS)
    assert table["ratio"].tolist() == pytest.approx(
        (table["forecast"] / table["measured"]).tolist()
    )


def test_the_hidden_share_is_what_compute_covers(gpu):
    table = own_run.hidden(gpu)  # 50 of 90 us
    assert table.loc[-1].tolist() == pytest.approx([5 / 9, 5 / 9, 1])


def test_only_tools_that_answer_are_shown():
    columns = ["tool", "version", "quantity", "ours_ms", "theirs_ms", "difference_ms", "why"]
    rows = [("A", "1", what, 1.0, 2.0, 1.0, "later") for what in ("idle", "window")]
    absent = [("B", "not installed", "idle", 1.0, pd.NA, pd.NA, "not there")]
    failed = [("C", "failed", "idle", 1.0, pd.NA, pd.NA, "broken")]
    found = own_run.answered(pd.DataFrame(rows + absent, columns=columns))
    assert found.index.tolist() == [("A", "idle")]
    for tools, reason in ((absent + failed, "B: not there; C: broken"), (absent, "PEERS")):
        table = pd.DataFrame(tools, columns=columns)
        assert reason in refusal(lambda table=table: own_run.answered(table), "optional")


def test_messages_are_compared_with_their_price(pair):
    table = own_run.messages_beside(pair, COST)
    each = medians(pair)
    alone_s = 2 * 10e-6 + each["nbytes"] * 1e-9  # a ring of two: two hops, each byte once
    assert table["alone_s"].tolist() == pytest.approx(alone_s.tolist())
    assert table["ratio"].tolist() == pytest.approx((each["seconds"] / alone_s).tolist())


@pytest.mark.parametrize("name", ["resnet50-cpu-2", "transformer-cpu-2"])
def test_ddps_buckets_are_the_messages_of_the_trace(name):
    table = own_run.buckets_beside(load_run(RUNS / name), DDPBuckets())
    assert (table["nbytes"] == table["in_trace"]).all() and (table["ratio"] == 1).all()


def test_buckets_of_a_real_run_on_gpus_are_its_messages(shared):
    run = load_run(shared / "traces" / "kineto" / "rccl-generic-names")
    table = own_run.buckets_beside(run, DDPBuckets())
    assert table["in_trace"].tolist() == [5_746_640, 17_632_384]
    assert (table["ratio"] == 1).all()


def test_a_slow_down_is_found_in_two_ways(shared):
    run = load_run(shared / "traces" / "kineto" / "torchrec-4rank-half-hidden")
    table = own_run.slowdowns(run)
    assert table.index.tolist() == ["name", "place"]
    assert table["ratio"]["name"] == pytest.approx(
        table["factor"]["name"] / table["factor"]["place"]
    )


@pytest.mark.filterwarnings("ignore:.*no communication kernel")
def test_what_a_run_lacks_is_named(lone, pair, gpu, shared, models):
    other, missing = load_run(RUNS / "transformer-cpu-2"), shared / "traces/kineto/no-gpu-events"
    refusal(lambda: own_run.profiler_cost(gpu), "run", "unprofiled iterations")
    bare = load_run(shared / "traces" / "kineto" / "torchrec-4rank-half-hidden")
    refusal(lambda: own_run.beside_gradients(bare, gradients(bare), models), "run", "record_shapes")
    beside = partial(own_run.forecast_beside, lone, all_reduce=COST, fusion=DDPBuckets())
    for several, got in ((other, 52), (lone, 1), ("resnet50-cpu-2", "resnet50-cpu-2")):
        refusal(partial(beside, several), "several", got)
    refusal(lambda: own_run.hidden(lone), "run", "communication in its iterations")
    refusal(lambda: own_run.hidden(load_run(missing)), "run", "recorded communication")
    refusal(lambda: own_run.buckets_beside(pair, OneMessage()), "run", 5)
    refusal(lambda: own_run.buckets_beside(lone, DDPBuckets()), "run", "all-reduces with their")
    refusal(lambda: own_run.slowdowns(pair), "run", "no comm and no compute row")
