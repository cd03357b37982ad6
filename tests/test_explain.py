"""The stepper: which branch of the maximum won at each bucket, and what it cost."""

import numpy as np
import pandas as pd
import pytest
from test_timeline import scenario

from workbench.costs import Affine, Link
from workbench.fusion import OneMessage, PerTensor
from workbench.timeline import Scenario, predict
from workbench.timeline.explain import EXPLANATION


def explained(**changes):
    return predict(scenario(**changes)).explain()


def test_every_bucket_by_hand():
    # ready at 1, 2, 4; messages 1 to 3, 3 to 6, 6 to 10; backward ends at 5
    table = explained()
    assert list(table) == list(EXPLANATION)
    assert table["branch"].tolist() == ["ready", "previous", "previous"]
    assert table["previous_end_s"].tolist() == pytest.approx([-np.inf, 3, 6])
    assert table["waited_s"].tolist() == pytest.approx([0, 1, 2])
    assert table["seconds"].tolist() == pytest.approx([2, 3, 4])
    assert table["exposed_s"].tolist() == pytest.approx([0, 1, 4])
    assert table["critical"].all()
    assert table["shared_s"].tolist() == pytest.approx([0, 0, 0])


@pytest.mark.parametrize("unit", [1e-12, 1e12])
def test_the_unit_of_time_does_not_matter(unit):
    table = scenario().gradients
    table = table.assign(ready_s=table["ready_s"] * unit)
    cost = Affine(Link(1.0 * unit, 1e-3 * unit))
    times = {"one_worker_s": 10 * unit, "backward_s": 5 * unit}
    found, plain = explained(gradients=table, all_reduce=cost, **times), explained()
    assert found["branch"].tolist() == plain["branch"].tolist()
    assert found["critical"].tolist() == plain["critical"].tolist()
    assert (found["exposed_s"] / unit).tolist() == pytest.approx(plain["exposed_s"].tolist())


def test_the_words_tell_the_branch_its_cost_and_what_is_exposed():
    assert explained()["why"].tolist() == [
        "message 0, 1000 B: starts at 1.00 s, as soon as its last gradient is ready; takes 2.00 s; "
        "all of it hidden (critical)",
        "message 1, 1.95 KiB: starts at 3.00 s, when message 0 ends, 1.00 s after it is ready; "
        "takes 3.00 s; 1.00 s of it exposed (critical)",
        "message 2, 2.93 KiB: starts at 6.00 s, when message 1 ends, 2.00 s after it is ready; "
        "takes 4.00 s; 4.00 s of it exposed (critical)",
    ]


def test_only_the_buckets_on_the_last_busy_stretch_are_critical():
    # 1.6 s each: 1 to 2.6, 2.6 to 4.2, 4.2 to 5.8; with 1.2 s each the last starts when ready
    assert explained(all_reduce=Affine(Link(1.6, 0.0)))["critical"].tolist() == [True] * 3
    free_before = explained(all_reduce=Affine(Link(1.2, 0.0)))
    assert free_before["critical"].tolist() == [False, False, True]


def test_nothing_is_critical_when_all_is_hidden():
    assert not explained(all_reduce=Affine(Link(0.1, 0.0)))["critical"].any()


def test_a_message_that_waits_for_the_host_says_so():
    row = explained(fusion=OneMessage(), launch_s=4.5).iloc[0]
    assert row["branch"] == "launch" and row["waited_s"] == pytest.approx(0.5)
    assert "when the host launches it, 500 ms after it is ready" in row["why"]


def test_without_overlap_the_end_of_backward_is_the_launch():
    table = explained(overlap=False)
    assert table["branch"].tolist() == ["launch", "previous", "previous"]


def test_several_queues_tell_what_sharing_costs():
    table = explained(all_reduce=Affine(Link(1.0, 0.002)), n_streams=3)
    took = table["end_s"] - table["start_s"]
    assert (table["shared_s"] > 0).any()
    assert took.tolist() == pytest.approx((table["seconds"] + table["shared_s"]).tolist())
    shared = table[table["shared_s"] > 0]
    assert shared["why"].str.contains("because it shares the link").all()


def test_the_critical_chain_accounts_for_the_whole_exposed_time():
    table = explained()
    first = table[table["critical"]].iloc[0]
    end = first["start_s"] + table.loc[table["critical"], "seconds"].sum()
    assert end - 5 == pytest.approx(predict(scenario()).exposed_comm_s)


def test_rounding_is_no_sharing_of_the_link(rng):
    ready_s = np.cumsum(rng.random(50))
    table = pd.DataFrame({"name": "g", "nbytes": rng.integers(1, 9**9, 50), "ready_s": ready_s})
    cost = Affine(Link(1e-3, 1e-9))
    alone = Scenario(table, 2 * ready_s[-1], ready_s[-1], 2, cost, PerTensor())
    assert (predict(alone).explain()["shared_s"] == 0).all()
