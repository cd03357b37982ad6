"""NCCL's NVTX ranges in exports of Nsight Systems, with the schemas that a real export lists."""

import sqlite3
import struct

import pandas as pd
import pytest

from workbench.traces.readers import nccl_ranges
from workbench.traces.readers.nsys import _connect, _tables

THREAD = (5 << 24) + 3  # process 5, thread 3
# schema -> (name, type, offset), as in NVTX_PAYLOAD_SCHEMA_ENTRIES written by NCCL 2.25.1
COMM, SIZE = ("NCCL communicator ID", 18, None), ("Message size [bytes]", 22, 8)
ENTRIES = {
    16777218: [COMM, ("No. of ranks", 5, 8), ("Rank", 5, 12), ("CUDA device", 5, 16)],
    16777220: [COMM, SIZE],  # all-gather, all-to-all
    16777223: [COMM, SIZE, ("Reduction operation", 16777232, 16)],  # all-reduce, reduce-scatter
    16777225: [COMM, SIZE, ("Peer rank", 5, 16)],  # send, receive
}
SCHEMA = {"ncclAllGather": 16777220, "ncclAlltoAll": 16777220, "ncclCommInitRank": 16777218}
SCHEMA |= {"ncclAllReduce": 16777223, "ncclReduceScatter": 16777223}
SCHEMA |= {"ncclSend": 16777225, "ncclRecv": 16777225}
LAYOUT = {16777218: "<Qiii4x", 16777220: "<QQ", 16777223: "<QQi4x", 16777225: "<QQi4x"}


def blob(name, *fields, schema=None):
    """A payload as exported: the header, then the struct of that range."""
    schema = schema or SCHEMA[name]
    data = struct.pack(LAYOUT[schema], *fields)
    return struct.pack("<IIIIQQ", 1, 0, schema, 0, len(data), 32 + len(data)) + data


def init(rank, n_ranks, *, comm=7, device=0, thread=THREAD):
    payload = blob("ncclCommInitRank", comm, n_ranks, rank, device)
    return ("ncclCommInitRank", thread, 0, 1, payload)


def call(name, start, end, nbytes=None, *, comm=7, thread=THREAD):
    more = () if SCHEMA.get(name) == 16777220 else (0,)
    payload = None if nbytes is None else blob(name, comm, nbytes, *more)
    return (name, thread, start, end, payload)


@pytest.fixture
def database(tmp_path):
    """Write ranges (name, globalTid, start, end, payload) as an export; opens it as the reader."""
    opened = []

    def write(*rows, **tables):
        path = tmp_path / f"{len(opened)}.sqlite"
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
            columns = 'start, "end", text, textId, globalTid, binaryData, eventId'
            db.execute(f"CREATE TABLE NVTX_EVENTS ({columns})")
            columns = 'domainId, schemaId, name, type, "offset"'
            db.execute(f"CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES ({columns})")
            for schema, entries in ENTRIES.items():
                for entry in entries:
                    sql = "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (1, ?, ?, ?, ?)"
                    db.execute(sql, (schema, *entry))
            for n, (name, thread, start, end, payload) in enumerate(rows):
                db.execute("INSERT OR IGNORE INTO StringIds VALUES (?, ?)", (n, name))
                sql = "INSERT INTO NVTX_EVENTS VALUES (?, ?, NULL, ?, ?, ?, ?)"
                db.execute(sql, (start, end, n, thread, payload, n))
            for table, (columns, values) in tables.items():
                db.execute(f"CREATE TABLE {table} ({columns})")
                marks = ",".join("?" * (columns.count(",") + 1))
                db.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        db.close()
        opened.append(_connect(path))
        return nccl_ranges.calls(opened[-1], _tables(opened[-1]))

    yield write
    for db in opened:
        db.close()


def messages(calls, *launches, thread=3):
    times = pd.DataFrame({"process": 5, "thread": thread, "time": launches})
    return [
        tuple(told.get(key) for key in ("op", "nbytes", "n_workers"))
        for told in nccl_ranges.kernel_messages(calls, times)
    ]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("ncclAllReduce", ("all_reduce", 4096, 8)),
        ("ncclAllGather", ("all_gather", 8 * 4096, 8)),
        ("ncclReduceScatter", ("reduce_scatter", 8 * 4096, 8)),
        ("ncclAlltoAll", ("all_to_all", 8 * 4096, 8)),
    ],
)
def test_the_size_of_one_message_becomes_that_of_the_collective(database, name, expected):
    assert messages(database(init(3, 8), call(name, 10, 20, 4096)), 15) == [expected]


def test_without_the_number_of_ranks_only_what_needs_none_is_told(database):
    calls = database(call("ncclAllReduce", 10, 20, 64), call("ncclAllGather", 30, 40, 64))
    assert messages(calls, 15, 35) == [("all_reduce", 64, None), ("all_gather", None, None)]
    assert messages(calls, 15, thread=4) == [(None, None, None)]  # another thread


def test_kernels_of_a_group_are_launched_at_its_end(database):
    calls = database(
        call("ncclGroupStart", 0, 1),
        call("ncclAllReduce", 2, 3, 100),
        call("ncclGroupStart", 4, 5),
        call("ncclAllReduce", 6, 7, 20),
        call("ncclGroupEnd", 8, 9),
        call("ncclGroupEnd", 10, 20),
    )
    assert messages(calls, 15) == [("all_reduce", 120, None)]  # one kernel carries both
    assert messages(calls, 12, 15) == [("all_reduce", 100, None), ("all_reduce", 20, None)]
    assert messages(calls, 12, 14, 15) == [(None, None, None)] * 3  # which is whose is not told
    assert messages(calls, 9) == messages(calls, 21) == [(None, None, None)]


@pytest.mark.parametrize(
    "inside, expected",
    [
        (["ncclSend", "ncclSend", "ncclRecv"], ("send_recv", 200, None)),  # the larger side
        (["ncclAllReduce", "ncclAllGather"], (None, None, None)),
    ],
)
def test_a_group_in_one_kernel(database, inside, expected):
    calls = [call(name, 2 + 2 * n, 3 + 2 * n, 100) for n, name in enumerate(inside)]
    calls = [call("ncclGroupStart", 0, 1), *calls, call("ncclGroupEnd", 10, 20)]
    assert messages(database(*calls), 15) == [expected]


def test_ranks_are_those_in_the_largest_communicator_of_a_device(database):
    other = (6 << 24) + 1
    calls = database(init(3, 8), init(1, 2, comm=9), init(4, 8, device=1), init(7, 8, thread=other))
    assert nccl_ranges.ranks(calls) == {(5, 0): (3, 8), (5, 1): (4, 8), (6, 0): (7, 8)}
    assert nccl_ranges.ranks(database(init(3, 8), init(4, 8, comm=9))) == {}  # two of one device


@pytest.mark.parametrize(
    "payload",
    [
        blob("ncclAllReduce", 7, 4096, 0)[:-1],
        blob("ncclAllReduce", 7, 4096, 0) + b"\0",
        blob("ncclAllReduce", 7, 4096, 0, schema=16777225)[:8] + bytes(24),
        blob("ncclAllReduce", 7, 2**63, 0),
        b"",
        "4096",
        17,
    ],
)
def test_a_payload_that_does_not_fit_its_schema_tells_no_size(database, payload):
    calls = database(("ncclAllReduce", THREAD, 10, 20, payload))
    assert messages(calls, 15) == [(None, None, None)]


def test_payloads_in_tables_of_their_own_are_read_too(database):
    table = "DYNAMIC_NVTXPAYLOAD_DATATYPE_83886080_1_16777223"
    calls = database(
        call("ncclAllReduce", 10, 20),
        **{table: ("eventId, NCCL_communicator_ID, Message_size_bytes", [(0, -7, 4096)])},
        NVTX_EXPORT_TRANSLATION=(
            "originalName, sanitizedName",
            [
                ("NCCL communicator ID", "NCCL_communicator_ID"),
                ("Message size [bytes]", "Message_size_bytes"),
            ],
        ),
    )
    assert messages(calls, 15) == [("all_reduce", 4096, None)]


def test_a_real_export_lists_the_schemas_assumed_here(shared):
    path = shared / "traces/nsys/mfu_2gpu_after.sqlite"
    db = _connect(path)
    query = 'SELECT DISTINCT schemaId, name, type, "offset" FROM NVTX_PAYLOAD_SCHEMA_ENTRIES'
    listed = set(db.execute(query))
    assert {(s, *entry) for s, entries in ENTRIES.items() for entry in entries} <= listed
    # 60 groups of two sends and two receives each: EXPORT_PARAM_INCLUDE_BLOBS is false
    calls = nccl_ranges.calls(db, _tables(db))
    db.close()
    assert len(calls) == 60 + 60 + 60 + 120 + 120 and not any("nbytes" in c for c in calls)
    sized = [c | {"nbytes": 1} if c["name"] in ("ncclSend", "ncclRecv") else c for c in calls]
    lanes = pd.DataFrame(sized)[["process", "thread"]].drop_duplicates().to_numpy().tolist()
    groups = [
        group
        for process, thread in lanes
        for _, group in nccl_ranges._windows(
            [c for c in sized if (c["process"], c["thread"]) == (process, thread)]
        )
    ]
    assert [len(group) for group in groups] == [4] * 60
