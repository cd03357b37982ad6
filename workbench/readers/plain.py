"""A CSV table of timed collectives: our own sweeps, or any with n_workers, nbytes, seconds."""

import io

import pandas as pd

from ..tables import MEASUREMENTS

_REQUIRED = ("n_workers", "nbytes", "seconds")


def recognises(head: bytes) -> bool:
    """Whether the first line that is no comment names the columns."""
    text = head.decode(errors="replace")
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    header = next(lines, "").split(",")
    return set(_REQUIRED) <= {column.strip().strip('"') for column in header}


def read(text: str, file: str) -> tuple[pd.DataFrame, list[str]]:
    """MEASUREMENTS (with any further columns) and what is wrong with which line."""
    table = pd.read_csv(io.StringIO(text), comment="#", skipinitialspace=True)
    numbers = table[list(_REQUIRED)].apply(pd.to_numeric, errors="coerce")
    bad = numbers.isna().any(axis=1)
    problems = [
        f"row {row + 1} of the table left out: {', '.join(_REQUIRED)} must be numbers, got "
        f"{table.loc[row, list(_REQUIRED)].tolist()}"
        for row in table.index[bad]
    ]
    if bad.all():
        raise ValueError(f"{file}: no row with numbers for {', '.join(_REQUIRED)}")
    table = table.assign(**numbers)[~bad].reset_index(drop=True)
    table = table.assign(op=table.get("op", "all_reduce"), n_nodes=table.get("n_nodes", pd.NA))
    whole = {"n_workers": "int64", "n_nodes": "Int64"}
    return table[[*MEASUREMENTS, *table.columns.difference(MEASUREMENTS, sort=False)]].astype(
        whole
    ), problems
