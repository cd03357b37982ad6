"""Execute a notebook in a new kernel of this Python, with other parameters if wanted."""

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path

# Needed only to execute notebooks; they come with the extra `lab`.
import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from papermill.parameterize import parameterize_notebook

from ..base.checks import require, shown

__all__ = ["CellExecutionError", "execute"]


def execute(
    path: Path | str,
    cwd: Path | None = None,
    timeout: float = 300,
    parameters: Mapping | None = None,
    *,
    before: str = "",
    after: Callable[[nbformat.NotebookNode], str] | None = None,
) -> nbformat.NotebookNode:
    """Run all cells of a notebook and return it with its outputs; the file stays unchanged.

    A kernel that dies or falls silent is started once more: rarely one does, with any notebook.

    cwd : where it runs; default is its folder
    timeout : s per cell
    parameters : values for names of the cell tagged "parameters", set as papermill does
    before : code that runs ahead of the first cell
    after : returns, for the notebook with its outputs, code that runs after the last cell; its
        outputs are in the metadata as `answers`

    Raises nbclient's CellExecutionError with the failing cell, and ValueError for parameters if no
    cell is tagged.
    """
    path = Path(path)
    cwd = path.parent if cwd is None else cwd
    notebook = _with(_read(path), path, dict(parameters or {}))
    try:
        return _execute(deepcopy(notebook), cwd, timeout, before, after)
    except (CellTimeoutError, DeadKernelError) as error:
        warnings.warn(f"{path}: runs again, after: {str(error).splitlines()[0]}", stacklevel=2)
        return _execute(notebook, cwd, timeout, before, after)


def _read(path: Path) -> nbformat.NotebookNode:
    try:
        return nbformat.read(path, as_version=4)
    except (ValueError, AttributeError, KeyError):  # not JSON, or JSON of something else
        raise ValueError(f"{path}: expected a notebook. Pass a file that ends in .ipynb") from None


def _with(notebook: nbformat.NotebookNode, path: Path, parameters: dict) -> nbformat.NotebookNode:
    """Return the notebook with a cell that sets parameters after the one with their defaults."""
    if not parameters:
        return notebook
    for cell in notebook.cells:  # papermill expects what its own reader adds
        cell.metadata.setdefault("tags", [])
    notebook.metadata.setdefault("papermill", {})
    tagged = any("parameters" in cell.metadata.tags for cell in notebook.cells)
    expected = f"a cell tagged parameters, to set {', '.join(map(shown, parameters))}"
    require(tagged, str(path), expected, found="none")
    texts = {
        name: str(each) if isinstance(each, Path) else each for name, each in parameters.items()
    }
    return parameterize_notebook(notebook, texts, kernel_name="python3", language="python")


def _execute(
    notebook: nbformat.NotebookNode, cwd: Path, timeout: float, before: str, after: Callable | None
) -> nbformat.NotebookNode:
    # Sockets in a temporary folder: kernels race for TCP ports, and all kernels of a folder share
    # the default name of a socket.
    with tempfile.TemporaryDirectory(prefix="wb") as sockets:
        manager = AsyncKernelManager(
            kernel_name="python3",
            transport="ipc",
            ip=f"{sockets}/k",
            # Without folders to search, `python3` can only be the Python that runs this.
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
        )
        client = NotebookClient(
            notebook,
            km=manager,
            timeout=timeout,
            startup_timeout=120,
            resources={"metadata": {"path": str(cwd)}},
        )
        # a progress bar on a page would stop at a random place
        quiet = {"cleanup_kc": True, "env": {**os.environ, "TQDM_DISABLE": "1"}}
        if not before and after is None:
            return client.execute(**quiet)
        with client.setup_kernel(**quiet):
            _aside(client, before)
            for index, cell in enumerate(notebook.cells):
                client.execute_cell(cell, index)
            if after is not None:
                notebook.metadata["answers"] = _aside(client, after(notebook))
        return notebook


def _aside(client: NotebookClient, code: str) -> list:
    """Run code as a temporary cell, and return its outputs."""
    client.nb.cells.append(nbformat.v4.new_code_cell(code))
    client.execute_cell(client.nb.cells[-1], len(client.nb.cells) - 1, store_history=False)
    return client.nb.cells.pop().outputs
