"""The scaling factor of several models against workers, predicted and measured."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from ..base.checks import shown
from ..whatif.one_at_a_time import FACTORS, TIMES
from .labels import GROUND, looks, name_ends, shade_untimed, small
from .style import INK, check_axes, doubling_axis, filled, is_number, legend_above, short

_CURVES = {
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
        _CURVES | {by: "which curve"},
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


_BUFFERS = {
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
        _BUFFERS | {by: "which curve"},
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
