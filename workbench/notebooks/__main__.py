"""Write pages of notebooks and a gallery of their figures.

    python -m workbench.notebooks                                # those of the checkout
    python -m workbench.notebooks my.ipynb -o out -p RUN my-run  # yours, with other parameters

The pages need neither a kernel nor a network. Default folder: notebooks/pages of the checkout.
"""

import argparse
import ast
import sys
from pathlib import Path

from .parameters import from_checkout, needs_lab


def write_from(arguments: list[str] | None = None) -> str | None:
    """Write pages as the command line asks; return why not, None if all is well."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m workbench.notebooks", description=__doc__, formatter_class=plain
    )
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of the checkout")
    parser.add_argument("-o", dest="folder", type=Path, help="default: notebooks/pages")
    parser.add_argument(
        "-p", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="a parameter of the notebooks; may be repeated",
    )  # fmt: skip
    chosen = parser.parse_args(arguments)
    parameters = {name: _value(text) for name, text in chosen.p}
    try:  # here, because the packages that execute notebooks may be missing
        from .pages import CellExecutionError, write_pages
    except ModuleNotFoundError as error:
        return needs_lab(error)
    try:
        paths = chosen.notebooks or from_checkout("notebooks", "name yours").glob("*.ipynb")
        folder = chosen.folder or from_checkout("notebooks", "name a folder with -o") / "pages"
        print(f"wrote {write_pages(sorted(paths), folder, parameters)}")
    except (CellExecutionError, OSError, ValueError) as error:
        return str(error)
    return None


def _value(text: str):
    """Return a number, list, None or the like as Python writes it; all else is a text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


if __name__ == "__main__":
    sys.exit(write_from())
