"""Bands: the linear case by hand, what is outside by how far, draws that stay possible costs."""

import numpy as np
import pandas as pd
import pytest

from workbench.costs import Affine, Link, Piecewise, Ring
from workbench.fits import fit_all_reduce
from workbench.fits.bands import share

LINK = Link(alpha=20e-6, beta=0.2e-9)


def timings(cost, workers=(8,), sizes=tuple(2.0**k for k in range(8, 29)), noise=0.05, seed=0):
    rows = [("all_reduce", n, 1, size) for n in workers for size in sizes]
    table = pd.DataFrame(rows, columns=["op", "n_workers", "n_nodes", "nbytes"])
    factor = 1 + noise * np.random.default_rng(seed).standard_normal(len(table))
    return table.assign(seconds=cost(table["nbytes"], table["n_workers"]) * factor)


def test_the_band_is_the_textbook_one():
    # variance of a + b x from the covariance of a and b, by hand
    fit = fit_all_reduce(timings(Affine(LINK)), Affine)
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
    fit = fit_all_reduce(timings(Ring(LINK), workers=(2, 8)))
    sizes = np.geomspace(1, 2**30, 40_000)
    table = fit.predict(sizes, 4)
    for at in (0, 16_384, 39_999):
        alone = fit.predict(sizes[at], 4)
        assert table.iloc[at, :-1].tolist() == pytest.approx(alone.iloc[0, :-1].tolist())
        assert table["why"].iloc[at] == alone["why"].iloc[0]


def test_absolute_weights_give_a_band_of_one_width():
    fit = fit_all_reduce(timings(Affine(LINK)), Affine, weights="absolute")
    table = fit.predict([2**10, 2**12], 8)
    width = table["predicted_high"] - table["seconds"]
    assert width[0] == pytest.approx(width[1], rel=1e-3)


def test_a_lone_worker_is_never_outside():
    table = fit_all_reduce(timings(Ring(LINK))).predict(2**20, [1, 2])
    assert table["why"].tolist() == ["", "n_workers below 8"]
    assert table["extrapolated"].tolist() == [1, 4]


def test_no_byte_is_infinitely_far_outside():
    table = fit_all_reduce(timings(Ring(LINK))).predict(0, 8)
    assert table["extrapolated"].tolist() == [np.inf] and np.isfinite(table["high"][0])


def test_no_point_gives_no_row():
    assert fit_all_reduce(timings(Ring(LINK))).predict([], 8).empty


def test_drawn_breaks_rise_beside_steps_that_are_not_drawn():
    # a step between two sizes is not drawn, the break right before it is, with a wide error
    truth = Piecewise(Ring, 20e-6, (1e-9, 4e-9, 1e-6, 1e-9), (2.0**17, 2.0**18, 1.01 * 2.0**18))
    fit = fit_all_reduce(timings(truth, noise=0.1), Piecewise)
    for cost in fit.draws(300, np.random.default_rng(0)):
        assert (np.diff(cost.breaks) > 0).all()


def test_what_is_held_at_zero_is_drawn_as_zero():
    rows = timings(Affine(LINK)).assign(seconds=lambda t: 1e-9 * t["nbytes"] - 1e-7)
    with pytest.warns(UserWarning, match="alpha came out"):
        fit = fit_all_reduce(rows, Affine)
    assert {cost.link.alpha for cost in fit.draws(20, np.random.default_rng(0))} == {0.0}


@pytest.mark.parametrize("level", ["95 %", None, True])
def test_a_level_is_a_number(level):
    with pytest.raises(ValueError, match="level: expected a number between 0 and 1"):
        share(level)


@pytest.mark.parametrize(
    ("n", "rng", "message"),
    [
        (-1, np.random.default_rng(0), "draws: n: expected a whole number from 0 up, got -1"),
        (2.5, np.random.default_rng(0), "draws: n: .*got 2.5"),
        (True, np.random.default_rng(0), "draws: n: .*got True"),
        (3, None, "draws: rng: expected a NumPy Generator, got None; write np.random.default_rng"),
        (3, 0, "draws: rng: expected a NumPy Generator, got 0"),
    ],
)
def test_draws_of_another_kind_are_refused(n, rng, message):
    with pytest.raises(ValueError, match=message):
        fit_all_reduce(timings(Ring(LINK), workers=(2, 8))).draws(n, rng)


def test_arrays_that_do_not_go_together_are_refused():
    fit = fit_all_reduce(timings(Ring(LINK), workers=(2, 8)))
    with pytest.raises(ValueError, match="nbytes and n_workers: .*as many of each.* got 3 and 2"):
        fit.predict([1, 2, 3], [2, 4])
