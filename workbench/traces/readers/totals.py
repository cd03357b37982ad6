"""Summaries of nvprof and of `nsys stats`, as CSV: a kernel's time over the whole run, no more.

Sums say how much of each kernel there was, not when, so neither overlap nor iterations can be told:
as a trace such a file is refused. `workbench.traces.read_totals` returns the sums themselves.
"""

import csv
import re
import warnings
from decimal import Decimal, InvalidOperation

import pandas as pd

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
# What a column may be called, without its unit: nvprof, old and new `nsys stats`.
_COLUMNS = {
    "seconds": ("time", "total time"),
    "n_calls": ("instances", "calls", "count", "operations"),
    "mean_s": ("avg", "average"),
    "min_s": ("min", "minimum"),
    "max_s": ("max", "maximum"),
    "name": ("name", "operation"),
}
_TIMES = ("seconds", "mean_s", "min_s", "max_s")
_UNIT = re.compile(r"\s*\((%|m?s|us|ns)\)$")
_NOT_ON_DEVICE = re.compile(r"API calls|cuda[_ ]?api|OS Runtime|osrt", re.IGNORECASE)
_HOST_CALL = re.compile(r"cu(?:da)?[A-Z]\w*")  # cudaLaunchKernel, cuMemcpyAsync
_NUMBER = re.compile(r"\d[\d,.]*(?:e[-+]?\d+)?", re.IGNORECASE)


def recognises(head: bytes) -> bool:
    """Return whether a header of such a table is there, also below other output."""
    return any(_is_header(line) for line in head.decode(errors="replace").splitlines())


def read(source: Source):
    """Always raise ValueError: a table of sums is not a trace."""
    raise ValueError(
        f"{source.file}: totals only (a summary by nvprof or nsys stats), so overlap and iterations"
        " cannot be known: expected a trace with the start of every kernel. Record one with nsys "
        "profile -t cuda,nvtx and nsys export --type sqlite, or with the profiler of PyTorch. The "
        "sums themselves: read_totals(path)"
    )


def totals_table(text: str, file: str) -> pd.DataFrame:
    """Return sums over the run, one row per kernel or kind of copy: columns as in `TOTALS`.

    Only what ran on the GPU is kept: nvprof's "GPU activities", and of nsys the tables that count
    instances. Each column has the unit that its header or the row of units gives. Lines that could
    not be read are warned of. Raises ValueError when nothing is left.
    """
    rows, mixed, columns, section, problems, skipped = [], [], {}, "", [], 0
    for number, line in enumerate(text.splitlines(), start=1):
        cells = _cells(line)
        if _is_header(line):
            columns = {} if _NOT_ON_DEVICE.search(section) else _header(cells)
        elif len(cells) < 4:
            section = line if line.strip() else section
        elif _is_units(cells):
            units = dict(enumerate(cell.strip() for cell in cells))
            columns = {key: (at, units.get(at) or unit) for key, (at, unit) in columns.items()}
        elif not any(_NUMBER.fullmatch(cell.strip()) for cell in cells):
            columns = {}  # the header of a table of something else
        elif not _on_device(cells, columns):
            skipped += 1
        else:
            try:
                (mixed if "category" in columns else rows).append(_row(cells, columns))
            except (ValueError, InvalidOperation, IndexError) as error:
                problems.append(f"line {number} left out ({error}): {line.strip()[:80]!r}")
    for problem in problems:
        warnings.warn(f"{file}: {problem}", stacklevel=2)
    rows = rows or mixed  # a table of kernels and copies together repeats their own tables
    if not rows:
        raise ValueError(
            f"{file}: no total of a kernel. Expected nvprof --csv with GPU activities, or nsys "
            f"stats --report cuda_gpu_kern_sum --format csv; found {skipped} rows of other things"
        )
    types = {"n_calls": "Int64"} | dict.fromkeys(_TIMES, "Float64")
    return pd.DataFrame(rows, columns=list(TOTALS)).astype(types)


def _cells(line: str) -> list[str]:
    """Return the fields of one line; a quoted name may contain commas."""
    try:
        return next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:  # a field beyond the module's limit of 128 KiB
        return []


def _named(cells: list[str]) -> dict[str, tuple[int, str]]:
    """Return position and unit of each column, by its name in lower case."""
    found = {}
    for at, cell in enumerate(cells):
        unit = _UNIT.search(cell)
        name = _UNIT.sub("", cell.strip()).strip().lower()
        if not (unit and unit[1] == "%"):
            found.setdefault(name, (at, unit[1] if unit else ""))
    return found


def _is_header(line: str) -> bool:
    if "Time" not in line or len(line) > 1000:
        return False
    names = {_UNIT.sub("", c.strip()).strip().lower() for c in _cells(line)}
    counts = {"instances", "calls", "num calls", "count", "operations"}
    return bool(
        names & {"time", "total time"} and names & counts and names & {"name", "operation", "range"}
    )


def _header(cells: list[str]) -> dict[str, tuple[int, str]]:
    """Return our columns -> position and unit; none for a table of host calls or ranges."""
    named = _named(cells)
    on_host = "num calls" in named or "range" in named or "style" in named
    if on_host:
        return {}
    columns = {
        key: next((named[alias] for alias in aliases if alias in named), None)
        for key, aliases in _COLUMNS.items()
    }
    columns |= {"type": named.get("type"), "category": named.get("category")}
    return {key: place for key, place in columns.items() if place}


def _is_units(cells: list[str]) -> bool:
    return all(cell.strip() in {"", "%", *_EXPONENT} for cell in cells)


def _on_device(cells: list[str], columns: dict) -> bool:
    if "name" not in columns or _HOST_CALL.fullmatch(cells[-1].strip()):
        return False
    return "type" not in columns or cells[columns["type"][0]].strip() == "GPU activities"


def _row(cells: list[str], columns: dict) -> dict:
    name = cells[columns["name"][0]].strip()
    kind = "comm" if is_communication(name) else "compute"
    kind = "memory" if name.startswith("[") else kind  # [CUDA memcpy HtoD]
    calls = int(cells[columns["n_calls"][0]].replace(",", ""))
    times = {
        key: _seconds(cells[columns[key][0]], columns[key][1]) if key in columns else None
        for key in _TIMES
    }
    if not name or times["seconds"] is None or not 0 <= calls < 2**62:
        raise ValueError("no name, time or number of calls")
    op = collective(name) or "unknown" if kind == "comm" else ""
    return {"kind": kind, "op": op, "name": name, "n_calls": calls} | times


def _seconds(cell: str, unit: str) -> float | None:
    """Return a time in s from the column's unit, ns if old versions of nsys name none."""
    if not cell.strip():
        return None
    value = Decimal(cell.strip().replace(",", ""))
    if not value.is_finite() or value < 0:
        raise ValueError(f"time is {cell.strip()}")
    return float(value.scaleb(_EXPONENT.get(unit, -9)))
