"""Every function compared with counting whole numbers on a grid."""

import numpy as np
import pytest
from conftest import refusal

from workbench.base import intervals


def spans(rng):
    start = rng.integers(0, 40, size=rng.integers(0, 12))
    return start, start + rng.integers(0, 9, size=start.size)


def grid(start, end):
    return {t for a, b in zip(start, end, strict=True) for t in range(a, b)}


@pytest.mark.parametrize("seed", range(60))
def test_every_set_equals_counting(seed):
    rng = np.random.default_rng(seed)
    a, b, (low, high) = spans(rng), spans(rng), np.sort(rng.integers(0, 45, 2))
    assert intervals.measure(*a) == len(grid(*a))
    start, end = intervals.union(*a)
    assert grid(start, end) == grid(*a)
    assert (start < end).all() and (end[:-1] < start[1:]).all()
    assert intervals.overlap(a, b) == len(grid(*a) & grid(*b))
    assert grid(*intervals.intersection(a, b)) == grid(*a) & grid(*b)
    assert grid(*intervals.clip(*a, low, high)) == grid(*a) & set(range(low, high))


def test_integers_stay_exact_at_todays_epoch():
    epoch = np.array([1_767_189_312_000_000_000, 1_767_189_312_000_000_003])
    assert intervals.measure(epoch, epoch + 1) == 2


def test_the_span_that_cannot_be_is_named():
    refusal(lambda: intervals.measure([0, 5], [1, 4]), "spans", "span 1 from 5 to 4")
    refusal(lambda: intervals.measure([np.nan], [1.0]), "spans", "span 0")
    refusal(lambda: intervals.measure([0, 5], [1]), "spans", "(2,) and (1,)")
