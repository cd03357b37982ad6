"""Execute notebooks headless, in this Python, each in a fresh kernel: `make figures`, and tests.

Run as a script it executes every notebook of notebooks/ and lists the figures they wrote.
"""

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def execute(path: Path, cwd: Path | None = None, timeout: float = 300) -> nbformat.NotebookNode:
    """Run all cells of a notebook in `cwd` (default: its folder) and return it with its outputs.

    The file itself stays as it is. `timeout` is in s a cell. Raises CellExecutionError with the
    failing cell. A kernel that dies or falls silent gets one second chance: rarely one does,
    whatever the notebook.
    """
    cwd = Path(path).parent if cwd is None else cwd
    try:
        return _execute(path, cwd, timeout)
    except (CellTimeoutError, DeadKernelError) as error:
        print(f"{path}: once more, after: {str(error).splitlines()[0]}", file=sys.stderr)
        return _execute(path, cwd, timeout)


def _execute(path: Path, cwd: Path, timeout: float) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
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
        return client.execute(cleanup_kc=True)


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
