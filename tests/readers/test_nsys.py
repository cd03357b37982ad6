"""SQLite exports of Nsight Systems: any schema, whose ranks, several GPUs, NVTX, hostile files."""

import gzip
import sqlite3
import struct

import numpy as np
import pandas as pd
import pytest
from conftest import refusal

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


TWO = kernels((10, 20, 0, 7, 1, PID_A, 1), (10, 30, 1, 7, 1, PID_B, 2))


def test_a_kernel_is_compute_or_a_collective_by_its_name(export):
    table, _, _ = read(
        export(**{KERNEL: kernels((10, 20, 0, 7, 1, 0, 1), (15, 40, 0, 9, 2, 0, 2))})
    )
    columns = ["kind", "op", "name", "stream", "start_ns", "end_ns"]
    assert table[columns].values.tolist() == [
        ["compute", "", "gemm", 7, 10, 20],
        ["comm", "all_reduce", STRINGS[2], 9, 15, 40],
    ]
    columns = 'start, "end", deviceId, streamId, name'  # the name itself, not its number
    table, _, _ = read(export(**{KERNEL: (columns, [(1, 2, 0, 7, "ncclKernel_AllGather")])}))
    assert table["op"].tolist() == ["all_gather"]


def test_several_devices_are_several_ranks_and_correlations_counted_alike_stay_apart(export):
    launched = launches((5, 6, 1, PID_A + 3, 3), (5, 7, 1, PID_B + 4, 3))
    table, info, _ = read(export(**{KERNEL: TWO, RUNTIME: launched}))
    assert info["ranks"] == [0, 1]
    host = table[table["stream"] == -1]
    assert host[["rank", "end_ns"]].values.tolist() == [[0, 6], [1, 7]]
    pairs = table.groupby("correlation")["rank"].agg(["min", "max", "size"])
    assert pairs.to_numpy().tolist() == [[0, 0, 2], [1, 1, 2]]


def test_processes_are_ranks_and_one_device_leaves_the_rank_to_the_name_of_the_file(export):
    rows = [(10, 20, 0, 7, 1, PID_A, 2), (10, 30, 0, 7, 1, PID_B, 2)]
    table, info, _ = read(export(**{KERNEL: kernels(*rows)}))
    assert table["rank"].tolist() == info["ranks"] == [0, 1]
    table, info, _ = read(export(**{KERNEL: kernels((10, 20, 3, 7, 1, PID_A, 1))}))
    assert info["rank"] is None and table["rank"].isna().all()


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
    "text, number, outside",
    [
        ("ProfilerStep#12", 12, -1),
        ("step_3", 3, -1),
        ("Iteration: 4/100", 4, -1),
        ("train_step 5", 5, -1),
        ("iter 6, op_id = 77", 6, -1),
        ("step", 0, -1),
        ("optimizer_step_3_done", 0, 0),  # names none: all is one iteration
    ],
)
def test_ranges_that_name_an_iteration(export, text, number, outside):
    source = export(
        **{
            KERNEL: kernels((10, 20, 0, 7, 1, PID_A, 1), (200, 300, 0, 7, 2, PID_A, 1)),
            "NVTX_EVENTS": ranges((0, 100, text, None, PID_A + 1)),
        }
    )
    table, _, ledger = read(source)
    assert table.loc[table["kind"] == "compute", "iteration"].tolist() == [number, outside]
    assert ledger["why"].str.contains("one iteration, number 0").any() == (outside == 0)


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


def test_times_are_put_on_the_wall_clock_and_devices_and_versions_are_named(export):
    source = export(
        **{
            KERNEL: kernels((1500, 1600, 0, 7, 1, 0, 1)),
            "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs", [(10**18,)]),
            "ANALYSIS_DETAILS": ("startTime", [(1000,)]),
            "TARGET_INFO_GPU": ("id, name", [(0, "H100"), (1, "H100")]),
            "META_DATA_EXPORT": ("name, value", [("EXPORT_SCHEMA_VERSION", "3.1.7")]),
        }
    )
    table, info, _ = read(source)
    assert (table["start_ns"].item(), info["base_ns"]) == (10**18 + 500, 10**18 - 1000)
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


def test_an_export_is_not_changed_by_reading_and_may_be_packed(export):
    source = export(**{KERNEL: TWO})
    before, folder = source.path.read_bytes(), source.path.parent
    read(source)
    assert source.path.read_bytes() == before
    assert [f.name for f in folder.iterdir()] == ["export.sqlite"]
    packed = source.path.with_suffix(".gz")
    packed.write_bytes(gzip.compress(before))
    assert nsys.recognises(Source(packed).head)
    assert len(read(Source(packed))[0]) == 2


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
VERSION = {"META_DATA_EXPORT": ("name, value", [("EXPORT_SCHEMA_VERSION", "3.25.0")])}


@pytest.mark.parametrize(
    "tables, statement, shown",
    [
        (VERSION, "SELECT 1", "3.25.0"),
        (VERSION | {KERNEL: kernels()}, "SELECT 1", "3.25.0"),
        (VERSION, f"CREATE VIEW {KERNEL} AS {ENDLESS}", "no CUDA kernels"),  # is not run
        ({"orders": ("id, price", [])}, "DROP TABLE StringIds", "orders"),
    ],
)
def test_a_database_without_kernels_is_refused(export, tables, statement, shown):
    source = export(**tables)
    with sqlite3.connect(source.path) as db:
        db.execute(statement)
    db.close()
    refusal(lambda: nsys.read(source), "export.sqlite", shown)


def test_a_cut_file_is_one_clear_error(export):
    source = export(**{KERNEL: kernels(*[(i, i + 1, 0, 7, i, 0, 1) for i in range(2000)])})
    data = source.path.read_bytes()
    source.path.write_bytes(data[: len(data) // 2])
    refusal(lambda: nsys.read(Source(source.path)), "export.sqlite", "damaged")


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


def test_cases_of_a_numbered_nvtx_table_and_of_no_kernel_table(shared):
    table, _, _ = read(Source(shared / "cases/r32_nvtx_v2.sqlite"))
    assert table["kind"].value_counts().to_dict() == {"annotation": 1, "compute": 1, "comm": 1}
    assert (table["iteration"] == 0).all()
    source = Source(shared / "cases/r32c_no_kernel_table.sqlite")
    refusal(lambda: nsys.read(source), "r32c_no_kernel_table.sqlite", "3.25.0")


def test_a_real_run_on_two_gpus(shared):
    table, info, ledger = read(Source(shared / "traces/nsys/mfu_2gpu_after.sqlite"))
    # SELECT deviceId, COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE the name is NCCL's, or not
    counts = table.groupby(["rank", "kind"], observed=True).size().unstack("kind")
    assert counts["comm"].tolist() == [31, 31]
    assert counts["compute"].sum() == 3587 - 62
    assert (info["ranks"], info["world_size"], info["host"]) == ([0, 1], 2, "modal")
    assert ledger["n_events"].sum() == 242 + 904 + 3587 + 6682 + 17113 + 334 + 6
    ops = table.loc[table["kind"] == "comm", "op"].astype(str).value_counts()
    assert ops.to_dict() == {"all_to_all": 60, "unknown": 2}  # two were launched before the window


def test_no_other_kind_of_file_is_claimed(shared):
    files = [f for folder in ("traces", "cases") for f in (shared / folder).rglob("*")]
    claimed = {f.suffix for f in files if f.is_file() and nsys.recognises(Source(f).head)}
    assert claimed == {".sqlite"}


# Ranks: NCCL's, the launcher's, the devices'

NOTHING = {"environment": {}, "options": {}, "host": ""}


def lane_table(*lanes):
    """A collective in each (process, device)."""
    rows = pd.DataFrame(lanes, columns=["process", "device"])
    return rows.assign(stream=7, kind="comm")


def found(lanes, by_nccl=None, **said):
    rank, n_ranks, why = nsys.ranks_of(lane_table(*lanes), by_nccl or {}, NOTHING | said)
    return rank.tolist(), n_ranks, why


def test_ranks_of_nccl_are_taken_when_all_that_communicate_have_one():
    by_nccl = {(5, 0): (9, 16), (6, 0): (8, 16)}
    assert found([(5, 0), (6, 0)], by_nccl) == ([9, 8], 16, "rank from NCCL's ranges")
    assert found([(5, 0), (6, 1)], by_nccl)[0] == [0, 1]
    assert found([(5, 0), (6, 0)], by_nccl | {(6, 0): (9, 16)})[0] == [0, 1]


@pytest.mark.parametrize(
    "environment, rank, n_ranks",
    [
        ({"OMPI_COMM_WORLD_RANK": "11", "OMPI_COMM_WORLD_SIZE": "16"}, 11, 16),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, 3, 4),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "RANK": "5", "WORLD_SIZE": "8"}, 5, 8),
        ({"PMIX_RANK": "2"}, 2, None),
    ],
)
def test_the_rank_of_a_process_under_a_launcher_is_in_its_environment(environment, rank, n_ranks):
    assert found([(5, 0)], environment=environment)[:2] == ([rank], n_ranks)


def test_an_environment_without_a_rank_or_of_several_processes_tells_none():
    rank, n_ranks, why = found([(5, 0)], environment={"RANK": "x", "HOME": "/root"})
    assert pd.isna(rank[0]) and (n_ranks, why) == (None, "")
    environment = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}  # a node each, with torchrun in it
    assert found([(5, 0), (6, 1)], environment=environment)[:2] == ([0, 1], None)


@pytest.mark.parametrize(
    "options, ranks, n_ranks",
    [
        ({"nnodes": 2, "nproc_per_node": 4, "node_rank": 1}, [4, 5], 8),
        ({"nnodes": 1, "nproc_per_node": 2}, [0, 1], 2),
        ({"nnodes": 2, "nproc_per_node": 4}, [0, 1], None),  # on which node is not told
        ({"nnodes": 2, "nproc_per_node": 1, "node_rank": 1}, [0, 1], None),  # not that run's
    ],
)
def test_ranks_of_a_node_count_on_as_torchrun_was_told(options, ranks, n_ranks):
    assert found([(5, 0), (6, 1)], options=options)[:2] == (ranks, n_ranks)


def capture(arguments=(), environment=()):
    rows = [(f"PROCESS_0:ARGUMENT_{n}", text) for n, text in enumerate(arguments)]
    rows += [("PROCESS_0:ENVIRONMENT_VARIABLE", text) for text in environment]
    return "name, value", rows


def test_the_second_node_of_a_run_of_torchrun(export):
    arguments = ["--nnodes=2", "--nproc-per-node", "2", "--node_rank=1", "train.py", "--nnodes=9x"]
    info = {"META_DATA_CAPTURE": capture(arguments)}
    info["TARGET_INFO_SYSTEM_ENV"] = ("name, value", [("Hostname", "node7")])
    events, said, _ = nsys.read(export(**{KERNEL: TWO}, **info))
    assert events["rank"].tolist() == said["ranks"] == [2, 3]
    assert (said["world_size"], said["host"], said["rank"]) == (4, "node7", None)


def test_one_process_of_a_run_of_mpi(export):
    environment = ['OMPI_COMM_WORLD_RANK="3"', 'OMPI_COMM_WORLD_SIZE="4"']
    source = export(
        **{KERNEL: kernels((10, 20, 0, 7, 1, PID_A, 2))}, META_DATA_CAPTURE=capture((), environment)
    )
    events, said, ledger = nsys.read(source)
    assert events["rank"].tolist() == [3]
    assert (said["rank"], said["ranks"], said["world_size"]) == (3, [], 4)
    assert {row["rank"] for row in ledger} == {3}
    assert "rank from the launcher's OMPI_COMM_WORLD_RANK" in {row["why"] for row in ledger}
