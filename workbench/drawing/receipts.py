"""Save a figure with all it takes to check it: PDF, SVG, its data as CSV, and a receipt."""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from .. import files
from ..checks import shown
from .style import FIXED, check_figure, filled


def save(
    fig: Figure,
    name: str,
    data: pd.DataFrame,
    folder: Path | str | None = None,
    inputs: Iterable[Path | str] = (),
    parameters: Mapping | None = None,
    *,
    recipe: Mapping | None = None,
    caption: str | None = None,
) -> Path:
    """Write a figure with all it takes to check it, and return the path of the PDF.

    Writes `name`.pdf, .svg, .csv (the data drawn) and .receipt.json: SHA-256 of the input files
    and of the files written, versions of the packages, the parameters. The same call gives the
    same bytes in every run.

    Parameters
    ----------
    name : plain file name without a suffix: 'scaling', not 'scaling.pdf'
    folder : default is notebooks/figures of the checkout, else figures of the current folder
    inputs : files, folders of files or patterns (`runs/*.json.gz`) that the figure was made from
    parameters : what was chosen, with its unit in the name; numbers, strings, dataclasses
    recipe : what `settle` returned: the notebook and its parameters, for `rebuild`
    caption : the text below the figure, which says what is seen and where the data come from

    Raises
    ------
    ValueError : no figure, the name holds a path or suffix, the folder cannot be made, the data are
        empty, a parameter is no plain value
    FileNotFoundError : an input does not exist
    """
    check_figure(fig, "save")
    folder, read = target(name, folder, inputs)
    data = filled(data, {}, f"save {name}: data", "the table drawn")
    receipt = {
        "figure": name,
        "inputs": _hashes(read),
        "parameters": _plain(dict(parameters or {}), "parameters"),
        "versions": _versions(),
        "recipe": None if recipe is None else _plain(dict(recipe), "recipe"),
        "caption": caption,
    }
    _make(folder)
    paths = {suffix: folder / f"{name}.{suffix}" for suffix in ("pdf", "svg", "csv")}
    with mpl.rc_context(FIXED):
        dateless = {"Creator": "osf-workbench", "CreationDate": None, "Producer": None}
        fig.savefig(paths["pdf"], metadata=dateless)
        fig.savefig(paths["svg"], metadata={"Creator": "osf-workbench", "Date": None})
    data.to_csv(paths["csv"], index=False, lineterminator="\n")
    if caption:
        paths["caption.txt"] = folder / f"{name}.caption.txt"
        paths["caption.txt"].write_text(caption.strip() + "\n", encoding="utf-8")
    receipt["written"] = {path.name: _sha256(path) for path in paths.values()}
    text = json.dumps(receipt, indent=2, sort_keys=True, allow_nan=False)
    (folder / f"{name}.receipt.json").write_text(text + "\n", encoding="utf-8")
    return paths["pdf"]


REPOSITORY = Path(__file__).resolve().parents[2]


def _default_folder() -> Path:
    notebooks = REPOSITORY / "notebooks"
    return notebooks / "figures" if notebooks.is_dir() else Path("figures")


SUFFIXES = (".pdf", ".svg", ".csv", ".json", ".png", ".eps", ".ps", ".jpg", ".jpeg", ".tif")


def target(name: str, folder=None, inputs=()) -> tuple[Path, list[Path]]:
    """Return the folder and input files of save(), or raise as it does; nothing is written."""
    plain = isinstance(name, str) and Path(name).name == name and name not in ("", ".", "..")
    if not plain or "\\" in name or name.lower().endswith(SUFFIXES):
        raise ValueError(
            f"save: name must be a plain file name without folder or suffix, such as 'scaling'; "
            f"got {shown(name)}"
        )
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise ValueError(f"save: folder: expected a path, got {type(folder).__name__}")
    folder = _default_folder() if folder is None else Path(folder)
    above = next(p for p in (folder, *folder.absolute().parents) if os.path.exists(p))
    if not above.is_dir():
        raise ValueError(f"save: folder {folder}: {above} is a file; name another folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"save: folder {folder}: {above} is not writable; name another folder")
    return folder, _files(inputs)


def _make(folder: Path):
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"save: folder {folder} cannot be made ({error.strerror}); name another folder"
        ) from None


def _files(inputs) -> list[Path]:
    """Every file of the inputs; a folder's are those below it."""
    inputs = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    if isinstance(inputs, pd.DataFrame | Mapping) or not isinstance(inputs, Iterable):
        raise ValueError(f"save: inputs: expected paths, got {type(inputs).__name__}; pass [path]")
    found = set()
    for path in inputs:
        if isinstance(path, str | os.PathLike) and os.path.isdir(path):
            found.update(file for file in Path(path).rglob("*") if file.is_file())
        else:
            found.update(_named(path))
    return sorted(found)


def _named(path) -> list[Path]:
    try:
        return files.named(path)[0]
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"save: inputs: {error}") from None


def _relative(path: Path) -> str:
    """Path from the repository's top or the current folder, else the name: never absolute."""
    for top in (REPOSITORY, Path.cwd()):
        if path.resolve().is_relative_to(top):
            return path.resolve().relative_to(top).as_posix()
    return path.name


def _hashes(paths) -> dict[str, str]:
    """sha256 of each file by its name; files of one name are numbered, so that none is lost."""
    found: dict[str, str] = {}
    for path in paths:
        name, n = _relative(path), sum(key.split(" #")[0] == _relative(path) for key in found)
        found[f"{name} #{n + 1}" if n else name] = _sha256(path)
    return found


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value, where: str):
    """The value as JSON holds it; ValueError names the parameter that is no plain value."""
    if is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | _plain(asdict(value), where)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple | range | np.ndarray):
        return [_plain(item, where) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Path):
        return _relative(value)
    finite = not isinstance(value, float) or np.isfinite(value)
    if value is None or (isinstance(value, str | bool | int | float) and finite):
        return value
    raise ValueError(
        f"save: {where} must be finite numbers, strings or dataclasses, got {shown(value)}; "
        "name a table or a run among the inputs by its file"
    )


def _versions() -> dict:
    """Versions of Python, of this package and of the packages loaded that shape the result."""
    loaded = ("numpy", "pandas", "matplotlib", "seaborn", "statsmodels", "scipy")
    names = {name: name for name in loaded if name in sys.modules} | {"workbench": "osf-workbench"}
    found = {"python": platform.python_version()}
    for name, distribution in names.items():
        try:
            found[name] = version(distribution)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
