"""The scaling factor of several models against workers, predicted and measured."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ..checks import shown
from .labels import looks, name_ends, small
from .style import INK, check_axes, doubling_axis, filled, is_number

NEEDED = {
    "n_workers": "workers",
    "predicted": "scaling factor, ours",
    "model": "whose colour it is",
}
GROUND = "#EFEFEF"  # of what lies outside the measurements


def draw_models(
    ax: Axes,
    table: pd.DataFrame,
    by: str = "model",
    words: str = "",
    fitted_to: float | None = None,
) -> Axes:
    """Draw a curve of predicted scaling factors a model, with measured ones as marks beside it.

    table : n_workers, predicted, model and, where there are runs, measured (NaN without)
    by : what tells the curves of one model apart, such as its device; the colour stays the model's
    words : what the panel is of, above it
    fitted_to : workers beyond which the price of a message is extrapolated: grey ground
    """
    check_axes(ax, "draw_models")
    table = filled(table, NEEDED | {by: "which curve"}, "draw_models", "sweep(...)")
    if fitted_to is not None and not (is_number(fitted_to) and fitted_to > 0):
        got = shown(fitted_to)
        raise ValueError(f"draw_models: fitted_to: expected a number of workers, got {got}")
    lowest, highest = table["n_workers"].min(), table["n_workers"].max()
    if fitted_to is not None and fitted_to < highest:
        ax.axvspan(fitted_to, highest * 1.1, color=GROUND, lw=0, zorder=0)
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
    ax.text(0, 1.02, words, transform=ax.transAxes, va="bottom", fontsize=small())
    name_ends(ax, ends)
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
