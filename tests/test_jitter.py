"""Jitter: the slowest of n workers by order statistics, against known values and simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.timeline import NormalJitter, SampleJitter

repeatable = settings(deadline=None, derandomize=True, max_examples=40)


@pytest.mark.parametrize(
    ("n", "expected"),
    # closed forms of n = 2 to 5 (David and Nagaraja, Order Statistics, section 3.2); 10, 50 and
    # 100 as in the tables of H. L. Harter, Biometrika 48 (1961)
    [
        (1, 0.0),
        (2, 1 / np.sqrt(np.pi)),
        (3, 3 / (2 * np.sqrt(np.pi))),
        (5, 1.16296447),
        (10, 1.53875273),
        (50, 2.24907),
        (100, 2.50759),
    ],
)
def test_the_slowest_of_n_normals_is_that_of_the_tables(n, expected):
    assert NormalJitter(1.0)(n) == pytest.approx(expected, abs=1e-5)


def test_a_million_workers_meet_the_extreme_value_limit():
    # Gumbel: b + 0.5772 / b with n (1 - Phi(b)) = 1, whose relative error is of order 1/b^3
    n, b = 1e6, 4.753424
    assert NormalJitter(2.0)(n) == pytest.approx(2 * (b + 0.5772 / b), rel=0.01)


def test_the_slowest_of_a_sample_by_counting_all_draws():
    # two draws of three durations: 9 equally likely pairs, of which the slower has mean 22/9
    sample = SampleJitter([1.0, 2.0, 3.0])
    slower = np.maximum.outer([1, 2, 3], [1, 2, 3]).mean()
    assert sample(2) == pytest.approx(slower - 2)


def test_a_sample_is_drawn_from_as_it_is(rng):
    durations = rng.gamma(20, 0.01, size=30)
    drawn = rng.choice(durations, size=(100_000, 8)).max(axis=1).mean() - durations.mean()
    # standard error of the mean of 100 000 draws is about 1e-4
    assert SampleJitter(durations)(8) == pytest.approx(drawn, abs=5e-4)


def test_many_workers_meet_the_slowest_iteration_measured():
    assert SampleJitter([1.0, 1.0, 4.0])(1e6) == pytest.approx(4 - 2)


@repeatable
@given(st.lists(st.floats(0, 10), min_size=2, max_size=20))
def test_more_workers_never_wait_less(durations):
    late = SampleJitter(durations)(np.arange(1, 200))
    assert late[0] == 0 and (np.diff(late) >= -1e-12).all()


def test_workers_that_are_always_alike_wait_for_nobody():
    assert SampleJitter([2.0, 2.0])(100) == 0
    assert NormalJitter(0.0)(100) == 0


@pytest.mark.parametrize("jitter", [NormalJitter(0.1), SampleJitter([1, 2, 5])])
def test_a_jitter_is_vectorised_over_workers(jitter):
    n = np.array([1, 2, 3, 1000])
    assert jitter(n).tolist() == pytest.approx([float(jitter(each)) for each in n.tolist()])
