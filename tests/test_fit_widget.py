"""The explorer of a fit: line, residuals and card change together, and errors are shown."""

import json
import re
import warnings
from html import escape

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from explorers import control, handful, press_save, shown, status, timed
from matplotlib.figure import Figure

from workbench import KIB, MIB
from workbench.costs import Link, Piecewise, Ring
from workbench.explore import explore_fit
from workbench.explore.fits import COST_KINDS
from workbench.figures import paper
from workbench.fits import fit_all_reduce, fit_collective


@pytest.fixture
def measured():
    return timed()


def test_the_start_is_the_fit_with_its_card_below(measured):
    explorer, fit = explore_fit(measured), fit_all_reduce(measured)
    assert explorer.fit.model == fit.model
    mean = 100 * np.abs(fit.relative_errors()).mean()
    words = f"ring over 30 points of measurements, 0 set aside: mean error {mean:.3g} %"
    assert words in status(explorer)
    cells = re.findall(r"<td>(.*?)</td>", control(explorer, "below").value)
    card = fit.card().reset_index()[["quantity", "value", "low", "high", "unit"]]
    assert cells == [cell for row in card.to_numpy() for cell in row]


def test_picture_card_and_numbers_move_together_and_the_fit_is_that_by_hand(measured):
    explorer = explore_fit(measured)
    moves = {"weights": ("absolute errors", "relative to measured times"),
             "method": ("robust (Huber)", "median")}  # fmt: skip
    for name, value in ((name, value) for name, values in moves.items() for value in values):
        before = shown(explorer)
        control(explorer, name).value = value
        assert all(new != old for new, old in zip(shown(explorer), before, strict=True))
    how = {"method": "quantile", "weights": "measured"}
    assert explorer.fit.model == fit_all_reduce(measured, **how).model


@pytest.mark.parametrize("kind", handful(COST_KINDS, "double tree", "ring in regimes"))
def test_every_kind_is_fitted_as_by_hand(measured, kind):
    explorer = explore_fit(measured)
    control(explorer, "kind").value = kind
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_hand = fit_all_reduce(measured, COST_KINDS[kind])
    assert explorer.fit.parameters() == by_hand.parameters()


def test_sizes_outside_the_range_are_set_aside_and_named(measured):
    explorer = explore_fit(measured)
    control(explorer, "sizes").value = (64 * KIB, 4 * MIB)
    inside = measured[measured["nbytes"].between(64 * KIB, 4 * MIB)]
    assert explorer.fit.model == fit_all_reduce(inside).model
    why = explorer.fit.set_aside.groupby("why").size().to_dict()
    assert why == {"size not chosen": 16}


@pytest.mark.parametrize("counts", handful([(4,), (2, 4, 8), range(2, 33)], (4,), (2, 4, 8)))
def test_no_text_leaves_the_picture(counts):
    rows = timed(counts=tuple(counts))
    rows.loc[rows.index[8], "seconds"] *= 5
    explorer = explore_fit(rows, "ring in regimes")
    control(explorer, "sizes").value = (4 * KIB, 4 * MIB)
    with mpl.rc_context(paper(ratio=explorer.ratio)):
        figure = Figure(layout="none")
        explorer.picture(explorer.state(), set()).draw(figure)
    figure.draw_without_rendering()
    labels = [label for ax in figure.axes for label in (ax.xaxis.label, ax.yaxis.label)]
    for text in (*labels, *figure.axes[0].get_legend().texts):
        box = text.get_window_extent()
        assert 0 <= box.x0 and box.x1 <= figure.bbox.x1, text.get_text()
        assert 0 <= box.y0 and box.y1 <= figure.bbox.y1, text.get_text()


def test_an_outlier_is_set_aside_or_kept(measured):
    measured.loc[7, "seconds"] *= 5
    explorer = explore_fit(measured)
    assert "1 set aside" in status(explorer)
    control(explorer, "outliers").value = "keep"
    assert "0 set aside" in status(explorer)


def test_another_table_brings_its_own_sizes_and_going_back_the_first_picture(measured):
    few = timed(alpha=1e-3).query("nbytes >= 65536")
    explorer = explore_fit({"one": measured, "other": few})
    first = shown(explorer)
    control(explorer, "data").value = "other"
    assert control(explorer, "sizes").value == (64 * KIB, 16 * MIB)
    assert explorer.fit.model == fit_all_reduce(few).model
    assert "points of other" in status(explorer)
    control(explorer, "data").value = "one"
    assert shown(explorer) == first


def test_a_range_that_cannot_be_fitted_says_so_and_leaves_the_rest(measured):
    explorer = explore_fit(measured[measured["n_workers"] == 4], "ring in regimes")
    last = len(control(explorer, "sizes").options) - 1
    control(explorer, "sizes").index = (last - 1, last)
    assert status(explorer).startswith("ring in regimes over")
    before = shown(explorer)
    control(explorer, "sizes").index = (5, 5)
    assert "not done. ValueError: measurements" in status(explorer)
    assert shown(explorer)[:2] == before[:2]


def test_a_message_of_no_bytes_is_for_the_fit_to_judge(measured):
    empty = pd.concat([measured.assign(nbytes=0.0)[:1], measured], ignore_index=True)
    explorer, fit = explore_fit(empty), fit_all_reduce(empty)
    assert explorer.fit.model == fit.model
    assert list(explorer.fit.set_aside["why"]) == list(fit.set_aside["why"])


def test_a_static_page_shows_all_sizes_of_other_data(measured):
    explorer = explore_fit({"few": measured[measured["nbytes"] < MIB], "all": measured})
    page = explorer.static({"data": ["all"]})
    assert "ring over 30 points of all, 0 set aside" in page.html
    assert "sizes unchanged, or all for other data" in page.html


def test_an_error_that_is_rounding_is_none(measured):
    seconds = Ring(Link(2e-5, 1e-9))(measured["nbytes"], measured["n_workers"])
    explorer = explore_fit(measured.assign(seconds=seconds), "measured times, joined")
    assert "mean error 0 %, worst 0 %" in status(explorer)


def test_warnings_of_the_fit_are_shown(measured):
    falling = measured.assign(seconds=1e-3 - 2e-11 * measured["nbytes"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explorer = explore_fit(falling, name="fit")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit_all_reduce(falling)
    assert caught and all(escape(str(each.message)) in status(explorer) for each in caught)


def test_the_fit_can_be_observed_and_labels_are_escaped(measured):
    explorer, seen = explore_fit({"<script>alert(1)</script>": measured}), []
    assert "&lt;script&gt;" in status(explorer) and "<script>" not in status(explorer)
    explorer.observe(lambda change: seen.append(type(change.new.model)), "fit")
    control(explorer, "kind").value = "ring in regimes"
    assert seen == [Piecewise]


def test_other_collectives_have_the_kinds_they_can():
    rows = timed("all_gather")
    explorer = explore_fit(rows, op="all_gather")
    assert explorer.fit.model == fit_collective(rows, "all_gather").model
    assert "double tree" not in control(explorer, "kind").options


def test_save_writes_figure_points_and_receipt(measured, tmp_path):
    explorer = explore_fit(measured, name="price", folder=tmp_path)
    control(explorer, "sizes").value = (64 * KIB, 16 * MIB)
    assert "price.pdf" in press_save(explorer)
    points = pd.read_csv(tmp_path / "price.csv")
    assert len(points) == len(measured) and points["why"].notna().sum() == 12
    receipt = json.loads((tmp_path / "price.receipt.json").read_text())["parameters"]
    assert receipt["fitted"] == explorer.fit.parameters()
    assert (receipt["kind"], receipt["sizes"]) == ("ring", [64 * KIB, 16 * MIB])
