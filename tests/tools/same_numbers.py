"""Compare two executions of the notebooks: every number shown, every table saved, every path drawn.

    python tests/tools/same_numbers.py BEFORE AFTER

Each folder holds nb/*.ipynb as executed and figures/ as saved. Words are ignored, and so are times
of this machine and file sizes. Prints what differs; exits with 1 if anything does.
"""

import json
import re
import sys
from pathlib import Path

NUMBER = re.compile(r"(?<![\w#.])[-+\N{MINUS SIGN}]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?(?![\w])")
PATHS = re.compile(r'<(?:path|use)\b[^>]*?\s(?:d|x|y)="([^"]*)"')


def numbers(text: str) -> list[float]:
    """Return the numbers of a text in order; hex digests and names with digits do not count."""
    found = NUMBER.findall(re.sub(r"<style.*?</style>|<[^>]*>", " ", text, flags=re.S))
    return [float(each.replace(",", "").replace("\N{MINUS SIGN}", "-")) for each in found]


def shown(path: Path) -> list[list[float]]:
    """Return the numbers of each code cell's outputs."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        [n for output in cell["outputs"] for n in numbers(_text(output))]
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def _text(output: dict) -> str:
    data = output.get("data", {})
    text = data.get("text/plain", output.get("text", ""))
    return "" if "widget-view" in " ".join(data) else "".join(text)


def drawn(path: Path) -> list:
    """Return what a saved file draws or lists: paths of an SVG, numbers of a CSV."""
    text = path.read_text(encoding="utf-8")
    return PATHS.findall(text) if path.suffix == ".svg" else numbers(text)


def differences(before: Path, after: Path) -> list[str]:
    """Return a line for each notebook cell, table or drawing that is not the same in both."""
    found = []
    for old in sorted((before / "nb").glob("*.ipynb")):
        new = after / "nb" / old.name
        cells = [shown(each) if each.exists() else [] for each in (old, new)]
        cells = [[cell for cell in each if cell] for each in cells]
        if len(cells[0]) != len(cells[1]):
            found.append(f"{old.name}: {len(cells[0])} cells show numbers, now {len(cells[1])}")
        for k, (one, other) in enumerate(zip(*cells, strict=False)):
            if one != other:
                pairs = enumerate(zip(one, other, strict=False))
                where = next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
                found.append(f"{old.name}: output {k}: {one[where:][:4]}, now {other[where:][:4]}")
    for old in sorted((before / "figures").glob("*.[sc][vs][gv]")):
        new = after / "figures" / old.name
        if not new.exists() or drawn(old) != drawn(new):
            found.append(f"{old.name}: {'missing' if not new.exists() else 'other content'}")
    return found


if __name__ == "__main__":
    lines = differences(*map(Path, sys.argv[1:3]))
    print(*lines or ["the same"], sep="\n")
    sys.exit(bool(lines))
