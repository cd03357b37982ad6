"""Parameters of a notebook: what may be changed, and what was, so that its figures can be remade.

A cell of a notebook assigns them in upper case and ends in `DEFAULTS = defaults(globals())`; the
next one begins with `RECIPE = settle("00-start-here", DEFAULTS, globals())`. Between the two stand
the values that a tool such as papermill puts there, and a name that nobody knows is an error.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..base.checks import shown
from ..figures.provenance import REPOSITORY

# Texts that may be words, such as a venue, a collective or a model: a folder that happens to be
# named like one is not meant.
_WORDS = frozenset({"MODEL", "OP", "SIZES", "VENUE"})


def shipped_data() -> Path:
    """Return the folder data/ of the checkout: published timings, recorded runs, tables.

    Raises FileNotFoundError if the package was installed without its repository.
    """
    return from_checkout("data", "use paths of your own")


def from_checkout(folder: str, otherwise: str) -> Path:
    """Return a folder of the checkout that this package runs from, or raise FileNotFoundError."""
    if not all(map(Path.exists, (REPOSITORY / "pyproject.toml", REPOSITORY / folder))):
        raise FileNotFoundError(
            f"{folder}: expected this folder next to the package workbench, in a clone of its "
            f"repository; {REPOSITORY} is not one. Clone the repository, or {otherwise}"
        )
    return REPOSITORY / folder


@dataclass
class Defaults:
    """Names that were there when the cell of parameters ended, and the values of the parameters.

    `settled` tells that they were compared once: later cells make names of their own.
    """

    names: frozenset
    values: dict = field(default_factory=dict)
    settled: bool = False


def defaults(namespace: Mapping) -> Defaults:
    """Return the parameters of a cell, which are its upper-case names, as they stand now."""
    values = {name: value for name, value in namespace.items() if _is_parameter(name)}
    return Defaults(frozenset(namespace), values)


def settle(notebook: str, known: Defaults, namespace: dict) -> dict:
    """Return the recipe of a notebook's figures: its name, and its parameters that are plain.

    A text given for a path becomes a Path in the namespace; in the recipe one becomes a Path that
    names something there, so that `figures.rebuild` finds it from any folder. `figures.save` takes
    the recipe. Raises ValueError for a parameter that the notebook does not have, and for a text
    where it has a number or the other way round.
    """
    if not known.settled:
        _refuse_unknown(notebook, known, namespace)
    known.settled = True
    for name, default in known.values.items():
        namespace[name] = _like(name, namespace[name], default)
    told = {name: _found(name, namespace[name]) for name in known.values if name != "FIGURES"}
    return {
        "notebook": notebook,
        "parameters": {name: value for name, value in told.items() if _is_plain(value)},
    }


def _is_parameter(name: str) -> bool:
    return name.isupper() and not name.startswith("_")


def _refuse_unknown(notebook: str, known: Defaults, namespace: Mapping):
    new = [name for name in namespace if name not in known.names and not name.startswith("_")]
    unknown = [name for name in new if not isinstance(namespace[name], Defaults)]
    if unknown:
        near = difflib.get_close_matches(unknown[0].upper(), known.values, 1)
        raise ValueError(
            f"{notebook}: unknown parameter {unknown[0]}"
            + (f"; did you mean {near[0]}?" if near else ".")
            + f" It has {', '.join(known.values)}"
        )


def _like(name: str, value, default):
    """Return the value, as a Path where the default is one; refuse one of another nature."""
    if isinstance(default, Path) and isinstance(value, str):
        return Path(value)
    number = isinstance(default, int | float) and not isinstance(default, bool)
    if number and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{name}: expected a number such as {default!r}, got {shown(value)}")
    if isinstance(default, str | Path) and not isinstance(value, str | Path | None):
        raise ValueError(f"{name}: expected a text such as {str(default)!r}, got {shown(value)}")
    return value


def _found(name: str, value):
    """Return a text as a Path where it names something there, and is no word of ours."""
    word = name in _WORDS and not Path(str(value)).suffix
    return Path(value) if isinstance(value, str) and not word and _exists(value) else value


def _exists(text: str) -> bool:
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):  # too long for a name, or with a null in it
        return False


def _is_plain(value) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | bool | int | float | Path)
