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
    """Rows of a report; None when the text is none. Raises ValueError on broken CSV."""
    lines = text.split("\n")
    if (start := _csv_header(lines)) is not None:
        return _records(_csv(lines[start:], file))
    return _json(text, problems) if _MARKS.search(text) else None


def is_report(text: str) -> bool:
    """Whether keys or columns that only those reports have are there."""
    return _MARKS.search(text) is not None or _csv_header(text.split("\n")) is not None


def _json(text: str, problems: list[str]) -> list[dict]:
    """Rows of whatever JSON the text holds, whole or cut."""
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
        problems.append("the JSON is cut or has other text in it: its whole rows are read")
    n_workers, n_nodes = _devices(config if isinstance(config, dict) else {})
    name = program.removesuffix("_perf")
    common = {"op": collective(name) or name, "n_workers": n_workers, "n_nodes": n_nodes}
    return [row | common for row in rows] + _records(records)


def _objects(found: dict) -> list[dict]:
    """Rows of a decoded object: a document, a list of sizes, or one row of a cut document."""
    rows = []
    for key, value in found.items():
        if key in ("results", "benchmark") and isinstance(value, list):
            rows += [row for v in value if isinstance(v, dict) for row in _objects(v)]
        elif key.isdigit() and isinstance(value, dict) and "oop_time" in value:
            groups = [
                {"time": value.get(f"{p}_time"), "algbw": value.get(f"{p}_algbw"),
                 "busbw": value.get(f"{p}_busbw"), "#wrong": value.get(f"{p}_error")}
                for p in ("oop", "ip")
            ]  # fmt: skip
            rows.append(_json_row(key, value, groups))
    if "size" in found and ("out_of_place" in found or "in_place" in found):
        groups = [found.get(key) or {} for key in ("out_of_place", "in_place")]
        groups = [g if isinstance(g, dict) else {} for g in groups]
        names = {"alg_bw": "algbw", "bus_bw": "busbw", "nwrong": "#wrong", "cpu_time": "time"}
        groups = [{names.get(k, k): v for k, v in g.items()} for g in groups]
        rows.append(_json_row(found["size"], found, groups))
    return rows


def _json_row(size, found: dict, groups: list[dict]) -> dict:
    told = {key: str(found.get(key, "")).strip() for key in ("count", "redop", "root")}
    return both_places(groups) | told | {
        "where": f"size {size}", "table": None, "nbytes": size, "dtype": str(found.get("type", "")),
    }  # fmt: skip


def _devices(config: dict) -> tuple:
    """Workers and nodes: the report lists the first device of each process alone."""
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
    """Rows of rccl-tests' own records, one out of place and one in place a size."""
    rows: dict = {}
    for n, record in enumerate(records, start=1):
        record = {str(k).lower().strip(): v for k, v in record.items()}
        name = str(record.get("name") or record.get("collective") or "")
        same = ("numcycle", "size", "type", "redop", "ranks")
        key = (name, *(str(record.get(k)) for k in same))
        inside = str(record.get("inplace")).strip().lower() in ("1", "true")
        group = {"time": record.get("time"), "algbw": record.get("algbw")}
        group |= {"busbw": record.get("busbw"), "#wrong": record.get("#wrong", record.get("wrong"))}
        row = rows.setdefault(key, {"groups": [{}, {}], "n": n, "record": record, "name": name})
        row["groups"][inside] = group
    return [_record(**row) for row in rows.values()]


def _record(groups: list[dict], n: int, record: dict, name: str) -> dict:
    workers = whole_number(record.get("ranks")) * (whole_number(record.get("gpusperrank")) or 1)
    return both_places(groups) | {
        "where": f"record {n}", "table": None, "nbytes": record.get("size"),
        "count": "", "dtype": str(record.get("type", "")), "redop": str(record.get("redop", "")),
        "root": "", "op": collective(name) or name.lower(),
        "n_workers": workers or pd.NA,
        "n_nodes": whole_number(record.get("nodes")) or pd.NA,
    }  # fmt: skip


def _csv(lines: list[str], file: str) -> list[dict]:
    try:
        return list(csv.DictReader(lines, skipinitialspace=True))
    except csv.Error as error:
        raise ValueError(f"{file}: not a CSV table ({error})") from None


def _csv_header(lines: list[str]) -> int | None:
    for n, line in enumerate(lines):
        if "," in line and _CSV <= {name.strip(' "\r').lower() for name in line.split(",")}:
            return n
    return None
