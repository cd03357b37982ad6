"""What figures share: page sizes, colours and hatches, axes of sizes, workers and times."""

import math
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import Transform

from ..base.checks import require
from ..base.units import GIB, KIB, MIB
from .given import is_number

GOLDEN = 2 / (1 + 5**0.5)
TEX_PT = 72.27  # TeX's points per inch, in which classes give their widths

# One meaning per colour, in every figure. Hues follow Okabe and Ito's colour-blind safe palette;
# lightness differs by 10 L* or more from one to the next, so that they differ in grey print.
COLOURS = {
    "compute": "#0A3D62",
    "exposed": "#C44E00",
    "memory": "#30A987",
    "comm": "#F0AE3C",
    "idle": "#E6E6E6",
}
HATCHES = {"compute": "", "exposed": "////", "memory": "....", "comm": "", "idle": ""}
INK = "#333333"
GROUND = "#EFEFEF"  # bands, and the ground outside the measurements
FIXED = {  # the same bytes in every run, fonts embedded as TrueType, text that stays text
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "pdf.use14corefonts": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "workbench",
    "savefig.bbox": None,
    "text.usetex": False,
}


class Venue(NamedTuple):
    """Widths of one column and, if there are two, of both, in TeX's pt; sizes of text in pt.

    text : of labels, just below the size of the venue's captions
    small : of ticks and legends
    """

    widths: tuple[float, ...]
    text: float = 8
    small: float = 7

    def width_in(self, columns: int) -> float:
        return self.widths[columns - 1] / TEX_PT


def _both(text_width: float, between: float) -> tuple[float, float]:
    """Return the width of one of two columns, and of the whole text."""
    return (text_width - between) / 2, text_width


VENUES = {
    # acmart.cls, sigconf: letter paper of 8.5 in, inner and outer margins of 54 pt, columnsep 2 pc
    "acm-sigconf": Venue(_both(8.5 * TEX_PT - 2 * 54, 24)),  # 241.15 and 506.30 pt
    # IEEEtran.cls, conference and journal: columns of 21 pc, 1 pc in between
    "ieee": Venue(_both(43 * 12, 12)),  # 252 and 516 pt
    # usenix2019_v3.sty: 7 in of text, 0.33 in in between
    "usenix": Venue(_both(7 * TEX_PT, 0.33 * TEX_PT)),  # 241.02 and 505.89 pt
    # mlsys2025.sty, made from ICML's: 6.75 in of text, 0.25 in in between
    "mlsys": Venue(_both(6.75 * TEX_PT, 0.25 * TEX_PT)),  # 234.88 and 487.82 pt
    # neurips_2024.sty: a single column of 5.5 in, captions of 10 pt
    "neurips": Venue((5.5 * TEX_PT,), text=9, small=8),  # 397.49 pt
    # icml2025.sty, which refuses another width than 487.8225 pt
    "icml": Venue(_both(6.75 * TEX_PT, 0.25 * TEX_PT)),  # 234.88 and 487.82 pt
    # llncs.cls: a single column of 12.2 cm, captions of 9 pt
    "lncs": Venue((12.2 / 2.54 * TEX_PT,)),  # 347.12 pt
    # report.cls at 11 pt on A4, LaTeX's own: a single column of 360 pt, captions of 11 pt
    "thesis": Venue((360.0,), text=9, small=8),
}


def paper(venue: str = "acm-sigconf", columns: int = 1, ratio: float = GOLDEN) -> dict:
    """Return Matplotlib settings for a venue; use them as `with plt.rc_context(paper()):`.

    The figure is as wide as `columns` columns, so that text of 8 pt has 8 pt on the page.

    venue : acm-sigconf, ieee, usenix, mlsys, icml (one or two columns); neurips, lncs, thesis (one)
    ratio : height / width
    """
    known = isinstance(venue, str) and venue in VENUES
    require(known, "venue", f"one of {', '.join(VENUES)}", venue)
    chosen = VENUES[venue]
    most = len(chosen.widths)
    has = f"1, as {venue} has a single column" if most == 1 else f"1 to {most} for {venue}"
    require(columns in range(1, most + 1), "columns", has, columns)
    require(is_number(ratio) and ratio > 0, "ratio", "height / width above 0", ratio)
    width = chosen.width_in(columns)
    return FIXED | {
        "figure.figsize": (width, width * ratio),
        "figure.dpi": 200,  # on screen: a column is 666 pixels wide
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.h_pad": 0.02,
        "figure.constrained_layout.w_pad": 0.02,
        "font.family": "DejaVu Sans",  # ships with Matplotlib: the same glyphs everywhere
        **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), chosen.text),
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), chosen.small),
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


# --- looks and texts ------------------------------------------------------------------------------


def shades(n: int) -> list:
    """Return colours for n curves, dark to light; they differ in grey print and mean nothing."""
    bins = np.linspace(0, 1, n + 3)[1 : n + 1]  # neither end, and not the lightest
    return [tuple(colour) for colour in mpl.colormaps["viridis"](bins)[:, :3]]


def cues(n: int = 8):
    """Return marker and dash pattern for up to n curves, so that colour is never the only cue."""
    markers = ("o", "s", "D", "^", "v", "P", "X", "*")
    dashes = ((), (4, 1.5), (1, 1), (4, 1, 1, 1), (6, 2), (2, 2), (5, 1, 1, 1, 1, 1), (3, 1))
    return ((markers[i % 8], dashes[i % 8]) for i in range(n))


def printable(text: str) -> str:
    """Return a text on one line without what no font shows: a control, half of a surrogate."""
    words = " ".join(str(text).split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in words)


def short(text: str, length: int) -> str:
    """Return a text on one line, cut to a length, as Matplotlib shows it."""
    text = printable(text).lstrip("_") or "unnamed"  # it hides what begins with _
    return text if len(text) <= length else text[: length - 1] + "\N{HORIZONTAL ELLIPSIS}"


def binary(nbytes: float, _=None) -> str:
    """Return bytes as a tick shows them: 64 KiB, not 64.0 KiB."""
    units = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B"))
    unit, name = next((unit for unit in units if nbytes >= unit[0]), units[-1])
    return f"{nbytes / unit:.3g} {name}"


# --- axes -----------------------------------------------------------------------------------------


def fixed_ticks(axis: Axis, ticks, formatter):
    """Give an axis major ticks only: where they are, and a function from a value to its text."""
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: formatter(value)))


def size_axis(ax: Axes, low: float, high: float) -> Axes:
    """Give an axes a logarithmic x of bytes from low to high, its ticks in B, KiB, MiB and GiB."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    step = max(1, -(-(last - first + 1) // 6))
    ticks = [2.0**k for k in range(-(-first // step) * step, last + 1, step)]
    ax.set_xscale("log", base=2)
    ax.set_xlim(low / 1.15, high * 1.15)  # room for the outermost markers
    fixed_ticks(ax.xaxis, ticks, binary)
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
    """Give an axes a logarithmic y with numbers such as 0.01, 1 and 100."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    subs = (1.0,) if high / low > 3000 else (1.0, 3.0) if high / low > 10 else (1.0, 2.0, 5.0)
    ax.yaxis.set_major_locator(LogLocator(subs=subs))
    ax.yaxis.set_minor_locator(NullLocator())  # minor ticks are most of the time of a drawing
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0f}" if value >= 1 else f"{value:g}")
    return ax


def name_rows(ax: Axes, names: list, **look) -> Axes:
    """Name the rows at 0, 1, 2, ... of an axes at its left."""
    ax.set_yticks(range(len(names)), names, **look)
    ax.tick_params(axis="y", length=0)
    return as_they_are(ax)


def legend_above(ax: Axes, columns: int, **legend) -> Axes:
    """Put the legend above an axes, where it hides nothing."""
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
    tight = {"columnspacing": 1.0, "handlelength": 1.4, "borderaxespad": 0.2, "labelspacing": 0.3}
    ax.legend(ncols=columns, **place | tight | legend)
    return as_they_are(ax)


def as_they_are(ax: Axes) -> Axes:
    """Show names in the legend and at the ticks of y as they are, without mathematics."""
    legend = ax.get_legend()
    for text in (*(legend.get_texts() if legend else ()), *ax.get_yticklabels()):
        text.set_parse_math(False)
    return ax


# --- what a finished figure consists of -----------------------------------------------------------


def laid_out(fig: Figure, what: str):
    """Lay a figure out, or raise ValueError that names the text which Matplotlib cannot set."""
    try:
        fig.draw_without_rendering()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        why = short(str(error).strip().splitlines()[-isinstance(error, ValueError)], 120)
        unset = [short(text.get_text(), 40) for text in fig.findobj(Text) if not _is_set(text)]
        which = f"the text '{unset[0]}'" if unset else "the figure"
        do = ". Write a plain $ as \\$" * bool(unset and "$" in unset[0])
        raise ValueError(f"{what}: Matplotlib cannot draw {which} ({why}){do}") from error


def panels_of(fig: Figure) -> list[Axes]:
    """Return all axes of a figure, insets after the axes that contain them."""
    found = list(fig.axes)
    for ax in found:  # which grows meanwhile
        inside = (child for child in ax.child_axes if isinstance(child, Axes))
        found += [child for child in inside if child not in found]
    return found


def legends_of(fig: Figure) -> list[Legend]:
    """Return the legends that are seen."""
    return [legend for legend in fig.findobj(Legend) if legend.get_visible()]


def is_seen(artist) -> bool:
    """Whether an artist is drawn; a container always is."""
    return not isinstance(artist, Artist) or artist.get_visible()


def is_in_view(axis: Axis, tick) -> bool:
    """Whether a tick lies within the ends of its axis."""
    low, high = sorted(axis.get_view_interval())
    reach = 1e-9 * max(abs(low), abs(high))
    return low - reach <= tick.get_loc() <= high + reach


def is_points(line: Line2D) -> bool:
    """Whether only the markers of a line are drawn."""
    return line.get_linestyle() in ("None", "", " ")


def in_data(transform: Transform, ax: Axes) -> bool:
    """Whether a transform places both x and y in data of an axes."""
    return all(transform.contains_branch_seperately(ax.transData))


def _is_set(text: Text) -> bool:
    try:
        text.get_window_extent()
    except (TypeError, ValueError, RuntimeError):
        return False
    return True
