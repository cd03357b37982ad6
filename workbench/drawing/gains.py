"""Adaptive fusion against a constant buffer, with what the paper claims as a band."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..gain import CLAIMED, GAIN
from .labels import looks, small
from .style import INK, check_axes, filled, legend_above, short

BAND = "#EFEFEF"


def draw_adaptive(ax: Axes, table: pd.DataFrame, words: str = "", legend: bool = True) -> Axes:
    """Draw the scaling factor of adaptive fusion against that of a constant buffer, a mark a link.

    On the line both are equal. In the band the gain is what the paper claims, 32.2 to 150 %; where
    the constant buffer is above 1 / 1.322 no gain can be as large.

    table : `fusion_gain(models, links)`, any of its rows
    words : what the panel is of
    legend : whether marks are named here
    """
    check_axes(ax, "draw_adaptive")
    table = filled(
        table,
        GAIN,
        "draw_adaptive",
        "fusion_gain(models, links)",
        ("constant", "adaptive"),
        named=("model",),
    )
    low, high = (1 + share for share in CLAIMED)
    x = np.array([0, 1 / high, 1 / low])
    ax.fill_between(x, low * x, np.minimum(1, high * x), color=BAND, lw=0, zorder=0,
                    label="claimed")  # fmt: skip
    ax.plot([0, 1], [0, 1], color=INK, lw=0.6, zorder=1)
    for name, look in looks(list(dict.fromkeys(table["model"]))).items():
        mine = table[table["model"] == name]
        ax.plot(mine["constant"], mine["adaptive"], look["marker"], color=look["color"], ms=3.5,
                mew=0, alpha=0.75, label=short(name, 24))  # fmt: skip
    ticks = np.linspace(0, 1, 6)
    ax.set(xlim=(0, 1.03), ylim=(0, 1.03), aspect="equal", xticks=ticks, yticks=ticks)
    ax.set(xlabel="constant buffer", ylabel="adaptive fusion")
    ax.text(
        0.97,
        0.04,
        words,
        transform=ax.transAxes,
        ha="right",
        va="bottom",
        fontsize=small(),
        parse_math=False,
    )
    return legend_above(ax, columns=2) if legend else ax
