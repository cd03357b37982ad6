"""The tables of the package: one dict per table, column -> what it contains and its unit.

`check(table, columns, name)` refuses a table that lacks columns. `table_of` is the same for
arguments:

    @checked(gradients=table_of(GRADIENTS))
    def fuse(gradients, policy): ...
"""

import csv
import io
import itertools
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd

from .checks import refuse, require

EVENTS = {
    "rank": "number of the worker, <NA> if the file does not contain it",
    "stream": "device stream; -1 on the host",
    "thread": "host thread; -1 on a device",
    "iteration": "number from the profiler; -1 outside every iteration",
    "kind": "compute, comm, memory, host or annotation",
    "op": "name of the collective, empty for other rows",
    "name": "as written in the file",
    "group": "process group of a comm row, empty if unknown",
    "nbytes": "bytes of a comm row's message or of a host row's gradient, <NA> for other rows",
    "n_workers": "workers in a comm row's group, <NA> for other rows",
    "correlation": "number shared by a launch and its device row; -1 for none",
    "start_s": "s since the run's first event",
    "end_s": "s since the run's first event",
}
ITERATIONS = {
    "rank": "number of the worker, <NA> if unknown",
    "iteration": "number from the profiler",
    "duration_s": "s",
    "compute_s": "s with a compute row running",
    "comm_s": "s with a comm row running",
    "exposed_comm_s": "s of communication, waiting included, with no compute running",
    "memory_s": "s with a copy or set running",
    "exposed_memory_s": "s of copies and sets with neither compute nor communication running",
    "idle_s": "s with nothing running; duration = compute + both exposed + idle",
}
COLLECTIVES = {
    "iteration": "number from the profiler; -1 outside every iteration",
    "index": "number of the message within its iteration, in order of starts, from 0",
    "op": "name of the collective",
    "nbytes": "bytes of the message, <NA> if unknown",
    "n_workers": "workers in the group, <NA> if unknown",
    "n_ranks_seen": "ranks with a row of this message",
    "ready_s": "s, end of the last compute launched before the message, latest rank",
    "launch_s": "s, the host's launch of the message, latest rank; <NA> if not recorded",
    "start_s": "s, first rank's start",
    "end_s": "s, last rank's end",
    "wait_s": "s from the first to the last rank's arrival",
    "transfer_s": "s from the last arrival to the end",
}
GRADIENTS = {  # gradients(run) adds ready_min_s and ready_max_s, over its ranks and iterations
    "name": "name of the gradient, or its number in backward order",
    "nbytes": "bytes on the wire, <NA> if unknown",
    "ready_s": "s since backward began; non-decreasing",
}
MEASUREMENTS = {
    "op": "name of the collective",
    "n_workers": "workers",
    "n_nodes": "nodes, <NA> if unknown",
    "nbytes": "bytes of the message",
    "seconds": "s",
}
BUCKETS = {
    "n_gradients": "gradients fused",
    "nbytes": "bytes of the message",
    "ready_s": "s since backward began until its last gradient is ready",
}
TIMELINE = BUCKETS | {
    "start_s": "s since backward began",
    "end_s": "s since backward began",
}
LEDGER = {
    "file": "path of the file",
    "rank": "number of the worker, <NA> if unknown",
    "what": "which events or lines",
    "n_events": "how many",
    "kept": "True if they are in the table",
    "why": "reason in words",
}

# Which call makes a table: from a run, and from a path.
_MADE = {
    "events": ("run.events", "load_run(path)"),
    "gradients": ("gradients(run)", "gradients(load_run(path))"),
    "measurements": ("all_reduces(run)", "read_measurements(path)"),
    "sizes": ("gradients(run)", "pd.read_csv(path)"),
}


def check(table: pd.DataFrame, columns: dict, what: str) -> pd.DataFrame:
    """Return the table if it has each of the columns once; otherwise raise a ValueError."""
    of_run, of_path = _MADE.get(what, ("", ""))
    if not isinstance(table, pd.DataFrame):
        call = of_path if isinstance(table, str | PathLike) else ""
        call = of_run if hasattr(table, "events") else call
        found = type(table).__name__
        refuse(what, "a DataFrame", found=found, do=f"Pass {call}" if call else "")
    missing = [f"{name} ({columns[name]})" for name in columns if name not in table.columns]
    if missing:
        wanted = "; ".join(missing[:3]) + f" and {len(missing) - 3} more" * (len(missing) > 3)
        found = ", ".join(map(str, table.columns[:12])) or "no column"
        found += ", ..." * (len(table.columns) > 12)
        if of_run and what != "events" and set(EVENTS) <= set(table.columns):
            found += f". These are EVENTS: pass {of_run.replace('run', 'events')}"
        raise ValueError(f"{what}: missing column {wanted}. Found: {found}")
    twice = table.columns[table.columns.duplicated()].intersection(list(columns))
    expected, do = "each column once", "Drop or rename one of them"
    require(not len(twice), what, expected, found=f"column {', '.join(twice)} twice", do=do)
    return table


def table_of(columns: dict) -> Callable:
    """Return a check for `checked`: a DataFrame that has each of the columns once."""
    return lambda table, name: check(table, columns, name)


def rows_of(path: Path, columns: Iterable[str] = ()) -> pd.DataFrame:
    """Return the complete rows of a CSV that may still be written, as text; none without a file.

    Raises ValueError if a column is missing, or is not one of text and holds no finite number.
    """
    advice = "The file is damaged or another table: remove it and record it again"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}. {advice}") from None
    whole = io.StringIO(text[: text.rfind("\n") + 1], newline="\n")
    lines = itertools.dropwhile(lambda line: line.startswith("#"), whole)
    header, *rows = [*csv.reader(lines)] or [list(columns)]
    table = pd.DataFrame([row for row in rows if len(row) == len(header)], columns=header)
    for column in columns:
        require(column in table, str(path), f"a column {column}", found="none", do=advice)
        if column not in ("kind", "name", "op"):
            known = np.isfinite(pd.to_numeric(table[column], "coerce"))
            odd = table[column][~known]
            name = f"{path}: column {column}"
            require(known.all(), name, "finite numbers", *odd[:1], do=advice)
    return table
