"""From files to tables: a run of several ranks, timed collectives, totals."""

import html
import os
import warnings
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from ..base.checks import checked, instance, one_of, require
from ..base.progress import bar
from ..base.tables import EVENTS, LEDGER, MEASUREMENTS
from ..base.units import format_seconds
from . import clocks, files, ranks
from .readers import collectives, columns, execution_trace, nccl_tests, plain, totals
from .readers.source import Source

_TEXT = ("name", "kind", "op", "group")


@dataclass(frozen=True, repr=False, eq=False)
class Run:
    """A recorded training run: name, what its files say about it (info), EVENTS and LEDGER."""

    name: str
    info: dict
    events: pd.DataFrame
    ledger: pd.DataFrame

    def __repr__(self) -> str:
        return "\n".join(f"{key}: {_printable(value)}" for key, value in self._lines())

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(key)}</th>"
            f"<td style='text-align:left'>{html.escape(_printable(value))}</td></tr>"
            for key, value in self._lines()
        )
        return f"<table>{rows}</table>"

    def _lines(self) -> list[tuple[str, str]]:
        events, ledger = self.events, self.ledger
        ranks = ", ".join("unknown" if pd.isna(r) else str(r) for r in events["rank"].unique())
        numbers = events.loc[events["iteration"] >= 0, "iteration"].nunique()
        kept, dropped = (ledger.loc[ledger["kept"] == k, "n_events"].sum() for k in (True, False))
        notes = (ledger["n_events"] == 0) & (ledger["what"] != "file")
        remarks = ledger.loc[notes, "why"].unique()
        span = events["end_s"].max() if len(events) else 0.0
        return [
            ("run", self.name),
            ("ranks", f"{ranks} of {self.info.get('world_size') or 'unknown'}"),
            ("hardware", str(self.info.get("hardware") or "unknown")),
            ("iterations", f"{numbers} in {format_seconds(span)}"),
            ("events", f"{kept:,} kept, {dropped:,} not (run.ledger says why)"),
            *(("note", why) for why in remarks),
        ]


def _printable(text: str) -> str:
    """Return text from a file without characters that control a terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


@checked(
    executor=lambda v, name: require(v is None or hasattr(v, "map"), name, "an Executor", v),
    keep=one_of(("all", "kernels")),
    cache=instance(bool | str | os.PathLike | None, "a folder, True or None"),
)
def load_run(
    path, executor: Executor | None = None, *, keep: str = "all", cache=None, patterns=None
) -> Run:
    """Load a trace, or the traces of a run's ranks.

    Parameters
    ----------
    path : a file, a folder with one trace per rank, a pattern (`runs/*.json.gz`), a list of these,
        or a tar archive of ranks; gzipped or not
    executor : a concurrent.futures.Executor (`client.get_executor()` for Dask) reads files in
        parallel
    keep : "all", or "kernels" to drop host rows while reading, so that a trace of gigabytes needs
        little memory. Gradients and launch times need the host rows; a run without a GPU has no
        others and is refused
    cache : a folder that keeps decoded files, so that opening them again is instant; True for
        osf-workbench in the user's cache folder. Archives are not cached
    patterns : {regular expression: collective} for communication kernels that are not known here,
        such as {"fast_reduce": "all_reduce"}. They take precedence over the known ones, the first
        match in a kernel's name counts, and "" takes the collective from the call that launched it

    The ranks share one time axis (see `clocks`). A warning reports what is lost from a damaged
    file, and `run.ledger` accounts for every event.
    Raises FileNotFoundError for a missing path; ValueError if no trace can be read, two files
    claim one rank, or the clocks of the ranks cannot be aligned.
    """
    added = collectives.compiled(patterns)
    paths, folder = files.named(path)
    options = {"keep": keep, "cached": _cache_folder(cache), "patterns": added}
    options["strict"] = len(paths) == 1 and folder is None
    parts = (executor.map if executor else map)(partial(ranks.read_file, **options), paths)
    parts = bar(parts, "files", len(paths)) if len(paths) > 1 else parts
    parts = ranks.by_host([part for of_file in parts for part in of_file])
    ledger = [row for _, _, rows in parts for row in rows]
    tables = [table for table, _, _ in parts if table is not None]
    infos = [info for table, info, _ in parts if table is not None]
    if not tables:
        raise ValueError(_no_trace(path, ledger))
    ranks.one_file_per_rank(infos)
    try:
        tables, how, doubtful = clocks.align(tables)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    ledger += ranks.remarks(infos, how, doubtful)
    _warn(ledger)
    name = folder.name if folder else paths[0].name
    return Run(name, _run_info(infos, folder), _join(tables), _ledger(ledger))


def read_events(path, *, patterns=None) -> pd.DataFrame:
    """Return EVENTS of a trace file or a folder of ranks: `load_run(path).events`."""
    return load_run(path, patterns=patterns).events


def read_measurements(path) -> pd.DataFrame:
    """Return MEASUREMENTS from a file, or from any DataFrame with sizes, times and workers.

    Files: output of nccl-tests and rccl-tests (text, JSON, CSV), of OSU's collectives, look-up
    tables of all-reduces, and CSV. Other columns stay. A warning lists the lines that could not be
    read. Raises FileNotFoundError, or ValueError if there is no timed collective.
    """
    require(not isinstance(path, Run), "path", "a file or a table", path, "Pass all_reduces(run)")
    if isinstance(path, pd.DataFrame):
        what, damage = "table", []
        table, problems = plain.from_table(path)
    else:
        what, source = path, Source(files.one(path))
        table, problems = _read_text(source, _sweep, "read_measurements")
        damage = source.damage
    for problem in damage + problems:
        warnings.warn(f"{what}: {problem}", stacklevel=2)
    return table[[*MEASUREMENTS, *(c for c in table if c not in MEASUREMENTS)]]


def read_totals(path, *, patterns=None) -> pd.DataFrame:
    """Return sums over a whole run, one row per kernel, from CSV of nvprof or `nsys stats`.

    Columns: kind, op, name, n_calls, seconds, mean_s, min_s, max_s. The overlap of kernels is
    unknown. `patterns` are those of `load_run`. Raises FileNotFoundError, or ValueError for
    another file.
    """
    source = Source(files.one(path))
    with collectives.added(collectives.compiled(patterns)):
        return _read_text(source, lambda _: totals.totals_table, "read_totals")


def _read_text(source: Source, reader_of, call: str):
    """Return what the reader makes of the file; a ValueError names the call that reads it."""
    head = source.head
    try:
        return reader_of(head)(source.text(), source.file)
    except ValueError as error:
        why = str(error).removeprefix(f"{source.file}: ")
        why = "; ".join([ranks.refusal(head, why, call), *source.damage])
        raise ValueError(f"{source.file}: {why}") from None


def _sweep(head: bytes):
    """Return the reader of timed collectives for this head; `plain` for an incomplete header."""
    known = len(columns.quantities(columns.header(head))) > 1
    other = plain if known else nccl_tests
    return next((r for r in ranks.SWEEPS if r.recognises(head)), other).read


def add_sizes(run: Run, path, rank: int | None = None) -> Run:
    """Return the run with sizes and groups of messages that its trace lacks.

    path : the PyTorch execution trace of one rank
    rank : that rank, if the run has several

    Messages are linked by their order. Raises ValueError if they cannot be.
    """
    events = run.events
    known = events["rank"].unique()
    mine = events if len(known) == 1 else events[events["rank"] == rank]
    require(len(known) == 1 or rank in known, "rank", f"one of {known.tolist()}", rank)
    source = Source(files.one(path))
    joined = execution_trace.join(mine, execution_trace.called_messages(source))
    columns = ["op", "nbytes", "n_workers"]
    filled = {c: joined[c].astype(object).combine_first(events[c].astype(object)) for c in columns}
    events = events.assign(**filled).astype({c: events[c].dtype for c in columns[1:]})
    n = joined["nbytes"].notna().sum() - mine["nbytes"].notna().sum()
    why = f"sizes of {n} messages taken from the execution trace, linked by their order"
    row = ranks.note({"file": source.file, "rank": rank}, why)
    ledger = pd.concat([run.ledger, _ledger([row])], ignore_index=True)
    return replace(run, events=events.astype({"op": "category"}), ledger=ledger)


def _cache_folder(cache) -> Path | None:
    if cache is None or cache is False:
        return None
    if cache is True:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "osf-workbench"
    return Path(cache).expanduser()


def _no_trace(path, ledger: list[dict]) -> str:
    rows = sorted(ledger, key=lambda row: not row["warn"])[:3]  # first what is said about traces
    found = "; ".join(f"{Path(row['file']).name} ({row['why'][:160]})" for row in rows)
    return (
        f"{path}: no trace in this folder, list or archive. Expected traces such as PyTorch's "
        f"(.json or .json.gz, one per rank); found {found or 'no file'}"
    )


def _warn(ledger: list[dict]) -> None:
    """Warn once per file, with all that is worth a warning."""
    whys = {}
    for row in ledger:
        if row.get("warn"):
            whys.setdefault(row["file"], {})[row["why"]] = None
    for file, each in whys.items():
        warnings.warn(": ".join(filter(None, (file, "; ".join(each)))), stacklevel=4)


def _join(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return EVENTS of all ranks in s since the first; subtracted in ns, so that none is lost."""
    origin = min((table["start_ns"].min() for table in tables if len(table)), default=0)
    columns = {}
    for column in EVENTS:  # one by one, so that memory never contains three copies
        if column in ("start_s", "end_s"):
            ns = np.concatenate([table[column.replace("_s", "_ns")] for table in tables])
            ns -= origin
            columns[column] = ns / 1e9
        elif len(tables) == 1:
            columns[column] = tables[0][column]
        elif column in _TEXT:
            columns[column] = union_categoricals([table[column] for table in tables])
        else:
            columns[column] = pd.concat([table[column] for table in tables], ignore_index=True)
    return pd.DataFrame(columns, copy=False)


def _run_info(infos: list[dict], folder: Path | None) -> dict:
    """Return what the files say about the run; a run.json in the folder takes precedence."""
    devices = list(dict.fromkeys(d for info in infos for d in info["devices"] if d))
    said = {
        "world_size": max((i["world_size"] or 0 for i in infos), default=0) or None,
        "backend": next((i["backend"] for i in infos if i["backend"]), None),
        "hardware": ", ".join(devices) or None,
        "ranks": [info["rank"] for info in infos],
        "files": [info["file"] for info in infos],
    }
    notes = folder / "run.json" if folder else None
    if notes and notes.is_file() and str(notes) not in said["files"]:  # a trace may be named so
        try:
            said |= msgspec.json.decode(notes.read_bytes(), type=dict)
        except msgspec.MsgspecError as error:
            warnings.warn(f"{notes}: left out, not a JSON object: {error}", stacklevel=4)
    return said


def _ledger(rows: list[dict]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=list(LEDGER))
    return table.astype({"rank": "Int64", "n_events": "int64", "kept": bool})
