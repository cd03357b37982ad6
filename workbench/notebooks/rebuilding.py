"""Make a figure again from its receipt, and report whether its numbers moved."""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from ..base.checks import checked, instance, optional, real, require
from ..figures.provenance import found, sha256
from ..figures.style import short
from .parameters import from_checkout, needs_lab

REBUILT = {
    "kind": "input, column of the CSV, or file",
    "name": "of the input, the column or the file",
    "rows": "of the column as rebuilt, <NA> otherwise",
    "absolute": "largest difference in the column's unit, <NA> without numbers",
    "relative": "largest difference over the larger of the two values, <NA> without numbers",
    "moved": "True if numbers, texts, an input or a drawing differ",
    "detail": "what differs, empty if nothing does",
}
_AGAIN = "Save the figure again"


@checked(
    tolerance=real("a number from 0 up", lambda value: value >= 0),
    notebooks=optional(instance(str | os.PathLike, "a folder")),
)
def rebuild(
    receipt: Mapping | Path | str,
    *,
    notebooks: Path | str | None = None,
    tolerance: float = 1e-9,
    timeout: float = 300,
    **places: Path | str,
) -> pd.DataFrame:
    """Execute the notebook that a receipt names, and return REBUILT: what moved since.

    The notebook runs with the recipe's parameters and saves into a temporary folder, so nothing
    saved before is touched. Inputs are compared by hash, the CSV by column, PDF and SVG by their
    drawing: versions and commit in the receipt that they contain may differ.

    Parameters
    ----------
    receipt : path of a .receipt.json next to its CSV, or the content of one, of which only hashes
        are compared
    notebooks : folder of the notebook; default is notebooks/ of the checkout
    tolerance : relative difference up to which a number has not moved
    timeout : s per cell
    places : a path parameter of the recipe and where its file is now, such as RUN="/data/run"

    Raises
    ------
    ValueError : not a receipt or none with a recipe, an unknown notebook, a figure that the
        notebook does not save
    FileNotFoundError : no receipt at the path, a missing input, no checkout and no `notebooks`
    """
    receipt, folder = _read(receipt)
    notebook = _notebook(
        receipt, Path(notebooks or from_checkout("notebooks", "pass notebooks=FOLDER"))
    )
    parameters = _parameters(receipt, places)
    _refuse_missing(receipt, places)
    with tempfile.TemporaryDirectory(prefix="rebuilt") as made:
        _execute(notebook, parameters | {"FIGURES": made}, timeout)
        again, _ = _read(_saved(receipt["figure"], Path(made), notebook))
        rows = [
            *_inputs(receipt["inputs"], again["inputs"]),
            *_columns(receipt, folder, Path(made), tolerance),
            *_files(receipt, folder, Path(made)),
        ]
    table = pd.DataFrame(rows, columns=list(REBUILT))
    numbers = {"rows": "Int64", "absolute": "Float64", "relative": "Float64", "moved": bool}
    return table.astype(numbers | dict.fromkeys(("kind", "name", "detail"), "str"))


# --- what to execute ------------------------------------------------------------------------------


def _read(receipt) -> tuple[dict, Path | None]:
    """Return a receipt and its folder, None for content without a file."""
    folder = None
    if isinstance(receipt, str | os.PathLike):
        path = Path(receipt)
        folder = path.parent
        if not os.path.isfile(path):
            raise FileNotFoundError(f"{path}: expected a .receipt.json, found no such file")
        try:
            receipt = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            raise ValueError(f"{path}: is not a receipt. Pass a .receipt.json") from None
    needed = ("figure", "inputs", "recipe", "written")
    known = isinstance(receipt, Mapping) and all(name in receipt for name in needed)
    require(known, "receipt", f"one with {', '.join(needed)}", receipt, _AGAIN)
    _check_content(receipt)
    return dict(receipt), folder


def _check_content(receipt: Mapping):
    """Raise ValueError for values that save() never writes."""
    text, names = instance(str, "a text", _AGAIN), instance(Mapping, "names with values", _AGAIN)
    recipe = receipt["recipe"] or {"notebook": "", "parameters": {}}
    text(receipt["figure"], "figure")
    names(receipt["inputs"], "inputs")
    names(receipt["written"], "written")
    names(recipe, "recipe")
    text(recipe.get("notebook"), "notebook")
    names(recipe.get("parameters"), "parameters")
    paths = recipe.get("paths", [])
    instance(list, "a list", _AGAIN)(paths, "paths")
    for name in paths:
        text(name, "paths")
        text(recipe["parameters"].get(name), name)
    for name in (f"{receipt['figure']}.pdf", *receipt["written"]):
        require(Path(name).name == name, "written", "plain file names", name, _AGAIN)


def _notebook(receipt: dict, notebooks: Path) -> Path:
    do = "If a cell or a widget saved it, pass save(..., recipe=RECIPE) there"
    require(receipt["recipe"], receipt["figure"], "a recipe in its receipt", found="none", do=do)
    name, known = receipt["recipe"]["notebook"], {p.stem: p for p in notebooks.glob("*.ipynb")}
    expected = f"one of {', '.join(sorted(known)) or 'none'} in {notebooks.name}/"
    require(name in known, "notebook", expected, name)
    return known[name]


def _parameters(receipt: dict, places: Mapping) -> dict:
    """Return the recipe's parameters, with paths that hold in any folder. A name is never code."""
    parameters, paths = dict(receipt["recipe"]["parameters"]), receipt["recipe"].get("paths", [])
    for name in parameters:
        plain = isinstance(name, str) and name.isidentifier() and name.isupper() and name[0] != "_"
        require(plain, "recipe", "names of parameters", name, _AGAIN)
    for name in places:
        require(name in paths, name, f"a path parameter: {', '.join(paths) or 'there is none'}")
    for name in paths:
        place = places.get(name) or found(parameters[name])
        optional(instance(str | os.PathLike, "a path"))(place, name)
        if place is None or not os.path.exists(place):
            raise FileNotFoundError(
                f"{name}: expected {place or parameters[name]}, which is not there. Pass "
                f"rebuild(receipt, {name}=...)"
            )
        parameters[name] = str(Path(place).resolve())
    return parameters


def _refuse_missing(receipt: dict, places: Mapping):
    for name in receipt["inputs"]:
        plain = name.split(" #")[0]
        if found(plain) is None and not places and "/" in plain:
            raise FileNotFoundError(
                f"inputs: expected {plain}, from which {receipt['figure']} was made, found no such "
                "file. Fetch it, or go to the folder in which the figure was saved"
            )


def _execute(notebook: Path, parameters: dict, timeout: float):
    try:  # here, because all else works without what executes notebooks
        from .execution import CellExecutionError, execute
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(needs_lab(error)) from None
    try:
        execute(notebook, Path.cwd(), timeout, parameters)
    except CellExecutionError as error:
        why = f"{error.ename}: {short(error.evalue, 300)}"
        raise ValueError(f"{notebook.stem}: expected a notebook that runs, got {why}") from error


def _saved(figure: str, made: Path, notebook: Path) -> Path:
    path = made / f"{figure}.receipt.json"
    saved = [each.name.removesuffix(".receipt.json") for each in sorted(made.glob("*.json"))]
    expected = f"a figure that {notebook.stem} saves: {', '.join(saved) or 'it saves none'}"
    require(path.is_file(), "figure", expected, figure)
    return path


# --- what moved -----------------------------------------------------------------------------------


def _row(kind: str, name: str, moved: bool, detail: str = "", numbers=(pd.NA,) * 3) -> tuple:
    return (kind, name, *numbers, bool(moved), detail)


def _inputs(before: Mapping, after: Mapping):
    """Yield one row per input; one that moved to another folder is found by its file name."""
    last = {Path(name).name: digest for name, digest in after.items()}
    for name, digest in before.items():
        now = after.get(name, last.get(Path(name).name))
        detail = "" if now == digest else "not read now" if now is None else "another content"
        yield _row("input", name, now != digest, detail)
    known = {Path(name).name for name in before}
    for name in after:
        if name not in before and Path(name).name not in known:
            yield _row("input", name, True, "not read before")


def _columns(receipt: dict, folder: Path | None, made: Path, tolerance: float):
    csv = f"{receipt['figure']}.csv"
    if folder is None or not (folder / csv).is_file():
        yield _bytes(csv, receipt["written"].get(csv) == sha256(made / csv))
        return
    before, after = pd.read_csv(folder / csv), pd.read_csv(made / csv)
    for name in dict.fromkeys([*before, *after]):
        if name not in after or name not in before:
            gone = "not there any more" if name in before else "not there before"
            yield _row("column", name, True, gone)
        else:
            yield _compared(name, before[name], after[name], tolerance)


def _compared(name: str, before: pd.Series, after: pd.Series, tolerance: float) -> tuple:
    """Return the row of a column that both tables have; gaps are equal."""
    n = len(after)
    if len(before) != n:
        return _row("column", name, True, f"{len(before)} rows before", (n, pd.NA, pd.NA))
    if not all(pd.api.types.is_numeric_dtype(each) for each in (before, after)):
        texts = before.astype("str").fillna("") != after.astype("str").fillna("")
        detail = f"{texts.sum()} other texts" if texts.any() else ""
        return _row("column", name, texts.any(), detail, (n, pd.NA, pd.NA))
    old, new = before.to_numpy(float), after.to_numpy(float)
    same = (old == new) | (np.isnan(old) & np.isnan(new))
    with np.errstate(invalid="ignore"):  # infinities
        off = np.where(same, 0.0, np.abs(new - old))
    off = np.nan_to_num(off, nan=np.inf)
    largest = np.maximum(np.nan_to_num(np.abs(old)), np.nan_to_num(np.abs(new)))
    share = np.divide(off, largest, out=np.zeros(n), where=off > 0)
    share = np.nan_to_num(share, nan=1.0, posinf=1.0)
    absolute, relative = (float(each.max(initial=0.0)) for each in (off, share))
    moved = relative > tolerance
    return _row("column", name, moved, f"{(share > tolerance).sum()} rows moved" if moved else "",
                (n, absolute, relative))  # fmt: skip


def _files(receipt: dict, folder: Path | None, made: Path):
    for name, digest in receipt["written"].items():
        if not name.endswith((".pdf", ".svg")):
            continue
        same = sha256(made / name) == digest
        if same or folder is None or not (folder / name).is_file():
            yield _bytes(name, same)
        elif _drawing(folder / name) == _drawing(made / name):
            yield _row("file", name, False, "same drawing, the receipt in it differs")
        else:
            yield _row("file", name, True, "another drawing")


def _bytes(name: str, same: bool) -> tuple:
    return _row("file", name, not same, "same bytes" if same else "other bytes")


def _drawing(path: Path) -> bytes:
    """Return a drawing without its metadata: the streams of a PDF, the elements of an SVG."""
    content = path.read_bytes()
    if path.suffix == ".svg":
        return content.partition(b"</metadata>")[2]
    return b"".join(re.findall(rb"(?<!end)stream\r?\n(.*?)endstream", content, re.S))
