"""Whether a figure can be read: text that is too small, overlaps, colours that look alike.

All is measured on the figure as it is laid out when saved, in points on the page.
"""

import itertools
from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cbook import is_math_text
from matplotlib.collections import Collection, PathCollection, PolyCollection, QuadMesh
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.mathtext import MathTextParser
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from ..base.checks import require
from .distinct import untold
from .given import check_figure, is_number
from .style import FIXED, in_data, is_in_view, is_points, laid_out, legends_of, panels_of, short

FAULTS = {
    "what": "too small, overlaps, outside, hides data, on marks, not aligned or not told apart",
    "where": "the texts, entries or panels",
    "detail": "by how much, in pt",
}
SCRIPT_SIZE = 0.7  # of its text's size, as TeX and Matplotlib set an index or an exponent
SLACK = 1.0  # pt: boxes have room for taller letters than those present
TICK_GAP = 1.0  # pt between two ticks, less reads as one number
NEARLY = (0.2, 5.0)  # pt: edges closer are aligned, those farther apart are meant to be


def faults(fig: Figure, least_pt: float = 6.0) -> pd.DataFrame:
    """Return FAULTS, one row per fault; no row if the figure is fine.

    It checks the size of text (an index or exponent may have 0.7 of the least), text that overlaps
    other text or a legend or leaves the figure, ticks that touch, legends on the data of their
    axes, text on lines, points or hatches of its axes, edges of panels that are nearly but not
    quite aligned, and entries of a legend that differ in colour only, for protan, deutan and tritan
    eyes and in grey print. Boxes are upright, except between slanted texts.

    least_pt : smallest size of text, pt
    """
    check_figure(fig, "faults")
    fine = is_number(least_pt) and least_pt > 0
    require(fine, "faults least_pt", "a size above 0 in pt", least_pt)
    with mpl.rc_context(FIXED):
        for _ in range(2):  # a tick label at the edge may take a second pass
            laid_out(fig, "faults")
        texts = {text: _box(text, fig) for text in _drawn_texts(fig)}
        rows = [
            *_small(texts, least_pt),
            *_overlapping(texts),
            *_outside(texts, fig),
            *_legends(texts, fig),
            *_crossed(texts, fig),
            *_misaligned(fig),
            *(("not told apart", where, why) for where, why in untold(fig)),
        ]
    return pd.DataFrame(rows, columns=list(FAULTS), dtype="str")


# --- text -----------------------------------------------------------------------------------------


def _drawn_texts(fig: Figure) -> list[Text]:
    """Return all texts that are seen, which ticks beyond the ends of an axis are not."""
    unseen = {legend for legend in fig.findobj(Legend) if not legend.get_visible()}
    for ax in panels_of(fig):
        if not ax.get_visible():
            unseen.add(ax)
        for axis in _axes(ax):
            ticks = (*axis.get_major_ticks(), *axis.get_minor_ticks())
            if not (ax.axison and axis.get_visible()):
                unseen.update((axis, *ticks))
            unseen.update(tick for tick in ticks if not is_in_view(axis, tick))
    hidden = {text for artist in unseen for text in artist.findobj(Text)}
    return [t for t in fig.findobj(Text) if t not in hidden and _is_seen(t)]


def _axes(ax: Axes) -> list[Axis]:
    return [getattr(ax, f"{name}axis") for name in ("x", "y", "z") if hasattr(ax, f"{name}axis")]


def _is_seen(text: Text) -> bool:
    if not text.get_visible() or not text.get_text().strip():
        return False
    ax = text.axes
    if isinstance(text, Annotation) and text.xycoords == "data" and ax is not None:
        clipped = text.get_annotation_clip() is not False
        return not clipped or ax.contains_point(ax.transData.transform(text.xy))
    return True


def _box(artist: Artist, fig: Figure) -> Bbox:
    """Return where an artist lies, in pt from the lower left of the page."""
    # not an Annotation's own, which contains its arrow
    extent = Text.get_window_extent(artist) if isinstance(artist, Text) else _extent(artist)
    return Bbox(extent.get_points() * 72 / fig.dpi)


def _extent(artist) -> Bbox:
    extent = artist.get_window_extent()
    if isinstance(artist, Legend) and not artist.get_frame_on():
        inches = artist.borderpad * artist.prop.get_size_in_points() / 72  # of air all around
        return extent.padded(-inches * artist.get_figure(root=True).dpi)
    return extent


def _named(text: Text) -> str:
    return repr(short(text.get_text(), 40))


def _small(texts: dict, least_pt: float) -> Iterator[tuple]:
    for text in texts:
        size, script, least = text.get_fontsize(), _smallest_glyph(text), SCRIPT_SIZE * least_pt
        if size < least_pt - 1e-6:
            yield "too small", _named(text), f"{size:.3g} pt, below {least_pt:g} pt"
        elif script < least - 1e-6:
            yield "too small", _named(text), f"{script:.2g} pt within, below {least:.2g} pt"


def _smallest_glyph(text: Text) -> float:
    """Return the size in pt of the smallest letter: an index of an index is half its text."""
    size = text.get_fontsize()
    lines = [line for line in text.get_text().split("\n") if is_math_text(line)]
    if not (text.get_parse_math() and lines):
        return size
    font = FontProperties(size=size)
    parsed = (MathTextParser("path").parse(line, 72, font) for line in lines)
    return min((glyph[1] for each in parsed for glyph in each.glyphs), default=size)


def _overlapping(texts: dict) -> Iterator[tuple]:
    axis_of = {
        text: axis
        for ax in {text.axes for text in texts if text.axes is not None}
        for axis in _axes(ax)
        for text in axis.get_ticklabels(which="both")
    }
    for (one, a), (other, b) in itertools.combinations(texts.items(), 2):
        ticks = one in axis_of and axis_of[one] is axis_of.get(other)
        wide, high = _shared(a, b)
        if wide > -TICK_GAP and high > SLACK and (one.get_rotation() or other.get_rotation()):
            wide, high = _shared_slanted(one, a, other, b)
        if wide > (-TICK_GAP if ticks else 0.5) and high > SLACK:
            what = f"by {wide:.1f} x {high:.1f} pt" if wide > 0 else f"{-wide:.1f} pt apart"
            yield "overlaps", f"{_named(one)} and {_named(other)}", what


def _shared(a: Bbox, b: Bbox) -> tuple[float, float]:
    """Return how far two boxes reach into each other, across and up; below 0 for a gap."""
    return min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)


def _shared_slanted(one: Text, a: Bbox, other: Text, b: Bbox) -> tuple[float, float]:
    """Return how far two texts reach into each other, in the direction where it is least.

    Rectangles are apart if they are in the direction of a side of either (separating axes).
    """
    corners = [_corners(one, a), _corners(other, b)]
    shared = []
    for angle in {one.get_rotation(), other.get_rotation()}:
        turned = [(each @ _turn(angle)) for each in corners]
        shared.append(_shared(*(Bbox([each.min(axis=0), each.max(axis=0)]) for each in turned)))
    return min(shared, key=min)


def _corners(text: Text, box: Bbox) -> np.ndarray:
    """Return the corners of a text's slanted box, in pt; its upright box has the same middle."""
    angle, fig = text.get_rotation(), text.get_figure(root=True)
    text.set_rotation(0)
    flat = _box(text, fig)
    text.set_rotation(angle)
    half = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * [flat.width / 2, flat.height / 2]
    return half @ _turn(angle).T + (box.min + box.max) / 2


def _turn(degrees: float) -> np.ndarray:
    """Return the matrix that turns columns by an angle, and rows, from the left, back by it."""
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[cos, -sin], [sin, cos]])


def _outside(texts: dict, fig: Figure) -> Iterator[tuple]:
    width, height = 72 * fig.get_size_inches()
    for artist, box in (texts | {each: _box(each, fig) for each in legends_of(fig)}).items():
        beyond = max(-box.x0, -box.y0, box.x1 - width, box.y1 - height)
        if beyond > 0.25:
            name = _named(artist) if isinstance(artist, Text) else "legend"
            yield "outside", name, f"{beyond:.1f} pt beyond the figure"


# --- legends --------------------------------------------------------------------------------------


def _legends(texts: dict, fig: Figure) -> Iterator[tuple]:
    for legend in legends_of(fig):
        box, own = _box(legend, fig), set(legend.findobj(Text))
        for text, other in texts.items():
            wide, high = _shared(box, other)
            if text not in own and wide > 0.5 and high > SLACK:
                yield "overlaps", f"legend and {_named(text)}", f"by {wide:.1f} x {high:.1f} pt"
        if (ax := legend.axes) is None:
            continue
        hidden = [artist for artist in ax.get_children() if _lies_in(artist, _extent(legend), ax)]
        if hidden:
            yield "hides data", f"legend of {_panel(ax)}", _labels(hidden, ax)


def _crossed(texts: dict, fig: Figure) -> Iterator[tuple]:
    """Yield texts that lie on lines, points or hatches of their axes; other areas are ground."""
    for text, box in texts.items():
        if text.axes is None or text not in text.axes.texts:
            continue
        x, y = min(0.5, box.width / 3), min(2 * SLACK, box.height / 3)
        inner = Bbox([[box.x0 + x, box.y0 + y], [box.x1 - x, box.y1 - y]])
        inner = Bbox(inner.get_points() * fig.dpi / 72)
        marks = [artist for artist in text.axes.get_children() if _is_marked(artist)]
        crossed = [artist for artist in marks if _lies_in(artist, inner, text.axes)]
        if crossed:
            yield "on marks", _named(text), _labels(crossed, text.axes)


def _labels(artists: list, ax: Axes) -> str:
    """Return the labels of artists (for bars that of their container), or their types."""
    of_bars = {bar: each.get_label() for each in ax.containers for bar in each.get_children()}
    labels = (str(of_bars.get(artist, artist.get_label())) for artist in artists)
    kinds = (type(artist).__name__ for artist in artists)
    named = zip(labels, kinds, strict=True)
    return ", ".join(sorted({kind if label[:1] in "_" else label for label, kind in named}))


def _is_marked(artist: Artist) -> bool:
    if isinstance(artist, mpl.patches.Patch | PolyCollection | QuadMesh):
        return bool(artist.get_hatch())
    if isinstance(artist, ContourSet):
        return not artist.filled
    return isinstance(artist, Line2D | Collection)


def _lies_in(artist: Artist, box: Bbox, ax: Axes) -> bool:
    """Whether data of an artist lie in a box; grounds (zorder 0) and guides are not data."""
    drawn = artist.get_visible() and artist.get_zorder() > 0
    if not drawn or not isinstance(artist, Line2D | mpl.patches.Patch | Collection):
        return False
    if isinstance(artist, PathCollection) and in_data(artist.get_offset_transform(), ax):
        spots = artist.get_offset_transform().transform(artist.get_offsets())
        return bool(box.count_contains(np.ma.filled(spots, np.nan)))
    transform = artist.get_transform()
    if not in_data(transform, ax):
        return False
    paths = artist.get_paths() if isinstance(artist, Collection) else [artist.get_path()]
    paths = [transform.transform_path(path) for path in paths if len(path.vertices)]
    if isinstance(artist, Line2D) and is_points(artist):
        return any(box.count_contains(path.vertices) for path in paths)
    return any(path.intersects_bbox(box, filled=not isinstance(artist, Line2D)) for path in paths)


# --- panels ---------------------------------------------------------------------------------------


def _panel(ax: Axes) -> str:
    """Name a panel by its place in the figure, from 1."""
    return f"panel {panels_of(ax.get_figure(root=True)).index(ax) + 1}"


def _misaligned(fig: Figure) -> Iterator[tuple]:
    panels = {ax: _box(ax.patch, fig) for ax in fig.axes if ax.get_visible()}
    for (one, a), (other, b) in itertools.combinations(panels.items(), 2):
        for edge in ("x0", "x1", "y0", "y1"):
            off = abs(getattr(a, edge) - getattr(b, edge))
            if NEARLY[0] < off < NEARLY[1]:
                name = {"x0": "left", "x1": "right", "y0": "lower", "y1": "upper"}[edge]
                where = f"{name} edges of {_panel(one)} and {_panel(other)}"
                yield "not aligned", where, f"{off:.1f} pt off"
