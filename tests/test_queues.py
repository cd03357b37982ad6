"""Queues: the recursion, its closed form and the event replay against small steps of time."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.timeline import schedule
from workbench.timeline.queues import after_backward, beyond_compute, idle, side_by_side, slowed

repeatable = settings(deadline=None, derandomize=True, max_examples=40)


@st.composite
def queues(draw, in_order=True):
    """Ready times, launches, latencies and transfers of up to 12 messages, s.

    Buckets of several types of data need not be ready in the order they are sent.
    """
    n = draw(st.integers(1, 12))
    columns = [draw(st.lists(st.floats(0, 10), min_size=n, max_size=n)) for _ in range(4)]
    ready, launch, latency, transfer = map(np.array, columns)
    return np.sort(ready) if in_order else ready, launch, latency / 10, transfer / 2


def stepwise(ready, launch, latency, transfer, n_streams, slowdown, dt=1e-3):
    """Start and end of each message by going through time in steps of dt s: no event is known."""
    n = len(ready)
    start, end, now, work = np.full(n, np.nan), np.full(n, np.nan), 0.0, 0.0
    latency, transfer = latency.copy(), transfer.copy()
    while np.isnan(end).any():
        for k in range(n):
            before = k < n_streams or not np.isnan(end[k - n_streams])
            if np.isnan(start[k]) and before and work >= ready[k] and now >= launch[k]:
                start[k] = now
        flying = ~np.isnan(start) & np.isnan(end)
        moving = flying & (latency <= 0)
        latency[flying & ~moving] -= dt
        transfer[moving] -= dt / max(1, moving.sum())
        end[flying & (latency <= 0) & (transfer <= 0)] = now + dt
        work += dt / (1 + slowdown) if flying.any() else dt
        now += dt
    return start, end


@pytest.mark.parametrize("n_streams", [1, 2, 3])
@pytest.mark.parametrize("slowdown", [0.0, 0.4])
@pytest.mark.parametrize("seed", range(4))
def test_the_replay_equals_going_through_time_in_small_steps(n_streams, slowdown, seed):
    rng = np.random.default_rng(seed)
    ready, launch = rng.uniform(0, 4, 7), rng.uniform(0, 4, 7) * rng.integers(0, 2, 7)
    ready = ready if seed == 0 else np.sort(ready)
    latency, transfer = rng.uniform(0, 0.3, 7), rng.uniform(0, 2, 7)
    exact = side_by_side(ready, latency, transfer, launch, n_streams, slowdown)
    steps = stepwise(ready, launch, latency, transfer, n_streams, slowdown)
    # each of the 7 messages may end some steps of 1 ms late, and the next ones with it
    np.testing.assert_allclose(exact, steps, atol=0.04)


def test_two_messages_side_by_side_share_the_bandwidth_but_not_the_latency():
    # 0: latency to 1, alone to 2 (1 s done), shared until 4 (2 of 3), the rest alone until 5
    # 1: starts at 1, latency to 2, 1 s of work at half speed until 4
    start, end = side_by_side([0.0, 1.0], [1.0, 1.0], [3.0, 1.0], [0.0, 0.0], n_streams=2)
    assert (start.tolist(), end.tolist()) == ([0, 1], [5, 4])


def test_a_message_slows_the_compute_that_readies_the_next():
    # compute is at 1 when message 0 starts, and at 1 + 2/1.5 when it ends at 3; 3 s of work need
    # 2/3 s more
    table = pd.DataFrame({"n_gradients": 1, "nbytes": 8, "ready_s": [1.0, 3.0]})
    timeline = schedule(table, [2.0, 1.0], slowdown=0.5)
    assert timeline["start_s"].tolist() == pytest.approx([1, 3 + 2 / 3])
    assert timeline["ready_s"].tolist() == pytest.approx([1, 3 + 2 / 3])


def test_a_bucket_ready_beside_a_message_is_slowed_only_so_far():
    # 1.5 s of work: at 1 when the message starts, half a second more at 1.5 times the time
    table = pd.DataFrame({"n_gradients": 1, "nbytes": 8, "ready_s": [1.0, 1.5]})
    timeline = schedule(table, [2.0, 1.0], slowdown=0.5)
    assert timeline["ready_s"].tolist() == pytest.approx([1, 1.75])
    assert timeline["start_s"].tolist() == pytest.approx([1, 3])


@repeatable
@given(queues(in_order=False), st.floats(0, 2))
def test_one_queue_by_events_equals_the_recursion(queue, slowdown):
    ready, launch, latency, transfer = queue
    table = pd.DataFrame({"n_gradients": 1, "nbytes": 8, "ready_s": ready})
    timeline = schedule(table, latency + transfer, launch, slowdown)
    start, end = side_by_side(ready, latency, transfer, launch, 1, slowdown)
    np.testing.assert_allclose(start, timeline["start_s"], atol=1e-9)
    np.testing.assert_allclose(end, timeline["end_s"], atol=1e-9)


@repeatable
@given(queues(), st.floats(0, 2), st.floats(0, 5))
def test_the_closed_form_equals_the_recursion(queue, slowdown, more):
    ready, launch, latency, transfer = queue
    backward_s = ready[-1] + more
    table = pd.DataFrame({"n_gradients": 1, "nbytes": 8, "ready_s": ready})
    timeline = schedule(table, latency + transfer, launch, slowdown)
    start, end = (timeline[name].to_numpy() for name in ("start_s", "end_s"))
    backward_end = slowed(backward_s, start, end, slowdown)
    outside = np.clip(end - backward_end, 0, end - start).sum()
    lost = backward_end - backward_s
    waiting = max(0.0, end[-1] - backward_end) - outside
    columns = (each[:, None] for each in (ready, launch, latency + transfer))
    found = beyond_compute(*columns, np.array([backward_s]), np.array([slowdown]))
    np.testing.assert_allclose(np.ravel(found), [outside, waiting, lost], atol=1e-9)


@repeatable
@given(queues(), st.floats(0, 2), st.lists(st.floats(0, 40), min_size=1, max_size=5))
def test_slowed_compute_loses_its_share_of_the_messages_beside_it(queue, slowdown, work):
    start, length = queue[0], queue[3]
    end = slowed(np.array(work), start, start + length, slowdown)
    # counted on a grid: the part of [0, end] that any message covers
    for needed, done in zip(work, end, strict=True):
        grid = (np.arange(20_000) + 0.5) * max(done, 1e-9) / 20_000
        beside = ((grid[:, None] > start) & (grid[:, None] < start + length)).any(axis=1).mean()
        assert done - slowdown / (1 + slowdown) * beside * done == pytest.approx(needed, abs=0.05)


@repeatable
@given(queues(in_order=False), st.integers(1, 4))
def test_side_by_side_carry_every_byte_and_start_no_message_early(queue, n_streams):
    ready, launch, latency, transfer = queue
    start, end = side_by_side(ready, latency, transfer, launch, n_streams)
    assert (start >= np.maximum(ready, launch) - 1e-9).all()
    assert (end - start >= latency + transfer - 1e-9).all()
    assert (start[n_streams:] >= end[:-n_streams] - 1e-9).all()
    # the link is one: all transfers take at least their sum between the first start and last end
    assert end.max() - start.min() >= transfer.sum() - 1e-9


@repeatable
@given(queues())
def test_without_latency_the_link_works_whatever_the_queues(queue):
    # a busy link never rests, so the last end is that of one queue
    ready, launch, _, transfer = queue
    one, many = (
        side_by_side(ready, 0 * ready, transfer, 0 * launch, n)[1].max() for n in (1, len(ready))
    )
    assert many == pytest.approx(one)


def test_idle_time_is_what_no_message_fills_after_backward():
    # backward ends at 2: idle from 3 to 5 and from 6 to 6.5
    start, end = np.array([1.0, 5.0, 6.5]), np.array([3.0, 6.0, 7.0])
    assert idle(start, end, np.float64(2.0)) == 2.5


def test_idle_time_of_side_by_side_is_told_in_order_of_starts():
    # bucket 0 is launched after bucket 1 of the other queue: idle from 5 to 6 and from 7 to 8
    exposed, waiting, lost = after_backward(np.array([8.0, 6.0]), np.array([9.0, 7.0]), 5.0, 0.0)
    assert (exposed, waiting, lost) == (2, 2, 0)
