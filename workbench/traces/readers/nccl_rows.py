"""Rows that nccl-tests and rccl-tests print or report, as tokens -> MEASUREMENTS.

A row is a dict: where (for messages), table (of a log, else None), nbytes, count, dtype, redop,
root, op, n_workers, n_nodes, and from `both_places`: time, algbw, busbw, in_place, wrong, kind.
"""

import math
from statistics import median_high

import pandas as pd

from ...base.units import GB
from .collectives import dtype_bytes

PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
_PER_LINK = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
_WHOLE = dict.fromkeys(["n_workers", "n_nodes", "n_wrong"], "Int64") | {"nbytes": "int64"}


def tables(rows: list[dict], problems: list[str]) -> pd.DataFrame | None:
    """Return MEASUREMENTS, in_place_seconds, n_wrong, dtype and redop; None without a timed row."""
    groups: dict = {}  # rows of one table, or in JSON of one collective and number of workers
    for row in rows:
        if _timed(row, problems):
            key = id(row["table"]) if row["table"] else (row["op"], str(row["n_workers"]))
            groups.setdefault(key, []).append(row)
    parts = [_table(group, problems) for group in groups.values()]
    return pd.concat(parts, ignore_index=True) if parts else None


def both_places(groups: list[dict]) -> dict:
    """Return time, algbw and busbw out of place, else in place; the time in place; wrong."""
    out, inside = ({k.removeprefix("cpu"): v for k, v in g.items()} for g in groups)
    counts = [g["#wrong"] for g in (out, inside) if "#wrong" in g]
    best = {key: (out or inside).get(key) for key in ("time", "algbw", "busbw")}
    kind = "in place" if inside and not out else ""
    return best | {"in_place": inside.get("time"), "wrong": counts, "kind": kind}


def _timed(row: dict, problems: list[str]) -> bool:
    """Return whether the row has a size and a time; report it otherwise."""
    time, size, inside = (printed_number(row[key]) for key in ("time", "nbytes", "in_place"))
    why = "" if 0 <= size < 2**63 else f"size is {row['nbytes']}"
    why = why if 1e-12 < time < math.inf else f"time is {row['time']}"
    if why:
        text = f": {row['text'].strip()[:80]!r}" if "text" in row else ""
        problems.append(f"{row['where']} left out ({why}){text}")
    elif row["in_place"] not in (None, "", "N/A") and not inside > 0:
        problems.append(f"{row['where']}: in-place time left out (time is {row['in_place']})")
    return not why


def _table(rows: list[dict], problems: list[str]) -> pd.DataFrame:
    table, op = rows[0]["table"], _collective(rows)
    ticks = _ticks(rows, table.unit if table else "us", problems)
    frame = pd.DataFrame(
        {
            "op": op,
            "n_workers": [row["n_workers"] for row in rows],
            "n_nodes": [row["n_nodes"] for row in rows],
            "nbytes": [_whole(row["nbytes"]) for row in rows],
            "seconds": [printed_number(row["time"]) / ticks for row in rows],
            "in_place_seconds": [printed_number(row["in_place"]) / ticks for row in rows],
            "n_wrong": [
                sum(map(whole_number, row["wrong"])) if row["wrong"] else None for row in rows
            ],
            "dtype": [row["dtype"] for row in rows],
            "redop": [row["redop"] or "none" for row in rows],
        }
    ).astype(_WHOLE)
    inside = frame["in_place_seconds"]
    frame["in_place_seconds"] = inside.where((inside > 0) & (inside < math.inf))
    problems += _doubts(frame, rows)
    return _with_workers(frame, rows, problems)


def _doubts(frame: pd.DataFrame, rows: list[dict]) -> list[str]:
    """Return remarks on wrong results, an unknown collective and times only in place."""
    doubts = []
    if (wrong := frame["n_wrong"].fillna(0) > 0).any():
        sizes = ", ".join(map(str, frame.loc[wrong, "nbytes"].head(5)))
        doubts.append(f"the test found wrong results at sizes {sizes}: do not trust these times")
    if frame["op"].iloc[0] == "unknown":
        doubts.append(
            "the text does not name the collective, and several print the same columns (all_gather,"
            " all_to_all). Set it: table.assign(op='all_gather')"
        )
    if any(row["kind"] for row in rows):
        doubts.append("some rows were timed only in place: that time is used")
    return doubts


def _with_workers(frame: pd.DataFrame, rows: list[dict], problems: list[str]) -> pd.DataFrame:
    """Fill unknown workers from busbw/algbw; report known ones that contradict it."""
    op, known = frame["op"].iloc[0], frame["n_workers"].iloc[0]
    ratio = _bus_ratio(rows)
    if pd.notna(known):
        expected = _PER_LINK.get(op, math.nan) * (known - 1) / known
        if known > 1 and abs(ratio - expected) > 0.03:
            problems.append(
                f"busbw/algbw is {ratio:.3f}, but {known} workers of {op} give {expected:.3f}: "
                "check n_workers"
            )
        return frame
    n_workers = workers_by_ratio(op, ratio)
    follows = f"n_workers = {n_workers} follows from busbw/algbw = {ratio:.3f}"
    unknown = "n_workers is unknown. Set it: table.assign(n_workers=8)"
    problems.append(f"no list of ranks above the table: {follows if n_workers else unknown}")
    return frame.assign(n_workers=n_workers).astype({"n_workers": "Int64"})


def _bus_ratio(rows: list[dict]) -> float:
    """Return busbw/algbw of the fastest row, where rounding matters least; nan if unknown."""
    pairs = [(printed_number(row["algbw"]), printed_number(row["busbw"])) for row in rows]
    algbw, busbw = max(((a, b) for a, b in pairs if a > 1 and b > 0), default=(1, math.nan))
    return busbw / algbw


def workers_by_ratio(op: str, ratio: float) -> int | None:
    """Return n of nccl-tests' factor, k (n-1)/n with k = 2 for all-reduce (doc/PERFORMANCE.md)."""
    k = _PER_LINK.get(op)
    if k is None or not 0.45 * k < ratio < 0.985 * k:  # beyond 64 workers rounding hides n
        return None
    n = k / (k - ratio)
    return round(n) if abs(n - round(n)) < 0.12 else None


def _ticks(rows: list[dict], unit: str, problems: list[str]) -> float:
    """Return units of time per second: as printed unless the bandwidths contradict it."""
    measured = [
        algbw * GB * printed_number(row["time"]) / printed_number(row["nbytes"])
        for row in rows
        if (algbw := printed_number(row["algbw"])) > 0.1 and printed_number(row["nbytes"]) > 0
    ]
    by_bandwidth = max(median_high(measured), 1e-300) if measured else PER_SECOND[unit]
    nearest = min(PER_SECOND, key=lambda u: abs(math.log(by_bandwidth / PER_SECOND[u])))
    if not 0.9 < by_bandwidth / PER_SECOND[nearest] < 1.1:
        share = f"{by_bandwidth / PER_SECOND[unit]:.3g}"
        problems.append(f"algbw is {share} of size/time in {unit}: check the times")
        return PER_SECOND[unit]
    if nearest != unit:
        problems.append(f"times are in {nearest}, not {unit}, according to the bandwidths")
    return PER_SECOND[nearest]


def _collective(rows: list[dict]) -> str:
    """Return the announced collective, else by columns, the library's calls, program or words."""
    op, table = rows[0]["op"], rows[0]["table"]
    guess = _guess(rows[-1])  # the last row is the largest and the clearest
    if table is None or (table.sure and op):
        return op or guess
    if guess == "unknown":
        guess = _by_layout(rows, table)
    if guess == "unknown" and len(called := table.called - {"", "send_recv"}) == 1:
        return next(iter(called))  # sends and receives make up several collectives
    return guess if guess != "unknown" else op or "unknown"


def _guess(row: dict) -> str:
    """Return the collective by how its count of elements relates to the size (older versions)."""
    n, size, root = (printed_number(row[key]) for key in ("count", "nbytes", "root"))
    if math.isnan(n):
        return "unknown"
    whole = n * (dtype_bytes(row["dtype"]) or 0) == size
    if row["redop"] not in ("none", ""):
        return ("reduce" if root >= 0 else "all_reduce") if whole else "reduce_scatter"
    return ("broadcast" if root >= 0 else "send_recv") if whole and size else "unknown"


def _by_layout(rows: list[dict], table) -> str:
    """Return the collective of a table without a root: older programs differ in their columns.

    all_gather.cu and hypercube.cu had no redop, alltoall.cu left it blank (nccl-tests v2.0 to
    v2.10). hypercube's busbw is its algbw, all_gather's (n-1)/n of it. AMD's tests printed
    all_gather's columns for gather and scatter too.
    """
    if "root" in table.lead or table.amd or not printed_number(rows[-1]["nbytes"]) > 0:
        return "unknown"
    if {"redop", "op"} & set(table.lead):
        return "all_to_all"
    n_workers = 64 if pd.isna(table.n_workers) else table.n_workers
    return "all_gather" if _bus_ratio(rows) < 1 - 0.5 / n_workers else "unknown"


def printed_number(token) -> float:
    """Return a printed number; nan for N/A, blank or other text."""
    try:
        return float(str(token).rstrip("*"))
    except ValueError:
        return math.nan


def whole_number(token) -> int:
    """Return a whole number below 2**31, 0 for anything else."""
    value = printed_number(token)
    return int(value) if 0 < value < 2**31 else 0


def _whole(token) -> int:
    return int(token) if str(token).isdecimal() else int(printed_number(token))
