"""Output of the OSU micro-benchmarks (`osu_allreduce` and its siblings): text -> MEASUREMENTS.

A table has a title, `# OSU MPI-CUDA Allreduce Latency Test v5.8`, a line of column names, and rows.
It lacks the number of workers; a launcher's command or a job's record in the same text may have it.
"""

import json
import math
import re

import pandas as pd

from .collectives import collective
from .columns import NO_WORKERS, log_lines, nothing_timed
from .nccl_rows import printed_number

_TITLE = re.compile(r"#\s*OSU\s+(\S.{0,120}?)\s+Test\b(?:\s+v[\d.]+)?", re.IGNORECASE)
_COLUMNS = re.compile(r"#\s*((?:Size\b.*|.*)\((?:us|MB/s)\).*)", re.IGNORECASE)
_COLUMN = re.compile(r"Size|Iterations|Validation|[^\s()][^()]{0,40}?\s?\([^()]{1,10}\)|\S+/s")
_MOST_NODES = 1_000_000
_ROW = re.compile(  # after a tag of mpirun, srun -l, or a clock
    r"^(?:(?:\[[^\]]{1,80}\](?:<std\w+>)?:?|\d+:(?=\s)|\d{4}-\d\d-\d\d[T ][\d:.]+Z?)\s*){0,3}"
    r"\s*(\d[\d.]*(?:\s+(?:\d[\d.eE+-]*|nan|inf|Pass|Fail|N/A))*)\s*$"
)
_SUMS = re.compile("Bi-?Directional|Multiple", re.IGNORECASE)
_LATENCY = ("pure comm.(us)", "avg latency(us)", "latency(us)", "avg lat(us)", "avg latency (us)")
_BANDWIDTH = "bandwidth(mb/s)"
_WHOLE = {"n_workers": "Int64", "n_nodes": "Int64", "nbytes": "int64", "n_iterations": "Int64"}
_COMMAND = re.compile(
    r"\b(?:mpirun|mpiexec|mpirun_rsh|srun|flux run)\b.*?\s(?:-np|-n|--ntasks)[ =](\d{1,7})\b"
    r".*\bosu_"
)


def recognises(head: bytes) -> bool:
    """Return whether a title of an OSU test is there."""
    return _TITLE.search(head.decode(errors="replace")) is not None


def read(text: str, file: str) -> tuple[pd.DataFrame, list[str]]:
    """Return MEASUREMENTS with `seconds_min`, `seconds_max`, `n_iterations` if printed; problems.

    Raises ValueError if no table contains a time.
    """
    problems, rows = [], []
    title, columns, workers, asked = "", [], None, 0
    for number, line in enumerate(log_lines(text), start=1):
        if found := _TITLE.search(line):
            title, columns, workers, asked = found[1], [], asked or None, 0
            if _SUMS.search(title):
                why = "it adds up several messages"
                problems.append(f"line {number}: {title} test left out, {why}")
                title = ""
        elif command := _COMMAND.search(line):
            asked = int(command[1])
        elif title and (found := _COLUMNS.search(line)):
            columns = [name.strip().lower() for name in _COLUMN.findall(found[1])]
        elif columns and (found := _ROW.match(line)):
            row = _row(found[1].split(), columns)
            if isinstance(row, str):
                problems.append(f"line {number} left out ({row}): {line.strip()[:80]!r}")
            else:
                rows.append({"op": _op(title), "n_workers": workers} | row)
    if not rows:
        lines = "'# OSU MPI Allreduce Latency Test', '# Size  Avg Latency(us)' and rows"
        nothing_timed(text, file, problems, f"the output of an OSU test: {lines}")
    return _table(rows, text, problems), problems


def _table(rows: list[dict], text: str, problems: list[str]) -> pd.DataFrame:
    unknown = pd.array([pd.NA] * len(rows), dtype="Int64")
    table = pd.DataFrame(rows).astype({"n_workers": "Int64"})
    table.insert(2, "n_nodes", unknown)
    table = _with_workers(table, text, problems)
    if table.pop("bandwidth").any():
        problems.append("times of bandwidth tests are size/bandwidth, with messages in flight")
    return table.astype({name: kind for name, kind in _WHOLE.items() if name in table})


def _op(title: str) -> str:
    """Return the op of a title, `MPI-CUDA Allreduce Latency` -> all_reduce; default send_recv."""
    name = re.sub(r"^\S*(?:MPI|NCCL|RCCL|SHMEM|UPC)\S*\s+", "", title)
    name = re.sub(r"Personalized Exchange|Latency|Bandwidth|Non-?blocking|Multi-\w+", " ", name)
    name = re.sub(r"[\W_]+", "_", name).strip("_").lower()
    return collective(name) or name or "send_recv"


def _row(tokens: list[str], columns: list[str]) -> dict | str:
    """Return the values of a row in bytes and seconds, or what is wrong with it."""
    plain = [name.replace(" (", "(") for name in columns]
    values = dict(zip(plain, tokens, strict=False))
    size = values.get("size", "0")
    time = next((name for name in _LATENCY if name in values), None)
    if len(tokens) != len(columns) or (time or _BANDWIDTH) not in values:
        return f"expected {', '.join(columns)}"
    value = printed_number(values[time or _BANDWIDTH])
    if not 0 < value < math.inf or not size.isdigit() or int(size) >= 2**63:
        return f"{time or _BANDWIDTH} is {values[time or _BANDWIDTH]}, size {size}"
    seconds = value / 1e6 if time else int(size) / (value * 1e6)
    row = {"nbytes": int(size), "seconds": seconds, "bandwidth": time is None}
    for end in ("min", "max"):
        if (latency := values.get(f"{end} latency(us)")) is not None:
            row[f"seconds_{end}"] = printed_number(latency) / 1e6
    if values.get("iterations", "").isdigit():
        row["n_iterations"] = int(values["iterations"])
    return row


def _with_workers(table: pd.DataFrame, text: str, problems: list[str]) -> pd.DataFrame:
    """Fill n_workers: 2 for point to point, else from a command or a job's record, if any."""
    table = table.assign(n_workers=table["n_workers"].where(table["op"] != "send_recv", 2))
    unknown = table["n_workers"].isna()
    if unknown.any() and len(jobs := _jobs(text)) == 1:
        ((n_workers, n_nodes),) = jobs
        where = "from the job's record in the text (Flux taskmap)"
        problems.append(f"n_workers = {n_workers} on {n_nodes} nodes: {where}")
        table.loc[unknown, ["n_workers", "n_nodes"]] = jobs[0]
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
