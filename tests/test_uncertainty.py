"""Bands, knees and the range guard: draw by draw, by coverage, and by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from workbench import GBIT, KIB, MIB
from workbench.costs import Affine, Hierarchical, Interpolated, Link, Piecewise, Ring
from workbench.fits import fit_all_reduce
from workbench.fusion import DDPBuckets, DeepSpeedBuckets, HorovodFusion, OneMessage, PerTensor
from workbench.timeline import NormalJitter, Scenario, predict
from workbench.whatif import (
    Compression,
    FasterLink,
    Together,
    band,
    extrapolation,
    knee,
    knee_range,
    untimed_sizes,
)
from workbench.whatif.uncertainty import BAND

TRUTH = Ring(Link(50e-6, 1 / (25 * GBIT)))


def sweep_of(cost, rng, noise=0.1, workers=(4, 8, 16), sizes=12) -> pd.DataFrame:
    """MEASUREMENTS of 1 KiB to 256 MiB, with errors in proportion to the time."""
    n, nbytes = (
        np.repeat(workers, sizes),
        np.tile(np.geomspace(KIB, 256 * MIB, sizes), len(workers)),
    )
    seconds = cost(nbytes, n) * (1 + noise * rng.standard_normal(len(n)))
    table = pd.DataFrame({"op": "all_reduce", "n_workers": n, "n_nodes": n // 4})
    return table.assign(nbytes=nbytes.round(), seconds=seconds)


def scenario(**changes) -> Scenario:
    """Thirty gradients of 4 MiB over 60 ms of backward, in DDP's buckets."""
    ready = np.linspace(2e-3, 60e-3, 30)
    gradients = pd.DataFrame(
        {"name": [str(k) for k in range(30)], "nbytes": 4 * MIB, "ready_s": ready}
    )
    return replace(Scenario(gradients, 90e-3, 60e-3, 16, TRUTH, DDPBuckets()), **changes)


def one_by_one(run, fit, n, n_draws, seed, factors=None, ready=None) -> np.ndarray:
    """Scaling factors of the same draws, each predicted by itself."""
    factors = np.ones(n_draws) if factors is None else factors
    found = []
    for k, (cost, factor) in enumerate(
        zip(fit.draws(n_draws, np.random.default_rng(seed)), factors, strict=True)
    ):
        times = run.gradients["ready_s"] * factor if ready is None else ready[:, k]
        drawn = replace(
            run,
            gradients=run.gradients.assign(ready_s=times),
            one_worker_s=run.one_worker_s * factor,
            backward_s=run.backward_s * factor,
            all_reduce=cost,
            n_workers=n,
        )
        found.append(predict(drawn).scaling_factor)
    return np.array(found)


VARIANTS = {
    "plain": {},
    "per tensor": {"fusion": PerTensor()},
    "no overlap": {"overlap": False},
    "slowdown": {"slowdown": 0.2},
    "launched late": {"launch_s": 55e-3},
    "jitter, fixed": {"jitter": NormalJitter(1e-3), "fixed_s": 2e-3},
    "two streams": {"n_streams": 2},
    "a clock": {"fusion": DeepSpeedBuckets(8 * MIB)},
}


@pytest.mark.parametrize("kind", [Ring, Piecewise, Interpolated, Hierarchical])
@pytest.mark.parametrize("name", ["plain", "slowdown"])
def test_a_band_is_made_of_the_fits_own_draws(rng, kind, name):
    truth = Hierarchical(Link(1e-5, 1e-10), TRUTH.link, 4) if kind is Hierarchical else TRUTH
    fit, run = fit_all_reduce(sweep_of(truth, rng), kind), scenario(**VARIANTS[name])
    found = band(run, fit, 16, level=0.9, n_draws=40, rng=np.random.default_rng(5)).iloc[0]
    expected = np.quantile(one_by_one(run, fit, 16, 40, 5), [0.05, 0.5, 0.95])
    assert [found["low"], found["median"], found["high"]] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", VARIANTS)
def test_compute_varies_by_one_factor_a_draw(rng, name):
    fit, run = fit_all_reduce(sweep_of(TRUTH, rng)), scenario(**VARIANTS[name])
    found = band(run, fit, 16, n_draws=40, rng=np.random.default_rng(5), compute_cv=0.05)
    numbers = np.random.default_rng(5)
    fit.draws(40, numbers)
    factors = 1 + 0.05 * numbers.standard_normal(40)
    expected = one_by_one(run, fit, 16, 40, 5, factors)
    assert found["low"].iloc[0] == pytest.approx(np.quantile(expected, 0.025), rel=1e-9)
    assert found["high"].iloc[0] == pytest.approx(np.quantile(expected, 0.975), rel=1e-9)


def test_a_clock_of_the_host_bounds_no_draw(rng):
    # each gradient is enqueued just before it is ready, and half of the draws are faster
    fit, run = fit_all_reduce(sweep_of(TRUTH, rng)), scenario(fusion=HorovodFusion())
    table = run.gradients.assign(enqueued_s=run.gradients["ready_s"])
    row = band(replace(run, gradients=table), fit, 16, n_draws=20, compute_cv=0.05).iloc[0]
    assert 0 < row["low"] < row["high"] <= 1


def spread(run: Scenario, low: float, high: float) -> Scenario:
    """The scenario with gradients ready from low to high times their median time."""
    ready = run.gradients["ready_s"]
    table = run.gradients.assign(ready_min_s=ready * low, ready_max_s=ready * high)
    return replace(run, gradients=table)


@pytest.mark.parametrize("fusion", [PerTensor(), DDPBuckets(), DeepSpeedBuckets(8 * MIB)])
def test_the_measured_range_of_ready_times_bounds_compute(rng, fusion):
    # a certain link: what remains is compute, from 0.9 to 1.2 times its median
    fit = fit_all_reduce(sweep_of(TRUTH, rng, noise=0.0))
    run = spread(scenario(fusion=fusion), 0.9, 1.2)
    row = band(run, fit, 16, level=0.999, n_draws=500).iloc[0]
    ends = [
        predict(
            replace(
                run,
                gradients=run.gradients.assign(ready_s=run.gradients["ready_s"] * factor),
                one_worker_s=run.one_worker_s * factor,
                backward_s=run.backward_s * factor,
            )
        ).scaling_factor
        for factor in (0.9, 1.2)
    ]
    assert ends[0] <= row["low"] < row["scaling_factor"] < row["high"] <= ends[1]
    # of 500 draws of a uniform place the outermost are some 1/500 of the range from its ends
    assert [row["low"], row["high"]] == pytest.approx(ends, abs=0.02 * (ends[1] - ends[0]))


def test_without_noise_the_band_is_the_prediction(rng):
    fit = fit_all_reduce(sweep_of(TRUTH, rng, noise=0.0))
    table = band(scenario(), fit, [2, 16, 64])
    assert list(table) == list(BAND)
    for row in table.itertuples():
        expected = predict(scenario(n_workers=row.n_workers)).scaling_factor
        assert [row.scaling_factor, row.low, row.high] == pytest.approx([expected] * 3, rel=1e-6)


def test_the_scaling_factor_of_a_band_is_the_prediction_with_the_fitted_price(rng):
    fit = fit_all_reduce(sweep_of(TRUTH, rng))
    expected = predict(scenario(all_reduce=fit.model, n_workers=8)).scaling_factor
    assert band(scenario(), fit, 8)["scaling_factor"].iloc[0] == expected


@pytest.fixture(scope="module")
def noisy_fits():
    """Fits of 200 noisy sweeps of a known link."""
    return [fit_all_reduce(sweep_of(TRUTH, np.random.default_rng(seed))) for seed in range(200)]


@pytest.mark.all
@pytest.mark.parametrize("fusion", [DDPBuckets(), PerTensor()])
def test_a_band_covers_the_truth_about_as_often_as_it_says(fusion, noisy_fits):
    # 95 % is 190, and 9 are three standard errors of that count
    run = scenario(fusion=fusion)
    expected = predict(replace(run, n_workers=64)).scaling_factor
    assert expected < 0.9
    covered = 0
    for seed, fit in enumerate(noisy_fits):
        rng = np.random.default_rng(1000 + seed)
        row = band(run, fit, 64, n_draws=300, rng=rng).iloc[0]
        covered += row["low"] <= expected <= row["high"]
    assert 181 <= covered <= 199


def test_a_higher_level_makes_a_wider_band(rng):
    fit = fit_all_reduce(sweep_of(TRUTH, rng))
    narrow, wide = (band(scenario(), fit, 64, level=each).iloc[0] for each in (0.5, 0.99))
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]


def test_bands_come_out_the_same_twice(rng):
    fit = fit_all_reduce(sweep_of(TRUTH, rng))
    pd.testing.assert_frame_equal(*(band(scenario(), fit, [8, 64]) for _ in range(2)))


def test_a_lone_worker_is_certain(rng):
    # though its gradients, 30 GiB together, are far beyond what was timed
    huge = scenario().gradients.assign(nbytes=1024 * MIB)
    run = scenario(gradients=huge, fusion=OneMessage(), launch_s=1.0)
    row = band(run, fit_all_reduce(sweep_of(TRUTH, rng)), 1).iloc[0]
    assert (row["low"], row["high"], row["extrapolated"], row["why"]) == (1, 1, 1, "")


def test_a_band_keeps_what_optimisations_made_of_the_link(rng):
    fit = fit_all_reduce(sweep_of(TRUTH, rng, noise=0.0))
    optimised = Together((FasterLink(4), Compression(10)))(scenario(fusion=PerTensor()))
    row = band(optimised, fit, 64).iloc[0]
    expected = predict(replace(optimised, n_workers=64)).scaling_factor
    assert [row["low"], row["high"]] == pytest.approx([expected] * 2, rel=1e-6)


def test_a_forecast_beyond_the_measurements_says_how_far(rng):
    fit = fit_all_reduce(sweep_of(TRUTH, rng))
    table = band(scenario(), fit, [8, 64]).set_index("n_workers")
    assert table["extrapolated"].tolist() == [1, 4]
    assert table["why"].tolist() == ["", "n_workers above 16"]


def test_the_worst_message_is_named(rng):
    fit = fit_all_reduce(sweep_of(TRUTH, rng))
    huge = scenario().gradients.assign(nbytes=[4 * MIB] * 29 + [1024 * MIB])
    run = scenario(gradients=huge, fusion=PerTensor())
    row = extrapolation(run, fit).iloc[0]
    assert (row["n_workers"], row["nbytes"], row["extrapolated"]) == (16, 1024 * MIB, 4)
    assert row["why"].startswith("nbytes above")
    assert extrapolation(Compression(4)(run), fit)["extrapolated"].iloc[0] == 1


def test_sizes_that_were_never_timed_are_told_in_words(rng):
    table = sweep_of(TRUTH, rng)
    fit = fit_all_reduce(table[table["nbytes"] > 20 * MIB], outliers="keep")
    least = fit.measurements["nbytes"].min() / MIB
    assert 20 < least < 40  # DDP's buckets are of 4 and 28 MiB
    assert untimed_sizes(fit, scenario()) == (f"messages below {least:.3g} MiB: price extrapolated")
    whole = scenario(fusion=OneMessage())  # 120 MiB
    assert untimed_sizes(fit, whole) == ""
    assert untimed_sizes(fit, whole, scenario()) == untimed_sizes(fit, scenario())
    assert untimed_sizes(fit, scenario(n_workers=1)) == ""
    huge = scenario().gradients.assign(nbytes=[4 * MIB] * 29 + [1024 * MIB])
    both = untimed_sizes(fit, scenario(gradients=huge, fusion=PerTensor()))
    assert both.endswith("MiB and above 256 MiB: price extrapolated")
    assert "above" not in untimed_sizes(fit, Compression(4)(scenario(gradients=huge)))


def by_hand(latency_s: float, counts, threshold: float) -> int:
    """The knee where T1 is 1 s and each of 2(n-1) hops exposes latency_s."""
    trained = {n: n / (1 + 2 * (n - 1) * latency_s) for n in counts}
    best = counts[0]
    for low, high in zip(counts, counts[1:], strict=False):
        if (trained[high] - trained[low]) / (high - low) > threshold:
            best = high
    return best


@pytest.mark.parametrize("threshold", [0.1, 0.5, 0.9])
def test_the_knee_is_the_largest_number_of_workers_that_still_pays(threshold):
    gradients = pd.DataFrame({"name": ["a"], "nbytes": [1], "ready_s": [0.5]})
    run = Scenario(gradients, 1.0, 0.5, 2, Ring(Link(0.01, 0.0)), OneMessage())
    powers = [2**k for k in range(13)]
    assert knee(run, threshold) == by_hand(0.01, powers, threshold)
    every = list(range(1, 300))
    assert knee(run, threshold, every) == by_hand(0.01, every, threshold)


def test_a_knee_beyond_what_was_asked_is_warned_of():
    with pytest.warns(UserWarning, match="knee: 8 workers"):
        assert knee(scenario(all_reduce=Ring(Link(0, 0))), n_workers=[1, 2, 4, 8]) == 8


def test_the_first_number_is_the_knee_where_none_pays():
    assert knee(scenario(all_reduce=Affine(Link(0.08, 0.0)))) == 1


def test_the_range_of_the_knee_is_that_of_the_draws(rng):
    fit, run = fit_all_reduce(sweep_of(TRUTH, rng, noise=0.5)), scenario(fusion=PerTensor())
    counts = list(range(1, 40))
    found = knee_range(run, fit, n_workers=counts, level=0.9, n_draws=200).iloc[0]
    drawn = [
        knee(replace(run, all_reduce=cost), n_workers=counts)
        for cost in fit.draws(200, np.random.default_rng(20220425))
    ]
    assert found["low"] < found["high"]
    ends = np.quantile(drawn, [0.05, 0.95], method="inverted_cdf").tolist()
    assert [found["low"], found["high"]] == ends
    assert found["knee"] == knee(replace(run, all_reduce=fit.model), n_workers=counts)
    assert not found["at_least"]


def test_a_knee_that_may_be_beyond_is_marked(rng):
    fit = fit_all_reduce(sweep_of(TRUTH, rng))
    row = knee_range(scenario(), fit, n_workers=[1, 2, 4], n_draws=50).iloc[0]
    assert row["at_least"]


def test_a_price_of_a_hop_that_is_not_determined_is_told_where_it_counts(rng):
    # one number of workers: 2 * 15 hops are one constant, so a tree would explain the rows as well
    fit = fit_all_reduce(sweep_of(TRUTH, rng, workers=(16,)).assign(n_nodes=pd.NA))
    told = "alpha not determined apart from a constant per message: time other numbers of workers"
    found = band(scenario(), fit, [4, 16, 64], n_draws=20).set_index("n_workers")["why"]
    assert found[4].endswith(told) and found[64].endswith(told) and found[16] == ""
    assert told in knee_range(scenario(), fit, n_workers=[1, 2, 4, 8, 16], n_draws=20)["why"][0]


def test_links_inside_a_node_that_were_not_timed_are_told(rng):
    truth = Hierarchical(Link(1e-5, 1e-10), TRUTH.link, 8)
    table = sweep_of(truth, rng, workers=(16, 32)).assign(n_nodes=[2] * 12 + [4] * 12)
    why = extrapolation(scenario(), fit_all_reduce(table), [4, 8, 12])["why"]
    told = "within a node of 8 workers, but timed between nodes only"
    assert why.str.contains(told).tolist() == [True, True, False]
    fit = fit_all_reduce(table, kind=truth)
    assert not extrapolation(scenario(), fit, [4, 8])["why"].str.contains(told).any()


def test_links_between_nodes_that_were_not_timed_are_told(rng):
    fit = fit_all_reduce(sweep_of(TRUTH, rng, workers=(4, 8)).assign(n_nodes=1))
    why = extrapolation(scenario(), fit, [2, 8, 16])["why"]
    told = "timed within one node of 8 workers or more, not between nodes"
    assert why.str.contains(told).tolist() == [False, False, True]
