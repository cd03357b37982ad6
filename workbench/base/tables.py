"""The tables of the package: one dict each, column -> what it holds and in which unit."""

from os import PathLike

import pandas as pd

EVENTS = {
    "rank": "worker's number, <NA> when the file does not say",
    "stream": "device stream; -1 on the host",
    "thread": "host thread; -1 on a device",
    "iteration": "number the profiler gave; -1 outside every iteration",
    "kind": "compute, comm, memory, host or annotation",
    "op": "name of the collective, else empty",
    "name": "as written in the file",
    "group": "process group of a comm row, empty when the file does not say",
    "nbytes": "bytes of a comm row's message or of the gradient a host row accumulates, else <NA>",
    "n_workers": "workers in a comm row's group, else <NA>",
    "correlation": "number shared by a launch and its device row; -1 for none",
    "start_s": "s since the run's first event",
    "end_s": "s since the run's first event",
}
ITERATIONS = {
    "rank": "worker's number, <NA> when unknown",
    "iteration": "number the profiler gave",
    "duration_s": "s",
    "compute_s": "s with a compute row running",
    "comm_s": "s with a comm row running",
    "exposed_comm_s": "s of communication, waiting included, with no compute running",
    "memory_s": "s with a copy or set running",
    "exposed_memory_s": "s of copies and sets with neither compute nor communication running",
    "idle_s": "s with nothing running; duration = compute + both exposed + idle",
}
COLLECTIVES = {
    "iteration": "number the profiler gave; -1 outside every iteration",
    "index": "place of the message within its iteration, in order of starts, from 0",
    "op": "name of the collective",
    "nbytes": "bytes of the message, <NA> when the file does not say",
    "n_workers": "workers in the group, <NA> when the file does not say",
    "n_ranks_seen": "ranks whose row was found",
    "ready_s": "s, end of the last compute launched before the message, latest rank",
    "launch_s": "s, the host's launch of the message, latest rank; <NA> when not recorded",
    "start_s": "s, first rank's start",
    "end_s": "s, last rank's end",
    "wait_s": "s from the first to the last rank's arrival",
    "transfer_s": "s from the last arrival to the end",
}
GRADIENTS = {  # gradients(run) adds ready_min_s and ready_max_s, over its ranks and iterations
    "name": "gradient's name, or its number in backward order",
    "nbytes": "bytes on the wire, <NA> when unknown",
    "ready_s": "s since backward began; non-decreasing",
}
MEASUREMENTS = {
    "op": "name of the collective",
    "n_workers": "workers",
    "n_nodes": "nodes, <NA> when unknown",
    "nbytes": "bytes of the message",
    "seconds": "s",
}
BUCKETS = {
    "n_gradients": "gradients fused",
    "nbytes": "bytes of the message",
    "ready_s": "s since backward began, when its last gradient is ready",
}
TIMELINE = BUCKETS | {
    "start_s": "s since backward began",
    "end_s": "s since backward began",
}
LEDGER = {
    "file": "path of the file",
    "rank": "worker's number, <NA> when unknown",
    "what": "which events or lines",
    "n_events": "how many",
    "kept": "True when they are in the table",
    "why": "reason in words",
}


# Which call makes a table: of a run, and of a path.
_MADE = {
    "events": ("run.events", "load_run(path)"),
    "gradients": ("gradients(run)", "gradients(load_run(path))"),
    "measurements": ("all_reduces(run)", "read_measurements(path)"),
    "sizes": ("gradients(run)", "pd.read_csv(path)"),
}


def check(table: pd.DataFrame, columns: dict, what: str) -> pd.DataFrame:
    """Return the table when it has the columns, each once, else raise a ValueError naming them."""
    of_run, of_path = _MADE.get(what, ("", ""))
    if not isinstance(table, pd.DataFrame):
        call = of_path if isinstance(table, str | PathLike) else ""
        call = of_run if hasattr(table, "events") else call
        advice = f". Pass {call}" if call else ""
        raise ValueError(f"{what}: expected a DataFrame, got {type(table).__name__}{advice}")
    missing = [column for column in columns if column not in table.columns]
    if missing:
        wanted = "; ".join(f"{column} ({columns[column]})" for column in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        found = ", ".join(map(str, table.columns[:12])) + (
            "" if len(table.columns) <= 12 else ", ..."
        )
        advice = ""
        if of_run and what != "events" and set(EVENTS) <= set(table.columns):
            call = of_run.replace("run", "events")
            advice = f". These are EVENTS: pass {call}"
        found = f"Found: {found or 'no column'}{advice}"
        raise ValueError(f"{what}: missing column {wanted}{more}. {found}")
    twice = table.columns[table.columns.duplicated()].intersection(list(columns))
    if len(twice):
        raise ValueError(f"{what}: column {twice[0]} is there more than once. Drop or rename one")
    return table
