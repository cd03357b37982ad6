"""One file at a time: its reader, its tables and its rank."""

import re
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd

from ..base.units import format_seconds
from . import cache, files
from .readers import (
    execution_trace,
    horovod,
    kineto,
    lookup,
    mxnet,
    nccl_profiler,
    nccl_tests,
    nsys,
    osu,
    plain,
    tensorflow,
    totals,
)
from .readers.collectives import Patterns, added
from .readers.source import HEAD_BYTES, Source

# The first that recognises the head of a file reads it. The last takes any JSON.
READERS = nsys, totals, execution_trace, nccl_profiler, horovod, mxnet, tensorflow, kineto
# The same for timed collectives; the last takes what none recognises.
SWEEPS = (plain, osu, lookup, nccl_tests)
_RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
_TICK_NS = 2000  # older traces round to us, so rows may seem to overlap by two ticks
_DOUBTFUL_NS = 100_000  # larger overlaps are worth a warning


def read_file(
    path: Path, strict: bool, keep: str, cached: Path | None, patterns: Patterns = ()
) -> list[tuple]:
    """Return (EVENTS in ns or None, info, LEDGER rows) of a file, or of each archive member.

    strict : whether a file that is not a trace is an error instead of a row of the ledger
    cached : folder of decoded traces, None for no cache
    patterns : take precedence over those of the classifier
    """
    key, parts = "", []
    if cached:
        with suppress(OSError):  # reading the file reports it
            key = cache.key_of(path, keep, repr(patterns))
            if (found := cache.fetch(cached, key)) is not None:
                table, info, ledger = found
                here = {"file": str(path)}
                parts = [(table, info | here, [row | here for row in ledger])]
    if not parts:
        with added(patterns):
            parts = _decoded(path, keep)
        if key and len(parts) == 1 and parts[0][1].get("file") == str(path):
            _store(cached, key, parts[0])
    if strict and all(table is None for table, _, _ in parts):
        rows = [rows[0] for _, _, rows in parts]
        nothing = [{"file": str(path), "why": "an archive without files"}]
        row = ([row for row in rows if row["warn"]] or rows or nothing)[0]
        raise ValueError(f"{row['file']}: {row['why']}")
    return [part if part[0] is None else _with_rank(*part) for part in parts]


def _store(folder: Path, key: str, part: tuple) -> None:
    try:
        cache.store(folder, key, *part)
    except OSError as error:
        warnings.warn(f"{folder}: nothing cached: {error}", stacklevel=2)


def _decoded(path: Path, keep: str) -> list[tuple]:
    parts = []
    try:
        for source in files.sources_of(path):
            source.keep = keep
            parts.append(_read_source(source))
    except (ValueError, OSError) as error:
        parts.append(_skipped(str(path), str(error), warn=True))
    return parts


def refusal(head: bytes, why: str, call: str) -> str:
    """Return why a call does not read a file, and which call does.

    head : the beginning of the file, unpacked
    why : what is wrong, beginning with what the file is not
    call : the call that refuses, such as load_run
    """
    if not head.strip() and len(head) < HEAD_BYTES:
        return "the file is empty"
    wanted, what = "", "a trace"
    if any(reader.recognises(head) for reader in SWEEPS):
        wanted, what = "read_measurements", "timed collectives"
    elif totals.recognises(head):
        wanted, what = "read_totals", "totals"
    elif any(reader.recognises(head) for reader in READERS):
        wanted = "load_run"
    if wanted in ("", call) or f"{wanted}(path)" in why:
        return why
    return f"{why}. It may be {what}: {wanted}(path)"


def _skipped(file: str, why: str, *, warn: bool = False) -> tuple:
    row = {"file": file, "what": "file", "n_events": 0, "kept": False, "warn": warn}
    return None, {}, [row | {"why": why.removeprefix(f"{file}: ")}]


def _read_source(source: Source) -> tuple:
    if source.unread:
        return _skipped(source.file, source.unread)
    reader = next((r for r in READERS if r.recognises(source.head)), None)
    if reader is None:
        why = f"not a trace: expected JSON, it begins with {source.head[:40]!r}"
        why = refusal(source.head, why, "load_run")
        return _skipped(source.file, "; ".join([why, *source.damage]))
    head = source.head  # which reading lets go
    try:
        table, info, ledger = reader.read(source)
    except ValueError as error:
        message = str(error).removeprefix(f"{source.file}: ")
        if source.name == "run.json":
            return _skipped(source.file, "describes the run: see run.info")
        lost = message == kineto.NO_DEVICE_ROWS  # a rank, not a file of another kind
        message = refusal(head, message, "load_run")
        return _skipped(source.file, "; ".join([message, *source.damage]), warn=lost)
    info["file"] = source.file
    if "group" not in table:
        table = table.assign(group=pd.Categorical([""] * len(table)))
    ledger += [note(info, why, warn=True) for why in source.damage]
    ledger += [note(info, why, warn=late > _DOUBTFUL_NS) for why, late in _overlaps(table)]
    return table, info, ledger


def _overlaps(table: pd.DataFrame) -> list[tuple[str, int]]:
    """Return (why, ns of the longest overlap) for each stream on which rows overlap."""
    work = table[(table["stream"] >= 0) & table["kind"].isin(["compute", "comm", "memory"])]
    found = []
    work = work.sort_values("start_ns", kind="stable")
    for (_, stream), rows in work.groupby(["rank", "stream"], dropna=False):
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        late = np.maximum.accumulate(end)[:-1] - start[1:]
        if late.size and late.max() > _TICK_NS:
            longest = rows.iloc[int((end - start).argmax())]
            why = (
                f"stream {stream}: {int((late > _TICK_NS).sum())} rows start before an earlier one "
                f"ends, an overlap on one stream of up to {format_seconds(late.max() / 1e9)}. "
                f"Devices do not do that: a duration is wrong (longest: {longest['name'][:60]!r}, "
                f"{format_seconds((longest['end_ns'] - longest['start_ns']) / 1e9)})"
            )
            found.append((why, int(late.max())))
    return found


def _with_rank(table: pd.DataFrame, info: dict, ledger: list[dict]) -> tuple:
    """Take the rank from the file's name if its content has none; note where they differ."""
    named = _RANK_IN_NAME.search(info["file"].rsplit("/", 1)[-1])
    named = named and int(named[1])
    seen = _ranks(info)
    if seen != [None]:
        # From the world's size on the number is something else, such as a process.
        if named is not None and named < (info["world_size"] or 0) and named not in seen:
            why = f"rank {info['rank']} according to the file, {named} according to its name"
            ledger = [*ledger, note(info, why, warn=True)]
        return table, info, ledger
    if named is None:
        why = "no rank in the file: kept as rank <NA>. To set one, put rank<N> into the file's name"
        return table, info, [*ledger, note(info, why)]  # several such files are refused
    info = info | {"rank": named}
    ledger = [row | {"rank": named} for row in ledger]
    ledger.append(note(info, f"no rank in the file: {named} taken from its name"))
    rank = pd.array([named] * len(table), dtype="Int64")
    return table.assign(rank=rank), info, ledger


def _ranks(info: dict) -> list[int | None]:
    return info.get("ranks") or [info["rank"]]


def by_host(parts: list[tuple]) -> list[tuple]:
    """Continue the numbers of ranks from node to node if each file counts its devices from 0.

    The order is that of the hosts' names, since such files contain no other, and is noted. Numbers
    stay if a host is unknown or has two files, or if a file states another world size.
    """
    several = [info for table, info, _ in parts if table is not None and info.get("ranks")]
    hosts = [info.get("host") for info in several]
    numbers = [rank for info in several for rank in info["ranks"]]
    if len(set(numbers)) == len(numbers) or not all(hosts) or len(set(hosts)) < len(hosts):
        return parts
    first, n_ranks = {}, 0
    for info in sorted(several, key=lambda info: _natural(info["host"])):
        first[info["file"]] = n_ranks
        n_ranks += max(info["ranks"]) + 1
    if {info["world_size"] for info in several} - {None, n_ranks}:
        return parts
    return [
        part if part[1].get("file") not in first else _counted_from(first[part[1]["file"]], *part)
        for part in parts
    ]


def _natural(name: str) -> list:
    """Return a key that sorts node2 before node10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _counted_from(first: int, table: pd.DataFrame, info: dict, ledger: list[dict]) -> tuple:
    info = info | {"ranks": [rank + first for rank in info["ranks"]]}
    why = f"ranks counted from {first}, the first device of {info['host']}: hosts by name"
    return table.assign(rank=table["rank"] + first), info, [*ledger, note(info, why)]


def note(info: dict, why: str, *, warn: bool = False) -> dict:
    """Return a LEDGER row with a remark on a file; it counts no event."""
    row = {"file": info["file"], "rank": info.get("rank"), "what": "note", "n_events": 0}
    return row | {"kept": True, "why": why, "warn": warn}


def one_file_per_rank(infos: list[dict]) -> None:
    """Raise ValueError if two files are of one rank, or if one of several has no rank."""
    seen = {}
    for rank, file in ((rank, info["file"]) for info in infos for rank in _ranks(info)):
        if rank in seen and rank is not None:
            raise ValueError(
                f"two files claim rank {rank}: {seen[rank]} and {file}. Expected one file "
                "per rank: load one of them, or the files of one run"
            )
        if rank is None and len(infos) > 1:
            raise ValueError(
                f"{file}: no rank in the file nor in its name, and there are {len(infos)} "
                "files. Put rank<N> into each file's name if they are of several ranks; if they "
                "are recordings of one worker, name one file"
            )
        seen[rank] = file


def remarks(infos: list[dict], how: str, doubtful: bool) -> list[dict]:
    """Return notes on the ranks together: how their clocks agree, which ranks are missing."""
    run = {"file": "", "rank": None}
    notes = [note(run, how, warn=doubtful)] if how else []
    ranks = {rank for info in infos for rank in _ranks(info)}
    if any(info.get("one_file") for info in infos):  # such a run writes no other
        return notes
    sizes = sorted({info["world_size"] or None for info in infos} - {None})
    size = max(sizes, default=0)
    beyond = sorted(rank for rank in ranks if rank is not None and 0 < size <= rank)
    if len(sizes) > 1 or beyond:
        why = f"the files are of runs of {' and '.join(map(str, sizes))} ranks"
        why += "".join(f", and one is of rank {rank}" for rank in beyond[-1:])
        notes.append(note(run, f"{why}: they may be of different runs", warn=True))
    missing = sorted(set(range(min(size, 10**6))) - ranks)
    if missing and size > 1:
        shown = ", ".join(map(str, missing[:8])) + ", ..." * (len(missing) > 8)
        notes.append(note(run, f"{len(missing)} of {size} ranks have no file: {shown}"))
    return notes
