"""Ranks in exports of Nsight Systems: NCCL's, the launcher's, the devices'."""

import sqlite3

import pandas as pd
import pytest

from workbench.traces.readers import nsys
from workbench.traces.readers.source import Source

NOTHING = {"environment": {}, "options": {}, "host": ""}


def table(*lanes):
    """A collective in each (process, device)."""
    rows = pd.DataFrame(lanes, columns=["process", "device"])
    return rows.assign(stream=7, kind="comm")


def found(lanes, by_nccl=None, **said):
    rank, n_ranks, why = nsys.ranks_of(table(*lanes), by_nccl or {}, NOTHING | said)
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


def test_an_environment_without_a_rank_tells_none():
    rank, n_ranks, why = found([(5, 0)], environment={"RANK": "x", "HOME": "/root"})
    assert pd.isna(rank[0]) and (n_ranks, why) == (None, "")


def test_of_several_processes_the_environment_of_their_launcher_tells_none():
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


@pytest.fixture
def export(tmp_path):
    """An export of two devices, with what else it records: {table: (columns, rows)}."""

    def write(kernels=((10, 20, 0, 7, 5 << 24), (10, 30, 1, 7, 6 << 24)), **tables):
        columns = 'start, "end", deviceId, streamId, globalPid'
        tables["CUPTI_ACTIVITY_KIND_KERNEL"] = (
            f"{columns}, name",
            [(*kernel, "ncclDevKernel_AllReduce_Sum_f32_RING_LL") for kernel in kernels],
        )
        with sqlite3.connect(tmp_path / "export.sqlite") as db:
            for name, (columns, rows) in tables.items():
                db.execute(f"CREATE TABLE {name} ({columns})")
                marks = ",".join("?" * (columns.count(",") + 1))
                db.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
        db.close()
        return Source(tmp_path / "export.sqlite")

    return write


def capture(arguments=(), environment=()):
    rows = [(f"PROCESS_0:ARGUMENT_{n}", text) for n, text in enumerate(arguments)]
    rows += [("PROCESS_0:ENVIRONMENT_VARIABLE", text) for text in environment]
    return "name, value", rows


def test_the_second_node_of_a_run_of_torchrun(export):
    arguments = ["--nnodes=2", "--nproc-per-node", "2", "--node_rank=1", "train.py", "--nnodes=9x"]
    info = {"META_DATA_CAPTURE": capture(arguments)}
    info["TARGET_INFO_SYSTEM_ENV"] = ("name, value", [("Hostname", "node7")])
    events, said, _ = nsys.read(export(**info))
    assert events["rank"].tolist() == said["ranks"] == [2, 3]
    assert (said["world_size"], said["host"], said["rank"]) == (4, "node7", None)


def test_one_process_of_a_run_of_mpi(export):
    environment = ['OMPI_COMM_WORLD_RANK="3"', 'OMPI_COMM_WORLD_SIZE="4"']
    source = export([(10, 20, 0, 7, 5 << 24)], META_DATA_CAPTURE=capture((), environment))
    events, said, ledger = nsys.read(source)
    assert events["rank"].tolist() == [3]
    assert (said["rank"], said["ranks"], said["world_size"]) == (3, [], 4)
    assert {row["rank"] for row in ledger} == {3}
    assert "rank from the launcher's OMPI_COMM_WORLD_RANK" in {row["why"] for row in ledger}


def test_a_real_export_tells_how_many_ranks_torchrun_started(shared):
    _, info, _ = nsys.read(Source(shared / "traces/nsys/mfu_2gpu_after.sqlite"))
    assert (info["ranks"], info["world_size"], info["host"]) == ([0, 1], 2, "modal")
