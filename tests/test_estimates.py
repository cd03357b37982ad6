"""Estimates: the numbers of statsmodels where it has them, and words where it has none."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from workbench.fits.estimates import Method, infer, solve


@pytest.fixture
def noisy(rng):
    """Columns of two prices, the prices, and seconds with 5 % noise."""
    columns = pd.DataFrame({"alpha": rng.uniform(2, 60, 80), "beta": 10 ** rng.uniform(3, 8, 80)})
    prices = pd.Series({"alpha": 2e-5, "beta": 2e-10})
    return columns, prices, columns @ prices * (1 + 0.05 * rng.standard_normal(80))


def estimated(columns, seconds, method=Method()):  # noqa: B008
    seconds = np.asarray(seconds, float)
    values = solve(columns, seconds, method)
    return infer(columns, values, columns.to_numpy() @ values.to_numpy(), seconds, method)


def test_least_squares_are_statsmodels_own_with_hc3(noisy):
    columns, _, seconds = noisy
    found = estimated(columns, seconds)
    fitted = columns @ found.values
    theirs = sm.WLS(seconds, columns, weights=fitted**-2.0).fit(cov_type="HC3")
    assert found.values.to_numpy() == pytest.approx(theirs.params.to_numpy(), rel=1e-8)
    assert np.sqrt(np.diag(found.covariance)) == pytest.approx(theirs.bse.to_numpy(), rel=1e-6)
    assert found.results.params.to_numpy() == pytest.approx(found.values.to_numpy(), rel=1e-8)


def test_absolute_weights_are_ordinary_least_squares(noisy):
    columns, _, seconds = noisy
    theirs = sm.OLS(seconds, columns).fit()
    found = estimated(columns, seconds, Method(weights="absolute"))
    assert found.values.to_numpy() == pytest.approx(theirs.params.to_numpy(), rel=1e-8)


def test_relative_weights_do_not_pull_prices_down(rng):
    # weights 1/seconds^2 would put this mean of 1,000 times with 20 % noise 4 % low at every size
    columns = pd.DataFrame({"alpha": np.ones(1000)})
    seconds = 1 + 0.2 * rng.standard_normal(1000)
    assert estimated(columns, seconds).values["alpha"] == pytest.approx(seconds.mean())


def test_huber_withstands_wild_times(noisy, rng):
    columns, prices, seconds = noisy
    wild = seconds.where(rng.random(80) > 0.1, seconds * 5)
    robust = estimated(columns, wild, Method("huber")).values / prices - 1
    plain = estimated(columns, wild).values / prices - 1
    assert robust.abs().max() < 0.05 < plain.abs().max()


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_a_quantile_has_its_share_of_times_below(noisy, quantile):
    columns, _, seconds = noisy
    found = estimated(columns, seconds, Method("quantile", quantile=quantile))
    below = np.mean(seconds < columns @ found.values)
    assert below == pytest.approx(quantile, abs=3 / 80)  # as many rows lie on it as prices


@pytest.mark.parametrize("name", ["huber", "quantile"])
def test_exact_times_need_no_robust_method(noisy, name):
    columns, prices, _ = noisy
    found = estimated(columns, columns @ prices, Method(name))
    assert (found.values / prices).to_numpy() == pytest.approx(1)


@pytest.mark.parametrize("name", ["wls", "huber", "quantile"])
def test_a_price_below_zero_is_fixed_there_and_reported(noisy, name):
    columns, _, _ = noisy
    seconds = columns @ pd.Series({"alpha": -1e-8, "beta": 2e-9})
    seconds = seconds * np.tile([0.99, 1.01], 40)  # exact times would need no robust method
    found = estimated(columns, seconds, Method(name))
    assert found.values["alpha"] == 0 and found.held["alpha"] < 0
    assert list(found.covariance) == ["beta"]


def test_columns_that_go_together_are_undetermined(noisy):
    columns, _, seconds = noisy
    found = estimated(columns.assign(twin=2 * columns["beta"]), seconds)
    assert set(found.undetermined) == {"beta", "twin"}
    assert found.values["beta"] + 2 * found.values["twin"] == pytest.approx(2e-10, rel=0.05)
    assert found.dof == 78


def test_a_column_without_numbers_is_undetermined(noisy):
    columns, _, seconds = noisy
    found = estimated(columns.assign(between=0.0), seconds)
    assert found.undetermined == ("between",)


def test_as_many_points_as_prices_have_no_spread():
    columns = pd.DataFrame({"alpha": [2.0, 2.0], "beta": [1e3, 1e6]})
    found = estimated(columns, np.array([1e-3, 2e-3]))
    assert found.dof == 0 and np.isnan(found.margin(0.95))


def test_a_row_that_alone_determines_a_price_has_a_finite_error(rng):
    # leverage 1: HC3 divides by 0 there, the variance of the others stands in
    columns = pd.DataFrame({"alpha": np.ones(20), "only": [*np.zeros(19), 1.0]})
    seconds = 1 + 0.05 * rng.standard_normal(20) + columns["only"]
    deviation = np.sqrt(np.diag(estimated(columns, seconds).covariance))
    assert deviation[1] == pytest.approx(0.05 * 2, rel=0.5)


def test_too_few_times_for_a_quantile_have_no_spread():
    # two prices of three rows: statsmodels' errors of a quantile are not numbers then
    columns = pd.DataFrame({"alpha": [2.0, 2.0, 2.0], "beta": [4.0, 4.0, 1e7]})
    found = estimated(columns, [5.1e-4, 5.0e-4, 3.3e-3], Method("quantile"))
    assert np.isfinite(found.covariance).all(axis=None)
