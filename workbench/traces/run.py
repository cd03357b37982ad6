"""From files to tables: which reader a file wants, told by its content, and a run of its ranks."""

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

from ..base.progress import bar
from ..base.tables import EVENTS, LEDGER, MEASUREMENTS
from ..base.units import format_seconds
from . import clocks, files, ranks
from .readers import collectives, columns, execution_trace, nccl_tests, plain, totals
from .readers.source import Source

_TEXT = ("name", "kind", "op", "group")


@dataclass(frozen=True, repr=False, eq=False)
class Run:
    """A recorded training run: name, what its files say of themselves, EVENTS and LEDGER."""

    name: str
    info: dict
    events: pd.DataFrame
    ledger: pd.DataFrame

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
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
            ("hardware", str(self.info.get("hardware") or "not said")),
            ("iterations", f"{numbers} in {format_seconds(span)}"),
            ("events", f"{kept:,} kept, {dropped:,} not (run.ledger says why)"),
            *(("note", why) for why in remarks),
        ]


def _printable(text: str) -> str:
    """Text from a file without what would steer a terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def load_run(
    path, executor: Executor | None = None, *, keep: str = "all", cache=None, patterns=None
) -> Run:
    """Load a trace, or the traces of a run's ranks.

    Parameters
    ----------
    path : a file, a folder with one trace a rank, a pattern (`runs/*.json.gz`), a list of these,
        or a tar archive of ranks; gzip or not
    executor : any concurrent.futures.Executor (`client.get_executor()` of Dask): files side by side
    keep : "all", or "kernels" to drop host rows while reading, so that a trace of gigabytes needs
        little memory; gradients and launch times need the host rows, and so does all of a run
        without a GPU, which is refused
    cache : a folder in which decoded files are kept, so that opening them again is instant; True
        for osf-workbench in the user's cache folder. Archives are not cached
    patterns : {regular expression: collective} for kernels of communication that are not known
        here, such as {"fast_reduce": "all_reduce"}; they come before those known, the first found
        in a kernel's name holds, and "" leaves the collective to the call that launched it

    The ranks share one axis of time (see `clocks`). What is lost of a damaged file is warned of,
    and accounted for in `run.ledger` like everything else.
    Raises FileNotFoundError for a missing path; ValueError when no trace can be read, two files
    claim one rank, or the ranks' clocks cannot be aligned.
    """
    if keep not in ("all", "kernels"):
        raise ValueError(f'keep: expected "all" or "kernels", got {keep!r}')
    if executor is not None and not hasattr(executor, "map"):
        raise ValueError(f"executor: expected one of concurrent.futures, got {executor!r}")
    added = collectives.compiled(patterns)
    paths, folder = files.named(path)
    only = len(paths) == 1 and folder is None
    options = {"keep": keep, "cached": _cache_folder(cache), "patterns": added}
    read = partial(ranks.read_file, strict=only, **options)
    parts = executor.map(read, paths) if executor else map(read, paths)
    parts = bar(parts, "files", len(paths)) if len(paths) > 1 else parts
    parts = ranks.by_host([part for of_file in parts for part in of_file])
    ledger = [row for _, _, rows in parts for row in rows]
    tables = [table for table, _, _ in parts if table is not None]
    infos = [info for table, info, _ in parts if table is not None]
    if not tables:
        raise ValueError(_no_trace(path, paths, ledger))
    ranks.check(infos)
    try:
        tables, how, doubtful = clocks.align(tables)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    ledger += ranks.remarks(infos, how, doubtful)
    _warn(ledger)
    name = folder.name if folder else paths[0].name
    return Run(name, _run_info(infos, folder), _join(tables), _ledger(ledger))


def read_events(path, *, patterns=None) -> pd.DataFrame:
    """EVENTS of a trace file or a folder of ranks: `load_run(path, patterns=patterns).events`."""
    return load_run(path, patterns=patterns).events


def read_measurements(path) -> pd.DataFrame:
    """MEASUREMENTS from a file, or from any DataFrame with sizes, times and workers.

    Files: output of nccl-tests and rccl-tests (text, JSON, CSV), of OSU's collectives, look-up
    tables of all-reduces, and plain CSV. Further columns stay. Lines that could not be read are
    warned of by number. Raises FileNotFoundError, or ValueError when there is no timed collective.
    """
    if isinstance(path, Run):
        raise ValueError(
            "expected a file or a table, got a Run: all_reduces(run) gives its timings"
        )
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
    """Sums over a whole run, a row a kernel: from CSV of nvprof or `nsys stats`.

    Columns: kind, op, name, n_calls, seconds, mean_s, min_s, max_s. Such a table knows nothing of
    overlap. `patterns` as `load_run` takes them. Raises FileNotFoundError, or ValueError when the
    file is no such table.
    """
    source = Source(files.one(path))
    with collectives.added(collectives.compiled(patterns)):
        return _read_text(source, lambda _: totals.totals_table, "read_totals")


def _read_text(source: Source, reader_of, call: str):
    """What the reader makes of the file's text; a ValueError tells which call reads the file."""
    head = source.head
    try:
        return reader_of(head)(source.text(), source.file)
    except ValueError as error:
        why = str(error).removeprefix(f"{source.file}: ")
        why = "; ".join([ranks.refusal(head, why, call), *source.damage])
        raise ValueError(f"{source.file}: {why}") from None


def _sweep(head: bytes):
    """The reader of timed collectives whose head this is; of half a header, that which says so."""
    known = len(columns.quantities(columns.header(head))) > 1
    other = plain if known else nccl_tests
    return next((r for r in ranks.SWEEPS if r.recognises(head)), other).read


def add_sizes(run: Run, path, rank: int | None = None) -> Run:
    """The run with the sizes and groups of messages that its trace lacks but the program told.

    `path` is the PyTorch execution trace of one rank: of `rank`, when the run has several.
    Messages are linked by their order. Raises ValueError when they cannot be.
    """
    events = run.events
    ranks_seen = events["rank"].unique()
    if len(ranks_seen) > 1 and rank not in ranks_seen:
        raise ValueError(f"rank: expected one of {ranks_seen.tolist()}, got {rank}")
    source = Source(files.one(path))
    mine = events if len(ranks_seen) == 1 else events[events["rank"] == rank]
    joined = execution_trace.join(mine, execution_trace.called_messages(source))
    columns = ["op", "nbytes", "n_workers"]
    filled = {c: joined[c].astype(object).combine_first(events[c].astype(object)) for c in columns}
    events = events.assign(**filled).astype({c: events[c].dtype for c in columns[1:]})
    known = joined["nbytes"].notna().sum() - mine["nbytes"].notna().sum()
    why = f"sizes of {known} messages taken from the execution trace, linked by their order"
    row = {"file": source.file, "rank": rank, "what": "note", "n_events": 0, "kept": True}
    ledger = pd.concat([run.ledger, _ledger([row | {"why": why}])], ignore_index=True)
    return replace(run, events=events.astype({"op": "category"}), ledger=ledger)


def _cache_folder(cache) -> Path | None:
    if cache is None or cache is False:
        return None
    if cache is True:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "osf-workbench"
    if not isinstance(cache, str | os.PathLike):
        raise ValueError(f"cache: expected a folder, True or None, got {cache!r}")
    return Path(cache).expanduser()


def _no_trace(path, paths: list[Path], ledger: list[dict]) -> str:
    rows = sorted(ledger, key=lambda row: not row["warn"])[:3]  # what is to be said of traces first
    found = "; ".join(f"{Path(row['file']).name} ({row['why'][:160]})" for row in rows)
    return (
        f"{path}: no trace in this folder, list or archive. Expected traces such as PyTorch's "
        f"(.json or .json.gz, one a rank); found {found or 'no file'}"
    )


def _warn(ledger: list[dict]) -> None:
    """One warning a file, with all there is to be said of it."""
    for file in dict.fromkeys(row["file"] for row in ledger if row.get("warn")):
        whys = dict.fromkeys(r["why"] for r in ledger if r["file"] == file and r.get("warn"))
        warnings.warn(": ".join(filter(None, (file, "; ".join(whys)))), stacklevel=3)


def _join(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """EVENTS of all ranks on one axis of seconds; the origin goes before the ns become floats."""
    starts = [table["start_ns"].min() for table in tables if len(table)]
    origin = min(starts, default=0)
    columns = {}
    for column in EVENTS:  # one by one, so that memory holds none of them thrice
        if column in ("start_s", "end_s"):
            ns = [table[column.removesuffix("_s") + "_ns"].to_numpy() for table in tables]
            ns = np.concatenate(ns)
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
    """What the files say of the run; the fields of a run.json in the folder come first."""
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
            warnings.warn(f"{notes}: left out, not a JSON object: {error}", stacklevel=3)
    return said


def _ledger(rows: list[dict]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=list(LEDGER))
    return table.astype({"rank": "Int64", "n_events": "int64", "kept": bool})
