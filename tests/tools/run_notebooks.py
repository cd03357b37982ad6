"""Execute notebooks headless, in this Python, each in a fresh kernel: `make figures`, and tests.

Run as a script it executes every notebook of notebooks/ and lists the figures they wrote; with
--twice it executes each two times and tells which files of the two differ. Names of notebooks
may follow.
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from workbench.notebooks.execution import execute

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def main(arguments: list[str]) -> int:
    """Execute notebooks as the command line says; 1 when one fails, differs, or there is none."""
    names = [argument for argument in arguments if argument != "--twice"]
    paths = [NOTEBOOKS / name for name in names] or sorted(NOTEBOOKS.glob("*.ipynb"))
    if not paths:
        print(f"{NOTEBOOKS}: no notebook there")
        return 1
    if "--twice" in arguments:
        return 1 if [path for path in paths if differing(path) != []] else 0
    began = time.time()
    failed = [path for path in paths if not _succeeds(path)]
    for figure in sorted((NOTEBOOKS / "figures").glob("*")):
        if figure.stat().st_mtime >= began:
            print(f"  wrote {figure.relative_to(NOTEBOOKS.parent)}")
    return 1 if failed else 0


def differing(path: Path) -> list[str]:
    """Files that two runs of a notebook do not write alike, to the last byte."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / "first", Path(folder) / "second"]
        if not all(_succeeds(path, {"FIGURES": run}) for run in runs):
            return [path.name]
        first, second = ({f.name: f.read_bytes() for f in run.iterdir()} for run in runs)
    found = sorted(n for n in {*first, *second} if first.get(n) != second.get(n))
    print(f"  {len(first)} files, of which differ: {', '.join(found) or 'none'}")
    for name in (
        name for name in found if name.endswith(".json") and name in first.keys() & second
    ):
        print(f"  {name}: {', '.join(_other_keys(first[name], second[name]))}")
    return found


def _other_keys(first: bytes, second: bytes) -> list[str]:
    """What two receipts tell otherwise; a commit between the runs is one such thing."""
    one, other = json.loads(first), json.loads(second)
    return sorted(key for key in {*one, *other} if one.get(key) != other.get(key))


def saving_to(path: Path, figures: Path, copy: Path):
    """Copy a notebook, with another folder for its figures put in as papermill would."""
    notebook = nbformat.read(path, as_version=4)
    tags = [cell.metadata.get("tags", []) for cell in notebook.cells]
    at = next(number for number, each in enumerate(tags) if "parameters" in each)
    notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(f"FIGURES = {str(figures)!r}"))
    nbformat.write(notebook, copy)


def _succeeds(path: Path, parameters: Mapping | None = None) -> bool:
    start = time.perf_counter()
    try:
        execute(path, parameters=parameters)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        print(f"{path.name}: failed\n{error}")
        return False
    print(f"{path.name}: {time.perf_counter() - start:.0f} s")
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
