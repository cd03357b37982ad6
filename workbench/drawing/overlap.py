"""The same backward pass under several policies: when their messages travel, one above another."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ..checks import shown
from ..intervals import union
from ..schedules.scenario import count
from ..timeline import Prediction
from ..units import MS
from .labels import beside, small
from .style import COLOURS, HATCHES, INK, check_axes, legend_above, short


def draw_overlap(ax: Axes, predictions: Mapping[str, Prediction]) -> Axes:
    """Draw a row of messages for each policy below one backward pass, in ms since it began.

    Ticks above a row are when its messages are ready. What travels after backward is exposed:
    hatched. At the right stand the number of messages and the scaling factor.

    predictions : name of a row -> Prediction, from above; of one backward pass
    """
    check_axes(ax, "draw_overlap")
    backward_s = _backward_s(predictions)
    rows = np.arange(1, len(predictions) + 1)
    ax.barh(0, backward_s / MS, 0.6, color=COLOURS["compute"])
    ax.text(0.5 * backward_s / MS, 0, "backward", color="white", ha="center", va="center",
            fontsize=small())  # fmt: skip
    for row, found in zip(rows, predictions.values(), strict=True):
        _draw_messages(ax, row, found, backward_s)
        told = f"{count(len(found.timeline), 'message')}\nfactor {found.scaling_factor:.3f}"
        beside(ax, row, told)
    ax.axvline(backward_s / MS, color=INK, lw=0.6, ls=":")
    ax.set_yticks([0, *rows], ["worker", *(short(name, 18) for name in predictions)])
    for tick in ax.get_yticklabels():
        tick.set_parse_math(False)
    ax.set(xlabel="time since backward began (ms)", xlim=(0, None), ylim=(rows[-1] + 0.5, -0.5))
    ax.tick_params(axis="y", length=0)
    parts = {"comm": "hidden communication", "exposed": "exposed"}
    handles = [
        Patch(fc=COLOURS[kind], hatch=HATCHES[kind], ec="white", lw=0, label=label)
        for kind, label in parts.items()
    ]
    return legend_above(ax, columns=2, handles=handles)


def _backward_s(predictions) -> float:
    """Return when backward ends, s, or raise ValueError for no predictions or several passes."""
    what, each = "draw_overlap", "{name: predict(scenario)}"
    if not isinstance(predictions, Mapping) or not predictions:
        raise ValueError(f"{what}: expected predictions {each}, got {shown(predictions)}")
    for name, found in predictions.items():
        if not isinstance(found, Prediction):
            raise ValueError(f"{what}: {name}: expected a Prediction, got {shown(found)}")
    ends_s = {found.scenario.backward_s + found.slowed_s for found in predictions.values()}
    if max(ends_s) - min(ends_s) > 1e-9 * max(ends_s):
        raise ValueError(
            f"{what}: expected one backward pass, got some that end after "
            f"{min(ends_s):.6g} s and {max(ends_s):.6g} s; draw_timeline draws each by itself"
        )
    return max(ends_s)


def _draw_messages(ax: Axes, row: int, found: Prediction, backward_s: float):
    table = found.timeline
    start, end = table["start_s"].to_numpy(), table["end_s"].to_numpy()
    hidden_end = np.clip(end, start, np.fmax(start, backward_s))
    for kind, low, high in (("comm", start, hidden_end), ("exposed", hidden_end, end)):
        low, high = union(low / MS, high / MS)
        if len(low):
            spans = np.column_stack([low, high - low])
            ax.broken_barh(spans, (row - 0.2, 0.5), facecolor=COLOURS[kind], hatch=HATCHES[kind],
                           edgecolor="white", linewidth=0)  # fmt: skip
    gap = min(0.4, 20 / len(table))  # points of white between messages
    ax.vlines(start / MS, row - 0.2, row + 0.3, color="white", lw=gap)
    ax.vlines(table["ready_s"] / MS, row - 0.42, row - 0.26, color=INK, lw=max(0.3, gap))
