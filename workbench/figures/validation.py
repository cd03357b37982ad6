"""Predicted against measured, and the gain of adaptive fusion, as figures."""

import math
import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..base.checks import require
from ..validation.cells import OFF, VALIDATION
from ..validation.claims import CLAIMS, readable
from ..validation.gain import CLAIMED_GAIN, GAIN
from .given import a_number_above_0, draws
from .labels import beside, looks, small, write_note
from .style import GROUND, INK, fixed_ticks, legend_above, name_rows, short

_PARITY = {name: VALIDATION[name] for name in ("measured", "predicted", "quantity")}
_ERROR = {"error": VALIDATION["error"]}
TENTHS = np.linspace(0, 1, 6)  # ticks of both axes of scaling factors
LOSSES = (-10, -1)
TICKS = (0, 1, 3, 10, 32.2, 150)  # per cent; the last two are the range that the paper claims
RATIOS = np.array([0.1, 0.2, 0.5, 1, 2, 5, 10])
CLAIM_LETTERS = 40  # per line of a claim, or LETTERS_AN_INCH of the figure if that is less
LETTERS_AN_INCH = 9


@draws(_PARITY, "validate_bcaffe(...)", finite=("measured", "predicted"), named=("quantity",))
def draw_parity(
    ax: Axes,
    table: pd.DataFrame,
    by: str = "method",
    within: float = 0.084,
    up_to: float | None = None,
) -> Axes:
    """Draw each cell's prediction against its measurement; on the line they agree.

    table : VALIDATION of one quantity
    by : the column that groups marks by colour and shape
    within : relative error of the band; the default is the largest in the paper's abstract
    up_to : upper end of both axes, for panels to be compared; by default from the table
    """
    a_number_above_0(up_to, "draw_parity up_to")
    quantities = ", ".join(table["quantity"].unique())
    what, one = table["quantity"].iloc[0], table["quantity"].nunique() == 1
    require(one, "draw_parity quantity", "one quantity in the table", quantities)
    factors = what == "scaling factor"
    highest = 1.0 if factors else table[["measured", "predicted"]].to_numpy().max()
    line = np.linspace(0, highest * 1.05 if up_to is None else up_to)
    crowd = {"ms": 2, "alpha": 0.35} if len(table) > 200 else {}
    label = f"within {100 * within:.3g} %"
    _shade_between(ax, line, line * (1 - within), line * (1 + within), label)
    ax.plot(line, line, color=INK, lw=0.6, zorder=1)
    for name, look in looks(table[by]).items():
        cells = table[table[by] == name]
        ax.plot(cells["measured"], cells["predicted"], **_marks(name, look) | crowd)
    ax.set(xlabel=f"measured ({what})", ylabel=f"predicted ({what})")
    ax.set(xlim=(line[0], line[-1]), ylim=(line[0], line[-1]), aspect="equal")
    if factors and up_to is None:
        ax.set(xticks=TENTHS, yticks=TENTHS)
    legend_above(ax, columns=2)
    for handle in ax.get_legend().get_lines():
        handle.set(markersize=3.5, alpha=0.9)
    return ax


def _marks(name: str, look: dict) -> dict:
    """Return how a group is drawn: marks in the colour of its name."""
    marks = {"ls": "", "ms": 3.5, "alpha": 0.75, "mew": 0, "label": short(name, 24)}
    return marks | {key: look[key] for key in ("color", "marker")}


def _shade_between(ax: Axes, x, low, high, label: str):
    ax.fill_between(x, low, high, color=GROUND, lw=0, zorder=0, label=label)


def _shade(ax: Axes, low: float, high: float, middle: float):
    """Shade a band of x and mark the value at its middle."""
    ax.axvspan(low, high, color=GROUND, lw=0, zorder=0)
    ax.axvline(middle, color=INK, lw=0.6, zorder=1)


@draws(GAIN, "fusion_gain(models, links)", finite=("gain",), named=("model", "baseline"))
def draw_gain(ax: Axes, table: pd.DataFrame) -> Axes:
    """Draw the gain of adaptive fusion over each constant buffer, in %.

    Each mark is a model on a link. The axis is linear up to 1 % and logarithmic beyond, and
    includes losses if there are any; the paper's claim is shaded.
    """
    baselines = list(dict.fromkeys(table["baseline"]))
    claimed = [100 * share for share in CLAIMED_GAIN]
    ax.axvspan(*claimed, color=GROUND, lw=0, zorder=0, label="claimed")
    models = looks(table["model"])
    offsets = np.linspace(0.25, -0.25, len(models)) if len(models) > 1 else [0.0]
    for (name, look), offset in zip(models.items(), offsets, strict=True):
        cells = table[table["model"] == name]
        rows = cells["baseline"].map(baselines.index) + offset
        ax.plot(100 * cells["gain"], rows, **_marks(name, look))
    ax.set_xscale("symlog", linthresh=1.0)
    left, right = min(-0.2, 120 * table["gain"].min()), max(200, 120 * table["gain"].max())
    if left < -0.2:
        ax.axvline(0, color=INK, lw=0.6, zorder=1)
    ticks = [tick for tick in LOSSES if tick > left] + list(TICKS)
    ax.set_xticks(ticks, [f"{tick:g}".replace("-", "\N{MINUS SIGN}") for tick in ticks])
    ax.set(xlabel="gain of adaptive fusion (%)", xlim=(left, right))
    name_rows(ax, [short(name, 26) for name in baselines])
    ax.minorticks_off()
    ax.invert_yaxis()
    return legend_above(ax, columns=2)


@draws(
    CLAIMS,
    "claims(tables, gradients, cells, gains)",
    finite=("claimed_low", "claimed_high", "ours_low", "ours_high"),
    above_0=("ratio",),
    named=("work", "claim", "unit"),
)
def draw_claims(ax: Axes, table: pd.DataFrame, within: float = OFF) -> Axes:
    """Draw our number over the claimed one, one row per claim, with both numbers at the right.

    table : `claims(...)`
    within : relative error of the band; the default is the largest in the paper's abstract
    """
    texts, rows, ratio = readable(table), np.arange(len(table)), table["ratio"].to_numpy(float)
    ax.set_xscale("log")
    _shade(ax, 1 - within, 1 + within, 1)
    ax.hlines(rows, np.minimum(1, ratio), np.maximum(1, ratio), color=INK, lw=0.8)
    ax.plot(ratio, rows, "o", color=INK, ms=3.5)
    for row, text in zip(rows, texts.itertuples(index=False), strict=True):
        beside(ax, row, f"{text.Ours} / {text.Claimed}")
    write_note(ax, 1, 1.01, "ours / claimed", fontsize=small())
    letters = min(CLAIM_LETTERS, round(LETTERS_AN_INCH * ax.figure.get_figwidth()))
    name_rows(ax, [_wrapped(claim, letters) for claim in texts["Claim"]], linespacing=1.0)
    low, high = min(0.8, ratio.min() / 1.25), max(1.25, ratio.max() * 1.25)
    fixed_ticks(ax.xaxis, RATIOS[(RATIOS >= low) & (RATIOS <= high)], "{:g}".format)
    ax.set(xlim=(low, high), ylim=(len(table) - 0.4, -0.6), xlabel="ratio")
    return ax


def _wrapped(claim: str, letters: int) -> str:
    """Return a claim on as few lines as possible, all about as long."""
    claim = short(claim, 4 * letters)
    n_lines = math.ceil(len(claim) / letters)
    tried = (textwrap.wrap(claim, width) for width in range(-(-len(claim) // n_lines), len(claim)))
    return "\n".join(next((lines for lines in tried if len(lines) <= n_lines), [claim]))


@draws(_ERROR, "validate_bcaffe(...)", finite=("error",))
def draw_errors(ax: Axes, table: pd.DataFrame, by: str = "dataset", within: float = OFF) -> Axes:
    """Draw the error of each cell in %, predicted / measured - 1, one row per value of `by`.

    The mean absolute error and the number of cells stand at the right.

    table : VALIDATION, of any quantities
    within : relative error of the band; the default is the largest in the paper's abstract
    """
    names = list(dict.fromkeys(table[by]))
    _shade(ax, -100 * within, 100 * within, 0)
    for row, name in enumerate(names):
        errors = 100 * table.loc[table[by] == name, "error"]
        spread = 0.25 * np.sin(2.4 * np.arange(len(errors)))  # so that marks do not hide another
        size, alpha = (3, 0.7) if len(errors) < 100 else (1.8, 0.3)
        ax.plot(errors, row + spread, "o", color=INK, ms=size, mew=0, alpha=alpha)
        beside(ax, row, f"{errors.abs().mean():.1f} % ({len(errors)})")
    name_rows(ax, [short(name, 26) for name in names])
    ax.set(ylim=(len(names) - 0.4, -0.6), xlabel="error (%)")
    write_note(ax, 1, 1.01, "mean (cells)", fontsize=small())
    return ax


@draws(GAIN, "fusion_gain(models, links)", finite=("constant", "adaptive"), named=("model",))
def draw_adaptive(ax: Axes, table: pd.DataFrame, words: str = "", legend: bool = True) -> Axes:
    """Draw the scaling factor of adaptive fusion against that of a constant buffer.

    Each link is a mark; on the line both are equal. In the band the gain is what the paper claims,
    32.2 to 150 %; if the constant buffer is above 1 / 1.322, no gain can be as large.

    table : `fusion_gain(models, links)`, any of its rows
    words : what the panel shows
    legend : whether to name the marks in this panel
    """
    low, high = (1 + share for share in CLAIMED_GAIN)
    x = np.array([0, 1 / high, 1 / low])
    _shade_between(ax, x, low * x, np.minimum(1, high * x), "claimed")
    ax.plot([0, 1], [0, 1], color=INK, lw=0.6, zorder=1)
    for name, look in looks(table["model"]).items():
        mine = table[table["model"] == name]
        ax.plot(mine["constant"], mine["adaptive"], **_marks(name, look))
    ax.set(xlim=(0, 1.03), ylim=(0, 1.03), aspect="equal", xticks=TENTHS, yticks=TENTHS)
    ax.set(xlabel="constant buffer", ylabel="adaptive fusion")
    write_note(ax, 0.97, 0.04, words, ha="right", fontsize=small())
    return legend_above(ax, columns=2) if legend else ax
