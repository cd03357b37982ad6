"""Parameters and data of a notebook: what may be changed, and what was, so figures can be remade.

A cell assigns parameters in upper case and ends in `DEFAULTS = defaults(globals())`; the next one
begins with `RECIPE = settle("00-start-here", DEFAULTS, globals())`. A tool such as papermill puts
its values between the two; an unknown name is an error.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..base.checks import instance, refuse, require
from ..figures.provenance import REPOSITORY

# Texts that may be words, such as a venue, a collective or a model: a folder of that name is not
# meant.
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


def needs_lab(error: ModuleNotFoundError) -> str:
    """Return what to install if a package that executes notebooks is missing."""
    return f"{error.name}: is not installed. Run pip install 'osf-workbench[lab]'"


@dataclass
class Defaults:
    """Names that existed when the cell of parameters ended, and the values of the parameters.

    settled : they were compared once; later cells add names
    """

    names: frozenset
    values: dict = field(default_factory=dict)
    settled: bool = False


def defaults(namespace: Mapping) -> Defaults:
    """Return the parameters of a cell, which are its names in upper case, and their values."""
    values = {name: value for name, value in namespace.items() if _is_parameter(name)}
    return Defaults(frozenset(namespace), values)


def settle(notebook: str, known: Defaults, namespace: dict) -> dict:
    """Return the recipe of a notebook's figures: its name and its plain parameters.

    `figures.save` takes the recipe. A text given for a path becomes a Path in the namespace; a text
    that names an existing file becomes a Path in the recipe, so that `rebuild` finds it from any
    folder. Raises ValueError for an unknown parameter, a text for a number, a number for a text.
    """
    if not known.settled:
        _refuse_unknown(notebook, known, namespace)
    known.settled = True
    for name, default in known.values.items():
        namespace[name] = _like(name, namespace[name], default)
    values = {name: _found(name, namespace[name]) for name in known.values if name != "FIGURES"}
    plain = {name: value for name, value in values.items() if _is_plain(value)}
    return {"notebook": notebook, "parameters": plain}


def _is_parameter(name: str) -> bool:
    return name.isupper() and not name.startswith("_")


def _refuse_unknown(notebook: str, known: Defaults, namespace: Mapping):
    new = [name for name in namespace if name not in known.names and not name.startswith("_")]
    unknown = [name for name in new if not isinstance(namespace[name], Defaults)]
    if unknown:
        near = difflib.get_close_matches(unknown[0].upper(), known.values, 1)
        expected, do = ", ".join(known.values), f"Did you mean {near[0]}?" if near else ""
        refuse(f"{notebook} parameter", f"one of {expected}", unknown[0], do)


def _like(name: str, value, default):
    """Return the value, as a Path if the default is one; refuse one of another kind."""
    if isinstance(default, Path) and isinstance(value, str):
        return Path(value)
    if isinstance(default, int | float) and not isinstance(default, bool):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        require(number, name, f"a number such as {default!r}", value)
    if isinstance(default, str | Path):
        instance(str | Path | None, f"a text such as {str(default)!r}")(value, name)
    return value


def _found(name: str, value):
    """Return a text as a Path if it names an existing file and is not one of our words."""
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
