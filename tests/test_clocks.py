import numpy as np
import pandas as pd
import pytest

from workbench.traces.clocks import align

EPOCH_NS = 1_700_000_000 * 10**9


def rank(ends, origin=0, group="0"):
    """Comm rows of one rank in ns, each 100 ns long."""
    ends = np.asarray(ends, dtype="int64") + origin
    columns = {"kind": "comm", "op": "all_reduce", "group": group, "iteration": 0}
    return pd.DataFrame({"start_ns": ends - 100, "end_ns": ends}).assign(**columns)


def test_one_rank_needs_no_aligning():
    tables = [rank([100, 200])]
    assert align(tables) == (tables, "", False)


def test_clocks_since_the_epoch_are_taken_as_they_are():
    tables = [rank([100, 200], EPOCH_NS), rank([130, 205], EPOCH_NS)]
    moved, how, _ = align(tables)
    assert [t["end_ns"].tolist() for t in moved] == [t["end_ns"].tolist() for t in tables]
    assert "as their files state" in how and "differ by 15.0" not in how


def test_other_clocks_are_shifted_so_that_collectives_end_together():
    moved, how, _ = align([rank([1000, 2000, 3000]), rank([51000, 52010, 52990])])
    assert (moved[1]["end_ns"] - moved[0]["end_ns"]).tolist() == [0, 10, -10]
    assert "aligned on the ends" in how and "differ by 0.0 us" in how


def test_the_residual_is_reported():
    _, how, _ = align([rank([10_000, 20_000, 30_000]), rank([10_000, 20_000, 37_500])])
    assert "matching ends differ by 0.0 us (median)" in how
    tables = [rank([1000, 2000], EPOCH_NS), rank([251000, 252000], EPOCH_NS)]
    assert "matching ends differ by 250.0 us" in align(tables)[1]


def test_only_matching_collectives_count():
    other = pd.concat([rank([900], group="1"), rank([5000, 6000])], ignore_index=True)
    moved, _, _ = align([rank([1000, 2000]), other])
    assert moved[1]["end_ns"].tolist() == [-3100, 1000, 2000]


def test_messages_of_many_groups_are_not_confused():
    groups = [str(n) for n in range(300)]
    rows = [rank([1000 * n], group=group) for n, group in enumerate(groups, 1)]
    later = [rank([1000 * n + 77], group=group) for n, group in enumerate(groups, 1)]
    tables = [pd.concat(each, ignore_index=True) for each in (rows, later[::-1])]
    moved, how, _ = align(tables)
    assert moved[1]["end_ns"].tolist() == [1000 * n for n in range(300, 0, -1)]
    assert "differ by 0.0 us" in how


def test_an_iteration_in_which_a_rank_misses_a_message_does_not_count():
    one = pd.concat([rank([1000, 2000, 3000]), rank([9000]).assign(iteration=1)])
    other = pd.concat([rank([2000, 3000]), rank([9500]).assign(iteration=1)])
    moved, _, _ = align([one, other])
    assert moved[1]["end_ns"].tolist() == [1500, 2500, 9000]


def test_without_epoch_and_common_collective_it_is_refused():
    with pytest.raises(ValueError, match="clocks of the ranks cannot be aligned.*one at a time"):
        align([rank([1000]), rank([1000], group="1")])


def test_a_host_whose_clock_is_off_is_shifted_and_that_is_said():
    ends = [10**6 * n for n in range(1, 20)]
    tables = [rank(ends, EPOCH_NS), rank([end + 50_000_000 for end in ends], EPOCH_NS)]
    moved, how, doubtful = align(tables)
    assert moved[1]["end_ns"].tolist() == tables[0]["end_ns"].tolist()
    assert "1 of them shifted, by up to 50.0 ms" in how and not doubtful


def test_files_of_different_times_are_doubtful_however_few_their_messages():
    _, _, doubtful = align([rank([1000], EPOCH_NS), rank([1000], EPOCH_NS + 10**15)])
    assert doubtful


def test_clocks_that_drift_are_doubtful():
    ends = np.arange(1, 20) * 10**6
    tables = [rank(ends, EPOCH_NS), rank(ends + np.arange(19) * 10**6, EPOCH_NS)]
    _, how, doubtful = align(tables)
    assert doubtful and "do not agree" in how
