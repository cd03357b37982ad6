"""Figures of a fit: points, lines, bands, what is set aside or extrapolated, and residuals."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from figure_tables import SIZES, legend, paper_axes, steep, timed, wide
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from workbench import KIB, MIB
from workbench.costs import FlatRing, Interpolated, Link, Piecewise, Ring
from workbench.figures import draw_fit, draw_influence, draw_qq, draw_residuals, faults
from workbench.fits import curves, fit_all_reduce, fit_batch_time, residuals


@pytest.fixture
def ax():
    with paper_axes(ratio=0.75) as ax:
        yield ax


def drawn(ax) -> dict:
    """Every line of an Axes by what it is: points, solid, dashed."""
    kinds = {"points": [], "hollow": [], "-": [], "--": []}
    for line in ax.lines:
        if line.get_linestyle() == "None":
            hollow = line.get_markerfacecolor() == "none"
            kinds["hollow" if hollow else "points"].append(line)
        elif line.get_transform() == ax.transData:
            kinds["-" if line.get_linestyle() == "-" else "--"].append(line)
    return kinds


# --- draw_fit -------------------------------------------------------------------------------------


def test_every_measured_point_is_shown_with_the_line_of_its_workers(ax):
    assert draw_fit(ax, fit_all_reduce(timed())) is ax
    kinds = drawn(ax)
    assert [line.get_xdata().tolist() for line in kinds["points"]] == [SIZES.tolist()] * 2
    shown = np.concatenate([line.get_ydata() for line in kinds["points"]])
    assert shown == pytest.approx(timed()["seconds"] * 1000)
    four, eight = kinds["-"]
    # 4 workers: 6 hops of alpha and 1.5 bytes moved a byte; 8: 14 hops and 1.75 bytes; in ms
    assert four.get_ydata() == pytest.approx(0.06 + 1.5e-6 * four.get_xdata(), rel=0.02)
    assert eight.get_ydata() == pytest.approx(0.14 + 1.75e-6 * eight.get_xdata(), rel=0.02)
    assert legend(ax) == ["4 workers", "8 workers", "95 % of timings"]
    ax.figure.canvas.draw()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("message size", "time (ms)")
    assert "4 MiB" in [text.get_text() for text in ax.get_xticklabels()]


def test_the_figure_tells_the_card_with_its_intervals(ax):
    fit = fit_all_reduce(timed())
    draw_fit(ax, fit)
    text, card = ax.texts[0].get_text(), fit.card()
    for row in ("alpha", "1/beta"):
        for column in ("value", "unit", "low", "high"):
            assert card.loc[row, column] in text
    assert f"mean error {card.loc['mean absolute relative error', 'value']} %" in text
    ax.clear()
    draw_fit(ax, fit, card=False)
    assert not ax.texts
    draw_fit(ax, fit_all_reduce(timed((8,))))
    assert "latency not determined\n" in ax.texts[0].get_text()


def test_the_band_holds_what_predict_says_of_a_single_timing(ax):
    fit = fit_all_reduce(wide())
    draw_fit(ax, fit)
    vertices = ax.collections[0].get_paths()[0].vertices
    band = fit.predict(MIB, 4)
    at = vertices[np.isclose(vertices[:, 0], MIB)][:, 1]
    assert at.min() == pytest.approx(band["predicted_low"][0] * 1000)
    assert at.max() == pytest.approx(band["predicted_high"][0] * 1000)


def test_the_legend_says_the_level_of_the_band_if_there_is_one(ax):
    fit = fit_all_reduce(timed())
    draw_fit(ax, fit, curves(fit, level=0.8))
    assert "80 % of timings" in legend(ax)
    ax.clear()
    draw_fit(ax, fit_all_reduce(timed((4,), SIZES[:2])))
    assert "95 % of timings" not in legend(ax)


def test_rows_set_aside_are_hollow_and_named(ax):
    rows = wide()
    rows.loc[rows.index[3], "seconds"] *= 4
    fit = fit_all_reduce(rows, min_bytes=4 * KIB)
    draw_fit(ax, fit)
    hollow = [xy for line in drawn(ax)["hollow"] for xy in line.get_xydata()[:, 0].tolist()]
    assert sorted(hollow) == [KIB, KIB, 64 * KIB]
    assert "aside: below min_bytes (2)" in legend(ax)
    assert "aside: outlier at 64 KiB" in legend(ax)


def test_the_legend_shows_what_is_set_aside_as_it_is_drawn(ax):
    rows = wide((4, 8, 16))
    rows.loc[(rows["n_workers"] == 8) & (rows["nbytes"] == 64 * KIB), "seconds"] *= 4
    draw_fit(ax, fit_all_reduce(rows))
    entry = next(i for i, label in enumerate(legend(ax)) if label.startswith("aside"))
    marks = ax.get_legend().findobj(mpl.lines.Line2D)
    hollow = {m.get_marker() for m in marks if m.get_markerfacecolor() == "none"}
    (drawn_so,) = {m.get_marker() for m in drawn(ax)["hollow"] if len(m.get_xdata())}
    assert entry and hollow == {drawn_so} and drawn_so != "o"


def test_timings_that_were_not_fitted_are_crosses_in_the_legend(ax):
    fit, more = fit_all_reduce(wide()), wide((16,))
    draw_fit(ax, fit, curves(fit, n_workers=[4, 16]), measured=more)
    (crosses,) = (line for line in ax.lines if line.get_marker() == "x")
    assert crosses.get_ydata() == pytest.approx(1000 * more["seconds"])
    assert "measured, 16 workers" in legend(ax)


def test_bandwidths_of_regimes_are_told_under_their_unit(ax):
    draw_fit(ax, fit_all_reduce(steep(), Piecewise))
    lines = ax.texts[0].get_text().splitlines()
    at = lines.index("bandwidth, GB/s moved:")
    assert [line.split(":")[0] for line in lines[at + 1 : at + 4]] == ["  1", "  2", "  3"]


def test_the_only_bandwidth_has_no_number(ax):
    cost = Piecewise(Ring, 5e-5, (1e-9,), (), 1e-3)
    draw_fit(ax, fit_all_reduce(wide((2, 4, 8), cost), Piecewise))
    (line,) = (x for x in ax.texts[0].get_text().splitlines() if x.startswith("bandwidth"))
    assert line.startswith("bandwidth 0.99") or line.startswith("bandwidth 1 (")
    assert line.endswith("GB/s moved")


def test_sizes_that_were_not_fitted_are_dashed_on_grey_ground(ax):
    draw_fit(ax, fit_all_reduce(timed()))
    assert "sizes not fitted" not in legend(ax)
    ax.clear()
    draw_fit(ax, fit_all_reduce(wide(), min_bytes=MIB))
    assert "sizes not fitted" in legend(ax)
    for line in drawn(ax)["-"]:
        assert np.nanmin(np.where(np.isnan(line.get_ydata()), np.nan, line.get_xdata())) == MIB
    for line in drawn(ax)["--"]:
        ends = line.get_xdata()[~np.isnan(line.get_ydata())]
        assert ends.min() == KIB and MIB in ends  # it meets the solid one
    (ground,) = (patch for patch in ax.patches if to_hex(patch.get_facecolor()) == "#efefef")
    assert KIB / 2 < ground.get_x() < KIB and MIB / 2 < ground.get_x() + ground.get_width() < MIB


def test_workers_that_were_not_timed_are_dashed_and_called_extrapolated(ax):
    fit = fit_all_reduce(wide())
    draw_fit(ax, fit, curves(fit, n_workers=[4, 64]))
    assert legend(ax)[:2] == ["4 workers", "64 workers, extrapolated"]
    solid = [~np.isnan(line.get_ydata()) for line in drawn(ax)["-"]]
    assert [shown.any() for shown in solid] == [True, False]


def test_of_many_numbers_of_workers_five_are_drawn(ax):
    draw_fit(ax, fit_all_reduce(wide(range(2, 33))))
    assert legend(ax)[:5] == [f"{n} workers" for n in (2, 4, 8, 16, 32)]


def test_a_batch_is_drawn_over_its_samples(ax):
    rows = pd.DataFrame({"batch": [8, 16, 32, 64], "seconds": [0.03, 0.05, 0.091, 0.17]})
    draw_fit(ax, fit_batch_time(rows))
    assert ax.get_xlabel() == "batch"
    assert drawn(ax)["points"][0].get_ydata() == pytest.approx([30, 50, 91, 170])
    assert "growing by 2.5" in ax.texts[0].get_text()


def flat_links() -> pd.DataFrame:
    """Six workers per node: beyond, the time of a byte is four times as long."""
    cost = FlatRing(Link(1e-5, 2e-10), Link(3e-5, 8e-10), 6)
    table = timed(range(2, 33), KIB * 2 ** np.arange(4, 18, 2), cost)
    return table.assign(n_nodes=-(-table["n_workers"] // 6))


FITS = {
    "with rows aside": lambda: fit_all_reduce(wide((2, 4, 8)), min_bytes=16 * KIB),
    "regimes": lambda: fit_all_reduce(steep(), Piecewise),
    "two links": lambda: fit_all_reduce(flat_links(), FlatRing),
    "far": lambda: fit_all_reduce(wide((2, 64)), min_bytes=16 * KIB),
    "joined": lambda: fit_all_reduce(wide(), Interpolated),
}


@pytest.mark.parametrize("name", FITS)
def test_no_text_overlaps_leaves_the_figure_or_hides_a_point_or_a_line(ax, name):
    fit = FITS[name]()
    before = fit.measurements.copy(), fit.set_aside.copy()
    draw_fit(ax, fit)
    assert set(faults(ax.figure)["what"]) <= {"not told apart"}
    pd.testing.assert_frame_equal(fit.measurements, before[0])
    pd.testing.assert_frame_equal(fit.set_aside, before[1])


# --- residuals ------------------------------------------------------------------------------------


def test_residuals_are_in_percent_against_size(ax):
    fit = fit_all_reduce(timed())
    assert draw_residuals(ax, fit) is ax
    shown = np.concatenate([line.get_ydata() for line in drawn(ax)["points"]])
    assert shown == pytest.approx(100 * fit.relative_errors())
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("message size", "error (%)")
    ax.clear()
    draw_residuals(ax, fit, "n_workers")
    assert ax.get_xticks().tolist() == [4, 8]
    assert ax.get_xlabel() == "workers"


def test_four_axes_take_size_workers_quantiles_and_influence():
    axes, other = Figure().subplots(2, 2), Figure().subplots(2, 2)
    assert draw_residuals(axes, fit_all_reduce(timed())) is axes
    labels = ["message size", "workers", "normal quantile", "leverage"]
    assert [ax.get_xlabel() for ax in axes.ravel()] == labels
    draw_residuals(other, fit_all_reduce(timed((8,))))  # one number of workers: no panel
    labels.remove("workers")
    assert [ax.get_xlabel() for ax in other.ravel() if ax.axison] == labels
    assert other[1, 1].texts[0].get_text() == "all with 8 workers"


def test_quantiles_of_a_normal_lie_on_the_line(ax):
    table = residuals(fit_all_reduce(timed()))
    draw_qq(ax, table.assign(standardised=table["normal"]))
    x, y = np.concatenate([line.get_xydata() for line in drawn(ax)["points"]]).T
    assert x == pytest.approx(y) and len(x) == len(table)
    assert ax.lines[0].get_xdata() == pytest.approx(ax.lines[0].get_ydata())


def test_a_row_that_moves_the_fit_is_ringed_and_counted(ax):
    table = residuals(fit_all_reduce(timed()))
    table.loc[2, "cook"] = 1.5
    draw_influence(ax, table)
    (ring,) = drawn(ax)["hollow"]
    assert ring.get_xdata().tolist() == [table["leverage"][2]]
    assert ax.texts[0].get_text() == "1 of 10 with Cook's distance above 1"


def test_points_of_many_workers_are_drawn_as_one(ax):
    draw_residuals(ax, fit_all_reduce(wide(range(2, 12))))
    assert len(drawn(ax)["points"]) == 1
