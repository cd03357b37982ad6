"""Execute notebooks headless, each in a fresh kernel of this Python: `make figures`, and tests.

As a script it executes every notebook, or those named, and lists the figures they wrote; with
--twice it executes each two times and reports which files differ.
"""

import hashlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pandas as pd
from filelock import FileLock
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from workbench.notebooks.execution import execute

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def main(arguments: list[str]) -> int:
    """Execute notebooks; return 1 if one fails, two runs differ, or there is no notebook."""
    names = [argument for argument in arguments if argument != "--twice"]
    paths = [NOTEBOOKS / name for name in names] or sorted(NOTEBOOKS.glob("*.ipynb"))
    if not paths:
        print(f"{NOTEBOOKS}: no notebook there")
    if "--twice" in arguments:
        return int(not paths or any([differing(path) for path in paths]))
    began = time.time()
    failed = [path for path in paths if not _succeeds(path)]
    for figure in sorted((NOTEBOOKS / "figures").glob("*")):
        if figure.stat().st_mtime >= began:
            print(f"  wrote {figure.relative_to(NOTEBOOKS.parent)}")
    return int(not paths or bool(failed))


def differing(path: Path) -> list[str]:
    """Return the files that two runs of a notebook do not write alike, to the last byte."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / "first", Path(folder) / "second"]
        if not all(_succeeds(path, {"FIGURES": run}) for run in runs):
            return [path.name]
        first, second = ({f.name: f.read_bytes() for f in run.iterdir()} for run in runs)
    found = sorted(n for n in {*first, *second} if first.get(n) != second.get(n))
    print(f"  {len(first)} files, of which differ: {', '.join(found) or 'none'}")
    return found


def _succeeds(path: Path, parameters: Mapping | None = None) -> bool:
    start = time.perf_counter()
    try:
        execute(path, parameters=parameters)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        print(f"{path.name}: failed\n{error}")
        return False
    print(f"{path.name}: {time.perf_counter() - start:.0f} s")
    return True


@dataclass(frozen=True)
class Executed:
    """A notebook with its outputs, and the folder of the figures that it saved."""

    notebook: nbformat.NotebookNode
    figures: Path

    def shown(self, *kinds: str) -> str:
        """Return what is shown of some kinds: MIME types, or the streams stdout and stderr."""
        found = []
        for output in (each for cell in self.notebook.cells for each in cell.get("outputs", [])):
            data = output.get("data", {}) | {output.get("name"): output.get("text")}
            found += [data[kind] for kind in kinds if kind in data]
        return "\n".join(found)

    @property
    def said(self) -> str:
        return self.shown("text/plain", "stdout")

    def read(self, name: str) -> str:
        return (self.figures / name).read_text(encoding="utf-8")

    def receipt(self, figure: str) -> dict:
        return json.loads(self.read(f"{figure}.receipt.json"))

    def table(self, figure: str) -> pd.DataFrame:
        return pd.read_csv(self.figures / f"{figure}.csv")


def execute_once(common: Path, name: str, by_hand: bool = False, **parameters) -> Executed:
    """Execute a notebook in an empty folder, or read what another worker made of it before.

    `by_hand` edits lines of its cell of parameters; otherwise papermill adds a cell.
    """
    key = hashlib.sha256(repr((by_hand, parameters)).encode()).hexdigest()[:8]
    folder, path = common / f"{name}-{key}", NOTEBOOKS / f"{name}.ipynb"
    with FileLock(f"{folder}.lock"):
        if not (folder / "done.ipynb").exists():
            (folder / "empty").mkdir(parents=True, exist_ok=True)
            given = parameters | {"FIGURES": folder / "figures"}
            if by_hand:
                nbformat.write(edited(path, given), folder / "mine.ipynb")
                path, given = folder / "mine.ipynb", None
            done = execute(path, folder / "empty", parameters=given)
            assert not list((folder / "empty").iterdir()), "it leaves a file where it runs"
            nbformat.write(done, folder / "done.ipynb")
    return Executed(nbformat.read(folder / "done.ipynb", as_version=4), folder / "figures")


def edited(path: Path, values: Mapping) -> nbformat.NotebookNode:
    """Return a notebook with lines of its cell of parameters rewritten; a path becomes a text."""
    notebook = nbformat.read(path, as_version=4)
    (cell,) = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", ())]
    for name, value in values.items():
        text = repr(str(value) if isinstance(value, Path) else value)
        line = f"{name} = {text}".replace("\\", r"\\")
        cell.source, n_lines = re.subn(rf"^{name} = .*$", line, cell.source, flags=re.M)
        assert n_lines == 1, name
    return notebook


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
