"""Names at the ends of curves, notes in and below a figure, and the look that belongs to a name."""

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from .given import refuse_crowd
from .style import GROUND, INK, cues, shades, short

LINE = 1.2  # from one line of text to the next, in its size
KNOWN = ("ResNet-50", "BERT-Large", "VGG-16-BN", "ResNet-18", "BERT-Base", "GoogLeNet")


def small() -> float:
    """Return the size of ticks and legends of the current venue, pt."""
    return FontProperties(size=mpl.rcParams["legend.fontsize"]).get_size_in_points()


def looks(names) -> dict[str, dict]:
    """Return colour, marker and dashes per name: KNOWN models look the same in every figure.

    Other names take the places of known ones that are absent, from the first; if there is only one
    name and it is not known, it is in ink. Repeated names count once.
    """
    names = list(dict.fromkeys(map(str, names)))
    refuse_crowd(names, "draw")
    free = [place for place, name in enumerate(KNOWN) if name not in names]
    others = iter((*free, *range(len(KNOWN), len(KNOWN) + len(names))))
    places = [KNOWN.index(name) if name in KNOWN else next(others) for name in names]
    most = max(len(KNOWN), *places) + 1 if places else 1
    colours, shapes = shades(most), list(cues(most))
    each = ((name, colours[at], *shapes[at]) for name, at in zip(names, places, strict=True))
    found = {n: {"color": c, "marker": m, "dashes": d or (1, 0)} for n, c, m, d in each}
    if len(names) == 1 and names[0] not in KNOWN:
        found[names[0]]["color"] = INK
    return found


def name_ends(ax: Axes, ends: dict[str, tuple], length: int = 20):
    """Write each name at the right of the axes, at the height where its curve ends.

    ends : name -> height in data, colour. Names that would overlap are moved apart.
    length : most letters of a name
    """
    low, high = ax.get_ylim()
    names = sorted(ends, key=lambda name: ends[name][0])
    wanted = np.clip([(ends[name][0] - low) / (high - low) for name in names], 0, 1)
    # about the height of the axes in points: before the layout its labels have no room
    high_pt = max(20.0, 72 * ax.figure.get_figheight() * ax.get_position().height - 12)
    heights = apart(wanted, LINE * small() / high_pt)
    for name, height in zip(names, heights, strict=True):
        beside(ax, height, short(name, length), "axes fraction", color=ends[name][1])


def beside(ax: Axes, height: float, text: str, coords="data", **look):
    """Write at the right of the axes, at a height in data or as a fraction of the axes."""
    coords = ax.get_yaxis_transform() if coords == "data" else coords
    plain = {"va": "center", "fontsize": small(), "annotation_clip": False, "parse_math": False}
    move = {"xytext": (4, 0), "textcoords": "offset points", "xycoords": coords}
    ax.annotate(text, (1, height), **move, **plain | look)


def write_note(ax: Axes, x: float, y: float, text: str, **look):
    """Write a text as it is, at fractions of the width and height of the axes."""
    plain = {"va": "bottom", "fontsize": 7, "parse_math": False}
    ax.text(x, y, text, transform=ax.transAxes, **plain | look)


def apart(heights, gap: float) -> np.ndarray:
    """Return rising heights, moved as little as possible so that each is `gap` above the last.

    They stay within 0 to 1 if there is room. Least squares under the constraint: runs that touch
    share their mean (pool adjacent violators).
    """
    shifted = np.asarray(heights, float) - gap * np.arange(len(heights))
    runs: list[list[float]] = []  # sum, number
    for value in shifted:
        runs.append([value, 1])
        while len(runs) > 1 and runs[-2][0] / runs[-2][1] > runs[-1][0] / runs[-1][1]:
            total, number = runs.pop()
            runs[-1][0] += total
            runs[-1][1] += number
    means = np.repeat([s / n for s, n in runs], [n for _, n in runs]) if runs else shifted
    room = max(0.0, 1 - gap * (len(means) - 1))
    return np.clip(means, 0, room) + gap * np.arange(len(means))


def shade_untimed(ax: Axes, timed, lowest: float, highest: float, label: str | None = None):
    """Shade the numbers of workers outside those that were timed, or all if none was.

    Fewer workers than were timed are as little measured as more.
    """
    timed = np.atleast_1d(np.asarray(timed, float))
    spans = [(lowest / 1.1, highest * 1.1)]
    if timed.size:
        spans = [(lowest / 1.1, timed.min() / 1.1), (timed.max() * 1.1, highest * 1.1)]
    for k, (low, high) in enumerate((low, high) for low, high in spans if high > low):
        words = label and "_" * (k > 0) + label
        ax.axvspan(low, high, color=GROUND, lw=0, zorder=0, label=words)


def label_factor(ax: Axes):
    """Label y as the scaling factor, unless another panel at the left already has the label."""
    spec = ax.get_subplotspec()
    if spec is None or spec.is_first_col():
        ax.set_ylabel("scaling factor")


def remark(fig: Figure, *lines: str):
    """Write lines below a figure, small and at the right; empty ones are left out."""
    if words := "\n".join(filter(None, lines)):
        fig.supxlabel(words, x=0.995, ha="right", fontsize=small(), color=INK, parse_math=False)
