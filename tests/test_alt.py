"""What a figure is in words: its axes, what its curves do, and what is written in it."""

import re

import matplotlib as mpl
import numpy as np
import pytest
import test_advice_figures as advice
import test_figures as plain_figures
from matplotlib.figure import Figure
from test_fit_figures import timed

from workbench.drawing.alt import describe, plain
from workbench.drawing.style import paper, size_axis
from workbench.figures import draw_breakdown, draw_fit, draw_forecast, draw_scaling, draw_timeline
from workbench.fits import fit_all_reduce
from workbench.units import KIB, MIB


@pytest.fixture
def ax():
    with mpl.rc_context(paper()):
        yield Figure().subplots()


def words(ax) -> str:
    return describe(ax.figure)


def test_a_curve_is_told_with_its_axes_and_its_ends(ax):
    ax.plot([1, 2, 4], [1.0, 0.75, 0.5], label="one message")
    ax.set(xlabel="workers", ylabel="scaling factor", xticks=[1, 2, 4], yticks=[0.5, 1])
    expected = "Scaling factor from 0.5 to 1.0 against workers from 1 to 4. "
    assert words(ax) == expected + "Shown: one message from 1 at 1 to 0.5 at 4."


def test_a_turn_between_the_ends_is_told(ax):
    ax.plot([1, 2, 3], [2.0, 0.5, 1.0], label="loss")
    assert "loss from 2 at 1 to 1 at 3, lowest 0.5 at 2." in words(ax)
    ax.clear()
    ax.plot([1, 2, 3], [0.5, -2.0, -1.0], label="loss")
    assert "0.5 at 1 to \N{MINUS SIGN}1 at 3, lowest \N{MINUS SIGN}2 at 2" in words(ax)


def test_sizes_are_told_with_their_units(ax):
    ax.plot([64 * KIB, 16 * MIB], [1.0, 200.0], label="ring")
    size_axis(ax, 64 * KIB, 16 * MIB).set(xlabel="message size", ylabel="time (ms)")
    told = words(ax)
    assert "message size from 64 KiB to 16 MiB" in told
    assert "ring from 1 at 64 KiB to 200 at 16 MiB" in told


def test_bars_are_told_by_their_length_and_rows_by_their_names(ax):
    ax.barh([0, 1], [40, 60], label="compute")
    ax.barh([0, 1], [10, 10], left=[40, 60], label="idle")
    ax.set_yticks([0, 1], ["first", "second"])
    ax.set_xlabel("time (ms)")
    told = words(ax)
    assert "in rows: second; first" in told  # as read, from above
    assert "compute 40 to 60; idle 10." in told
    ax.invert_yaxis()
    assert "in rows: first; second" in words(ax)


def test_a_guide_is_told_by_where_it_stands(ax):
    ax.axhline(0.5, label="optimum")
    ax.axvline(3, label="today")
    assert "optimum at 0.5; today at 3" in words(ax)


def test_each_panel_is_told_in_turn():
    fig = Figure()
    for ax, name in zip(fig.subplots(1, 2), ("left", "right"), strict=True):
        ax.set(xlabel=f"{name} (ms)", xticks=[0, 1], yticks=[])
    expected = ("Panel 1 of 2: Left (ms) from 0 to 1.", "Panel 2 of 2: Right (ms) from 0 to 1.")
    assert describe(fig) == " ".join(expected)


def test_words_written_inside_are_told_and_bare_numbers_are_not(ax):
    ax.text(0.5, 0.5, "knee 8 workers")
    ax.text(0.5, 0.6, "1.31")
    told = words(ax)
    assert told.endswith("Written inside: knee 8 workers.") and "1.31" not in told


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"$\alpha$ (s)", "alpha (s)"),
        (r"$\mathdefault{10^{-3}}$", "10^-3"),
        ("5 $ an hour", "5 $ an hour"),
        ("two\nlines", "two lines"),
        (r"$x$ costs 5 \$", "x costs 5 $"),
    ],
)
def test_mathematics_becomes_plain_letters(text, expected):
    assert plain(text) == expected


def test_markup_in_a_label_stays_as_it_is(ax):
    ax.plot([0, 1], [0, 1], label="<b>bold</b>")
    assert "<b>bold</b> from 0 at 0" in words(ax)


def test_many_entries_are_counted():
    fig = Figure()
    ax = fig.subplots()
    for k in range(12):
        ax.plot([0, 1], [k, k + 1], label=f"curve {k}")
    assert describe(fig).endswith("and 4 more.")


def test_an_empty_figure_says_so():
    assert describe(Figure()) == "An empty figure."


def test_our_figures_are_told_with_their_numbers(ax):
    draw_scaling(ax, plain_figures.SCALING, "policy")
    assert "per tensor from 1 at 1 to 0.5 at 8" in words(ax)
    ax.clear()
    draw_breakdown(ax, plain_figures.ITERATIONS)
    assert "compute 60 to 70; exposed comm. and waiting 20" in words(ax)
    ax.clear()
    draw_timeline(ax, plain_figures.TIMELINE, backward_s=0.06)
    assert "rows: worker; link" in words(ax) and "backward 60" in words(ax)
    ax.clear()
    draw_forecast(ax, advice.ranges(), advice.KNEE)
    assert "predicted from 0.833 at 4 to 0.714 at 8" in words(ax)
    ax.clear()
    draw_fit(ax, fit_all_reduce(timed()))
    # 14 hops of 10 us and 1.75 bytes moved a byte of 16 MiB, 1e-9 s each: 29.5 ms
    end_ms = float(re.search(r"8 workers from .* at 1 MiB to ([\d.]+) at 16 MiB", words(ax))[1])
    assert end_ms == pytest.approx(29.5, rel=0.01)  # the timings have noise of 2 %


def test_a_curve_is_named_by_the_text_of_its_colour_also_in_a_panel_beside():
    fig = Figure()
    for ax, rise in zip(fig.subplots(1, 2), (1, 2), strict=True):
        ax.plot([0, 1], [0, rise], color="#0A3D62")
        ax.plot([0, 1], [0, -rise], color="#C44E00")
    ax.text(1, 2, "ResNet-50", color="#0A3D62")
    ax.text(1, -2, "BERT", color="#C44E00")
    told = describe(fig)
    assert "ResNet-50 from 0 at 0 to 1 at 1; BERT from 0 at 0 to \N{MINUS SIGN}1 at 1." in told
    assert "ResNet-50 from 0 at 0 to 2 at 1; BERT from 0 at 0 to \N{MINUS SIGN}2 at 1." in told


def test_curves_of_one_colour_are_named_by_the_text_at_their_end(ax):
    for height, name in enumerate(("K80", "P40", "V100")):
        ax.plot([0, 1], [0, height], color="#0A3D62")
        ax.text(1.02, height, name, color="#0A3D62", va="center")
    told = words(ax)
    assert "K80 at 0; P40 from 0 at 0 to 1 at 1; V100 from 0 at 0 to 2 at 1" in told


def test_gaps_in_a_curve_are_passed_over(ax):
    ax.plot([0, 1, 2], [np.nan, 1, 2], label="late")
    assert "late from 1 at 1 to 2 at 2" in words(ax)


def test_what_is_no_figure_is_refused(ax):
    with pytest.raises(ValueError, match="describe: expected a Matplotlib Figure, got Axes; pass"):
        describe(ax)
