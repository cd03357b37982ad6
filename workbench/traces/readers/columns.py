"""Tables as text: their fields, the quantity and unit of each column, messages about them."""

import csv
import re

import numpy as np
import pandas as pd

from ...base.checks import refuse
from ...base.units import GIB, KIB, MIB

_BYTES = {
    "b": 1, "byte": 1, "bytes": 1, "kib": KIB, "mib": MIB, "gib": GIB,
    "kb": 1e3, "mb": 1e6, "gb": 1e9,
}  # fmt: skip
_TICKS = {  # units per second
    "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1,
    "ms": 1e3, "msec": 1e3, "millis": 1e3, "millisecond": 1e3, "milliseconds": 1e3,
    "us": 1e6, "usec": 1e6, "usecs": 1e6, "µs": 1e6, "μs": 1e6, "micros": 1e6,
    "microsecond": 1e6, "microseconds": 1e6,
    "ns": 1e9, "nsec": 1e9, "nanos": 1e9, "nanosecond": 1e9, "nanoseconds": 1e9,
}  # fmt: skip
_NAMES = {
    "nbytes": "size message_size buffer_size tensor_size data_size msg_size message msg msgsize "
    "messagesize datasize payload length",
    "seconds": "time latency duration elapsed elapsed_time mean_time avg_time average_time "
    "median_time time_mean time_avg time_median avg_latency mean_latency latency_avg t dur "
    "runtime run_time walltime wall_time",
    "n_workers": "n_workers workers world_size world ranks gpus processes np num_workers nworkers "
    "n_gpus ngpus num_gpus gpu_count nranks n_ranks num_ranks nproc nprocs n_procs num_procs "
    "procs n_processes worldsize devices ndevices n_devices num_devices tasks ntasks n_tasks "
    "num_tasks",
    "n_nodes": "n_nodes nodes nnodes num_nodes hosts nhosts n_hosts num_hosts",
    "op": "op collective operation coll primitive",
}
_STEMS = {name: quantity for quantity, names in _NAMES.items() for name in names.split()}
UNITS_OF = {"nbytes": _BYTES, "seconds": _TICKS}
_FIELD_BYTES = 2**17
_LONGEST = 2000  # characters read of a log's line; rows have about 150
COLOUR = re.compile(r"\x1b\[[0-9;?]{0,20}[ -/]?[@-~]")  # codes of terminals
NO_WORKERS = "the text does not say how many workers took part. Set it: table.assign(n_workers=8)"


def accepted(quantity: str) -> str:
    """Return common names of columns with a quantity, for a message."""
    example = {"nbytes": "size_mib", "seconds": "time_us"}.get(quantity)
    names = ", ".join(dict.fromkeys([quantity, *_NAMES[quantity].split()[:8]]))
    return names + (f", with a unit such as {example}" if example else "")


def nothing_timed(text: str, file: str, problems: list[str], expected: str):
    """Raise ValueError for a text without a row that could be read."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    found = problems[0] if problems else f"it begins with {first[:80]!r}"
    refuse(file, expected, found=f"no timed collective: {found}")


def log_lines(text: str) -> list[str]:
    """Return the lines of a log without colours, carriage returns and excess length."""
    return [line[:_LONGEST].replace("\r", " ") for line in COLOUR.sub("", text).split("\n")]


def whole_within(values: pd.Series, least: float, limit: float) -> pd.Series:
    """Return which values are whole numbers from `least` up and below `limit`."""
    return (values >= least) & (values < limit) & (values % 1 == 0)


def whole_bytes(values: pd.Series, unit: float, name: str) -> tuple[pd.Series, list[str]]:
    """Return sizes in bytes, and a remark on an ambiguous unit.

    Printed sizes are rounded, so they become the nearest whole bytes, except those in bytes.
    unit : bytes
    """
    sizes = values * unit
    if unit not in (1e3, 1e6, 1e9):
        return (sizes if unit == 1 else sizes.round()), []
    said = f"{name}: its unit is {unit:.0f} bytes"
    binary = {1e3: KIB, 1e6: MIB, 1e9: GIB}[unit]
    seen = values[values * binary >= 1]
    if len(seen) > 1 and (_powers(seen * binary) & ~_powers(seen * unit)).all():
        said += f", but with {binary} bytes all sizes would be powers of 2"
    return sizes.round(), [f"{said}. Write KiB, MiB or GiB if those are meant"]


def _powers(sizes: pd.Series) -> pd.Series:
    """Return which sizes are powers of 2 to five digits."""
    return (sizes / 2 ** np.log2(sizes).round() - 1).abs() < 1e-5


def header(head: bytes) -> list[str]:
    """Return the names of the columns in the first line that is not blank or a comment."""
    text = head.decode("utf-8-sig", errors="replace")
    lines = (line for line in text.split("\n") if line.strip() and not line.startswith("#"))
    line = next(lines, "")[:_FIELD_BYTES]
    try:
        names = next(csv.reader([line], delimiter=_delimiter(line), skipinitialspace=True), [])
    except csv.Error:
        names = []
    return [] if {"numcycle", "inplace"} <= {n.lower() for n in names} else names


def delimited(text: str, file: str) -> tuple[pd.DataFrame, list[str]]:
    """Return fields as text, indexed by line number, and the lines that do not fit the header."""
    lines = text.removeprefix("\ufeff").split("\n")
    kept = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and line[0] != "#"]
    names = header("\n".join(line for _, line in kept[:1]).encode())
    delimiter = _delimiter(kept[0][1] if kept else "")
    reader = csv.reader((line for _, line in kept), delimiter=delimiter, skipinitialspace=True)
    numbers, rows, problems = [], [], []
    try:
        for fields in reader:
            number = kept[reader.line_num - 1][0]
            if len(fields) != len(names):
                problems.append(f"line {number} left out: {len(fields)} fields, not {len(names)}")
            elif reader.line_num > 1:
                numbers.append(number)
                rows.append([field.strip() for field in fields])
    except csv.Error as error:
        raise ValueError(f"{file}: not a CSV table ({error}) near line {reader.line_num}") from None
    columns = [name.strip() for name in names]
    return pd.DataFrame(rows, index=numbers, columns=columns, dtype=str), problems


def quantities(columns) -> dict[str, list[tuple[int, float | None]]]:
    """Return quantity -> (position, units per second or bytes per unit; None if unknown)."""
    found: dict = {}
    for position, column in enumerate(columns):
        if quantity := _quantity(str(column)):
            found.setdefault(quantity[0], []).append((position, quantity[1]))
    return found


def _quantity(column: str) -> tuple[str, float | None] | None:
    """Return the quantity and unit of a column: `Avg latency (us)` -> (seconds, 1e6)."""
    name = re.sub(r"[^\wµμ]+", "_", column.strip().lower()).strip("_")
    if name in ("nbytes", "n_bytes", "num_bytes", "bytes"):
        return "nbytes", 1
    if name in _TICKS and len(name) > 1:
        return "seconds", _TICKS[name]
    if name in _STEMS:
        return _STEMS[name], None
    stem, _, unit = name.rpartition("_")
    quantity = _STEMS.get(stem, "")
    return (quantity, UNITS_OF[quantity][unit]) if unit in UNITS_OF.get(quantity, {}) else None


def _delimiter(line: str) -> str:
    return next((mark for mark in ("\t", ",", ";") if mark in line), ",")
