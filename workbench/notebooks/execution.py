"""Execute a notebook in a fresh kernel of this Python, with other parameters if wanted."""

import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path

# Only who executes notebooks needs these; they come with the extra `lab`.
import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from papermill.parameterize import parameterize_notebook

from ..base.checks import shown

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
    """Run all cells of a notebook in `cwd` (default: its folder) and return it with its outputs.

    The file itself stays as it is. `timeout` is in s a cell. `parameters` take the place of those
    of the cell tagged "parameters", as papermill does it; paths go as texts. Raises
    nbclient's CellExecutionError with the failing cell, and ValueError for a notebook that has no
    cell of parameters to change. `before` is code to run ahead of the first cell; `after` makes, of
    the notebook with its outputs, code to run at its end, whose outputs come back in the metadata
    as `answers`. Neither becomes a cell. A kernel that dies or falls silent gets one second chance:
    rarely one does, whatever the notebook.
    """
    path = Path(path)
    cwd = path.parent if cwd is None else cwd
    notebook = _with(_read(path), path, dict(parameters or {}))
    try:
        return _execute(deepcopy(notebook), cwd, timeout, before, after)
    except (CellTimeoutError, DeadKernelError) as error:
        warnings.warn(f"{path}: once more, after: {str(error).splitlines()[0]}", stacklevel=2)
        return _execute(notebook, cwd, timeout, before, after)


def _read(path: Path) -> nbformat.NotebookNode:
    try:
        return nbformat.read(path, as_version=4)
    except (ValueError, AttributeError, KeyError):  # no JSON, or another's
        raise ValueError(f"{path}: is no notebook; pass a file that ends in .ipynb") from None


def _with(notebook: nbformat.NotebookNode, path: Path, parameters: dict) -> nbformat.NotebookNode:
    """Return the notebook with a cell after that of its parameters, which sets others."""
    if not parameters:
        return notebook
    if not any("parameters" in cell.metadata.get("tags", ()) for cell in notebook.cells):
        names = ", ".join(map(shown, parameters))
        raise ValueError(f"{path}: no cell is tagged parameters, so {names} cannot be set there")
    for cell in notebook.cells:  # papermill expects what its own reader adds
        cell.metadata.setdefault("tags", [])
    notebook.metadata.setdefault("papermill", {})
    texts = {
        name: str(value) if isinstance(value, Path) else value for name, value in parameters.items()
    }
    return parameterize_notebook(notebook, texts, kernel_name="python3", language="python")


def _execute(
    notebook: nbformat.NotebookNode, cwd: Path, timeout: float, before: str, after: Callable | None
) -> nbformat.NotebookNode:
    # Sockets in a folder of their own: TCP ports are chosen in a race with other kernels, and the
    # default socket name is shared by all kernels of a folder.
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
        # bars of progress are for who watches; on a page one would stand still, or not, by chance
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
    """Run code as a cell that is there only meanwhile, and return its outputs."""
    client.nb.cells.append(nbformat.v4.new_code_cell(code))
    client.execute_cell(client.nb.cells[-1], len(client.nb.cells) - 1, store_history=False)
    return client.nb.cells.pop().outputs
