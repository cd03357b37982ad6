"""What figures share: sizes and colours as data, and the checks of what is to be drawn."""

import math
from numbers import Real
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from ..base.checks import shown
from ..base.tables import check
from ..base.units import GIB, KIB, MIB

GOLDEN = 2 / (1 + 5**0.5)

# One meaning a colour, in every figure. Hues follow Okabe and Ito's colour-blind safe palette;
# lightness differs by 10 L* or more from one to the next, so that grey print tells them apart.
COLOURS = {
    "compute": "#0A3D62",
    "exposed": "#C44E00",
    "memory": "#30A987",
    "comm": "#F0AE3C",
    "idle": "#E6E6E6",
}
HATCHES = {"compute": "", "exposed": "////", "memory": "....", "comm": "", "idle": ""}
INK = "#333333"
MOST_CURVES = 24  # of one figure: three rounds of markers
FIXED = {  # the same bytes in every run, fonts embedded as TrueType, text that stays text
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "pdf.use14corefonts": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "workbench",
    "savefig.bbox": None,
    "text.usetex": False,
}


def paper(venue: str = "acm-sigconf", columns: int = 1, ratio: float = GOLDEN) -> dict:
    """Matplotlib settings of a figure for a venue, to use as `with plt.rc_context(paper()):`.

    The width is that of `columns` columns and the height is `ratio` times the width, so that text
    of 8 pt is of 8 pt on the page. Venues: acm-sigconf, ieee, usenix, mlsys and icml of one or two
    columns; neurips, lncs and thesis of one. ValueError for another venue or number of columns, or
    a ratio that is not above 0.
    """
    if venue not in VENUES:
        raise ValueError(f"unknown venue {venue!r}: choose one of {', '.join(VENUES)}")
    chosen = VENUES[venue]
    most = len(chosen.widths)
    if columns not in range(1, most + 1):
        has = "a single column" if most == 1 else f"1 to {most}"
        raise ValueError(f"columns: {venue} has {has}, got {columns!r}")
    if not is_number(ratio) or not ratio > 0:
        raise ValueError(f"ratio: expected height / width above 0, got {ratio!r}")
    width = chosen.width_in(columns)
    return FIXED | {
        "figure.figsize": (width, width * ratio),
        "figure.dpi": 200,  # on screen: a column is 666 pixels wide
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.h_pad": 0.02,
        "figure.constrained_layout.w_pad": 0.02,
        "font.family": "DejaVu Sans",  # ships with Matplotlib: the same glyphs everywhere
        "font.size": chosen.text,
        "axes.titlesize": chosen.text,
        "axes.labelsize": chosen.text,
        "xtick.labelsize": chosen.small,
        "ytick.labelsize": chosen.small,
        "legend.fontsize": chosen.small,
        "legend.frameon": False,
        "legend.handlelength": 2.6,
        "axes.edgecolor": INK,
        "axes.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": "#D9D9D9",
        "grid.linewidth": 0.5,
        "hatch.linewidth": 0.6,
        "lines.linewidth": 1.2,
        "lines.markersize": 4,
        "xtick.major.width": 0.6,
        "ytick.major.width": 0.6,
    }


def check_axes(ax, what: str):
    if not isinstance(ax, Axes):
        raise ValueError(
            f"{what}: expected a Matplotlib Axes first, got {type(ax).__name__}; "
            "pass the ax of fig, ax = plt.subplots()"
        )


def check_figure(fig, what: str):
    if not isinstance(fig, Figure):
        advice = "ax.figure" if isinstance(fig, Axes) else "the fig of fig, ax = plt.subplots()"
        got = type(fig).__name__
        raise ValueError(f"{what}: expected a Matplotlib Figure, got {got}; pass {advice}")


def printable(text: str) -> str:
    """Return a text on one line without what no font shows: a control, half of a surrogate."""
    words = " ".join(str(text).split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)


def laid_out(fig: Figure, what: str):
    """Lay a figure out, or raise ValueError that names the text which Matplotlib cannot set."""
    try:
        fig.draw_without_rendering()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        why = short(str(error).strip().splitlines()[-isinstance(error, ValueError)], 120)
        unset = [short(text.get_text(), 40) for text in fig.findobj(Text) if not _is_set(text)]
        which = f"the text '{unset[0]}'" if unset else "the figure"
        advice = "; write a plain $ as \\$" * bool(unset and "$" in unset[0])
        raise ValueError(f"{what}: Matplotlib cannot draw {which} ({why}){advice}") from error


def panels_of(fig: Figure) -> list[Axes]:
    """Return all axes of a figure, those within others after these."""
    found = list(fig.axes)
    for ax in found:  # which grows meanwhile
        inside = (child for child in ax.child_axes if isinstance(child, Axes))
        found += [child for child in inside if child not in found]
    return found


def is_seen(artist) -> bool:
    """Whether an artist is drawn; of a container it is, whatever its parts."""
    return not isinstance(artist, Artist) or artist.get_visible()


def _is_set(text: Text) -> bool:
    try:
        text.get_window_extent()
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def filled(
    table,
    columns: dict,
    what: str,
    advice: str,
    finite: tuple = (),
    above_0: tuple = (),
    gaps: tuple = (),
    named: tuple = (),
) -> pd.DataFrame:
    """Return the table when it has the columns and a row or more: nobody draws an empty plot.

    finite, above_0, gaps : columns of finite numbers, of those above 0, and of any numbers or none,
        as far as they are there; as plain floats where they are of another type
    named : columns of texts, which come back as such; a row without one is refused
    """
    if not isinstance(table, pd.DataFrame):
        got = type(table).__name__
        raise ValueError(f"{what}: expected a table (DataFrame), got {got}; pass {advice}")
    if check(table, columns, what).empty:
        raise ValueError(f"{what}: the table has no rows; select at least one")
    changed = {}
    for name in (each for each in (*finite, *above_0, *gaps) if each in table):
        column = table[name]
        values = _plain_numbers(column, f"{what}: {name}")
        if name not in gaps:
            _refuse_unfit(values, f"{what}: {name}", above_0=name in above_0)
        if values is not column:
            changed[name] = values
    for name in named:
        if (unnamed := table[name].isna()).any():
            at = int(np.argmax(unnamed))
            raise ValueError(f"{what}: {name}: expected a name in every row, got none in row {at}")
        changed[name] = table[name].astype("str")
    return table.assign(**changed) if changed else table


def _plain_numbers(column: pd.Series, what: str) -> pd.Series:
    """Return a column as numbers that NumPy knows, gaps as NaN; ValueError for what is none."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf":
        return column
    values = [math.nan if value is None or value is pd.NA else value for value in column]
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{what}: expected numbers, got {shown(value)} in row {row}")
    return pd.Series(values, column.index, dtype=float, name=column.name)


def _refuse_unfit(values: pd.Series, what: str, above_0: bool):
    values = values.to_numpy()
    wrong = ~np.isfinite(values) | ((values <= 0) & above_0)
    if wrong.any():
        expected = "finite numbers above 0" if above_0 else "finite numbers"
        row = int(np.argmax(wrong))
        raise ValueError(f"{what}: expected {expected}, got {values[row]:.6g} in row {row}")


def is_number(value) -> bool:
    plain = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return plain and math.isfinite(value)


def shades(n: int) -> list:
    """Colours for n curves, dark to light: told apart in grey, without a meaning of their own."""
    bins = np.linspace(0, 1, n + 3)[1 : n + 1]  # neither end, and not the lightest
    return [tuple(colour) for colour in mpl.colormaps["viridis"](bins)[:, :3]]


def cues(n: int = 8):
    """Marker and dash pattern for up to n curves, so that colour is never the only cue."""
    markers = ("o", "s", "D", "^", "v", "P", "X", "*")
    dashes = ((), (4, 1.5), (1, 1), (4, 1, 1, 1), (6, 2), (2, 2), (5, 1, 1, 1, 1, 1), (3, 1))
    return ((markers[i % 8], dashes[i % 8]) for i in range(n))


def short(text: str, length: int) -> str:
    """Return a text on one line, cut to a length, as Matplotlib shows it."""
    text = printable(text).lstrip("_") or "unnamed"  # it hides what begins with _
    return text if len(text) <= length else text[: length - 1] + "\N{HORIZONTAL ELLIPSIS}"


def plain_number(value: float, _=None) -> str:
    """Return a tick's number without zeros that say nothing: 0.01, 1, 100."""
    return f"{value:.0f}" if value >= 1 else f"{value:g}"


def size_axis(ax: Axes, low: float, high: float) -> Axes:
    """Give an axes a logarithmic x of bytes from low to high, its ticks in B, KiB, MiB and GiB."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = max(1, -(-(last - first + 1) // 6))
    ticks = [2.0**k for k in range(-(-first // step) * step, last + 1, step)]
    ax.set_xscale("log", base=2)
    ax.set_xlim(low / 1.15, high * 1.15)  # room for the outermost markers
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(binary))
    return ax


def doubling_axis(ax: Axes, lowest: float, highest: float) -> Axes:
    """Give an axes a logarithmic x of numbers of workers, with a tick at each doubling."""
    ax.set_xscale("log", base=2)
    doublings = np.arange(np.floor(np.log2(lowest)), np.ceil(np.log2(highest)) + 1)
    ticks = 2 ** doublings[:: len(doublings) // 8 + 1]
    ax.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(lowest / 1.1, highest * 1.1)  # room for the outermost markers
    return ax


def time_axis(ax: Axes) -> Axes:
    """Give an axes a logarithmic y with plain numbers."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    subs = (1.0,) if high / low > 3000 else (1.0, 3.0) if high / low > 10 else (1.0, 2.0, 5.0)
    ax.yaxis.set_major_locator(LogLocator(subs=subs))
    ax.yaxis.set_minor_locator(NullLocator())  # minor ticks are most of the time of a drawing
    ax.yaxis.set_major_formatter(FuncFormatter(plain_number))
    return ax


def binary(nbytes: float, _=None) -> str:
    """Return bytes as a tick shows them: 64 KiB, not 64.0 KiB."""
    units = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B"))
    unit, name = next((unit for unit in units if nbytes >= unit[0]), units[-1])
    return f"{nbytes / unit:.3g} {name}"


def legend_above(ax: Axes, columns: int, **legend) -> Axes:
    """Put the legend above an axes, where it hides nothing."""
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, columnspacing=1.0,
              handlelength=1.4, borderaxespad=0.2, labelspacing=0.3, **legend)  # fmt: skip
    return as_they_are(ax)


def as_they_are(ax: Axes) -> Axes:
    """Let names in the legend and at the ticks of y be text, whatever they hold: no mathematics."""
    legend = ax.get_legend()
    for text in (*(legend.get_texts() if legend else ()), *ax.get_yticklabels()):
        text.set_parse_math(False)
    return ax


def refuse_crowd(names, what: str):
    """Raise ValueError for more curves than an eye tells apart."""
    if len(names) > MOST_CURVES:
        raise ValueError(
            f"{what}: expected at most {MOST_CURVES} names, each a curve or a mark of its own, got "
            f"{len(names)}; select some"
        )


POINTS = 72.27  # TeX's points an inch, in which classes give their widths


class Venue(NamedTuple):
    """Widths of one column and, where there are two, of both, in TeX's pt; sizes of text in pt.

    text : of labels, just below the size of the venue's captions
    small : of ticks and legends
    """

    widths: tuple[float, ...]
    text: float = 8
    small: float = 7

    def width_in(self, columns: int) -> float:
        return self.widths[columns - 1] / POINTS


def _both(text_width: float, between: float) -> tuple[float, float]:
    """Return the width of one of two columns, and of the whole text."""
    return (text_width - between) / 2, text_width


VENUES = {
    # acmart.cls, sigconf: letter paper of 8.5 in, inner and outer margins of 54 pt, columnsep 2 pc
    "acm-sigconf": Venue(_both(8.5 * POINTS - 2 * 54, 24)),  # 241.15 and 506.30 pt
    # IEEEtran.cls, conference and journal: columns of 21 pc, 1 pc in between
    "ieee": Venue(_both(43 * 12, 12)),  # 252 and 516 pt
    # usenix2019_v3.sty: 7 in of text, 0.33 in in between
    "usenix": Venue(_both(7 * POINTS, 0.33 * POINTS)),  # 241.02 and 505.89 pt
    # mlsys2025.sty, made from ICML's: 6.75 in of text, 0.25 in in between
    "mlsys": Venue(_both(6.75 * POINTS, 0.25 * POINTS)),  # 234.88 and 487.82 pt
    # neurips_2024.sty: a single column of 5.5 in, captions of 10 pt
    "neurips": Venue((5.5 * POINTS,), text=9, small=8),  # 397.49 pt
    # icml2025.sty, which refuses another width than 487.8225 pt
    "icml": Venue(_both(6.75 * POINTS, 0.25 * POINTS)),  # 234.88 and 487.82 pt
    # llncs.cls: a single column of 12.2 cm, captions of 9 pt
    "lncs": Venue((12.2 / 2.54 * POINTS,)),  # 347.12 pt
    # report.cls at 11 pt on A4, LaTeX's own: a single column of 360 pt, captions of 11 pt
    "thesis": Venue((360.0,), text=9, small=8),
}
