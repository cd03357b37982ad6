"""Ways of cutting the backward order: Horovod's packing and cycles, the optimum by brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.fusion.grouping import cycles, fewest, optimum, pack


def test_packing_closes_before_the_limit_is_exceeded():
    # 40 + 50 fit in 100, 30 more would not; 30 + 70 fit exactly
    assert list(pack(range(4), [40, 50, 30, 70], 100, [""] * 4)) == [[0, 1], [2, 3]]
    assert list(pack(range(3), [10, 500, 10], 100, [""] * 3)) == [[0], [1], [2]]  # alone


def test_look_ahead_passes_over_another_type_and_puts_it_back_in_front():
    kinds = ["float", "half", "float", "half"]
    assert list(pack(range(4), [10, 5, 10, 5], 100, kinds)) == [[0, 2], [1, 3]]


def test_look_ahead_ends_when_held_and_skipped_bytes_exceed_the_limit():
    # 10 held and 25 skipped exceed 30, so the second float is never looked at
    assert list(pack(range(3), [10, 25, 10], 30, ["float", "half", "float"])) == [[0], [1], [2]]


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    gradients=st.lists(st.tuples(st.integers(0, 100), st.sampled_from("ab")), min_size=1),
    limit=st.integers(0, 200),
)
def test_a_message_holds_one_type_within_the_limit_or_one_gradient(gradients, limit):
    sizes, kinds = zip(*gradients, strict=True)
    messages = list(pack(range(len(sizes)), sizes, limit, kinds))
    assert sorted(itertools.chain(*messages)) == list(range(len(sizes)))
    for members in messages:
        assert len({kinds[i] for i in members}) == 1
        assert len(members) == 1 or sum(sizes[i] for i in members) <= limit
    if len(set(kinds)) == 1:  # nothing is skipped
        assert list(itertools.chain(*messages)) == list(range(len(sizes)))


def ticked(enqueued, ready, blocks, cycle_s=1.0, phase_s=0.0, negotiation_s=0.0):
    """Cycles in which all that is enqueued fits one message."""
    return cycles(
        np.array(enqueued, float),
        np.array(ready, float),
        lambda batch: [batch],
        cycle_s,
        phase_s,
        negotiation_s,
        blocks,
    )


def test_gradients_pile_up_while_the_thread_waits_for_the_device():
    # tick 0 takes gradient 0 and waits for it until 10 s; the rest were enqueued long before
    messages, launches = ticked([0, 1, 2, 3], [10, 11, 12, 13], blocks=True)
    assert messages == [[0], [1, 2, 3]]
    assert launches == [10, 13]


def test_a_thread_that_does_not_wait_sends_what_each_tick_finds():
    messages, launches = ticked([0, 1, 2, 3], [10, 11, 12, 13], blocks=False)
    assert messages == [[0], [1], [2], [3]]
    assert launches == [0, 1, 2, 3]


def test_ticks_without_gradients_pass():
    # ticks at 0.5, 1.5 ...: 0.6 is found at 1.5, and 7.0 at 7.5
    messages, launches = ticked([0.6, 7.0], [0.6, 7.0], blocks=False, phase_s=0.5)
    assert messages == [[0], [1]]
    assert launches == [1.5, 7.5]


def test_the_phase_of_ticks_counts_within_a_cycle_only():
    assert ticked([0.6], [0.6], blocks=True, phase_s=100.5) == ([[0]], [1.5])


def test_a_cycle_of_nothing_ticks_at_every_gradient():
    messages, launches = ticked([0.25, 0.5], [0.25, 0.5], blocks=False, cycle_s=0.0)
    assert (messages, launches) == ([[0], [1]], [0.25, 0.5])
    assert ticked([-0.25], [0.5], blocks=False, cycle_s=0.0) == ([[0]], [-0.25])


def test_negotiation_delays_the_launch():
    assert ticked([0.0], [0.0], blocks=False, negotiation_s=0.125)[1] == [0.125]


def every_grouping(n):
    """The first gradients of each message, for all 2^(n-1) consecutive groupings."""
    for opens in itertools.product([False, True], repeat=n - 1):
        yield [0, *(i + 1 for i, new in enumerate(opens) if new)]


def end_of(first, ready, sizes, price) -> float:
    """The recursion, one message after another."""
    end = -np.inf
    for low, high in itertools.pairwise([*first, len(sizes)]):
        end = max(end, ready[high - 1]) + price[sum(sizes[low:high])]
    return end


def instance(rng, n, monotone=True):
    """Sizes of a few bytes and a table of random costs, so that every curve is possible."""
    sizes = rng.integers(0, 6, n)
    costs = rng.exponential(1.0, sizes.sum() + 1) * rng.integers(0, 2, sizes.sum() + 1)
    price = np.cumsum(costs) if monotone else costs
    return np.cumsum(rng.exponential(1.0, n)), sizes, price


@pytest.mark.parametrize("n", range(1, 12))
def test_the_optimum_equals_brute_force_on_monotone_costs(n, rng):
    for _ in range(3):
        ready, sizes, price = instance(rng, n)
        first, ends = optimum(ready, sizes, price.__getitem__)
        best = min(end_of(f, ready, sizes, price) for f in every_grouping(n))
        assert ends[-1] == pytest.approx(best, rel=1e-12)
        assert end_of(first, ready, sizes, price) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("n", range(1, 9))
def test_the_optimum_equals_brute_force_on_costs_that_fall_too(n, rng):
    for _ in range(5):
        ready, sizes, price = instance(rng, n, monotone=False)
        best = min(end_of(f, ready, sizes, price) for f in every_grouping(n))
        assert optimum(ready, sizes, price.__getitem__)[1][-1] == pytest.approx(best, rel=1e-12)


def test_every_end_is_the_optimum_of_the_gradients_so_far(rng):
    # more gradients than a block of the triangle holds
    ready, sizes, price = instance(rng, 150)
    ends = optimum(ready, sizes, price.__getitem__)[1]
    for n in (1, 63, 64, 65, 128, 149):
        assert optimum(ready[:n], sizes[:n], price.__getitem__)[1][-1] == ends[n - 1]


@pytest.mark.parametrize("n", range(1, 9))
def test_the_fewest_messages_in_time_equal_brute_force(n, rng):
    for slack in (0.0, 0.5, 2.0):
        ready, sizes, price = instance(rng, n)
        deadline = optimum(ready, sizes, price.__getitem__)[1][-1] + slack
        first = fewest(ready, sizes, price.__getitem__, deadline)
        inside = [f for f in every_grouping(n) if end_of(f, ready, sizes, price) <= deadline]
        assert len(first) == min(map(len, inside))
        assert end_of(first, ready, sizes, price) <= deadline


def test_no_grouping_is_in_time_for_an_impossible_deadline(rng):
    ready, sizes, price = instance(rng, 5)
    assert fewest(ready, sizes, price.__getitem__, ready[-1] - 1.0) is None
