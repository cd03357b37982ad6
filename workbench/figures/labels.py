"""Names beside the curves they belong to, in place of a legend, and looks that belong to names."""

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from .style import INK, cues, refuse_crowd, shades, short

GROUND = "#EFEFEF"  # of what lies outside the measurements
LINE = 1.2  # from one line of text to the next, in its size
KNOWN = ("ResNet-50", "BERT-Large", "VGG-16-BN", "ResNet-18", "BERT-Base", "GoogLeNet")


def small() -> float:
    """Return the size of ticks and legends of the venue drawn for, pt."""
    return FontProperties(size=mpl.rcParams["legend.fontsize"]).get_size_in_points()


def looks(names) -> dict[str, dict]:
    """Return colour, marker and dashes of each name: KNOWN ones look alike in every figure.

    Others take the places of known ones that are not there, from the first; a lone one is in ink.
    """
    names = list(map(str, names))
    refuse_crowd(names, "draw")
    free = [place for place, name in enumerate(KNOWN) if name not in names]
    places = [KNOWN.index(name) if name in KNOWN else -1 for name in names]
    others = (p for p in (*free, *range(len(KNOWN), len(KNOWN) + len(names))))
    places = [next(others) if place < 0 else place for place in places]
    most = max(len(KNOWN), *places) + 1 if places else 1
    colours, shapes = shades(most), list(cues(most))
    each = ((name, colours[at], *shapes[at]) for name, at in zip(names, places, strict=True))
    found = {n: {"color": c, "marker": m, "dashes": d or (1, 0)} for n, c, m, d in each}
    if len(names) == 1 and names[0] not in KNOWN:
        found[names[0]]["color"] = INK
    return found


def name_ends(ax: Axes, ends: dict[str, tuple], length: int = 20):
    """Write each name at the right of the axes, at the height where its curve ends.

    ends : name -> height in data, colour. Names that would cover each other are moved apart.
    length : letters a name may have
    """
    low, high = ax.get_ylim()
    names = sorted(ends, key=lambda name: ends[name][0])
    wanted = np.clip([(ends[name][0] - low) / (high - low) for name in names], 0, 1)
    gap = LINE * small() / points_high(ax)
    for name, height in zip(names, apart(wanted, gap), strict=True):
        beside(ax, height, short(name, length), "axes fraction", color=ends[name][1])


def beside(ax: Axes, height: float, text: str, coords="data", **look):
    """Write at the right of the axes, at a height in data or as a fraction of the axes."""
    coords = ax.get_yaxis_transform() if coords == "data" else coords
    plain = {"va": "center", "fontsize": small(), "annotation_clip": False, "parse_math": False}
    ax.annotate(text, (1, height), (4, 0), xycoords=coords, textcoords="offset points",
                **plain | look)  # fmt: skip


def points_high(ax: Axes) -> float:
    """Return about how high an axes is, in points: before the layout its labels have no room."""
    return max(20.0, 72 * ax.figure.get_figheight() * ax.get_position().height - 12)


def apart(heights, gap: float) -> np.ndarray:
    """Return rising heights moved as little as need be so that each is `gap` above the last.

    All stay within 0 to 1 where there is room. Least squares under the constraint: runs that
    touch share their mean (pool adjacent violators).
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
    """Shade the numbers of workers outside those that were timed, all where none was.

    The one rule of figures against workers: fewer than were timed are as little measured as more.
    """
    timed = np.atleast_1d(np.asarray(timed, float))
    spans = [(lowest / 1.1, highest * 1.1)]
    if timed.size:
        spans = [(lowest / 1.1, timed.min() / 1.1), (timed.max() * 1.1, highest * 1.1)]
    for k, (low, high) in enumerate((low, high) for low, high in spans if high > low):
        words = label and "_" * (k > 0) + label
        ax.axvspan(low, high, color=GROUND, lw=0, zorder=0, label=words)


def remark(fig: Figure, *lines: str):
    """Write below a figure, small and at the right, what its reader has to know: what is ours.

    Empty lines are left out, and a figure without any stays as it is.
    """
    if words := "\n".join(filter(None, lines)):
        fig.supxlabel(words, x=0.995, ha="right", fontsize=small(), color=INK, parse_math=False)
