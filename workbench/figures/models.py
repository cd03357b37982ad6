"""The scaling factor of several models against workers, buffer sizes and what could change."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ..base.checks import require
from ..whatif.one_at_a_time import FACTORS, MULTIPLE
from .given import check_axes, draws, filled, is_number
from .labels import label_factor, looks, name_ends, shade_untimed, small, write_note
from .style import GROUND, INK, doubling_axis, fixed_ticks, legend_above, short

_CURVES = {
    "n_workers": "workers",
    "predicted": "predicted scaling factor",
    "model": "the model, which has the colour",
}
_BUFFERS = {
    "value": "size of the buffer, MiB",
    "scaling_factor": "with this size",
    "loss": "1 - scaling factor / that of the optimum",
}
_MEASURED = {"ls": "", "marker": "o", "ms": 3.5, "mfc": "white", "mew": 0.9}


@draws(
    _CURVES,
    "sweep(...)",
    finite=("predicted",),
    above_0=("n_workers",),
    gaps=("measured",),
    named=("model",),
)
def draw_models(
    ax: Axes,
    table: pd.DataFrame,
    by: str = "model",
    words: str = "",
    fitted_to: float | Sequence[float] | None = None,
) -> Axes:
    """Draw one curve of predicted scaling factors per model, and measured ones as marks.

    table : n_workers, predicted, model and, if there are runs, measured (NaN without)
    by : column that separates the curves of one model, such as its device; colour is the model's
    words : title of the panel; a single curve is named there too
    fitted_to : numbers of workers at which messages were timed; the ground is grey outside them
    """
    timed = np.atleast_1d(np.array([] if fitted_to is None else fitted_to, object))
    fine = all(is_number(each) and each > 0 for each in timed)
    require(fine, "draw_models fitted_to", "numbers of workers", fitted_to)
    lowest, highest = table["n_workers"].min(), table["n_workers"].max()
    if fitted_to is not None:
        shade_untimed(ax, timed, lowest, highest)
    colours, ends = looks(table["model"]), {}
    for name, look in looks(table[by]).items():
        mine = table[table[by] == name].sort_values("n_workers")
        colour = colours[mine["model"].iloc[0]]["color"]
        _draw_curve(ax, mine, look | {"color": colour})
        ends[name] = (mine["predicted"].iloc[-1], colour)
    ax.set(ylim=(0, 1.05), yticks=np.linspace(0, 1, 6))
    doubling_axis(ax, lowest, highest)
    ax.set(xlabel="number of workers")
    label_factor(ax)
    if len(ends) == 1:  # at the right, its name would take room from the next panel
        words = ": ".join(filter(None, [words, short(*ends, 24)]))
    write_note(ax, 0, 1.02, words, fontsize=small())
    name_ends(ax, ends if len(ends) > 1 else {})
    return ax


def _draw_curve(ax: Axes, mine: pd.DataFrame, look: dict):
    """Draw predictions as a line, a single one as a bar, and measurements as marks."""
    marker = look.pop("marker")
    at, predicted = mine["n_workers"], mine["predicted"]
    ax.plot(at, predicted, lw=1, **look)
    if len(mine) == 1:
        ax.plot(at, predicted, "_", ms=8, color=look["color"])
    if "measured" in mine and mine["measured"].notna().any():
        ax.plot(at, mine["measured"], **_MEASURED | {"marker": marker, "mec": look["color"]})


def name_marks(fig, extrapolated: bool = True):
    """Add one legend for all panels of a figure: lines, marks and the grey ground."""
    handles = [
        Line2D([], [], color=INK, lw=1, label="predicted"),
        Line2D([], [], mec=INK, label="measured", **_MEASURED),
        *[Line2D([], [], color=GROUND, lw=6, label="extrapolated")] * extrapolated,
    ]
    fig.legend(handles=handles, loc="outside upper right", ncols=3)


@draws(
    _BUFFERS,
    "loss_curve(scenario, FixedBuffer(64 * MIB))",
    finite=("scaling_factor", "loss"),
    above_0=("value",),
)
def draw_buffers(
    ax: Axes, curves: pd.DataFrame, by: str = "model", at: float | None = None
) -> Axes:
    """Draw the scaling factor against the size of the buffer, one curve per model.

    A star marks the best size; the dotted line is adaptive fusion, the optimum over groupings.

    curves : `loss_curve(scenario, FixedBuffer(...))` of each model, told apart by the column `by`
    at : a size in MiB to mark
    """
    curves = curves.reset_index(drop=True)
    sizes, ends = np.unique(curves["value"]), {}
    for name, look in looks(curves[by]).items():
        mine = curves[curves[by] == name].sort_values("value")
        optimum = (mine["scaling_factor"] / (1 - mine["loss"])).iloc[0]
        marker, colour = look["marker"], look["color"]
        ax.plot(mine["value"], mine["scaling_factor"], marker=marker, ms=2.5, lw=1, color=colour)
        ax.plot(sizes[[0, -1]], [optimum] * 2, color=colour, lw=0.9, ls=":")
        best = mine.loc[mine["loss"].idxmin()]
        ax.plot(best["value"], best["scaling_factor"], "*", ms=8, mfc="white", mec=colour, zorder=4)
        ends[name] = (mine["scaling_factor"].iloc[-1], colour)
    if at is not None:
        ax.axvline(at, color=INK, lw=0.6, ls="--", zorder=1)
    first, last = np.log2(sizes[[0, -1]])
    ax.set_xscale("log", base=2)
    fixed_ticks(ax.xaxis, 2.0 ** np.arange(np.ceil(first / 2) * 2, last + 0.01, 2), "{:g}".format)
    low = ax.dataLim.y0
    bottom = 0 if low < 0.5 else max(0.0, 1 - 1.15 * (1 - low))
    ax.set(xlabel="buffer (MiB)", ylabel="scaling factor", ylim=(bottom, 1 + 0.03 * (1 - bottom)))
    name_ends(ax, ends)
    handles = [
        Line2D([], [], color=INK, lw=1, label="constant buffer"),
        Line2D([], [], color=INK, lw=0.9, ls=":", label="adaptive fusion"),
        Line2D([], [], ls="", marker="*", ms=7, mfc="white", mec=INK, label="best buffer"),
    ]
    return legend_above(ax, columns=3, handles=handles)


def draw_factors(axes, table: pd.DataFrame, by: str = "model"):
    """Draw the scaling factor against each factor in its own Axes; a dot marks today's value.

    axes : one Axes per factor, in the order of the table; names stand at the right of each row
    table : `factors(scenario)` of each model, told apart by the column `by`
    """
    wanted, advice = FACTORS | {by: "which curve"}, "factors(scenario)"
    finite = ("value", "scaling_factor")
    table = filled(table, wanted, "draw_factors table", advice, finite, named=(by,))
    panels, names = list(np.ravel(axes)), list(dict.fromkeys(table["factor"]))
    expected, do = f"{len(names)} Axes, one per factor", "Pass those of plt.subplots(2, 3)"
    require(len(panels) == len(names), "draw_factors axes", expected, len(panels), do)
    bottom = 0.0 if (least := table["scaling_factor"].min()) < 0.5 else np.floor(10 * least) / 10
    for ax, factor in zip(panels, names, strict=True):
        check_axes(ax, "draw_factors")
        _draw_panel(ax, table[table["factor"] == factor], by, bottom)
    return axes


def _draw_panel(ax: Axes, table: pd.DataFrame, by: str, bottom: float):
    factor, unit = table["factor"].iloc[0], table["unit"].iloc[0]
    scale, sign = (1, "\N{MULTIPLICATION SIGN}") if unit == MULTIPLE else (100, "%")  # of shares
    ends = {}
    for name, look in looks(table[by]).items():
        mine = table[table[by] == name].sort_values("value")
        marker = look.pop("marker")
        ax.plot(scale * mine["value"], mine["scaling_factor"], lw=1, **look)
        now = mine[mine["as_it_is"]]
        ax.plot(scale * now["value"], now["scaling_factor"], marker, ms=3.5, color=look["color"])
        ends[name] = (mine["scaling_factor"].iloc[-1], look["color"])
    if unit == MULTIPLE:
        filled(table, {}, f"draw_factors {factor}", "factors(scenario)", above_0=("value",))
        _doublings(ax, table["value"])
    ax.set(ylim=(bottom, 1 + 0.05 * (1 - bottom)))
    ax.set_xlabel(f"{factor} ({sign})")
    label_factor(ax)
    spec = ax.get_subplotspec()
    if spec is None or spec.is_last_col():
        name_ends(ax, ends)


def _doublings(ax: Axes, values: pd.Series):
    ax.set_xscale("log", base=2)
    first, last = np.ceil(np.log2(values.min())), np.floor(np.log2(values.max()))
    step = max(1, int(last - first) // 2)
    ticks = [2.0**k for k in np.arange(first, last + 1) if k % step == 0]
    fixed_ticks(ax.xaxis, ticks, lambda value: f"{value:g}" if value >= 1 else f"1/{1 / value:g}")
