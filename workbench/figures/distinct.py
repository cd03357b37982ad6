"""What distinguishes the entries of a figure: colour, marker, dash, hatch or shape."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from ..base.checks import one_of
from .style import is_points, is_seen, legends_of, panels_of

# Linear RGB as protanopes, deuteranopes and tritanopes see it: Machado, Oliveira and Fernandes,
# "A Physiologically-based Model for Simulation of Color Vision Deficiency", IEEE TVCG 15(6), 2009,
# severity 1.0.
_MATRICES = {
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
XYZ = np.array(  # of linear sRGB, D65: IEC 61966-2-1
    [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
)
VISIONS = {"normal": np.eye(3), "grey": np.tile(XYZ[1], (3, 1))} | {
    name: np.array(matrix) for name, matrix in _MATRICES.items()
}
# Apart at a glance in small marks; 2.3 is just visible side by side (Mahy et al. 1994).
APART = {"normal": 15.0, "protan": 15.0, "deutan": 15.0, "tritan": 15.0, "grey": 10.0}


class Look(NamedTuple):
    """How an entry is drawn; `cues` is what remains without colour."""

    label: str
    colour: tuple
    cues: tuple


def untold(fig: Figure) -> Iterator[tuple[str, str]]:
    """Yield names of two entries and why some readers cannot distinguish them.

    Compared are the entries of one legend, and the labelled artists of an axes without a legend,
    unless a text there is their label.
    """
    for looks in _groups(fig):
        for one, other in itertools.combinations(looks, 2):
            if one.cues == other.cues and (close := alike(one.colour, other.colour)):
                vision, apart = min(close.items(), key=lambda item: item[1])
                unit = "L*" if vision == "grey" else "Delta E"
                detail = f"{apart:.0f} {unit} apart in {vision} vision, and only colour differs"
                yield f"{one.label!r} and {other.label!r}", detail


def _groups(fig: Figure) -> Iterator[list[Look]]:
    for legend in legends_of(fig):
        labels = [text.get_text() for text in legend.get_texts()]
        yield _looks(legend.legend_handles, labels)
    for ax in panels_of(fig):
        if ax.get_legend() is None and ax.get_visible() and not fig.legends:
            yield _without_legend(ax)


def _without_legend(ax: Axes) -> list[Look]:
    named = {text.get_text() for text in ax.findobj(Text)}
    handles, labels = ax.get_legend_handles_labels()
    pairs = zip(handles, labels, strict=True)
    pairs = [(h, label) for h, label in pairs if label not in named and is_seen(h)]
    return _looks(*zip(*pairs, strict=True)) if pairs else []


def _looks(handles, labels) -> list[Look]:
    found = (_look(handle, label) for handle, label in zip(handles, labels, strict=True))
    return [look for look in found if look]


def _look(handle, label: str) -> Look | None:
    """Return the look of an artist, or of the first of several; None for what has no colour."""
    while isinstance(handle, tuple | list) and len(handle):  # containers are tuples
        handle = handle[0]
    if isinstance(handle, Line2D):
        return _line(handle, label)
    if isinstance(handle, Patch):
        hollow = handle.get_facecolor()[3] == 0
        colour = handle.get_edgecolor() if hollow else handle.get_facecolor()
        return Look(label, colour, ("area", hollow, handle.get_hatch() or ""))
    if isinstance(handle, PathCollection):
        faces, edges = handle.get_facecolor(), handle.get_edgecolor()
        if not len(faces) + len(edges):
            return None
        shape = handle.get_paths()[0].vertices.round(3).tobytes()
        colour = tuple((faces if len(faces) else edges)[0])
        return Look(label, colour, ("points", not len(faces), shape))
    colours = handle.get_edgecolor() if hasattr(handle, "get_edgecolor") else ()
    return Look(label, tuple(colours[0]), ("lines",)) if len(colours) else None


def _line(line: Line2D, label: str) -> Look:
    drawn = not is_points(line) and line.get_linewidth() > 0
    marker = str(line.get_marker()).replace("None", "")
    dashes = line._unscaled_dash_pattern if drawn else None  # there is no public name
    hollow = bool(marker) and line.get_markerfacecolor() in ("none", "white", "w")
    colour = to_rgba(line.get_color() if drawn else line.get_markeredgecolor(), line.get_alpha())
    if not drawn and not hollow and marker not in "x+|_":
        colour = to_rgba(line.get_markerfacecolor(), line.get_alpha())
    return Look(label, colour, ("line" if drawn else "points", marker, hollow, str(dashes)))


def seen(colour, vision: str) -> tuple[float, float, float]:
    """Return a colour's RGB for protan, deutan or tritan eyes, or in grey print.

    A colour with an alpha lies on white paper.
    """
    one_of(VISIONS)(vision, "vision")
    linear = np.clip(VISIONS[vision] @ _linear(colour), 0, 1)
    rgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return tuple(np.clip(rgb, 0, 1).tolist())


def difference(one, other, vision: str = "normal") -> float:
    """Return Delta E (CIE 1976) between two colours as they appear; grey keeps L* only."""
    return float(np.linalg.norm(_lab(seen(one, vision)) - _lab(seen(other, vision))))


def alike(one, other) -> dict[str, float]:
    """Return vision -> difference of two colours, for those in which it is below APART."""
    found = {vision: difference(one, other, vision) for vision in APART}
    return {vision: apart for vision, apart in found.items() if apart < APART[vision]}


def _linear(colour) -> np.ndarray:
    """Return linear RGB of a colour on white paper (IEC 61966-2-1)."""
    *rgb, alpha = mpl.colors.to_rgba(colour)
    rgb = 1 - alpha * (1 - np.array(rgb))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def _lab(colour) -> np.ndarray:
    """Return L*, a* and b* of a colour (CIE 15, D65)."""
    relative = XYZ @ _linear(colour) / XYZ.sum(axis=1)
    low = relative / (3 * (6 / 29) ** 2) + 4 / 29
    x, y, z = np.where(relative > (6 / 29) ** 3, np.cbrt(relative), low)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
