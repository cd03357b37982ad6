"""What figures share: their sizes, colours that stay apart, axes of sizes and times."""

import itertools
import re
import shutil
import subprocess
import warnings

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from workbench import GIB, KIB, MIB
from workbench.figures import VENUES, draw_models, draw_scaling, faults, paper
from workbench.figures.style import (
    COLOURS,
    HATCHES,
    check_axes,
    cues,
    filled,
    shades,
    size_axis,
    time_axis,
)


def lightness(colour) -> float:
    """CIE L* of a colour: what grey print keeps of it (IEC 61966-2-1, CIE 15)."""
    rgb = np.array(mpl.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    return 116 * np.cbrt(luminance) - 16


# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
              [-0.003882, -0.048116, 1.051998]]  # fmt: skip
DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                [-0.011820, 0.042940, 0.968881]]  # fmt: skip


def seen_lightness(colour, deficiency) -> float:
    rgb = np.array(mpl.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = np.clip(np.array(deficiency) @ linear, 0, 1) @ [0.2126, 0.7152, 0.0722]
    return 116 * np.cbrt(luminance) - 16


WIDTHS = {  # inches, of one column and of two; by hand from each class, 72.27 pt an inch
    "acm-sigconf": (3.3367, 7.0056),  # (614.295 - 108 - 24) / 2 and 614.295 - 108 pt
    "ieee": (3.4869, 7.1399),  # 252 and 516 pt
    "usenix": (3.335, 7.0),
    "mlsys": (3.25, 6.75),
    "neurips": (5.5,),
    "icml": (3.25, 6.75),
    "lncs": (4.8031,),  # 12.2 cm
    "thesis": (4.9813,),  # 360 pt, as pdflatex tells of report at 11 pt on A4
}


@pytest.mark.parametrize("venue", WIDTHS)
def test_a_figure_has_the_width_of_its_columns(venue):
    for columns, width in enumerate(WIDTHS[venue], start=1):
        assert paper(venue, columns)["figure.figsize"][0] == pytest.approx(width, abs=1e-4)


def test_every_venue_is_known_by_its_width():
    assert set(WIDTHS) == set(VENUES)


PAGES = [(venue, n + 1, ratio) for venue in WIDTHS for n in range(len(WIDTHS[venue]))
         for ratio in (0.4, 0.618)]  # fmt: skip


@pytest.mark.skipif(shutil.which("pdfinfo") is None, reason="no pdfinfo: apt install poppler-utils")
@pytest.mark.parametrize(("venue", "columns", "ratio"), PAGES)
def test_a_saved_page_is_as_wide_as_its_column(venue, columns, ratio, tmp_path):
    with mpl.rc_context(paper(venue, columns, ratio)):
        figure = Figure()
        ax = figure.subplots()
        ax.plot([0, 1e6], [0, 1e-6])
        ax.set(xlabel="message size (MiB)", ylabel="a label as long as they come (ms)")
        figure.savefig(tmp_path / "page.pdf")
    told = subprocess.run(["pdfinfo", tmp_path / "page.pdf"], capture_output=True, text=True)
    size = re.search(r"Page size: +([\d.]+) x ([\d.]+) pts", told.stdout)
    width = WIDTHS[venue][columns - 1]
    assert float(size[1]) / 72 == pytest.approx(width, abs=0.01)
    assert float(size[2]) / 72 == pytest.approx(width * ratio, abs=0.01)


def test_settings_are_all_known_to_matplotlib():
    assert set(paper()) <= set(mpl.rcParams)


def test_paper_changes_nothing_by_itself():
    before = dict(mpl.rcParams)
    paper("ieee")
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("venue", WIDTHS)
def test_no_text_is_smaller_than_seven_points(venue):
    sizes = {key: value for key, value in paper(venue).items() if key.endswith(("size",)) and
             not key.endswith(("figsize", "markersize"))}  # fmt: skip
    assert len(sizes) >= 6 and min(sizes.values()) >= 7


def test_an_unknown_venue_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="'sosp'.*acm-sigconf, ieee, usenix, mlsys, neurips, icml"):
        paper("sosp")


def test_a_single_column_venue_has_no_second_column():
    with pytest.raises(ValueError, match="neurips has a single column, got 2"):
        paper("neurips", columns=2)


@pytest.mark.parametrize("ratio", [0, -1, float("nan"), "wide"])
def test_a_ratio_that_is_no_shape_is_refused(ratio):
    with pytest.raises(ValueError, match="ratio: expected height / width above 0"):
        paper(ratio=ratio)


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(COLOURS, 2)])
def test_colours_stay_apart_in_grey_print(one, other):
    # 10 L* is a tenth of the way from black to white.
    assert abs(lightness(COLOURS[one]) - lightness(COLOURS[other])) > 10


@pytest.mark.parametrize("deficiency", [PROTANOPIA, DEUTERANOPIA], ids=["protan", "deutan"])
def test_touching_colours_stay_apart_for_the_colour_blind(deficiency):
    for one, other in [("comm", "exposed"), ("compute", "exposed"), ("memory", "idle")]:
        seen = [seen_lightness(COLOURS[name], deficiency) for name in (one, other)]
        assert abs(seen[0] - seen[1]) > 10, (one, other)


def test_exposed_time_is_hatched_too():
    assert HATCHES["exposed"] and not HATCHES["comm"] and HATCHES["memory"] != HATCHES["exposed"]


@pytest.mark.parametrize("n", [2, 5, 8])
def test_shades_stay_apart_in_grey_print(n):
    grey = [lightness(colour) for colour in shades(n)]
    assert min(np.diff(grey)) > 5  # 8 curves share 55 L*; markers tell them apart too


def test_every_curve_has_a_marker_of_its_own():
    assert len({marker for marker, _ in cues(8)}) == 8


def ticks(axis) -> list[str]:
    axis.figure.canvas.draw()
    return [text.get_text() for text in axis.get_ticklabels() if text.get_text()]


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (4, 512 * MIB, ["32 B", "1 KiB", "32 KiB", "1 MiB", "32 MiB"]),
        (MIB, 16 * MIB, ["1 MiB", "2 MiB", "4 MiB", "8 MiB", "16 MiB"]),
        (256 * KIB, GIB, ["256 KiB", "2 MiB", "16 MiB", "128 MiB", "1 GiB"]),
    ],
)
def test_sizes_are_marked_at_powers_of_two_with_their_unit(low, high, wanted):
    ax = Figure().subplots()
    size_axis(ax, low, high)
    assert [tick for tick in ticks(ax.xaxis) if tick in wanted] == wanted


@pytest.mark.parametrize(("low", "high"), [(0.05, 300), (1, 20), (2, 9)])
def test_times_have_two_marks_or_more_however_narrow_their_range(low, high):
    ax = Figure().subplots()
    ax.set_ylim(low, high)
    time_axis(ax)
    shown = [float(tick) for tick in ticks(ax.yaxis)]
    assert len([tick for tick in shown if low <= tick <= high]) >= 2


def test_a_table_without_a_column_is_refused_by_its_name():
    with pytest.raises(ValueError, match="draw_x: expected a table"):
        filled([1], {}, "draw_x", "a table")
    with pytest.raises(ValueError, match="draw_x: expected a Matplotlib Axes first, got Figure"):
        check_axes(Figure(), "draw_x")


# --- what tables may hold -------------------------------------------------------------------------


def columns(values) -> pd.DataFrame:
    return pd.DataFrame({"x": pd.Series(values), "name": ["a"] * len(values)})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, np.nan], "draw: x: expected finite numbers, got nan in row 1"),
        ([np.inf, 1.0], "draw: x: expected finite numbers, got inf in row 0"),
        (pd.array([1, None], "Int64"), "draw: x: expected finite numbers, got nan in row 1"),
        (["1", "2"], "draw: x: expected numbers, got '1' in row 0"),
        ([True, False], "draw: x: expected numbers, got True in row 0"),
    ],
)
def test_a_number_that_cannot_be_drawn_is_named_with_its_row(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        filled(columns(values), {}, "draw", "a table", ("x",))


def test_what_lies_on_a_logarithmic_axis_is_above_zero():
    with pytest.raises(ValueError, match="expected finite numbers above 0, got 0 in row 1"):
        filled(columns([1, 0]), {}, "draw", "a table", above_0=("x",))


def test_gaps_become_plain_and_plain_tables_stay_as_they_are():
    found = filled(columns(pd.array([1, None], "Int64")), {}, "draw", "a table", gaps=("x",))
    assert found["x"].dtype == float and found["x"].isna().tolist() == [False, True]
    table = columns([1, 2])
    assert filled(table, {}, "draw", "a table", ("x",)) is table


def test_a_row_without_a_name_is_refused_and_numbers_may_be_names():
    table = columns([1, 2])
    assert filled(table, {}, "draw", "a table", named=("x",))["x"].tolist() == ["1", "2"]
    table["name"] = ["a", None]
    with pytest.raises(ValueError, match="draw: name: expected a name in every row, got none in r"):
        filled(table, {}, "draw", "a table", named=("name",))


NAMED = pd.DataFrame(
    {"n_workers": [1, 2, 4], "scaling_factor": [1, 0.9, 0.8], "predicted": [1, 0.9, 0.8]}
)


@pytest.mark.parametrize("name", [r"$\frac{$", "$a$", "half \ud800", "a\0b", "x" * 300, "_hidden"])
def test_a_name_is_text_whatever_it_holds(name):
    with mpl.rc_context(paper()):
        scaling, models = Figure().subplots(), Figure().subplots()
        draw_scaling(scaling, NAMED.assign(who=name), "who")
        draw_models(models, NAMED.assign(model=name))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        assert not len(faults(scaling.figure)) + len(faults(models.figure))


def test_more_curves_than_an_eye_tells_apart_are_refused():
    many = pd.concat([NAMED.assign(model=f"m{k}") for k in range(25)])
    for draw in (draw_models, lambda ax, table: draw_scaling(ax, table, "model")):
        with pytest.raises(ValueError, match="expected at most 24 names.*got 25; select some"):
            draw(Figure().subplots(), many)
