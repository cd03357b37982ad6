"""Exports of Nsight Systems (`nsys export --type sqlite`): SQLite -> EVENTS of the GPUs in it.

The schema differs between versions, so tables and columns are looked up. Times are ns, on the wall
clock if the file contains the start of the capture. Sizes of messages come from NCCL's ranges, if
their payloads were exported. An export may contain several GPUs: the rank is that of NCCL's ranges
or of the launcher, otherwise the number of the device, or the order of the process if each process
sees one device of the same number.
"""

import re
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from ...base.checks import refuse
from . import chrome, meaning, nccl_ranges
from .collectives import collective, is_communication
from .nccl_ranges import quoted, select
from .source import Source, entry

_MAGIC = b"SQLite format 3\0"
_KERNELS = r"CUPTI_ACTIVITY_KIND_KERNEL"
# Tables read: their name, the kind of their rows, and the columns with a row's name.
_READ = (
    (_KERNELS, "compute", ("demangledName", "shortName", "mangledName", "name")),
    (r"CUPTI_ACTIVITY_KIND_MEMCPY", "memory", ("copyKind",)),
    (r"CUPTI_ACTIVITY_KIND_MEMSET", "memory", ()),
    (r"CUPTI_ACTIVITY_KIND_(?:RUNTIME|DRIVER)", "host", ("nameId", "name")),
    (r"NVTX_EVENTS", "annotation", ("text", "textId")),
)
_ON_HOST = ("host", "annotation")
_VERSION = r"(?:_V?\d+)?"  # newer schemas may number a table
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}  # CUpti_ActivityMemcpyKind
_NOT_READ = {
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "waiting for the device is not work",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "CUDA graphs recorded whole, so their kernels are missing: "
    "record with --cuda-graph-trace=node",
}
_STEP = re.compile(
    r"(?:train(?:ing)?[ _])?(?:iter(?:ation)?|step|ProfilerStep)"
    r"\D{0,3}(\d{1,18})?(?:\s*/\s*\d+)?(?:,.*)?",
    re.IGNORECASE,
)
_LONGEST = 2**24  # bytes of a value; names are shorter
_ROWS = 2**16  # fetched at a time
_DEEPEST = 8  # nested calls of collectives
_INTEGERS = ("start_ns", "end_ns", "device", "stream", "correlation", "process", "thread")
_CALL = re.compile(r"(?:nccl|rccl|c10d::)", re.IGNORECASE)  # ranges of PyTorch and of NCCL
# Rank and number of ranks in the environment of the process that nsys started, by reliability.
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", ""),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_NUMBER = re.compile(r"\d{1,7}")


def recognises(head: bytes) -> bool:
    """Return whether the file is an SQLite database."""
    return head.startswith(_MAGIC)


def read(source: Source) -> tuple[pd.DataFrame, dict, list[dict]]:
    """Return EVENTS (with `start_ns`, `end_ns`), information on the file, and LEDGER rows.

    `info["ranks"]` lists several ranks. Correlations are unique in the file. Iterations are the
    NVTX ranges named step, iteration or ProfilerStep, the outermost of each process. nbytes and
    n_workers are <NA> unless exported with --include-blobs=true.
    Raises ValueError for a damaged file and for one without CUDA kernels.
    """
    try:
        with _on_disk(source) as path, closing(_connect(path)) as db:
            return _read(db, source)
    # sqlite3 cannot always decode the text of its error
    except (sqlite3.Error, UnicodeDecodeError) as error:
        found, do = f"a damaged database ({error})", "Export it again: nsys export --type sqlite"
    refuse(source.file, "an export of Nsight Systems", found=found, do=do)


@contextmanager
def _on_disk(source: Source):
    """Yield the path of the database, unpacked to a temporary file if necessary."""
    with source.path.open("rb") as stream:
        plain = stream.read(len(_MAGIC)) == _MAGIC
    if plain and source.file == str(source.path):
        yield source.path
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "export.sqlite")
        with path.open("wb") as stream:
            stream.writelines(source.chunks())
        yield path


def _connect(path: Path) -> sqlite3.Connection:
    """Open for reading only, so that nothing in the file can run code or fill the memory."""
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    db.text_factory = lambda data: data.decode(errors="replace")
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    return db


def _read(db, source: Source) -> tuple[pd.DataFrame, dict, list[dict]]:
    tables = _tables(db)
    meta = dict(select(db, tables, "META_DATA_EXPORT", "name", "value"))
    parts, ledger = [], []
    for table, columns in tables.items():
        how = _how(table)
        part = _part(db, table, columns, how) if how and {"start", "end"} <= columns else None
        parts += [] if part is None else [part]
        if columns & {"start", "timestamp"}:
            ledger += _count(db, table, part)
    if not any(part["kind"].isin(["compute", "comm"]).any() for part in parts):
        _refuse_no_kernels(source.file, tables, meta, ledger)
    table, base_ns = _joined(parts), _base(db, tables)
    table = table.assign(start_ns=table["start_ns"] + base_ns, end_ns=table["end_ns"] + base_ns)
    calls, said = nccl_ranges.calls(db, tables), launcher(db, tables)
    rank, n_ranks, why = ranks_of(table, nccl_ranges.ranks(calls), said)
    _set_ranks(table, rank)
    _set_ops(table)
    remarks = [why] * bool(why) + _set_sizes(table, calls, base_ns)
    remarks += _number_iterations(table)
    about = {"world_size": n_ranks, "base_ns": base_ns, "host": said["host"]}
    about["backend"] = "nccl" if (table["kind"] == "comm").any() else None
    ranks = sorted(int(each) for each in rank.dropna().unique())
    info = chrome.info(ranks=ranks, **about, **_export(db, tables, meta))
    ledger += [entry("note", 0, why) for why in remarks]
    if source.keep == "kernels":  # after the host rows have placed the kernels
        table = table[table["stream"] >= 0]
        for row in ledger:
            if row["kept"] and row["n_events"] and _how(row["what"])[1] in _ON_HOST:
                row |= {"kept": False, "why": chrome.NOT_WANTED}
    table = table.drop(columns=["device", "process"]).reset_index(drop=True)
    ledger = [{"file": source.file, "rank": info["rank"]} | row for row in ledger]
    return table.astype({"kind": "category", "op": "category"}), info, ledger


def _tables(db) -> dict[str, set]:
    """Return the columns of each ordinary table; views and virtual tables may run code."""
    ordinary = "type = 'table' AND sql LIKE 'CREATE TABLE%'"
    names = [name for (name,) in db.execute(f"SELECT name FROM sqlite_master WHERE {ordinary}")]
    return {n: {c[1] for c in db.execute(f"PRAGMA table_info({quoted(n)})")} for n in names}


def _how(table: str) -> tuple | None:
    """Return the row of _READ for a table, None if it is not read."""
    found = (how for how in _READ if re.fullmatch(how[0] + _VERSION, table, re.IGNORECASE))
    return next(found, None)


def _refuse_no_kernels(file: str, tables: dict, meta: dict, ledger: list[dict]):
    if "StringIds" not in tables and not meta:
        found = ", ".join(list(tables)[:6]) or "no table"
        refuse(file, "an export of Nsight Systems (nsys)", found=f"a database with {found}")
    events = ", ".join(f"{row['what']} ({row['n_events']})" for row in ledger if row["n_events"])
    found = f"no CUDA kernels (captured without -t cuda) but {events or 'no events'}"
    found += f"; EXPORT_SCHEMA_VERSION {meta.get('EXPORT_SCHEMA_VERSION', 'unknown')}"
    do = "Record again with nsys profile -t cuda,nvtx --cuda-graph-trace=node, then "
    refuse(file, "CUDA kernels", found=found, do=do + "nsys export --type sqlite")


def _part(db, table: str, columns: set, how: tuple) -> pd.DataFrame | None:
    """Return the rows of one table that have a start and an end, in ns."""
    _, kind, naming = how
    naming = [c for c in naming if c in columns]
    keys, numbers = {}, []
    cursor = db.execute(_query(table, columns, naming))
    while rows := cursor.fetchmany(_ROWS):
        *whole, names = zip(*rows, strict=True)
        codes = [keys.setdefault(name, len(keys)) for name in names]
        numbers.append(np.array([*whole, codes], dtype=np.int64))
    if not numbers:
        return None
    array = np.concatenate(numbers, axis=1)
    names = _names(db, list(keys), naming, kind)
    is_comm = np.array([kind == "compute" and is_communication(name) for name in names])
    codes, unique = pd.factorize(pd.Series(names, dtype=object))
    on_host = kind in _ON_HOST
    part = pd.DataFrame(dict(zip(_INTEGERS, array[:-1], strict=True)))
    return part.assign(
        name=pd.Categorical.from_codes(codes[array[-1]], list(unique)),
        kind=np.where(is_comm[array[-1]], "comm", kind),
        stream=-1 if on_host else part["stream"].clip(lower=0),
        thread=part["thread"] if on_host else -1,
        has_process=bool(columns & {"globalPid", "globalTid"}),
    )


def _query(table: str, columns: set, naming: list[str]) -> str:
    """Return SQL for `_INTEGERS` and a name; a global id is the process, then 24 bits of thread."""
    pid = "globalPid" if "globalPid" in columns else "globalTid"
    whole = [_whole(columns, column) for column in ("deviceId", "streamId", "correlationId")]
    whole += [_whole(columns, pid, 0, ">> 24"), _whole(columns, "globalTid", 0, "& 16777215")]
    name = ", ".join([quoted(column) for column in naming] + ["''", "''"])
    return f"""SELECT "start", "end", {", ".join(whole)}, COALESCE({name})
        FROM {quoted(table)} WHERE typeof("start") = 'integer' AND typeof("end") = 'integer'
        AND "start" BETWEEN -{2**61} AND "end" AND "end" <= {2**61}"""


def _whole(columns: set, column: str, default: int = -1, then: str = "") -> str:
    """Return SQL for an integer column, or its default if missing."""
    if column not in columns:
        return str(default)
    return f"IFNULL(CAST({quoted(column)} AS INTEGER) {then}, {default})"


def _names(db, keys: list, naming: list[str], kind: str) -> list[str]:
    """Return names; numbers are looked up in the strings of the file."""
    if kind == "memory":
        return [f"Memcpy {_COPIES.get(key, key)}" if naming else "Memset" for key in keys]
    wanted, found, tables = [key for key in keys if isinstance(key, int)], {}, _tables(db)
    for at in range(0, len(wanted), 500):
        some = f"WHERE id IN ({', '.join(map(str, wanted[at : at + 500]))})"
        found |= dict(select(db, tables, "StringIds", "id", "value", where=some))
    names = [found.get(key, f"string {key}") if isinstance(key, int) else key for key in keys]
    return [str(name) for name in names]


def _count(db, table: str, part: pd.DataFrame | None) -> list[dict]:
    """Return LEDGER rows: the numbers of rows of a table that were read and not read."""
    (total,) = db.execute(f"SELECT COUNT(*) FROM {quoted(table)}").fetchone()
    read = 0 if part is None else len(part)
    why = next((w for name, w in _NOT_READ.items() if table.startswith(name)), "")
    why = why or "not work on the device, a call or a range"
    if _how(table):
        why = "a mark, or without a usable start and end"
    warn = total > read and ("GRAPH_TRACE" in table or "KIND_KERNEL" in table)
    rows = [entry(table, read), entry(table, total - read, why, kept=False, warn=warn)]
    return [row for row in rows if row["n_events"]]


def _joined(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Return all rows by start; processes differ only if every device table has them."""
    names = pd.api.types.union_categoricals([part["name"] for part in parts])
    table = pd.concat([part.drop(columns="name") for part in parts], ignore_index=True)
    table["name"] = names
    if not table.loc[table["stream"] >= 0, "has_process"].all():
        table["process"] = 0
    if table["process"].nunique() > 1:  # each process counts its correlations from 1
        shared = table.groupby(["process", "correlation"]).ngroup()
        table["correlation"] = shared.where(table["correlation"] >= 0, -1)
    unknown = pd.array([pd.NA] * len(table), dtype="Int64")
    table = table.assign(rank=unknown, iteration=0, op="", nbytes=unknown, n_workers=unknown)
    order = ["rank", "stream", "thread", "iteration", "kind", "op", "name", "nbytes", "n_workers"]
    order += ["correlation", "start_ns", "end_ns", "device", "process"]
    return table.sort_values("start_ns", kind="stable", ignore_index=True)[order]


def _set_ranks(table: pd.DataFrame, rank: pd.Series) -> None:
    """Set `rank` of device rows, and of host rows that certainly belong to one rank."""
    known = rank.dropna().unique()
    if len(known) == 1 and not rank.isna().any():
        table["rank"] = pd.array([known[0]] * len(table), dtype="Int64")
        return
    work = table.loc[rank.index]
    one = rank.groupby(work["process"]).agg(["min", "max"])
    one = one["min"].where(one["min"] == one["max"]).dropna()  # processes with one lane
    by_launch = rank.set_axis(work["correlation"]).loc[lambda r: r.index >= 0]
    by_launch = by_launch[~by_launch.index.duplicated()]
    host = table["correlation"].map(by_launch).fillna(table["process"].map(one))
    table["rank"] = rank.reindex(table.index).fillna(host).astype("Int64")


def _set_ops(table: pd.DataFrame) -> None:
    """Set `op` of comm rows from the kernel's name, otherwise from the call that launched it.

    The call is the innermost range of a collective open on the launching thread at the launch.
    """
    names, code = table["name"].cat.categories, table["name"].cat.codes.to_numpy()
    is_comm = (table["kind"] == "comm").to_numpy()
    ops = np.full(len(names), "", dtype=object)
    calls = [i for i, name in enumerate(names) if _CALL.match(name)]
    for i in {*calls, *code[is_comm]}:
        ops[i] = collective(names[i])
    op = np.where(is_comm, ops[code], "")
    unnamed = np.flatnonzero(is_comm & (op == ""))
    is_call = np.isin(code, calls) & (ops[code] != "")
    calls = table[is_call & (table["kind"] == "annotation")]
    by_thread = dict(list(calls.groupby(["process", "thread"])))
    launch = meaning.launches(table)
    lane, time = table[["process", "thread"]].to_numpy(), table["start_ns"].to_numpy()
    for row in unnamed:
        op[row], mine = "unknown", by_thread.get(tuple(lane[launch[row]]), calls[:0])
        if launch[row] < 0:
            continue
        moment = time[launch[row]]
        near = mine.iloc[: np.searchsorted(mine["start_ns"], moment, side="right")].tail(_DEEPEST)
        if len(near := near[near["end_ns"] >= moment]):
            op[row] = ops[near["name"].cat.codes.iloc[-1]]
    table["op"] = op


def _set_sizes(table: pd.DataFrame, calls: list[dict], base_ns: int) -> list[str]:
    """Set `nbytes`, `n_workers` and unknown `op` of comm rows from NCCL's ranges."""
    if not any("nbytes" in call for call in calls):
        why = "sizes of messages were not exported: use nsys export --include-blobs=true"
        return [why] if calls else []
    launch = meaning.launches(table)
    rows = np.flatnonzero((table["kind"] == "comm").to_numpy() & (launch >= 0))
    rows = rows[np.argsort(launch[rows], kind="stable")]
    launched = table.iloc[launch[rows]][["process", "thread"]]
    launched = launched.assign(time=table["start_ns"].to_numpy()[launch[rows]] - base_ns)
    op = table["op"].to_numpy(dtype=object)
    moved = nccl_ranges.kernel_messages(calls, launched)
    for n, row in enumerate(rows):
        if op[row] not in ("unknown", moved[n].get("op")) and moved[n].get("op") != "send_recv":
            moved[n] = {}
    for column in ("nbytes", "n_workers"):
        values = table[column].to_numpy(dtype=object)
        values[rows] = [message.get(column) for message in moved]
        table[column] = pd.array(values, dtype="Int64")
    unknown = op[rows] == "unknown"
    op[rows[unknown]] = [moved[i].get("op", "unknown") for i in np.flatnonzero(unknown)]
    table["op"] = op
    return []


def _number_iterations(table: pd.DataFrame) -> list[str]:
    """Set `iteration` from the ranges that name one; device rows have that of their launch."""
    known = {n: found for n in table["name"].cat.categories if (found := _STEP.fullmatch(n))}
    is_step = table["name"].isin(list(known))
    steps = table[is_step & (table["kind"] == "annotation") & (table["end_ns"] > table["start_ns"])]
    if steps.empty:
        return ["no NVTX range named step or iteration: all of it is one iteration, number 0"]
    launch = meaning.launches(table)
    at = np.where(launch >= 0, launch, np.arange(len(table)))
    time, process = table["start_ns"].to_numpy()[at], table["process"].to_numpy()[at]
    iteration, remarks = np.full(len(table), -1), []
    for worker, mine in steps.groupby("process"):
        before = mine["end_ns"].cummax().shift(fill_value=np.iinfo(np.int64).min)
        mine = mine[mine["start_ns"] >= before]  # a step inside a step is not an iteration
        said = [known[name][1] for name in mine["name"]]
        numbers = np.array([-1 if n is None else int(n) for n in said])
        if len(set(said)) < len(said) or None in said:
            numbers = max(numbers[0], 0) + np.arange(len(said))
            remarks.append("iterations without distinct numbers: counted in order")
        step = np.searchsorted(mine["start_ns"], time, side="right") - 1
        inside = (process == worker) & (step >= 0) & (time < mine["end_ns"].to_numpy()[step])
        iteration[inside] = numbers[step[inside]]
    table["iteration"] = iteration
    if orphans := int(((table["stream"] >= 0) & (launch < 0)).sum()):
        remarks.append(meaning.no_launch(orphans))
    return list(dict.fromkeys(remarks))


def _base(db, tables: dict) -> int:
    """Return ns from the epoch to the zero of the events; 0 if not in the file."""
    began = _first(db, tables, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    zero = _first(db, tables, "ANALYSIS_DETAILS", "startTime")
    known = isinstance(began, int) and 0 < began < 2**61 and abs(zero or 0) < 2**61
    return began - (zero or 0) if known else 0


def _first(db, tables: dict, table: str, column: str) -> int | None:
    value = next((value for (value,) in select(db, tables, table, column)), None)
    return value if isinstance(value, int) else None


def _export(db, tables: dict, meta: dict) -> dict:
    """Return names of the devices and versions of the export."""
    wanted = filter(re.compile(r"TARGET_INFO_(?:CUDA_)?(?:GPU|DEVICE)").match, tables)
    devices = [str(name) for table in wanted for (name,) in select(db, tables, table, "name")]
    product = f"Nsight Systems {meta.get('EXPORT_PRODUCT_VERSION') or ''}".strip()
    about = {"profiler": product, "schema": meta.get("EXPORT_SCHEMA_VERSION")}
    return about | {"devices": list(dict.fromkeys(devices))}


def launcher(db, tables: dict[str, set]) -> dict:
    """Return recorded `environment` and `options` of the process that nsys started; `host`."""
    environment, arguments = {}, {}
    where = "WHERE name LIKE 'PROCESS_0:%'"
    for name, value in select(db, tables, "META_DATA_CAPTURE", "name", "value", where=where):
        if name == "PROCESS_0:ENVIRONMENT_VARIABLE":
            key, _, value = str(value).partition("=")
            environment[key] = value.strip('"')
        elif found := re.fullmatch(r"PROCESS_0:ARGUMENT_(\d{1,6})", str(name)):
            arguments[int(found[1])] = str(value)
    system = select(db, tables, "TARGET_INFO_SYSTEM_ENV", "name", "value")
    host = next((str(value) for name, value in system if name == "Hostname"), "")
    words = " ".join(arguments[n] for n in sorted(arguments))
    options = re.findall(r"--(node[-_]rank|nproc[-_]per[-_]node|nnodes)[= ](\d{1,7})(?!\S)", words)
    options = {name.replace("-", "_"): int(value) for name, value in options}
    return {"environment": environment, "options": options, "host": host}


def ranks_of(table: pd.DataFrame, by_nccl: dict, said: dict) -> tuple[pd.Series, int | None, str]:
    """Return the rank of each device row or NA, the number of ranks, and their source.

    by_nccl : (process, device) -> rank and number of ranks
    said : the result of `launcher`
    """
    work = table[table["stream"] >= 0]
    talkers = work.loc[work["kind"] == "comm", ["process", "device"]].drop_duplicates()
    talkers = list(talkers.itertuples(index=False, name=None))
    known = [by_nccl.get(lane) for lane in talkers]
    if known and None not in known and len({rank for rank, _ in known}) == len(known):
        numbers = {lane: rank for lane, (rank, _) in zip(talkers, known, strict=True)}
        lanes = pd.MultiIndex.from_frame(work[["process", "device"]])
        rank = pd.Series(lanes.map(numbers), index=work.index, dtype="Int64")
        return rank, max(n for _, n in known), "rank from NCCL's ranges"
    rank, why = _by_devices(work, {process for process, _ in talkers})
    return _by_launcher(rank, why, said)


def _by_devices(work: pd.DataFrame, talkers: set) -> tuple[pd.Series, str]:
    if (n_devices := work["device"].nunique()) > 1:
        rank = work["device"].where(work["device"].between(0, 2**31 - 1))  # otherwise it is damaged
        why = f"{n_devices} devices in one export: rank is the number of the device"
        return rank.astype("Int64"), why
    if len(talkers) > 1:
        number = {process: i for i, process in enumerate(sorted(talkers))}
        why = f"{len(talkers)} processes use one device number: rank is the order of the process"
        return work["process"].map(number).astype("Int64"), why
    return pd.Series(pd.NA, index=work.index, dtype="Int64"), ""


def _by_launcher(rank: pd.Series, why: str, said: dict) -> tuple[pd.Series, int | None, str]:
    """Return ranks: for one lane from the environment, for several from torchrun's node."""
    options, environment = said["options"], said["environment"]
    if why:
        each, nodes = options.get("nproc_per_node"), options.get("nnodes", 1)
        node = options.get("node_rank", 0 if nodes == 1 else None)
        if each is None or node is None or node >= nodes or not (rank.dropna() < each).all():
            return rank, None, why
        count = f", counted from {node * each} as node {node} of {nodes}" if nodes > 1 else ""
        return rank + node * each, nodes * each, why + count
    for name, size in _VARIABLES:
        if _NUMBER.fullmatch(mine := environment.get(name, "")):
            n = environment.get(size, "")
            n_ranks = int(n) if _NUMBER.fullmatch(n) and int(n) > int(mine) else None
            return rank.fillna(int(mine)), n_ranks, f"rank from the launcher's {name}"
    return rank, None, why
