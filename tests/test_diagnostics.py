"""Curves with their bands, and residuals, leverage and Cook's distance against leaving rows out."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from timings import timings

from workbench import KIB, MIB
from workbench.costs import Interpolated, Link, Piecewise, Ring
from workbench.fits import curves, fit_all_reduce, fit_batch_time, residuals
from workbench.fits.diagnostics import left_out, shown_workers

RING = Ring(Link(1e-5, 1e-9))


def timed(counts=(4, 8), seed=7) -> pd.DataFrame:
    return timings(RING, KIB * 2 ** np.arange(15), counts, 0.05, seed)


def test_residuals_are_fitted_over_measured():
    fit = fit_all_reduce(timed())
    table = residuals(fit)
    link, n = fit.model.link, table["n_workers"]
    by_hand = 2 * (n - 1) * link.alpha + 2 * (n - 1) / n * table["nbytes"] * link.beta
    assert table["fitted_s"].to_numpy() == pytest.approx(by_hand)
    assert table["relative_error"].to_numpy() == pytest.approx(by_hand / table["seconds"] - 1)


def without(table: pd.DataFrame, row: int):
    """Fitted seconds of all rows by least squares without one, weights 1/fitted_s."""
    n, w = table["n_workers"], 1 / table["fitted_s"]
    x = np.column_stack([2 * (n - 1), 2 * (n - 1) / n * table["nbytes"]])
    kept = np.arange(len(table)) != row
    white = x * w.to_numpy()[:, None]
    found = np.linalg.lstsq(white[kept], (table["seconds"] * w)[kept], rcond=None)[0]
    return (x @ found) * w


def test_cooks_distance_is_how_far_leaving_a_row_out_moves_the_fit():
    table = residuals(fit_all_reduce(timed()))
    whole = without(table, -1)
    variance = np.sum((table["seconds"] / table["fitted_s"] - whole) ** 2) / (len(table) - 2)
    by_hand = [np.sum((whole - without(table, k)) ** 2) / 2 / variance for k in range(len(table))]
    assert table["cook"].to_numpy() == pytest.approx(by_hand, rel=1e-6)


def test_leverage_is_how_far_a_row_pulls_its_own_fit():
    table = residuals(fit_all_reduce(timed()))
    assert table["leverage"].sum() == pytest.approx(2)  # the trace of a hat matrix is its rank
    k = int(table["leverage"].argmax())
    left = (table["seconds"] / table["fitted_s"])[k] - without(table, k)[k]
    own = (table["seconds"] / table["fitted_s"])[k] - without(table, -1)[k]
    assert table["leverage"][k] == pytest.approx(1 - own / left, rel=1e-6)


def test_standardised_residuals_of_a_true_model_are_nearly_normal():
    rows = pd.concat([timed((2, 4, 8, 16), seed) for seed in range(10)])
    table = residuals(fit_all_reduce(rows, outliers="keep"))
    assert table["standardised"].std() == pytest.approx(1, abs=0.02)
    # 600 draws of a normal stay this close to its quantiles, but for the outermost
    middle = table[table["normal"].abs() < 2]
    assert (middle["standardised"] - middle["normal"]).abs().max() < 0.25


def test_quantiles_rise_with_the_residuals():
    table = residuals(fit_all_reduce(timed())).sort_values("standardised")
    wanted = norm.ppf((np.arange(len(table)) + 0.5) / len(table))
    assert table["normal"].to_numpy() == pytest.approx(wanted)


def test_a_row_that_alone_determines_a_price_has_leverage_1_and_moves_everything():
    rows = pd.concat([timed((2,))] * 2, ignore_index=True).iloc[:-1]
    rows.loc[len(rows)] = ["all_reduce", 2, 1, 2**30, 5.0]  # the only one beyond the break
    kind = Piecewise(Ring, betas=(0.0, 0.0), breaks=(MIB * 16.0,))
    table = residuals(fit_all_reduce(rows.drop_duplicates(), kind=kind, outliers="keep"))
    last = table.iloc[-1]
    assert (last["leverage"], last["standardised"], last["cook"]) == (1, 0, np.inf)
    assert np.isfinite(table["cook"][:-1]).all()


def test_an_exact_fit_has_residuals_of_zero():
    rows = timed((2, 4))
    fit = fit_all_reduce(rows.assign(seconds=RING(rows["nbytes"], rows["n_workers"])))
    table = residuals(fit)
    assert table["relative_error"].abs().max() < 1e-9
    assert np.isfinite(table["standardised"]).all()


@pytest.mark.parametrize("method", ["huber", "quantile"])
def test_all_methods_have_residuals_and_a_curve_has_only_errors(method):
    table = residuals(fit_all_reduce(timed(), method=method))
    assert np.isfinite(table.to_numpy(float)).all()
    joined = residuals(fit_all_reduce(timed(), Interpolated))
    assert list(joined) == ["nbytes", "n_workers", "seconds", "fitted_s", "relative_error"]


def test_a_batch_has_residuals_over_its_own_input():
    rows = pd.DataFrame({"batch": [1, 2, 4, 8, 16], "seconds": [0.11, 0.12, 0.14, 0.18, 0.261]})
    fit = fit_batch_time(rows)
    assert list(residuals(fit))[:2] == ["batch", "seconds"]
    table = curves(fit)
    assert (table["batch"].min(), table["batch"].max()) == (1, 16)


def test_curves_are_those_of_predict():
    fit = fit_all_reduce(timed())
    table = curves(fit, [2000, 5 * MIB], [4, 64], level=0.8)
    wanted = fit.predict([2000, 5 * MIB, 2000, 5 * MIB], [4, 4, 64, 64], 0.8)
    for name in ("seconds", "low", "high", "predicted_low", "predicted_high", "extrapolated"):
        assert table[name].to_numpy() == pytest.approx(wanted[name].to_numpy())
    assert table.attrs["level"] == 0.8


def test_curves_reach_the_sizes_set_aside():
    table = curves(fit_all_reduce(timed(), min_bytes=MIB))
    assert table["nbytes"].min() == KIB
    assert ((table["extrapolated"] > 1) == (table["nbytes"] < MIB)).all()
    assert set(table["n_workers"]) == {4, 8}


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [
        (range(2, 7), [2, 3, 4, 5, 6]),
        (range(2, 33), [2, 4, 8, 16, 32]),
        ([2, 3, 4, 5, 6, 64], [2, 5, 6, 64]),
    ],
)
def test_numbers_of_workers_that_spread_best_are_shown(counts, wanted):
    assert shown_workers(fit_all_reduce(timed(tuple(counts)))) == wanted


def test_rows_that_have_no_place_among_the_fitted_are_not_shown():
    more = pd.DataFrame(
        {
            "op": ["broadcast", "all_reduce", "all_reduce"],
            "n_workers": [4, 4, 1],
            "n_nodes": 1,
            "nbytes": [MIB, 0, MIB],
            "seconds": [1e-3, 1e-5, 1e-5],
        }
    )
    fit = fit_all_reduce(pd.concat([timed(), more], ignore_index=True), min_bytes=2 * KIB)
    assert left_out(fit, [4, 8])["nbytes"].tolist() == [KIB, KIB]
    assert len(left_out(fit)) == 3  # that of one worker too
