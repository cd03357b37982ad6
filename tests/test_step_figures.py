"""The figure of one step: what is drawn so far, and the arrow from ready to start."""

from dataclasses import replace

import pytest
from figure_tables import legend, paper_axes
from test_timeline import scenario

from workbench.figures import draw_step
from workbench.timeline import predict

# messages 1 to 3, 3 to 6 and 6 to 10 s; ready at 1, 2 and 4 s; backward ends at 5 s


@pytest.fixture
def ax():
    with paper_axes() as ax:
        yield ax


@pytest.fixture
def steps():
    return predict(scenario()).explain()


def arrow(ax) -> tuple:
    """Time at which the arrow begins and ends, ms."""
    (found,) = ax.texts
    return found.xyann[0], found.xy[0]


def drawn(ax) -> dict:
    """Ends of what is drawn by label, ms."""
    handles, labels = ax.get_legend_handles_labels()
    paths = {label: handle for label, handle in zip(labels, handles, strict=True)}
    kinds = [label for label in ("communication", "exposed") if label in paths]
    return {label: paths[label].get_paths()[-1].vertices[:, 0].max() for label in kinds}


def test_the_arrow_leads_from_ready_to_start(ax, steps):
    draw_step(ax, steps, 2, 5.0)
    row = steps.iloc[2]
    assert arrow(ax) == pytest.approx((1000 * row["ready_s"], 1000 * row["start_s"]))
    ax.clear()
    draw_step(ax, steps, 0, 5.0)  # sent when ready: upright, and nothing was sent before
    assert arrow(ax) == pytest.approx((1000, 1000))
    assert "message before ends" not in legend(ax)


def test_the_line_at_the_end_of_the_message_before_is_in_the_legend(ax, steps):
    draw_step(ax, steps, 2, 5.0)
    (line,) = (line for line in ax.lines if line.get_label() == "message before ends")
    assert line.get_xdata() == pytest.approx(1000 * steps["end_s"][1])
    assert "message before ends" in legend(ax)


def test_the_arrow_begins_below_the_tick_of_its_bucket(ax, steps):
    draw_step(ax, steps, 2, 5.0)
    ax.figure.canvas.draw()
    (ticks,) = (line for line in ax.lines if line.get_label() == "ready")
    middle = ax.transData.transform((0, ticks.get_ydata()[0]))[1]
    half = ticks.get_markersize() / 2 * ax.figure.dpi / 72
    assert ax.transData.transform((0, ax.texts[0].xyann[1]))[1] < middle - half


@pytest.mark.parametrize("step", [0, 1, 2])
def test_messages_after_the_step_are_not_drawn(ax, steps, step):
    draw_step(ax, steps, step, 5.0)
    assert max(drawn(ax).values()) == pytest.approx(1000 * steps["end_s"][step])


def test_every_step_has_the_axis_of_the_whole(ax, steps):
    limits = set()
    for step in range(3):
        ax.clear()
        limits.add(draw_step(ax, steps, step, 5.0).get_xlim())
    assert len(limits) == 1 and limits.pop()[1] > 1000 * steps["end_s"].max()


def test_a_hidden_timeline_is_as_long_as_backward(ax):
    quick = predict(replace(scenario(), backward_s=9.9)).explain()
    assert draw_step(ax, quick, 0, 9.9).get_xlim()[1] > 9900
