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
from workbench.fits import fit_all_reduce
from workbench.fusion import DDPBuckets, HorovodFusion, OneMessage, PerTensor
from workbench.timeline import NormalJitter, Scenario, predict, schedule, sweep
from workbench.timeline.queues import last_end
from workbench.timeline.scenario import FIELDS as scenario_fields
from workbench.traces import collectives, iterations

repeatable = settings(deadline=None, derandomize=True)


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


QUEUES = st.lists(st.tuples(*[st.floats(0, 100)] * 3), min_size=1, max_size=40)


@repeatable
@given(QUEUES)
def test_the_last_end_equals_the_closed_form(queue):
    ready, launch, seconds = np.array(queue).T
    end = schedule(buckets(ready), seconds, launch)["end_s"].iloc[-1]
    assert last_end(np.maximum(ready, launch), seconds) == pytest.approx(end)


@repeatable
@given(QUEUES)
def test_messages_never_overlap_and_never_wait_without_reason(queue):
    ready, launch, seconds = np.array(queue).T
    timeline = schedule(buckets(ready), seconds, launch)
    start, previous = timeline["start_s"].to_numpy(), timeline["end_s"].shift(fill_value=0.0)
    reasons = np.stack([ready, launch, previous])
    assert (start >= reasons).all()
    assert (start == reasons).any(axis=0).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seconds": [1, 1, 1]}, "seconds: expected one number or 2, one a bucket; got 3"),
        ({"seconds": [1, np.nan]}, "seconds: expected finite s; got nan"),
        ({"seconds": [1, -1]}, "seconds: expected costs from 0 s up, got -1"),
        ({"launch_s": pd.array([1, pd.NA])}, "launch_s: expected finite s"),
        ({"buckets": buckets([1, np.inf])}, "ready_s of buckets: expected finite s"),
        ({"buckets": buckets([1, 2]).drop(columns="nbytes")}, "missing column nbytes"),
    ],
)
def test_a_schedule_refuses_times_that_cannot_be(changed, message):
    with pytest.raises(ValueError, match=message):
        schedule(**({"buckets": buckets([1, 2]), "seconds": [1, 1]} | changed))


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


@pytest.mark.parametrize("order", list(itertools.permutations(GRID)))
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


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (
            {"workers": [1, 2]},
            "gradients, .*n_workers, .*overlap, .*fixed_s; got 'workers'",
        ),
        ({"n_workers": 8}, r"n_workers: expected a list of values, got 8; write n_workers=\["),
        ({"n_workers": "8"}, "n_workers: expected a list of values, got '8'"),
        ({"n_workers": None}, "n_workers: expected a list of values, got None"),
        ({"n_workers": ["8", 16]}, "n_workers: expected whole numbers from 1 up, got '8'"),
        ({"n_workers": [True, 2]}, "n_workers: expected whole numbers from 1 up, got True"),
        ({"n_workers": [None]}, "n_workers: expected whole numbers from 1 up, got None"),
        ({"n_workers": [2.5]}, "n_workers: expected whole numbers from 1 up, got 2.5"),
        ({"n_workers": [[1, 2]]}, "n_workers: expected a flat list"),
        ({"fusion": PerTensor()}, "fusion: expected a list of values, got PerTensor"),
        ({"fusion": [DDPBuckets]}, r"fusion: got the class DDPBuckets; write DDPBuckets\(\)"),
        (
            {"gradients": scenario().gradients},
            "gradients: expected a list of values, got DataFrame",
        ),
        ({"n_workers": []}, "n_workers: expected at least one value"),
        ({"n_workers": [1, 0]}, "n_workers: expected whole numbers from 1 up, got 0"),
        ({"backward_s": [5.0, 50.0]}, "backward_s: expected at most one_worker_s"),
    ],
)
def test_a_sweep_refuses_what_a_scenario_does_not_know(grid, message):
    with pytest.raises(ValueError, match=message):
        sweep(scenario(), **grid)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"one_worker_s": 0.0}, "one_worker_s: expected s above 0"),
        ({"one_worker_s": np.nan}, "one_worker_s: expected s above 0, got nan"),
        ({"backward_s": 10.1}, "backward_s: expected at most one_worker_s, 10 s; got 10.1"),
        ({"backward_s": 12, "fixed_s": 1.5}, "10 s, and fixed_s, 1.5 s; got 12, which is 0.5 s lo"),
        ({"backward_s": 3.9}, "backward_s: expected the last gradient's ready time, 4 s"),
        ({"backward_s": np.nan}, "backward_s: expected .*got nan"),
        ({"n_workers": 0}, "n_workers: expected whole numbers from 1 up, got 0"),
        ({"n_workers": 2.5}, "n_workers: expected whole numbers from 1 up, got 2.5"),
        ({"n_workers": [2, 4]}, "n_workers: expected one number; use sweep"),
        ({"one_worker_s": 1e9 / 3, "backward_s": 1e9}, "3.33333e.08 s; got 1e.09"),
        ({"n_workers": "8"}, "n_workers: expected whole numbers from 1 up, got '8'; write it with"),
        ({"n_workers": True}, "n_workers: expected whole numbers from 1 up, got True"),
        ({"n_workers": None}, "n_workers: expected whole numbers from 1 up, got None"),
        ({"overlap": "no"}, "overlap: expected True or False, got 'no'"),
        ({"all_reduce": 1e-3}, "all_reduce: expected a callable, got 0.001; write Ring.Link.alpha"),
        (
            {"all_reduce": Ring},
            r"all_reduce: got the class Ring; write Ring\(Link\(alpha, beta\)\)",
        ),
        (
            {"all_reduce": Link},
            r"all_reduce: got the class Link; write Ring\(Link\(alpha, beta\)\)",
        ),
        ({"all_reduce": Link(0, 0)}, "all_reduce: expected a callable, got Link; write Ring"),
        ({"fusion": "ddp"}, r"fusion: expected a callable, got 'ddp'; write DDPBuckets\(\)"),
        ({"fusion": DDPBuckets}, r"fusion: got the class DDPBuckets; write DDPBuckets\(\)"),
        ({"fusion": Ring(Link(0, 0))}, "fusion a policy, got Affine and Ring; name the two: all"),
        ({"all_reduce": DDPBuckets()}, "fusion a policy, got DDPBuckets and PerTensor; name the"),
        ({"one_worker_s": 5.0, "backward_s": 5.0000001}, "5 s; got 5, which is 1e-07 s longer"),
    ],
)
def test_a_scenario_refuses_what_cannot_be(changes, message):
    with pytest.raises(ValueError, match=message):
        scenario(**changes)


@pytest.mark.parametrize(
    "value", [pd.Series([10.0]), pd.DataFrame({"s": [10.0]}), "10", None, True]
)
@pytest.mark.parametrize(
    ("name", "advice"), [("one_worker_s", r"\['duration_s'\].median"), ("backward_s", "ready_s")]
)
def test_a_time_is_one_number_and_never_a_table(name, advice, value):
    with pytest.raises(ValueError, match=f"^{name}: expected one number of s, got [^\n]*{advice}"):
        scenario(**{name: value})


def test_a_fit_in_place_of_its_cost_is_told_to_pass_the_model():
    table = pd.DataFrame({"op": "all_reduce", "n_workers": 4, "n_nodes": 1, "nbytes": [1e3, 1e6]})
    fit = fit_all_reduce(table.assign(seconds=[1e-3, 2e-3]))
    with pytest.raises(ValueError, match="^all_reduce: .*got Fit; pass fit.model$"):
        scenario(all_reduce=fit)


@pytest.mark.parametrize("step", [predict, sweep])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (scenario().gradients, "expected a Scenario, got DataFrame; build one: Scenario"),
        (predict(scenario()), "expected a Scenario, got Prediction; pass prediction.scenario"),
        (Scenario, "expected a Scenario, got the class Scenario; build one"),
    ],
)
def test_what_is_no_scenario_is_named_by_its_type(step, given, message):
    with pytest.raises(ValueError, match=f"^{step.__name__}: {message}"):
        step(given)


def test_a_grid_without_its_name_is_no_executor():
    with pytest.raises(ValueError, match=r"executor: .*got range; .*n_workers=\[1, 2, 4\]"):
        sweep(scenario(), range(1, 9))


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
        "  all_reduce Affine: alpha 1e+06 us a hop, bandwidth 1e-06 GB/s moved",
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


def test_a_scenario_refuses_gradients_without_sizes():
    unknown = scenario().gradients.assign(nbytes=pd.array([100, pd.NA, 300]))
    with pytest.raises(ValueError, match="pass a model table"):
        scenario(gradients=unknown)


@pytest.mark.parametrize("seconds", [-1.0, np.nan, np.inf])
def test_a_cost_that_is_no_time_is_refused(seconds):
    with pytest.raises(ValueError, match="all_reduce: what <lambda> gave: expected finite s"):
        predict(scenario(all_reduce=lambda nbytes, n: np.full(np.shape(nbytes), seconds)))


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
