"""JSON and CSV of nccl-tests (`--json`, `-J file`) and rccl-tests (`--output_format`) -> rows."""

import csv
import json
import re

import pandas as pd

from .collectives import collective
from .nccl_rows import both_places, whole_number

_CSV = {"numcycle", "inplace", "time", "algbw"}
_MARKS = re.compile(r'"(?:oop_time|ip_time|out_of_place|in_place|inPlace)"\s*:')
PROGRAM = re.compile(r"\b(\w{2,40}?)_perf(?:_\w{1,20})?\b")  # some builds: all_gather_perf_mpi


def reported(text: str, file: str, problems: list[str]) -> list[dict] | None:
    """Return rows of a report; None if the text is not one. Raises ValueError for broken CSV."""
    lines = text.split("\n")
    if (start := _csv_header(lines)) is not None:
        try:
            return _records(csv.DictReader(lines[start:], skipinitialspace=True))
        except csv.Error as error:
            raise ValueError(f"{file}: not a CSV table ({error})") from None
    return _json(text, problems) if _MARKS.search(text) else None


def is_report(text: str) -> bool:
    """Return whether the text contains keys or columns that only such reports have."""
    return _MARKS.search(text) is not None or _csv_header(text.split("\n")) is not None


def _json(text: str, problems: list[str]) -> list[dict]:
    """Return rows of any JSON in the text, complete or cut."""
    decoder, at, failures, rows, records, config = json.JSONDecoder(), 0, 0, [], [], {}
    program = next(iter(PROGRAM.findall(text)), "")
    while (at := text.find("{", at)) >= 0 and failures < 1000:
        try:
            found, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            failures, at = failures + 1, at + 1
            continue
        config = found.get("config", found) if "results" in found or "devices" in found else config
        records += [found] if "inPlace" in found else []
        rows += _objects(found)
    if failures and rows:
        problems.append("the JSON is cut or has other text in it: only complete rows are read")
    n_workers, n_nodes = _devices(config if isinstance(config, dict) else {})
    name = program.removesuffix("_perf")
    common = {"op": collective(name) or name, "n_workers": n_workers, "n_nodes": n_nodes}
    return [row | common for row in rows] + _records(records)


def _objects(found: dict) -> list[dict]:
    """Return rows of a decoded object: a document, a list of sizes, or a row of a cut document."""
    rows = []
    for key, value in found.items():
        if key in ("results", "benchmark") and isinstance(value, list):
            rows += [row for v in value if isinstance(v, dict) for row in _objects(v)]
        elif key.isdigit() and isinstance(value, dict) and "oop_time" in value:
            names = {"time": "time", "algbw": "algbw", "busbw": "busbw", "#wrong": "error"}
            places = [{k: f"{place}_{v}" for k, v in names.items()} for place in ("oop", "ip")]
            rows.append(_row(key, value, [{k: value.get(v) for k, v in p.items()} for p in places]))
    if "size" in found and ("out_of_place" in found or "in_place" in found):
        groups = [found.get(key) for key in ("out_of_place", "in_place")]
        names = {"alg_bw": "algbw", "bus_bw": "busbw", "nwrong": "#wrong", "cpu_time": "time"}
        groups = [g.items() if isinstance(g, dict) else () for g in groups]
        rows.append(
            _row(found["size"], found, [{names.get(k, k): v for k, v in g} for g in groups])
        )
    return rows


def _row(size, found: dict, groups: list[dict]) -> dict:
    texts = {key: str(found.get(key, "")).strip() for key in ("count", "redop", "root")}
    return both_places(groups) | texts | {
        "where": f"size {size}", "table": None, "nbytes": size, "dtype": str(found.get("type", "")),
    }  # fmt: skip


def _devices(config: dict) -> tuple:
    """Return workers and nodes: the report lists only the first device of each process."""
    devices = config.get("devices")
    devices = [d for d in devices if isinstance(d, dict)] if isinstance(devices, list) else []
    if not devices:
        return pd.NA, pd.NA
    each = (whole_number(config.get("nthreads")) or 1) * (whole_number(config.get("ngpus")) or 1)
    ranks = {str(d.get("rank")) for d in devices}
    first = all(rank.isdecimal() and whole_number(rank) % each == 0 for rank in ranks)
    nodes = len({str(d.get("hostname")) for d in devices})
    return len(ranks) * (each if first else 1), nodes


def _records(records) -> list[dict]:
    """Return rows of rccl-tests' records: two per size, out of place and in place."""
    rows: dict = {}
    for n, record in enumerate(records, start=1):
        record = {str(k).lower().strip(): v for k, v in record.items()}
        record["name"] = str(record.get("name") or record.get("collective") or "")
        same = ("name", "numcycle", "size", "type", "redop", "ranks")
        inside = str(record.get("inplace")).strip().lower() in ("1", "true")
        group = {key: record.get(key) for key in ("time", "algbw", "busbw")}
        group["#wrong"] = record.get("#wrong", record.get("wrong"))
        row = rows.setdefault(tuple(str(record.get(k)) for k in same), (n, record, [{}, {}]))
        row[-1][inside] = group
    return [_record(*row) for row in rows.values()]


def _record(n: int, record: dict, groups: list[dict]) -> dict:
    workers = whole_number(record.get("ranks")) * (whole_number(record.get("gpusperrank")) or 1)
    found = {key: record.get(key, "") for key in ("type", "redop")}
    return _row(record.get("size"), found, groups) | {
        "where": f"record {n}", "op": collective(record["name"]) or record["name"].lower(),
        "n_workers": workers or pd.NA, "n_nodes": whole_number(record.get("nodes")) or pd.NA,
    }  # fmt: skip


def _csv_header(lines: list[str]) -> int | None:
    named = ({name.strip(' "\r').lower() for name in line.split(",")} for line in lines)
    return next((n for n, names in enumerate(named) if _CSV <= names), None)
