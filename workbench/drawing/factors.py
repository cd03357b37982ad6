"""What degrades the scaling factor, a small panel a factor."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from ..checks import shown
from ..factors import FACTORS, TIMES
from .labels import looks, name_ends
from .style import check_axes, filled

WORDS = {  # factor -> what its axis says
    "bandwidth": "bandwidth",
    "latency": "latency",
    "batch": "batch",
    "GPU speed": "GPU speed",
    "largest gradient": "largest gradient",
    "stragglers": "stragglers",
}
UNITS = {TIMES: "\N{MULTIPLICATION SIGN}"}  # all others are shares, in %


def draw_factors(axes, table: pd.DataFrame, by: str = "model"):
    """Draw the scaling factor against each factor in an Axes of its own; a dot is as it is.

    axes : as many Axes as the table has factors, in its order; heights are comparable, and names
        stand at the right of each row's last
    table : `factors(scenario)` of each model, told apart by the column `by`
    """
    table = filled(
        table,
        FACTORS | {by: "which curve"},
        "draw_factors",
        "factors(scenario)",
        ("value", "scaling_factor"),
        named=(by,),
    )
    panels, names = list(np.ravel(axes)), list(dict.fromkeys(table["factor"]))
    if len(panels) != len(names):
        raise ValueError(
            f"draw_factors: axes: expected {len(names)} Axes, one a factor, got "
            f"{shown(len(panels))}: fig, axes = plt.subplots(2, 3, sharey=True)"
        )
    bottom = 0.0 if (least := table["scaling_factor"].min()) < 0.5 else np.floor(10 * least) / 10
    for ax, factor in zip(panels, names, strict=True):
        check_axes(ax, "draw_factors")
        _draw_panel(ax, table[table["factor"] == factor], by, bottom)
    return axes


def _draw_panel(ax: Axes, table: pd.DataFrame, by: str, bottom: float):
    factor, unit = table["factor"].iloc[0], table["unit"].iloc[0]
    scale, ends = (1 if unit == TIMES else 100), {}
    for name, look in looks(list(dict.fromkeys(table[by]))).items():
        mine = table[table[by] == name].sort_values("value")
        marker = look.pop("marker")
        ax.plot(scale * mine["value"], mine["scaling_factor"], lw=1, **look)
        now = mine[mine["as_it_is"]]
        ax.plot(scale * now["value"], now["scaling_factor"], marker, ms=3.5, color=look["color"])
        ends[str(name)] = (mine["scaling_factor"].iloc[-1], look["color"])
    if unit == TIMES:
        filled(table, {}, f"draw_factors: {factor}", "factors(scenario)", above_0=("value",))
        _doublings(ax, table["value"])
    ax.set(ylim=(bottom, 1 + 0.05 * (1 - bottom)))
    ax.set_xlabel(f"{WORDS.get(factor, factor)} ({UNITS.get(unit, '%')})")
    spec = ax.get_subplotspec()
    if spec is None or spec.is_first_col():
        ax.set_ylabel("scaling factor")
    if spec is None or spec.is_last_col():
        name_ends(ax, ends)


def _doublings(ax: Axes, values: pd.Series):
    ax.set_xscale("log", base=2)
    first, last = np.ceil(np.log2(values.min())), np.floor(np.log2(values.max()))
    step = max(1, int(last - first) // 2)
    ticks = [2.0**k for k in np.arange(first, last + 1) if k % step == 0]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(lambda value, _: _plain(value))


def _plain(value: float) -> str:
    return f"{value:g}" if value >= 1 else f"1/{1 / value:g}"
