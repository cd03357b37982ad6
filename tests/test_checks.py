"""The vocabulary of refusals: a check names the argument, shows the value, passes the rest."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from conftest import refusal
from hypothesis import given
from hypothesis import strategies as st

from workbench.base import checks
from workbench.base.checks import above_0, checked, numbers, real, shown, single, whole_workers
from workbench.costs import Link, Ring

NOT_NUMBERS = [None, "8", True, [1, "8"], [1, True], {}, object(), b"1", 1j,
               np.array(["1"]), np.datetime64("2026-01-01"), pd.Timedelta(1)]  # fmt: skip
BELOW = [-1, -0.5, math.nan, math.inf, [1, -1], np.array([1.0, math.nan]), 10**400]


@pytest.mark.parametrize("check", [numbers, above_0, whole_workers])
@pytest.mark.parametrize("value", NOT_NUMBERS + BELOW)
def test_arrays_of_numbers_refuse_what_is_none(check, value):
    refusal(lambda: check(value, "x"), "x")


@pytest.mark.parametrize(
    ("check", "value", "shows"),
    [
        (above_0, [3, 0], 0),
        (whole_workers, [2, 0.5], 0.5),
        (whole_workers, 0, 0),
        (numbers, "8", "8"),
    ],
)
def test_the_first_wrong_value_is_shown(check, value, shows):
    refusal(lambda: check(value, "x"), "x", shows)


@given(st.lists(st.one_of(st.integers(1, 10**6), st.floats(1e-300, 1e300)), min_size=1))
def test_numbers_come_back_as_they_are(values):
    assert numbers(values, "x").tolist() == [float(v) for v in values]
    assert above_0(np.array(values, float), "x").tolist() == [float(v) for v in values]
    whole = [max(1, int(min(v, 1e6))) for v in values]
    assert whole_workers(whole).tolist() == whole


def test_fractions_and_numpy_scalars_are_numbers():
    assert numbers([Fraction(1, 2), np.float32(2)], "x").tolist() == [0.5, 2.0]
    assert single(numbers(np.int64(3), "x"), "x") == 3.0
    refusal(lambda: single(np.array([1.0]), "x"), "x")


def test_more_workers_than_any_cluster_has_are_doubted():
    with pytest.warns(UserWarning, match="n_workers"):
        whole_workers(2e7)


@given(
    st.one_of(st.none(), st.booleans(), st.text(), st.floats(), st.integers(), st.lists(st.none()))
)
def test_one_number_passes_or_is_refused_by_name(value):
    plain = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    for check, ok in (
        (real("a share", lambda v: 0 <= v < 1), plain and 0 <= value < 1),
        (checks.whole(2), plain and value >= 2 and value == int(value)),
        (checks.integer(2), type(value) is int and value >= 2),
        (
            checks.one_of(["a", 1, None]),
            value in ("a", 1, None) and not isinstance(value, bool | float),
        ),
        (checks.yes_or_no, isinstance(value, bool)),
        (checks.instance(str, "a text"), isinstance(value, str)),
        (checks.optional(checks.yes_or_no), value is None or isinstance(value, bool)),
    ):
        if ok:
            check(value, "x")
        else:
            refusal(lambda check=check: check(value, "x"), "x", shown(value))


@pytest.mark.parametrize("value", [Ring, Link, 3, "Ring"])
def test_what_is_called_is_an_instance(value):
    refusal(lambda: checks.a_cost(value, "all_reduce"), "all_reduce", value)


def test_a_fit_in_the_place_of_its_cost_is_told_apart():
    fit = type("Fit", (), {"model": None})()
    assert "fit.model" in refusal(lambda: checks.a_cost(fit, "all_reduce"), "all_reduce")
    assert checks.a_cost(Ring(Link(0, 0)), "all_reduce") is None


@checked(n=checks.whole(1), share=real("a share", lambda v: 0 <= v <= 1))
def scaled(n, share=7.0, *, factor=1):
    """Scale."""
    return n * share * factor


@checked(n=checks.whole(1))
@dataclass(frozen=True)
class Held:
    n: int
    twice: int = 0

    def __post_init__(self):
        object.__setattr__(self, "twice", 2 * self.n)


def test_a_checked_function_takes_arguments_by_place_and_by_name():
    assert scaled(2) == 14.0  # a default is the author's own
    assert scaled(2, 0.5, factor=3) == scaled(n=2, share=0.5, factor=3) == 3.0
    refusal(lambda: scaled(0), "n", 0)
    refusal(lambda: scaled(1, 2.0), "share", 2.0)
    refusal(lambda: scaled(1, share="1"), "share", "1")
    assert scaled.__doc__ == "Scale."


def test_a_checked_dataclass_is_named_and_checked_before_it_is_made():
    assert replace(Held(2), n=3).twice == 6
    refusal(lambda: Held("2"), "Held n", "2")
    refusal(lambda: replace(Held(2), n=-1), "Held n", -1)


def test_a_check_of_no_argument_is_an_error_of_the_author():
    with pytest.raises(TypeError, match="m"):
        checked(m=checks.whole())(lambda n: n)


@pytest.mark.parametrize(
    ("value", "text"),
    [(Ring, "the class Ring"), ("a", "'a'"), ("a" * 50, f"{'a' * 40!r} and more"), (None, "None"),
     (np.True_, "True"), (2.0, "2"), (1 / 3, "0.333333"), ([1], "list"), (len, "len"), (pd.NA, "<NA>")],
)  # fmt: skip
def test_values_are_shown_short(value, text):
    assert shown(value) == text
