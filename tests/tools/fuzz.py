"""Damage files of every format at random and load them: `make fuzz`, or `fuzz.py --help`.

A loader may refuse a file in one sentence that names it, or return a table whose ledger adds up.
Anything else is a fault: its file is written to tests/artefacts/fuzz/ with the seed it grew from.
"""

import argparse
import gzip
import io
import json
import math
import os
import random
import re
import signal
import sqlite3
import struct
import sys
import tarfile
import tempfile
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
from conftest import ROOT, SHARED, complete, launched
from tqdm import tqdm

from workbench import traces
from workbench.traces import collectives, gradients, iterations

ARTEFACTS = ROOT / "tests" / "artefacts" / "fuzz"
N_EVENTS = 60  # of a real trace in JSON, so that a file takes milliseconds
HANG_S = 30
SCRIPT = "<script>alert(1)</script>"
_OF_RANKS = ("two files claim rank", "clocks of the ranks", "no trace in this folder")

VALUES = (
    *(None, True, "", [], {}, [[]], [None], {"": {}}, 0, -1, -0.0, 0.1, 1e-320),
    *(2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**40, -(10**400)),
    *(1e18, 9.2e15, 1e308, math.nan, math.inf, -math.inf),
    *("NaN", "-inf", "1e999", "1e-999", "0x10", "12", "-7.5", " 3 ", "1_0", "stream 7", "٣"),
    *(SCRIPT, f'"><img src=x onerror=alert(1)>{SCRIPT}', "\0\x01\x1b[2J", "\ud800", "\u2028"),
    *("ProfilerStep#1", "ProfilerStep#" + "9" * 30, "ProfilerStep#-1", "ProfilerStep#٣"),
    *("kernel", "cpu_op", "gpu_memcpy", "cuda_runtime", "user_annotation", "X", "B", "E", "M"),
    *("torch::autograd::AccumulateGrad", "nccl:all_reduce", "ncclDevKernel_AllReduce", "gloo:x"),
    *("float", "c10::BFloat16", [[2, 3]], [[2**40, 2**40]], [["a"]], [[-1]], ["float"]),
)
TOKENS = (
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\\u", b"\0", b"\n", b"\xff", b"\xf0\x9f"),
    *(b"NaN", b"-Infinity", b"inf", b"null", b"1e999", b"9" * 25, b"[" * 3000, b'{"a":' * 3000),
    *(b'"traceEvents": [', b']}{"traceEvents": [', b"]}", b"#", b"N/A", b"-", b"# size count"),
    *(b'"ph": "X",', SCRIPT.encode(), b" " * 70000, b"size,time", b"\x1f\x8b", b"ustar"),
)


# Seeds: small valid files, made here and cut from real ones


@cache
def seeds() -> dict[str, bytes]:
    """Small files by name; the name's beginning tells which loader wants it."""
    return _made() | (_real() if SHARED.is_dir() else {})


def _made() -> dict[str, bytes]:
    rows = [complete("user_annotation", f"ProfilerStep#{i}", 1000 * i, 990) for i in (1, 2)]
    for i, base in enumerate((1000, 2000)):
        sizes = {"Input Dims": [[64, 8], []], "Input type": ["float", "Scalar"]}
        rows += launched("gemm", base + 100, 300, launch_ts=base + 20, correlation=10 * i + 1)
        rows += launched(
            *("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", base + 300, 200),
            **dict(launch_ts=base + 30, correlation=10 * i + 2, stream=20),
            **{"In msg nelems": 512, "dtype": "Float", "Collective name": "allreduce"},
        )
        rows.append(complete("cpu_op", "torch::autograd::AccumulateGrad", base + 40, 9, **sizes))
        rows.append(complete("gpu_memcpy", "Memcpy HtoD", base + 600, 20, tid=7, stream=7))
    header = {
        "distributedInfo": {"rank": 0, "world_size": 2, "backend": "nccl"},
        "deviceProperties": [{"id": 0, "name": "GPU"}],
        "baseTimeNanoseconds": 1712000000000000000,
    }
    horovod = [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad/w1"}},
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 100, "pid": 1},
        {"ph": "X", "name": "0", "ts": 101, "pid": 1, "dur": 0},
        {"ph": "E", "ts": 181, "pid": 1},
        {"ph": "B", "name": "ALLREDUCE", "ts": 190, "pid": 1},
        {"ph": "B", "name": "NCCL_ALLREDUCE", "ts": 200, "pid": 1},
        {"ph": "E", "ts": 300, "pid": 1},
        {"ph": "E", "ts": 305, "pid": 1, "args": {"dtype": "float32", "shape": "[10]"}},
    ]
    table = (
        "# Rank  0 Pid 1 on nodeA device  0 [0x07] GPU\n"
        "# Rank  1 Pid 2 on nodeB device  0 [0x07] GPU\n"
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
        + "".join(
            f" {4 * n} {n} float sum -1 {t} 1.0 1.0 0 {t} 1.0 1.0 N/A\n"
            for n, t in ((256, 20.5), (1024, 30.0), (4096, 1.1e2))
        )
    )
    old = (
        "# Rank  0 Pid 1 on nodeA device  0 [0x07] GPU\n# Rank  1 Pid 2 on nodeB device  0 GPU\n"
        "# size count type time algbw busbw error time algbw busbw error\n"
        "nodeA:1:1 [0] NCCL INFO AllGather: opCount 0 sendbuff 0x7 recvbuff 0x8 count 8\n"
        + "".join(f" {8 * n} {n} float 9.5 2.0 1.0 0e+00 9.5 2.0 1.0 N/A\n" for n in (256, 4096))
    )
    sweep = "op,n_workers,n_nodes,nbytes,seconds\n" + "all_reduce,8,1,1048576,0.0005\n" * 4
    return {
        "trace-kineto-made": json.dumps({**header, "traceEvents": rows}).encode(),
        "trace-kineto-array": json.dumps(rows).encode(),
        "trace-kineto-halves": json.dumps({**header, "traceEvents": _halved(rows)}).encode(),
        "trace-horovod-made": json.dumps(horovod).encode(),
        "sweep-nccl-made": table.encode(),
        "sweep-nccl-old": f"$ ./all_gather_perf -b 2K\n{old}".encode(),
        "sweep-csv-made": sweep.encode(),
        "trace-nsys-made": _nsys(),
    }


def _halved(rows: list[dict]) -> list[dict]:
    """The same intervals, each told by two events (ph B and E)."""
    halves = []
    for row in rows:
        begin = {key: value for key, value in row.items() if key != "dur"} | {"ph": "B"}
        end = {"ph": "E", "ts": row["ts"] + row["dur"], "pid": row["pid"], "tid": row["tid"]}
        halves += [begin, end]
    return sorted(halves, key=lambda half: half["ts"])


def _nsys() -> bytes:
    with sqlite3.connect(":memory:") as db:
        db.executescript("""
            CREATE TABLE StringIds(id INTEGER PRIMARY KEY, value TEXT);
            INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'ncclDevKernel_AllReduce_Sum'), (3, 'x');
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER, end INTEGER, deviceId INTEGER,
                streamId INTEGER, correlationId INTEGER, demangledName INTEGER, shortName INTEGER);
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 5000, 0, 7, 1, 1, 1),
                (3000, 9000, 0, 20, 2, 2, 2);
            CREATE TABLE META_DATA_EXPORT(name TEXT, value TEXT);
            INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.25.0');
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start INTEGER, end INTEGER,
                correlationId INTEGER, globalTid INTEGER, nameId INTEGER);
            INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (500, 600, 1, 7, 3), (700, 800, 2, 7, 3);
            CREATE TABLE META_DATA_CAPTURE(name TEXT, value TEXT);
            INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ARGUMENT_0', '--nproc_per_node=2'),
                ('PROCESS_0:ARGUMENT_1', '--node_rank=0'),
                ('PROCESS_0:ENVIRONMENT_VARIABLE', 'SLURM_PROCID="0"');
            CREATE TABLE TARGET_INFO_SYSTEM_ENV(name TEXT, value TEXT);
            INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'node1');
            CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES(domainId INTEGER, schemaId INTEGER,
                name TEXT, type INTEGER, offset INTEGER);
            INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES
                (1, 20, 'NCCL communicator ID', 18, NULL), (1, 20, 'Message size [bytes]', 22, 8),
                (1, 21, 'NCCL communicator ID', 18, NULL), (1, 21, 'No. of ranks', 5, 8),
                (1, 21, 'Rank', 5, 12), (1, 21, 'CUDA device', 5, 16);
            CREATE TABLE NVTX_EVENTS(start INTEGER, end INTEGER, text TEXT, textId INTEGER,
                globalTid INTEGER, binaryData TEXT);
            INSERT INTO NVTX_EVENTS VALUES (0, 10000, NULL, 3, 7, NULL);""")
        rows = [(1, "ncclCommInitRank", _payload(21, "<Qiii", 9, 2, 1, 0))]
        rows += [(100, "ncclGroupStart", None), (200, "ncclAllReduce", _payload(20, "<QQ", 9, 512))]
        rows += [(650, "ncclGroupEnd", None)]
        for start, name, data in rows:
            row = (start, start + 200, name, None, 7, data)
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", row)
        db.commit()
        return db.serialize()


def _payload(schema: int, form: str, *fields: int) -> bytes:
    data = struct.pack(form, *fields)
    return struct.pack("<IIIIQQ", 1, 0, schema, 0, len(data), 32 + len(data)) + data


def _real() -> dict[str, bytes]:
    folders = {
        **{f"trace-{n}": n for n in ("horovod", "mxnet", "nccl_profiler", "nsys", "tf_timeline")},
        **{"trace-kineto": "kineto", "trace-pytorch_et": "pytorch_et"},
        **{f"sweep-{n}": n for n in ("nccl_tests", "osu", "vtrain_lut")},
        "totals-nvprof": "nvprof",
    }
    found = {}
    for label, folder in folders.items():
        for path in sorted((SHARED / "traces" / folder).rglob("*")):
            if path.is_file() and 0 < path.stat().st_size < 300_000 and ".tar" not in path.name:
                found[f"{label}-{path.parent.name}-{path.name}"] = _cut(path.read_bytes())
    return found


def _cut(data: bytes) -> bytes:
    """A real file with its first events of each kind."""
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    if data[:6] == b"SQLite":
        return data
    try:
        trace = json.loads(data)
    except ValueError:
        return data[:100_000]  # lines of text: what a log measured may stand at its end
    if isinstance(trace, dict):
        trace = {key: _some(v) if isinstance(v, list) else v for key, v in trace.items()}
    return json.dumps(_some(trace) if isinstance(trace, list) else trace).encode()


def _some(events: list) -> list:
    seen, kept = Counter(), []
    for event in events:
        kind = (event.get("cat"), event.get("ph")) if isinstance(event, dict) else None
        seen[kind] += 1
        if seen[kind] <= 10:
            kept.append(event)
    return kept[:N_EVENTS]


# Damage


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The file with one to four random changes, sometimes packed, sometimes damaged again."""
    for _ in range(rng.randint(1, 4)):
        if data[:6] == b"SQLite" and rng.random() < 0.6:
            data = _in_database(data, rng)
        elif rng.random() < 0.6:
            data = _in_json(data, rng)
        else:
            data = _in_bytes(data, rng)
    if rng.random() < 0.12:
        data = _tar(data, rng)
    if rng.random() < 0.15:
        data = gzip.compress(data, 1, mtime=0)
        data = _in_bytes(data, rng) if rng.random() < 0.5 else data
    return data


def _in_bytes(data: bytes, rng: random.Random) -> bytes:
    a, b = sorted(rng.randint(0, len(data)) for _ in range(2))
    b = min(b, a + rng.choice((1, 8, 200, 10**6)))
    change = rng.choice(("flip", "delete", "duplicate", "insert", "truncate", "swap"))
    if change == "flip":
        flipped = bytearray(data)
        for at in range(a, min(b, a + 4)):
            flipped[at] ^= 1 << rng.randint(0, 7)
        return bytes(flipped)
    return {
        "delete": data[:a] + data[b:],
        "duplicate": data[:b] + data[a:],
        "insert": data[:a] + rng.choice(TOKENS) + data[a:],
        "truncate": data[:b],
        "swap": data[b:] + data[a:b] + data[:a],
    }[change]


def _in_json(data: bytes, rng: random.Random) -> bytes:
    """Change a value or a key of a JSON file somewhere; other files as bytes."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return _in_bytes(data, rng)
    node = tree
    while isinstance(node, dict | list) and node:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = rng.choice(keys)
        child = node[key]
        if not (isinstance(child, dict | list) and child) or rng.random() < 0.1:
            change = rng.choice(("value", "value", "value", "delete", "copy", "rename"))
            if change == "delete":
                del node[key]
            elif isinstance(node, list):
                node[key:key] = [child if change == "copy" else rng.choice(VALUES)]
            elif change == "rename":
                node[rng.choice(("ph", "ts", "dur", "args", "traceEvents", SCRIPT))] = child
            else:
                node[key] = _nested(rng) if change == "copy" else rng.choice(VALUES)
            break
        node = child
    return json.dumps(tree, ensure_ascii=rng.random() < 0.8).encode(errors="surrogatepass")


def _nested(rng: random.Random):
    value = rng.choice(VALUES)
    for _ in range(rng.choice((1, 3, 200))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def _in_database(data: bytes, rng: random.Random) -> bytes:
    """Change a cell, a column's name or a table of a SQLite file, as bytes where it cannot be."""
    db = sqlite3.connect(":memory:")
    try:
        db.deserialize(data)
        tables = [r[0] for r in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = rng.choice(tables)
        columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
        column = rng.choice(columns)
        value = rng.choice([v for v in VALUES if not isinstance(v, list | dict)])
        value = value if not isinstance(value, int) or abs(value) < 2**63 else str(value)
        where = "rowid IN (SELECT rowid FROM x ORDER BY random() LIMIT 1)".replace("x", table)
        change = rng.choice(("cell",) * 5 + ("column", "rows", "table", "rename"))
        if change == "cell":
            db.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {where}', (value,))
        else:
            db.execute(
                {
                    "column": f'ALTER TABLE "{table}" DROP COLUMN "{column}"',
                    "rows": f'DELETE FROM "{table}"',
                    "table": f'DROP TABLE "{table}"',
                    "rename": f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "other"',
                }[change]
            )
        db.commit()
        return db.serialize()
    except (sqlite3.Error, IndexError, UnicodeError):
        return _in_bytes(data, rng)
    finally:
        db.close()


def _tar(data: bytes, rng: random.Random) -> bytes:
    buffer = io.BytesIO()
    names = ["rank0.json", "../../escaped.json", "/etc/escaped.json", "a/" * 40 + "rank1.json"]
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in rng.sample(names, rng.randint(1, 2)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.type = rng.choice((tarfile.REGTYPE,) * 6 + (tarfile.SYMTYPE, tarfile.LNKTYPE))
            member.linkname = "/etc/hostname"
            archive.addfile(member, io.BytesIO(data))
    packed = buffer.getvalue()
    return _in_bytes(packed, rng) if rng.random() < 0.4 else packed


# What must hold


def loaders(name: str) -> list:
    """The loader that a seed wants first, then those it should merely be refused by."""
    first = {"trace": "load_run", "sweep": "read_measurements", "totals": "read_totals"}
    wanted = first[name.split("-")[0]]
    order = sorted(first.values(), key=lambda function: function != wanted)
    return [getattr(traces, function) for function in order if hasattr(traces, function)]


def check(path: Path, load, companion: Path | None = None) -> str:
    """Load a file; raise AssertionError unless it is refused or loaded as promised."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = load([path, companion] if companion else path)
        except (ValueError, FileNotFoundError) as error:
            text = str(error)
            named = path.name in text or any(phrase in text for phrase in _OF_RANKS)
            assert named, f"the error names no file: {error!r}"
            result = None
        if isinstance(result, traces.Run):
            _check_run(result)
            if companion is None:
                _check_count(path, result)
        elif result is not None:
            _check_table(result)
    others = [w for w in caught if w.category is not UserWarning]
    assert not others, f"a warning of its own making: {others[0].category} {others[0].message}"
    return "refused" if result is None else "loaded"


def _check_run(run) -> None:
    events, ledger = run.events, run.ledger
    kept = int(ledger.loc[ledger["kept"], "n_events"].sum())
    assert kept == len(events), f"the ledger says {kept} kept, the table holds {len(events)}"
    assert (ledger["n_events"] >= 0).all(), "negative counts in the ledger"
    start, end = events["start_s"].to_numpy(), events["end_s"].to_numpy()
    assert np.isfinite(start).all() and np.isfinite(end).all(), "times that are not numbers"
    assert (start <= end).all() and (start >= 0).all(), "times before the first or backwards"
    html = run._repr_html_() + ledger._repr_html_() + events._repr_html_()
    assert "<script" not in html.lower() and "<img" not in html.lower(), "HTML from the file"
    assert str(run) and repr(run)
    for step in (iterations, collectives, gradients):
        try:
            table = step(events)
        except ValueError:
            continue
        assert isinstance(table, pd.DataFrame)
        if step is iterations:
            _check_times(table)


def _check_times(table: pd.DataFrame) -> None:
    """Times of ITERATIONS are numbers of at least 0; those of communication may be unknown."""
    times = table.filter(like="_s").astype("Float64")
    unknown = {"comm_s", "exposed_comm_s", "idle_s"}
    assert set(times.columns[times.isna().any()]) <= unknown, f"no numbers: {times}"
    times = times.fillna(0).to_numpy(float)
    slack = 1e-9 + 1e-12 * np.abs(times).max(initial=0)
    assert np.isfinite(times).all() and (times >= -slack).all(), f"impossible: {times}"


def _check_table(table: pd.DataFrame) -> None:
    assert isinstance(table, pd.DataFrame) and len(table), "an empty table and no word of it"
    if "seconds" in table:
        seconds = table["seconds"].to_numpy(float)
        assert np.isfinite(seconds).all(), "times that are not numbers"
    assert "<script" not in table._repr_html_().lower()


def _check_count(path: Path, run) -> None:
    """Of a whole Chrome trace, the ledger's counts add up to the number of its events."""
    data = path.read_bytes()
    try:
        trace = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if isinstance(events, list) and data.count(b"traceEvents") == isinstance(trace, dict):
        counted, n = int(run.ledger["n_events"].sum()), len(events)
        assert counted == n, f"the ledger counts {counted} events, the file holds {n}"


def _refuse(constant: str):
    raise ValueError(constant)


# Many of them


def one(number: int, seed: int, folder: Path) -> tuple[int, str, str]:
    """Make file `number` and check it: (number, outcome, traceback of a fault)."""
    rng = random.Random(f"{seed}/{number}")
    name = rng.choice(list(seeds()))
    path = folder / f"file-{number}"
    path.write_bytes(mutated(seeds()[name], rng))
    functions = loaders(name)
    load = functions[0] if rng.random() < 0.9 else rng.choice(functions)
    companion = None
    if load is traces.load_run and "kineto" in name and rng.random() < 0.1:
        companion = folder / f"companion-{number}-rank1"
        companion.write_bytes(seeds()["trace-kineto-made"].replace(b'"rank": 0', b'"rank": 1'))
    signal.signal(signal.SIGALRM, _hung)
    signal.alarm(HANG_S)
    try:
        return number, f"{name.rsplit('-', 1)[0]} {check(path, load, companion)}", ""
    except BaseException:  # whatever it is, it is a finding
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        saved = ARTEFACTS / f"{name}-seed{seed}-{number}"
        saved.write_bytes(path.read_bytes())
        note = f"{saved} by {load.__name__}{' with a companion' if companion else ''}"
        return number, f"{name.rsplit('-', 1)[0]} FAULT", f"{note}\n{traceback.format_exc()}"
    finally:
        signal.alarm(0)
        path.unlink()
        if companion:
            companion.unlink()


def _hung(*_) -> None:
    raise TimeoutError(f"took longer than {HANG_S} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_000, help="files")
    parser.add_argument("--seed", type=int, default=None, help="of the damage (default: a new one)")
    parser.add_argument("--only", type=int, default=None, help="the number of one file to redo")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="files side by side")
    given = parser.parse_args()
    seed = random.randrange(10**6) if given.seed is None else given.seed
    print(f"{len(seeds())} seed files; redo with --seed {seed}")
    numbers = range(given.n) if given.only is None else [given.only]
    outcomes, faults = Counter(), []
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(given.jobs) as pool:
        work = pool.map(partial(one, seed=seed, folder=Path(folder)), numbers, chunksize=50)
        for _, outcome, fault in tqdm(work, total=len(numbers), unit="file"):
            outcomes[outcome] += 1
            faults += [fault] if fault else []
    for outcome, n in sorted(outcomes.items()):
        print(f"{n:7,}  {outcome}")
    _show(faults)
    print(f"seed {seed}: {len(numbers):,} files, {len(faults)} faults")
    sys.exit(bool(faults))


def _show(faults: list[str]) -> None:
    """The first fault of each kind, and how many there are of it."""
    kinds = {}
    for fault in faults:
        last = re.sub(r"\d+", "N", fault.strip().rsplit("\n", 1)[-1])
        kinds.setdefault(last[:80], []).append(fault)
    for same in kinds.values():
        print(f"\n{len(same)} like this, first in {same[0]}")


if __name__ == "__main__":
    main()
