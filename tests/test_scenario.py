"""What a Scenario adds to the plain model: how it reads, and what it refuses."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from test_timeline import scenario

from workbench.costs import Adjusted, Affine, Interpolated, Link, Ring
from workbench.fusion import FixedBuffer, HorovodFusion, policies
from workbench.timeline import NormalJitter, Scenario, predict
from workbench.timeline.scenario import _POLICIES, host_launches, seconds_alone, seconds_late


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
            "launch times, 250 ms fixed"
        )
    )


def test_many_micro_batches_leave_a_short_backward_without_a_warning():
    # backward is 1 % of T1, but there are 50 of them
    assert scenario(one_worker_s=500.0, micro_batches=50).micro_batches == 50


def test_a_policy_with_a_clock_tells_its_launches():
    policy = HorovodFusion(threshold_bytes=2**20, cycle_s=1.5, version="0.20.3")
    launched = predict(scenario(fusion=policy)).timeline
    assert (launched["start_s"] >= launched["launch_s"]).all()
    assert host_launches(launched, 2.0).tolist() == np.maximum(launched["launch_s"], 2).tolist()


@pytest.mark.parametrize("given", [1e-3, [1e-3, 1e-3], pd.Series([1e-3, 1e-3], index=[7, 7])])
def test_a_cost_may_be_one_time_or_a_list(given):
    assert seconds_alone(lambda nbytes, n: given, [8, 9], 2).tolist() == [1e-3, 1e-3]


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
        ({"all_reduce": Adjusted(Ring(Link(5e-6, 12.5e9)))}, "beta is in s per byte"),
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
    read = "  all_reduce Ring: alpha 3.48 us per hop, bandwidth 346 GB/s moved"
    assert repr(resnet_like(all_reduce=Ring(link))).splitlines()[1] == read
    changed = Adjusted(Ring(link), compression=4.0)
    assert (
        repr(resnet_like(all_reduce=changed)).splitlines()[1] == f"{read}; adjusted: compression=4"
    )
    long = Interpolated(
        pd.DataFrame({"n_workers": [2, 2], "nbytes": [1, 9], "seconds": [1e-5] * 2})
    )
    assert len(repr(resnet_like(all_reduce=long)).splitlines()[1]) <= 101
