"""The scaling factor against the size of a constant buffer, beside that of adaptive fusion."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from .labels import looks, name_ends
from .style import INK, check_axes, filled, legend_above

NEEDED = {
    "value": "size of the buffer, MiB",
    "scaling_factor": "with it",
    "loss": "1 - scaling factor / that of the optimum",
}


def draw_buffers(
    ax: Axes, curves: pd.DataFrame, by: str = "model", at: float | None = None
) -> Axes:
    """Draw a curve a model of the scaling factor with each size of the buffer.

    A star marks the best size, and a dotted line is adaptive fusion, the optimum over groupings.

    curves : `loss_curve(scenario, FixedBuffer(...))` of each model, told apart by the column `by`
    at : a size in MiB to point out
    """
    check_axes(ax, "draw_buffers")
    advice = "loss_curve(scenario, FixedBuffer(64 * MIB))"
    curves = filled(
        curves,
        NEEDED | {by: "which curve"},
        "draw_buffers",
        advice,
        ("scaling_factor", "loss"),
        ("value",),
        named=(by,),
    ).reset_index(drop=True)
    sizes, ends = np.unique(curves["value"]), {}
    for name, look in looks(list(dict.fromkeys(curves[by]))).items():
        mine = curves[curves[by] == name].sort_values("value")
        optimum = (mine["scaling_factor"] / (1 - mine["loss"])).iloc[0]
        marker, colour = look["marker"], look["color"]
        ax.plot(mine["value"], mine["scaling_factor"], marker=marker, ms=2.5, lw=1, color=colour)
        ax.plot(sizes[[0, -1]], [optimum] * 2, color=colour, lw=0.9, ls=":")
        best = mine.loc[mine["loss"].idxmin()]
        ax.plot(best["value"], best["scaling_factor"], "*", ms=8, mfc="white", mec=colour, zorder=4)
        ends[str(name)] = (mine["scaling_factor"].iloc[-1], colour)
    if at is not None:
        ax.axvline(at, color=INK, lw=0.6, ls="--", zorder=1)
    _finish(ax, sizes)
    name_ends(ax, ends)
    handles = [
        Line2D([], [], color=INK, lw=1, label="constant buffer"),
        Line2D([], [], color=INK, lw=0.9, ls=":", label="adaptive fusion"),
        Line2D([], [], ls="", marker="*", ms=7, mfc="white", mec=INK, label="best buffer"),
    ]
    return legend_above(ax, columns=3, handles=handles)


def _finish(ax: Axes, sizes: np.ndarray):
    first, last = np.log2(sizes[[0, -1]])
    ax.set_xscale("log", base=2)
    ticks = 2.0 ** np.arange(np.ceil(first / 2) * 2, last + 0.01, 2)
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    low = ax.dataLim.y0
    ax.set_ylim(0 if low < 0.5 else max(0.0, 1 - 1.15 * (1 - low)), None)
    top = 1 + 0.03 * (1 - ax.get_ylim()[0])
    ax.set_ylim(ax.get_ylim()[0], top)
    ax.set(xlabel="buffer (MiB)", ylabel="scaling factor")
