"""Notebooks as pages that need neither a kernel nor a network, and a gallery of their figures.

Each notebook is executed. Its explorers become pictures that still move, because every position
of their controls is drawn in advance; its equations become MathML, which browsers render.
`python -m workbench.notebooks` does this from the command line.
"""

import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

import nbformat
from bs4 import BeautifulSoup

from ..base.checks import require
from .execution import CellExecutionError, execute
from .markup import body, fill_template, rendered

__all__ = ["CellExecutionError", "write_pages"]

FIRST = ("pdf", "svg", "png", "csv", "receipt.json")  # links in this order, then all others
WIDGET = "application/vnd.jupyter.widget-view+json"

# Runs ahead of the first cell: every figure shown gets an alternative text.
BEFORE = """
def _describe_figures():
    from IPython import get_ipython
    def described(figure, **_):
        from workbench.figures import describe
        return {}, {"image/png": {"alt": describe(figure)}}
    bundle = get_ipython().display_formatter.mimebundle_formatter
    bundle.for_type_by_name("matplotlib.figure", "Figure", described)
_describe_figures()
"""
# Runs after the last one: returns the static form of the notebook's explorers.
AFTER = """
def _show_static(ids):
    from contextlib import suppress
    from IPython.display import display
    from workbench.explore import static_of
    found = {}
    for each in ids:
        with suppress(ValueError):  # other widgets have no static form
            found[each] = static_of(each)
    display({"application/json": found}, raw=True)
_show_static(%s)
"""


@dataclass(frozen=True)
class Saved:
    """A figure that a notebook saved.

    image : path of the picture in the gallery, relative to the folder of pages
    files : what was written: suffix -> path
    """

    name: str
    image: str
    alt: str
    caption: str
    files: dict[str, str]


@dataclass(frozen=True)
class Page:
    """A notebook as the gallery shows it: question and answer as HTML, and what it saved.

    image, alt : of its main figure: the first that it saves, otherwise the first it shows
    """

    name: str
    question: str
    answer: str
    image: str
    alt: str
    saved: list[Saved]


def write_pages(
    paths: Iterable[Path | str], folder: Path | str, parameters: Mapping | None = None
) -> Path:
    """Execute notebooks, write a page for each and the gallery; return the gallery's path.

    Writes folder/NAME.html per notebook, the figures that it saves into folder/figures/NAME, and
    folder/index.html. Raises nbclient's CellExecutionError for a cell that fails.

    parameters : for every notebook
    """
    paths, folder = [Path(path) for path in paths], Path(folder)
    names = [path.stem for path in paths]
    distinct = names and len(set(names)) == len(names)
    require(distinct, "paths", "notebooks with different names", found=", ".join(names) or "none")
    folder.mkdir(parents=True, exist_ok=True)
    pages = []
    for path in paths:
        saved, began = folder.resolve() / "figures" / path.stem, time.time()
        notebook = _executed(path, saved, dict(parameters or {}))
        pages.append(_page(notebook, path, saved, began))
        text = fill_template("page.html.j2", body=body(notebook, path), page=pages[-1], names=names)
        (folder / f"{path.stem}.html").write_text(text, encoding="utf-8")
    index = folder / "index.html"
    index.write_text(fill_template("index.html.j2", pages=pages), encoding="utf-8")
    return index


def _executed(path: Path, saved: Path, parameters: dict) -> nbformat.NotebookNode:
    """Return the notebook with its outputs, with explorers in their static form."""
    put = Path(os.path.relpath(saved, path.resolve().parent)).as_posix()
    cells = _tagged(nbformat.read(path, as_version=4), "parameters")
    if any(re.search(r"^FIGURES\s*=", cell.source, re.M) for cell in cells):
        parameters = {"FIGURES": put} | parameters
    notebook = execute(path, parameters=parameters, before=BEFORE, after=_question)
    answers = notebook.metadata.pop("answers")
    static = answers[0].data["application/json"] if answers else {}
    for output in _outputs(notebook):
        view = output.get("data", {}).pop(WIDGET, None)
        if view and static.get(view["model_id"]):
            output.data = {"text/html": static[view["model_id"]]}
    notebook.metadata.pop("widgets", None)
    return _without(notebook, f"FIGURES = {json.dumps(put)}")


def _tagged(notebook: nbformat.NotebookNode, tag: str) -> list:
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())]


def _without(notebook: nbformat.NotebookNode, line: str) -> nbformat.NotebookNode:
    """Return the notebook without a line of the added cell, which names the folder of pages."""
    for cell in _tagged(notebook, "injected-parameters"):
        cell.source = cell.source.replace(line, "").strip()
        if cell.source == "# Parameters":
            notebook.cells.remove(cell)
    return notebook


def _question(notebook: nbformat.NotebookNode) -> str:
    """Return code that asks for the static forms of the widgets in the notebook."""
    views = [output.get("data", {}).get(WIDGET) for output in _outputs(notebook)]
    ids = [view["model_id"] for view in views if view]
    return AFTER % json.dumps(ids) if ids else ""


def _outputs(notebook: nbformat.NotebookNode) -> list:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def _page(notebook: nbformat.NotebookNode, path: Path, saved: Path, began: float) -> Page:
    """Return the gallery's entry of a notebook, with the figures saved since it began."""
    folder = saved.parents[1]
    first = next((cell.source for cell in notebook.cells if cell.cell_type == "markdown"), "")
    opening = BeautifulSoup(rendered(first, exclude_anchor_links=True), "html.parser")
    question = opening.h1.decode_contents() if opening.h1 else escape(path.stem)
    answer = opening.p.decode_contents() if opening.p else ""
    receipts = sorted((path.stat().st_mtime, path) for path in saved.glob("*.receipt.json"))
    figures = [_saved(receipt, folder) for saved_at, receipt in receipts if saved_at >= began]
    image, alt = (figures[0].image, figures[0].alt) if figures else _first_shown(notebook)
    return Page(path.stem, question, answer, image, alt, figures)


def _first_shown(notebook: nbformat.NotebookNode) -> tuple[str, str]:
    for output in _outputs(notebook):
        if "image/png" in output.get("data", {}):
            alt = output.metadata.get("image/png", {}).get("alt", "")
            return f"data:image/png;base64,{output.data['image/png'].strip()}", alt
    return "", ""


def _saved(receipt: Path, folder: Path) -> Saved:
    known = json.loads(receipt.read_text(encoding="utf-8"))
    name, caption = known["figure"], known.get("caption") or ""
    suffixes = [file.removeprefix(f"{name}.") for file in (*known["written"], receipt.name)]
    suffixes.sort(key=lambda each: (FIRST.index(each) if each in FIRST else len(FIRST), each))
    place = receipt.parent.relative_to(folder).as_posix()
    files = {suffix: quote(f"{place}/{name}.{suffix}") for suffix in suffixes}
    image = files.get("png") or files["svg"]
    return Saved(name, image, known.get("alt") or caption or name, caption, files)
