"""What figures share: their sizes, colours that stay apart, axes of sizes and times."""

import re
import shutil
import subprocess
import warnings

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from conftest import refusal
from matplotlib.figure import Figure

from workbench import GIB, KIB, MIB
from workbench.figures import VENUES, draw_models, draw_scaling, faults, paper
from workbench.figures.given import filled
from workbench.figures.style import COLOURS, HATCHES, cues, shades, size_axis, time_axis


def lightness(colour) -> float:
    """CIE L* of a colour: what grey print keeps of it (IEC 61966-2-1, CIE 15)."""
    rgb = np.array(mpl.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return 116 * np.cbrt(linear @ [0.2126, 0.7152, 0.0722]) - 16


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


def test_a_figure_has_the_width_of_its_columns_and_text_of_seven_points_or_more():
    assert set(WIDTHS) == set(VENUES)
    for venue, widths in WIDTHS.items():
        made = [paper(venue, n + 1)["figure.figsize"][0] for n in range(len(widths))]
        assert made == pytest.approx(widths, abs=1e-4)
        wanted = re.compile(r"font\.size|(title|label|font)size$")
        sizes = [value for key, value in paper(venue).items() if wanted.search(key)]
        assert len(sizes) == 6 and min(sizes) >= 7


PAGES = [
    pytest.param(venue, n + 1, ratio, marks=[pytest.mark.all] * (venue != "acm-sigconf"))
    for venue in WIDTHS
    for n in range(len(WIDTHS[venue]))
    for ratio in (0.4, 0.618)
]


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


def test_settings_are_all_known_to_matplotlib_and_paper_changes_nothing_by_itself():
    before = dict(mpl.rcParams)
    assert set(paper("ieee")) <= set(mpl.rcParams)
    assert dict(mpl.rcParams) == before


def test_colours_stay_apart_in_grey_print_and_exposed_time_is_hatched_too():
    grey = sorted(lightness(colour) for colour in COLOURS.values())
    assert min(np.diff(grey)) > 10  # 10 L* is a tenth of the way from black to white
    assert HATCHES["exposed"] and not HATCHES["comm"] and HATCHES["memory"] != HATCHES["exposed"]


@pytest.mark.parametrize("n", [2, 5, 8])
def test_shades_stay_apart_in_grey_print_and_curves_have_different_markers(n):
    grey = [lightness(colour) for colour in shades(n)]
    assert min(np.diff(grey)) > 5  # 8 curves share 55 L*; markers tell them apart too
    assert len({marker for marker, _ in cues(n)}) == n


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


# --- what tables may hold -------------------------------------------------------------------------


def columns(values) -> pd.DataFrame:
    return pd.DataFrame({"x": pd.Series(values), "name": ["a"] * len(values)})


@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        ([1.0, np.nan], "finite", "nan in row 1"),
        ([np.inf, 1.0], "finite", "inf in row 0"),
        (pd.array([1, None], "Int64"), "finite", "nan in row 1"),
        (["1", "2"], "gaps", "'1' in row 0"),
        ([True, False], "finite", "True in row 0"),
        ([1, 0], "above_0", "0 in row 1"),
        (["a", None], "named", "none in row 1"),
    ],
)
def test_a_value_that_cannot_be_drawn_is_named_with_its_row(values, kind, found):
    refusal(lambda: filled(columns(values), {}, "draw", "a table", **{kind: ("x",)}), "x", found)


def test_gaps_become_plain_and_plain_tables_stay_as_they_are():
    found = filled(columns(pd.array([1, None], "Int64")), {}, "draw", "a table", gaps=("x",))
    assert found["x"].dtype == float and found["x"].isna().tolist() == [False, True]
    table = columns([1, 2])
    assert filled(table, {}, "draw", "a table", ("x",)) is table
    assert filled(table, {}, "draw", "a table", named=("x",))["x"].tolist() == ["1", "2"]


NAMED = pd.DataFrame(
    {"n_workers": [1, 2, 4], "scaling_factor": [1, 0.9, 0.8], "predicted": [1, 0.9, 0.8]}
)


@pytest.mark.parametrize("name", [r"$\frac{$", "half \ud800", "a\0b", "x" * 300, "_hidden"])
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
        refusal(lambda draw=draw: draw(Figure().subplots(), many), "draw", 25)
