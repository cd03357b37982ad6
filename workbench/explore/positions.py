"""Positions of an explorer's controls: how they are set, worded, and chosen for a static page."""

from collections.abc import Iterable, Mapping
from math import isclose, prod

import numpy as np
from ipywidgets import Checkbox, Dropdown
from traitlets import TraitError

from ..base.checks import require
from ..figures.style import is_number
from .static import Axis

PICTURES = 60  # at most, per static page


def put(control, value, name: str):
    """Move a control, or raise ValueError if it has no such position."""
    wanted = tuple(value) if isinstance(value, list) else value
    try:
        control.value = wanted
    except (TraitError, TypeError):
        pass
    require(not differs(control.value, wanted), f"restore {name}", "a position it has", value)


def extent(control):
    """Return what a control can be moved to."""
    return getattr(control, "options", None) or control.max


def differs(value, start) -> bool:
    """Whether a control was moved; the page may return a number with other last digits."""
    if isinstance(value, tuple) and isinstance(start, tuple):
        return len(value) != len(start) or any(map(differs, value, start))
    if isinstance(value, float) and isinstance(start, float):
        return not isclose(value, start, rel_tol=1e-6)
    return value != start


def in_words(control, value) -> str:
    """Return a position as a page writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " to ".join(in_words(control, each) for each in value)
    for option in getattr(control, "options", ()):
        if isinstance(option, tuple) and option[1] == value:
            return str(option[0])
    return in_digits(value) if isinstance(value, float) else str(value)


def in_digits(value: float, digits: int = 3) -> str:
    """Return a number without an exponent: 0.00123, 12.3, 20,000."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return np.format_float_positional(value, digits, fractional=False, trim="-")


# --- static pages ---------------------------------------------------------------------------------


def positions(controls: Mapping, wanted: Mapping) -> dict:
    """Return positions by control that make at most PICTURES pictures.

    wanted : positions by control; None means all. Those that the control does not offer are left
        out, its current one is added. The first controls keep the most positions; a control with
        only one is left out.
    """
    places = {name: _among(name, controls[name], values) for name, values in wanted.items()}
    sizes = {name: len(values) for name, values in places.items()}
    while prod(sizes.values()) > PICTURES:
        most = max(sizes.values())
        sizes[[name for name, size in sizes.items() if size == most][-1]] -= 1
    kept = {name: _spread(places[name], n, controls[name].value) for name, n in sizes.items()}
    return {name: values for name, values in kept.items() if len(values) > 1}


def axis(control, values: list) -> Axis:
    """Return a control with these positions as an axis of a static page."""
    start = next(i for i, value in enumerate(values) if not differs(value, control.value))
    look = "select" if isinstance(control, Dropdown) else "range"
    look = "checkbox" if isinstance(control, Checkbox) else look
    written = [in_words(control, value) for value in values]
    return Axis(control.description, control.tooltip or "", written, start, look)


def _among(name: str, control, wanted) -> list:
    """Return the positions wanted that a control offers, and its current one."""
    if isinstance(control, Checkbox):
        return [False, True]
    is_range = isinstance(control.value, tuple)
    offered = None if is_range else getattr(control, "options", None)
    if offered is not None:
        offered = [each[1] if isinstance(each, tuple) else each for each in offered]
    if wanted is None and offered is None and isinstance(control.value, int):
        wanted = range(control.min, control.max + 1)
    wanted = offered if wanted is None else wanted
    several = isinstance(wanted, Iterable) and not isinstance(wanted, str)
    require(several, f"static {name}", "a list of positions", wanted)
    wanted = list(dict.fromkeys(tuple(w) if isinstance(w, list) else w for w in wanted))
    if offered is not None:
        return [each for each in offered if each in wanted or each == control.value]
    for each in wanted:
        ends = each if isinstance(each, tuple) and is_range else (each,)
        known = len(ends) == 1 + is_range and all(map(is_number, ends))
        require(known, f"static {name}", "positions it has", each)
    if all(differs(value, control.value) for value in wanted):
        wanted.append(control.value)
    return sorted(wanted)


def _spread(values: list, n: int, now) -> list:
    """Return n of the values, evenly spread, with the current one among them."""
    at = next(i for i, value in enumerate(values) if not differs(value, now))
    picked = {i * (len(values) - 1) // max(1, n - 1) for i in range(n)}
    picked = picked - {min(picked, key=lambda i: abs(i - at))} | {at}
    return [values[i] for i in sorted(picked)]
