"""From files to tables: which reader a file wants, told by its content, and a run of its ranks."""

import html
import re
import warnings
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals
from tqdm.auto import tqdm

from . import clocks, files
from .readers import kineto, nccl_tests, plain
from .readers.source import Source
from .tables import EVENTS, LEDGER, MEASUREMENTS
from .units import format_seconds

# Which reader a file wants is told by its head; the first that recognises it reads it.
TRACES = (kineto,)
SWEEPS = (plain, nccl_tests)
_RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
_TEXT = ("name", "kind", "op", "group")
_TICK_NS = 2000  # older traces round to us: two rows may seem to overlap by two ticks
_DOUBTFUL_NS = 100_000  # beyond this an overlap is worth a warning


@dataclass(frozen=True)
class Run:
    """A recorded training run: name, what its files say of themselves, EVENTS and LEDGER."""

    name: str
    info: dict = field(repr=False)
    events: pd.DataFrame = field(repr=False)
    ledger: pd.DataFrame = field(repr=False)

    def __str__(self) -> str:
        return "\n".join(f"{key}: {value}" for key, value in self._lines())

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(key)}</th>"
            f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
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
            ("hardware", self.info.get("hardware") or "not said"),
            ("iterations", f"{numbers} in {format_seconds(span)}"),
            ("events", f"{kept:,} kept, {dropped:,} not (run.ledger says why)"),
            *(("note", why) for why in remarks),
        ]


def load_run(path, executor: Executor | None = None, *, keep: str = "all") -> Run:
    """Load a trace, or the traces of a run's ranks.

    Parameters
    ----------
    path : a file, a folder with one trace a rank, a pattern (`runs/*.json.gz`), a list of these,
        or a tar archive of ranks; gzip or not
    executor : any concurrent.futures.Executor (`client.get_executor()` of Dask): files side by side
    keep : "all", or "kernels" to drop host rows while reading, so that a trace of gigabytes needs
        little memory; gradients and launch times need the host rows

    The ranks share one axis of time (see `clocks`). What is lost of a damaged file is warned of,
    and accounted for in `run.ledger` like everything else.
    Raises FileNotFoundError for a missing path; ValueError when no trace can be read, two files
    claim one rank, or the ranks' clocks cannot be aligned.
    """
    if keep not in ("all", "kernels"):
        raise ValueError(f'keep: expected "all" or "kernels", got {keep!r}')
    paths, folder = files.named(path)
    read = partial(_read_file, strict=len(paths) == 1 and folder is None, keep=keep)
    parts = executor.map(read, paths) if executor else map(read, paths)
    parts = tqdm(parts, total=len(paths), desc="files", unit="file", disable=len(paths) < 2)
    parts = [part for of_file in parts for part in of_file]
    ledger = [row for _, _, rows in parts for row in rows]
    tables = [table for table, _, _ in parts if table is not None]
    infos = [info for table, info, _ in parts if table is not None]
    if not tables:
        raise ValueError(_no_trace(path, paths, ledger))
    _check_ranks(infos)
    tables, how = clocks.align(tables, infos)
    ledger += _remarks(infos, how)
    _warn(ledger)
    name = folder.name if folder else paths[0].name
    return Run(name, _run_info(infos, folder), _join(tables), _ledger(ledger))


def read_events(path) -> pd.DataFrame:
    """EVENTS of a trace file or a folder of ranks: `load_run(path).events`."""
    return load_run(path).events


def read_measurements(path) -> pd.DataFrame:
    """MEASUREMENTS from the output of nccl-tests, or from a CSV table with those columns.

    Lines that could not be read are warned of by number. Raises FileNotFoundError, or ValueError
    when the file holds no timed collective.
    """
    source = Source(files.existing(path))
    reader = next((r for r in SWEEPS if r.recognises(source.head)), nccl_tests)
    table, problems = reader.read(source.text(), source.file)
    for problem in source.damage + problems:
        warnings.warn(f"{path}: {problem}", stacklevel=2)
    return table[[*MEASUREMENTS, *(c for c in table if c not in MEASUREMENTS)]]


def _no_trace(path, paths: list[Path], ledger: list[dict]) -> str:
    found = "; ".join(f"{Path(row['file']).name} ({row['why'][:80]})" for row in ledger[:3])
    return (
        f"{path}: no trace in this folder, list or archive. Expected traces such as PyTorch's "
        f"(.json or .json.gz, one a rank); found {len(paths)} files: {found or 'none'}"
    )


def _warn(ledger: list[dict]) -> None:
    """One warning a file, with all there is to be said of it."""
    for file in dict.fromkeys(row["file"] for row in ledger if row.get("warn")):
        whys = dict.fromkeys(r["why"] for r in ledger if r["file"] == file and r.get("warn"))
        warnings.warn(f"{file}: {'; '.join(whys)}", stacklevel=3)


def _read_file(path: Path, strict: bool, keep: str) -> list[tuple]:
    """(table or None, info, ledger) of a file, or of each member of an archive.

    What is no trace is an error if `strict`, else a LEDGER row.
    """
    parts = []
    try:
        for source in files.sources_of(path):
            parts.append(_read_source(source, keep))
    except (ValueError, OSError) as error:
        parts.append(_skipped(str(path), str(error), warn=True))
    if strict and all(table is None for table, _, _ in parts):
        row = parts[0][2][0] if parts else {"file": str(path), "why": "an archive without files"}
        raise ValueError(f"{row['file']}: {row['why']}")
    return parts


def _skipped(file: str, why: str, *, warn: bool = False) -> tuple:
    row = {"file": file, "what": "file", "n_events": 0, "kept": False, "warn": warn}
    return None, {}, [row | {"why": why.removeprefix(f"{file}: ")}]


def _read_source(source: Source, keep: str) -> tuple:
    if source.name == "run.json":
        return _skipped(source.file, "describes the run: see run.info")
    source.keep = keep
    reader = next((r for r in TRACES if r.recognises(source.head)), None)
    if reader is None:
        why = f"not a trace: expected JSON, it begins with {source.head[:40]!r}"
        return _skipped(source.file, "; ".join([why, *source.damage]))
    try:
        table, info, ledger = reader.read(source)
    except ValueError as error:
        message = str(error).removeprefix(f"{source.file}: ")
        return _skipped(source.file, "; ".join([message, *source.damage]))
    info["file"] = source.file
    ledger += [_note(info, why, warn=True) for why in source.damage]
    ledger += [_note(info, why, warn=late > _DOUBTFUL_NS) for why, late in _overlaps(table)]
    return _with_rank(table, info, source.name, ledger)


def _overlaps(table: pd.DataFrame) -> list[tuple[str, int]]:
    """Streams on which rows overlap, which no device does: (why, by how many ns at most)."""
    work = table[(table["stream"] >= 0) & table["kind"].isin(["compute", "comm", "memory"])]
    found = []
    for stream, rows in work.sort_values("start_ns", kind="stable").groupby("stream"):
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        late = np.maximum.accumulate(end)[:-1] - start[1:]
        if late.size and late.max() > _TICK_NS:
            longest = rows.iloc[int((end - start).argmax())]
            why = (
                f"stream {stream}: {int((late > _TICK_NS).sum())} rows start before an earlier one "
                f"ends, an overlap on one stream of up to {format_seconds(late.max() / 1e9)}; no "
                f"device does that, so a duration is wrong (longest: {longest['name'][:60]!r}, "
                f"{format_seconds((longest['end_ns'] - longest['start_ns']) / 1e9)})"
            )
            found.append((why, int(late.max())))
    return found


def _with_rank(table: pd.DataFrame, info: dict, name: str, ledger: list[dict]):
    """Take the rank from the file's name where its content tells none."""
    named = _RANK_IN_NAME.search(name)
    if info["rank"] is None and named:
        info["rank"] = int(named[1])
        ledger = [row | {"rank": info["rank"]} for row in ledger]
        ledger.append(_note(info, f"no rank in the file: {info['rank']} taken from its name"))
        table = table.assign(rank=pd.array([info["rank"]] * len(table), dtype="Int64"))
    elif info["rank"] is None:
        why = "no rank in the file: kept as rank <NA>. To set one, put rank<N> into the file's name"
        ledger.append(_note(info, why, warn=True))
    return table, info, ledger


def _note(info: dict, why: str, *, warn: bool = False) -> dict:
    row = {"file": info["file"], "rank": info.get("rank"), "what": "note", "n_events": 0}
    return row | {"kept": True, "why": why, "warn": warn}


def _check_ranks(infos: list[dict]) -> None:
    seen = {}
    for info in infos:
        rank = info["rank"]
        if rank in seen and rank is not None:
            raise ValueError(
                f"two files claim rank {rank}: {seen[rank]} and {info['file']}. Expected one file "
                "a rank: load one of them, or the files of one run"
            )
        if rank is None and len(infos) > 1:
            raise ValueError(
                f"{info['file']}: no rank in the file nor in its name, and there are {len(infos)} "
                "files. Put rank<N> into each file's name"
            )
        seen[rank] = info["file"]


def _remarks(infos: list[dict], how: str) -> list[dict]:
    """What is to be said of the ranks together: how their clocks agree, which are missing."""
    notes = [_note({"file": "", "rank": None}, how)] if how else []
    ranks = {info["rank"] for info in infos}
    size = max((info["world_size"] or 0 for info in infos), default=0)
    missing = sorted(set(range(min(size, 10**6))) - ranks)
    if missing and size > 1:
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        why = f"{len(missing)} of {size} ranks have no file: {shown}"
        notes.append(_note({"file": "", "rank": None}, why))
    return notes


def _join(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """EVENTS of all ranks on one axis of seconds; the origin goes before the ns become floats."""
    tables = [t if "group" in t else t.assign(group=pd.Categorical([""] * len(t))) for t in tables]
    starts = [table["start_ns"].min() for table in tables if len(table)]
    origin = min(starts, default=0)
    text = {c: union_categoricals([table[c] for table in tables]) for c in _TEXT}
    events = pd.concat([table.drop(columns=list(_TEXT)) for table in tables], ignore_index=True)
    events = events.assign(
        **text,
        start_s=(events["start_ns"] - origin) / 1e9,
        end_s=(events["end_ns"] - origin) / 1e9,
    )
    return events[list(EVENTS)]


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
    if notes and notes.is_file():
        try:
            said |= msgspec.json.decode(notes.read_bytes(), type=dict)
        except msgspec.MsgspecError as error:
            warnings.warn(f"{notes}: left out, not a JSON object: {error}", stacklevel=3)
    return said


def _ledger(rows: list[dict]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=list(LEDGER))
    return table.astype({"rank": "Int64", "n_events": "int64", "kept": bool})
