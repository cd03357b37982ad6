"""Output of nccl-tests and rccl-tests (`all_reduce_perf` and its siblings): text -> MEASUREMENTS.

Columns are found by the header line of each table, since their number differs between versions and
collectives (redop and root may be missing or blank; the check column is `error` or `#wrong`).
"""

import math
import re

import pandas as pd

from .collectives import collective, dtype_bytes

_STARTING = re.compile(r"Collective test starting:\s*(\w+)", re.IGNORECASE)
_RANK = re.compile(r"Rank\s+(\d+)\b.*?\bon\s+(\S+)\s+device", re.IGNORECASE)
_HEADER = re.compile(r"^[^#]*#\s+size\s+count\b.*\btime\b.*\balgbw\b", re.IGNORECASE)
_TAG = re.compile(r"^\[[\w.:/ ,-]+\](?:<std\w+>)?:?\s*")  # mpirun --tag-output
_ROW = re.compile(r"^\s*\d+\s+\d+\s+[a-z]\w*\s")


def recognises(head: bytes) -> bool:
    """Whether a table's header is there. A log may open with much else: absence proves little."""
    return any(map(_HEADER.match, head.decode(errors="replace").splitlines()))


def read(text: str, file: str) -> tuple[pd.DataFrame, list[str]]:
    """MEASUREMENTS out of place, with `in_place_seconds` and `n_wrong`, and a list of problems.

    The workers and nodes are counted from the `Rank ... on host` lines above each table.
    Raises ValueError when the text holds no table of nccl-tests.
    """
    rows, problems, ranks, guesses = [], [], {}, {}
    header, op, counting, n_table = None, "", False, 0
    for number, line in enumerate(text.splitlines(), start=1):
        line = _TAG.sub("", line)
        if starting := _STARTING.search(line):
            op = collective(starting[1])
        elif rank := _RANK.search(line):
            ranks = ranks if counting else {}  # a new list of devices begins
            ranks[int(rank[1])], counting = rank[2], True
        elif _HEADER.search(line):
            header, counting = line.split("#", 1)[1].lower().split(), False
            n_table += 1
        elif header and _ROW.match(line):
            try:
                row, guess = _row(line.split(), header, ranks)
                rows.append({"op": op or n_table, **row})
                guesses[n_table] = guess  # the last row is the largest and tells best
            except ValueError as error:
                problems.append(f"line {number} left out ({error}): {line.strip()[:80]!r}")
    if not rows:
        raise ValueError(_nothing(text, file, problems))
    table = pd.DataFrame(rows)
    table = table.assign(op=[guesses.get(op, op) for op in table["op"]])
    if (wrong := table["n_wrong"].fillna(0) > 0).any():
        sizes = ", ".join(map(str, table.loc[wrong, "nbytes"].head(5)))
        problems.append(f"the test found wrong results at sizes {sizes}: do not trust these times")
    if (table["n_workers"] < 1).any():
        problems.append("no list of ranks above the table: n_workers is unknown, set it yourself")
    whole = dict.fromkeys(["n_workers", "n_nodes", "n_wrong"], "Int64")
    return table.replace({"n_workers": {0: None}, "n_nodes": {0: None}}).astype(whole), problems


def _row(tokens: list[str], header: list[str], ranks: dict) -> tuple[dict, str]:
    size, count, dtype = int(tokens[0]), int(tokens[1]), tokens[2]
    rest = tokens[3:]
    redop = rest.pop(0) if rest and re.fullmatch(r"[a-z]\w*", rest[0]) else "none"
    root = int(rest.pop(0)) if "root" in header else -1
    width = len(header[header.index("time") :]) // header.count("time")
    if len(rest) < width:
        raise ValueError(f"expected {width} numbers for the time and bandwidths, got {len(rest)}")
    in_place = rest[width] if len(rest) > width else "N/A"
    checks = rest[width - 1 :: width] if "#wrong" in header else []
    row = {
        "n_workers": len(ranks),
        "n_nodes": len(set(ranks.values())),
        "nbytes": size,
        "seconds": _microseconds(rest[0]) / 1e6,
        "in_place_seconds": _microseconds(in_place) / 1e6 if in_place != "N/A" else math.nan,
        "n_wrong": sum(int(float(c)) for c in checks if c != "N/A") if checks else None,
    }
    return row, _guess(size, count, dtype, redop, root)


def _microseconds(token: str) -> float:
    value = float(token)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"time is {token}")
    return value


def _guess(size: int, count: int, dtype: str, redop: str, root: int) -> str:
    """The collective, from how the count of elements relates to the size, in older versions."""
    whole = count * (dtype_bytes(dtype) or 0) == size
    if redop != "none":
        return ("reduce" if root >= 0 else "all_reduce") if whole else "reduce_scatter"
    if whole and size:
        return "broadcast" if root >= 0 else "send_recv"
    return "unknown"  # all_gather and all_to_all print the same columns


def _nothing(text: str, file: str, problems: list[str]) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    found = problems[0] if problems else f"it begins with {first[:80]!r}"
    return (
        f"{file}: no timed collective. Expected a table of nccl-tests (a line '# size count type "
        f"... time algbw busbw' and rows) or a CSV with n_workers, nbytes, seconds; {found}"
    )
