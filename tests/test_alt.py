"""What a figure is in words: its axes, what its curves do, and what is written in it."""

import re

import numpy as np
import pytest
from figure_tables import example, paper_axes
from matplotlib.figure import Figure

from workbench import KIB, MIB
from workbench.figures import describe
from workbench.figures.alt_text import plain
from workbench.figures.style import size_axis


@pytest.fixture
def ax():
    with paper_axes() as ax:
        yield ax


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


@pytest.mark.parametrize(
    ("draws", "expected"),
    [
        ([lambda ax: ax.axhline(0.5, label="optimum"), lambda ax: ax.axvline(3, label="today")],
         "optimum at 0.5; today at 3"),
        ([lambda ax: ax.text(0.5, 0.5, "knee 8 workers"), lambda ax: ax.text(0.5, 0.6, "1.31")],
         "Written inside: knee 8 workers."),
        ([lambda ax: ax.plot([0, 1], [0, 1], label="<b>bold</b>")], "<b>bold</b> from 0 at 0"),
        ([lambda ax: ax.plot([0, 1, 2], [np.nan, 1, 2], label="late")], "late from 1 at 1 to 2"),
        ([lambda ax: ax.plot(np.array(["2024-01-01", "2024-01-03"], "datetime64[D]"), [1, 2],
                             label="runs")], "runs from 1 at 2024-01-01 to 2 at 2024-01-03."),
        # box, median, 2 whiskers and 2 caps each
        ([lambda ax: ax.boxplot([[1, 2, 3], [2, 3, 4]])], "Shown: 12 lines."),
        ([lambda ax, k=k: ax.plot([0, 1], [k, k + 1], label=f"curve {k}") for k in range(12)],
         "and 4 more."),
    ],
)  # fmt: skip
def test_marks_and_words_are_told_as_they_are(ax, draws, expected):
    for draw in draws:
        draw(ax)
    assert expected in words(ax) and "1.31" not in words(ax)


def test_panels_are_counted_and_an_empty_figure_says_so():
    assert describe(Figure()) == "An empty figure."
    fig = Figure(figsize=(9, 9))
    fig.subplots(3, 4)
    assert describe(fig).endswith("And 4 panels more.")


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


def test_each_panel_is_told_in_turn():
    fig = Figure()
    for ax, name in zip(fig.subplots(1, 2), ("left", "right"), strict=True):
        ax.set(xlabel=f"{name} (ms)", xticks=[0, 1], yticks=[])
    expected = ("Panel 1 of 2: Left (ms) from 0 to 1.", "Panel 2 of 2: Right (ms) from 0 to 1.")
    assert describe(fig) == " ".join(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("scaling", "per tensor from 1 at 1 to 0.5 at 8"),
        ("breakdown", "compute 60 to 70; exposed comm. and waiting 20"),
        ("timeline", "rows: worker; link"),
        ("timeline", "backward 60"),
        ("forecast", "predicted from 0.833 at 4 to 0.714 at 8"),
    ],
)
def test_our_figures_are_told_with_their_numbers(ax, name, expected):
    draw, table, more, _ = example(name)
    draw(ax, table, **more)
    assert expected in words(ax)


def test_a_fit_is_told_with_its_times(ax):
    draw, fit, _, _ = example("fit")
    draw(ax, fit)
    # 14 hops of 10 us and 1.75 bytes moved per byte of 16 MiB, 1e-9 s each: 29.5 ms
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


# --- figures of others ----------------------------------------------------------------------------


def test_a_curve_in_space_is_told_by_its_axes_and_not_by_places_on_the_page():
    ax = Figure().add_subplot(projection="3d")
    ax.plot([1, 2], [1, 2], [1, 2], label="path")
    ax.set(xlabel="x (m)", zlabel="z (m)")
    assert "z (m) from 1.0 to 2.0. Shown: path." in words(ax)


def test_what_multiplies_the_ticks_is_told_with_them(ax):
    ax.plot([0, 2e9], [0, 3e-9], label="a")
    told = words(ax)
    assert "(\N{MULTIPLICATION SIGN}1e\N{MINUS SIGN}9)" in told
    assert "(\N{MULTIPLICATION SIGN}1e9)" in told


def test_what_a_logarithmic_axis_does_not_show_is_not_told(ax):
    ax.plot([1, 2, 3, 4], [-1, 2, 3, 0], label="loss")
    ax.set_yscale("log")
    assert "loss from 2 at 2 to 3 at 3." in words(ax)


def test_a_curve_without_a_number_or_a_neighbour_says_that_nothing_is_seen(ax):
    ax.plot([1, 2], [np.nan] * 2, label="gone")
    ax.plot([1, 2, 3], [1, np.inf, 3], label="alone")
    ax.bar([1], [np.nan], label="none")
    told = words(ax)
    assert all(f"{name} without a number" in told for name in ("gone", "alone", "none"))


def test_bars_points_and_maps_are_told_by_what_they_reach():
    fig = Figure()
    bars, points, image = fig.subplots(1, 3)
    bars.bar(["a", "b"], [1, 3])
    points.scatter([1, 2, 3], [4, 6, 5], label="cells")
    fig.colorbar(image.imshow([[0.25, 0.5], [0.75, 1.0]]), label="load")
    told = describe(fig)
    assert "columns: a; b. Shown: bars 1 to 3." in told
    assert "cells, 3 points, 4 to 6." in told
    assert "Shown: colours for 0.25 to 1." in told and told.count("colours") == 1


def test_what_is_hidden_is_not_told_and_what_is_inset_is(ax):
    ax.plot([0, 1], [0, 1], label="seen")
    ax.plot([0, 1], [5, 6], label="hidden", visible=False)
    ax.inset_axes([0.5, 0.1, 0.4, 0.4]).plot([0, 1], [7, 8], label="within")
    ax.secondary_xaxis("top")
    told = words(ax)
    assert "Panel 2 of 2" in told and "within from 7" in told and "hidden" not in told


def test_a_table_is_told_by_its_cells(ax):
    ax.set_axis_off()
    ax.table([["ring of eight", "12.5"]])
    assert words(ax) == "Written inside: ring of eight."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"$\alpha$ (s)", "alpha (s)"),
        (r"$\mathdefault{10^{-3}}$", "10^-3"),
        ("5 $ an hour", "5 $ an hour"),
        ("two\nlines", "two lines"),
        (r"$x$ costs 5 \$", "x costs 5 $"),
        (r"$\frac{a}{b}\,\mu s$", "a/b mu s"),
        (r"$\hat{x}_i \times 2$", "hat x_i times 2"),
        (r"$\mathdefault{\frac12}$", "1/2"),
        ("$a$ and $", "$a$ and $"),  # which Matplotlib shows as they are
        ("a\0b\x1b", "a b"),
    ],
)
def test_mathematics_of_others_and_controls_become_plain(text, expected):
    assert plain(text) == expected


@pytest.mark.parametrize("text", [r"$\frac{$", r"$\nope$", "half \ud800"])
def test_a_text_that_cannot_be_set_is_named(ax, text):
    ax.set_xlabel(text)
    with pytest.raises(ValueError, match="^describe: Matplotlib cannot draw the text '") as error:
        words(ax)
    assert "\n" not in str(error.value)


def test_ticks_known_by_their_place_only_leave_numbers_plain(ax):
    ax.plot([0, 1], [0, 1], label="a")
    ax.set_yticks([0, 1])
    ax.yaxis.set_major_formatter(lambda value, place: ["0 ms", "1 ms"][place])
    assert "a from 0 at 0 to 1 at 1" in words(ax)
