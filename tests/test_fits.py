"""Fits: known links come back, published sweeps give published numbers, nothing is lost."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workbench.costs import Affine, Link, Ring
from workbench.fits import fit_all_reduce
from workbench.units import MIB

PUBLISHED = Path(__file__).parents[2] / "shared" / "published"
LINK = Link(alpha=20e-6, beta=0.2e-9)


def timings(cost, sizes, workers=(2, 8, 32), noise=0.0, seed=0) -> pd.DataFrame:
    """MEASUREMENTS of a known cost, with multiplicative noise of a given standard deviation."""
    table = pd.DataFrame(
        [("all_reduce", n, 1, size) for n in workers for size in sizes],
        columns=["op", "n_workers", "n_nodes", "nbytes"],
    )
    factor = 1 + noise * np.random.default_rng(seed).standard_normal(len(table))
    return table.assign(seconds=cost(table["nbytes"], table["n_workers"]) * factor)


SIZES = [2**k for k in range(10, 29, 2)]


@pytest.mark.parametrize("kind", [Ring, Affine])
def test_the_fit_recovers_a_noiseless_link(kind):
    link = fit_all_reduce(timings(kind(LINK), SIZES), kind=kind).model.link
    assert [link.alpha / LINK.alpha, link.beta / LINK.beta] == pytest.approx([1, 1], rel=1e-9)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    # 200 noisy sweeps of a known link; a 95 % interval should cover in 190 +- 3 standard errors
    inside = 0
    for seed in range(200):
        fit = fit_all_reduce(timings(Ring(LINK), SIZES, noise=0.05, seed=seed))
        low, high = fit.interval("beta")
        inside += low <= LINK.beta <= high
    assert 180 <= inside <= 199


def test_every_size_weighs_alike_whatever_its_time():
    # doubling one time moves a weighted fit by the same relative error at either end of the range
    table = timings(Ring(LINK), [2**12, 2**28], workers=[8])
    repeated = pd.concat([table.assign(seconds=table["seconds"] * f) for f in (0.9, 1.1)])
    errors = np.abs(fit_all_reduce(repeated).relative_errors())
    # two times, 10 % low and high, fit their mean: weights 1/fitted^2 are the same for both
    assert errors == pytest.approx([1 / 0.9 - 1, 1 / 0.9 - 1] + [1 - 1 / 1.1] * 2, abs=1e-6)


def test_published_sweep_of_32_gpus():
    # dexhunter/allreduce-experiments (MIT), nccl-tests on 8 nodes x 4 RTX 2080 Ti, InfiniBand
    path = PUBLISHED / "dexhunter_nccl_allreduce_32gpu.csv"
    if not path.exists():
        pytest.skip(f"{path} is not at hand")
    rows = pd.read_csv(path, comment="#").query("network == '100g'")
    sweep = pd.DataFrame(
        {
            "op": "all_reduce",
            "n_workers": 32,
            "n_nodes": 8,
            "nbytes": rows["bytes"],
            "seconds": rows["time_us"] * 1e-6,
        }
    )
    fit = fit_all_reduce(sweep, min_bytes=MIB)
    beta = fit.model.link.beta
    assert beta / 1.84e-10 == pytest.approx(1, rel=0.01)
    assert 1 / beta == pytest.approx(5.4e9, rel=0.01)
    a_message_byte = fit_all_reduce(sweep, kind=Affine, min_bytes=MIB).model.link.beta
    assert a_message_byte / 3.56e-10 == pytest.approx(1, rel=0.01)
    assert np.abs(fit.relative_errors()).mean() < 0.01


def test_the_shipped_ring_sweep_gives_the_same_price():
    # the 512 sizes of that sweep with NCCL's ring, 1 MiB to 512 MiB
    path = Path(__file__).parents[1] / "data" / "published" / "nccl_32gpu_100gbit_ring.csv"
    fit = fit_all_reduce(pd.read_csv(path, comment="#"), min_bytes=MIB)
    assert fit.model.link.beta / 1.84e-10 == pytest.approx(1, rel=0.01)
    assert np.abs(fit.relative_errors()).mean() < 0.01


def test_the_card_reads_in_microseconds_and_gigabytes_a_second():
    card = fit_all_reduce(timings(Ring(LINK), SIZES, noise=0.01)).card()
    assert float(card.loc["alpha", "value"]) == pytest.approx(20, rel=0.05)
    assert float(card.loc["1/beta", "value"]) == pytest.approx(5, rel=0.05)
    assert card.loc["alpha", "unit"] == "us a hop" and card.loc["1/beta", "unit"] == "GB/s moved"


def test_every_interval_on_the_card_holds_its_value():
    card = fit_all_reduce(timings(Ring(LINK), SIZES, noise=0.01)).card()
    bounds = card.loc[["alpha", "beta", "1/beta"], ["low", "value", "high"]].astype(float)
    assert (bounds.diff(axis=1).iloc[:, 1:] > 0).all(axis=None)


def test_the_card_tells_errors_points_and_range():
    table = timings(Ring(LINK), [2**10, 2**20], workers=[4, 8])
    rest = timings(Ring(LINK), [0], workers=[4])
    card = fit_all_reduce(pd.concat([table, rest], ignore_index=True)).card()
    assert card.loc["points", ["value", "unit"]].tolist() == ["4", "and 1 set aside"]
    assert card.loc["sizes", "value"] == "1.00 KiB to 1.00 MiB"
    assert card.loc["workers", "value"] == "4 to 8"
    assert card.loc["R2", "value"] == "1.000000"


def test_two_points_fit_exactly_and_have_no_interval():
    fit = fit_all_reduce(timings(Ring(LINK), [2**10, 2**24], workers=[8]))
    assert fit.model.link.alpha == pytest.approx(LINK.alpha)
    assert fit.card().loc["alpha", ["low", "high"]].tolist() == ["", ""]


def test_rows_that_cannot_be_fitted_are_set_aside_with_the_reason():
    good = timings(Ring(LINK), [2**10, 2**20, 2**24], workers=[8])
    odd = pd.DataFrame(
        [
            ("broadcast", 8, 1, 2**20, 1e-3),
            ("all_reduce", 1, 1, 2**20, 1e-5),
            ("all_reduce", 8, 1, 0, 1e-5),
            ("all_reduce", 8, 1, 512, 1e-4),
        ],
        columns=good.columns,
    )
    fit = fit_all_reduce(pd.concat([odd, good], ignore_index=True), min_bytes=1024)
    assert fit.set_aside["why"].tolist() == [
        "op is not all_reduce",
        "a lone worker sends nothing",
        "no byte moved",
        "below min_bytes, 1.00 KiB",
    ]
    assert fit.measurements["nbytes"].tolist() == [2**10, 2**20, 2**24]
    assert fit.model.link.beta / LINK.beta == pytest.approx(1)


def test_a_row_of_another_collective_may_hold_anything():
    good = timings(Ring(LINK), [2**10, 2**20], workers=[8])
    odd = pd.DataFrame([("barrier", 8, 1, -1, 0.0)], columns=good.columns)
    fit = fit_all_reduce(pd.concat([good, odd], ignore_index=True))
    assert fit.model.link.alpha == pytest.approx(LINK.alpha)


def test_the_measurements_are_left_as_they_were():
    table = timings(Ring(LINK), SIZES)
    before = table.copy(deep=True)
    fit_all_reduce(table, min_bytes=MIB)
    pd.testing.assert_frame_equal(table, before)


def test_nullable_columns_and_repeated_labels_are_fine():
    table = timings(Ring(LINK), SIZES).astype({"nbytes": "Int64", "n_workers": "Int64"})
    table.index = [0] * len(table)
    assert fit_all_reduce(table).model.link.beta / LINK.beta == pytest.approx(1)


def test_a_negative_latency_is_held_at_zero_with_a_warning():
    # seconds = 1e-9 nbytes - 1e-7 asks for alpha < 0; beta alone, with errors in proportion to it,
    # is then the mean of seconds / bytes
    nbytes = np.array([1e3, 1e4, 1e5])
    table = timings(Affine(LINK), nbytes, workers=[2]).assign(seconds=1e-9 * nbytes - 1e-7)
    with pytest.warns(UserWarning, match="alpha came out at -.*held at 0"):
        fit = fit_all_reduce(table, kind=Affine)
    mean = np.mean(1e-9 - 1e-7 / nbytes)
    assert fit.model.link.alpha == 0 and fit.model.link.beta == pytest.approx(mean)
    assert fit.card().loc["alpha", ["value", "low", "high"]].tolist() == ["0", "", ""]


def test_a_negative_bandwidth_is_held_at_zero_with_a_warning():
    table = timings(Affine(LINK), [1e3, 1e6], workers=[2]).assign(seconds=[2e-3, 1e-3])
    with pytest.warns(UserWarning, match="beta came out at -.*held at 0"):
        fit = fit_all_reduce(table, kind=Affine)
    assert fit.model.link.alpha == pytest.approx(1.5e-3)  # the mean of the times
    assert fit.card().loc["1/beta", "value"] == "unbounded"


@pytest.mark.parametrize("sizes", [[2**20], [2**20, 2**20, 2**20]])
def test_one_distinct_row_cannot_tell_alpha_from_beta(sizes):
    with pytest.raises(ValueError, match="two or more"):
        fit_all_reduce(timings(Ring(LINK), sizes, workers=[8]))


def test_rows_with_the_same_ratio_cannot_tell_alpha_from_beta():
    # ring: nbytes / n_workers is the same, so a moved byte always comes with the same hops
    table = timings(Ring(LINK), [2**20], workers=[4])
    table = pd.concat([table, timings(Ring(LINK), [2**21], workers=[8])], ignore_index=True)
    with pytest.raises(ValueError, match="cannot be told apart.*2 rows to fit"):
        fit_all_reduce(table)


def test_nothing_left_to_fit_says_why():
    with pytest.raises(ValueError, match="0 rows to fit, 2 set aside .below min_bytes, 1.00 GiB"):
        fit_all_reduce(timings(Ring(LINK), [8, 16], workers=[4]), min_bytes=2**30)


def test_a_table_without_all_reduces_lists_what_it_holds():
    table = timings(Ring(LINK), SIZES).assign(op="all_gather")
    with pytest.raises(ValueError, match="all_reduce, found all_gather"):
        fit_all_reduce(table)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("seconds", 0.0),
        ("seconds", -1.0),
        ("seconds", np.nan),
        ("seconds", np.inf),
        ("nbytes", -8),
        ("nbytes", pd.NA),
        ("n_workers", 0),
        ("n_workers", pd.NA),
    ],
)
def test_an_impossible_value_is_named_with_its_row(column, value):
    table = timings(Ring(LINK), SIZES).astype({"nbytes": "Int64", "n_workers": "Int64"})
    table.loc[3, column] = value
    with pytest.raises(ValueError, match=f"{column} of row 3"):
        fit_all_reduce(table)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "ring"}, "kind: expected a class of cost.*, got 'ring'; write kind=Ring"),
        ({"kind": Link}, "kind: expected a class of cost.*, got the class Link; write kind=Ring"),
        ({"kind": LINK}, "kind: expected a class of cost.*, got Link; write kind=Ring"),
        ({"kind": lambda link: link}, "kind: expected a class of cost.*, got <lambda>; write kind"),
        ({"method": "ols"}, "method: expected one of 'wls', 'huber', 'quantile'; got 'ols'"),
        ({"weights": "none"}, "weights: expected one of 'relative', 'absolute'; got 'none'"),
        ({"outliers": "drop"}, "outliers: expected one of 'set aside', 'keep'; got 'drop'"),
        ({"quantile": 90}, "quantile: expected a number between 0 and 1, got 90"),
        ({"min_bytes": "1MiB"}, r"min_bytes: .*, got '1MiB'; write 1 MiB as 1 \* MIB"),
        ({"min_bytes": np.nan}, "min_bytes: expected one finite number of bytes, got nan"),
        ({"min_bytes": None}, "min_bytes: expected one finite number of bytes, got None"),
        ({"measurements": "sweep.csv"}, r"got 'sweep.csv'; pass .* read_measurements\(path\)"),
        ({"measurements": Path("a.csv")}, r"got PosixPath; pass .* read_measurements\(path\)"),
        ({"measurements": None}, "measurements: expected a DataFrame, got None; pass a MEASURE"),
    ],
)
def test_an_argument_of_another_kind_is_refused_with_what_to_write(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit_all_reduce(**({"measurements": timings(Ring(LINK), SIZES)} | arguments))


def test_a_fit_is_not_fitted_again():
    with pytest.raises(ValueError, match="measurements: expected a DataFrame, got Fit; pass a ME"):
        fit_all_reduce(fit_all_reduce(timings(Ring(LINK), SIZES)))


def test_a_size_in_words_is_named_with_its_row():
    table = timings(Ring(LINK), SIZES).astype({"nbytes": object})
    table.loc[3, "nbytes"] = "1 MiB"
    with pytest.raises(ValueError, match="nbytes of row 3: .*got 1 MiB"):
        fit_all_reduce(table)


def test_one_row_is_said_in_the_singular():
    with pytest.raises(ValueError, match="got 1 row to fit, 0 set aside"):
        fit_all_reduce(timings(Ring(LINK), [2**20], workers=[8]))


def test_a_fit_reads_in_two_lines():
    # the known link is 20 us and 0.2 ns a byte, so 5 GB/s; ten sizes by three numbers of workers
    assert repr(fit_all_reduce(timings(Ring(LINK), SIZES))).splitlines()[0] == (
        "Fit of Ring: alpha 20 us a hop, bandwidth 5 GB/s moved"
    )
    noisy = fit_all_reduce(timings(Ring(LINK), SIZES, noise=0.05))
    mean = 100 * np.abs(noisy.relative_errors()).mean()
    assert repr(noisy).splitlines()[1:] == [
        f"  mean error {mean:.3g} % over 30 points, 0 set aside; fit.card() tells more"
    ]


def test_a_fit_without_a_price_a_byte_reads_unbounded():
    table = timings(Affine(LINK), [1e3, 1e6], workers=[2]).assign(seconds=[2e-3, 1e-3])
    with pytest.warns(UserWarning, match="beta came out"):
        assert "bandwidth unbounded" in repr(fit_all_reduce(table, kind=Affine))


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match="missing column seconds"):
        fit_all_reduce(timings(Ring(LINK), SIZES).drop(columns="seconds"))
