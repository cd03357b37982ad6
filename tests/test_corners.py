"""Corners of a price in regimes are where its slope changes, in bytes of a message."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

from workbench.costs import Link, ParameterServer, Piecewise, Ring
from workbench.fits.diagnostics import CORNERS, corners


class PricedAs:
    """A stand-in for a Fit: a model and the measured workers."""

    def __init__(self, model, n_workers=(2, 8)):
        self.model, self.measurements = model, pd.DataFrame({"n_workers": list(n_workers)})

    def card(self):
        return None


BENT = Piecewise(Ring, 1e-5, (1e-9, 3e-9), (4096.0,))


def test_a_ring_bends_at_the_bytes_per_hop_times_workers():
    # each of n pieces of a message is one hop: S / n bytes (Thakur et al. 2005, section 4.4)
    table = corners(PricedAs(BENT))
    assert list(table) == list(CORNERS)
    assert table[["n_workers", "regime"]].values.tolist() == [[8, 1]]
    assert table["nbytes"].tolist() == pytest.approx([8 * 4096])
    assert table["seconds"].tolist() == pytest.approx([float(BENT(8 * 4096, 8))])


@pytest.mark.parametrize("kind", [Ring, partial(ParameterServer, n_servers=2)])
def test_the_slope_changes_at_the_corner(kind):
    model = Piecewise(kind, 1e-5, (1e-9, 3e-9), (4096.0,))
    at = corners(PricedAs(model), 8)["nbytes"].iloc[0]
    below, above = (np.diff(model(at * np.array(pair), 8)) for pair in ([0.8, 0.9], [1.1, 1.2]))
    assert above / below == pytest.approx(3.0)


def test_a_price_without_regimes_and_one_worker_have_none():
    assert corners(PricedAs(Ring(Link(1e-5, 1e-9)))).empty
    assert corners(PricedAs(BENT), 1).empty
