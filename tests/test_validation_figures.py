"""What the figures of the validation show is what their tables hold."""

import numpy as np
import pytest
from figure_tables import cells, gains, legend, paper_axes, rows

from workbench.figures import draw_gain, draw_parity


@pytest.fixture
def ax():
    with paper_axes() as ax:
        yield ax


def marks(ax):
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def test_every_cell_is_a_mark_of_its_group(ax):
    table = cells("scaling factor", method=list("aab"), measured=[0.2, 0.4, 0.9])
    table["predicted"] = [0.3, 0.4, 0.8]
    assert draw_parity(ax, table) is ax
    drawn = marks(ax)
    assert drawn["a"].get_xydata().tolist() == [[0.2, 0.3], [0.4, 0.4]]
    assert drawn["b"].get_xydata().tolist() == [[0.9, 0.8]]
    assert drawn["a"].get_marker() != drawn["b"].get_marker()
    assert ax.get_xlim() == ax.get_ylim() == (0.0, 1.05)


def test_the_band_is_as_wide_as_it_says(ax):
    table = cells("scaling factor", method=["a"], measured=[0.5], predicted=[0.5])
    draw_parity(ax, table, within=0.1)
    corners = ax.collections[0].get_paths()[0].vertices
    at_one = corners[np.isclose(corners[:, 0], 1.05)]
    assert (at_one[:, 1].min(), at_one[:, 1].max()) == pytest.approx((0.945, 1.155))
    assert "within 10 %" in legend(ax)


def test_times_stay_within_the_axes_and_panels_to_be_compared_have_one_reach(ax):
    table = cells("s per iteration", model=["a", "b"], measured=[0.5, 2.0], predicted=[0.7, 2.5])
    draw_parity(ax, table, by="model")
    assert ax.get_xlim()[1] > 2.5
    assert ax.get_xlabel() == "measured (s per iteration)"
    draw_parity(ax, table, by="model", up_to=4.0)
    assert ax.get_xlim() == ax.get_ylim() == (0.0, 4.0)


def test_a_crowd_is_drawn_smaller_than_its_legend(ax):
    table = cells("s an iteration", method=["a"] * 300, measured=np.linspace(1, 2, 300))
    draw_parity(ax, table.assign(predicted=1.5))
    (shown,) = (h for h in ax.get_legend().get_lines() if h.get_marker() == "o")
    assert marks(ax)["a"].get_markersize() < shown.get_markersize()


def test_gains_are_drawn_in_per_cent_beside_their_baseline(ax):
    assert draw_gain(ax, gains()) is ax
    drawn = marks(ax)
    assert drawn["a"].get_xdata().tolist() == pytest.approx([20.0, 0.1])
    assert np.round(drawn["a"].get_ydata()).tolist() == [0, 1]
    assert rows(ax) == ["big", "small"]


def test_losses_and_gains_beyond_the_claim_are_drawn_too(ax):
    draw_gain(ax, gains().assign(gain=[-0.03, 0.001, 2.9]))
    low, high = ax.get_xlim()
    assert low < -3.0 and high > 290.0


def test_the_claimed_range_is_shaded(ax):
    draw_gain(ax, gains())
    box = ax.patches[0].get_extents().transformed(ax.transData.inverted())
    assert (box.x0, box.x1) == pytest.approx((32.2, 150.0))
