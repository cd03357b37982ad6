"""Checks of what callers pass: the number, text or object is named, with what to write instead."""

import numpy as np
import pandas as pd
import pytest

from workbench.checks import check_callable, numbers, one_number, shown, single, whole_workers
from workbench.costs import Link, Ring

LINK = Link(alpha=10e-6, beta=1e-9)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1 / 3, "0.333333"),
        (np.float64(2e-7), "2e-07"),
        (26_214_400, "26214400"),
        (True, "True"),
        (None, "None"),
        ("ring", "'ring'"),
        ("x" * 100, f"'{'x' * 40}' and more"),
        (Ring, "the class Ring"),
        (max, "max"),
        (pd.DataFrame({"nbytes": [1, 2]}), "DataFrame"),
        (LINK, "Link"),
    ],
)
def test_messages_show_numbers_rounded_and_objects_by_their_type(value, text):
    assert shown(value) == text


@pytest.mark.parametrize(
    "values", [8, 8.0, [8, 0], (1, 2.5), np.arange(3), pd.Series([1, 2], dtype="Int64"), []]
)
def test_numbers_pass_as_floats(values):
    found = numbers(values, "nbytes")
    assert found.dtype == float
    np.testing.assert_array_equal(found, np.asarray(values, dtype=float))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (-1, "-1"),
        ([1, -2.5], "-2.5"),
        (float("nan"), "nan"),
        ([[1, 2], [3, np.inf]], "inf"),
        (True, "True"),
        ([1, True], "True"),
        (None, "None"),
        (pd.array([1, pd.NA]), "nan"),
        (np.array([1], dtype="m8[s]"), "ndarray"),
    ],
)
def test_what_is_no_number_from_0_up_is_shown(values, found):
    with pytest.raises(ValueError, match=rf"^size: expected finite numbers from 0 up, got {found}"):
        numbers(values, "size")


def test_a_number_in_quotes_is_shown_with_what_to_do():
    with pytest.raises(ValueError, match="n_workers: .* got '8'; write it without quotes"):
        whole_workers(["8", 16])


@pytest.mark.parametrize("value", [0, 0.5, 2.5, [4, 0], np.array([[1.0, 1.5]])])
def test_workers_are_whole_and_at_least_one(value):
    with pytest.raises(ValueError, match="n_workers: expected whole numbers from 1 up, got "):
        whole_workers(value)


def test_another_count_of_whole_numbers_goes_by_its_own_name():
    with pytest.raises(ValueError, match="^n_servers: expected whole numbers from 1 up, got 0"):
        whole_workers(0, "n_servers")


def test_no_workers_at_all_are_no_error():
    assert whole_workers([]).size == 0


def test_one_number_is_wanted_where_several_come():
    assert single(numbers(3, "floor"), "floor") == 3.0
    with pytest.raises(ValueError, match="^floor: expected one number, got an array"):
        single(numbers([3, 4], "floor"), "floor")


@pytest.mark.parametrize("value", [True, "8", None, [1], Link])
def test_a_plain_number_is_told_from_everything_else(value):
    with pytest.raises(ValueError, match="level: a number, got .*; write 0.95"):
        one_number(value, "level: a number", "write 0.95")


EXAMPLE = "Ring(Link(alpha, beta))"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Link, "got the class Link; write Ring"),
        (Ring, r"got the class Ring; write Ring\(Link\(alpha, beta\)\)"),
        (LINK, "expected a callable, got Link; write Ring"),
        (type("Fit", (), {"model": None})(), "expected a callable, got Fit; pass fit.model"),
    ],
)
def test_what_is_no_cost_is_answered_with_one(value, text):
    with pytest.raises(ValueError, match=f"^all_reduce: {text}"):
        check_callable(value, "all_reduce", EXAMPLE)


def test_a_cost_passes_unchanged():
    cost = Ring(LINK)
    assert check_callable(cost, "all_reduce", EXAMPLE) is cost


def test_bytes_in_the_place_of_workers_are_warned_of():
    with pytest.warns(UserWarning, match=r"n_workers: 2.62144e\+07 is more than any cluster has"):
        Ring(LINK)(64, 25 * 2**20)
