"""Layouts that versions of nccl-tests print, written here in small."""

import json

import pytest
from conftest import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.base.tables import MEASUREMENTS
from workbench.traces.readers import kineto, lookup, osu, plain
from workbench.traces.readers.nccl_tests import read, recognises

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
INFO = "node01:14031:14031 [0] NCCL INFO Launch mode Parallel 12 13 14\n"
# Half a message a worker, and a busbw of half the algbw: 2 workers of all-gather or all-to-all.
HALVES = "  1048576  131072  float  100.0  10.49  5.24  0e+00  101.0  10.38  5.19  0e+00\n"


@pytest.mark.parametrize(
    "header, row",
    [(OLD, OLD_ROW), (NEW, INFO + NEW_ROW), (NO_REDOP, HALVES), (OLD, HALVES), (NEW, HALVES)],
)
def test_columns_are_found_by_the_header(header, row):
    table, _ = read(RANKS + header + row, "f")
    expected = {"n_workers": 2, "n_nodes": 2, "nbytes": 1048576}
    expected |= {"seconds": 1e-4, "in_place_seconds": 1.01e-4}
    assert table[list(expected)].to_dict("records") == [expected]
    assert table.n_wrong.isna().all() == (header != NEW)  # else a deviation, not a count


CALL = "n1:1:1 [0] NCCL INFO {0}: opCount 0 sendbuff 0x7 recvbuff 0x8 count 131072\n"


@pytest.mark.parametrize(
    "text, op",
    [
        # print_header of all_gather.cu and alltoall.cu, nccl-tests v2.0 to v2.10
        (RANKS + NO_REDOP + HALVES, "all_gather"),
        (RANKS + OLD + HALVES, "all_to_all"),
        # Columns that several programs print; hypercube.cu: busbw is algbw
        (RANKS + NO_REDOP + HALVES.replace("5.24", "10.49"), "unknown"),
        (RANKS.replace("Some GPU", "AMD Instinct MI250X") + NO_REDOP + HALVES, "unknown"),
        (RANKS + NEW + HALVES, "unknown"),
        # Lines above the table and calls that the library reports
        ("$ srun ./alltoall_perf -b 1M\n" + RANKS + NEW + HALVES, "all_to_all"),
        ("$ mpirun /opt/bin/all_gather_perf_mpi -b 1M\n" + RANKS + NEW + HALVES, "all_gather"),
        ("=== AllGather, 2 nodes ===\n" + RANKS + NEW + HALVES, "all_gather"),
        ("testing ncclAllToAll\n" + RANKS + NEW + HALVES, "all_to_all"),
        ("scatter test\n" + RANKS + NEW + HALVES, "scatter"),
        ("tests: all_gather, alltoall\n" + RANKS + NEW + HALVES, "unknown"),
        ("reduce scatter, reduce-scatter; gathering\n" + RANKS + NEW + HALVES, "unknown"),
        (RANKS + NEW + CALL.format("AllGather") * 2 + HALVES, "all_gather"),
        (RANKS + NEW + CALL.format("Send") + CALL.format("Recv") + HALVES, "unknown"),
        (RANKS + NEW + CALL.format("AllGather") + CALL.format("Broadcast") + HALVES, "unknown"),
        (RANKS + NEW + NEW_ROW, "all_reduce"),
        ("$ ./all_gather_perf; then\n" + RANKS + OLD + OLD_ROW, "all_reduce"),  # not by words
    ],
)
def test_the_collective_is_told_by_columns_then_words_then_calls(text, op):
    table, problems = read(text, "f")
    assert table.op.tolist() == [op]
    assert any("collective" in problem for problem in problems) == (op == "unknown")


def test_the_announced_collective_is_taken_and_several_tables_follow_each_other():
    text = "# Collective test starting: all_reduce_perf\n" + RANKS + NEW + NEW_ROW
    more = "#   Rank  2 Pid  3 on nodeB device  1 [0x07] Some GPU\n"
    text += "# Collective test starting: sendrecv_perf\n" + RANKS + more + NEW + NEW_ROW
    table, _ = read(text, "f")
    assert table.op.tolist() == ["all_reduce", "send_recv"]
    assert table.n_workers.tolist() == [2, 3]


@pytest.mark.parametrize("time", ["0.00", "-1.0", "nan", "N/A", "NaNbad"])
def test_a_row_without_a_time_is_left_out_and_named_by_its_line(time):
    table, (problem,) = read(RANKS + NEW + NEW_ROW + NEW_ROW.replace("100.0", time), "f")
    assert len(table) == 1 and "line 5 left out" in problem and time in problem


def test_wrong_results_and_processes_that_ran_alone_are_said():
    table, problems = read(RANKS + NEW + NEW_ROW.replace("  0  ", "  3  "), "f")
    assert table.n_wrong.tolist() == [3] and "1048576" in problems[0]
    _, problems = read(RANKS.splitlines(keepends=True)[0] * 2 + NEW + NEW_ROW, "f")
    assert "more than once" in problems[0]


@pytest.mark.parametrize(
    "ranks, busbw, n_workers, said",
    [
        ("", 50 * 2 * 1 / 2, 2, "n_workers = 2 "),
        ("", 50 * 2 * 2 / 3, 3, "n_workers = 3 "),
        ("", 50 * 2 * 15 / 16, 16, "n_workers = 16 "),
        (RANKS, 50 * 2 * 7 / 8, 2, "check n_workers"),
        ("", 0, None, "n_workers is unknown"),
    ],
)
def test_workers_follow_from_a_list_of_ranks_or_from_the_bandwidths(ranks, busbw, n_workers, said):
    timed = f"  100.0  {50 if busbw else 0:.2f}  {busbw:.2f}  0"
    table, problems = read(f"{ranks}{NEW}  5000000  1250000  float  sum  -1{timed}{timed}\n", "f")
    assert [None if table.n_workers.isna()[0] else table.n_workers[0]] == [n_workers]
    assert said in problems[0]


def test_a_shorter_list_than_ranks_of_groups_counts_one_group():
    ranks = "".join(
        f"#  Rank {r:2d} Group {r % 2:2d} Pid 1{r} on node{r // 4} device {r % 4} [00:1b] GPU\n"
        for r in range(8)
    )
    table, problems = read(ranks + NEW + NEW_ROW.replace("10.49  10.49", "10.49  15.73"), "f")
    assert (table.n_workers.tolist(), table.n_nodes.tolist()) == ([4], [2])
    assert len(problems) == 1 and problems[0].startswith("2 groups ")


def test_another_text_is_refused_with_its_first_line():
    refusal(lambda: read("\nCXI alloc failed on cxi1\n", "f"), "f", "CXI alloc failed")


FIVE = ["all_gather", "all_reduce", "all_to_all", "reduce_scatter", "send_recv"]


@pytest.mark.parametrize(
    "name, ops, n_workers, n_nodes, n",
    [
        ("100g-stepexp2-2.txt", ["all_reduce"], 32, 8, 28),
        ("ring-100g-stepexp2.txt", ["all_reduce"], 32, 8, 512),
        ("tree-100g-step2m.txt", ["all_reduce"], 16, 16, 268),
        ("nccl_allreduce.log", ["all_reduce"], 8, 1, 34),
        ("nccl_reducescatter.log", ["reduce_scatter"], 8, 1, 34),
        ("nccl_alltoall.log", ["all_to_all"], 8, 1, 34),
        ("100g-step2m.txt", ["all_reduce"], 16, 16, 268),
        ("nccl_N2_G1_node002_node008.log", ["all_to_all"], 2, 2, 10),
        ("nccl_N10_G4.log", FIVE, 40, 10, 10),
    ],
)
def test_real_logs(shared, name, ops, n_workers, n_nodes, n):
    text = (shared / "traces/nccl_tests" / name).read_text(errors="replace")
    table, problems = read(text, name)
    assert table.groupby("op").size().to_dict() == dict.fromkeys(ops, n)
    assert set(table.n_workers) == {n_workers} and set(table.n_nodes) == {n_nodes}
    if "node008" in name:
        assert problems[0].startswith("the table at line 36 (send_recv)")  # without rows


def test_seconds_agree_with_the_bandwidths_printed_beside_them_in_all_real_logs(shared):
    paths = [p for p in (shared / "traces/nccl_tests").iterdir() if p.stat().st_size]
    assert len(paths) >= 10
    for path in paths:
        text = path.read_text(errors="replace")
        table, _ = read(text, "log")
        rows = [line.split() for line in text.splitlines()]
        rows = [r for r in rows if len(r) > 10 and r[2] in ("float", "double")]
        ahead = [3 + (not r[3][0].isdigit()) + ("-1" in r[4]) for r in rows]  # of the first time
        assert table.nbytes.tolist() == [int(r[0]) for r in rows]
        for n, column in ((0, "seconds"), (4, "in_place_seconds")):
            printed = [float(r[k + n + 1]) for r, k in zip(rows, ahead, strict=True)]
            # The bandwidth is rounded to 0.005, the time to three digits or more.
            found = (table.nbytes / table[column] / 1e9).tolist()
            assert found == pytest.approx(printed, abs=0.0051, rel=6e-4)


# Logs as launchers and terminals leave them


@pytest.mark.parametrize(
    "tag",
    [
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "[node01:0] ",
        "0: ",
        "2024-05-01T10:11:12.345Z ",
        "\x1b[32m",
    ]
    + ["2024-05-01 10:11:12 ", "[2024-05-01 10:11:12] ", "Mon Apr 21 10:11:12 2025<stdout>:"],
)
def test_what_stands_before_each_line_is_no_part_of_it(tag):
    text = RANKS + NEW + "#  (B)  (elements)   (us)  (GB/s)\n" + NEW_ROW
    text = "\r\n".join(tag + line for line in text.splitlines()) + "\x1b[0m\r\n"
    table, problems = read(text, "f")
    assert problems == []
    assert (table.n_workers.tolist(), table.n_nodes.tolist()) == ([2], [2])
    assert (table.nbytes.tolist(), table.seconds.tolist()) == ([1048576], [1e-4])


@pytest.mark.parametrize("tag", ["", "[1,0]<stdout>:", "0: "])
def test_a_row_that_the_library_interrupts_is_joined_again(tag):
    lines = [
        "     1048576        262144   float     sum" + INFO,
        INFO,
        "   100.0   10.49   10.49  5e-07" + INFO,
        "   101.0   10.38   10.38    N/A" + INFO,
        "     2097152        524288   float     sum    200.0   10.49   10.49  5e-07    202.0"
        "   10.38   10.38    N/A\n",
    ]
    table, problems = read(RANKS + OLD + "".join(tag + line for line in lines), "f")
    assert problems == []
    assert table.seconds.tolist() == [1e-4, 2e-4]
    assert table.in_place_seconds.tolist() == [1.01e-4, 2.02e-4]


def test_a_repeated_header_begins_no_new_collective_and_rows_of_no_bytes_stay():
    row = "  0  0  float  sum  -1  34.27  0.00  0.00  0  33.57  0.00  0.00  0\n"
    assert read(RANKS + NEW + row + NEW + NEW_ROW, "f")[0].nbytes.tolist() == [0, 1048576]


def test_columns_a_newer_version_adds_shift_nothing():
    per = "  i_min  i_max  i_p99  i_cv%"
    group = f"  cputime  algbw  busbw  #wrong{per}"
    header = f"#  size  count  type  redop  root{group}{group}           timestamp\n"
    numbers = "  {0}  10.49  10.49  0  90.0  110.0  109.0  3.0"
    row = "  1048576  262144  float  sum  -1" + numbers.format("100.0") + numbers.format("101.0")
    table, problems = read(RANKS + header + row + "  2025-05-01 10:11:12\n", "f")
    assert problems == []
    assert (table.seconds.tolist(), table.in_place_seconds.tolist()) == ([1e-4], [1.01e-4])


def test_the_first_versions_timed_in_milliseconds():
    header = "#  bytes  N  type  op  time  algbw  busbw  res  time  algbw  busbw  res\n"
    row = "  8388608  2097152  float  sum  0.278  30.17  30.17  0e+00  0.280  29.96  29.96  0e+00\n"
    table, problems = read(RANKS + header + row, "f")
    assert table.seconds.tolist() == [pytest.approx(278e-6)]
    assert len(problems) == 1 and "in ms, not us" in problems[0]


def test_a_row_timed_in_place_alone():
    row = "  1048576  262144  float  sum  -1" + " " * 34 + "101.0  10.38  10.38  0\n"
    table, problems = read(RANKS + NEW + row, "f")
    assert table.seconds.tolist() == table.in_place_seconds.tolist() == [1.01e-4]
    assert "only in place" in problems[0]


def test_a_broken_time_in_place_leaves_the_row():
    table, (problem,) = read(RANKS + NEW + NEW_ROW.replace("101.0", "-5"), "f")
    assert table.in_place_seconds.isna().all() and len(table) == 1
    assert "line 4: " in problem and "-5" in problem


def test_columns_come_first_and_in_their_types():
    table, _ = read(RANKS + NEW + NEW_ROW, "f")
    kinds = table.dtypes.astype(str).to_dict()
    assert list(table)[:5] == list(MEASUREMENTS)
    assert list(kinds.values())[:5] == ["str", "Int64", "Int64", "int64", "float64"]


# JSON and CSV


def report(**more) -> dict:
    """As `all_reduce_perf -J file` writes it (nccl-tests 2.17, JSON version 2)."""
    devices = [
        {"rank": r, "group": 0, "pid": r, "hostname": f"n{r // 2}", "device": r % 2}
        for r in range(4)
    ]
    timed = {"time": 100.0, "alg_bw": 10.49, "bus_bw": 15.73, "nwrong": 0.0}
    row = {"size": 1048576, "count": 262144, "type": "float", "redop": "sum", "root": "    -1"}
    row |= {"out_of_place": timed, "in_place": timed | {"time": 101.0, "nwrong": None}}
    row |= {"actual_iterations": 20}
    return {
        "version": 2,
        "args": ["./build/all_reduce_perf", "-b", "1M"],
        "config": {"nthreads": 1, "ngpus": 1, "devices": devices} | more,
        "results": [row, row | {"size": 2097152, "count": 524288}],
        "average_bus_bandwidth": {"bandwidth": 15.7, "okay": "unchecked"},
    }


def test_the_report_of_newer_versions():
    text = json.dumps(report())
    assert recognises(text.encode())
    table, _ = read(text, "f")
    assert table.op.tolist() == ["all_reduce"] * 2 and table.nbytes.tolist() == [1048576, 2097152]
    assert table.seconds.tolist() == [1e-4] * 2 and table.in_place_seconds.tolist() == [1.01e-4] * 2
    assert set(table.n_workers) == {4} and set(table.n_nodes) == {2}
    assert table.n_wrong.tolist() == [0, 0]


def test_the_report_lists_one_device_a_process():
    text = json.dumps(report(devices=[{"rank": 0, "hostname": "n0"}], ngpus=4))
    assert set(read(text, "f")[0].n_workers) == {4}


def test_whole_rows_of_a_cut_report_are_kept():
    text = json.dumps(report())
    cut = text[: text.index('"size": 2097152') + 30]
    table, problems = read(cut, "f")
    assert table.nbytes.tolist() == [1048576] and set(table.n_workers) == {4}
    assert any("the JSON is cut" in problem for problem in problems)


def test_json_behind_other_output_with_the_size_as_key(shared):
    text = (shared / "cases/r31_nccltests_json.json").read_text()
    table, _ = read(text, "f")
    assert (table.op.tolist(), table.nbytes.tolist()) == (["all_reduce"], [1048576])
    assert (table.seconds.tolist(), table.in_place_seconds.tolist()) == ([1e-4], [1.01e-4])
    assert table.n_wrong.tolist() == [0]


RECORD = (
    '{{"numCycle":0, "name":"AllReduce", "nodes":2, "ranks":4, "ranksPerNode":2, "gpusPerRank":1, '
    '"size":1048576, "type":"float", "redop":"sum", "inPlace":{0}, "time":{1}, '
    '"algBw":10.49, "busBw":15.73, "wrong":"{2}"}}'
)


def test_records_of_rccl_tests_as_json_and_csv():
    pair = [RECORD.format(0, 100.0, 0), RECORD.format(1, 101.0, "N/A")]
    rows = [json.loads(record) for record in pair]
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    csv = "\r\n".join(["# some output", *lines])
    assert recognises(csv.encode()) and not plain.recognises(csv.encode())
    for text in ("[\n" + ",\n".join(pair) + "\n]\n", csv):
        table, _ = read(text, "f")
        assert (table.seconds.tolist(), table.in_place_seconds.tolist()) == ([1e-4], [1.01e-4])
        assert (table.n_workers.tolist(), table.n_nodes.tolist()) == ([4], [2])


# Who recognises what, and what is hostile


def test_real_logs_are_recognised_by_this_reader_alone(shared):
    for path in (shared / "traces/nccl_tests").iterdir():
        head = path.read_bytes()
        assert recognises(head) or not head
        assert not any(reader.recognises(head) for reader in (kineto, plain, lookup, osu))


LINES = st.sampled_from(
    [RANKS, OLD, NEW, NO_REDOP, OLD_ROW, NEW_ROW, INFO, RECORD.format(0, "1e999", "inf")]
    + ["1 2 float\n", "9" * 30 + " 1 float sum 1e400 inf inf 1e99\n", "  1.0 2.0\n", '{"a":' * 2000]
    + ['{"results":[{"size":null,"out_of_place":3}]}', '{"config":{"devices":[7,{}]},"results":[]}']
    + ["numCycle,inPlace,time,algBw\n", "1,0,5,inf\n", "# size count type time\n"]
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(LINES | st.text(), max_size=8).map("".join))
def test_any_text_is_a_table_or_a_value_error(text):
    recognises(text.encode(errors="replace"))
    try:
        table, _ = read(text, "f")
    except ValueError as error:
        assert str(error).startswith("f: ")
    else:
        assert (table.seconds > 0).all() and (table.nbytes >= 0).all()
