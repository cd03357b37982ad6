"""Draw a Fit: measured and fitted times with their band, and the residuals that judge them."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ..base.checks import one_of, require
from ..base.tables import MEASUREMENTS
from ..base.units import MS
from ..costs import Interpolated
from ..fits import curves, residuals
from ..fits.diagnostics import CORNERS, a_fit, corners, left_out
from .given import check_axes, draws, filled
from .labels import small, write_note
from .style import (
    COLOURS,
    GROUND,
    INK,
    binary,
    cues,
    legend_above,
    shades,
    size_axis,
    time_axis,
)

DASHED = (0, (3, 1.5))
AGAINST = {"nbytes": "message size", "n_workers": "workers"}
CALCULATED = ("seconds", "fitted_s", "relative_error", "standardised", "leverage", "cook", "normal")
_CURVES = {"seconds": "s", "predicted_low": "s", "predicted_high": "s", "extrapolated": "times"}
_PRICES = {
    "alpha": "latency",
    "1/beta": "bandwidth",
    "fixed_s": "fixed",
    "per_sample_s": "growing by",
}


@draws()
def draw_fit(
    ax: Axes,
    fit,
    table: pd.DataFrame | None = None,
    card: bool = True,
    measured: pd.DataFrame | None = None,
) -> Axes:
    """Draw a Fit on logarithmic axes: one point per measurement, one line per number of workers.

    The band contains 95 of 100 single timings. Lines are dashed where they extrapolate, sizes
    outside the fitted ones lie on grey ground, and rows set aside are hollow.

    table : `curves(fit, ...)`, to choose sizes, numbers of workers or the level of the band
    card : whether to write latency, bandwidth and errors in the figure, as in the fit card
    measured : nbytes and seconds that were not fitted, to compare with a forecast: crosses
    """
    a_fit(fit, "draw_fit")
    x = fit.inputs[0]
    by_size = x == "nbytes"
    filled(fit.measurements, MEASUREMENTS if by_size else {x: ""}, "draw_fit fit", "a Fit")
    table, wanted = curves(fit) if table is None else table, _CURVES | {x: ""}
    kinds = {"gaps": ("predicted_low", "predicted_high", "extrapolated")}
    kinds |= {"above_0": ("nbytes", "n_workers", "seconds")} if by_size else {}
    table = filled(table, wanted, "draw_fit table", "curves(fit)", **kinds)
    if by_size:
        handles = _draw_by_workers(ax, fit, table)
    else:
        handles = _draw_curve(ax, fit.measurements, table, x, INK, "o", "measured")
        ax.set(xlabel=x.replace("_", " "), ylim=(0, None), xlim=(0, None))
    if measured is not None:
        handles += _draw_measured(ax, measured, x)
    if np.isfinite(table["predicted_high"]).any():
        share = 100 * table.attrs.get("level", 0.95)
        colours = [handle.get_color() for handle in handles if isinstance(handle, Line2D)][:3]
        bands = [Patch(color=colour, alpha=0.3, lw=0) for colour in dict.fromkeys(colours)]
        bands[0].set_label(f"{share:g} % of timings")
        handles.append(tuple(bands))
    if by_size:
        size_axis(ax, table["nbytes"].min(), table["nbytes"].max()).set(xlabel="message size")
        ground = _shade_outside(ax, fit.measurements["nbytes"])
        handles += ground * (len(handles) < 8)  # in four lines of a legend
    labels = [(each[0] if isinstance(each, tuple) else each).get_label() for each in handles]
    columns = _columns(labels)
    side_by_side = {tuple: HandlerTuple(None, pad=0.3)}
    legend_above(ax, columns, handles=handles, labels=labels, handler_map=side_by_side)
    lines = _card_lines(fit) if card else []
    if by_size:
        _frame_times(ax, "\n".join(lines).splitlines(), -(-len(handles) // columns))
    if lines:
        write_note(ax, 0.03, 0.98, "\n".join(lines), va="top")
    ax.set_ylabel("time (ms)")
    return ax


def _columns(labels: list[str]) -> int:
    """Return the columns of a legend as wide as one column of a paper: some 63 letters."""
    for n in range(min(len(labels), 2 if len(labels) < 7 else 3), 1, -1):
        parts = np.array_split(labels, n)  # as Matplotlib does
        if sum(max(map(len, part)) + 5 for part in parts) <= 63:
            return n
    return 1


def _frame_times(ax: Axes, lines: list[str], n_above: int):
    """Show all points and lines, cut bands off, and leave room for lines of text at the top left.

    n_above : number of lines of the legend above the axes
    """
    spots = [line.get_xydata() for line in ax.lines if line.get_transform() == ax.transData]
    x, y = np.log(np.concatenate([xy[(xy > 0).all(axis=1)] for xy in spots])).T
    low, high = y.min() - 0.3, y.max() + 0.3
    share = max(map(len, lines), default=0) / 45  # of the width that text takes
    below = y[x <= x.min() + share * np.ptp(x)].max() + 0.3
    # in points: without a layout an axes has 0.77 of its place; ticks and label take 30
    height = 72 * ax.figure.get_figheight() * ax.get_position().height / 0.77 - 30 - 11 * n_above
    room = np.clip(1 - (9 * len(lines) + 4) / height, 0.25, 1)
    ax.set_ylim(np.exp(low), np.exp(max(high, low + (below - low) / room)))
    time_axis(ax)


def _looks(counts) -> dict:
    """Return number of workers -> colour, marker."""
    looks = zip(counts, shades(len(counts)), cues(len(counts)), strict=True)
    return {n: (colour, marker) for n, colour, (marker, _) in looks}


def _draw_by_workers(ax: Axes, fit, table: pd.DataFrame) -> list:
    looks = _looks(table["n_workers"].astype(int).unique().tolist())
    handles = []
    for n, (colour, marker) in looks.items():
        rows = fit.measurements[fit.measurements["n_workers"] == n]
        mine = table[table["n_workers"] == n]
        handles += _draw_curve(ax, rows, mine, "nbytes", colour, marker, f"{n} workers")
        out = left_out(fit, [n])
        look = {"mfc": "none", "mec": colour, "ms": 4 if len(out) <= 50 else 2.5, "mew": 0.7}
        ax.plot(out["nbytes"], out["seconds"] / MS, marker, **look)
    return handles + _named_out(left_out(fit, list(looks)), looks)


def _draw_measured(ax: Axes, measured: pd.DataFrame, x: str) -> list:
    """Draw timings that were not fitted; return their entry in the legend."""
    wanted, what = {x: "", "seconds": "s"}, "draw_fit measured"
    rows = filled(measured, wanted, what, "MEASUREMENTS", (x,), ("seconds",))
    look = {"color": INK, "mew": 0.6, "ls": ""}
    ax.plot(rows[x], rows["seconds"] / MS, "x", ms=_size(rows), **look)
    counts = rows["n_workers"].unique() if "n_workers" in rows else []
    of = f"{counts[0]} workers" if len(counts) == 1 else "not fitted"
    return [Line2D([], [], marker="x", ms=4, label=f"measured, {of}", **look)]


def _size(rows) -> int:
    """Return the size of marks: smaller if there are many."""
    return 3 if len(rows) <= 100 else 2


def _draw_curve(ax, rows, table, x: str, colour, marker: str, label: str) -> list:
    """Draw the points, the line and the band of one curve; return its entry in the legend."""
    _plot_marks(ax, rows[x], rows["seconds"] / MS, marker, colour, _size(rows))
    inside = table["extrapolated"] <= 1
    band = table[np.isfinite(table["predicted_high"])]
    low = band["predicted_low"].where(band["predicted_low"] > 0, band["seconds"] / 100)
    ax.fill_between(band[x], low / MS, band["predicted_high"] / MS, color=colour, alpha=0.15, lw=0)
    line, dashed = table["seconds"] / MS, not inside.any()
    ax.plot(table[x], line.where(inside), color=colour, lw=1)
    ax.plot(table[x], line.where(~_shrunk(inside)), color=colour, lw=1, ls=DASHED)
    look = {"ls": DASHED} if dashed else {"marker": marker}
    label += ", extrapolated" * dashed
    return [Line2D([], [], color=colour, ms=3.5, lw=1, label=label, **look)]


def _plot_marks(ax: Axes, x, y, marker: str, colour, size: int, alpha: float = 0.6):
    ax.plot(x, y, marker, color=colour, ms=size, mew=0, alpha=alpha)


def _shrunk(inside: pd.Series) -> pd.Series:
    """Return the inner points inside: a dashed line begins where the solid one ends."""
    return inside & inside.shift(1, fill_value=False) & inside.shift(-1, fill_value=False)


def _named_out(rows: pd.DataFrame, looks: dict) -> list:
    """Return an entry of the legend, hollow as drawn, for each reason why rows are set aside."""
    handles = []
    for why, mine in rows.groupby(rows["why"].str.split("[:,]").str[0], sort=False):
        what = f"at {binary(mine['nbytes'].iloc[0])}" if len(mine) == 1 else f"({len(mine)})"
        marks = [
            Line2D([], [], ls="", marker=marker, ms=4, mfc="none", mec=colour, mew=0.8)
            for colour, marker in (looks[n] for n in mine["n_workers"].unique()[:3])
        ]
        marks[0].set_label(f"aside: {why} {what}")
        handles.append(tuple(marks))
    return handles


def _shade_outside(ax: Axes, sizes: pd.Series) -> list:
    """Shade sizes outside the fitted ones; return their entry in the legend."""
    low, high = ax.get_xlim()
    spans = ((low, sizes.min() / 1.15), (sizes.max() * 1.15, high))
    spans = [(a, b) for a, b in spans if b > a * 1.01]
    for a, b in spans:
        ax.axvspan(a, b, color=GROUND, lw=0, zorder=0)
    ax.set_xlim(low, high)
    return [Patch(fc=GROUND, ec="#B0B0B0", lw=0.4, label="sizes not fitted")] * bool(spans)


def _card_lines(fit) -> list[str]:
    """Return the lines of the fit card that a figure has room for."""
    if isinstance(fit.model, Interpolated):  # goes through its points, so they do not judge it
        return ["measured times, joined"]
    card = fit.card()
    prices = [row for row in card.index if row.startswith((*_PRICES, "floor", "fixed", "per"))]
    lines = [_price(row, *card.loc[row], wide=len(prices) <= 2) for row in prices]
    lines = _below_one_another(lines)
    if len(lines) > 6:
        lines = [*lines[:5], f"and {len(lines) - 5} more, see the card"]
    mean, worst = (card["value"][f"{which} relative error"] for which in ("mean absolute", "worst"))
    return [*lines, f"mean error {mean} %, worst {worst} %"]


def _below_one_another(lines: list[str]) -> list[str]:
    """Return the lines with several bandwidths under their unit: wide lines hide the curve."""
    head, tail = "bandwidth ", " GB/s moved"
    regimes = [line for line in lines if line.startswith(head) and line[len(head)].isdigit()]
    if len(regimes) < 2 or ":" not in regimes[0]:
        return [line.replace("bandwidth 1: ", "bandwidth ") for line in lines]
    at = lines.index(regimes[0])
    below = [f"  {line.removeprefix(head).removesuffix(tail)}" for line in regimes]
    return [*lines[:at], f"{head.strip()},{tail}:", *below, *lines[at + len(below) :]]


def _price(row: str, value: str, unit: str, low: str, high: str, wide: bool) -> str:
    """Return a price in words and its interval, below it if wide, otherwise in brackets."""
    kind, _, which = (row, "", "") if row in _PRICES else row.partition("_")
    which = "" if wide and which.isdigit() else which  # the only one needs no number
    name = " ".join(filter(None, (_PRICES.get(kind, kind), which)))
    if value == "not determined":
        return f"{name} {value}"
    if wide:
        return f"{name} {value} {unit}" + f"\n  95 %: {low} to {high}" * bool(low or high)
    value, low, high = map(_short, (value, low, high))
    span = f" ({low}\N{EN DASH}{high})" if low or high else ""
    name += ":" * which.isdigit()  # bandwidth 1: 1.74, as two adjacent numbers read as one
    return f"{name} {value}{span} {unit}"


def _short(text: str) -> str:
    """Return a number of the card with three digits or whole; words as they are."""
    if not text.replace(".", "").isdigit():
        return text
    return f"{float(text):.0f}" if float(text) >= 100 else f"{float(text):.3g}"


# --- residuals ------------------------------------------------------------------------------------


def draw_residuals(axes, fit, against: str | None = None):
    """Draw the error of a fit, fitted / measured - 1 in %, against an input of the cost.

    axes : one Axes, or several, which receive in turn the error against size, the error against
        workers if these differ, `draw_qq` and `draw_influence`; Axes left over stay empty
    fit : a Fit, or the table `residuals(fit)`
    against : the input; by default the first, nbytes
    """
    table = _judged(fit, "draw_residuals")
    if isinstance(axes, list | tuple | np.ndarray):
        return _draw_panels(axes, table)
    ax, against = axes, against or table.columns[0]
    check_axes(ax, "draw_residuals")
    known = [name for name in table if name not in CALCULATED]
    one_of(known)(against, "draw_residuals against")
    ax.axhline(0, color=INK, lw=0.6)
    _draw_points(ax, table, against, 100 * table["relative_error"])
    ax.set(xlabel=AGAINST.get(against, against.replace("_", " ")), ylabel="error (%)")
    reach = 115 * max(np.abs(table["relative_error"]).max(), 0.001)
    ax.set_ylim(-reach, reach)
    if against == "nbytes":
        size_axis(ax, table["nbytes"].min(), table["nbytes"].max())
    elif len(counts := np.unique(table[against])) <= 8:
        ax.set_xticks(counts.tolist())
    return ax


def _draw_panels(axes, table: pd.DataFrame):
    """Draw residuals against each input that differs, their quantiles and their influence."""
    panels = [*np.ravel(axes)]
    known = [name for name in AGAINST if name in table] or [table.columns[0]]
    chosen = [name for name in known if name == known[0] or table[name].nunique() > 1]
    some, expected = 0 < len(panels) <= len(known) + 2, f"1 to {len(known) + 2} Axes"
    require(some, "draw_residuals axes", expected, len(panels))
    for ax in panels:
        check_axes(ax, "draw_residuals")
    inputs = [lambda ax, name=name: draw_residuals(ax, table, name) for name in chosen]
    each = (*inputs, lambda ax: draw_qq(ax, table), lambda ax: draw_influence(ax, table))
    for ax, draw in zip(panels, each, strict=False):
        draw(ax)
    for ax in panels[len(each) :]:
        ax.set_axis_off()
        words = f"all with {table['n_workers'].iloc[0]} workers"
        write_note(ax, 0.5, 0.5, words, ha="center", va="center")
    return axes


@draws()
def draw_qq(ax: Axes, fit) -> Axes:
    """Draw standardised residuals against the quantiles of a normal distribution.

    Normal residuals lie on the line.

    fit : a Fit, or the table `residuals(fit)`
    """
    table = _standardised(fit, "draw_qq")
    reach = 1.1 * np.abs(table["normal"]).max()
    ax.plot([-reach, reach], [-reach, reach], color=INK, lw=0.6)
    _draw_points(ax, table, "normal", table["standardised"])
    ax.set(xlabel="normal quantile", ylabel="standardised residual")
    return ax


@draws()
def draw_influence(ax: Axes, fit) -> Axes:
    """Draw standardised residuals against leverage; a ring marks a Cook's distance above 1.

    fit : a Fit, or the table `residuals(fit)`. A row above 1 moves the parameters by more than
        their uncertainty.
    """
    table = _standardised(fit, "draw_influence")
    ax.axhline(0, color=INK, lw=0.6)
    _draw_points(ax, table, "leverage", table["standardised"])
    strong = table[table["cook"] > 1]
    ring = {"mfc": "none", "mec": COLOURS["exposed"], "ms": 7, "mew": 1}
    ax.plot(strong["leverage"], strong["standardised"], "o", **ring)
    ax.set(xlabel="leverage", ylabel="standardised residual", xlim=(0, None))
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.2 * (high - low))  # room for the words, clear of a panel above
    words = f"{len(strong)} of {len(table)} with Cook's distance above 1"
    write_note(ax, 1, 0.99, words, ha="right", va="top")
    return ax


def _judged(fit, what: str) -> pd.DataFrame:
    """Return the residuals of a fit, or the table itself."""
    if not isinstance(fit, pd.DataFrame):
        a_fit(fit, what)
        fit = residuals(fit)
    gaps = tuple(name for name in CALCULATED if name != "relative_error")
    wanted, above_0 = {"relative_error": "a share"}, ("nbytes", "n_workers")
    return filled(fit, wanted, f"{what} fit", "residuals(fit)", ("relative_error",), above_0, gaps)


def _standardised(fit, what: str) -> pd.DataFrame:
    table = _judged(fit, what)
    expected = "residuals of a fit with parameters"
    do = "Use draw_residuals(ax, fit), which shows the errors of repeated sizes"
    own = "standardised" in table
    require(own, f"{what} fit", expected, found="an Interpolated, which has none", do=do)
    return table


def _draw_points(ax: Axes, table: pd.DataFrame, x: str, y: pd.Series):
    counts = np.unique(table["n_workers"]) if "n_workers" in table else [None]
    size = _size(table)
    if len(counts) > 5:  # more than a legend or an eye can keep apart
        _plot_marks(ax, table[x], y, "o", INK, size, alpha=0.4)
        return
    for n, (colour, marker) in _looks(counts).items():
        mine = slice(None) if n is None else table["n_workers"] == n
        _plot_marks(ax, table[x][mine], y[mine], marker, colour, size)


@draws()
def draw_regimes(ax: Axes, fit, table=None) -> Axes:
    """Draw a Fit as `draw_fit` does, a dotted line below each corner, and the regimes' numbers.

    table : `corners(fit, n_workers)`; by default for the most workers measured
    """
    draw_fit(ax, fit)
    table = corners(fit) if table is None else table
    if not len(table):
        return ax
    table = filled(table, CORNERS, "draw_regimes table", "corners(fit)")
    sizes, (low, high) = ax.get_xlim(), ax.get_ylim()
    last = table["regime"].max() + 1
    place = {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points", "va": "bottom"}
    for corner in table.itertuples():
        ax.plot([corner.nbytes] * 2, [low, corner.seconds / MS], color=INK, lw=0.8, ls=":")
        sides = {corner.regime: (-3, "right")}
        if corner.regime + 1 == last:
            sides[last] = (3, "left")
        for number, (away, side) in sides.items():
            spot = {"xy": (corner.nbytes, 0.03), "xytext": (away, 0), "ha": side}
            ax.annotate(f"{number}", **spot, **place, fontsize=small())
    ax.set(xlim=sizes, ylim=(low, high))
    return ax
