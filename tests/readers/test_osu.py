"""Tables of the OSU micro-benchmarks as their versions print them, written here in small."""

import pandas as pd
import pytest
from conftest import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.base.tables import MEASUREMENTS
from workbench.traces.readers import kineto, lookup, nccl_tests, plain
from workbench.traces.readers.osu import read, recognises

TITLE = "# OSU MPI-CUDA Allreduce Latency Test v5.8\n"
COLUMNS = "# Size       Avg Latency(us)\n"
ROWS = "4                      20.00\n1048576              4570.49\n"
FULL = "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n"


def test_sizes_and_latencies_in_seconds():
    table, _ = read(TITLE + COLUMNS + ROWS, "f")
    assert list(table)[:5] == list(MEASUREMENTS)
    assert table.nbytes.tolist() == [4, 1048576]
    assert table.seconds.tolist() == [20.0 / 1e6, 4570.49 / 1e6]
    assert set(table.op) == {"all_reduce"}


RECORD = '{"context":{"taskmap":{"version":1,"map":[[0,%d,8,1]]}}}\n'


@pytest.mark.parametrize(
    "before, after, n_workers, n_nodes, said",
    [
        ("", "", pd.NA, pd.NA, ["table.assign(n_workers=8)"]),
        ("mpirun --hostfile h.txt -np 16 /opt/osu_allreduce\n", "", 16, pd.NA, []),
        ("", RECORD % 4, 32, 4, ["n_workers = 32 on 4 nodes"]),
        ("", RECORD % 4 + RECORD % 2, pd.NA, pd.NA, ["table.assign(n_workers=8)"]),
    ],
)
def test_a_launcher_or_one_job_says_how_many_workers(before, after, n_workers, n_nodes, said):
    table, problems = read(before + TITLE + COLUMNS + ROWS + after, "f")
    assert (table.n_workers.tolist(), table.n_nodes.tolist()) == ([n_workers] * 2, [n_nodes] * 2)
    assert [text in problem for text, problem in zip(said, problems, strict=True)] == [True] * len(
        said
    )


def test_columns_of_the_full_report_are_kept():
    row = "16777216             8630.58           8619.50           8642.46         10\n"
    table, _ = read(TITLE + FULL + row, "f")
    found = table.iloc[0]
    assert (found.seconds, found.seconds_min, found.seconds_max, found.n_iterations) == (
        8630.58 / 1e6,
        8619.50 / 1e6,
        8642.46 / 1e6,
        10,
    )


@pytest.mark.parametrize(
    "title, op",
    [
        ("MPI Allgather Latency", "all_gather"),
        ("MPI-CUDA Broadcast Latency", "broadcast"),
        ("MPI Reduce_scatter Latency", "reduce_scatter"),
        ("MPI-ROCM All-to-All Personalized Exchange Latency", "all_to_all"),
        ("MPI Reduce Latency", "reduce"),
        ("NCCL Allreduce Latency", "all_reduce"),
        ("MPI Latency", "send_recv"),
        ("MPI Multi-threaded Latency", "send_recv"),
    ],
)
def test_the_collective_is_that_of_the_title(title, op):
    text = f"# OSU {title} Test v7.5\n# Datatype: MPI_INT.\n{COLUMNS}{ROWS}"
    assert set(read(text, "f")[0].op) == {op}


def test_a_nonblocking_collective_is_timed_by_its_pure_communication():
    columns = (
        "# Size           Overall(us)       Compute(us)    Coll. Init(us)      MPI_Test(us)"
        "      MPI_Wait(us)    Pure Comm.(us)        Overlap(%)\n"
    )
    row = "1024   30.0   20.0   1.0   0.5   2.0   12.5   80.0\n"
    table, _ = read(
        "# OSU MPI-CUDA Non-blocking Allreduce Latency Test v5.8\n" + columns + row, "f"
    )
    assert table.op.tolist() == ["all_reduce"] and table.seconds.tolist() == [12.5 / 1e6]


def test_a_barrier_has_no_bytes():
    table, _ = read("# OSU MPI Barrier Latency Test v5.8\n# Avg Latency(us)\n    5.00\n 6\n", "f")
    assert (table.op.tolist(), table.nbytes.tolist()) == (["barrier"] * 2, [0, 0])


def test_point_to_point_tests_have_two_workers_and_bandwidth_becomes_time():
    text = "# OSU MPI-CUDA Bandwidth Test v5.8\n# Size      Bandwidth (MB/s)\n1000   2.00\n"
    table, problems = read(text, "f")
    assert table.seconds.tolist() == [1000 / 2e6] and table.n_workers.tolist() == [2]
    assert "size/bandwidth" in problems[0]


def test_several_tables_in_one_text():
    text = TITLE + COLUMNS + ROWS + "\n# OSU MPI Bcast Latency Test v5.8\n" + COLUMNS + ROWS
    assert read(text, "f")[0].op.tolist() == ["all_reduce"] * 2 + ["broadcast"] * 2


def test_lines_of_launchers_and_libraries_are_no_rows():
    noise = "[1678205653.808236] [node:903  :0]  ucc_coll.c:255  UCC_COLL INFO  coll_init\n"
    rows = ROWS.replace("\n", "\n" + noise)
    text = "26.7s: job.exception type=cancel\n" + TITLE + COLUMNS + noise + rows
    table, _ = read("\r\n".join("[1,0]<stdout>:" + line for line in text.split("\n")), "f")
    assert len(table) == 2


@pytest.mark.parametrize("row", ["8 0.00 1 1 1", "8 nan 1 1 1", "8 inf 1 1 1", "8 1.0 1.0"])
def test_a_row_without_its_numbers_is_left_out_by_its_line(row):
    table, problems = read(f"{TITLE}{FULL}4  1.0  1.0  1.0  10\n{row}\n", "f")
    assert len(table) == 1 and "line 4 left out" in problems[0]


def test_another_text_is_refused_with_its_first_line():
    refusal(lambda: read("hello\n", "f"), "f", "hello")


@pytest.mark.parametrize("name, n_workers", [("osu-allreduce-32", 256), ("osu-allreduce-4", 32)])
def test_real_tables(shared, name, n_workers):
    (path,) = (shared / "traces/osu").glob(f"{name}-*.out")
    head = path.read_bytes()
    assert recognises(head)
    assert not any(r.recognises(head) for r in (plain, lookup, nccl_tests, kineto))
    table, _ = read(head.decode(), "f")
    rows = [line.split() for line in head.decode().splitlines() if line[:1].isdigit()]
    printed = [(int(size), float(us)) for size, us in (r for r in rows if len(r) == 2)]
    assert table.nbytes.tolist() == [size for size, _ in printed]
    assert (table.seconds * 1e6).tolist() == pytest.approx([us for _, us in printed])
    assert set(table.n_workers) == {n_workers}


LINES = st.sampled_from(
    [TITLE, COLUMNS, FULL, ROWS, "4 1e400\n", "1" * 30 + " 5\n", '{"taskmap"\n', "# OSU  Test\n"]
    + ['{"context":{"taskmap":{"version":1,"map":[[0,999999999999,1,1]]}}}\n']
    + ['{"context":{"taskmap":{"map":[[0,9,99999999999999999999,1]]}}}\n']
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(LINES | st.text(), max_size=8).map("".join))
def test_any_text_is_a_table_or_a_value_error(text):
    try:
        table, _ = read(text, "f")
    except ValueError as error:
        assert str(error).startswith("f: ")
    else:
        assert (table.seconds > 0).all()
