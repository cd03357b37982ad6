"""Write pages of notebooks and a gallery of their figures.

    python -m workbench.notebooks                                # those of the checkout
    python -m workbench.notebooks my.ipynb -o out -p RUN my-run  # yours, with other parameters

The pages need neither a kernel nor a network. Without -o they go to notebooks/pages.
"""

import argparse
import ast
import sys
from pathlib import Path

from nbclient.exceptions import CellExecutionError

from .pages import write_pages

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def main(arguments: list[str] | None = None) -> int:
    """Write pages as the command line says, and print where; 1 where a notebook fails."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m workbench.notebooks", description=__doc__, formatter_class=plain
    )
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of the checkout")
    parser.add_argument("-o", dest="folder", type=Path, default=NOTEBOOKS / "pages", help="folder")
    parser.add_argument(
        "-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="a parameter of the notebooks, as often as wanted",
    )  # fmt: skip
    chosen = parser.parse_args(arguments)
    paths = chosen.notebooks or sorted(NOTEBOOKS.glob("*.ipynb"))
    parameters = {name: _value(text) for name, text in chosen.p}
    try:
        print(f"wrote {write_pages(paths, chosen.folder, parameters)}")
    except (CellExecutionError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _value(text: str):
    """A number, list, None or the like as Python writes it; all else is a text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


if __name__ == "__main__":
    sys.exit(main())
