"""Rows that nccl-tests and rccl-tests print or report, as tokens -> MEASUREMENTS.

A row is a dict: where (for messages), table (of a log, else None), nbytes, count, dtype, redop,
root, op, n_workers, n_nodes, and of `both_places`: time, algbw, busbw, in_place, wrong, kind.
"""

import math

import pandas as pd

from ...base.units import GB
from .collectives import dtype_bytes

PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
_PER_LINK = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
_WHOLE = dict.fromkeys(["n_workers", "n_nodes", "n_wrong"], "Int64") | {"nbytes": "int64"}


def tables(rows: list[dict], problems: list[str]) -> pd.DataFrame | None:
    """MEASUREMENTS with in_place_seconds, n_wrong, dtype and redop; None without a timed row."""
    rows = [row for row in rows if _timed(row, problems)]
    parts = [_table(of, problems) for of in _by_table(rows)]
    return pd.concat(parts, ignore_index=True) if parts else None


def both_places(groups: list[dict]) -> dict:
    """time, algbw, busbw and wrong of the row out of place, and those in place."""
    out, inside = ({k.removeprefix("cpu"): v for k, v in g.items()} for g in groups)
    counts = [g["#wrong"] for g in (out, inside) if "#wrong" in g]
    kind = "in place" if not out and inside else ""
    best = inside if kind else out
    return {
        "time": best.get("time"), "algbw": best.get("algbw"), "busbw": best.get("busbw"),
        "in_place": inside.get("time"), "wrong": counts, "kind": kind,
    }  # fmt: skip


def _timed(row: dict, problems: list[str]) -> bool:
    """Whether the row has a size and a time; else it is both_places."""
    time, size = printed_number(row["time"]), printed_number(row["nbytes"])
    if not (1e-12 < time < math.inf):
        why = f"time is {row['time']}"
    elif not (math.isfinite(size) and 0 <= size < 2**63):
        why = f"size is {row['nbytes']}"
    else:
        inside = row["in_place"]
        if inside not in (None, "", "N/A") and not printed_number(inside) > 0:
            problems.append(f"{row['where']}: in-place time left out, it is {inside}")
        return True
    text = f": {row['text'].strip()[:80]!r}" if "text" in row else ""
    problems.append(f"{row['where']} left out ({why}){text}")
    return False


def _by_table(rows: list[dict]) -> list[list[dict]]:
    """Return rows that share a table, or in JSON collective and workers, in order."""
    tables: dict = {}
    for row in rows:
        key = id(row["table"]) if row["table"] else (row["op"], str(row["n_workers"]))
        tables.setdefault(key, []).append(row)
    return list(tables.values())


def _table(rows: list[dict], problems: list[str]) -> pd.DataFrame:
    table, op = rows[0]["table"], _collective(rows)
    ticks = _ticks(rows, table.unit if table else "us", problems)
    counted = [[whole_number(c) for c in row["wrong"]] for row in rows]
    frame = pd.DataFrame(
        {
            "op": op,
            "n_workers": pd.array([row["n_workers"] for row in rows], dtype="Int64"),
            "n_nodes": pd.array([row["n_nodes"] for row in rows], dtype="Int64"),
            "nbytes": [_whole(row["nbytes"]) for row in rows],
            "seconds": [printed_number(row["time"]) / ticks for row in rows],
            "in_place_seconds": [_positive(row["in_place"]) / ticks for row in rows],
            "n_wrong": [
                sum(found) if row["wrong"] else None
                for row, found in zip(rows, counted, strict=True)
            ],
            "dtype": [row["dtype"] for row in rows],
            "redop": [row["redop"] or "none" for row in rows],
        }
    ).astype(_WHOLE)
    problems += _doubts(frame, rows)
    return _with_workers(frame, rows, problems)


def _doubts(frame: pd.DataFrame, rows: list[dict]) -> list[str]:
    doubts = []
    if (wrong := frame["n_wrong"].fillna(0) > 0).any():
        sizes = ", ".join(map(str, frame.loc[wrong, "nbytes"].head(5)))
        doubts.append(f"the test found wrong results at sizes {sizes}: do not trust these times")
    if frame["op"].iloc[0] == "unknown":
        doubts.append(
            "the text does not say which collective this is (several print the same columns, such "
            "as all_gather and all_to_all). Set it: table.assign(op='all_gather')"
        )
    if any(row["kind"] for row in rows):
        doubts.append("nothing was timed out of place in some rows: their time is the one in place")
    return doubts


def _with_workers(frame: pd.DataFrame, rows: list[dict], problems: list[str]) -> pd.DataFrame:
    """Fill unknown workers from busbw/algbw, or doubt the known where they disagree."""
    op, known = frame["op"].iloc[0], frame["n_workers"].iloc[0]
    algbw, busbw = ([printed_number(row[c]) for row in rows] for c in ("algbw", "busbw"))
    ratio = bus_ratio(algbw, busbw)
    if pd.notna(known):
        expected = _PER_LINK.get(op, math.nan) * (known - 1) / known
        if known > 1 and abs(ratio - expected) > 0.03:
            problems.append(
                f"busbw/algbw is {ratio:.3f}, but {known} workers of {op} give {expected:.3f}: "
                "check n_workers"
            )
        return frame
    if n_workers := workers_told(op, ratio):
        problems.append(
            f"no list of ranks: n_workers = {n_workers} follows from busbw/algbw = {ratio:.3f}"
        )
        return frame.assign(n_workers=pd.array([n_workers] * len(frame), dtype="Int64"))
    problems.append(
        "no list of ranks above the table: n_workers is unknown. Set it: table.assign(n_workers=8)"
    )
    return frame


def bus_ratio(algbw: list[float], busbw: list[float]) -> float:
    """Return busbw/algbw of the fastest row, where rounding matters least; nan if unknown."""
    pairs = [(a, b) for a, b in zip(algbw, busbw, strict=True) if a > 1 and b > 0]
    fastest = max(pairs, default=(math.nan, math.nan))
    return fastest[1] / fastest[0]


def workers_told(op: str, ratio: float) -> int | None:
    """The n of nccl-tests' factor, k (n-1)/n with k = 2 for all-reduce (doc/PERFORMANCE.md)."""
    k = _PER_LINK.get(op)
    if k is None or not 0.45 * k < ratio < 0.985 * k:  # beyond 64 workers rounding hides n
        return None
    n = k / (k - ratio)
    return round(n) if abs(n - round(n)) < 0.12 else None


def _ticks(rows: list[dict], unit: str, problems: list[str]) -> float:
    """Ticks of the times in a second: as said, unless the bandwidths beside them differ."""
    told = [
        algbw * GB * printed_number(row["time"]) / printed_number(row["nbytes"])
        for row in rows
        if (algbw := printed_number(row["algbw"])) > 0.1 and printed_number(row["nbytes"]) > 0
    ]
    by_bandwidth = max(sorted(told)[len(told) // 2], 1e-300) if told else PER_SECOND[unit]
    nearest = min(PER_SECOND, key=lambda u: abs(math.log(by_bandwidth / PER_SECOND[u])))
    if not 0.9 < by_bandwidth / PER_SECOND[nearest] < 1.1:
        problems.append(
            f"algbw is {by_bandwidth / PER_SECOND[unit]:.3g} of size/time in {unit}: check times"
        )
        return PER_SECOND[unit]
    if nearest != unit:
        problems.append(f"times are in {nearest}, not {unit}: so say the bandwidths beside them")
    return PER_SECOND[nearest]


def _collective(rows: list[dict]) -> str:
    """As announced, else as the columns tell, the library's calls, the program's name or words."""
    op, table = rows[0]["op"], rows[0]["table"]
    guess = _guess(rows[-1])  # the last row is the largest, and tells best
    if table is None or (table.sure and op):
        return op or guess
    if guess == "unknown":
        guess = _by_layout(rows, table)
    if guess == "unknown" and len(called := table.called - {"", "send_recv"}) == 1:
        return next(iter(called))  # sends and receives make up several collectives
    return guess if guess != "unknown" else op or "unknown"


def _guess(row: dict) -> str:
    """The collective, from how the count of elements relates to the size, in older versions."""
    n, size, root = (printed_number(row[key]) for key in ("count", "nbytes", "root"))
    if math.isnan(n):
        return "unknown"
    whole = n * (dtype_bytes(row["dtype"]) or 0) == size
    if row["redop"] not in ("none", ""):
        return ("reduce" if root >= 0 else "all_reduce") if whole else "reduce_scatter"
    if whole and size:
        return "broadcast" if root >= 0 else "send_recv"
    return "unknown"


def _by_layout(rows: list[dict], table) -> str:
    """The collective of a table without a root, as each program of old printed its own columns.

    all_gather.cu and hypercube.cu knew no redop, alltoall.cu left it blank (nccl-tests v2.0 to
    v2.10). hypercube's busbw is its algbw, all_gather's (n-1)/n of it. AMD's tests printed
    all_gather's columns for gather and scatter too.
    """
    if "root" in table.lead or table.amd or not printed_number(rows[-1]["nbytes"]) > 0:
        return "unknown"
    if {"redop", "op"} & set(table.lead):
        return "all_to_all"
    n_workers = 64 if pd.isna(table.n_workers) else table.n_workers
    ratio = bus_ratio(*([printed_number(row[c]) for row in rows] for c in ("algbw", "busbw")))
    return "all_gather" if ratio < 1 - 0.5 / n_workers else "unknown"


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


def _positive(token) -> float:
    value = printed_number(token)
    return value if 0 < value < math.inf else math.nan
