"""Faults of a figure are found where they are, and our own figures have none."""

import re
import shutil
import subprocess

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import test_advice_figures as advice
import test_figures as plain
import test_fit_figures as fit_figures
import test_validation_figures as validation
from matplotlib.figure import Figure
from test_advice_figures import scenario  # noqa: F401  a fixture
from test_lanes import two_steps
from test_timeline import scenario as by_hand

from workbench import figures
from workbench.figures import faults, paper
from workbench.figures.legibility import FAULTS, _box
from workbench.fits import fit_all_reduce
from workbench.timeline import predict
from workbench.traces import load_run


def figure(rows=1, columns=1, **settings):
    with mpl.rc_context(paper() | settings):
        made = Figure()
        return made, made.subplots(rows, columns)


def told(fig, **chosen) -> list[str]:
    return faults(fig, **chosen)["what"].tolist()


@pytest.fixture
def good():
    """A figure without a fault: two curves told apart, a legend above."""
    fig, ax = figure()
    ax.plot([1, 2, 3], [1, 2, 3], "-o", color="#0A3D62", label="one")
    ax.plot([1, 2, 3], [1, 1.5, 1.7], "--s", color="#F0AE3C", label="two")
    ax.set(xlabel="workers", ylabel="time (ms)")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return fig, ax


def test_a_good_figure_has_no_fault_and_the_columns_of_the_table(good):
    found = faults(good[0])
    assert found.empty and list(found) == list(FAULTS)


# --- text -----------------------------------------------------------------------------------------


def test_text_below_the_least_size_is_found(good):
    fig, ax = good
    ax.text(0.1, 0.8, "a note", fontsize=5.5, transform=ax.transAxes)
    (row,) = faults(fig).itertuples()
    assert (row.what, row.where, row.detail) == ("too small", "'a note'", "5.5 pt, below 6 pt")
    assert told(fig, least_pt=5) == []


@pytest.mark.parametrize(
    ("text", "size", "fine"),
    [
        ("$2^{10}$", 7, True),  # the exponent has 4.9 pt, above 4.2
        ("$x_{a_b}$", 8, False),  # the index of the index has 3.9 pt
        ("$x_{a_b}$", 9, True),
        ("5 $ a month", 7, True),
    ],
)
def test_an_index_may_have_seven_tenths_of_the_least_size(good, text, size, fine):
    fig, ax = good
    ax.text(0.1, 0.8, text, fontsize=size, transform=ax.transAxes)
    assert told(fig) == [] if fine else told(fig) == ["too small"]


def test_texts_on_one_another_are_found(good):
    fig, ax = good
    for shift in (0.1, 0.15):
        ax.text(shift, 0.8, f"shifted by {shift}", fontsize=7, transform=ax.transAxes)
    (row,) = faults(fig).itertuples()
    assert row.what == "overlaps" and row.where == "'shifted by 0.1' and 'shifted by 0.15'"


def test_text_under_text_with_a_line_between_is_fine(good):
    fig, ax = good
    for height in (0.7, 0.85):
        ax.text(0.05, height, "a line of text", fontsize=7, transform=ax.transAxes)
    assert told(fig) == []


def test_ticks_that_touch_are_found():
    fig, ax = figure()
    ax.set_xlim(0, 1)
    ax.set_xticks(np.linspace(0, 1, 14), [f"{100000 + i}" for i in range(14)])
    found = faults(fig)
    assert set(found["what"]) >= {"overlaps"}
    assert found["where"].str.contains("'100003' and '100004'").any()


def test_ticks_beyond_the_ends_of_an_axis_are_not_seen():
    fig, ax = figure()
    ax.plot([0, 1], [0, 1])
    ax.set_xticks([0, 0.5, 1, 1.001], ["0", "0.5", "1", "far too close"])
    ax.set_xlim(0, 1)
    assert told(fig) == []


def test_text_that_leaves_the_figure_is_found(good):
    fig, ax = good
    note = ax.text(0.9, 0.1, "runs out of the figure", transform=ax.transAxes, fontsize=7)
    note.set_in_layout(False)  # else the layout makes room for it
    (row,) = faults(fig).itertuples()
    assert row.what == "outside" and row.detail.endswith("pt beyond the figure")


def test_hidden_text_is_no_fault(good):
    fig, ax = good
    for _ in range(2):
        ax.text(0.9, 0.1, "runs out", transform=ax.transAxes, fontsize=3, visible=False)
    ax.annotate("clipped with its point", (99, 99), fontsize=3)
    assert told(fig) == []


def test_text_on_a_curve_is_found_by_the_name_of_the_curve(good):
    fig, ax = good
    ax.text(2, 2, "in the way", ha="center", va="center", fontsize=7)
    (row,) = faults(fig).itertuples()
    assert (row.what, row.detail) == ("on marks", "one")


def test_text_on_plain_areas_and_guides_is_fine_and_on_hatches_is_not(good):
    fig, ax = good
    ax.axvline(1.2, ls=":")
    ax.fill_between([1, 1.5], 2.2, 3, color="#EFEFEF", zorder=0)
    ax.text(1.2, 2.6, "on grey", ha="center", va="center", fontsize=7)
    assert told(fig) == []
    ax.barh([2.6], [0.6], 0.5, [1], hatch="////", label="hatched")
    (row,) = faults(fig).itertuples()
    assert (row.what, row.detail) == ("on marks", "hatched")


# --- legends --------------------------------------------------------------------------------------


def test_a_legend_on_a_curve_is_found(good):
    fig, ax = good
    ax.legend(loc="center")
    (row,) = faults(fig).itertuples()
    assert (row.what, row.where, row.detail) == ("hides data", "legend of panel 1", "one")


def test_a_curve_that_crosses_a_legend_between_its_points_is_found():
    fig, ax = figure()
    ax.plot([0, 1], [0, 1], label="a curve")
    ax.legend(loc="center")
    assert told(fig) == ["hides data"]


def test_points_and_bars_under_a_legend_are_found():
    for draw in (lambda ax: ax.scatter([0, 0.5, 1], [0, 0.5, 1], label="points"),
                 lambda ax: ax.bar([0, 0.5, 1], [1, 1, 1], 0.3, label="bars"),
                 lambda ax: ax.plot([0, 0.5, 1], [0, 0.5, 1], "o", label="marks")):  # fmt: skip
        fig, ax = figure()
        draw(ax)
        ax.legend(loc="center")
        assert told(fig) == ["hides data"]


def test_a_legend_on_text_is_found(good):
    fig, ax = good
    ax.text(0.5, 1.06, "a title of sorts", transform=ax.transAxes, ha="center", fontsize=7)
    assert "overlaps" in told(fig)
    assert faults(fig)["where"].str.contains("legend and 'a title of sorts'").any()


# --- panels ---------------------------------------------------------------------------------------


def test_panels_that_are_nearly_aligned_are_found():
    fig = Figure(figsize=(7, 3))
    for left, bottom in ((0.1, 0.2), (0.6, 0.21)):  # 0.03 in: 2.2 pt
        fig.add_axes((left, bottom, 0.35, 0.7))
    found = faults(fig)
    assert found["what"].tolist() == ["not aligned"] * 2
    assert found["where"].tolist() == [
        "lower edges of panel 1 and panel 2",
        "upper edges of panel 1 and panel 2",
    ]
    assert found["detail"].tolist() == ["2.2 pt off"] * 2


def test_panels_of_one_layout_are_aligned():
    fig, axes = figure(2, 2, **{"figure.figsize": (7, 4)})
    for ax, unit in zip(axes.flat, ("ms", "a long name of a quantity (s)", "", "x"), strict=True):
        ax.set_ylabel(unit)
    assert told(fig) == []


# --- colours --------------------------------------------------------------------------------------


def curves(*looks):
    fig, ax = figure()
    for k, look in enumerate(looks):
        ax.plot([0, 1], [k, k + 0.5], **({"label": f"curve {k}"} | look))
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
    return fig


RED, GREEN = {"color": "#D62728"}, {"color": "#2CA02C"}


def test_colours_of_one_lightness_are_found_in_grey():
    (row,) = faults(curves({"color": "#D62728"}, {"color": "#1F77B4"})).itertuples()
    assert (row.what, row.where) == ("not told apart", "'curve 0' and 'curve 1'")
    assert "L* apart in grey vision" in row.detail


def test_red_and_green_are_found_for_the_colour_blind():
    # lightness differs by more than 10 L*: grey print tells them, protan eyes do not
    light, dark = {"color": "#E07000"}, {"color": "#60A020"}
    (row,) = faults(curves(light, dark)).itertuples()
    assert row.what == "not told apart"


@pytest.mark.parametrize(
    "cue", [{"marker": "o"}, {"ls": "--"}, {"dashes": (4, 1)}, {"marker": "o", "ls": ""}]
)
def test_another_cue_beside_colour_is_enough(cue):
    assert told(curves(RED, GREEN | cue)) == []


def test_the_same_dashes_twice_are_no_cue():
    assert told(curves(RED | {"dashes": (4, 1)}, GREEN | {"dashes": (4, 1)})) == ["not told apart"]


def test_bars_are_told_by_their_hatch():
    for hatch, expected in (("", ["not told apart"]), ("////", [])):
        fig, ax = figure()
        ax.bar([0, 1], [1, 1], color="#D62728", label="one")
        ax.bar([2, 3], [1, 1], color="#2CA02C", hatch=hatch, label="two")
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1))
        assert told(fig) == expected


def test_a_direct_label_tells_curves_apart():
    for named in (False, True):
        fig, ax = figure()
        for k, look in enumerate((RED, GREEN)):
            ax.plot([0, 1], [k, k], label=f"curve {k}", **look)
            if named:
                ax.text(1.05, k, f"curve {k}", fontsize=7, va="center")
        ax.set_xlim(0, 1.5)
        assert told(fig) == ([] if named else ["not told apart"])


# --- our own figures ------------------------------------------------------------------------------


@pytest.fixture
def draws(scenario, write_trace):  # noqa: F811
    """Every draw_* by its name, a function of an Axes."""
    fit = fit_all_reduce(fit_figures.timed())
    run = load_run(write_trace(two_steps(), distributedInfo={"rank": 0}))
    cells = validation.cells("s", method=list("abc"), measured=[1, 2, 3.0], predicted=[1, 2, 2.5])
    steps = predict(by_hand()).explain()
    drawn = {name: lambda ax, draw=draw: draw(ax, scenario) for name, draw in advice.DRAWN.items()}
    return drawn | {
        "fit": lambda ax: figures.draw_fit(ax, fit),
        "fit in regimes": lambda ax: figures.draw_fit(ax, fit_all_reduce(fit_figures.steep())),
        "residuals": lambda ax: figures.draw_residuals(ax, fit),
        "qq": lambda ax: figures.draw_qq(ax, fit),
        "influence": lambda ax: figures.draw_influence(ax, fit),
        "timeline": lambda ax: figures.draw_timeline(ax, plain.TIMELINE, backward_s=0.06),
        "breakdown": lambda ax: figures.draw_breakdown(ax, plain.ITERATIONS),
        "scaling": lambda ax: figures.draw_scaling(ax, plain.SCALING, "policy", fitted_to=4, at=2),
        "run": lambda ax: figures.draw_run(ax, run),
        "step": lambda ax: figures.draw_step(ax, steps, 2, 5.0),
        "parity": lambda ax: figures.draw_parity(ax, cells),
        "gain": lambda ax: figures.draw_gain(ax, validation.gains()),
    }


@pytest.mark.parametrize("venue", ["icml", "neurips"])  # the narrowest, and the largest text
def test_no_figure_of_ours_has_a_fault(draws, venue):
    assert {name.split()[0] for name in draws} >= {"fit", "timeline", "times", "forecast", "step"}
    found = {}
    for name, draw in draws.items():
        with mpl.rc_context(paper(venue, ratio=0.8)):
            fig = Figure()
            draw(fig.subplots())
        found[name] = faults(fig)
    assert pd.concat(found).to_dict("records") == []


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="no pdftotext: poppler-utils")
def test_boxes_lie_where_the_saved_pdf_has_its_words(good, tmp_path):
    fig, ax = good
    assert faults(fig).empty
    box = _box(ax.xaxis.label, fig)
    fig.savefig(tmp_path / "page.pdf")
    words = subprocess.run(["pdftotext", "-bbox", tmp_path / "page.pdf", "-"], check=True,
                           capture_output=True, text=True).stdout  # fmt: skip
    found = re.search(r'xMin="([\d.]+)" .*xMax="([\d.]+)" .*>workers<', words)
    assert (box.x0, box.x1) == pytest.approx((float(found[1]), float(found[2])), abs=1.0)


@pytest.mark.parametrize("wrong", [{"fig": None}, {"least_pt": 0}, {"least_pt": "6"}])
def test_wrong_arguments_are_named(good, wrong):
    with pytest.raises(ValueError, match=f"faults: .*{'Figure' if 'fig' in wrong else 'least_pt'}"):
        faults(**({"fig": good[0]} | wrong))


# --- figures of others ----------------------------------------------------------------------------


def rows_of(fig) -> list[tuple]:
    return list(faults(fig).itertuples(index=False, name=None))


def test_slanted_labels_side_by_side_are_fine_and_on_one_another_are_not():
    with mpl.rc_context(paper()):
        fig = Figure()
        ax = fig.subplots()
    ax.bar([f"a longer name {k}" for k in range(6)], range(6))
    ax.tick_params(axis="x", rotation=40)
    assert not rows_of(fig)
    ax.set_xticks(np.linspace(0, 5, 40), ["a longer name"] * 40)
    assert {what for what, *_ in rows_of(fig)} == {"overlaps"}


def test_ticks_of_a_box_in_space_that_are_not_drawn_are_no_fault():
    ax = Figure(figsize=(4, 4), layout="constrained").add_subplot(projection="3d")
    ax.plot([1, 2], [1, 2], [1, 2])
    assert not [row for row in rows_of(ax.figure) if row[0] == "outside"]


def test_numbers_on_a_map_of_colours_are_fine():
    fig = Figure()
    ax = fig.subplots()
    ax.pcolormesh([[0.0, 1.0], [2.0, 3.0]])
    ax.text(0.5, 0.5, "0.0", ha="center")
    ax.contourf([[0.0, 1.0], [2.0, 3.0]])
    assert not rows_of(fig)


def test_a_legend_of_an_inset_is_named_by_its_panel():
    fig = Figure()
    ax = fig.subplots()
    inset = ax.inset_axes([0.3, 0.3, 0.6, 0.6])
    inset.plot([0, 1], [0, 1], label="line")
    inset.legend(loc="center")
    assert ("hides data", "legend of panel 2", "line") in rows_of(fig)


def test_what_is_hidden_needs_no_look_of_its_own():
    fig = Figure()
    ax = fig.subplots()
    ax.plot([0, 1], [0, 1], color="k", label="one")
    ax.plot([0, 1], [1, 0], color="k", label="other", visible=False)
    assert not rows_of(fig)


def test_text_with_dollars_that_are_no_mathematics_is_measured_as_it_is(good):
    fig, ax = good
    ax.set_xlabel("5 $ and $6 $")
    assert not rows_of(fig)
