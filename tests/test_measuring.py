"""What to time next: gains by the larger information matrix, and refits that bear them out."""

import numpy as np
import pandas as pd
import pytest
from conftest import refusal
from timings import LINK, SIZES, timings

from workbench import MIB
from workbench.costs import FlatRing, Piecewise, Ring
from workbench.fits import fit_all_reduce, fit_batch_time, next_measurement


def test_the_band_now_is_that_of_predict():
    fit = fit_all_reduce(timings(Ring(LINK), noise=0.05))
    forecast = fit.predict(25 * MIB, 64, level=0.9).iloc[0]
    table = next_measurement(fit, (25 * MIB, 64), level=0.9)
    assert table["band_now_s"][0] == pytest.approx(forecast["high"] - forecast["seconds"])


def test_the_band_after_is_that_of_the_larger_information_matrix():
    table = timings(Ring(LINK), noise=0.05)
    fit = fit_all_reduce(table)
    advice = next_measurement(fit, (25 * MIB, 64), n=3)

    def rows(nbytes, n):
        seconds = np.asarray(fit.model(nbytes, n))
        counts = [2 * (n - 1), 2 * (n - 1) / n * nbytes]
        return np.column_stack([column / seconds for column in np.broadcast_arrays(*counts)])

    x = rows(table["nbytes"].to_numpy(float), table["n_workers"].to_numpy(float))
    g = np.array([2 * 63, 2 * 63 / 64 * 25 * MIB])
    now = g @ np.linalg.solve(x.T @ x, g)
    for line in advice.to_dict("records"):
        z = rows(np.array([line["nbytes"]], float), np.array([line["n_workers"]], float))
        after = g @ np.linalg.solve(x.T @ x + 3 * z.T @ z, g)
        assert line["band_after_s"] / line["band_now_s"] == pytest.approx(np.sqrt(after / now))
        seconds = fit.model(line["nbytes"], line["n_workers"])
        assert line["cluster_s"] == pytest.approx(3 * seconds * line["n_workers"])
    assert advice["gain"].is_monotonic_decreasing


@pytest.mark.all
def test_refits_with_the_advised_rows_scatter_as_much_as_was_said():
    # the spread of 100 forecasts from noisy tables, with and without ten timings of the best
    sizes, truth = [2**10, 2**14, 2**18, 2**20], Ring(LINK)
    plain = timings(truth, sizes, noise=0.05)
    best = next_measurement(fit_all_reduce(plain), (256 * MIB, 8), n=10).iloc[0]
    extra = timings(truth, [best["nbytes"]] * 10, [best["n_workers"]])
    rng, spread = np.random.default_rng(0), {}
    for label, table in (
        ("now", timings(truth, sizes)),
        ("after", pd.concat([timings(truth, sizes), extra])),
    ):
        factors = 1 + 0.05 * rng.standard_normal((100, len(table)))
        forecasts = [
            fit_all_reduce(table.assign(seconds=table["seconds"] * each)).model(256 * MIB, 8)
            for each in factors
        ]
        spread[label] = np.std(forecasts)
    # a standard deviation of 100 is known to 1/sqrt(200), the ratio to 10 %: three times that
    said = best["band_after_s"] / best["band_now_s"]
    assert said < 0.8
    assert spread["after"] / spread["now"] == pytest.approx(said, rel=0.3)


def test_a_forecast_of_large_messages_wants_large_messages_timed():
    fit = fit_all_reduce(timings(Ring(LINK), [2**10, 2**14, 2**18], noise=0.05))
    offered = pd.DataFrame({"nbytes": [2**10, 2**18, 2**26], "n_workers": 8})
    table = next_measurement(fit, (256 * MIB, 8), offered)
    assert table["nbytes"].tolist() == [2**26, 2**18, 2**10]


def test_of_several_messages_the_band_is_that_of_their_total():
    # two messages alike cost twice one, so the band doubles and the advice stays
    fit = fit_all_reduce(timings(Ring(LINK), noise=0.05))
    one = next_measurement(fit, (MIB, 8))
    two = next_measurement(fit, pd.DataFrame({"nbytes": [MIB, MIB], "n_workers": 8}))
    assert two["band_now_s"].tolist() == pytest.approx(list(2 * one["band_now_s"]))
    assert two["gain"].tolist() == pytest.approx(list(one["gain"]))


def test_what_was_timed_and_the_target_s_own_are_offered():
    table = next_measurement(fit_all_reduce(timings(Ring(LINK), noise=0.05)), (100 * MIB, 64))
    assert sorted(table["n_workers"].unique()) == [2, 8, 32, 64]
    assert sorted(table["nbytes"].unique()) == sorted([*SIZES, 100 * MIB])


def test_other_numbers_of_workers_come_first_where_a_hop_is_not_told_from_a_constant():
    fit = fit_all_reduce(timings(Ring(LINK), workers=[16], noise=0.05))
    table = next_measurement(fit, (25 * MIB, 8))
    assert sorted(table["n_workers"].unique()) == [4, 8, 16]
    told = table["note"] == "would separate alpha from a constant per message"
    assert (told == (table["n_workers"] != 16)).all() and told.is_monotonic_decreasing
    # at the number timed the sum of all hops is what counts, and the rows tell it
    assert (next_measurement(fit, (25 * MIB, 16))["note"] == "").all()


def test_breaks_count_as_estimated_in_the_band_to_narrow():
    truth = Piecewise(Ring, 20e-6, (2e-9, 2e-10), (65536.0,))
    fit = fit_all_reduce(timings(truth, [2**k for k in range(10, 29)], noise=0.03), kind=Piecewise)
    table = next_measurement(fit, (100 * MIB, 32))
    assert table["gain"].between(0, 1).all() and table["gain"][0] > 0.01


def test_what_a_candidate_spends_on_an_unknown_price_is_no_gain():
    # the fit saw one node only, so a message between nodes teaches it about that link alone
    table = timings(Ring(LINK), workers=[2, 4, 8], noise=0.05)
    fit = fit_all_reduce(table, kind=FlatRing(LINK, LINK, 8))
    offered = pd.DataFrame({"nbytes": MIB, "n_workers": [8, 16]})
    advice = next_measurement(fit, (25 * MIB, 8), offered).set_index("n_workers")["gain"]
    assert advice[8] > 0 and advice[16] == 0
    refusal(lambda: next_measurement(fit, (25 * MIB, 16)), "target", "alpha_between")


def test_a_batch_to_time_next_is_told_as_well():
    table = pd.DataFrame({"batch": [8, 16, 32], "seconds": [0.018, 0.026, 0.043]})
    advice = next_measurement(fit_batch_time(table), (256,), (np.array([8, 512]),))
    assert advice["batch"].tolist() == [512, 8]
