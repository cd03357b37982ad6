"""Predicted against measured, and the gain of adaptive fusion, as figures."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..checks import shown
from ..gain import CLAIMED, GAIN
from ..validation import VALIDATION
from .labels import looks
from .style import INK, check_axes, filled, is_number, legend_above, short

TENTHS = np.linspace(0, 1, 6)  # ticks of both axes of scaling factors
LOSSES = (-10, -1)
TICKS = (0, 1, 3, 10, 32.2, 150)  # per cent; the last two are the range that the paper claims


def draw_parity(
    ax: Axes,
    table: pd.DataFrame,
    by: str = "method",
    within: float = 0.084,
    up_to: float | None = None,
) -> Axes:
    """Draw each cell's prediction against its measurement; on the line they agree.

    table : VALIDATION of one quantity
    by : the column that tells marks apart
    within : relative error that the band around the line shows; the default is the largest of the
        paper's abstract
    up_to : the largest value of the axes, for panels to be compared; by default that of the table
    """
    check_axes(ax, "draw_parity")
    if up_to is not None and not (is_number(up_to) and up_to > 0):
        raise ValueError(f"draw_parity: up_to: expected a number above 0, got {shown(up_to)}")
    needed = {name: VALIDATION[name] for name in ("measured", "predicted", "quantity")}
    table = filled(
        table,
        needed | {by: "which mark"},
        "draw_parity",
        "validate_bcaffe(...)",
        ("measured", "predicted"),
        named=(by, "quantity"),
    )
    if table["quantity"].nunique() != 1:
        found = ", ".join(table["quantity"].unique())
        raise ValueError(f"draw_parity: quantity: expected one in the table, got {shown(found)}")
    line = _span(table) if up_to is None else np.linspace(0, up_to)
    crowd = {"ms": 2, "alpha": 0.35} if len(table) > 200 else {}
    ax.fill_between(line, line * (1 - within), line * (1 + within), color="#EFEFEF", lw=0, zorder=0,
                    label=f"within {100 * within:.3g} %")  # fmt: skip
    ax.plot(line, line, color=INK, lw=0.6, zorder=1)
    groups = table.groupby(by, sort=False)
    for (name, cells), look in zip(groups, _looks(groups), strict=True):
        ax.plot(cells["measured"], cells["predicted"], label=short(name, 24), **look | crowd)
    what = table["quantity"].iloc[0]
    ax.set(xlabel=f"measured ({what})", ylabel=f"predicted ({what})")
    ax.set(xlim=(line[0], line[-1]), ylim=(line[0], line[-1]), aspect="equal")
    if what == "scaling factor" and up_to is None:
        ax.set(xticks=TENTHS, yticks=TENTHS)
    legend_above(ax, columns=2)
    for handle in ax.get_legend().get_lines():
        handle.set(markersize=3.5, alpha=0.9)
    return ax


def _span(table: pd.DataFrame) -> np.ndarray:
    """Return where the line of agreement runs: 0 to 1 for factors, else around the values."""
    if table["quantity"].iloc[0] == "scaling factor":
        return np.linspace(0, 1.05)
    values = table[["measured", "predicted"]].to_numpy()
    return np.linspace(0, values.max() * 1.05)


def _looks(groups) -> list[dict]:
    """Return marker and colour of each group, by its name."""
    plain = {"ls": "", "ms": 3.5, "alpha": 0.75, "mew": 0}
    found = looks([name for name, _ in groups]).values()
    return [plain | {name: look[name] for name in ("color", "marker")} for look in found]


def draw_gain(ax: Axes, table: pd.DataFrame) -> Axes:
    """Draw the gain of adaptive fusion over each constant buffer, a mark a model and link, in %.

    The axis is linear up to 1 % and logarithmic beyond, and goes below 0 where a gain does; the
    paper's claim is shaded.
    """
    check_axes(ax, "draw_gain")
    table = filled(
        table,
        GAIN,
        "draw_gain",
        "fusion_gain(models, links)",
        ("gain",),
        named=("model", "baseline"),
    )
    baselines = list(dict.fromkeys(table["baseline"]))
    ax.axvspan(*(100 * share for share in CLAIMED), color="#EFEFEF", lw=0, zorder=0,
               label="claimed")  # fmt: skip
    groups = table.groupby("model", sort=False)
    offsets = np.linspace(0.25, -0.25, len(groups)) if len(groups) > 1 else [0.0]
    for (name, cells), look, offset in zip(groups, _looks(groups), offsets, strict=True):
        rows = cells["baseline"].map(baselines.index) + offset
        ax.plot(100 * cells["gain"], rows, label=short(name, 24), **look)
    ax.set_xscale("symlog", linthresh=1.0)
    left, right = min(-0.2, 120 * table["gain"].min()), max(200, 120 * table["gain"].max())
    if left < -0.2:
        ax.axvline(0, color=INK, lw=0.6, zorder=1)
    ticks = [tick for tick in LOSSES if tick > left] + list(TICKS)
    ax.set_xticks(ticks, [f"{tick:g}".replace("-", "\N{MINUS SIGN}") for tick in ticks])
    ax.set(xlabel="gain of adaptive fusion (%)", xlim=(left, right))
    ax.set_yticks(range(len(baselines)), [short(name, 26) for name in baselines])
    ax.tick_params(axis="y", length=0)
    ax.minorticks_off()
    ax.invert_yaxis()
    return legend_above(ax, columns=2)
