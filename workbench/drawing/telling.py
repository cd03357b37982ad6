"""What tells the entries of a figure apart: colour, and marker, dash, hatch or shape beside it."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from .style import is_seen, panels_of
from .vision import alike

UNITS = {"grey": "L*"}  # of a difference; Delta E elsewhere


class Look(NamedTuple):
    """How an entry is drawn; `cues` is all that holds without colour."""

    label: str
    colour: tuple
    cues: tuple


def untold(fig: Figure) -> Iterator[tuple[str, str]]:
    """Yield pairs of entries that colour alone tells apart, but not for everyone: names, why.

    Entries of one legend are compared, and the labelled artists of an axes that has none, unless a
    text there is their label.
    """
    for looks in _groups(fig):
        for one, other in itertools.combinations(looks, 2):
            if one.cues == other.cues and (close := alike(one.colour, other.colour)):
                vision, apart = min(close.items(), key=lambda item: item[1])
                unit = UNITS.get(vision, "Delta E")
                yield (
                    f"{one.label!r} and {other.label!r}",
                    f"{apart:.0f} {unit} apart in {vision} vision, and nothing but colour differs",
                )


def _groups(fig: Figure) -> Iterator[list[Look]]:
    for legend in filter(Legend.get_visible, fig.findobj(Legend)):
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
        return Look(label, tuple((faces if len(faces) else edges)[0]), ("points", not len(faces),
                    shape))  # fmt: skip
    colours = handle.get_edgecolor() if hasattr(handle, "get_edgecolor") else ()
    return Look(label, tuple(colours[0]), ("lines",)) if len(colours) else None


def _line(line: Line2D, label: str) -> Look:
    drawn = line.get_linestyle() not in ("None", "", " ") and line.get_linewidth() > 0
    marker = str(line.get_marker()).replace("None", "")
    dashes = line._unscaled_dash_pattern if drawn else None  # no public way tells it
    hollow = bool(marker) and line.get_markerfacecolor() in ("none", "white", "w")
    colour = to_rgba(line.get_color() if drawn else line.get_markeredgecolor(), line.get_alpha())
    if not drawn and not hollow and marker not in "x+|_":
        colour = to_rgba(line.get_markerfacecolor(), line.get_alpha())
    return Look(label, colour, ("line" if drawn else "points", marker, hollow, str(dashes)))
