"""Predicted against measured, and the gain of adaptive fusion, as figures."""

import math
import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from ..base.checks import shown
from ..validation.cells import OFF, VALIDATION
from ..validation.claims import CLAIMS, readable
from ..validation.gain import CLAIMED_GAIN, GAIN
from .labels import beside, looks, small
from .style import INK, check_axes, filled, is_number, legend_above, short

BAND = "#EFEFEF"
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
    ax.fill_between(line, line * (1 - within), line * (1 + within), color=BAND, lw=0, zorder=0,
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
    ax.axvspan(*(100 * share for share in CLAIMED_GAIN), color=BAND, lw=0, zorder=0,
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


RATIOS = np.array([0.1, 0.2, 0.5, 1, 2, 5, 10])
LETTERS = 40  # of a claim on a line, and LETTERS_AN_INCH of the figure where that is less
LETTERS_AN_INCH = 9


def draw_claims(ax: Axes, table: pd.DataFrame, within: float = OFF) -> Axes:
    """Draw ours over what was claimed, a row a claim, and both numbers at the right.

    The axis is logarithmic; the band is within the largest error that the paper's abstract names.

    table : `claims(...)`
    """
    check_axes(ax, "draw_claims")
    texts = readable(
        filled(
            table,
            CLAIMS,
            "draw_claims",
            "claims(tables, gradients, cells, gains)",
            ("claimed_low", "claimed_high", "ours_low", "ours_high"),
            ("ratio",),
            named=("work", "claim", "unit"),
        )
    )
    rows, ratio = np.arange(len(table)), table["ratio"].to_numpy(float)
    ax.set_xscale("log")
    ax.axvspan(1 - within, 1 + within, color=BAND, lw=0, zorder=0)
    ax.axvline(1, color=INK, lw=0.6, zorder=1)
    ax.hlines(rows, np.minimum(1, ratio), np.maximum(1, ratio), color=INK, lw=0.8)
    ax.plot(ratio, rows, "o", color=INK, ms=3.5)
    for row, told in zip(rows, texts.itertuples(index=False), strict=True):
        beside(ax, row, f"{told.Ours} / {told.Claimed}")
    ax.text(1, 1.01, "ours / claimed", transform=ax.transAxes, va="bottom", fontsize=small())
    letters = min(LETTERS, round(LETTERS_AN_INCH * ax.figure.get_figwidth()))
    ax.set_yticks(rows, [_wrapped(claim, letters) for claim in texts["Claim"]], linespacing=1.0)
    for tick in ax.get_yticklabels():
        tick.set_parse_math(False)
    ax.tick_params(axis="y", length=0)
    low, high = min(0.8, ratio.min() / 1.25), max(1.25, ratio.max() * 1.25)
    shown = RATIOS[(RATIOS >= low) & (RATIOS <= high)]
    ax.xaxis.set_major_locator(FixedLocator(shown))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set(xlim=(low, high), ylim=(len(table) - 0.4, -0.6), xlabel="ratio")
    return ax


def _wrapped(claim: str, letters: int) -> str:
    """Return a claim whole, on as few lines as it takes, all about as long."""
    claim = short(claim, 4 * letters)
    n_lines = math.ceil(len(claim) / letters)
    tried = (textwrap.wrap(claim, width) for width in range(-(-len(claim) // n_lines), len(claim)))
    return "\n".join(next((lines for lines in tried if len(lines) <= n_lines), [claim]))


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
    low, high = (1 + share for share in CLAIMED_GAIN)
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
