"""Layouts that versions of nccl-tests print, written here in small."""

import pytest

from workbench.readers.nccl_tests import read

RANKS = """\
#   Rank  0 Pid  1 on nodeA device  0 [0x07] Some GPU
#   Rank  1 Pid  2 on nodeB device  0 [0x07] Some GPU
"""
SIZE, TIMES = "#  size  count  type", "  time  algbw  busbw"
OLD = f"{SIZE}  redop{TIMES}  error{TIMES}  error\n"
NEW = f"{SIZE}  redop  root{TIMES} #wrong{TIMES} #wrong\n"
NO_REDOP = f"{SIZE}{TIMES}  error{TIMES}  error\n"
TIMED = "  100.0  10.49  10.49  {0}  101.0  10.38  10.38  {1}\n"
OLD_ROW = "  1048576  262144  float  sum" + TIMED.format("5e-07", "5e-07")
NEW_ROW = "  1048576  262144  float  sum  -1" + TIMED.format("0", "N/A")


@pytest.mark.parametrize("header, row", [(OLD, OLD_ROW), (NEW, NEW_ROW)])
def test_columns_are_found_by_the_header(header, row):
    table, problems = read(RANKS + header + row, "f")
    assert problems == []
    found = table.iloc[0]
    expected = {"op": "all_reduce", "n_workers": 2, "n_nodes": 2, "nbytes": 1048576}
    assert found[list(expected)].to_dict() == expected
    assert (found.seconds, found.in_place_seconds) == (1e-4, 1.01e-4)


def test_a_missing_or_blank_redop_shifts_nothing():
    row = "  1048576  131072  float" + TIMED.format("0e+00", "0e+00")
    for header in (NO_REDOP, OLD):
        table, problems = read(RANKS + header + row, "f")
        assert problems == []
        assert table.seconds.tolist() == [1e-4]
        assert table.op.tolist() == ["unknown"]


def test_the_announced_collective_is_taken_and_several_tables_follow_each_other():
    text = "# Collective test starting: all_reduce_perf\n" + RANKS + NEW + NEW_ROW
    more = "#   Rank  2 Pid  3 on nodeB device  1 [0x07] Some GPU\n"
    text += "# Collective test starting: sendrecv_perf\n" + RANKS + more + NEW + NEW_ROW
    table, _ = read(text, "f")
    assert table.op.tolist() == ["all_reduce", "send_recv"]
    assert table.n_workers.tolist() == [2, 3]


def test_lines_of_the_library_and_tags_of_mpirun_are_no_rows():
    text = RANKS + NEW + "nodeA:3442:3442 [0] NCCL INFO Launch mode Parallel\n" + NEW_ROW
    text = "\n".join("[1,0]<stdout>:" + line for line in text.splitlines())
    table, problems = read(text, "f")
    assert (len(table), problems) == (1, [])


def test_a_broken_row_is_named_by_its_line_and_the_good_one_kept():
    broken = NEW_ROW.replace("100.0", "NaNbad")
    table, problems = read(RANKS + NEW + NEW_ROW + broken, "f")
    assert len(table) == 1
    assert len(problems) == 1 and "line 5 left out" in problems[0] and "NaNbad" in problems[0]


def test_wrong_results_are_said_loudly():
    table, problems = read(RANKS + NEW + NEW_ROW.replace("  0  ", "  3  "), "f")
    assert table.n_wrong.tolist() == [3]
    assert "wrong results at sizes 1048576" in problems[0]


def test_the_error_column_of_older_versions_is_a_deviation_not_a_count():
    table, problems = read(RANKS + OLD + OLD_ROW, "f")
    assert table.n_wrong.isna().all() and problems == []


def test_without_a_list_of_ranks_the_workers_are_unknown():
    table, problems = read(NEW + NEW_ROW, "f")
    assert table.n_workers.isna().all()
    assert "n_workers is unknown" in problems[0]


def test_another_text_is_refused_with_its_first_line():
    with pytest.raises(ValueError, match="no timed collective.*CXI alloc failed"):
        read("\nCXI alloc failed on cxi1\n", "f")


@pytest.mark.parametrize(
    "name, expected",
    [
        ("100g-stepexp2-2.txt", ("all_reduce", 32, 8, 28)),
        ("ring-100g-stepexp2.txt", ("all_reduce", 32, 8, 512)),
        ("tree-100g-step2m.txt", ("all_reduce", 16, 16, 268)),
        ("nccl_allreduce.log", ("all_reduce", 8, 1, 34)),
        ("nccl_reducescatter.log", ("reduce_scatter", 8, 1, 34)),
        ("nccl_N2_G1_node002_node008.log", ("all_to_all", 2, 2, 10)),
    ],
)
def test_real_logs(shared, name, expected):
    text = (shared / "traces/nccl_tests" / name).read_text(errors="replace")
    table, _ = read(text, name)
    op, n_workers, n_nodes, n = expected
    assert len(table) == n
    assert set(table.op) == {op}
    assert set(table.n_workers) == {n_workers} and set(table.n_nodes) == {n_nodes}


def test_a_log_of_five_collectives(shared):
    text = (shared / "traces/nccl_tests/nccl_N10_G4.log").read_text()
    table, _ = read(text, "log")
    assert table.groupby("op").size().to_dict() == dict.fromkeys(
        ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send_recv"], 10
    )
    assert set(table.n_workers) == {40}


def test_seconds_agree_with_the_bandwidth_printed_beside_them(shared):
    path = shared / "traces/nccl_tests/ring-100g-stepexp2.txt"
    table, _ = read(path.read_text(errors="replace"), "log")
    rows = [line.split() for line in path.read_text(errors="replace").splitlines()]
    printed = [float(r[5]) for r in rows if len(r) == 12 and r[2] == "float"]
    # Both columns are rounded when printed: the bandwidth to 0.005, the time to five digits.
    assert (table.nbytes / table.seconds / 1e9).tolist() == pytest.approx(printed, abs=0.0051)
