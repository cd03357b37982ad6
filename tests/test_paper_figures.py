"""The figures of a paper's argument show what their tables hold, and can be read in every venue."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from figure_tables import (
    ERRORS,
    claimed,
    curves,
    gains,
    losses,
    paper_axes,
    rows,
    texts,
    three_gradients,
    timed,
    ways,
)
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from workbench import MS
from workbench.costs import Piecewise, Ring
from workbench.figures import (
    VENUES,
    draw_adaptive,
    draw_buffers,
    draw_claims,
    draw_errors,
    draw_factors,
    draw_forecast,
    draw_models,
    draw_overlap,
    draw_regimes,
    faults,
    name_marks,
    paper,
    remark,
)
from workbench.figures.labels import KNOWN, apart, looks
from workbench.fits import fit_all_reduce
from workbench.timeline import predict
from workbench.whatif import factors, optimal
from workbench.whatif.one_at_a_time import VARIED

SOME_VENUES = [
    "acm-sigconf",
    "neurips",
    *(pytest.param(name, marks=pytest.mark.all) for name in ("ieee", "lncs")),
]


@pytest.fixture
def ax():
    with paper_axes() as ax:
        yield ax


# --- names and looks ------------------------------------------------------------------------------


def test_known_models_look_alike_whatever_else_is_drawn():
    one = looks(["VGG-16-BN"])["VGG-16-BN"]
    among = looks(["mine", "VGG-16-BN", "ResNet-50"])
    assert among["VGG-16-BN"] == one
    assert len({to_hex(look["color"]) for look in among.values()}) == 3
    assert len({look["marker"] for look in looks([*KNOWN, "a", "b"]).values()}) == len(KNOWN) + 2


def test_a_lone_run_of_ones_own_is_in_no_models_colour():
    mine = looks(["mine"])["mine"]["color"]
    assert to_hex(mine) not in {to_hex(look["color"]) for look in looks(KNOWN).values()}


def test_heights_are_moved_apart_by_the_gap_and_stay_on_the_axes():
    assert apart([0.1, 0.5, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.45, 0.55, 0.9])
    assert apart([1.0, 1.0, 1.0], 0.1) == pytest.approx([0.8, 0.9, 1.0])


def test_heights_apart_are_the_nearest_possible(rng):
    wanted = np.sort(rng.uniform(0.2, 0.8, 4))
    found, gap = apart(wanted, 0.08), 0.08
    grid = np.linspace(0.1, 0.9, 41)
    best = min(
        ((a - wanted[0]) ** 2 + (b - wanted[1]) ** 2 + (c - wanted[2]) ** 2 + (d - wanted[3]) ** 2)
        for a in grid
        for b in grid[grid >= a + gap - 1e-9]
        for c in grid[grid >= b + gap - 1e-9]
        for d in grid[grid >= c + gap - 1e-9]
    )
    assert ((found - wanted) ** 2).sum() <= best + 1e-9
    assert (np.diff(found) >= gap - 1e-12).all()


# --- scaling by model -----------------------------------------------------------------------------


def test_a_model_has_a_line_of_predictions_marks_and_its_name_at_its_end(ax):
    assert draw_models(ax, curves(), words="the cluster") is ax
    line, marks = ax.lines[0], ax.lines[1]
    assert line.get_xydata().tolist() == [[8, 0.9], [16, 0.8]]
    assert marks.get_ydata()[0] == 0.91 and marks.get_linestyle() == "None"
    assert set(texts(ax)) == {"the cluster", "ResNet-50", "VGG"}
    (name,) = [text for text in ax.texts if text.get_text() == "VGG"]
    assert to_hex(name.get_color()) == to_hex(ax.lines[2].get_color())


def test_devices_of_one_model_share_its_colour(ax):
    draw_models(ax, curves(model="ResNet-50", gpu=["K80", "K80", "V100", "V100"]), by="gpu")
    marks = [line for line in ax.lines if line.get_linestyle() == "None"]
    assert len({to_hex(line.get_markeredgecolor()) for line in marks}) == 1
    assert len({line.get_marker() for line in marks}) == 2


def grounds(ax) -> list[tuple]:
    return [(p.get_x(), p.get_x() + p.get_width()) for p in ax.patches]


@pytest.mark.parametrize("timed", [4, 8, 80, [4, 8]])
def test_workers_that_were_not_timed_are_on_the_same_grey_ground_in_curves_and_forecast(ax, timed):
    n = np.unique([2, 4, 8, 16, *np.atleast_1d(timed)])
    table = pd.DataFrame({"n_workers": n, "predicted": 0.9, "model": "a"})
    draw_models(ax, table, fitted_to=timed)
    band = pd.DataFrame({"n_workers": n, "scaling_factor": 0.9, "low": 0.8, "high": 1.0})
    beyond = np.where(np.isin(n, timed), 1.0, 2.0)
    band = band.assign(median=0.9, extrapolated=beyond, why=np.where(beyond > 1, "n_workers", ""))
    other = Figure().subplots()
    draw_forecast(other, band)
    assert grounds(ax) == grounds(other)
    low, high = np.min(timed), np.max(timed)
    assert not [1 for a, b in grounds(ax) if a < high and b > low], "what was timed is white"
    assert all(any(a < each < b for a, b in grounds(ax)) for each in n if not low <= each <= high)


def test_a_lone_curve_is_named_above_its_panel_and_takes_no_room_beside_it(ax):
    draw_models(ax, pd.DataFrame({"n_workers": [1, 8], "predicted": 0.9, "model": "a-$run$"}))
    (text,) = [each for each in ax.texts if each.get_text()]
    assert text.get_text() == "a-$run$" and not text.get_parse_math()
    assert text.get_position() == (0, 1.02)


# --- timelines ------------------------------------------------------------------------------------


def spans(collection):
    return [path.get_extents().intervalx.tolist() for path in collection.get_paths()]


def test_each_way_is_a_row_whose_exposed_part_begins_with_the_end_of_backward(ax):
    found = ways()
    draw_overlap(ax, found)
    assert rows(ax) == ["worker", *found]
    last = [each.timeline["end_s"].iloc[-1] / MS for each in found.values()]
    bars = [span for each in ax.collections for span in spans(each) if span[1] - span[0] > 1e-9]
    for end in last:
        assert any(span == pytest.approx([100, end]) for span in bars)
    assert f"1 message\nfactor {found['no overlap'].scaling_factor:.3f}" in texts(ax)
    assert f"3 messages\nfactor {found['fused'].scaling_factor:.3f}" in texts(ax)


def test_a_tick_is_where_each_message_is_ready(ax):
    draw_overlap(ax, {"per tensor": predict(three_gradients())})
    ready = [segment[0][0] for segment in ax.collections[-1].get_segments()]
    assert ready == pytest.approx([20, 50, 100])


# --- buffers, factors -----------------------------------------------------------------------------


def test_the_star_is_the_best_buffer_and_the_dotted_line_the_optimum(ax):
    table = losses("mine")
    draw_buffers(ax, table, at=4)
    curve, optimum, star, today = ax.lines
    assert curve.get_ydata().tolist() == table["scaling_factor"].tolist()
    assert optimum.get_ydata()[0] == pytest.approx(
        predict(optimal(three_gradients())).scaling_factor
    )
    assert star.get_ydata()[0] == table["scaling_factor"].max()
    assert today.get_xdata()[0] == 4
    assert ax.get_ylim()[0] < table["scaling_factor"].min()


@pytest.fixture(scope="module")
def factor_table():
    return factors(three_gradients()).assign(model="mine")


def test_each_factor_has_a_panel_and_a_mark_where_it_is_today(factor_table):
    fig, axes = plt.subplots(2, 3, sharey=True)
    draw_factors(axes, factor_table)
    today = predict(three_gradients()).scaling_factor
    for ax, factor in zip(axes.flat, VARIED, strict=True):
        assert ax.get_xlabel().startswith(factor)
        curve, mark = ax.lines
        mine = factor_table[factor_table["factor"] == factor]
        assert curve.get_ydata().tolist() == mine["scaling_factor"].tolist()
        assert mark.get_ydata().tolist() == pytest.approx([today])
    assert texts(axes[0, 0]) == [] and texts(axes[1, 2]) == ["mine"]
    plt.close(fig)


# --- gains, errors, claims ------------------------------------------------------------------------


def test_the_claimed_band_lies_between_its_two_gains(ax):
    draw_adaptive(ax, gains(constant=[0.4, 0.7], adaptive=[0.6, 0.8], model="ResNet-50"))
    (band,) = ax.collections
    inside = band.get_paths()[0].contains_point
    assert inside((0.3, 0.3 * 1.33)) and not inside((0.3, 0.3 * 1.31))
    assert inside((0.3, 0.3 * 2.49)) and not inside((0.3, 0.3 * 2.51))
    assert not inside((0.8, 0.99))  # no gain of a third is left above 1 / 1.322
    assert ax.lines[-1].get_xydata().tolist() == [[0.4, 0.6], [0.7, 0.8]]


def test_errors_stand_in_rows_with_their_mean_and_number(ax):
    draw_errors(ax, ERRORS)
    drawn = {tuple(line.get_xdata()) for line in ax.lines}
    assert {(10.0, -20.0), (5.0,)} <= {tuple(np.round(each, 9)) for each in drawn}
    assert "15.0 % (2)" in texts(ax) and "5.0 % (1)" in texts(ax)
    assert ax.patches[0].get_x() == pytest.approx(-8.4)


@pytest.mark.parametrize("venue", SOME_VENUES)
def test_claims_are_told_whole_and_leave_the_plot_a_fifth_of_the_width(venue):
    data = Path(__file__).parents[1] / "data" / "published" / "claims.csv"
    shipped = pd.read_csv(data, comment="#")
    numbers = {"claimed_low": 32.2, "ours_low": 32.2, "claimed_high": 150.1, "ours_high": 150.1}
    table = claimed(work=shipped["work"], claim=shipped["claim"], ratio=0.5, **numbers)
    with plt.rc_context(paper(venue, len(VENUES[venue].widths))):
        width = plt.rcParams["figure.figsize"][0]
        fig, ax = plt.subplots(figsize=(width, 4.4))
        draw_claims(ax, table)
        fig.draw_without_rendering()
    told = [label.get_text().replace("\n", " ") for label in ax.get_yticklabels()]
    assert told == (table["work"] + ": " + table["claim"]).tolist()
    assert ax.get_position().width > 0.2
    assert faults(fig).empty, faults(fig).to_string()
    plt.close(fig)


def test_a_claim_is_a_row_at_its_ratio_with_both_numbers(ax):
    draw_claims(ax, claimed())
    assert ax.lines[-1].get_xydata().tolist() == [[1.5, 0]]
    assert "3× / 2×" in texts(ax)
    (label,) = ax.get_yticklabels()
    assert label.get_text() == "$A$: that" and not label.get_parse_math()


# --- regimes --------------------------------------------------------------------------------------


def test_a_corner_has_a_dotted_line_up_to_the_price_and_regimes_their_numbers(ax):
    sizes = np.rint(2.0 ** np.arange(10, 28, 1 / 3))
    bent = Piecewise(Ring, 1e-6, (4e-9, 0.2e-9), (65536.0,))
    fit = fit_all_reduce(timed((8,), sizes, bent).assign(seconds=bent(sizes, 8)), kind=Piecewise)
    draw_regimes(ax, fit)
    dotted = [line for line in ax.lines if line.get_linestyle() == ":"]
    at = 8 * 65536
    assert [line.get_xdata()[0] for line in dotted] == pytest.approx([at], rel=0.02)
    assert dotted[0].get_ydata()[1] == pytest.approx(bent(at, 8) / MS, rel=0.02)
    assert {"1", "2"} <= set(texts(ax))


# --- every venue ----------------------------------------------------------------------------------


@pytest.mark.parametrize("venue", SOME_VENUES)
def test_panels_can_be_read_in_every_venue(venue, factor_table):
    style = paper(venue, len(VENUES[venue].widths))
    width = style["figure.figsize"][0]
    three = pd.concat([factor_table.assign(model=name) for name in KNOWN[:3]])
    with plt.rc_context(style):
        fig, axes = plt.subplots(2, 3, sharey=True, figsize=(width, 3.6))
        draw_factors(axes, three)
        remark(fig, "our reconstruction; BERT-Base: synthetic ready times; 32 workers")
        scaled, panels = plt.subplots(2, 2, sharey=True, figsize=(width, 3.7))
        for panel in panels.flat:
            draw_models(panel, curves(), words="Pollux, from 4 nodes", fitted_to=8)
        name_marks(scaled)
    for each in (fig, scaled):
        assert faults(each).empty, faults(each).to_string()
        plt.close(each)


def test_what_is_below_a_figure_is_text_whatever_it_holds(ax):
    remark(ax.figure, "run $x$_<b>")
    assert ax.figure.get_supxlabel() == "run $x$_<b>"
    (told,) = ax.figure.findobj(lambda each: getattr(each, "get_text", str)() == "run $x$_<b>")
    assert not told.get_parse_math()
