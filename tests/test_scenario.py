"""What a Scenario adds to the plain model: how it reads, and what it refuses."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from test_timeline import scenario

from workbench.costs import Adjusted, Affine, Interpolated, Link, Ring
from workbench.fusion import FixedBuffer, HorovodFusion, policies
from workbench.timeline import NormalJitter, Scenario, predict, sweep
from workbench.timeline import Scenario as OfTimeline
from workbench.timeline.scenario import _POLICIES, host_launches, seconds_alone, seconds_late


def test_a_scenario_is_the_same_wherever_it_is_imported_from():
    assert OfTimeline is Scenario


def test_every_policy_is_known_when_it_changes_places_with_its_cost():
    known = {
        value
        for value in vars(policies).values()
        if dataclasses.is_dataclass(value) and "__call__" in vars(value)
    }
    assert set(_POLICIES) == known


def test_a_scenario_says_what_it_adds_to_the_plain_model():
    rich = scenario(
        micro_batches=2,
        n_streams=3,
        slowdown=0.125,
        jitter=NormalJitter(0.1),
        launch_s=1.0,
        fixed_s=0.25,
    )
    assert (
        repr(rich)
        .splitlines()[0]
        .endswith(
            "backward 5.00 s, 2 micro-batches, 3 streams, compute slowed by 12.5 %, jitter, "
            "launch times, 250 ms besides"
        )
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"micro_batches": 0}, "micro_batches: expected one whole number from 1 up, got 0"),
        ({"micro_batches": 1.5}, "micro_batches: expected one whole number from 1 up, got 1.5"),
        ({"micro_batches": True}, "micro_batches: .*got True; write micro_batches=2"),
        ({"micro_batches": 3}, "at most one_worker_s, 10 s for each of 3 micro-batches; got 5, "),
        ({"n_streams": 0}, "n_streams: expected one whole number from 1 up, got 0"),
        ({"n_streams": "2"}, "n_streams: expected one whole number from 1 up, got '2'"),
        ({"n_streams": np.inf}, "n_streams: expected one whole number from 1 up, got inf"),
        ({"slowdown": -0.1}, "slowdown: expected finite numbers from 0 up, got -0.1"),
        ({"slowdown": None}, r"slowdown: .*got None; .*fit_slowdown\(run\).factor - 1"),
        ({"fixed_s": np.nan}, "fixed_s: expected finite numbers from 0 up, got nan"),
        ({"fixed_s": [1.0]}, "fixed_s: expected one finite number from 0 up, got list; give it"),
        ({"jitter": 0.1}, r"jitter: expected a callable, got 0.1; write NormalJitter\(std_s\)"),
        ({"jitter": NormalJitter}, r"jitter: got the class NormalJitter; write NormalJitter"),
        ({"launch_s": np.nan}, "launch_s: expected finite s since backward began, .*; got nan"),
        ({"launch_s": "1"}, "launch_s: expected finite s since backward began, .*; got '1'"),
        ({"launch_s": [1.0, pd.NA]}, "launch_s: expected finite s since backward began, .*; got"),
        ({"launch_s": True}, "launch_s: expected finite s since backward began, .*; got True"),
        ({"all_reduce": FixedBuffer(2**20)}, "expected all_reduce a cost and fusion a policy"),
    ],
)
def test_a_field_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        scenario(**changes)
    (name,) = changes
    if name not in ("all_reduce", "micro_batches"):
        with pytest.raises(ValueError, match=message):
            sweep(scenario(), **{name: [changes[name]]})


def test_as_many_launches_as_buckets_are_expected():
    with pytest.raises(ValueError, match="launch_s: expected one number or 3, .*; got 2"):
        predict(scenario(launch_s=[1.0, 2.0]))
    with pytest.raises(ValueError, match="launch_s: expected one number or 3, .*; got 2"):
        sweep(scenario(), launch_s=[[1.0, 2.0]])


def test_a_sweep_names_the_combination_whose_times_cannot_be():
    # 5 s of backward thrice is 15 s, beyond 10 s but not beyond 20 s
    with pytest.raises(ValueError, match="at most one_worker_s, 10 s for each of 3 micro-batches"):
        sweep(scenario(), micro_batches=[1, 3], one_worker_s=[20.0, 10.0])
    assert len(sweep(scenario(), micro_batches=[1, 3], one_worker_s=[20.0, 15.0])) == 4


def test_many_micro_batches_leave_a_short_backward_without_a_warning():
    # backward is 1 % of T1, but there are 50 of them
    assert scenario(one_worker_s=500.0, micro_batches=50).micro_batches == 50


def test_a_policy_with_a_clock_tells_its_launches():
    policy = HorovodFusion(threshold_bytes=2**20, cycle_s=1.5, version="0.20.3")
    launched = predict(scenario(fusion=policy)).timeline
    assert (launched["start_s"] >= launched["launch_s"]).all()
    assert host_launches(launched, 2.0).tolist() == np.maximum(launched["launch_s"], 2).tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (-1.0, "expected finite s from 0 up, got -1"),
        (np.inf, "got inf"),
        (None, "got None"),
        ("1", "got '1'; write it without quotes"),
        (np.array([1j, 1]), "got complex"),
        (np.array([True, True]), "got True"),
        (np.ones(3), r"one time, or times of shape \(2,\); got shape \(3,\)"),
        (np.ones((2, 2)), r"of shape \(2,\); got shape \(2, 2\)"),
    ],
)
def test_a_cost_or_a_jitter_that_is_no_time_is_refused(given, message):
    with pytest.raises(ValueError, match=f"all_reduce: what <lambda> gave: .*{message}"):
        seconds_alone(lambda nbytes, n: given, [8, 9], 2)
    with pytest.raises(ValueError, match=f"jitter: what <lambda> gave: .*{message}"):
        seconds_late(lambda n: given, [2, 3])


@pytest.mark.parametrize("given", [1e-3, [1e-3, 1e-3], pd.Series([1e-3, 1e-3], index=[7, 7])])
def test_a_cost_may_be_one_time_or_a_list(given):
    assert seconds_alone(lambda nbytes, n: given, [8, 9], 2).tolist() == [1e-3, 1e-3]


@pytest.mark.parametrize("launch_s", [np.zeros((1, 2)), {0: 1.0}, []])
def test_launches_are_a_flat_list(launch_s):
    with pytest.raises(ValueError, match="launch_s: expected finite s since backward began"):
        scenario(launch_s=launch_s)


def test_a_time_of_half_the_precision_is_predicted_in_full():
    found = predict(scenario(one_worker_s=np.float32(10.0), launch_s=1e-7))
    assert isinstance(found.iteration_s, float) and isinstance(found.scaling_factor, float)


def test_a_lone_worker_waits_for_nobody():
    assert seconds_late(lambda n: 1.0 + 0 * n, [1, 2]).tolist() == [0, 1]
    assert seconds_alone(lambda nbytes, n: 1.0, 8, [1, 2]).tolist() == [0, 1]


def resnet_like(**changes) -> Scenario:
    """32 gradients of 2 MB over 60 ms of a backward within 90 ms, 12.5 GB/s between two."""
    ready = np.linspace(4e-3, 60e-3, 32)
    table = pd.DataFrame({"name": [str(k) for k in range(32)], "nbytes": 2_000_000})
    given = {"all_reduce": Ring(Link(5e-6, 8e-11)), "fusion": FixedBuffer(2**25)}
    given |= {"one_worker_s": 90e-3, "backward_s": 60e-3, "n_workers": 8}
    return Scenario(**{"gradients": table.assign(ready_s=ready)} | given | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"one_worker_s": 90.0, "backward_s": 60.0}, "backward_s may .* only 0.1 % of it"),
        ({"all_reduce": Ring(Link(5.0, 8e-11))}, "empty message of 2 workers takes 10.0 s"),
        ({"all_reduce": Ring(Link(5e-6, 12.5e9))}, "takes? 2 workers 8e.17 s.*1/bandwidth"),
        ({"all_reduce": Adjusted(Ring(Link(5e-6, 12.5e9)))}, "beta, is in s a byte"),
        (
            {"gradients": resnet_like().gradients.assign(nbytes=4)},
            "nbytes may be in another unit: 32 have 128 bytes in all",
        ),
    ],
)
def test_what_may_be_in_another_unit_is_warned_of(changes, message):
    with pytest.warns(UserWarning, match=message):
        resnet_like(**changes)


def test_an_example_with_round_numbers_is_not_doubted():
    table = pd.DataFrame({"name": [*"abcdefghij"], "nbytes": 10, "ready_s": np.arange(1.0, 11)})
    found = predict(Scenario(table, 20.0, 10.0, 2, Affine(Link(100.0, 1.0)), FixedBuffer(100)))
    assert found.exposed_comm_s == 200


def test_a_slow_link_alone_is_not_doubted():
    # 1 Mbit/s and 20 ms a hop: bad, but there are such links
    assert predict(resnet_like(all_reduce=Ring(Link(20e-3, 8e-6)))).scaling_factor < 0.001


def test_a_cost_reads_by_its_prices():
    link = Link(3.480317467818737e-06, 2.8897937295232575e-12)
    read = "  all_reduce Ring: alpha 3.48 us a hop, bandwidth 346 GB/s moved"
    assert repr(resnet_like(all_reduce=Ring(link))).splitlines()[1] == read
    changed = Adjusted(Ring(link), compression=4.0)
    assert (
        repr(resnet_like(all_reduce=changed)).splitlines()[1] == f"{read}; adjusted: compression=4"
    )
    long = Interpolated(
        pd.DataFrame({"n_workers": [2, 2], "nbytes": [1, 9], "seconds": [1e-5] * 2})
    )
    assert len(repr(resnet_like(all_reduce=long)).splitlines()[1]) <= 101
