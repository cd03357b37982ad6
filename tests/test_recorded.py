"""The scenario of a recorded run: its own gradients and T1, or a sentence that says why not."""

import json

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, complete, launched, refusal

from workbench import Absent, or_why
from workbench.base.tables import GRADIENTS
from workbench.costs import Link, Ring
from workbench.fusion import DDPBuckets, OneMessage
from workbench.timeline import one_worker, predict, scenario_of, sizes_of
from workbench.timeline.from_run import unprofiled_iterations
from workbench.traces import gradients, iterations, load_run

RUNS = ROOT / "data" / "runs"
COST = Ring(Link(10e-6, 1e-9))
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


@pytest.fixture(scope="module")
def lone():
    return load_run(RUNS / "transformer-cpu-1")


@pytest.fixture(scope="module")
def pair():
    return load_run(RUNS / "transformer-cpu-2")


def step(at: int, *kernels) -> list[dict]:
    """A ProfilerStep of 500 us with kernels (name, start, us) on streams of their own."""
    events = [complete("user_annotation", f"ProfilerStep#{at // 1000}", at, 500)]
    for k, (name, start, us) in enumerate(kernels):
        events += launched(name, at + start, us, at + 1 + k, at + k, stream=7 + k)
    return events


def test_a_lone_worker_takes_its_plain_iterations(lone):
    timed = json.loads((RUNS / "transformer-cpu-1" / "run.json").read_text())["iteration_s"]
    found = one_worker(lone)
    assert found.seconds == pytest.approx(np.median(timed["plain"]))
    assert "3 unprofiled iterations" in repr(found)


def test_several_workers_take_their_duration_without_exposed_communication(pair):
    spent = iterations(pair)
    expected = (spent["duration_s"] - spent["exposed_comm_s"]).median()
    found = one_worker(pair)
    assert found.seconds == pytest.approx(float(expected))
    assert "minus their exposed communication: an estimate" in found.how


def test_what_compute_hides_is_not_taken_off(write_trace):
    # compute 0-100 us, all-reduce 50-140: 40 us exposed of 140
    run = load_run(write_trace(step(1000, ("gemm", 100, 100), (ALL_REDUCE, 150, 90))))
    assert one_worker(run).seconds == pytest.approx(100e-6)


@pytest.mark.parametrize(
    "told",
    [None, [1.0], {"plain": 1.0}, {"plain": [1.0, "2"]}, {"plain": [-1.0]}, {"plain": [True]}],
)
def test_unprofiled_iterations_that_are_not_times_do_not_count(told):
    assert len(unprofiled_iterations({"iteration_s": told})) == 0


def test_a_run_without_compute_or_messages_leaves_one_worker_unknown(write_trace):
    run = load_run(write_trace(step(1000, (ALL_REDUCE, 100, 100))))
    refusal(lambda: one_worker(run), "run", "no compute was recorded")
    calls = [complete("cpu_op", "nccl:all_reduce", 1010, 5)]
    with pytest.warns(UserWarning, match="no communication kernel"):
        run = load_run(write_trace(calls + step(1000, ("gemm", 100, 100))))
    refusal(lambda: one_worker(run), "run", "communication was not recorded")


def test_the_scenario_of_a_run_is_the_one_made_by_hand(lone):
    made = scenario_of(lone, COST, 8, DDPBuckets())
    ready = gradients(lone)
    pd.testing.assert_frame_equal(made.gradients, ready)
    assert made.backward_s == ready["ready_s"].max()
    assert made.one_worker_s == one_worker(lone).seconds
    assert (made.n_workers, made.all_reduce, made.fusion) == (8, COST, DDPBuckets())


def test_a_single_gpu_trace_is_enough_for_a_forecast(shared):
    run = load_run(shared / "traces" / "kineto" / "old-format-resnet50")
    found = predict(scenario_of(run, COST, 16, OneMessage()))
    # by hand: T1 + 2(n-1) (alpha + S/n beta), S the 25,557,032 parameters of ResNet-50 in fp32
    comm_s = 30 * (10e-6 + 4 * 25_557_032 / 16 * 1e-9)
    assert found.exposed_comm_s == pytest.approx(comm_s)
    assert found.scaling_factor == pytest.approx(1 / (1 + comm_s / one_worker(run).seconds))


def test_sizes_come_by_a_models_name_or_from_a_table_in_a_file(shared, tmp_path):
    models = pd.read_csv(ROOT / "data" / "models" / "gradients.csv", comment="#")
    named = sizes_of("resnet50", models)
    assert named["nbytes"].sum() == 4 * 25_557_032 and named["name"].iloc[0] == "fc.bias"
    named.assign(note="mine").to_csv(tmp_path / "mine.csv", index=False)
    for given in (str(tmp_path / "mine.csv"), tmp_path / "mine.csv"):
        pd.testing.assert_frame_equal(sizes_of(given, models), named)
    assert sizes_of(None, models) is None
    run = load_run(shared / "traces" / "kineto" / "ddp-resnet50-2gpu")
    made = scenario_of(run, COST, 8, DDPBuckets(), named)
    assert made.gradients["nbytes"].sum() == 4 * 25_557_032
    text = refusal(lambda: scenario_of(run, COST, 8, DDPBuckets()), "run", "161 of 161 gradients")
    assert "record_shapes=True" in text
    other = sizes_of("vgg16", models)
    refusal(lambda: scenario_of(run, COST, 8, DDPBuckets(), other), "sizes", 32)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name,bytes\na,4\n", "missing column nbytes"),
        ("name,nbytes\na,4\nb,many\n", "nbytes: expected whole bytes above 0, got 'many' in row 1"),
        ("name,nbytes\na,4.5\n", "nbytes: expected whole bytes above 0, got 4.5 in row 0"),
        ("name,nbytes\na,\n", "nbytes: expected whole bytes above 0, got nan in row 0"),
    ],
)
def test_a_file_without_sizes_is_refused(text, why, tmp_path):
    (tmp_path / "sizes.csv").write_text(text)
    with pytest.raises(ValueError, match=why):
        sizes_of(tmp_path / "sizes.csv", MODELS)


MODELS = pd.DataFrame({"model": ["net", "other"], "name": "a", "nbytes": 4})


@pytest.mark.parametrize("sizes", ["resnet5", 4, [4, 8], ""])
def test_what_is_neither_a_model_nor_a_table_is_refused(sizes, lone):
    with pytest.raises(ValueError, match="a CSV .*name and nbytes, or one of net, other"):
        sizes_of(sizes, MODELS)
    refusal(lambda: scenario_of(lone, COST, 8, DDPBuckets(), sizes=sizes), "sizes", sizes)


def test_the_columns_that_a_run_adds_to_its_gradients_are_documented(lone):
    extra = set(gradients(lone)) - set(GRADIENTS)
    text = (ROOT / "data" / "README.md").read_text().split("### GRADIENTS")[1].split("###")[0]
    assert extra and all(f"`{column}`" in text for column in extra)


def test_a_sentence_stands_in_place_of_what_cannot_be_computed(lone):
    assert or_why(one_worker, lone) == one_worker(lone)
    why = or_why(load_run, "no/such/run")
    assert isinstance(why, Absent) and not why and "no such file" in repr(why)
    assert (why or "instead") == "instead"
    with pytest.raises(ZeroDivisionError):  # which is not an answer
        or_why(lambda: 1 / 0)
