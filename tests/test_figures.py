"""What every draw_* does alike, and what timelines, breakdowns and scaling curves show."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from conftest import refusal
from explorers import ten_gradients
from figure_tables import (
    EXAMPLES,
    ITERATIONS,
    SCALING,
    TIMELINE,
    example,
    legend,
    paper_axes,
    rows,
)

from workbench import GBIT, MIB, figures
from workbench.costs import Affine, Link, Ring
from workbench.figures import describe, draw_breakdown, draw_scaling, draw_timeline, faults
from workbench.figures.style import COLOURS
from workbench.fusion import DDPBuckets, OneMessage, PerTensor
from workbench.timeline import Scenario, predict, sweep


@pytest.fixture
def ax():
    with paper_axes() as ax:
        yield ax


# --- every figure ---------------------------------------------------------------------------------


def test_every_figure_has_an_example():
    drawn = {name for name in figures.__all__ if name.startswith("draw_")}
    assert {f"draw_{function}" for function, *_ in EXAMPLES.values()} == drawn


@pytest.mark.parametrize(
    "venue", ["icml", pytest.param("neurips", marks=pytest.mark.all)]
)  # the narrowest, and the largest text
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_figure_can_be_read_has_an_alt_text_and_leaves_its_table_alone(name, venue):
    draw, table, more, _ = example(name)
    before = table.copy() if isinstance(table, pd.DataFrame) else None
    with paper_axes(venue, ratio=0.8) as ax:
        assert draw(ax, table, **more) is ax
        assert faults(ax.figure).to_dict("records") == []
    assert ax.get_xlabel() and ax.get_xlabel()[1:] in describe(ax.figure, drawn=True)
    if before is not None:
        pd.testing.assert_frame_equal(table, before)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_figure_refuses_other_axes_and_other_tables_by_name(ax, name):
    draw, table, more, column = example(name)
    refusal(lambda: draw(mpl, table, **more), f"{draw.__name__} ax", mpl)
    if name != "run":  # as lanes refuses it
        refusal(lambda: draw(ax, "results", **more), "draw_", "'results'")
    if column is not None:
        refusal(lambda: draw(ax, table[:0], **more), draw.__name__, "none")
        refusal(lambda: draw(ax, table.drop(columns=column), **more), draw.__name__, column)
        spoilt = table.assign(**{column: np.nan})
        refusal(lambda: draw(ax, spoilt, **more), f"{draw.__name__} ", "nan in row")
    assert not ax.has_data()


@pytest.mark.parametrize("name", ["timeline", "breakdown", "scaling", "fit"])
def test_the_layout_settles_and_fills_the_figure(ax, name):
    draw, table, more, _ = example(name)
    draw(ax, table, **more)
    for _ in range(2):  # a tick label at the edge may take a second pass
        ax.figure.canvas.draw()
    first = ax.get_position().bounds
    for _ in range(4):
        ax.figure.canvas.draw()
    # A drift with every drawing would make the saved figure differ from the one seen.
    assert ax.get_position().bounds == pytest.approx(first, abs=0.005)
    assert first[2] > 0.6 and first[3] > 0.5


# --- timelines and breakdowns ---------------------------------------------------------------------


def colours_by_label(ax) -> dict:
    """Fill colour of every entry of the legend that is a bar."""
    return {
        text: mpl.colors.to_hex(handle.get_facecolor()).upper()
        for handle, text in zip(ax.get_legend().legend_handles, legend(ax), strict=True)
        if hasattr(handle, "get_facecolor")
    }


def test_exposed_time_has_the_same_colour_in_every_figure(ax):
    timeline = colours_by_label(draw_timeline(ax, TIMELINE, backward_s=0.060))
    ax.clear()
    breakdown = colours_by_label(draw_breakdown(ax, ITERATIONS))
    waiting = breakdown["exposed comm. and waiting"]  # iterations cannot tell them apart
    assert timeline["exposed"] == waiting == COLOURS["exposed"]
    assert timeline["backward"] == breakdown["compute"] == COLOURS["compute"]


@pytest.mark.parametrize("n_messages", [1, 300])
def test_no_text_of_a_timeline_leaves_the_figure(ax, n_messages):
    table = pd.concat([TIMELINE[:1]] * n_messages, ignore_index=True)
    draw_timeline(ax, table, backward_s=0.030)
    assert faults(ax.figure).empty


def test_the_exposed_part_of_a_timeline_is_what_lies_beyond_backward(ax):
    draw_timeline(ax, TIMELINE, backward_s=0.060)
    handles, labels = ax.get_legend_handles_labels()
    outlines = handles[labels.index("exposed")].get_paths()
    spans = [(min(path.vertices[:, 0]), max(path.vertices[:, 0])) for path in outlines]
    assert spans == [pytest.approx((60, 80))]
    ax.clear()
    draw_timeline(ax, TIMELINE, backward_s=0.1)
    assert "exposed" not in legend(ax)


def test_a_slowed_backward_is_drawn_as_long_as_it_takes(ax):
    gradients = pd.DataFrame({"name": ["a", "b"], "nbytes": [1, 1], "ready_s": [0.01, 0.02]})
    cost = Affine(Link(0.01, 0.0))
    slowed = Scenario(gradients, 0.05, 0.03, 2, cost, PerTensor(), slowdown=1.0)
    draw_timeline(ax, predict(slowed))
    # messages run for 20 ms, in which 10 ms of backward are done: it ends 10 ms later
    assert ax.containers[0].patches[0].get_width() == pytest.approx(40)


def test_a_breakdown_bar_is_as_long_as_its_iteration_and_two_ranks_are_named(ax):
    draw_breakdown(ax, ITERATIONS.assign(rank=[0, 1]))
    ends = [bar.get_x() + bar.get_width() for bar in ax.containers[-1].patches]
    assert ends == pytest.approx([100, 120])
    assert rows(ax) == ["0: 3", "1: 4"]


# --- scaling --------------------------------------------------------------------------------------


def test_curves_differ_in_marker_and_dash(ax):
    draw_scaling(ax, SCALING, label="policy")
    handles, _ = ax.get_legend_handles_labels()
    assert len({handle.get_marker() for handle in handles}) == 3
    assert len({str(handle._dash_pattern) for handle in handles}) == 3


def test_measured_points_join_the_legend(ax):
    draw_scaling(ax, SCALING[:4], measured=SCALING[4:8])
    assert legend(ax) == ["predicted", "measured"]


def halves(gradients):
    return np.repeat([0, 1], 5)


POLICIES = {
    PerTensor(): "per tensor",
    DDPBuckets(): "DDP buckets",
    DDPBuckets(4 * MIB, 25 * MIB): "DDP buckets 4 + 25 MiB",
    OneMessage(): "one message",
    halves: "halves",
}
COSTS = [Ring(Link(alpha, 1 / (10 * GBIT))) for alpha in (1e-5, 2e-5)]


@pytest.mark.parametrize(
    ("swept", "names"),
    [
        ({"fusion": list(POLICIES)}, list(POLICIES.values())),
        ({"all_reduce": COSTS}, ["Ring 10 Gbit/s", "Ring 10 Gbit/s (2)"]),
        ({"overlap": [True, False]}, ["overlap True", "overlap False"]),
    ],
)
def test_values_of_a_sweep_get_short_names_that_differ(ax, swept, names):
    table = sweep(ten_gradients(), n_workers=[2, 4], **swept)
    draw_scaling(ax, table, label=next(iter(swept)))
    assert legend(ax) == names


def test_no_curve_is_hidden_for_a_name_that_begins_with_an_underscore(ax):
    draw_scaling(ax, SCALING.assign(policy="_" + SCALING["policy"]), label="policy")
    assert legend(ax) == ["one message", "per tensor", "DDP buckets"]


@pytest.mark.parametrize("words", ["", "with a name far longer than one column of a paper is wide"])
def test_legend_and_words_of_a_scaling_figure_stay_within_the_column(ax, words):
    draw_scaling(ax, SCALING.assign(policy=SCALING["policy"] + words), label="policy", fitted_to=4)
    assert "outside" not in faults(ax.figure)["what"].tolist()
    assert ax.get_position().width > 0.75


def test_the_legend_leaves_the_curves_free(ax):
    low = SCALING.assign(scaling_factor=SCALING["scaling_factor"] * 0.4)
    draw_scaling(ax, low, label="policy")
    ax.figure.canvas.draw()
    box = ax.get_legend().get_window_extent()
    points = ax.transData.transform(low[["n_workers", "scaling_factor"]])
    assert not any(box.contains(*point) for point in points)


@pytest.mark.parametrize("fitted_to", [4, 8, 16])
def test_a_scaling_figure_says_where_its_costs_were_fitted(ax, fitted_to):
    draw_scaling(ax, SCALING, label="policy", fitted_to=fitted_to)
    words = ax.texts[0].get_text()
    assert words.startswith(f"fitted at {fitted_to}")
    assert ("extrapolated beyond 4" in words) == (fitted_to < 8)
