"""What the figures of the validation show is what their tables hold."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from workbench.figures import draw_gain, draw_parity
from workbench.validation.cells import VALIDATION
from workbench.validation.gain import GAIN


@pytest.fixture
def ax():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def cells(quantity, **columns):
    row = dict.fromkeys(VALIDATION, "x") | {"quantity": quantity}
    return pd.DataFrame(columns).assign(**{k: v for k, v in row.items() if k not in columns})


def gains():
    rows = [("a", 0.2, "big"), ("b", 0.5, "big"), ("a", 0.001, "small")]
    table = pd.DataFrame(rows, columns=["model", "gain", "baseline"])
    return table.assign(**{name: 0.0 for name in GAIN if name not in table})


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
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "within 10 %" in labels


def test_times_stay_within_the_axes(ax):
    table = cells("s an iteration", model=["a", "b"], measured=[0.5, 2.0], predicted=[0.7, 2.5])
    draw_parity(ax, table, by="model")
    assert ax.get_xlim()[1] > 2.5
    assert ax.get_xlabel() == "measured (s an iteration)"


def test_panels_to_be_compared_have_one_reach(ax):
    table = cells("s an iteration", method=["a"], measured=[0.5], predicted=[0.7])
    draw_parity(ax, table, up_to=4.0)
    assert ax.get_xlim() == ax.get_ylim() == (0.0, 4.0)
    with pytest.raises(ValueError, match="up_to: expected a number above 0, got -1"):
        draw_parity(ax, table, up_to=-1)


def test_a_crowd_is_drawn_smaller_than_its_legend(ax):
    table = cells("s an iteration", method=["a"] * 300, measured=np.linspace(1, 2, 300))
    draw_parity(ax, table.assign(predicted=1.5))
    (shown,) = (h for h in ax.get_legend().get_lines() if h.get_marker() == "o")
    assert marks(ax)["a"].get_markersize() < shown.get_markersize()


def test_quantities_are_not_mixed(ax):
    table = cells("scaling factor", measured=[0.5], predicted=[0.5])
    mixed = pd.concat([table, table.assign(quantity="s")])
    with pytest.raises(ValueError, match="expected one in the table, got 'scaling factor, s'"):
        draw_parity(ax, mixed)


def test_gains_are_drawn_in_per_cent_beside_their_baseline(ax):
    assert draw_gain(ax, gains()) is ax
    drawn = marks(ax)
    assert drawn["a"].get_xdata().tolist() == pytest.approx([20.0, 0.1])
    assert np.round(drawn["a"].get_ydata()).tolist() == [0, 1]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["big", "small"]


def test_losses_and_gains_beyond_the_claim_are_drawn_too(ax):
    draw_gain(ax, gains().assign(gain=[-0.03, 0.001, 2.9]))
    low, high = ax.get_xlim()
    assert low < -3.0 and high > 290.0


def test_the_claimed_range_is_shaded(ax):
    draw_gain(ax, gains())
    box = ax.patches[0].get_extents().transformed(ax.transData.inverted())
    assert (box.x0, box.x1) == pytest.approx((32.2, 150.0))


@pytest.mark.parametrize("draw", [draw_parity, draw_gain])
def test_empty_tables_are_refused(ax, draw):
    names = list(VALIDATION) if draw is draw_parity else list(GAIN)
    with pytest.raises(ValueError, match="no rows"):
        draw(ax, pd.DataFrame(columns=names))
