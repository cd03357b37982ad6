"""How far predictions are off, a row a data set or model, with the bound that the paper names."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..validation import OFF, VALIDATION
from .labels import beside, small
from .style import INK, check_axes, filled, short

BAND = "#EFEFEF"


def draw_errors(ax: Axes, table: pd.DataFrame, by: str = "dataset", within: float = OFF) -> Axes:
    """Draw the error of each cell in %, predicted / measured - 1, a row a value of `by`.

    At the right stand the mean absolute error and the number of cells. The band is within the
    bound, by default the largest error that the paper's abstract names.

    table : VALIDATION, of any quantities
    """
    check_axes(ax, "draw_errors")
    needed = {"error": VALIDATION["error"], by: "which row"}
    table = filled(table, needed, "draw_errors", "validate_bcaffe(...)", ("error",), named=(by,))
    names = list(dict.fromkeys(table[by]))
    ax.axvspan(-100 * within, 100 * within, color=BAND, lw=0, zorder=0)
    ax.axvline(0, color=INK, lw=0.6, zorder=1)
    for row, name in enumerate(names):
        errors = 100 * table.loc[table[by] == name, "error"]
        spread = 0.25 * np.sin(2.4 * np.arange(len(errors)))  # so that marks do not hide another
        size, alpha = (3, 0.7) if len(errors) < 100 else (1.8, 0.3)
        ax.plot(errors, row + spread, "o", color=INK, ms=size, mew=0, alpha=alpha)
        told = f"{errors.abs().mean():.1f} % ({len(errors)})"
        beside(ax, row, told)
    ax.set_yticks(range(len(names)), [short(name, 26) for name in names])
    for tick in ax.get_yticklabels():
        tick.set_parse_math(False)
    ax.tick_params(axis="y", length=0)
    ax.set(ylim=(len(names) - 0.4, -0.6), xlabel="error (%)")
    ax.text(1, 1.01, "mean (cells)", transform=ax.transAxes, va="bottom", fontsize=small())
    return ax
