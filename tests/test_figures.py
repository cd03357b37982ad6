"""Figures: timelines, breakdowns and scaling curves, and what they refuse to draw."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from workbench import GBIT, MIB
from workbench.costs import Affine, Link, Ring
from workbench.figures import draw_breakdown, draw_scaling, draw_timeline, paper
from workbench.figures.style import COLOURS
from workbench.fusion import DDPBuckets, OneMessage, PerTensor
from workbench.timeline import Scenario, predict, sweep

TIMELINE = pd.DataFrame(
    {
        "n_gradients": [2, 3, 5],
        "nbytes": [1_000_000, 2_000_000, 3_000_000],
        "ready_s": [0.010, 0.020, 0.050],
        "start_s": [0.010, 0.040, 0.070],
        "end_s": [0.040, 0.070, 0.080],
    }
)
SCALING = pd.DataFrame(
    {
        "n_workers": [1, 2, 4, 8] * 3,
        "scaling_factor": [1, 0.9, 0.8, 0.7, 1, 0.8, 0.6, 0.5, 1, 0.95, 0.9, 0.85],
        "policy": ["one message"] * 4 + ["per tensor"] * 4 + ["DDP buckets"] * 4,
    }
)
ITERATIONS = pd.DataFrame(
    {
        "rank": [0, 0],
        "iteration": [3, 4],
        "duration_s": [0.10, 0.12],
        "compute_s": [0.06, 0.07],
        "exposed_comm_s": [0.02, 0.02],
        "exposed_memory_s": [0.01, 0.01],
        "idle_s": [0.01, 0.02],
    }
)


SCENARIO = Scenario(
    pd.DataFrame({"name": "weight", "nbytes": 4 * MIB, "ready_s": np.arange(1, 11) * 0.006}),
    one_worker_s=0.1,
    backward_s=0.06,
    n_workers=8,
    all_reduce=Ring(Link(1e-5, 1 / (10 * GBIT))),
    fusion=DDPBuckets(),
)


@pytest.fixture
def ax():
    """An Axes of a figure that no state of pyplot knows, at paper size."""
    with mpl.rc_context(paper()):
        figure = Figure()
        FigureCanvasAgg(figure)
        yield figure.subplots()


def lightness(colour) -> float:
    """CIE L* of a colour: what grey print keeps of it (IEC 61966-2-1, CIE 15)."""
    rgb = np.array(mpl.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    return 116 * np.cbrt(luminance) - 16


def colours_by_label(ax) -> dict:
    """Fill colour of every entry of the legend that is a bar."""
    legend = ax.get_legend()
    return {
        text.get_text(): mpl.colors.to_hex(handle.get_facecolor()).upper()
        for handle, text in zip(legend.legend_handles, legend.texts, strict=True)
        if hasattr(handle, "get_facecolor")
    }


# --- colours --------------------------------------------------------------------------------------


def test_exposed_time_has_the_same_colour_in_every_figure(ax):
    timeline = colours_by_label(draw_timeline(ax, TIMELINE, backward_s=0.060))
    ax.clear()
    breakdown = colours_by_label(draw_breakdown(ax, ITERATIONS))
    waiting = breakdown["exposed comm. and waiting"]  # iterations cannot tell them apart
    assert timeline["exposed"] == waiting == COLOURS["exposed"]
    assert timeline["backward"] == breakdown["compute"] == COLOURS["compute"]


def test_curves_differ_in_marker_and_dash_and_grey(ax):
    draw_scaling(ax, SCALING, label="policy")
    handles, _ = ax.get_legend_handles_labels()
    assert len({handle.get_marker() for handle in handles}) == 3
    assert len({str(handle._dash_pattern) for handle in handles}) == 3
    grey = sorted(lightness(handle.get_color()) for handle in handles)
    assert min(np.diff(grey)) > 10


# --- draw_* ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "labels"),
    [
        (lambda ax: draw_timeline(ax, TIMELINE, backward_s=0.06), ("(ms)", "")),
        (lambda ax: draw_breakdown(ax, ITERATIONS), ("(ms)", "iteration")),
        (lambda ax: draw_scaling(ax, SCALING, label="policy"), ("workers", "scaling factor")),
    ],
    ids=["timeline", "breakdown", "scaling"],
)
def test_every_drawing_returns_its_axes_with_units_on_them(ax, draw, labels):
    assert draw(ax) is ax
    assert labels[0] in ax.get_xlabel() and labels[1] in ax.get_ylabel()


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: draw_timeline(ax, TIMELINE, backward_s=0.06),
        lambda ax: draw_breakdown(ax, ITERATIONS),
        lambda ax: draw_scaling(ax, SCALING, label="policy", fitted_to=4, at=2),
    ],
    ids=["timeline", "breakdown", "scaling"],
)
def test_the_layout_settles_and_fills_the_figure(ax, draw):
    draw(ax)
    for _ in range(2):  # a tick label at the edge may take a second pass
        ax.figure.canvas.draw()
    first = ax.get_position().bounds
    for _ in range(4):
        ax.figure.canvas.draw()
    # A drift with every drawing would make the saved figure differ from the one seen.
    assert ax.get_position().bounds == pytest.approx(first, abs=0.005)
    assert first[2] > 0.6 and first[3] > 0.5


@pytest.mark.parametrize("n_messages", [1, 300])
def test_no_text_of_a_timeline_leaves_the_figure(ax, n_messages):
    table = pd.concat([TIMELINE[:1]] * n_messages, ignore_index=True)
    draw_timeline(ax, table, backward_s=0.030)
    ax.figure.canvas.draw()
    page = ax.figure.bbox
    for text in [*ax.get_legend().texts, *ax.get_yticklabels(), ax.xaxis.label]:
        box = text.get_window_extent()
        assert box.x0 >= page.x0 and box.x1 <= page.x1, text.get_text()


def test_the_exposed_part_of_a_timeline_is_what_lies_beyond_backward(ax):
    draw_timeline(ax, TIMELINE, backward_s=0.060)
    handles, labels = ax.get_legend_handles_labels()
    outlines = handles[labels.index("exposed")].get_paths()
    spans = [(min(path.vertices[:, 0]), max(path.vertices[:, 0])) for path in outlines]
    assert spans == [pytest.approx((60, 80))]


def test_a_timeline_hidden_by_backward_shows_nothing_exposed(ax):
    draw_timeline(ax, TIMELINE, backward_s=0.1)
    assert "exposed" not in ax.get_legend_handles_labels()[1]


def test_a_slowed_backward_is_drawn_as_long_as_it_takes(ax):
    gradients = pd.DataFrame({"name": ["a", "b"], "nbytes": [1, 1], "ready_s": [0.01, 0.02]})
    cost = Affine(Link(0.01, 0.0))
    slowed = Scenario(gradients, 0.05, 0.03, 2, cost, PerTensor(), slowdown=1.0)
    draw_timeline(ax, predict(slowed))
    # messages run for 20 ms, in which 10 ms of backward are done: it ends 10 ms later
    assert ax.containers[0].patches[0].get_width() == pytest.approx(40)


def test_a_breakdown_bar_is_as_long_as_its_iteration(ax):
    draw_breakdown(ax, ITERATIONS)
    ends = [bar.get_x() + bar.get_width() for bar in ax.containers[-1].patches]
    assert ends == pytest.approx([100, 120])


def test_a_breakdown_of_two_ranks_names_both(ax):
    draw_breakdown(ax, ITERATIONS.assign(rank=[0, 1]))
    assert [text.get_text() for text in ax.get_yticklabels()] == ["0: 3", "1: 4"]


def test_extrapolation_is_told_on_the_figure(ax):
    draw_scaling(ax, SCALING, label="policy", fitted_to=4)
    assert any("extrapolated beyond 4" in text.get_text() for text in ax.texts)


def test_measured_points_join_the_legend(ax):
    draw_scaling(ax, SCALING[:4], measured=SCALING[4:8])
    assert [text.get_text() for text in ax.get_legend().texts] == ["predicted", "measured"]


def test_a_missing_column_is_named(ax):
    with pytest.raises(ValueError, match="draw_scaling: missing column scaling_factor"):
        draw_scaling(ax, SCALING.drop(columns="scaling_factor"))
    with pytest.raises(ValueError, match="missing column network"):
        draw_scaling(ax, SCALING, label="network")


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: draw_timeline(ax, TIMELINE[:0], backward_s=0.06),
        lambda ax: draw_breakdown(ax, ITERATIONS[:0]),
        lambda ax: draw_scaling(ax, SCALING[:0]),
    ],
)
def test_an_empty_table_is_refused_not_drawn(ax, draw):
    with pytest.raises(ValueError, match="no rows"):
        draw(ax)


def test_drawing_leaves_its_table_alone(ax):
    before = SCALING.copy()
    draw_scaling(ax, SCALING, label="policy")
    pd.testing.assert_frame_equal(SCALING, before)


def halves(gradients):
    return np.repeat([0, 1], 5)


def legend(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().texts]


def test_policies_are_named_in_words(ax):
    policies = [PerTensor(), DDPBuckets(), DDPBuckets(4 * MIB, 25 * MIB), OneMessage(), halves]
    draw_scaling(ax, sweep(SCENARIO, n_workers=[2, 4], fusion=policies), label="fusion")
    names = ["per tensor", "DDP buckets", "DDP buckets 4 + 25 MiB", "one message", "halves"]
    assert legend(ax) == names


def test_costs_are_named_by_their_bandwidth_and_told_apart(ax):
    costs = [Ring(Link(alpha, 1 / (10 * GBIT))) for alpha in (1e-5, 2e-5)]
    draw_scaling(ax, sweep(SCENARIO, n_workers=[2, 4], all_reduce=costs), label="all_reduce")
    assert legend(ax) == ["Ring 10 Gbit/s", "Ring 10 Gbit/s (2)"]


def test_numbers_are_named_with_their_column(ax):
    table = sweep(SCENARIO, n_workers=[2, 4], overlap=[True, False])
    draw_scaling(ax, table, label="overlap")
    assert legend(ax) == ["overlap True", "overlap False"]


def test_no_curve_is_hidden_for_a_name_that_begins_with_an_underscore(ax):
    draw_scaling(ax, SCALING.assign(policy="_" + SCALING["policy"]), label="policy")
    assert legend(ax) == ["one message", "per tensor", "DDP buckets"]


@pytest.mark.parametrize("words", ["", "with a name far longer than one column of a paper is wide"])
def test_legend_and_words_of_a_scaling_figure_stay_within_the_column(ax, words):
    table = SCALING.assign(policy=SCALING["policy"] + words)
    draw_scaling(ax, table, label="policy", fitted_to=4)
    for _ in range(2):
        ax.figure.canvas.draw()
    page = ax.figure.bbox
    for text in [*ax.get_legend().texts, *ax.texts]:
        box = text.get_window_extent()
        assert box.x0 >= page.x0 and box.x1 <= page.x1, text.get_text()
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
    assert ("extrapolated" in words) == (fitted_to < 8)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda ax: draw_timeline(ax, TIMELINE), "backward_s .*got none; .*predict.scenario.$"),
        (lambda ax: draw_timeline(ax, TIMELINE, "60 ms"), "expected backward_s in s .*'60 ms'"),
        (lambda ax: draw_timeline(ax, SCENARIO), "got Scenario; pass predict.scenario.$"),
        (lambda ax: draw_breakdown(ax, SCENARIO), "got Scenario; pass iterations.run.$"),
        (lambda ax: draw_scaling(ax, SCENARIO), "got Scenario; pass sweep.scenario, "),
        (lambda ax: draw_scaling(ax, predict(SCENARIO)), "got Prediction; pass sweep.scenario, "),
        (lambda ax: draw_scaling(ax, SCALING, fitted_to=SCENARIO), "fitted_to: .*got Scenario$"),
    ],
)
def test_a_wrong_object_is_named_by_type_with_what_to_pass(ax, draw, message):
    with pytest.raises(ValueError, match=message) as error:
        draw(ax)
    assert len(str(error.value)) < 200 and not ax.has_data()


@pytest.mark.parametrize("draw", [draw_timeline, draw_breakdown, draw_scaling])
def test_a_module_in_place_of_an_axes_is_refused(draw):
    with pytest.raises(ValueError, match=f"{draw.__name__}: expected a Matplotlib Axes.*module"):
        draw(mpl, SCALING)
