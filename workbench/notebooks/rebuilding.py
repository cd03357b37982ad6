"""Make a figure again from its receipt, and say whether its numbers moved."""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from ..base.checks import shown
from ..figures.provenance import REPOSITORY, found, sha256
from ..figures.style import is_number, short

REBUILT = {
    "kind": "input, column of the CSV, or file",
    "name": "of the input, the column or the file",
    "rows": "of the column as rebuilt, <NA> elsewhere",
    "absolute": "largest difference in the column's own unit, <NA> where there are no numbers",
    "relative": "largest difference over the larger of the two values, <NA> likewise",
    "moved": "True where numbers, texts, an input or a drawing differ",
    "detail": "what differs, empty where nothing does",
}
FOLDER = REPOSITORY / "notebooks"


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
    saved before is touched. Compared are the inputs' hashes, each column of the CSV, and the
    drawings in PDF and SVG; of these the receipt within may differ, by versions or the commit.

    Parameters
    ----------
    receipt : path of a .receipt.json, beside which the CSV lies, or its content, of which only
        hashes are compared
    notebooks : folder of the notebook; default is notebooks/ of the checkout
    tolerance : relative difference of numbers up to which they have not moved
    timeout : of a cell, s
    places : a path parameter of the recipe and where its file lies now, such as RUN="/data/run"

    Raises
    ------
    ValueError : no receipt, none with a recipe, no such notebook, a parameter that is no name, a
        figure that the notebook does not save
    FileNotFoundError : no receipt at the path, an input that is not there
    """
    if not is_number(tolerance) or tolerance < 0:
        raise ValueError(f"rebuild: tolerance: expected 0 or more, got {shown(tolerance)}")
    if not isinstance(notebooks, str | os.PathLike | None):
        raise ValueError(f"rebuild: notebooks: expected a folder, got {shown(notebooks)}")
    receipt, folder = _read(receipt)
    notebook = _notebook(receipt, Path(notebooks or FOLDER))
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
    """Return a receipt and its folder, which content alone does not have."""
    folder = None
    if isinstance(receipt, str | os.PathLike):
        path = Path(receipt)
        folder = path.parent
        if not os.path.isfile(path):
            raise FileNotFoundError(f"rebuild: {path}: no such file; pass a .receipt.json")
        try:
            receipt = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            raise ValueError(f"rebuild: {path}: is no receipt; pass a .receipt.json") from None
    needed = ("figure", "inputs", "recipe", "written")
    if not isinstance(receipt, Mapping) or not all(name in receipt for name in needed):
        raise ValueError(
            f"rebuild: expected a receipt with {', '.join(needed)}, got {shown(receipt)}; "
            "save the figure again"
        )
    _refuse_changed(receipt, {"figure": str, "inputs": Mapping, "written": Mapping})
    recipe = receipt["recipe"] or {"notebook": "", "parameters": {}}
    _refuse_changed({"recipe": recipe}, {"recipe": Mapping})
    _refuse_changed(recipe, {"notebook": str, "parameters": Mapping})
    paths = {"paths": recipe.get("paths", [])}
    _refuse_changed(paths, {"paths": list})
    for name in paths["paths"]:
        known = {name: recipe["parameters"].get(name)} if isinstance(name, str) else {"paths": name}
        _refuse_changed(known, dict.fromkeys(known, str))
    for name in (f"{receipt['figure']}.pdf", *receipt["written"]):
        if Path(name).name != name:
            raise ValueError(f"rebuild: {shown(name)} is no plain file name; save the figure again")
    return dict(receipt), folder


def _refuse_changed(told: Mapping, kinds: Mapping):
    """Raise ValueError for what save() never writes."""
    words = {str: "a text", list: "a list", Mapping: "names and what they are"}
    for name, kind in kinds.items():
        if not isinstance(told.get(name), kind):
            raise ValueError(
                f"rebuild: {name}: expected {words[kind]} in a receipt, got "
                f"{shown(told.get(name))}; save the figure again"
            )


def _notebook(receipt: dict, notebooks: Path) -> Path:
    recipe = receipt["recipe"]
    if not recipe:
        raise ValueError(
            f"rebuild: {receipt['figure']} was saved without a recipe, from a cell or a widget; "
            "run that again, and pass save(..., recipe=RECIPE) to have it rebuilt from now on"
        )
    known = {path.stem: path for path in sorted(notebooks.glob("*.ipynb"))}
    if recipe["notebook"] not in known:
        have = f"it has {', '.join(known)}" if known else "it has none; work in a clone"
        raise ValueError(
            f"rebuild: no notebook {shown(recipe['notebook'])} in {notebooks.name}/; {have}"
        )
    return known[recipe["notebook"]]


def _parameters(receipt: dict, places: Mapping) -> dict:
    """Return the recipe's parameters, with paths that hold in any folder. A name is never code."""
    parameters, paths = dict(receipt["recipe"]["parameters"]), receipt["recipe"].get("paths", [])
    for name in parameters:
        if not (
            isinstance(name, str) and name.isidentifier() and name.isupper() and name[0] != "_"
        ):
            raise ValueError(f"rebuild: recipe: {shown(name)} is no name of a parameter")
    if unknown := [name for name in places if name not in paths]:
        has = ", ".join(paths) or "none"
        raise ValueError(f"rebuild: {unknown[0]} is no path among the parameters; there is {has}")
    for name in paths:
        place = places.get(name) or found(parameters[name])
        if not isinstance(place, str | os.PathLike | None):
            raise ValueError(f"rebuild: {name}: expected a path, got {shown(place)}")
        if place is None or not os.path.exists(place):
            raise FileNotFoundError(
                f"rebuild: {name}: {place or parameters[name]} is not there; say where it lies, "
                f"rebuild(receipt, {name}=...)"
            )
        parameters[name] = str(Path(place).resolve())
    return parameters


def _refuse_missing(receipt: dict, places: Mapping):
    for name in receipt["inputs"]:
        plain = name.split(" #")[0]
        if found(plain) is None and not places and "/" in plain:
            raise FileNotFoundError(
                f"rebuild: {receipt['figure']} was made from {plain}, which is not there; fetch "
                "it, or go to the folder in which the figure was saved"
            )


def _execute(notebook: Path, parameters: dict, timeout: float):
    try:  # here, as only who rebuilds needs what executes notebooks
        from .execution import CellExecutionError, execute
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"rebuild: needs {error.name}, which comes with pip install 'osf-workbench[lab]'"
        ) from None
    try:
        execute(notebook, Path.cwd(), timeout, parameters)
    except CellExecutionError as error:
        why = f"{error.ename}: {short(error.evalue, 300)}"
        raise ValueError(f"rebuild: {notebook.stem} cannot be run again: {why}") from error


def _saved(figure: str, made: Path, notebook: Path) -> Path:
    path = made / f"{figure}.receipt.json"
    if not path.is_file():
        saved = sorted(each.name.removesuffix(".receipt.json") for each in made.glob("*.json"))
        names = f"it saves {', '.join(saved)}" if saved else "it saves none"
        raise ValueError(f"rebuild: {notebook.stem} does not save a figure {figure}; {names}")
    return path


# --- what moved -----------------------------------------------------------------------------------


def _row(kind: str, name: str, moved: bool, detail: str = "", numbers=(pd.NA,) * 3) -> tuple:
    return (kind, name, *numbers, bool(moved), detail)


def _inputs(before: Mapping, after: Mapping):
    """Yield a row each input; one named by its place is found again by its name."""
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
        moved = receipt["written"].get(csv) != sha256(made / csv)
        yield _row("file", csv, moved, "other bytes" if moved else "same bytes")
        return
    before, after = pd.read_csv(folder / csv), pd.read_csv(made / csv)
    for name in dict.fromkeys([*before, *after]):
        if name not in after or name not in before:
            gone = "not there any more" if name in before else "not there before"
            yield _row("column", name, True, gone)
        else:
            yield _compared(name, before[name], after[name], tolerance)


def _compared(name: str, before: pd.Series, after: pd.Series, tolerance: float) -> tuple:
    """Return the row of a column that both have; gaps are alike."""
    n = len(after)
    if len(before) != n:
        return _row("column", name, True, f"{len(before)} rows before", (n, pd.NA, pd.NA))
    if not all(pd.api.types.is_numeric_dtype(each) for each in (before, after)):
        texts = before.astype("str").fillna("") != after.astype("str").fillna("")
        detail = f"{texts.sum()} other texts" if texts.any() else ""
        return _row("column", name, texts.any(), detail, (n, pd.NA, pd.NA))
    old, new = before.to_numpy(float), after.to_numpy(float)
    same = (old == new) | (np.isnan(old) & np.isnan(new))
    with np.errstate(invalid="ignore"):  # of infinities
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
        now = made / name
        if sha256(now) == digest:
            yield _row("file", name, False, "same bytes")
        elif folder is None or not (folder / name).is_file():
            yield _row("file", name, True, "other bytes")
        elif _drawing(folder / name) == _drawing(now):
            yield _row("file", name, False, "same drawing, the receipt within differs")
        else:
            yield _row("file", name, True, "another drawing")


def _drawing(path: Path) -> bytes:
    """Return a picture without what is told about it: a PDF's streams, an SVG's elements."""
    content = path.read_bytes()
    if path.suffix == ".svg":
        return content.partition(b"</metadata>")[2]
    return b"".join(re.findall(rb"(?<!end)stream\r?\n(.*?)endstream", content, re.S))
