"""One step of the recursion as a figure: the timeline up to a message, and what it waited for."""

import pandas as pd
from matplotlib.axes import Axes

from ..checks import shown
from ..schedules.explain import EXPLANATION
from ..units import MS
from .style import INK, check_axes, filled, is_number, legend_above
from .timelines import READY_AT, TIMES, draw_timeline


def draw_step(ax: Axes, steps: pd.DataFrame, step: int, backward_s: float) -> Axes:
    """Draw the timeline up to message `step`, framed, in ms since backward began.

    An arrow leads from when its bucket is ready to when it starts: straight down where it was sent
    at once, and slanting where it waited. A dashed line marks the end of the message before. The
    axis is as long as all steps need, so that one picture grows into the next.

    Parameters
    ----------
    steps : prediction.explain()
    step : a message, from 0 up
    backward_s : when backward ends, s; that of a prediction is scenario.backward_s + slowed_s

    Raises ValueError for a table without steps, a step that is none of them, or no backward_s.
    """
    check_axes(ax, "draw_step")
    steps = filled(
        steps, EXPLANATION, "draw_step", "prediction.explain()", TIMES, gaps=("previous_end_s",)
    )
    if not (is_number(step) and step in range(len(steps))):
        raise ValueError(
            f"draw_step: step: expected a whole number from 0 to {len(steps) - 1}, "
            f"got {shown(step)}"
        )
    draw_timeline(ax, steps[: step + 1], backward_s)
    row = steps.iloc[step]
    ready, start, end, previous = (
        row[name] / MS for name in ("ready_s", "start_s", "end_s", "previous_end_s")
    )
    ax.plot(steps["ready_s"] / MS, [READY_AT] * len(steps), "|", color=INK, alpha=0.3, ms=6)
    ax.broken_barh([(start, end - start)], (-0.34, 0.68), facecolor="none", edgecolor=INK,
                   linewidth=1.0, zorder=3)  # fmt: skip
    if previous >= 0:
        ax.plot([previous] * 2, [-0.4, 0.42], color=INK, lw=0.9, ls=(0, (3, 1.5)),
                label="message before ends")  # fmt: skip
    arrow = {"arrowstyle": "->", "color": INK, "lw": 1.0, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (start, 0.34), (ready, READY_AT - 0.08), zorder=4, arrowprops=arrow)
    legend_above(ax, columns=3)
    ax.set_xlim(0, 1.02 * max(backward_s, steps["end_s"].max()) / MS)
    return ax
