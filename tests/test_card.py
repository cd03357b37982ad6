"""The fit card: readable units, and words for numbers that are not determined."""

import pandas as pd
import pytest
from timings import LINK, timings

from workbench.costs import Piecewise, Ring
from workbench.fits import fit_all_reduce, fit_batch_time

FINE = [2.0**k for k in range(8, 29)]


@pytest.fixture(scope="module")
def regimes():
    truth = Piecewise(Ring, 50e-6, (4e-9, 0.5e-9), (2.0**14,), floor_s=1e-3)
    return fit_all_reduce(timings(truth, FINE, (4, 8, 16, 32)), Piecewise).card()


@pytest.mark.parametrize(
    ("row", "value", "unit"),
    [
        ("alpha", 50, "us per hop"),
        ("beta_1", 4, "ns per byte moved"),
        ("1/beta_2", 2, "GB/s moved"),
        ("break_1", 16, "KiB per hop"),
        ("floor", 1000, "us per message"),
    ],
)
def test_regimes_are_shown_in_the_units_of_the_field(regimes, row, value, unit):
    assert float(regimes.loc[row, "value"]) == pytest.approx(value, rel=0.05)
    assert regimes.loc[row, "unit"] == unit


def test_rows_set_aside_are_counted_by_their_reason():
    table = timings(Ring(LINK), FINE, (4, 8), noise=0.01)
    table.loc[30, "seconds"] *= 5
    card = fit_all_reduce(table, min_bytes=2**10).card()
    assert card.loc["points", ["value", "unit"]].tolist() == ["37", "and 5 set aside"]
    assert card.loc["set aside: outlier", "value"] == "1"
    assert card.loc["set aside: below min_bytes, 1.00 KiB", "value"] == "4"


def test_a_batch_is_shown_in_milliseconds():
    table = pd.DataFrame({"batch": ["1", "8", "64"], "seconds": [6e-3, 13e-3, 69e-3]})
    card = fit_batch_time(table).card()
    assert card.loc["fixed_s", ["value", "unit"]].tolist() == ["5", "ms"]
    assert card.loc["per_sample_s", ["value", "unit"]].tolist() == ["1", "ms per sample"]
    assert card.loc["batch", "value"] == "1 to 64"
