"""Output of the OSU micro-benchmarks (`osu_allreduce` and its siblings): text -> MEASUREMENTS.

A title, a line of column names, and rows: `# OSU MPI-CUDA Allreduce Latency Test v5.8`. The tables
do not say how many workers took part; a launcher's command or a job's record in the same text may.
"""

import json
import math
import re

import pandas as pd

from .collectives import collective
from .columns import NO_WORKERS

_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,20}[ -/]?[@-~]")
_TITLE = re.compile(r"#\s*OSU\s+(\S.{0,120}?)\s+Test\b(?:\s+v[\d.]+)?", re.IGNORECASE)
_COLUMNS = re.compile(r"#\s*((?:Size\b.*|.*)\((?:us|MB/s)\).*)", re.IGNORECASE)
_COLUMN = re.compile(r"Size|Iterations|Validation|[^\s()][^()]{0,40}?\s?\([^()]{1,10}\)|\S+/s")
_MOST_NODES = 1_000_000
_LONGEST = 2000  # characters of a line that are looked at
_ROW = re.compile(  # after a tag of mpirun, srun -l, or a clock
    r"^(?:(?:\[[^\]]{1,80}\](?:<std\w+>)?:?|\d+:(?=\s)|\d{4}-\d\d-\d\d[T ][\d:.]+Z?)\s*){0,3}"
    r"\s*(\d[\d.]*(?:\s+(?:\d[\d.eE+-]*|nan|inf|Pass|Fail|N/A))*)\s*$"
)
_SUMS = re.compile("Bi-?Directional|Multiple", re.IGNORECASE)
_LATENCY = ("pure comm.(us)", "avg latency(us)", "latency(us)", "avg lat(us)", "avg latency (us)")
_BANDWIDTH = ("bandwidth(mb/s)",)
_COMMAND = re.compile(
    r"\b(?:mpirun|mpiexec|mpirun_rsh|srun|flux run)\b.*?\s(?:-np|-n|--ntasks)[ =](\d{1,7})\b"
    r".*\bosu_"
)


def recognises(head: bytes) -> bool:
    """Return whether a title of an OSU test is there."""
    return _TITLE.search(head.decode(errors="replace")) is not None


def read(text: str, file: str) -> tuple[pd.DataFrame, list[str]]:
    """MEASUREMENTS of all tables, with `seconds_min`, `seconds_max`, `n_iterations` where printed.

    Raises ValueError when no table holds a time.
    """
    problems, rows = [], []
    title, columns, workers, asked = "", [], None, 0
    for number, line in enumerate(_COLOUR.sub("", text).split("\n"), start=1):
        line = line[:_LONGEST].replace("\r", " ")
        if found := _TITLE.search(line):
            title, columns, workers, asked = found[1], [], asked or None, 0
            if _SUMS.search(title):
                title = ""
                problems.append(
                    f"line {number}: {found[1]} test left out, it adds up several messages"
                )
        elif command := _COMMAND.search(line):
            asked = int(command[1])
        elif title and (found := _COLUMNS.search(line)):
            columns = [name.strip().lower() for name in _COLUMN.findall(found[1])]
        elif columns and (found := _ROW.match(line)):
            row = _row(found[1].split(), columns)
            if isinstance(row, str):
                problems.append(f"line {number} left out ({row}): {line.strip()[:80]!r}")
            else:
                rows.append(_names(title) | {"n_workers": workers} | row)
    if not rows:
        raise ValueError(_nothing(text, file, problems))
    return _table(rows, text, problems), problems


def _table(rows: list[dict], text: str, problems: list[str]) -> pd.DataFrame:
    first = ["op", "n_workers", "n_nodes", "nbytes", "seconds"]
    unknown = pd.array([pd.NA] * len(rows), dtype="Int64")
    table = pd.DataFrame(rows).astype({"n_workers": "Int64"}).assign(n_nodes=unknown)
    table = _with_workers(table, text, problems)
    whole = {"n_workers": "Int64", "n_nodes": "Int64", "nbytes": "int64"}
    if table.pop("bandwidth").any():
        problems.append("of bandwidth tests the time is size/bandwidth, messages in flight at once")
    if "n_iterations" in table:
        whole["n_iterations"] = "Int64"
    return table[[*first, *(c for c in table if c not in first)]].astype(whole)


def _names(title: str) -> dict:
    """op of a title: `MPI-CUDA Allreduce Latency` -> all_reduce; without a collective send_recv."""
    name = re.sub(r"^\S*(?:MPI|NCCL|RCCL|SHMEM|UPC)\S*\s+", "", title)
    name = re.sub(r"Personalized Exchange|Latency|Bandwidth|Non-?blocking|Multi-\w+", " ", name)
    name = re.sub(r"[\W_]+", "_", name).strip("_").lower()
    return {"op": collective(name) or name or "send_recv"}


def _row(tokens: list[str], columns: list[str]) -> dict | str:
    """Return the values of a row in bytes and seconds, or what is wrong with it."""
    plain = [name.replace(" (", "(") for name in columns]
    told = dict(zip(plain, tokens, strict=False))
    size = told.get("size", "0")
    time = next((name for name in _LATENCY if name in told), None)
    rate = next((name for name in _BANDWIDTH if name in told), None)
    if len(tokens) != len(columns) or not (time or rate):
        return f"expected {', '.join(columns)}"
    value = _number(told[time or rate])
    if not (value > 0 and math.isfinite(value)) or not size.isdigit() or int(size) >= 2**63:
        return f"{time or rate} is {told[time or rate]}, size {size}"
    row = {"nbytes": int(size), "bandwidth": time is None}
    row["seconds"] = value / 1e6 if time else int(size) / (value * 1e6)
    for name, column in (("seconds_min", "min latency(us)"), ("seconds_max", "max latency(us)")):
        if column in told:
            row[name] = _number(told[column]) / 1e6
    if told.get("iterations", "").isdigit():
        row["n_iterations"] = int(told["iterations"])
    return row


def _with_workers(table: pd.DataFrame, text: str, problems: list[str]) -> pd.DataFrame:
    """Workers of a job's record or a command; two of a test from point to point; else unknown."""
    table = table.assign(n_workers=table["n_workers"].where(table["op"] != "send_recv", 2))
    unknown = table["n_workers"].isna()
    if unknown.any() and (jobs := _jobs(text)):
        (n_workers, n_nodes), *others = jobs
        if not others:
            problems.append(
                f"n_workers = {n_workers} on {n_nodes} nodes is what the job's record in the text "
                "says (Flux taskmap)"
            )
            table = table.assign(
                n_workers=table["n_workers"].fillna(n_workers),
                n_nodes=table["n_nodes"].where(~unknown, n_nodes),
            )
    if table["n_workers"].isna().any():
        problems.append(NO_WORKERS)
    return table


def _jobs(text: str) -> list[tuple[int, int]]:
    """Return (tasks, nodes) of the task maps in a Flux event log, without repetitions.

    An entry of the map is first node, nodes, tasks per node, repetitions (Flux RFC 34).
    """
    found = []
    for line in text.split("\n"):
        if '"taskmap"' not in line or len(line) > 2**20:
            continue
        try:
            entries = json.loads(line)["context"]["taskmap"]["map"]
            whole = all(isinstance(v, int) and v >= 0 for entry in entries for v in entry)
            if whole and sum(n for _, n, _, _ in entries) <= _MOST_NODES:
                nodes = {first + k for first, n, _, _ in entries for k in range(n)}
                found.append((sum(n * each * times for _, n, each, times in entries), len(nodes)))
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return list(dict.fromkeys(job for job in found if 0 < job[0] < 2**31))


def _number(token: str) -> float:
    try:
        return float(token)
    except ValueError:
        return math.nan


def _nothing(text: str, file: str, problems: list[str]) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    found = problems[0] if problems else f"it begins with {first[:80]!r}"
    return (
        f"{file}: no timed collective. Expected the output of an OSU test (a title '# OSU MPI "
        f"Allreduce Latency Test', a line '# Size  Avg Latency(us)' and rows); {found}"
    )
