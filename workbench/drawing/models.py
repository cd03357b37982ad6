"""The scaling factor of several models against workers, predicted and measured."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ..checks import shown
from .labels import GROUND, looks, name_ends, shade_untimed, small
from .style import INK, check_axes, doubling_axis, filled, is_number, short

NEEDED = {
    "n_workers": "workers",
    "predicted": "scaling factor, ours",
    "model": "whose colour it is",
}


def draw_models(
    ax: Axes,
    table: pd.DataFrame,
    by: str = "model",
    words: str = "",
    fitted_to: float | Sequence[float] | None = None,
) -> Axes:
    """Draw a curve of predicted scaling factors a model, with measured ones as marks beside it.

    table : n_workers, predicted, model and, where there are runs, measured (NaN without)
    by : what tells the curves of one model apart, such as its device; the colour stays the model's
    words : what the panel is of, above it, where a lone curve is named too
    fitted_to : workers, one number or more, that the price of a message was timed on: outside of
        them it is extrapolated, on grey ground
    """
    check_axes(ax, "draw_models")
    table = filled(
        table,
        NEEDED | {by: "which curve"},
        "draw_models",
        "sweep(...)",
        ("predicted",),
        ("n_workers",),
        ("measured",),
        tuple(dict.fromkeys((by, "model"))),
    )
    timed = np.atleast_1d(np.array([] if fitted_to is None else fitted_to, object))
    if not all(is_number(each) and each > 0 for each in timed):
        got = shown(fitted_to)
        raise ValueError(f"draw_models: fitted_to: expected numbers of workers, got {got}")
    lowest, highest = table["n_workers"].min(), table["n_workers"].max()
    if fitted_to is not None:
        shade_untimed(ax, timed, lowest, highest)
    names = list(dict.fromkeys(table[by]))
    colours, ends = looks(list(dict.fromkeys(table["model"]))), {}
    for name, look in looks(names).items():
        mine = table[table[by] == name].sort_values("n_workers")
        colour = colours[mine["model"].iloc[0]]["color"]
        _draw_curve(ax, mine, look | {"color": colour})
        ends[name] = (mine["predicted"].iloc[-1], colour)
    ax.set(ylim=(0, 1.05), yticks=np.linspace(0, 1, 6))
    doubling_axis(ax, lowest, highest)
    ax.set(xlabel="number of workers")
    spec = ax.get_subplotspec()
    if spec is None or spec.is_first_col():
        ax.set_ylabel("scaling factor")
    if len(names) == 1:  # a lone name would take its room from the panel beside it
        words = ": ".join(filter(None, [words, short(names[0], 24)]))
    ax.text(0, 1.02, words, transform=ax.transAxes, va="bottom", fontsize=small(), parse_math=False)
    name_ends(ax, ends if len(names) > 1 else {})
    return ax


def _draw_curve(ax: Axes, mine: pd.DataFrame, look: dict):
    """Draw what is predicted as a line, a lone number as a bar, and what was measured as marks."""
    marker = look.pop("marker")
    at, predicted = mine["n_workers"], mine["predicted"]
    ax.plot(at, predicted, lw=1, **look)
    if len(mine) == 1:
        ax.plot(at, predicted, "_", ms=8, color=look["color"])
    if "measured" in mine and mine["measured"].notna().any():
        ax.plot(at, mine["measured"], marker, ms=3.5, mfc="white", mec=look["color"], mew=0.9)


def name_marks(fig, extrapolated: bool = True):
    """Say once for a figure what lines, marks and grey ground of its panels are."""
    handles = [
        Line2D([], [], color=INK, lw=1, label="predicted"),
        Line2D([], [], ls="", marker="o", ms=3.5, mfc="white", mec=INK, mew=0.9, label="measured"),
    ]
    if extrapolated:
        handles.append(Line2D([], [], color=GROUND, lw=6, label="extrapolated"))
    fig.legend(handles=handles, loc="outside upper right", ncols=3)
