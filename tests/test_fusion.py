"""Fusion: nothing lost on the way from gradients to buckets, and what is refused."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench import fusion
from workbench.fusion import DDPBuckets, OneMessage, PerTensor, Timed, fuse, partition

repeatable = settings(deadline=None, derandomize=True)


def gradients(sizes, ready=None) -> pd.DataFrame:
    ready = np.arange(1.0, len(sizes) + 1) if ready is None else ready
    return pd.DataFrame(
        {"name": [f"g{i}" for i in range(len(sizes))], "nbytes": sizes, "ready_s": ready}
    )


@st.composite
def groupings(draw):
    """Any consecutive grouping: sizes, and whether each gradient opens a bucket."""
    sizes = draw(st.lists(st.integers(0, 2**31), min_size=1, max_size=40))
    opens = draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    return sizes, np.cumsum([False] + opens[1:])


@repeatable
@given(groupings())
def test_bytes_and_gradients_survive_any_grouping(grouping):
    sizes, numbers = grouping
    buckets = fuse(gradients(sizes), lambda table: numbers)
    assert buckets["nbytes"].sum() == sum(sizes)
    assert buckets["n_gradients"].sum() == len(sizes)


@repeatable
@given(groupings())
def test_a_bucket_is_ready_with_its_last_gradient(grouping):
    sizes, numbers = grouping
    buckets = fuse(gradients(sizes), lambda table: numbers)
    # gradient i is ready at i + 1, so the last of a bucket is the number of gradients so far
    assert buckets["ready_s"].tolist() == buckets["n_gradients"].cumsum().tolist()


def test_the_gradients_are_left_as_they_were():
    table = gradients([5, 7, 9])
    before = table.copy(deep=True)
    fuse(table, DDPBuckets(2000, 2000))
    pd.testing.assert_frame_equal(table, before)


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


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (DDPBuckets, r"fusion: got the class DDPBuckets; write DDPBuckets\(\)"),
        (PerTensor, r"fusion: got the class PerTensor; write PerTensor\(\)"),
        ("ddp", r"fusion: expected a callable, got 'ddp'; write DDPBuckets\(\)"),
    ],
)
def test_a_policy_without_brackets_is_told_to_be_called(policy, message):
    with pytest.raises(ValueError, match=message):
        fuse(gradients([5, 7]), policy)


def test_unknown_sizes_name_the_call_that_sizes_them():
    table = gradients(pd.array([pd.NA], dtype="Int64"))
    with pytest.raises(ValueError, match=r"gradients\(run, sizes=table of data/models\)"):
        fuse(table, OneMessage())


def test_unknown_sizes_ask_for_a_model_table():
    table = gradients(pd.array([5, pd.NA, pd.NA], dtype="Int64"))
    with pytest.raises(ValueError, match="unknown for 2 of 3 gradients, first 'g1'.*model table"):
        fuse(table, OneMessage())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (gradients([]), "at least one gradient"),
        (gradients([5, -7]), "nbytes of row 1: expected whole bytes from 0 up; got -7"),
        (gradients([5, 2.5]), "nbytes of row 1: expected whole bytes"),
        (gradients(["5", "7"]), "nbytes of row 0: expected whole bytes from 0 up; got 5"),
        (gradients([5, "7 MiB"]), "nbytes of row 1: expected whole bytes from 0 up; got 7 MiB"),
        (gradients([5, True]), "nbytes of row 1: expected whole bytes from 0 up; got True"),
        (gradients([5, 2j]), "nbytes of row 0: expected whole bytes"),
        (gradients([5, 2**70]), "nbytes of row 1: expected less than 2.*63 bytes in all"),
        (gradients([2**62, 2**62]), "nbytes of row 1: expected less than 2.*63 bytes in all"),
        (gradients([5, 7], pd.to_timedelta([1, 2], unit="s")), "ready_s of row 0: .*finite s"),
        (gradients([5, 7], [0.0, "1 s"]), "ready_s of row 1: expected finite s from 0 up; got 1 s"),
        (gradients([5, 7], [0.0, np.nan]), "ready_s of row 1: expected finite s"),
        (gradients([5, 7], [-1.0, 0.0]), "ready_s of row 0: expected finite s from 0 up"),
        (gradients([5, 7, 9], [1.0, 3.0, 2.0]), "ready_s of row 2: .*sort first"),
        (gradients([5]).drop(columns="ready_s"), "missing column ready_s"),
        (
            gradients([5, 7]).assign(enqueued_s=[0.5, 2.5]),
            "enqueued_s of row 1: expected finite s, at most its ready_s; got 2.5",
        ),
    ],
)
def test_gradients_that_cannot_be_sent_are_refused(table, message):
    with pytest.raises(ValueError, match=message):
        fuse(table, PerTensor())


@pytest.mark.parametrize(
    "numbers", [[1, 2, 3], [0, 2, 3], [0, 1, 0], [0, 0.5, 1], [0, np.nan, 1], list("abc")]
)
def test_a_policy_that_skips_or_mixes_buckets_is_refused(numbers):
    with pytest.raises(ValueError, match="bucket numbers 0, 1, 2 ... over consecutive gradients"):
        fuse(gradients([5, 7, 9]), lambda table: numbers)


def test_a_policy_that_forgets_gradients_is_refused():
    with pytest.raises(ValueError, match=r"each of 3 gradients, got shape \(2,\)"):
        fuse(gradients([5, 7, 9]), lambda table: [0, 1])


def test_a_message_of_one_type_may_hold_gradients_that_do_not_follow_each_other():
    table = gradients([5, 7, 9, 11]).assign(dtype=["float", "half", "float", "half"])
    buckets = fuse(table, lambda table: [0, 1, 0, 1])
    assert buckets["nbytes"].tolist() == [14, 18]
    assert buckets["ready_s"].tolist() == [3, 4]


def test_gradients_of_one_type_keep_their_order():
    table = gradients([5, 7, 9, 11]).assign(dtype=["float", "half", "float", "half"])
    with pytest.raises(ValueError, match="bucket numbers 0, 1, 2 ... over consecutive gradients"):
        fuse(table, lambda table: [1, 0, 0, 1])


def test_the_launches_of_a_policy_with_a_clock_are_kept():
    buckets = fuse(gradients([5, 7, 9]), lambda table: Timed([0, 0, 1], [2.5, 7.0]))
    assert buckets["launch_s"].tolist() == [2.5, 7.0]


def test_launches_are_one_a_message():
    with pytest.raises(ValueError, match="a launch for each of 2 messages, got 3"):
        fuse(gradients([5, 7, 9]), lambda table: Timed([0, 0, 1], [2.5, 7.0, 8.0]))


def test_large_gradients_are_cut_into_pieces_that_are_ready_together():
    table = gradients([5000, 1024, 2048]).assign(note=["a", "b", "c"])
    pieces = partition(table, 2048)
    assert pieces["name"].tolist() == ["g0[0]", "g0[1]", "g0[2]", "g1", "g2"]
    assert pieces["nbytes"].tolist() == [2048, 2048, 904, 1024, 2048]
    assert pieces["ready_s"].tolist() == [1, 1, 1, 2, 3]
    assert pieces["note"].tolist() == ["a", "a", "a", "b", "c"]


def test_an_empty_gradient_stays_one_piece():
    assert partition(gradients([0, 3000]), 2000)["nbytes"].tolist() == [0, 2000, 1000]


@pytest.mark.parametrize("size", [0, 0.5, 2.5, np.inf, np.nan, "1"])
def test_pieces_have_a_size(size):
    with pytest.raises(ValueError, match="partition piece_bytes: expected .*bytes"):
        partition(gradients([5]), size)


def test_the_columns_alone_are_plain_arrays():
    table = pd.DataFrame({"name": list("abcd"), "nbytes": [5, 7, 9, 11], "ready_s": [1, 2, 3, 4.0]})
    columns = fusion.buckets(table, DDPBuckets(4, 8))
    assert {name: values.tolist() for name, values in columns.items()} == {
        "n_gradients": [1, 2, 1],
        "nbytes": [5, 16, 11],
        "ready_s": [1.0, 3.0, 4.0],
    }
