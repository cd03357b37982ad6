"""Where a figure comes from: files and their sources, parameters, versions, the commit."""

import hashlib
import os
import platform
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from pathlib import Path
from subprocess import PIPE

import numpy as np

from ..base.checks import require

REPOSITORY = Path(__file__).resolve().parents[2]
HEAD = 65_536  # letters of a table in which its sources are looked for


def relative(path: Path) -> str:
    """Return a path from the repository's top or the current folder, else its name."""
    whole = path.resolve()
    for top in (REPOSITORY, Path.cwd()):
        if whole.is_relative_to(top) and whole != top:
            return whole.relative_to(top).as_posix()
    return whole.name if path.name in ("", "..") else path.name


def found(name: str) -> Path | None:
    """Return where a file or folder that `relative` named is now, or None."""
    if not name or Path(name).is_absolute() or ".." in Path(name).parts:  # as it never does
        return None
    places = (top / name for top in (REPOSITORY, Path.cwd()))
    return next((place for place in places if os.path.exists(place)), None)


def by_name(paths) -> dict[str, Path]:
    """Return each file by its name; files of one name are numbered, so that none is lost."""
    named, seen = {}, Counter()
    for path in paths:
        name = relative(path)
        seen[name] += 1
        named[f"{name} #{seen[name]}" if seen[name] > 1 else name] = path
    return named


def sha256(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None


def sources(paths: Mapping[str, Path]) -> dict[str, list[str]]:
    """Return what CSV files give as their source, in lines `# source:` at their head."""
    found = {name: _sources(path) for name, path in paths.items() if path.suffix.lower() == ".csv"}
    return {name: lines for name, lines in found.items() if lines}


def _sources(path: Path) -> list[str]:
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        lines = takewhile(lambda line: line.startswith("#"), file.read(HEAD).split("\n"))
        found = [re.match(r"#\s*source:\s*(.*\S)", line) for line in lines]
    return [match[1] for match in found if match]


def as_plain(value, where: str):
    """Return the value as JSON writes it, or raise ValueError that names the parameter."""
    try:
        return _as_plain(value, where)
    except RecursionError:
        raise ValueError(f"save {where}: contains itself, or is nested too deep") from None


def _as_plain(value, where: str):
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | _as_plain(asdict(value), where)
    if isinstance(value, Mapping):
        return {str(key): _as_plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, np.generic | np.ndarray) and not np.ma.isMaskedArray(value):
        value = value.tolist()
    if isinstance(value, list | tuple | range):
        return [_as_plain(item, where) for item in value]
    if isinstance(value, Path):
        return relative(value)
    finite = not isinstance(value, float) or np.isfinite(value)
    plain = value is None or (isinstance(value, str | bool | int | float) and finite)
    expected = "finite numbers, strings or dataclasses"
    do = "For a table or a run, name its file among the inputs"
    require(plain, f"save {where}", expected, value, do)
    return value


def plain_recipe(recipe) -> dict | None:
    """Return a recipe as JSON writes it; `paths` are the parameters that name files or folders."""
    if recipe is None:
        return None
    known = isinstance(recipe, Mapping) and set(recipe) >= {"notebook", "parameters"}
    known = known and isinstance(recipe["parameters"], Mapping)
    require(known, "save recipe", "what settle(...) returned, notebook and parameters", recipe)
    values = {name: _as_path(value) for name, value in recipe["parameters"].items()}
    return {
        "notebook": str(recipe["notebook"]),
        "parameters": as_plain(values, "recipe"),
        "paths": sorted(name for name, value in values.items() if isinstance(value, Path)),
    }


def _as_path(value):
    """Return a text that is the path of something as a Path; otherwise it would stay absolute."""
    names_a_file = isinstance(value, str) and os.sep in value and os.path.exists(value)
    return Path(value) if names_a_file else value


def versions() -> dict:
    """Return versions of Python, of this package and of loaded packages that shape the result."""
    loaded = ("numpy", "pandas", "matplotlib", "seaborn", "statsmodels", "scipy")
    names = {name: name for name in loaded if name in sys.modules} | {"workbench": "osf-workbench"}
    found = {"python": platform.python_version()}
    for name, distribution in names.items():
        try:
            found[name] = version(distribution)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit() -> dict | None:
    """Return the checkout's commit and whether its files differ from it; None without git."""
    top, _, short = _git("rev-parse", "--show-toplevel", "--short=12", "HEAD").rpartition("\n")
    if not top or Path(top).resolve() != REPOSITORY:  # none, or another's around an installation
        return None
    return {"commit": short, "changed": bool(_git("status", "--porcelain"))}


def _git(*command: str) -> str:
    """Return what git reports of the checkout, empty if it fails; it takes no lock."""
    quiet = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    call = ["git", "-C", str(REPOSITORY), *command]
    try:
        return subprocess.check_output(call, stderr=PIPE, text=True, env=quiet, timeout=20).strip()
    except (OSError, subprocess.SubprocessError):
        return ""
