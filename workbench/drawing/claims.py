"""What was claimed and what we compute beside it, as the ratio of the two."""

import math
import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from ..claims import CLAIMS, readable
from ..validation import OFF
from .labels import beside, small
from .style import INK, check_axes, filled, short

BAND = "#EFEFEF"
TICKS = np.array([0.1, 0.2, 0.5, 1, 2, 5, 10])
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
    shown = TICKS[(TICKS >= low) & (TICKS <= high)]
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
