"""A figure in words, for those who cannot see it: computed from its axes, curves and bars."""

import re

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cbook import is_math_text
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.colors import same_color
from matplotlib.container import BarContainer, Container
from matplotlib.dates import AutoDateFormatter, ConciseDateFormatter, DateFormatter, num2date
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.text import Text

from .given import check_figure
from .style import INK, in_data, is_in_view, is_points, is_seen, laid_out, panels_of

DATES = (AutoDateFormatter, ConciseDateFormatter, DateFormatter)
MOST_NAMED = 8  # entries and rows named; the others are counted
BEYOND = 0.05  # of a curve's height, by which a turn must lie beyond both ends to be described


def describe(fig: Figure, drawn: bool = False) -> str:
    """Return the alt text of a figure: a few sentences per panel, without markup.

    It contains what each axis shows, with its unit and range or its rows, the legend's entries,
    with where their curves begin, turn and end or how long their bars are, and the notes inside.

    drawn : whether the figure has been drawn since it last changed, which saves time
    """
    check_figure(fig, "describe")
    if not drawn:
        laid_out(fig, "describe")  # tick labels are made while drawing
    panels = [ax for ax in panels_of(fig) if ax.get_visible()]
    each = [_panel(ax) for ax in panels[:MOST_NAMED]]
    if len(panels) > 1:
        each = [f"Panel {k} of {len(panels)}: {words}" for k, words in enumerate(each, start=1)]
    more = f"And {len(panels) - MOST_NAMED} panels more." if len(panels) > MOST_NAMED else ""
    title = plain(fig.get_suptitle())
    return " ".join(filter(None, [_sentence(title), *each, more])) or "An empty figure."


def plain(text: str) -> str:
    """Return a text on one line, mathematics as plain letters: `$10^{-3}$` is 10^-3."""
    text = "".join(c if c.isprintable() else " " for c in text)
    if is_math_text(text):
        text = re.sub(r"\\(math\w+|text\w*|operatorname)\b|\\[!^]", "", text)
        text = re.sub(r"\\[dt]?frac *(\d|{[^{}]*}) *(\d|{[^{}]*})", r"\1/\2", text)
        text = re.sub(r"\\[ ,:;>]|\\([a-zA-Z]+) *", r" \1 ", text)
        text = re.sub(r"[${}]", "", text.replace(r"\$", "\0")).replace("\0", "$").replace("\\", "")
    return " ".join(text.split())


def _sentence(text: str) -> str:
    return text and text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _panel(ax: Axes) -> str:
    boxed = [text for each in ax.artists for text in each.findobj(Text)]
    boxed += [cell.get_text() for table in ax.tables for cell in table.get_celld().values()]
    seen = [text for text in (*ax.texts, *boxed) if text.get_visible()]
    written = [_line_by_line(text.get_text()) for text in seen]
    notes = "; ".join(note for note in written if len(re.findall(r"[^\W\d]{2,}", note)) > 1)
    entries = _some([_entry(ax, artist, name) for artist, name in _entries(ax)])
    title = _sentence(plain(ax.get_title()))
    axes = _sentence(_axes(ax) if ax.axison or ax.name == "3d" else "")
    shown = _sentence(f"shown: {entries}" if entries else "")
    inside = _sentence(f"written inside: {notes}" if notes else "")
    return " ".join(filter(None, [title, axes, shown, inside]))


def _line_by_line(text: str) -> str:
    return re.sub(r"(?<=:),|,(?=,)", "", ", ".join(map(plain, text.splitlines())))


def _some(words: list[str]) -> str:
    more = [f"and {len(words) - MOST_NAMED} more"] if len(words) > MOST_NAMED else []
    return "; ".join(words[:MOST_NAMED] + more)


# --- axes -----------------------------------------------------------------------------------------


def _axes(ax: Axes) -> str:
    up, across = _axis(ax.yaxis), _axis(ax.xaxis)
    if ax.name == "3d":
        return "; ".join(filter(None, [up, across, _axis(ax.zaxis)]))
    if _is_named(ax.yaxis) and not _is_named(ax.xaxis):
        up, across = across, up
    if not (up and across):
        return up or across
    rows = _is_named(ax.xaxis) or _is_named(ax.yaxis)
    return f"{up}, {across}" if rows else f"{up} against {across}"


def _is_named(axis: Axis) -> bool:
    """Whether the ticks are names rather than numbers."""
    ticks = _ticks(axis)
    number = re.compile(r"[-\N{MINUS SIGN}+.]?\d")
    return bool(ticks) and not _is_dated(axis) and not all(number.match(tick) for tick in ticks)


def _axis(axis: Axis) -> str:
    """Return what an axis shows: its label with the range of its ticks, or its named rows."""
    name, ticks = plain(axis.get_label_text()), _ticks(axis)
    if not ticks:
        return name
    if not _is_named(axis):
        times = plain(axis.get_offset_text().get_text()) * (not _is_dated(axis))
        times = f" ({times})".replace("(1e", "(\N{MULTIPLICATION SIGN}1e") if times else ""
        return f"{name or 'values'} from {ticks[0]} to {ticks[-1]}{times}"
    down = axis.axis_name == "y" and not axis.get_inverted()
    what = "rows" if axis.axis_name == "y" else "columns"
    of = f" of {name}" if name else ""
    return f"in {what}{of}: {_some(ticks[::-1] if down else ticks)}"


def _ticks(axis: Axis) -> list[str]:
    """Return the labels of the ticks seen, from the lower value up."""
    if not axis.get_visible():
        return []
    seen = [tick for tick in axis.get_major_ticks() if is_in_view(axis, tick)]
    seen.sort(key=lambda tick: tick.get_loc())
    if _is_dated(axis):
        return [_date(tick.get_loc()) for tick in seen]
    labels = [plain(tick.label1.get_text()) for tick in seen]
    return [label for label in labels if label]


def _is_dated(axis: Axis) -> bool:
    return isinstance(axis.get_major_formatter(), DATES)


def _date(days: float) -> str:
    return num2date(days).strftime("%Y-%m-%d %H:%M").removesuffix(" 00:00")


def _number(value: float, axis: Axis | None) -> str:
    """Return a value of an axis, with a unit if its ticks have one."""
    if axis is None:
        return f"{value:.3g}"
    if _is_dated(axis):
        return _date(value)
    has_units = any(re.match(r"\d.*[A-Za-z\N{DEGREE SIGN}]", tick) for tick in _ticks(axis))
    text = _formatted(value, axis) if has_units else ""
    text = text or (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}")
    return text.replace("-", "\N{MINUS SIGN}") if value < 0 else text


def _formatted(value: float, axis: Axis) -> str:
    try:
        return plain(axis.get_major_formatter()(value, None))
    except TypeError:  # it names ticks by their index only
        return ""


# --- curves and bars ------------------------------------------------------------------------------


def _entries(ax: Axes) -> list[tuple]:
    """Return artist and name of what the legend names or, without one, of what has a label."""
    found = {label: handle for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if (legend := ax.get_legend()) is not None:
        labels = [text.get_text() for text in legend.get_texts()]
        signs = zip(legend.legend_handles, labels, strict=True)
        found = {label: found.get(label, sign) for sign, label in signs}
    seen = {label: artist for label, artist in found.items() if is_seen(artist)}
    named = [(_of_data(ax, artist), plain(label)) for label, artist in seen.items()]
    lines = [line for line in ax.lines if in_data(line.get_transform(), ax)]
    lines = [line for line in lines if line.get_visible() and len(line.get_xdata())]
    known = {artist for artist, _ in named}
    curves = [line for line in lines if not is_points(line) and len(_points(line)[0])]
    curves = [line for line in curves if line not in known]
    named += [(line, name) for line in curves if (name := _label_of(line))]
    return named or _unnamed(ax, lines)


def _unnamed(ax: Axes, lines: list[Line2D]) -> list[tuple]:
    """Return what has no label: bars, maps, and lines, which are counted if there are many."""
    bars = [(each, "bars") for each in ax.containers if isinstance(each, BarContainer)]
    maps = [*ax.images, *(each for each in ax.collections if isinstance(each, QuadMesh))]
    maps = [(each, "colours for") for each in maps if ax.get_label() != "<colorbar>"]
    named = [(line, "" if is_points(line) else "a line") for line in lines]
    return [
        *bars,
        *maps,
        *(named if len(lines) <= MOST_NAMED / 2 else [(None, f"{len(lines)} lines")]),
    ]


def _label_of(line: Line2D) -> str:
    """Return the text that labels a curve: the nearest of its colour, or the only one elsewhere."""
    if same_color(line.get_color(), INK):
        return ""
    texts = [text for ax in line.get_figure(root=True).axes for text in ax.texts]
    texts = [text for text in texts if text.get_visible()]
    texts = [text for text in texts if same_color(text.get_color(), line.get_color())]
    if here := [text for text in texts if text.axes is line.axes]:
        end = line.get_transform().transform(np.transpose(_points(line)))[-1]
        boxes = [text.get_window_extent() for text in here]
        off = [np.hypot(box.x0 - end[0], (box.y0 + box.y1) / 2 - end[1]) for box in boxes]
        return plain(here[int(np.argmin(off))].get_text())
    names = {plain(text.get_text()) for text in texts}
    return names.pop() if len(names) == 1 else ""


def _of_data(ax: Axes, artist):
    """Return the curve that a sign in a legend stands for, by its colour, if there is one."""
    if not isinstance(artist, Line2D) or artist in ax.lines and len(artist.get_xdata()):
        return artist
    curves = (line for line in ax.lines if not is_points(line))
    curves = (line for line in curves if in_data(line.get_transform(), ax))
    same = (line for line in curves if same_color(line.get_color(), artist.get_color()))
    return next((line for line in same if np.isfinite(_points(line)[1]).sum() > 1), None)


def _points(line: Line2D) -> tuple[np.ndarray, np.ndarray]:
    x, y = (np.ma.filled(np.ma.asarray(v, float), np.nan) for v in line.get_data(orig=False))
    known = np.isfinite(x) & np.isfinite(y)
    for values, axis in ((x, line.axes and line.axes.xaxis), (y, line.axes and line.axes.yaxis)):
        if axis and axis.get_scale() == "log":  # which does not show the others
            known &= values > 0
    if not is_points(line) and line.get_marker() in ("None", "", " ", None):
        near = np.pad(known, 1)  # a single point of a line without marks is not seen
        known &= near[:-2] | near[2:]
    return x[known], y[known]


def _entry(ax: Axes, artist, name: str) -> str:
    if isinstance(artist, BarContainer):
        return _bars(ax, artist, name)
    if isinstance(artist, Container) and isinstance(artist[0], Line2D):
        artist = artist[0]
    if isinstance(artist, PathCollection) and ax.name != "3d":
        return _cloud(ax, artist, name)
    if isinstance(artist, AxesImage | QuadMesh):
        return f"{name} {_span(artist.get_array(), None)}"
    return _curve(ax, artist, name) if isinstance(artist, Line2D) and ax.name != "3d" else name


def _span(values, axis: Axis | None) -> str:
    """Return the range of values in words, also if there is none."""
    values = np.ma.masked_invalid(np.ma.asarray(values, float)).compressed()
    if not len(values):
        return "without a number"
    return " to ".join(dict.fromkeys(_number(each, axis) for each in (values.min(), values.max())))


def _cloud(ax: Axes, points: PathCollection, name: str) -> str:
    offsets = np.ma.filled(points.get_offsets(), np.nan)
    if len(offsets) < 2 or not in_data(points.get_offset_transform(), ax):
        return name
    values, axis = (offsets[:, 0], ax.xaxis) if _is_named(ax.yaxis) else (offsets[:, 1], ax.yaxis)
    return f"{name}, {len(offsets):,} points, {_span(values, axis)}"


def _bars(ax: Axes, bars: BarContainer, name: str) -> str:
    flat = bars.orientation == "horizontal"
    sizes = [bar.get_width() if flat else bar.get_height() for bar in bars.patches]
    return f"{name} {_span(sizes, ax.xaxis if flat else ax.yaxis)}" if sizes else name


def _curve(ax: Axes, line: Line2D, name: str) -> str:
    """Return where a curve begins, turns and ends, the range of points, or the place of a guide."""
    x, y = _points(line)
    in_x, in_y = line.get_transform().contains_branch_seperately(ax.transData)
    if not (in_x or in_y):
        return name
    if not len(x):
        return f"{name} without a number" if len(line.get_xdata()) else name
    points = is_points(line)
    if not in_x or (in_y and not points and len(y) > 1 and not np.ptp(y)):
        return f"{name} at {_number(y[0], ax.yaxis)}"
    if not in_y or (not points and len(x) > 1 and not np.ptp(x)):
        return f"{name} at {_number(x[0], ax.xaxis)}"
    if not points:
        by_x = np.argsort(x, kind="stable")
        return f"{name} from {_path(ax, x[by_x], y[by_x])}"
    rows = _is_named(ax.yaxis)
    if len(x) == 1:
        return f"{name} {_number(x[0], ax.xaxis) if rows else _at(ax, x[0], y[0])}".strip()
    span = _span(*((x, ax.xaxis) if rows else (y, ax.yaxis)))
    return f"{name}, {len(x):,} points, {span}".removeprefix(", ")


def _path(ax: Axes, x: np.ndarray, y: np.ndarray) -> str:
    turns = []
    for what, k in (("lowest", int(y.argmin())), ("highest", int(y.argmax()))):
        beyond = min(abs(y[k] - y[0]), abs(y[k] - y[-1]))
        if beyond > BEYOND * np.ptp(y):
            turns.append(f", {what} {_at(ax, x[k], y[k])}")
    end = f" to {_at(ax, x[-1], y[-1])}" if len(x) > 1 else ""
    return _at(ax, x[0], y[0]) + end + "".join(turns)


def _at(ax: Axes, x: float, y: float) -> str:
    return f"{_number(y, ax.yaxis)} at {_number(x, ax.xaxis)}"
