"""Screening: what is set aside is named with its reason, and bad tables end in one sentence."""

import re

import numpy as np
import pandas as pd
import pytest
from conftest import published, refusal
from timings import LINK

from workbench.costs import FlatRing, Interpolated, Link, Ring
from workbench.fits import fit_all_reduce
from workbench.fits.screening import screen, strays

SIZES = np.array([2.0**k for k in range(2, 29)])


def table(seconds=None, n_workers=8, nbytes=SIZES) -> pd.DataFrame:
    """MEASUREMENTS of one number of workers."""
    seconds = Ring(LINK)(nbytes, n_workers) if seconds is None else seconds
    columns = {"op": "all_reduce", "n_workers": n_workers, "n_nodes": 1, "nbytes": nbytes}
    return pd.DataFrame(columns).assign(seconds=seconds)


def changed(rows, factor: float) -> pd.DataFrame:
    """The table with the times of some rows multiplied."""
    result = table()
    result.loc[rows, "seconds"] *= factor
    return result


def test_a_published_sweep_has_one_outlier_at_2_kib():
    # 202.2 us between 65.97 us at 1 KiB and 85.23 us at 4 KiB: 202.2 / sqrt(65.97 * 85.23) = 2.70
    sweep = published("dexhunter_nccl_allreduce_32gpu.csv").query("file.str.contains('stepexp2-2')")
    rows = table(sweep["time_us"].to_numpy() * 1e-6, 32, sweep["bytes"].to_numpy(float))
    _, aside = screen(rows, "all_reduce")
    assert aside["nbytes"].tolist() == [2048]
    assert aside["why"].tolist() == ["outlier: 2.7 times above its neighbours in size"]


def test_outliers_are_kept_on_request():
    rows, aside = screen(changed([12], 3.0), "all_reduce", outliers="keep")
    assert len(rows) == len(SIZES) and aside.empty


@pytest.mark.parametrize(
    ("row", "factor"), [(0, 4.0), (5, 4.0), (13, 4.0), (26, 8.0), (5, 0.3), (13, 0.3)]
)
def test_a_single_stray_is_found_wherever_it_is(row, factor):
    _, aside = screen(changed([row], factor), "all_reduce")
    assert aside.index.tolist() == [row]


def test_a_step_of_the_price_is_no_outlier():
    # an algorithm switch triples the time from one size on: both sides of it stay
    assert screen(changed(range(13, 27), 3.0), "all_reduce")[1].empty


def test_ordinary_noise_sets_nothing_aside(rng):
    for _ in range(20):
        noisy = Ring(LINK)(SIZES, 8) * (1 + 0.05 * rng.standard_normal(len(SIZES)))
        assert screen(table(noisy), "all_reduce")[1].empty


def test_what_repeats_is_no_outlier():
    # a size timed three times alike is how the library behaves; one of three off by 4 is a stray
    three = pd.concat([changed([9], 3.0)] * 3, ignore_index=True)
    factor = np.repeat([0.99, 1.0, 1.01], len(SIZES))
    three = three.assign(seconds=three["seconds"] * factor)
    assert screen(three, "all_reduce")[1].empty
    three.loc[9, "seconds"] *= 4
    assert screen(three, "all_reduce")[1].index.tolist() == [9]


def test_numbers_of_workers_are_judged_apart():
    # at 2 workers the same size costs a fraction of that at 64: neither is a stray
    both = pd.concat([table(n_workers=2), table(n_workers=64)], ignore_index=True)
    assert (strays(both["nbytes"], both["n_workers"], both["seconds"]) == "").all()


@pytest.mark.parametrize("factor", [1e3, 1e-3, 1e6])
def test_units_mixed_within_a_table_are_named_with_their_rows(factor):
    text = refusal(lambda: fit_all_reduce(changed(range(5, 9), factor)), "measurements", "4 rows")
    assert re.search(r"row (5|8) .* but row (4|9) ", text)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_impossible_bandwidths_are_named_with_their_row(factor):
    rows = table().assign(seconds=table()["seconds"] * factor)
    refusal(lambda: fit_all_reduce(rows), "measurements row", "bytes/s")


@pytest.mark.parametrize("count", [4, 8, 16])
def test_one_number_of_workers_in_milliseconds_is_named(count):
    rows = pd.concat([table(n_workers=n) for n in (4, 8, 16)], ignore_index=True)
    rows.loc[rows["n_workers"] == count, "seconds"] *= 1e3
    text = refusal(lambda: fit_all_reduce(rows), "measurements", "times as long")
    assert re.search("row (27|54) ", text)


def test_leaving_the_node_for_a_link_200_times_slower_is_no_mistake():
    # NVLink at 235 GB/s inside, 10 Gbit/s between
    truth = FlatRing(Link(3e-6, 1 / 235e9), Link(50e-6, 1 / 1.18e9), 8)
    rows = [table(truth(SIZES, n), n).assign(n_nodes=max(n // 8, 1)) for n in (2, 4, 8, 16, 32)]
    rows = pd.concat(rows, ignore_index=True)
    assert fit_all_reduce(rows, FlatRing).model.between.beta == pytest.approx(1 / 1.18e9)


def test_sizes_in_mib_are_refused():
    # 1 to 512 "bytes" of 0.2 ns a real byte: 210 us for each of them
    mib = np.array([2.0**k for k in range(10)])
    rows = table(Ring(LINK)(mib * 2**20, 8), nbytes=mib)
    refusal(lambda: fit_all_reduce(rows), "row 9", "512 bytes")
    rows = table(Ring(LINK)(mib * 2**10, 8), nbytes=mib / 2**10)
    refusal(lambda: fit_all_reduce(rows), "row 0", "0.000976562 bytes")


@pytest.mark.parametrize("name", ["nbytes", "n_workers", "seconds"])
@pytest.mark.parametrize("kind", [str, "category", object])
def test_numbers_written_otherwise_are_numbers_in_the_fit(name, kind):
    fit = fit_all_reduce(table().astype({name: kind}))
    assert fit.model == fit_all_reduce(table()).model
    assert fit.measurements[name].dtype.kind in "if" and len(fit.card())


def test_columns_that_are_labels_too_are_fine():
    rows = pd.concat([table(n_workers=n) for n in (2, 8)]).set_index(
        ["op", "n_workers"], drop=False
    )
    assert fit_all_reduce(rows).model == fit_all_reduce(rows.reset_index(drop=True)).model
    assert len(fit_all_reduce(rows, Interpolated).measurements) == 54


def test_a_million_workers_may_take_their_time():
    # 2 million hops of 20 us are 40 s
    rows = [table(n_workers=n) for n in (2, 1000, 10**6)]
    model = fit_all_reduce(pd.concat(rows, ignore_index=True)).model
    assert model.link.alpha == pytest.approx(20e-6)


def test_a_slow_office_network_is_no_mistake():
    # 1 Gbit/s and 1 ms per hop
    slow = table(Ring(Link(1e-3, 8e-9))(SIZES, 8))
    assert fit_all_reduce(slow).model.link.beta == pytest.approx(8e-9)


def test_copied_rows_are_warned_of_with_their_places():
    rows = pd.concat([table(), table().iloc[[3, 4]]], ignore_index=True)
    with pytest.warns(UserWarning, match=r"2 rows repeat another.*row 27, 28.*drop_duplicates"):
        fit_all_reduce(rows)


def test_the_measurements_are_left_as_they_were():
    rows = changed([12], 3.0)
    before = rows.copy(deep=True)
    screen(rows, "all_reduce")
    pd.testing.assert_frame_equal(rows, before)


@pytest.mark.parametrize("unit", [2.0**10, 2.0**20])
def test_sizes_that_may_be_in_kib_or_mib_are_warned_of(unit):
    # 0.5 and 300 GB/s: in bytes either is a link, in KiB or MiB it is slower than a telephone's
    cost = Ring(Link(5e-6, 2e-9 if unit < 2**20 else 1 / 300e9))
    sizes = 2.0 ** np.arange(20, 34)
    timings = table(cost(sizes, 8), nbytes=sizes)
    with pytest.warns(UserWarning, match="less than any link for training"):
        screen(timings.assign(nbytes=sizes / unit), "all_reduce")
    assert screen(timings, "all_reduce")[1].empty


def test_small_messages_that_are_all_latency_are_not_taken_for_large_ones():
    sizes = 2.0 ** np.arange(2, 10)
    assert len(screen(table(1e-3 + 1e-9 * sizes, nbytes=sizes), "all_reduce")[0]) == 8
