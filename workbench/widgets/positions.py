"""Positions of an explorer's controls: those of a static page, and how they are written."""

from collections.abc import Mapping
from math import prod

from ipywidgets import Checkbox, Dropdown

from .static import Axis

PICTURES = 60  # of a static page, at most


def positions(controls: Mapping, wanted: Mapping) -> dict:
    """Return the positions of the controls wanted that make at most PICTURES pictures.

    Where a control stands is among its positions, None stands for all that it offers, and what it
    does not offer is left out. The first controls keep most; what has one position is left out.
    """
    places = {name: _among(controls[name], values) for name, values in wanted.items()}
    while prod(map(len, places.values())) > PICTURES:
        most = max(map(len, places.values()))
        name = [name for name, values in places.items() if len(values) == most][-1]
        places[name] = _thinned(places[name], controls[name].value)
    return {name: values for name, values in places.items() if len(values) > 1}


def axis(control, values: list) -> Axis:
    """Return what a static page shows of a control with these positions."""
    start = next(i for i, value in enumerate(values) if not differs(value, control.value))
    look = "select" if isinstance(control, Dropdown) else "range"
    look = "checkbox" if isinstance(control, Checkbox) else look
    written = [in_words(control, value) for value in values]
    return Axis(control.description, control.tooltip or "", written, start, look)


def in_words(control, value) -> str:
    """Return a position as a page writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " to ".join(in_words(control, each) for each in value)
    for option in getattr(control, "options", ()):
        if isinstance(option, tuple) and option[1] == value:
            return str(option[0])
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def differs(value, start) -> bool:
    """Whether a control was moved; the page may give back a number with other last digits."""
    if isinstance(value, tuple) and isinstance(start, tuple):
        return any(map(differs, value, start))
    if isinstance(value, float) and isinstance(start, float):
        return abs(value - start) > 1e-6 * max(abs(value), abs(start))
    return value != start


def _among(control, wanted) -> list:
    """Return the positions wanted that a control offers, and the one where it stands."""
    if isinstance(control, Checkbox):
        return [False, True]
    offered = None if isinstance(control.value, tuple) else getattr(control, "options", None)
    if offered is not None:
        offered = [each[1] if isinstance(each, tuple) else each for each in offered]
    if wanted is None:
        wanted = offered or range(control.min, control.max + 1)
    found = [value for value in wanted if offered is None or value in offered]
    if all(differs(value, control.value) for value in found):
        found.append(control.value)
    return [each for each in offered if each in found] if offered else sorted(found)


def _thinned(values: list, now) -> list:
    """Return the values without one amid them, which is not where the control stands."""
    others = [value for value in values if differs(value, now)]
    dropped = others[len(others) // 2]
    return [value for value in values if value is not dropped]
