"""Bands: the linear case by hand, what is outside by how far, draws that stay possible costs."""

import numpy as np
import pytest
from timings import LINK, timings

from workbench.costs import Affine, Piecewise, Ring
from workbench.fits import fit_all_reduce

FINE = [2.0**k for k in range(8, 29)]


def noisy(cost, workers=(8,), noise=0.05):
    return timings(cost, FINE, workers, noise)


def test_the_band_is_the_textbook_one():
    # variance of a + b x from the covariance of a and b, by hand
    fit = fit_all_reduce(noisy(Affine(LINK)), Affine)
    row = fit.predict(2**20, 8).iloc[0]
    c, x = fit.estimate.covariance, 2.0**20
    variance = (
        c.loc["alpha", "alpha"] + 2 * x * c.loc["alpha", "beta"] + x**2 * c.loc["beta", "beta"]
    )
    reach = fit.estimate.margin(0.95) * variance**0.5
    assert row["high"] - row["seconds"] == pytest.approx(reach)
    own = fit.estimate.sigma * row["seconds"]
    reach = fit.estimate.margin(0.95) * (variance + own**2) ** 0.5
    assert row["predicted_high"] - row["seconds"] == pytest.approx(reach)


def test_a_million_points_give_what_each_gives_alone():
    fit = fit_all_reduce(noisy(Ring(LINK), workers=(2, 8)))
    sizes = np.geomspace(1, 2**30, 40_000)
    table = fit.predict(sizes, 4)
    for at in (0, 16_384, 39_999):
        alone = fit.predict(sizes[at], 4)
        assert table.iloc[at, :-1].tolist() == pytest.approx(alone.iloc[0, :-1].tolist())
        assert table["why"].iloc[at] == alone["why"].iloc[0]


def test_absolute_weights_give_a_band_of_one_width():
    fit = fit_all_reduce(noisy(Affine(LINK)), Affine, weights="absolute")
    table = fit.predict([2**10, 2**12], 8)
    width = table["predicted_high"] - table["seconds"]
    assert width[0] == pytest.approx(width[1], rel=1e-3)


def test_one_worker_is_never_outside():
    table = fit_all_reduce(noisy(Ring(LINK))).predict(2**20, [1, 2])
    assert table["why"].tolist() == ["", "n_workers below 8"]
    assert table["extrapolated"].tolist() == [1, 4]


def test_no_byte_is_infinitely_far_outside():
    table = fit_all_reduce(noisy(Ring(LINK))).predict(0, 8)
    assert table["extrapolated"].tolist() == [np.inf] and np.isfinite(table["high"][0])


def test_no_point_gives_no_row():
    assert fit_all_reduce(noisy(Ring(LINK))).predict([], 8).empty


def test_drawn_breaks_rise_beside_steps_that_are_not_drawn():
    # a step between two sizes is not drawn, the break right before it is, with a wide error
    truth = Piecewise(Ring, 20e-6, (1e-9, 4e-9, 1e-6, 1e-9), (2.0**17, 2.0**18, 1.01 * 2.0**18))
    fit = fit_all_reduce(noisy(truth, noise=0.1), Piecewise)
    for cost in fit.draws(100, np.random.default_rng(0)):
        assert (np.diff(cost.breaks) > 0).all()


def test_what_is_held_at_zero_is_drawn_as_zero():
    rows = noisy(Affine(LINK)).assign(seconds=lambda t: 1e-9 * t["nbytes"] - 1e-7)
    with pytest.warns(UserWarning, match="alpha: estimate was negative"):
        fit = fit_all_reduce(rows, Affine)
    assert {cost.link.alpha for cost in fit.draws(20, np.random.default_rng(0))} == {0.0}
