"""Summaries by nvprof and `nsys stats`, as CSV: the total time of each kernel over the run.

Totals lack the time of each call, so overlap and iterations are unknown: such a file is refused as
a trace. `workbench.traces.read_totals` returns the totals.
"""

import csv
import re
import warnings
from decimal import Decimal, InvalidOperation

import pandas as pd

from ...base.checks import refuse
from .collectives import collective, is_communication
from .source import Source

TOTALS = {
    "kind": "compute, comm or memory",
    "op": "name of the collective, unknown if the kernel's name lacks it, empty for other kinds",
    "name": "kernel or copy",
    "n_calls": "how often it ran",
    "seconds": "s of all calls together",
    "mean_s": "s",
    "min_s": "s",
    "max_s": "s",
}
_EXPONENT = {"s": 0, "ms": -3, "us": -6, "\N{MICRO SIGN}s": -6, "ns": -9}
# Names of columns without units: nvprof, old and new `nsys stats`.
_COLUMNS = {
    "seconds": ("time", "total time"),
    "n_calls": ("instances", "calls", "count", "operations"),
    "mean_s": ("avg", "average"),
    "min_s": ("min", "minimum"),
    "max_s": ("max", "maximum"),
    "name": ("name", "operation"),
    "type": ("type",),
    "category": ("category",),
}
_TIMES = ("seconds", "mean_s", "min_s", "max_s")
_UNIT = re.compile(r"\s*\((%|m?s|us|ns)\)$")
_NOT_ON_DEVICE = re.compile(r"API calls|cuda[_ ]?api|OS Runtime|osrt", re.IGNORECASE)
_HOST_CALL = re.compile(r"cu(?:da)?[A-Z]\w*")  # cudaLaunchKernel, cuMemcpyAsync
_NUMBER = re.compile(r"\d[\d,.]*(?:e[-+]?\d+)?", re.IGNORECASE)


def recognises(head: bytes) -> bool:
    """Return whether it contains the header of such a table, also below other output."""
    return any(_is_header(line) for line in head.decode(errors="replace").splitlines())


def read(source: Source):
    """Raise ValueError: a table of totals is not a trace."""
    found = "totals only (a summary by nvprof or nsys stats), without overlap and iterations"
    do = (
        "Record one with nsys profile -t cuda,nvtx and nsys export --type sqlite, or with the "
        "profiler of PyTorch. To read the totals: read_totals(path)"
    )
    refuse(source.file, "a trace with the start of every kernel", found=found, do=do)


def totals_table(text: str, file: str) -> pd.DataFrame:
    """Return totals over the run, one row per kernel or kind of copy: columns as in `TOTALS`.

    Keeps only work on the GPU: nvprof's "GPU activities" and the tables of nsys that count
    instances. The unit of a column is in its header or in the row of units. Warns of lines that
    cannot be read. Raises ValueError if no row is left.
    """
    rows, mixed, columns, section, skipped = [], [], {}, "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        cells = _cells(line)
        if _is_header(line):
            columns = {} if _NOT_ON_DEVICE.search(section) else _header(cells)
        elif len(cells) < 4:
            section = line if line.strip() else section
        elif all(cell in {"", "%", *_EXPONENT} for cell in cells):
            units = dict(enumerate(cells))
            columns = {key: (at, units.get(at) or unit) for key, (at, unit) in columns.items()}
        elif not any(map(_NUMBER.fullmatch, cells)):
            columns = {}  # the header of another table
        elif not _on_device(cells, columns):
            skipped += 1
        else:
            try:
                (mixed if "category" in columns else rows).append(_row(cells, columns))
            except (ValueError, InvalidOperation, IndexError) as error:
                text = f"line {number} left out ({error}): {line.strip()[:80]!r}"
                warnings.warn(f"{file}: {text}", stacklevel=2)
    rows = rows or mixed  # a table of kernels and copies repeats their separate tables
    if not rows:
        expected = "totals of kernels from nvprof --csv with GPU activities, or nsys stats "
        expected += "--report cuda_gpu_kern_sum --format csv"
        refuse(file, expected, found=f"none and {skipped} rows of other work")
    types = {"n_calls": "Int64"} | dict.fromkeys(_TIMES, "Float64")
    return pd.DataFrame(rows, columns=list(TOTALS)).astype(types)


def _cells(line: str) -> list[str]:
    """Return the stripped fields of one line; a quoted name may contain commas."""
    try:
        return [c.strip() for c in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error:  # a field beyond the module's limit of 128 KiB
        return []


def _named(cells: list[str]) -> dict[str, tuple[int, str]]:
    """Return position and unit of each column, by its name in lower case."""
    found = {}
    for at, cell in enumerate(cells):
        unit = unit[1] if (unit := _UNIT.search(cell)) else ""
        if unit != "%":
            found.setdefault(_UNIT.sub("", cell).strip().lower(), (at, unit))
    return found


def _is_header(line: str) -> bool:
    if "Time" not in line or len(line) > 1000:
        return False
    names = {_UNIT.sub("", cell).strip().lower() for cell in _cells(line)}
    counts = {"num calls", *_COLUMNS["n_calls"]}
    groups = ({"time", "total time"}, counts, {"name", "operation", "range"})
    return not any(map(names.isdisjoint, groups))


def _header(cells: list[str]) -> dict[str, tuple[int, str]]:
    """Return our columns -> position and unit; none for a table of host calls or ranges."""
    named = _named(cells)
    if named.keys() & {"num calls", "range", "style"}:
        return {}
    return {k: named[a] for k, names in _COLUMNS.items() for a in names[::-1] if a in named}


def _on_device(cells: list[str], columns: dict) -> bool:
    if "name" not in columns or _HOST_CALL.fullmatch(cells[-1]):
        return False
    return "type" not in columns or cells[columns["type"][0]] == "GPU activities"


def _row(cells: list[str], columns: dict) -> dict:
    name = cells[columns["name"][0]]
    kind = "comm" if is_communication(name) else "compute"
    kind = "memory" if name.startswith("[") else kind  # [CUDA memcpy HtoD]
    calls = int(cells[columns["n_calls"][0]].replace(",", ""))
    places = {key: columns[key] for key in _TIMES if key in columns}
    times = {key: _seconds(cells[at], unit) for key, (at, unit) in places.items()}
    if not name or times.get("seconds") is None or not 0 <= calls < 2**62:
        raise ValueError("no name, time or number of calls")
    op = collective(name) or "unknown" if kind == "comm" else ""
    return {"kind": kind, "op": op, "name": name, "n_calls": calls} | times


def _seconds(cell: str, unit: str) -> float | None:
    """Return a time in s; columns without a unit, in old versions of nsys, are in ns."""
    if not cell:
        return None
    value = Decimal(cell.replace(",", ""))
    if not value.is_finite() or value < 0:
        raise ValueError(f"time is {cell}")
    return float(value.scaleb(_EXPONENT.get(unit, -9)))
