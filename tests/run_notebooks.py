"""Execute notebooks headless, in this Python, each in a fresh kernel: `make figures`, and tests.

Run as a script it executes every notebook of notebooks/ and lists the figures they wrote.
"""

import sys
import time
from pathlib import Path

import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from workbench.notebooks import execute

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def main() -> int:
    """Execute every notebook; 1 when one fails or there is none."""
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    if not paths:
        print(f"{NOTEBOOKS}: no notebook there")
        return 1
    began = time.time()
    failed = [path for path in paths if not _succeeds(path)]
    for figure in sorted((NOTEBOOKS / "figures").glob("*")):
        if figure.stat().st_mtime >= began:
            print(f"  wrote {figure.relative_to(NOTEBOOKS.parent)}")
    return 1 if failed else 0


def saving_to(path: Path, figures: Path, copy: Path):
    """Copy a notebook, with another folder for its figures put in as papermill would."""
    notebook = nbformat.read(path, as_version=4)
    tags = [cell.metadata.get("tags", []) for cell in notebook.cells]
    at = next(number for number, each in enumerate(tags) if "parameters" in each)
    notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(f"FIGURES = {str(figures)!r}"))
    nbformat.write(notebook, copy)


def _succeeds(path: Path) -> bool:
    start = time.perf_counter()
    try:
        execute(path)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        print(f"{path.name}: failed\n{error}")
        return False
    print(f"{path.name}: {time.perf_counter() - start:.0f} s")
    return True


if __name__ == "__main__":
    sys.exit(main())
