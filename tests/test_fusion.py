"""Fusion: nothing lost on the way from gradients to buckets, and what is refused."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from timings import gradients

from workbench.fusion import OneMessage, Timed, fuse, partition


@st.composite
def groupings(draw):
    """Any consecutive grouping: sizes, and whether each gradient opens a bucket."""
    sizes = draw(st.lists(st.integers(0, 2**31), min_size=1, max_size=40))
    opens = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    return sizes, np.cumsum([False] + opens[1:])


@settings(deadline=None, derandomize=True, max_examples=50)
@given(groupings())
def test_bytes_and_gradients_survive_any_grouping(grouping):
    sizes, numbers = grouping
    buckets = fuse(gradients(sizes), lambda table: numbers)
    assert buckets["nbytes"].sum() == sum(sizes)
    assert buckets["n_gradients"].sum() == len(sizes)
    # gradient i is ready at i + 1, so the last of a bucket is the number of gradients so far
    assert buckets["ready_s"].tolist() == buckets["n_gradients"].cumsum().tolist()


def test_a_policy_that_writes_changes_no_table():
    table = gradients([5, 7, 9])

    def writing(mine):
        mine["nbytes"] = 0
        return np.zeros(3, int)

    assert fuse(table, writing)["nbytes"].tolist() == [21]
    assert table["nbytes"].tolist() == [5, 7, 9]


def test_nullable_sizes_without_gaps_are_fine():
    table = gradients([5, 7]).astype({"nbytes": "Int64", "ready_s": "Float64"})
    assert fuse(table, OneMessage())["nbytes"].tolist() == [12]


def test_a_message_of_one_type_may_hold_gradients_that_do_not_follow_each_other():
    table = gradients([5, 7, 9, 11]).assign(dtype=["float", "half", "float", "half"])
    buckets = fuse(table, lambda table: [0, 1, 0, 1])
    assert buckets["nbytes"].tolist() == [14, 18]
    assert buckets["ready_s"].tolist() == [3, 4]


def test_the_launches_of_a_policy_with_a_clock_are_kept():
    buckets = fuse(gradients([5, 7, 9]), lambda table: Timed([0, 0, 1], [2.5, 7.0]))
    assert buckets["launch_s"].tolist() == [2.5, 7.0]


def test_large_gradients_are_cut_into_pieces_that_are_ready_together():
    table = gradients([5000, 1024, 2048]).assign(note=["a", "b", "c"])
    pieces = partition(table, 2048)
    assert pieces["name"].tolist() == ["g0[0]", "g0[1]", "g0[2]", "g1", "g2"]
    assert pieces["nbytes"].tolist() == [2048, 2048, 904, 1024, 2048]
    assert pieces["ready_s"].tolist() == [1, 1, 1, 2, 3]
    assert pieces["note"].tolist() == ["a", "a", "a", "b", "c"]
    assert partition(gradients([0, 3000]), 2000)["nbytes"].tolist() == [0, 2000, 1000]
