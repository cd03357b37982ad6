"""Sharded training: schedules by hand, volumes, bounds, and measured back as a run."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from test_model import scenarios
from test_timeline import scenario

from workbench.costs import Affine, Link, Ring
from workbench.fusion import DDPBuckets, OneMessage, fuse
from workbench.timeline import NormalJitter, predict, predict_sharded
from workbench.timeline.sharded import _KINDS
from workbench.traces import collectives, iterations

repeatable = settings(deadline=None, derandomize=True, max_examples=40)


def two_units(**changes):
    """Two units of 3 s forward and 2 s backward each; a gather or a scatter takes 1 s."""
    gradients = pd.DataFrame({"name": ["b", "a"], "nbytes": [1000, 1000], "ready_s": [2.0, 4.0]})
    given = {"gradients": gradients, "backward_s": 4.0, "all_reduce": Affine(Link(0.0, 0.002))}
    return scenario(**given | changes)


def times(prediction, op) -> list[tuple]:
    rows = prediction.timeline.query("op == @op")
    return [tuple(row) for row in rows[["unit", "start_s", "end_s"]].itertuples(index=False)]


def test_a_full_shard_by_hand():
    # gather 1 until 1, forward 1 until 4 (gather 0 beside it), forward 0 until 7; gather 0 anew
    # until 8, backward 0 until 10 with gather 1 beside it, backward 1 until 12 with scatter 0
    # beside it, scatter 1 until 13: of 13 s 10 compute
    prediction = predict_sharded(two_units())
    gathers = [(1, 0, 1), (0, 1, 2), (0, 7, 8), (1, 8, 9)]
    assert times(prediction, "all_gather") == gathers
    assert times(prediction, "forward") == [(1, 1, 4), (0, 4, 7)]
    assert times(prediction, "backward") == [(0, 8, 10), (1, 10, 12), (2, 12, 12)]
    assert times(prediction, "reduce_scatter") == [(0, 10, 11), (1, 12, 13)]
    assert prediction.exposed_comm_s == 3 and prediction.scaling_factor == 10 / 13


def test_units_of_several_types_follow_backward():
    base = two_units()
    rows = base.gradients.iloc[[0, 1, 1]].assign(name=["c", "b", "a"], dtype=["x", "y", "x"])
    rows["ready_s"] = np.linspace(0.5, 1, 3) * base.backward_s
    found = predict_sharded(replace(base, gradients=rows, fusion=DDPBuckets()))
    backward = [(start, end) for _, start, end in times(found, "backward")]
    assert all(end >= start for start, end in backward)
    assert sum(end - start for start, end in backward) == pytest.approx(base.backward_s)


def test_without_prefetch_the_next_gather_waits_for_the_scatter():
    # gather 1 follows scatter 0 (10 to 11), so backward 1 runs from 12 to 14
    prediction = predict_sharded(two_units(), prefetch=False)
    assert times(prediction, "all_gather")[-1] == (1, 11, 12)
    assert prediction.iteration_s == 15


def test_a_queue_of_their_own_lets_scatters_pass():
    # without prefetch but with two queues gather 1 need not wait for scatter 0
    prediction = predict_sharded(two_units(n_streams=2), prefetch=False)
    assert times(prediction, "all_gather")[-1] == (1, 8, 9)
    assert prediction.iteration_s == 13


def test_units_kept_gathered_are_gathered_once():
    prediction = predict_sharded(two_units(), "keep gathered")
    assert times(prediction, "all_gather") == [(1, 0, 1), (0, 1, 2)]
    assert prediction.iteration_s == 12


def test_zero_2_gathers_when_all_is_over():
    # backward until 10, scatter 1 until 11, two gathers until 13
    prediction = predict_sharded(two_units(), "zero 2")
    assert times(prediction, "reduce_scatter") == [(0, 8, 9), (1, 10, 11)]
    assert times(prediction, "all_gather") == [(0, 11, 12), (1, 12, 13)]


def test_one_unit_ahead_gathers_only_what_is_computed_next():
    # gather 0 waits for forward 1 (until 4), gather 1 of backward for backward 0
    prediction = predict_sharded(two_units(), ahead=1)
    assert times(prediction, "all_gather") == [(1, 0, 1), (0, 4, 5), (0, 8, 9), (1, 11, 12)]


@pytest.mark.parametrize(("kind", "times_ddp"), [(_KINDS[0], 1.5), (_KINDS[1], 1), (_KINDS[2], 1)])
def test_a_full_shard_moves_half_as_much_again(kind, times_ddp):
    # 3 S (n-1)/n against 2 S (n-1)/n of an all-reduce
    base = two_units(all_reduce=Ring(Link(0.0, 1e-3)), n_workers=8)
    rows = predict_sharded(base, kind).timeline.dropna(subset="nbytes")
    moved = (rows["end_s"] - rows["start_s"]).sum() / 1e-3
    assert moved == pytest.approx(times_ddp * 2 * 2000 * 7 / 8)


@repeatable
@given(scenarios())
def test_zero_2_in_one_queue_is_the_prediction_of_halved_messages_and_then_the_gathers(drawn):
    base = replace(drawn, overlap=True)
    half = replace(base, all_reduce=lambda nbytes, n: base.all_reduce(nbytes, n) / 2)
    sizes = fuse(base.gradients, base.fusion)["nbytes"].to_numpy()
    gathers_s = half.all_reduce(sizes, base.n_workers).sum()
    expected = predict(half).iteration_s + gathers_s
    assert predict_sharded(base, "zero 2").iteration_s == pytest.approx(expected)


@repeatable
@given(scenarios())
def test_every_schedule_lies_between_its_bounds_and_measures_back(drawn):
    base = replace(drawn, overlap=True, slowdown=0.2, n_streams=1 + drawn.n_workers % 2)
    for kind in _KINDS:
        prediction = predict_sharded(base, kind)
        rows = prediction.timeline.dropna(subset="nbytes")
        total = (rows["end_s"] - rows["start_s"]).sum()
        assert 0 < prediction.scaling_factor <= 1
        assert 0 <= prediction.exposed_comm_s <= total + 1e-9
        measured = iterations(prediction.to_events()).squeeze()
        assert measured["exposed_comm_s"] == pytest.approx(prediction.exposed_comm_s, abs=1e-9)
        assert measured["duration_s"] == pytest.approx(prediction.iteration_s, abs=1e-9)


@repeatable
@given(scenarios())
def test_a_free_link_and_a_lone_worker_scale_perfectly(drawn):
    base = replace(drawn, overlap=True)
    for kind in _KINDS:
        free = predict_sharded(replace(base, all_reduce=Ring(Link(0, 0))), kind)
        lone = predict_sharded(replace(base, n_workers=1), kind)
        assert free.scaling_factor == pytest.approx(1, rel=1e-12)
        assert lone.scaling_factor == 1


def test_jitter_and_fixed_time_come_on_top():
    base = two_units(n_workers=4, jitter=NormalJitter(0.5), fixed_s=0.25)
    late = NormalJitter(0.5)(4)
    prediction = predict_sharded(base)
    assert prediction.iteration_s == pytest.approx(13 + late + 0.25)
    measured = iterations(prediction.to_events()).squeeze()
    assert measured["idle_s"] == pytest.approx(0.25)
    assert measured["compute_s"] == pytest.approx(10 + late)


def test_messages_are_measured_by_their_names():
    found = collectives(predict_sharded(two_units()).to_events())
    assert found["op"].value_counts().to_dict() == {"all_gather": 4, "reduce_scatter": 2}
    assert found["nbytes"].tolist() == [1000] * 6


def test_costs_of_its_own_replace_half_the_all_reduce():
    link = Link(0.0, 1e-3)
    base = two_units(all_reduce=Ring(link), n_workers=4)
    own = predict_sharded(
        base, all_gather=Ring(link, op="all_gather"), reduce_scatter=Ring(link, op="reduce_scatter")
    )
    assert own.iteration_s == pytest.approx(predict_sharded(base).iteration_s)


def test_backward_that_takes_no_time_shares_forward_evenly():
    instant = two_units().gradients.assign(ready_s=0.0)
    with pytest.warns(UserWarning, match="another unit"):
        base = two_units(gradients=instant, backward_s=0.0)
    assert times(predict_sharded(base), "forward") == [(1, 1, 6), (0, 6, 11)]


def test_one_unit_waits_for_each_of_its_messages():
    # gather, forward 6, gather, backward 4, scatter: nothing overlaps
    prediction = predict_sharded(two_units(fusion=OneMessage()))
    assert prediction.iteration_s == pytest.approx(10 + 3 * 2)
    assert np.isclose(prediction.exposed_comm_s, 6)
