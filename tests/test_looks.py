"""Faults of a figure are found where they are, and our own figures have none."""

import re
import shutil
import subprocess

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from workbench.figures import faults, paper
from workbench.figures.legibility import FAULTS, _box


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


def note(x, y, words, **look):
    return lambda ax: ax.text(x, y, words, transform=ax.transAxes, **{"fontsize": 7} | look)


def on_data(x, y, words):
    return lambda ax: ax.text(x, y, words, ha="center", va="center", fontsize=7)


@pytest.mark.parametrize(
    ("draws", "expected"),
    [
        ([note(0.1, 0.8, "a note", fontsize=5.5)],
         [("too small", "'a note'", "5.5 pt, below 6 pt")]),
        ([note(0.1, 0.8, "$2^{10}$")], []),  # the exponent has 4.9 pt, above 4.2
        # the index of the index has 3.9 pt, and at 9 pt it has 4.4
        ([note(0.1, 0.8, "$x_{a_b}$", fontsize=8)], [("too small",)]),
        ([note(0.1, 0.8, "$x_{a_b}$", fontsize=9)], []),
        ([note(0.1, 0.8, "5 $ a month")], []),
        ([note(0.1, 0.8, "shifted by 0.1"), note(0.15, 0.8, "shifted by 0.15")],
         [("overlaps", "'shifted by 0.1' and 'shifted by 0.15'")]),
        ([note(0.05, 0.7, "a line of text"), note(0.05, 0.85, "a line of text")], []),
        # not in the layout, which would make room for it
        ([lambda ax: note(0.9, 0.1, "runs out of it")(ax).set_in_layout(False)],
         [("outside", "'runs out of it'")]),
        ([note(0.9, 0.1, "runs out", fontsize=3, visible=False)] * 2, []),
        ([lambda ax: ax.annotate("clipped with its point", (99, 99), fontsize=3)], []),
        ([on_data(2, 2, "in the way")], [("on marks", "'in the way'", "one")]),
        ([lambda ax: ax.axvline(1.2, ls=":"), on_data(1.2, 2.6, "on grey"),
          lambda ax: ax.fill_between([1, 1.5], 2.2, 3, color="#EFEFEF", zorder=0)], []),
        ([on_data(1.2, 2.6, "on it"),
          lambda ax: ax.barh([2.6], [0.6], 0.5, [1], hatch="////", label="hatched")],
         [("on marks", "'on it'", "hatched")]),
        ([lambda ax: ax.legend(loc="center")], [("hides data", "legend of panel 1", "one")]),
        ([note(0.5, 1.06, "a title of sorts", ha="center")],
         [("overlaps",), ("overlaps", "legend and 'a title of sorts'")]),
        ([lambda ax: ax.set_xlabel("5 $ and $6 $")], []),
    ],
)  # fmt: skip
def test_a_fault_is_found_where_it_is_and_only_there(good, draws, expected):
    fig, ax = good
    for draw in draws:
        draw(ax)
    found = rows_of(fig)
    whats = [row[0] for row in expected]
    assert [row[0] for row in found] == whats, found
    for wanted in expected:
        assert any(wanted == row[: len(wanted)] for row in found), found


def rows_of(fig, **chosen) -> list[tuple]:
    return list(faults(fig, **chosen).itertuples(index=False, name=None))


def test_ticks_that_touch_are_found_but_not_beyond_the_ends_of_an_axis():
    fig, ax = figure()
    ax.set_xlim(0, 1)
    ax.set_xticks(np.linspace(0, 1, 14), [f"{100000 + i}" for i in range(14)])
    assert ("overlaps", "'100003' and '100004'") in [row[:2] for row in rows_of(fig)]
    ax.set_xticks([0, 0.5, 1, 1.001], ["0", "0.5", "1", "far too close"])
    ax.set_xlim(0, 1)
    assert told(fig) == []


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: ax.plot([0, 1], [0, 1], label="a curve"),  # crosses it between its points
        lambda ax: ax.scatter([0, 0.5, 1], [0, 0.5, 1], label="points"),
        lambda ax: ax.bar([0, 0.5, 1], [1, 1, 1], 0.3, label="bars"),
        lambda ax: ax.plot([0, 0.5, 1], [0, 0.5, 1], "o", label="marks"),
    ],
)
def test_curves_points_and_bars_under_a_legend_are_found(draw):
    fig, ax = figure()
    draw(ax)
    ax.legend(loc="center")
    assert told(fig) == ["hides data"]


# --- panels ---------------------------------------------------------------------------------------


def test_panels_that_are_nearly_aligned_are_found():
    fig = Figure(figsize=(7, 3))
    for left, bottom in ((0.1, 0.2), (0.6, 0.21)):  # 0.03 in: 2.2 pt
        fig.add_axes((left, bottom, 0.35, 0.7))
    edges = (f"{edge} edges of panel 1 and panel 2" for edge in ("lower", "upper"))
    assert rows_of(fig) == [("not aligned", each, "2.2 pt off") for each in edges]


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


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (RED, {"color": "#1F77B4"}, "L* apart in grey vision"),
        # red and green of different lightness
        ({"color": "#E07000"}, {"color": "#60A020"}, "apart in"),
        (RED | {"dashes": (4, 1)}, GREEN | {"dashes": (4, 1)}, "only colour differs"),
        (RED, GREEN | {"marker": "o"}, ""),
        (RED, GREEN | {"ls": "--"}, ""),
        (RED, GREEN | {"dashes": (4, 1)}, ""),
        (RED, GREEN | {"marker": "o", "ls": ""}, ""),
    ],
)
def test_colours_that_look_alike_are_found_unless_another_cue_differs(one, other, why):
    rows = rows_of(curves(one, other))
    expected = [("not told apart", "'curve 0' and 'curve 1'")] * bool(why)
    assert [row[:2] for row in rows] == expected
    assert all(why in row[2] for row in rows)


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


# --- figures of others ----------------------------------------------------------------------------


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


def test_numbers_on_a_map_of_colours_are_fine_and_what_is_hidden_needs_no_look():
    ax = Figure().subplots()
    ax.pcolormesh([[0.0, 1.0], [2.0, 3.0]])
    ax.text(0.5, 0.5, "0.0", ha="center")
    ax.contourf([[0.0, 1.0], [2.0, 3.0]])
    ax.plot([0, 1], [1.2, 1.2], color="k", label="one")
    ax.plot([0, 1], [1.4, 1.4], color="k", label="other", visible=False)
    assert not rows_of(ax.figure)


def test_a_legend_of_an_inset_is_named_by_its_panel():
    fig = Figure()
    inset = fig.subplots().inset_axes([0.3, 0.3, 0.6, 0.6])
    inset.plot([0, 1], [0, 1], label="line")
    inset.legend(loc="center")
    assert ("hides data", "legend of panel 2", "line") in rows_of(fig)
