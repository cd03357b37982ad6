"""The timeline: the recursion by hand, its closed form, sweeps, events, and what is refused."""

import itertools
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.base.tables import EVENTS, TIMELINE
from workbench.costs import Affine, Link, Ring, Tree
from workbench.fusion import DDPBuckets, HorovodFusion, OneMessage, PerTensor
from workbench.timeline import NormalJitter, Scenario, predict, schedule, sweep
from workbench.timeline.queues import last_end
from workbench.timeline.scenario import FIELDS as scenario_fields
from workbench.traces import collectives, iterations


def buckets(ready) -> pd.DataFrame:
    return pd.DataFrame({"n_gradients": 1, "nbytes": 100, "ready_s": np.asarray(ready, float)})


def scenario(**changes) -> Scenario:
    """Gradients of 1000, 2000 and 3000 bytes at 1, 2 and 4 s; a message takes 1 s + 1 ms/byte.

    Per tensor: 1 to 3, 3 to 6, 6 to 10; backward ends at 5, so 5 s are exposed.
    """
    gradients = pd.DataFrame(
        {"name": ["c", "b", "a"], "nbytes": [1000, 2000, 3000], "ready_s": [1.0, 2.0, 4.0]}
    )
    given = {"all_reduce": Affine(Link(1.0, 0.001)), "fusion": PerTensor()}
    base = Scenario(gradients, one_worker_s=10.0, backward_s=5.0, n_workers=2, **given)
    return replace(base, **changes)


def test_a_message_starts_when_its_bucket_is_ready_and_the_last_message_is_over():
    timeline = schedule(buckets([1, 2, 9]), seconds=[3, 1, 1])
    assert timeline["start_s"].tolist() == [1, 4, 9]
    assert timeline["end_s"].tolist() == [4, 5, 10]


def test_a_message_starts_no_earlier_than_the_host_launches_it():
    timeline = schedule(buckets([1, 2, 3]), seconds=1.0, launch_s=[0.5, 7, 6])
    assert timeline["start_s"].tolist() == [1, 7, 8]


def test_a_schedule_has_the_columns_of_a_timeline_and_leaves_its_buckets():
    table = buckets([1, 2])
    before = table.copy(deep=True)
    assert list(schedule(table, [1, 1])) == list(TIMELINE)
    pd.testing.assert_frame_equal(table, before)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(st.tuples(*[st.floats(0, 100)] * 3), min_size=1, max_size=40))
def test_messages_never_overlap_and_never_wait_without_reason(queue):
    ready, launch, seconds = np.array(queue).T
    timeline = schedule(buckets(ready), seconds, launch)
    start, previous = timeline["start_s"].to_numpy(), timeline["end_s"].shift(fill_value=0.0)
    reasons = np.stack([ready, launch, previous])
    assert (start >= reasons).all()
    assert (start == reasons).any(axis=0).all()
    assert last_end(np.maximum(ready, launch), seconds) == pytest.approx(timeline["end_s"].iloc[-1])


def test_prediction_by_hand():
    prediction = predict(scenario())
    assert prediction.timeline["end_s"].tolist() == pytest.approx([3, 6, 10])
    assert prediction.exposed_comm_s == pytest.approx(5)
    assert prediction.iteration_s == pytest.approx(15)
    assert prediction.scaling_factor == pytest.approx(10 / 15)


def test_fusing_saves_latency_and_loses_overlap():
    # one message of 6000 bytes: ready at 4, 7 s long, ends at 11: 6 s exposed
    assert predict(scenario(fusion=OneMessage())).exposed_comm_s == pytest.approx(6)


def test_without_overlap_every_message_waits_for_backward():
    timeline = predict(scenario(overlap=False)).timeline
    assert timeline["start_s"].tolist() == pytest.approx([5, 7, 10])


def test_messages_hidden_behind_backward_cost_nothing():
    assert predict(scenario(all_reduce=Affine(Link(0.1, 0.0)))).scaling_factor == 1


@pytest.mark.parametrize("overlap", [True, False])
def test_one_worker_scales_perfectly_whatever_its_cost_function_says(overlap):
    dear = scenario(n_workers=1, overlap=overlap, all_reduce=lambda nbytes, n: 5.0)
    assert predict(dear).scaling_factor == 1


def test_a_last_gradient_late_by_rounding_exposes_nothing():
    late = scenario(backward_s=4.0 * (1 - 1e-12), n_workers=1)
    assert predict(late).exposed_comm_s == 0


GRID = {
    "fusion": [PerTensor(), OneMessage(), DDPBuckets(1500, 2500)],
    "n_workers": [1, 2, 7, 64],
    "overlap": [True, False],
}
RESULTS = ["iteration_s", "exposed_comm_s", "scaling_factor"]


@pytest.mark.parametrize("order", [list(GRID), list(GRID)[::-1]])
def test_a_sweep_is_one_prediction_a_combination_in_the_order_of_product(order):
    grid = {name: GRID[name] for name in order}
    base = scenario(all_reduce=Ring(Link(0.05, 0.004)))
    table = sweep(base, **grid)
    rows = []
    for values in itertools.product(*grid.values()):
        each = predict(replace(base, **dict(zip(grid, values, strict=True))))
        rows.append((*values, *(getattr(each, name) for name in RESULTS)))
    pd.testing.assert_frame_equal(table, pd.DataFrame(rows, columns=[*grid, *RESULTS]))


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_an_executor_gives_the_same_rows(pool):
    base = scenario(all_reduce=Ring(Link(0.05, 0.004)))
    with pool(2) as executor:
        pd.testing.assert_frame_equal(sweep(base, executor, **GRID), sweep(base, **GRID))


def test_a_sweep_may_vary_times_and_gradients():
    base = scenario()
    table = sweep(base, one_worker_s=[10.0, 20.0], gradients=[base.gradients, base.gradients])
    assert table["scaling_factor"].tolist() == pytest.approx([10 / 15] * 2 + [20 / 25] * 2)


def test_a_sweep_without_a_grid_is_the_prediction():
    assert sweep(scenario()).to_dict("records") == [
        {"iteration_s": 15.0, "exposed_comm_s": 5.0, "scaling_factor": pytest.approx(10 / 15)}
    ]


def test_a_one_worker_time_in_milliseconds_is_warned_of():
    # 5 of 10 000 is 0.05 %
    with pytest.warns(UserWarning, match="another unit: backward takes only 0.05 % of it"):
        scenario(one_worker_s=10_000.0)


def test_a_sweep_warns_of_it_once():
    with pytest.warns(UserWarning, match="another unit: backward takes only 0.05 % of it") as told:
        sweep(scenario(), one_worker_s=[10.0, 10_000.0, 20_000.0])
    assert len(told) == 1


def test_a_short_backward_is_taken_as_it_is():
    # 5 of 2 000 is 0.25 %; of milliseconds as s it were 0.1 % at most
    assert scenario(one_worker_s=2000.0).one_worker_s == 2000.0


def test_a_scenario_reads_in_three_lines():
    assert repr(scenario(fusion=DDPBuckets(1500, 2500))).splitlines() == [
        "Scenario: 3 gradients, 5.86 KiB; 2 workers, T1 10.0 s, backward 5.00 s",
        "  all_reduce Affine: alpha 1e+06 us per hop, bandwidth 1e-06 GB/s moved",
        f"  fusion {DDPBuckets(1500, 2500)!r}",
    ]


def test_a_scenario_says_when_nothing_overlaps():
    assert "1 worker, T1 10.0 s, backward 5.00 s, no overlap\n" in repr(
        scenario(overlap=False, n_workers=1)
    )


def test_a_prediction_reads_in_two_lines():
    # by hand: 5 s exposed after 10 s, three messages
    assert repr(predict(scenario())).splitlines() == [
        "Prediction: scaling factor 0.667 on 2 workers",
        "  iteration 15.0 s, exposed communication 5.00 s, 3 messages",
    ]


def test_predicted_events_have_the_columns_and_types_of_events():
    events = predict(scenario()).to_events()
    whole = {"rank": "Int64", "nbytes": "Int64", "n_workers": "Int64"}
    whole |= dict.fromkeys(["stream", "thread", "iteration", "correlation"], "int64")
    text = dict.fromkeys(["kind", "op", "name", "group"], "str")
    types = whole | text | {"start_s": "float64", "end_s": "float64"}
    assert events.dtypes.astype(str).to_dict() == types and list(events) == list(EVENTS)


@pytest.mark.parametrize("n_workers", [1, 2])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("policy", GRID["fusion"])
def test_a_predicted_iteration_measures_as_predicted(policy, overlap, n_workers):
    prediction = predict(scenario(fusion=policy, overlap=overlap, n_workers=n_workers))
    measured = iterations(prediction.to_events()).squeeze()
    assert measured["exposed_comm_s"] == pytest.approx(prediction.exposed_comm_s)
    assert measured["duration_s"] == pytest.approx(prediction.iteration_s)
    assert measured["compute_s"] == pytest.approx(prediction.scenario.one_worker_s)


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_coding_within_backward_measures_as_predicted(micro_batches):
    # 1.5 of the 2 s besides are within the last backward, which leaves 0.5 s idle before it
    passes = {"one_worker_s": 4.0 * micro_batches, "micro_batches": micro_batches}
    prediction = predict(scenario(backward_s=5.5, fixed_s=2.0, **passes))
    measured = iterations(prediction.to_events()).squeeze()
    assert measured["duration_s"] == pytest.approx(prediction.iteration_s)
    assert measured["exposed_comm_s"] == pytest.approx(prediction.exposed_comm_s)
    assert measured["compute_s"] == pytest.approx(4.0 * micro_batches + 1.5)
    assert measured["idle_s"] == pytest.approx(0.5)


def test_predicted_messages_measure_as_scheduled():
    prediction = predict(scenario())
    found = collectives(prediction.to_events())
    assert found["nbytes"].tolist() == [1000, 2000, 3000]
    # backward begins at 10 - 5 s of the iteration
    assert (found["start_s"] - 5).tolist() == pytest.approx([1, 3, 6])
    assert (found["ready_s"] - 5).tolist() == pytest.approx(prediction.timeline["ready_s"].tolist())
    again = schedule(
        prediction.timeline, found["end_s"] - found["start_s"], found["launch_s"].to_numpy() - 5
    )
    assert again["start_s"].tolist() == pytest.approx(prediction.timeline["start_s"].tolist())
    assert found["n_workers"].tolist() == [2, 2, 2]


def test_accumulated_micro_batches_share_one_exposed_time():
    # the last of two passes sends: 5 s exposed beside 10 s as before
    assert predict(scenario(micro_batches=2)).iteration_s == pytest.approx(15)


def test_two_streams_by_hand():
    # transfers of 2, 4 and 6 s, no latency: 0 alone from 1 to 2 (1 s done), then with 1 at half
    # speed until 4; 2 starts at 4 behind 0, beside 1 (3 s left) until 10, and ends at 13
    table = predict(scenario(n_streams=2, all_reduce=Affine(Link(0.0, 0.002)))).timeline
    assert table["start_s"].tolist() == pytest.approx([1, 2, 4])
    assert table["end_s"].tolist() == pytest.approx([4, 10, 13])


def test_a_slowdown_by_hand():
    # f = 1: message 0 from 1 to 3, in which 1 s of work is done: gradient 1 is ready at 3, message
    # 1 from 3 to 6; work is at 3.5 then, so gradient 2 is ready at 6.5, message 2 ends at 10.5;
    # the last second of backward takes two of them, until 8.5
    prediction = predict(scenario(slowdown=1.0))
    assert prediction.timeline["ready_s"].tolist() == pytest.approx([1, 3, 6.5])
    assert prediction.timeline["start_s"].tolist() == pytest.approx([1, 3, 6.5])
    assert prediction.slowed_s == pytest.approx(3.5)
    assert prediction.exposed_comm_s == pytest.approx(2)
    assert prediction.iteration_s == pytest.approx(15.5)


def test_nothing_is_slowed_without_overlap():
    prediction = predict(scenario(slowdown=1.0, overlap=False))
    assert prediction.slowed_s == 0 and prediction.iteration_s == pytest.approx(10 + 2 + 3 + 4)


def test_waiting_for_the_host_after_backward_is_idle_and_not_communication():
    # the last message is launched at 8: nothing runs from 6 to 8, it ends at 12
    prediction = predict(scenario(launch_s=[0.0, 0.0, 8.0]))
    assert prediction.idle_s == pytest.approx(2)
    assert prediction.exposed_comm_s == pytest.approx(1 + 4)
    assert prediction.iteration_s == pytest.approx(17)


def test_jitter_and_fixed_time_come_on_top_for_two_workers_or_more():
    changes = {"jitter": lambda n: 0.1 * (n - 1), "fixed_s": 0.5}
    assert predict(scenario(**changes)).iteration_s == pytest.approx(15 + 0.1 + 0.5)
    assert predict(scenario(n_workers=1, **changes)).iteration_s == 10


def test_a_prediction_tells_what_it_adds():
    words = repr(predict(scenario(slowdown=1.0, jitter=lambda n: 0.25))).splitlines()[1]
    assert words.endswith("exposed communication 2.00 s, slowed 3.50 s, jitter 250 ms, 3 messages")


FIELDS = {
    "gradients": [scenario().gradients, scenario().gradients.assign(ready_s=[0.0, 3.0, 3.5])],
    "one_worker_s": [10.0, 20.0],
    "backward_s": [4.5, 5.0],
    "n_workers": [1, 3, 8],
    "all_reduce": [Ring(Link(0.05, 0.004)), Tree(Link(0.1, 0.001)), lambda nbytes, n: nbytes / n],
    "fusion": [PerTensor(), OneMessage(), HorovodFusion(cycle_s=1.0)],
    "overlap": [True, False],
    "micro_batches": [1, 2],
    "n_streams": [1, 2],
    "slowdown": [0.0, 0.3],
    "jitter": [None, NormalJitter(0.1)],
    "launch_s": [0.0, 7.0],
    "fixed_s": [0.0, 0.5],
}


@pytest.mark.all
@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(FIELDS, 2)))
def test_a_sweep_over_any_two_fields_is_what_predict_says(first, second):
    base = scenario(all_reduce=Ring(Link(0.05, 0.004)), n_workers=4, slowdown=0.1, launch_s=2.0)
    table = sweep(base, **{first: FIELDS[first], second: FIELDS[second]})
    pairs = itertools.product(FIELDS[first], FIELDS[second])
    each = [predict(replace(base, **{first: a, second: b})) for a, b in pairs]
    for name in RESULTS:
        expected = [getattr(prediction, name) for prediction in each]
        assert table[name].tolist() == pytest.approx(expected)


def test_every_field_of_a_scenario_is_swept_and_checked():
    names = [field.name for field in fields(Scenario)]
    assert sorted(FIELDS) == sorted(names) == sorted(scenario_fields)


def test_a_million_workers_are_one_number_of_workers():
    table = sweep(scenario(all_reduce=Ring(Link(0, 1e-3))), n_workers=[1, 1_000, 1_000_000])
    # a ring moves at most twice the bytes: 2, 4 and 6 s, one after another from 1 s on
    assert table["exposed_comm_s"].tolist() == pytest.approx([0, 8, 8], abs=0.02)


def test_one_worker_sends_no_message():
    events = predict(scenario(n_workers=1)).to_events()
    assert (events["kind"] != "comm").all()
