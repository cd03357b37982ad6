"""Every function against counting whole numbers on a grid."""

import numpy as np
import pytest

from workbench.base import intervals

CASES = range(300)


def spans(rng):
    start = rng.integers(0, 40, size=rng.integers(0, 12))
    return start, start + rng.integers(0, 9, size=start.size)


def grid(start, end):
    return {t for a, b in zip(start, end, strict=True) for t in range(a, b)}


@pytest.mark.parametrize("seed", CASES)
def test_measure_union_and_overlap_equal_counting(seed):
    rng = np.random.default_rng(seed)
    a, b = spans(rng), spans(rng)
    assert intervals.measure(*a) == len(grid(*a))
    assert grid(*intervals.union(*a)) == grid(*a)
    assert intervals.overlap(a, b) == len(grid(*a) & grid(*b))
    assert grid(*intervals.intersection(a, b)) == grid(*a) & grid(*b)


@pytest.mark.parametrize("seed", CASES)
def test_clip_keeps_what_lies_inside(seed):
    rng = np.random.default_rng(seed)
    a, (low, high) = spans(rng), np.sort(rng.integers(0, 45, 2))
    assert grid(*intervals.clip(*a, low, high)) == grid(*a) & set(range(low, high))


@pytest.mark.parametrize("seed", CASES)
def test_union_is_sorted_and_disjoint(seed):
    start, end = intervals.union(*spans(np.random.default_rng(seed)))
    assert (start < end).all()
    assert (end[:-1] < start[1:]).all()


def test_integers_stay_exact_at_todays_epoch():
    epoch = np.array([1_767_189_312_000_000_000, 1_767_189_312_000_000_003])
    assert intervals.measure(epoch, epoch + 1) == 2


def test_an_end_before_its_start_is_an_error_that_names_the_span():
    with pytest.raises(ValueError, match=r"span 1 is \[5, 4\)"):
        intervals.measure([0, 5], [1, 4])


def test_nan_is_an_error():
    with pytest.raises(ValueError, match="span 0"):
        intervals.measure([np.nan], [1.0])
