"""One file at a time: which reader it wants, what it holds, which rank that is."""

import re
import warnings
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

# A file's reader is told by its head: the first that recognises it. The last takes any JSON.
READERS = (
    nsys,
    totals,
    execution_trace,
    nccl_profiler,
    horovod,
    mxnet,
    tensorflow,
    kineto,
)
# Which reader a sweep wants is told by its head, too; the last takes what none recognises.
SWEEPS = (plain, osu, lookup, nccl_tests)
_RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,6})(?!\d)", re.IGNORECASE)
_TICK_NS = 2000  # older traces round to us: two rows may seem to overlap by two ticks
_DOUBTFUL_NS = 100_000  # beyond this an overlap is worth a warning


def read_file(
    path: Path, strict: bool, keep: str, cached: Path | None, patterns: Patterns = ()
) -> list[tuple]:
    """(EVENTS in ns or None, info, LEDGER rows) of a file, or of each member of an archive.

    What is no trace is an error if `strict`, else a row of the ledger. `cached` is the folder of
    decoded traces, None for no cache; `patterns` come before those of the classifier.
    """
    key = _key(path, keep, patterns) if cached else ""
    parts = _fetched(path, cached, key) if key else []
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


def _key(path: Path, keep: str, patterns: Patterns) -> str:
    """The file's key in the cache; "" when it cannot be read, which reading it will tell."""
    try:
        return cache.key_of(path, keep, repr(patterns))
    except OSError:
        return ""


def _fetched(path: Path, folder: Path, key: str) -> list[tuple]:
    found = cache.fetch(folder, key)
    if found is None:
        return []
    table, info, ledger = found
    return [(table, info | {"file": str(path)}, [row | {"file": str(path)} for row in ledger])]


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
    """Why a call does not read a file that begins so, and which call does.

    head : the beginning of the file, unpacked
    why : what is wrong, beginning with what the file is not
    call : the call that refuses, such as load_run
    """
    if not head.strip() and len(head) < HEAD_BYTES:
        return "the file is empty"
    wanted = "read_measurements" if any(r.recognises(head) for r in SWEEPS) else ""
    if not wanted and any(reader.recognises(head) for reader in READERS):
        wanted = "read_totals" if totals.recognises(head) else "load_run"
    if wanted in ("", call) or f"{wanted}(path)" in why:
        return why
    what = {"read_measurements": "timed collectives", "read_totals": "totals"}
    return f"{why}. It may be {what.get(wanted, 'a trace')}: {wanted}(path)"


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
    """Streams on which rows overlap, which no device does: (why, by how many ns at most)."""
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
                f"ends, an overlap on one stream of up to {format_seconds(late.max() / 1e9)}; no "
                f"device does that, so a duration is wrong (longest: {longest['name'][:60]!r}, "
                f"{format_seconds((longest['end_ns'] - longest['start_ns']) / 1e9)})"
            )
            found.append((why, int(late.max())))
    return found


def _with_rank(table: pd.DataFrame, info: dict, ledger: list[dict]) -> tuple:
    """Take the rank from the file's name where its content tells none; say where they differ."""
    named = _RANK_IN_NAME.search(info["file"].rsplit("/", 1)[-1])
    if info["rank"] is not None or info.get("ranks"):
        seen = info.get("ranks") or [info["rank"]]
        # From the world's size on the number is something else, such as a process.
        if named and int(named[1]) < (info["world_size"] or 0) and int(named[1]) not in seen:
            why = f"rank {info['rank']} as the file says, though its name says {int(named[1])}"
            ledger = [*ledger, note(info, why, warn=True)]
        return table, info, ledger
    if named is None:
        why = "no rank in the file: kept as rank <NA>. To set one, put rank<N> into the file's name"
        return table, info, [*ledger, note(info, why)]  # several such files are refused
    info = info | {"rank": int(named[1])}
    ledger = [row | {"rank": info["rank"]} for row in ledger]
    ledger.append(note(info, f"no rank in the file: {info['rank']} taken from its name"))
    rank = pd.array([info["rank"]] * len(table), dtype="Int64")
    return table.assign(rank=rank), info, ledger


def by_host(parts: list[tuple]) -> list[tuple]:
    """Count ranks on from node to node where each file counts the devices of its own from 0.

    In the order of the hosts' names, which is all that such files tell, and that is said. Left as
    they are when a host is not told or has two files, or when a file tells another world size.
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
    """node2 before node10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _counted_from(first: int, table: pd.DataFrame, info: dict, ledger: list[dict]) -> tuple:
    info = info | {"ranks": [rank + first for rank in info["ranks"]]}
    why = f"ranks counted from {first}, that of the first device of {info['host']}: hosts by name"
    return table.assign(rank=table["rank"] + first), info, [*ledger, note(info, why)]


def note(info: dict, why: str, *, warn: bool = False) -> dict:
    """A LEDGER row that says something of a file and counts no event."""
    row = {"file": info["file"], "rank": info.get("rank"), "what": "note", "n_events": 0}
    return row | {"kept": True, "why": why, "warn": warn}


def check(infos: list[dict]) -> None:
    """Raise ValueError when two files are of one rank, or several do not tell theirs."""
    seen = {}
    several = [{**info, "rank": rank} for info in infos for rank in info.get("ranks", [])]
    for info in [*(info for info in infos if not info.get("ranks")), *several]:
        rank = info["rank"]
        if rank in seen and rank is not None:
            raise ValueError(
                f"two files claim rank {rank}: {seen[rank]} and {info['file']}. Expected one file "
                "a rank: load one of them, or the files of one run"
            )
        if rank is None and len(infos) > 1:
            raise ValueError(
                f"{info['file']}: no rank in the file nor in its name, and there are {len(infos)} "
                "files. Put rank<N> into each file's name where they are of several ranks; if they "
                "are recordings of one worker, name one file"
            )
        seen[rank] = info["file"]


def remarks(infos: list[dict], how: str, doubtful: bool) -> list[dict]:
    """What is to be said of the ranks together: how their clocks agree, which are missing."""
    notes = [note({"file": "", "rank": None}, how, warn=doubtful)] if how else []
    ranks = {rank for info in infos for rank in info.get("ranks") or [info["rank"]]}
    if any(info.get("one_file") for info in infos):  # such a run writes no other
        return notes
    sizes = sorted({info["world_size"] or None for info in infos} - {None})
    size = max(sizes, default=0)
    beyond = sorted(rank for rank in ranks if rank is not None and 0 < size <= rank)
    if len(sizes) > 1 or beyond:
        said = f"the files tell of {' and '.join(map(str, sizes))} ranks"
        said += "".join(f", and one is of rank {rank}" for rank in beyond[-1:])
        why = f"{said}: they may be of different runs"
        notes.append(note({"file": "", "rank": None}, why, warn=True))
    missing = sorted(set(range(min(size, 10**6))) - ranks)
    if missing and size > 1:
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        why = f"{len(missing)} of {size} ranks have no file: {shown}"
        notes.append(note({"file": "", "rank": None}, why))
    return notes
