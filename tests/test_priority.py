"""Priority scheduling: by hand, against a clock of whole seconds, and what it can never do."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from workbench import MIB
from workbench.costs import Affine, Link, Ring
from workbench.fusion import DDPBuckets, OneMessage, PerTensor, Plan
from workbench.timeline import NormalJitter, Scenario, predict
from workbench.whatif import predict_priority


def scenario(**changes) -> Scenario:
    """Gradients c, b and a of 4, 1 and 1 MiB at 1, 2 and 4 s; a message takes 1 s a MiB.

    Backward ends at 5 and forward takes 5 more. In one queue: 1 to 5, 5 to 6, 6 to 7.
    """
    gradients = pd.DataFrame(
        {"name": ["c", "b", "a"], "nbytes": [4 * MIB, MIB, MIB], "ready_s": [1.0, 2.0, 4.0]}
    )
    given = {"all_reduce": Affine(Link(0.0, 1 / MIB)), "fusion": PerTensor()}
    base = Scenario(gradients, one_worker_s=10.0, backward_s=5.0, n_workers=2, **given)
    return replace(base, **changes)


FORWARD_S = [2.0, 1.0, 2.0]  # of c, b and a; forward runs a, b, c


def test_the_layers_that_forward_needs_first_overtake_at_the_end_of_a_piece():
    found = predict_priority(scenario(), piece_bytes=2 * MIB, forward_s=FORWARD_S)
    # c from 1 to 3, then b to 4 and a to 5, then the rest of c to 7: forward of a waits until 5,
    # as long as backward, and c's at 8 finds its gradient there
    assert found.timeline["start_s"].tolist() == [1, 3, 4]
    assert found.timeline["end_s"].tolist() == [7, 4, 5]
    assert found.timeline["forward_start_s"].tolist() == [8, 7, 5]
    assert (found.iteration_s, found.exposed_comm_s, found.scaling_factor) == (10, 0, 1)


def test_a_message_under_way_is_not_interrupted():
    found = predict_priority(scenario(), piece_bytes=4 * MIB, forward_s=FORWARD_S)
    # c from 1 to 5, then a to 6 and b to 7: forward of a waits for 1 s after backward
    assert found.timeline["end_s"].tolist() == [5, 7, 6]
    assert found.iteration_s == 11
    assert predict(scenario()).iteration_s == 12  # one queue waits for all three


def test_forward_is_shared_as_backward_is_unless_it_is_given():
    # backward takes 1, 1 and 3 s (to its end) of 5, so forward's 5 s are 1, 1 and 3
    found = predict_priority(scenario()).timeline
    forward_s = found["forward_end_s"] - found["forward_start_s"]
    assert forward_s.tolist() == pytest.approx([1, 1, 3])


def test_compute_that_no_forward_accounts_for_hides_nothing():
    # as in the second test, but forward is all over before c's message could matter
    found = predict_priority(scenario(), piece_bytes=4 * MIB, forward_s=[0.0, 0.0, 0.0])
    assert found.exposed_comm_s == 2  # the last message ends at 7


def test_fused_messages_are_cut_and_ordered_like_gradients():
    # c and b together, 5 MiB, are ready at 2: pieces of 2 MiB to 4, then a to 5, the rest to 8;
    # forward of a, 2 s, from 5, then that of both, 3 s, waits for 8
    run = scenario(fusion=Plan(counts=(2, 1)))
    found = predict_priority(run, 2 * MIB, FORWARD_S, fused=True)
    assert found.timeline["end_s"].tolist() == [8, 5]
    assert found.timeline["forward_end_s"].tolist() == [11, 7]
    assert found.iteration_s == 11


def test_a_fused_message_of_another_type_goes_when_it_is_ready():
    # a and c in one message, ready last; b, sent second by the policy, is ready before it
    run = scenario()
    mixed = run.gradients.assign(dtype=["float", "half", "float"])
    run = replace(run, gradients=mixed, fusion=DDPBuckets(16 * MIB, 16 * MIB))
    found = predict_priority(run, 8 * MIB, FORWARD_S, fused=True)
    table = found.timeline
    assert table["name"].tolist() == ["message 1", "message 0"]
    assert table["ready_s"].is_monotonic_increasing
    assert table["start_s"].iloc[0] == table["ready_s"].iloc[0] == mixed["ready_s"].iloc[1]


def test_one_fused_message_is_the_queue_itself():
    run = scenario(fusion=OneMessage())
    found = predict_priority(run, piece_bytes=6 * MIB, fused=True)
    assert found.iteration_s == pytest.approx(predict(run).iteration_s)


def test_each_piece_costs_what_scheduling_it_costs():
    free, dear = (predict_priority(scenario(), MIB, FORWARD_S, piece_s=s) for s in (0.0, 0.5))
    assert free.timeline["n_pieces"].tolist() == [4, 1, 1]
    busy = dear.timeline["end_s"].max() - 1.0
    assert busy == free.timeline["end_s"].max() - 1.0 + 6 * 0.5


def test_only_the_first_micro_batch_waits():
    one = predict_priority(scenario(), 4 * MIB, FORWARD_S)
    three = predict_priority(scenario(one_worker_s=30.0, micro_batches=3), 4 * MIB, FORWARD_S)
    assert three.exposed_comm_s == one.exposed_comm_s == 1
    assert three.iteration_s == 31


def test_jitter_and_fixed_time_are_added():
    late = NormalJitter(0.3)
    found = predict_priority(scenario(jitter=late, fixed_s=0.25), 4 * MIB, FORWARD_S)
    assert found.iteration_s == pytest.approx(11 + float(late(2)) + 0.25)


def test_a_lone_worker_waits_for_nothing():
    run = scenario(n_workers=1, fixed_s=1.0, launch_s=20.0, overlap=False)
    found = predict_priority(run, MIB, piece_s=1.0)
    assert (found.iteration_s, found.scaling_factor) == (10, 1)


def test_without_overlap_messages_wait_for_the_end_of_backward():
    found = predict_priority(scenario(overlap=False), 4 * MIB, FORWARD_S)
    assert found.timeline["start_s"].tolist() == [7, 6, 5]  # a, b, c: the next forward's order


def second_by_second(ready, pieces, forward, backward_end):
    """The end of forward when pieces of whole seconds are sent, simulated a second at a time.

    pieces[g] lists the seconds of the pieces of g. Returns the moment forward is over.
    """
    left = [list(p) for p in pieces]
    layer, worked, busy, sending, now = len(ready) - 1, 0, 0, None, 0
    while layer >= 0:
        if busy == 0:
            waiting = [g for g in range(len(ready)) if ready[g] <= now and left[g]]
            sending = max(waiting, default=None)
            busy = left[sending][0] if waiting else 0
        ran = now >= backward_end and not left[layer]
        now += 1
        if busy:
            busy -= 1
            if busy == 0:
                left[sending].pop(0)
        worked += ran
        while layer >= 0 and now >= backward_end and not left[layer] and worked >= forward[layer]:
            layer, worked = layer - 1, 0
    return now


@pytest.mark.parametrize("seed", range(10))
def test_a_clock_of_whole_seconds_sees_the_same(seed):
    rng = np.random.default_rng(seed)
    n, piece = int(rng.integers(1, 9)), int(rng.integers(1, 6))
    sizes, waits = rng.integers(1, 15, n), rng.integers(0, 6, n)
    forward, ready = rng.integers(1, 6, n), 1 + np.cumsum(waits)
    backward_end = int(ready[-1] + rng.integers(0, 4))
    gradients = pd.DataFrame({"name": map(str, range(n)), "nbytes": sizes * MIB, "ready_s": ready})
    one_worker_s = float(backward_end + forward.sum())
    run = scenario(gradients=gradients, one_worker_s=one_worker_s, backward_s=float(backward_end))
    pieces = [
        [piece] * (size // piece) + ([size % piece] if size % piece else [])
        for size in sizes.tolist()
    ]
    expected = second_by_second(ready, pieces, forward, backward_end)
    found = predict_priority(run, piece * MIB, forward.astype(float))
    assert found.timeline["forward_end_s"].iloc[0] == expected
    assert found.iteration_s == pytest.approx(expected)  # backward begins at 0: one period


@pytest.mark.parametrize("seed", range(10))
def test_without_pieces_it_is_never_worse_than_a_queue_of_gradients(seed):
    # the link is never idle while a gradient waits, so the last message ends as it does in a queue
    rng = np.random.default_rng(1000 + seed)
    n = int(rng.integers(1, 30))
    gradients = pd.DataFrame(
        {
            "name": [str(k) for k in range(n)],
            "nbytes": rng.integers(1, 10 * MIB, n),
            "ready_s": np.cumsum(rng.exponential(1e-2, n)),
        }
    )
    backward_s = gradients["ready_s"].iloc[-1]
    ring = Ring(Link(1e-3, 1e-9 * rng.uniform(0.1, 10)))
    times = {"one_worker_s": 1.5 * backward_s, "backward_s": backward_s}
    run = scenario(gradients=gradients, all_reduce=ring, n_workers=8, **times)
    queue, found = predict(run), predict_priority(run, piece_bytes=10 * MIB)
    assert found.timeline["end_s"].max() == pytest.approx(queue.timeline["end_s"].max())
    assert 0 <= found.exposed_comm_s <= queue.exposed_comm_s + 1e-12
