"""SQLite exports of Nsight Systems: any schema, several GPUs, NVTX, hostile files."""

import gzip
import sqlite3
import struct

import numpy as np
import pandas as pd
import pytest

from workbench.traces.readers import nsys
from workbench.traces.readers.source import Source

PID_A, PID_B = 5 << 24, 6 << 24  # serialised process ids: the low 24 bits are the thread's
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
STRINGS = {1: "gemm", 2: "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 3: "cudaLaunchKernel"}
STRINGS |= {4: "ncclDevKernel_SendRecv", 5: "nccl:all_to_all, op_id = 8", 6: "iteration 7"}


@pytest.fixture
def export(tmp_path):
    """Write tables {name: (columns, rows)} as an export; returns its Source."""

    def write(**tables):
        path = tmp_path / "export.sqlite"
        path.unlink(missing_ok=True)
        tables = {"StringIds": ("id, value", list(STRINGS.items()))} | tables
        with sqlite3.connect(path) as db:
            for name, (columns, rows) in tables.items():
                db.execute(f'CREATE TABLE "{name}" ({columns})')
                marks = ",".join("?" * (columns.count(",") + 1))
                db.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)
        db.close()
        return Source(path)

    return write


def kernels(*rows):
    columns = 'start, "end", deviceId, streamId, correlationId, globalPid, demangledName'
    return columns, rows


def launches(*rows):
    return 'start, "end", correlationId, globalTid, nameId', rows


def ranges(*rows):
    return 'start, "end", text, textId, globalTid', rows


def read(source):
    """The table; on the way the ledger must add up."""
    table, info, ledger = nsys.read(source)
    counts = pd.DataFrame(ledger)
    assert counts.loc[counts["kept"], "n_events"].sum() == len(table)
    return table, info, counts


def test_a_kernel_is_compute_or_a_collective_by_its_name(export):
    table, _, _ = read(
        export(**{KERNEL: kernels((10, 20, 0, 7, 1, 0, 1), (15, 40, 0, 9, 2, 0, 2))})
    )
    columns = ["kind", "op", "name", "stream", "start_ns", "end_ns"]
    assert table[columns].values.tolist() == [
        ["compute", "", "gemm", 7, 10, 20],
        ["comm", "all_reduce", STRINGS[2], 9, 15, 40],
    ]


def test_names_that_stand_in_the_table_itself_are_read_too(export):
    columns = 'start, "end", deviceId, streamId, name'
    table, _, _ = read(export(**{KERNEL: (columns, [(1, 2, 0, 7, "ncclKernel_AllGather")])}))
    assert table["op"].tolist() == ["all_gather"]


def test_several_devices_are_several_ranks(export):
    source = export(
        **{
            KERNEL: kernels((10, 20, 0, 7, 1, PID_A, 1), (10, 30, 1, 7, 1, PID_B, 1)),
            RUNTIME: launches((5, 6, 1, PID_A + 3, 3), (5, 7, 1, PID_B + 4, 3)),
        }
    )
    table, info, _ = read(source)
    assert info["ranks"] == [0, 1]
    host = table[table["stream"] == -1]
    assert host[["rank", "end_ns"]].values.tolist() == [[0, 6], [1, 7]]


def test_correlations_that_processes_count_alike_are_told_apart(export):
    source = export(
        **{
            KERNEL: kernels((10, 20, 0, 7, 1, PID_A, 1), (10, 30, 1, 7, 1, PID_B, 1)),
            RUNTIME: launches((5, 6, 1, PID_A + 3, 3), (5, 7, 1, PID_B + 4, 3)),
        }
    )
    table, _, _ = read(source)
    pairs = table.groupby("correlation")["rank"].agg(["min", "max", "size"])
    assert pairs.to_numpy().tolist() == [[0, 0, 2], [1, 1, 2]]


def test_processes_that_each_see_one_device_zero_are_ranks(export):
    rows = [(10, 20, 0, 7, 1, PID_A, 2), (10, 30, 0, 7, 1, PID_B, 2)]
    table, info, _ = read(export(**{KERNEL: kernels(*rows)}))
    assert info["ranks"] == [0, 1]
    assert table["rank"].tolist() == [0, 1]


def test_one_device_leaves_the_rank_to_the_name_of_the_file(export):
    table, info, _ = read(export(**{KERNEL: kernels((10, 20, 3, 7, 1, PID_A, 1))}))
    assert info["rank"] is None
    assert table["rank"].isna().all()


@pytest.mark.parametrize("name", ["NVTX_EVENTS", "NVTX_EVENTS_V2", "NVTX_EVENTS_V3", "nvtx_events"])
def test_a_kernel_belongs_to_the_range_that_launched_it(export, name):
    source = export(
        **{
            KERNEL: kernels((150, 190, 0, 7, 1, PID_A, 1), (195, 199, 0, 7, 2, PID_A, 1)),
            RUNTIME: launches((90, 95, 1, PID_A + 1, 3), (110, 112, 2, PID_A + 1, 3)),
            name: ranges((0, 100, None, 6, PID_A + 1), (100, 200, "iteration 8", None, PID_A + 1)),
        }
    )
    table, _, _ = read(source)
    device = table[table["stream"] >= 0]
    assert device["iteration"].tolist() == [7, 8]


@pytest.mark.parametrize(
    "text, number",
    [
        ("ProfilerStep#12", 12),
        ("step_3", 3),
        ("Iteration: 4/100", 4),
        ("train_step 5", 5),
        ("iter 6, op_id = 77", 6),
        ("step", 0),
    ],
)
def test_ranges_that_name_an_iteration(export, text, number):
    source = export(
        **{
            KERNEL: kernels((10, 20, 0, 7, 1, PID_A, 1), (200, 300, 0, 7, 2, PID_A, 1)),
            "NVTX_EVENTS": ranges((0, 100, text, None, PID_A + 1)),
        }
    )
    table, _, _ = read(source)
    assert table.loc[table["kind"] == "compute", "iteration"].tolist() == [number, -1]


def test_other_ranges_name_none_and_that_is_said(export):
    source = export(
        **{
            KERNEL: kernels((10, 20, 0, 7, 1, PID_A, 1)),
            "NVTX_EVENTS": ranges((0, 100, "optimizer_step_3_done", None, PID_A + 1)),
        }
    )
    table, _, ledger = read(source)
    assert (table["iteration"] == 0).all()
    assert ledger["why"].str.contains("one iteration, number 0").any()


def test_the_collective_of_a_general_kernel_is_that_of_the_range_around_its_launch(export):
    source = export(
        **{
            KERNEL: kernels((10, 20, 0, 7, 1, PID_A, 4), (30, 40, 0, 7, 2, PID_A, 4)),
            RUNTIME: launches((5, 6, 1, PID_A + 1, 3), (25, 26, 2, PID_A + 1, 3)),
            "NVTX_EVENTS": ranges((4, 8, None, 5, PID_A + 1)),
        }
    )
    table, _, _ = read(source)
    assert table.loc[table["kind"] == "comm", "op"].tolist() == ["all_to_all", "unknown"]


def test_sizes_and_workers_of_messages_are_told_by_the_ranges_of_nccl(export):
    def payload(schema, form, *fields):
        data = struct.pack(form, *fields)
        return struct.pack("<IIIIQQ", 1, 0, schema, 0, len(data), 32 + len(data)) + data

    comm, size = (1, 20, "NCCL communicator ID", 18, None), (1, 20, "Message size [bytes]", 22, 8)
    made = [(1, 10, *comm[2:]), (1, 10, "No. of ranks", 5, 8)]
    made += [(1, 10, "Rank", 5, 12), (1, 10, "CUDA device", 5, 16)]
    rows = [
        (1, 2, "ncclCommInitRank", PID_A + 1, payload(10, "<Qiii", 99, 8, 6, 3)),
        (90, 100, "ncclAllReduce", PID_A + 1, payload(20, "<QQ", 99, 4096)),
        (110, 120, "ncclAllGather", PID_A + 1, payload(20, "<QQ", 99, 4096)),
    ]
    source = export(
        **{
            KERNEL: kernels((150, 190, 3, 7, 1, PID_A, 2), (195, 199, 3, 7, 2, PID_A, 4)),
            RUNTIME: launches((95, 96, 1, PID_A + 1, 3), (115, 116, 2, PID_A + 1, 3)),
            "NVTX_EVENTS": ('start, "end", text, globalTid, binaryData', rows),
            "NVTX_PAYLOAD_SCHEMA_ENTRIES": (
                'domainId, schemaId, name, type, "offset"',
                [*made, comm, size],
            ),
            "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs", [(10**18,)]),
        }
    )
    table, info, ledger = read(source)
    comms = table.loc[table["kind"] == "comm", ["rank", "op", "nbytes", "n_workers"]]
    assert comms.astype(object).to_numpy().tolist() == [
        [6, "all_reduce", 4096, 8],
        [6, "all_gather", 8 * 4096, 8],
    ]
    assert (info["rank"], info["world_size"]) == (6, 8)
    assert "rank from NCCL's ranges" in set(ledger["why"])


def test_sizes_that_were_not_exported_are_asked_for(export):
    source = export(
        **{
            KERNEL: kernels((150, 190, 0, 7, 1, PID_A, 2)),
            "NVTX_EVENTS": ranges((90, 100, "ncclAllReduce", None, PID_A + 1)),
        }
    )
    table, _, ledger = read(source)
    assert table["nbytes"].isna().all()
    assert ledger["why"].str.contains("nsys export --include-blobs=true").any()


def test_copies_and_sets_are_memory(export):
    memory = 'start, "end", deviceId, streamId, correlationId, copyKind'
    source = export(
        **{
            KERNEL: kernels((10, 20, 0, 7, 1, PID_A, 1)),
            "CUPTI_ACTIVITY_KIND_MEMCPY": (memory, [(30, 40, 0, 7, 2, 1)]),
            "CUPTI_ACTIVITY_KIND_MEMSET": (memory, [(50, 60, 0, 7, 3, None)]),
        }
    )
    table, _, _ = read(source)
    assert table.loc[table["kind"] == "memory", "name"].tolist() == ["Memcpy HtoD", "Memset"]


def test_rows_without_times_and_tables_not_read_are_counted(export):
    rows = [(1, 2, 0, 7, 1, 0, 1), (5, None, 0, 7, 2, 0, 1), ("x", 9, 0, 7, 3, 0, 1)]
    rows += [(9, 3, 0, 7, 4, 0, 1), (1.5, 2, 0, 7, 5, 0, 1), (2**62, 2**62 + 1, 0, 7, 6, 0, 1)]
    source = export(**{KERNEL: kernels(*rows), "OSRT_API": ('start, "end"', [(1, 2), (3, 4)])})
    table, _, ledger = read(source)
    dropped = ledger[~ledger["kept"]].set_index("what")["n_events"]
    assert (len(table), dropped.to_dict()) == (1, {KERNEL: 5, "OSRT_API": 2})


def test_graphs_recorded_whole_are_warned_of(export):
    source = export(
        **{
            KERNEL: kernels((1, 2, 0, 7, 1, 0, 1)),
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ('start, "end", graphId', [(1, 2, 3)]),
        }
    )
    _, _, ledger = read(source)
    (row,) = ledger[ledger["warn"].eq(True)].to_dict("records")
    assert "--cuda-graph-trace=node" in row["why"]


def test_times_are_put_on_the_wall_clock(export):
    source = export(
        **{
            KERNEL: kernels((1500, 1600, 0, 7, 1, 0, 1)),
            "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs", [(10**18,)]),
            "ANALYSIS_DETAILS": ("startTime", [(1000,)]),
        }
    )
    table, info, _ = read(source)
    assert (table["start_ns"].item(), info["base_ns"]) == (10**18 + 500, 10**18 - 1000)


def test_the_file_names_its_devices_and_versions(export):
    source = export(
        **{
            KERNEL: kernels((1, 2, 0, 7, 1, 0, 1)),
            "TARGET_INFO_GPU": ("id, name", [(0, "H100"), (1, "H100")]),
            "META_DATA_EXPORT": ("name, value", [("EXPORT_SCHEMA_VERSION", "3.1.7")]),
        }
    )
    _, info, _ = read(source)
    assert (info["devices"], info["schema"]) == (["H100"], "3.1.7")


def test_host_rows_can_be_given_up_when_they_have_served(export):
    source = export(
        **{
            KERNEL: kernels((150, 190, 0, 7, 1, PID_A, 1)),
            RUNTIME: launches((90, 95, 1, PID_A + 1, 3)),
            "NVTX_EVENTS": ranges((0, 100, "step 4", None, PID_A + 1)),
        }
    )
    source.keep = "kernels"
    table, _, ledger = read(source)
    assert table[["kind", "iteration"]].values.tolist() == [["compute", 4]]
    assert ledger["n_events"].sum() == 3


def test_a_packed_export_is_unpacked_beside(export):
    source = export(**{KERNEL: kernels((10, 20, 0, 7, 1, 0, 1))})
    packed = source.path.with_suffix(".gz")
    packed.write_bytes(gzip.compress(source.path.read_bytes()))
    assert nsys.recognises(Source(packed).head)
    assert len(read(Source(packed))[0]) == 1


def test_an_export_is_not_changed_by_reading(export):
    source = export(**{KERNEL: kernels((10, 20, 0, 7, 1, 0, 1))})
    before, folder = source.path.read_bytes(), source.path.parent
    read(source)
    assert source.path.read_bytes() == before
    assert [f.name for f in folder.iterdir()] == ["export.sqlite"]


@pytest.mark.parametrize("tables", [{}, {KERNEL: kernels()}])
def test_an_export_without_kernels_is_refused_with_its_version(export, tables):
    meta = ("name, value", [("EXPORT_SCHEMA_VERSION", "3.25.0")])
    with pytest.raises(ValueError, match="no CUDA kernels.*without -t cuda.*VERSION 3.25.0"):
        nsys.read(export(META_DATA_EXPORT=meta, **tables))


def test_another_database_is_refused_by_its_tables(tmp_path):
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("CREATE TABLE orders (id, price)")
    db.close()
    with pytest.raises(ValueError, match="export of Nsight Systems.*got .*orders"):
        nsys.read(Source(tmp_path / "shop.db"))


def test_a_view_in_the_place_of_a_table_is_not_run(export):
    source = export(**{"META_DATA_EXPORT": ("name, value", [])})
    with sqlite3.connect(source.path) as db:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
        db.execute(f"CREATE VIEW {KERNEL} AS {endless}")
    db.close()
    with pytest.raises(ValueError, match="no CUDA kernels"):
        nsys.read(source)


def test_a_cut_file_is_one_clear_error(export):
    source = export(**{KERNEL: kernels(*[(i, i + 1, 0, 7, i, 0, 1) for i in range(2000)])})
    data = source.path.read_bytes()
    source.path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="damaged.*Export it again"):
        nsys.read(Source(source.path))


def test_changed_bytes_give_a_table_that_adds_up_or_the_documented_error(export, rng):
    rows = [(i, i + 1, 0, 7, i, PID_A, 1 + i % 2) for i in range(300)]
    source = export(**{KERNEL: kernels(*rows), "NVTX_EVENTS": ranges((0, 9, None, 6, PID_A))})
    data = np.frombuffer(source.path.read_bytes(), dtype=np.uint8)
    for _ in range(100):
        changed = data.copy()
        at = rng.integers(16, len(data), size=rng.integers(1, 20))
        changed[at] = rng.integers(0, 256, size=at.size)
        source.path.write_bytes(changed.tobytes())
        try:
            read(Source(source.path))
        except ValueError as error:
            assert str(error).startswith(f"{source.path}: ")


def test_case_of_a_numbered_nvtx_table(shared):
    table, _, _ = read(Source(shared / "cases/r32_nvtx_v2.sqlite"))
    assert table["kind"].value_counts().to_dict() == {"annotation": 1, "compute": 1, "comm": 1}
    assert (table["iteration"] == 0).all()


def test_case_of_no_kernel_table(shared):
    with pytest.raises(ValueError, match=r"no CUDA kernels \(captured without -t cuda\).*3\.25\.0"):
        nsys.read(Source(shared / "cases/r32c_no_kernel_table.sqlite"))


def test_a_real_run_on_two_gpus(shared):
    table, info, ledger = read(Source(shared / "traces/nsys/mfu_2gpu_after.sqlite"))
    # SELECT deviceId, COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE the name is NCCL's, or not
    counts = table.groupby(["rank", "kind"], observed=True).size().unstack("kind")
    assert counts["comm"].tolist() == [31, 31]
    assert counts["compute"].sum() == 3587 - 62
    assert info["ranks"] == [0, 1]
    assert ledger["n_events"].sum() == 242 + 904 + 3587 + 6682 + 17113 + 334 + 6
    ops = table.loc[table["kind"] == "comm", "op"].astype(str).value_counts()
    assert ops.to_dict() == {"all_to_all": 60, "unknown": 2}  # two were launched before the window


def test_no_other_kind_of_file_is_claimed(shared):
    files = [f for folder in ("traces", "cases") for f in (shared / folder).rglob("*")]
    claimed = {f.suffix for f in files if f.is_file() and nsys.recognises(Source(f).head)}
    assert claimed == {".sqlite"}
