"""From files to tables: which reader a file wants, told by its content, and a run of its ranks."""

import html
import re
import warnings
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import pandas as pd
from pandas.api.types import union_categoricals
from tqdm.auto import tqdm

from .readers import kineto, nccl_tests, plain
from .readers.source import Source
from .tables import EVENTS, LEDGER, MEASUREMENTS
from .units import format_seconds

# Which reader a file wants is told by its head; the first that recognises it reads it.
TRACES = (kineto,)
SWEEPS = (plain, nccl_tests)
_RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
_TEXT = ("name", "kind", "op")


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


def load_run(path, executor: Executor | None = None) -> Run:
    """Load a trace file, a folder with one trace a rank, or a list of files.

    Ranks are read side by side when an `executor` is given (any concurrent.futures.Executor).
    Raises FileNotFoundError for a missing path and ValueError when no trace can be read, or when
    two files claim the same rank; what is lost of a damaged file is warned of and in `run.ledger`.
    """
    files, folder = _files(path)
    read = partial(_read_rank, strict=folder is None)
    parts = executor.map(read, files) if executor else map(read, files)
    parts = list(tqdm(parts, total=len(files), desc="ranks", unit="file", disable=len(files) < 2))
    ledger = [row for _, _, rows in parts for row in rows]
    found = [(info, table) for table, info, _ in parts if table is not None]
    if not found:
        raise ValueError(
            f"{path}: no trace in this folder. Expected Kineto traces (.json or .json.gz, one a "
            f"rank); found {len(files)} files: {', '.join(f.name for f in files[:5]) or 'none'}"
        )
    _check_ranks([info for info, _ in found])
    ledger += _remarks([info for info, _ in found])
    for file in dict.fromkeys(row["file"] for row in ledger if row.get("warn")):
        whys = dict.fromkeys(r["why"] for r in ledger if r["file"] == file and r.get("warn"))
        warnings.warn(f"{file}: {'; '.join(whys)}", stacklevel=2)
    events = _join([table for _, table in found])
    name = folder.name if folder else files[0].name
    return Run(name, _run_info([info for info, _ in found], folder), events, _ledger(ledger))


def read_events(path) -> pd.DataFrame:
    """EVENTS of a trace file or a folder of ranks: `load_run(path).events`."""
    return load_run(path).events


def read_measurements(path) -> pd.DataFrame:
    """MEASUREMENTS from the output of nccl-tests, or from a CSV table with those columns.

    Lines that could not be read are warned of by number. Raises FileNotFoundError, or ValueError
    when the file holds no timed collective.
    """
    source = Source(_existing(path))
    reader = next((r for r in SWEEPS if r.recognises(source.head)), nccl_tests)
    table, problems = reader.read(source.text(), source.file)
    for problem in source.damage + problems:
        warnings.warn(f"{path}: {problem}", stacklevel=2)
    return table[[*MEASUREMENTS, *(c for c in table if c not in MEASUREMENTS)]]


def _existing(path) -> Path:
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: no such file or folder (looked in {Path.cwd()}). Check the path."
        )
    return path


def _files(path) -> tuple[list[Path], Path | None]:
    """The files to read, and the folder they were found in unless they were named."""
    if isinstance(path, list | tuple):
        if not path:
            raise ValueError("load_run: expected at least one file, got an empty list")
        return [_existing(p) for p in path], None
    path = _existing(path)
    if path.is_file():
        return [path], None
    files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    return files, path


def _read_rank(path: Path, strict: bool):
    """(table or None, info, ledger) of one file; what is no trace is an error if `strict`."""
    source = Source(path)
    reader = next((r for r in TRACES if r.recognises(source.head)), None)
    try:
        if reader is None:
            start = source.head[:40]
            raise ValueError(f"not a trace: expected JSON, it begins with {start!r}")
        table, info, ledger = reader.read(source)
    except ValueError as error:
        why = "; ".join([str(error).removeprefix(f"{source.file}: "), *source.damage])
        if strict:
            raise ValueError(f"{source.file}: {why}") from None
        known = path.name == "run.json"
        row = {"file": source.file, "what": "file", "n_events": 0, "kept": known}
        return None, {}, [row | {"why": "describes the run" if known else why}]
    info["file"] = source.file
    ledger += [_note(info, why, warn=True) for why in source.damage]
    return _with_rank(table, info, path, ledger)


def _with_rank(table: pd.DataFrame, info: dict, path: Path, ledger: list[dict]):
    """Take the rank from the file's name where its content tells none."""
    named = _RANK_IN_NAME.search(path.name)
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


def _remarks(infos: list[dict]) -> list[dict]:
    """What is to be said of the ranks together, and of ranks that no kernel was recorded for."""
    notes = []
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
