"""Look-up tables of all-reduce times, written here in small."""

import numpy as np
import pandas as pd
import pytest
from conftest import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.traces.readers import kineto, nccl_tests, osu, plain
from workbench.traces.readers.lookup import read, recognises

HEADER = "size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)\n"
# busbw = 2(n-1)/n size/time with n = 8, rounded as nccl-tests prints it.
ROWS = "1048576,262144,float,79930,22.96,78610,23.34\n2097152,524288,float,101300,36.22,101000,36\n"


def test_a_size_and_a_time_without_workers_are_recognised():
    assert recognises(HEADER.encode())
    assert recognises(b"# a comment\nsize_mib\ttime_us\n")
    assert not recognises(b"size_mib,time_us,gpus\n") and not recognises(b"a,b\n")


def test_times_come_in_seconds_out_of_place_and_in_place():
    table, _ = read(HEADER + ROWS, "f")
    assert table.nbytes.tolist() == [1048576, 2097152]
    assert table.seconds.tolist() == [79930 / 1e9, 101300 / 1e9]
    assert table.in_place_seconds.tolist() == [78610 / 1e9, 101000 / 1e9]
    assert set(table.op) == {"all_reduce"} and table.n_nodes.isna().all()


def test_workers_follow_from_the_bus_bandwidth_and_it_is_said():
    table, problems = read(HEADER + ROWS, "AR_GPU4_LUT")
    assert set(table.n_workers) == {8}
    assert any("n_workers = 8 follows from busbw" in problem for problem in problems)


def test_without_a_bus_bandwidth_the_workers_are_unknown():
    table, problems = read("size(B),time(us)\n8,5\n", "AR_GPU4_LUT")
    assert table.n_workers.isna().all() and table.seconds.tolist() == [5e-6]
    assert any("Set it: table.assign(n_workers=8)" in problem for problem in problems)


def test_the_columns_found_and_the_names_of_workers_that_are_known_are_told():
    (problem,) = [p for p in read("size(B),time(us),team\n8,5,4\n", "f")[1] if "workers" in p]
    assert "found size(B), time(us), team" in problem
    assert all(name in problem for name in ("world_size", "ranks", "gpus"))


def test_sizes_in_decimal_units_are_rounded_to_whole_bytes_and_that_is_said():
    table, problems = read("size_MB,time_us\n0.000976562,5\n1.5,6\n", "f")
    assert table.nbytes.tolist() == [977, 1_500_000]
    assert any("size_MB" in p and "1000000 bytes" in p and "MiB" in p for p in problems)


def test_rows_without_a_size_or_a_time_are_named_by_line():
    table, problems = read("size(B),time(us)\n8,5\n8,0\n8,x\n16,-1\n2.5,1\n", "f")
    assert len(table) == 1
    shown = ["size 8, time 0", "time nan", "size 16, time -1", "size 2.5, time 1"]
    for line, (values, problem) in enumerate(zip(shown, problems[:4], strict=True), 3):
        assert problem.startswith(f"line {line} left out: ") and values in problem


@pytest.mark.parametrize("unit", ["(us)", ""])
def test_a_wrong_or_missing_unit_is_mended_by_the_bus_bandwidth_and_said(unit):
    table, problems = read(HEADER.replace("(ns)", unit) + ROWS, "f")
    assert table.seconds.tolist() == [79930 / 1e9, 101300 / 1e9]
    (problem,) = [p for p in problems if p.startswith("times are in ns: ")]
    assert ("header says us" in problem) == bool(unit) and "busbw implies ns" in problem


def test_a_unit_that_nothing_tells_is_asked_for():
    refusal(lambda: read("size(B),time\n1048576,100\n", "f"), "f", "got none")


@pytest.mark.parametrize("n_workers", [2, 4, 8])
def test_real_tables(shared, n_workers):
    path = shared / f"traces/vtrain_lut/v100/AR_GPU{n_workers}_1M_1024M_LUT"
    head = path.read_bytes()
    assert recognises(head)
    assert not any(r.recognises(head) for r in (plain, osu, nccl_tests, kineto))
    table, _ = read(head.decode(), "f")
    printed = pd.read_csv(path)
    assert len(table) == 1024 and set(table.n_workers) == {n_workers}
    factor = 2 * (n_workers - 1) / n_workers
    for column, seconds in (("busbw(GB/s)", "seconds"), ("busbw(GB/s).1", "in_place_seconds")):
        busbw = factor * table.nbytes / table[seconds] / 1e9
        # Times are printed with four or five digits, bandwidths with two decimals.
        np.testing.assert_allclose(busbw, printed[column], rtol=6e-4, atol=0.006)


FIELDS = st.sampled_from(
    ["size(B)", "time(ns)", "time", "busbw", "8", "1e400", "-1", "nan", "", '"']
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.lists(FIELDS, max_size=4).map(",".join)).map("\n".join) | st.text())
def test_any_text_is_a_table_or_a_value_error(text):
    for start in ("", "size(B),time(us)\n8,1\n", HEADER, "size,time,busbw\n8,9,0.1\n"):
        try:
            table, _ = read(start + text, "f")
        except ValueError as error:
            assert str(error).startswith("f: ")
        else:
            assert (table.seconds > 0).all()
