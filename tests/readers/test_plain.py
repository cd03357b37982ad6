import io

import pandas as pd
import pytest
from conftest import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.base.tables import MEASUREMENTS
from workbench.traces.readers.plain import from_table, read, recognises

TEXT = "# a comment\nop,n_workers,n_nodes,nbytes,seconds,note\nall_reduce,2,1,1024,1e-3,x\n"
DTYPES = {
    "op": "str",
    "n_workers": "Int64",
    "n_nodes": "Int64",
    "nbytes": "int64",
    "seconds": "float64",
}


def test_a_table_with_the_columns_is_recognised_past_its_comments():
    assert recognises(TEXT.encode())
    assert recognises(b"nbytes,n_workers,seconds\n")
    assert recognises("Size (KiB)\tTime (us)\tGPUs\r\n".encode("utf-8-sig"))
    assert not recognises(b"# size count type\n 1 2 float\n")
    assert not recognises(b"size(B),count,type,time(ns),busbw(GB/s)\n")
    assert not recognises(b"numCycle,name,ranks,size,type,redop,inPlace,time,algBw\n")


def test_columns_come_first_in_their_types_and_others_stay():
    table, problems = read(TEXT, "f")
    assert problems == []
    assert table.iloc[0].tolist() == ["all_reduce", 2, 1, 1024, 1e-3, "x"]
    assert list(table) == [*MEASUREMENTS, "note"]
    assert table.dtypes.astype(str).to_dict() == DTYPES | {"note": "str"}
    table, _ = read("n_workers,nbytes,seconds\n4,8,0.5\n", "f")
    assert table.op.tolist() == ["all_reduce"] and table.n_nodes.isna().all()


@pytest.mark.parametrize(
    "names, nbytes, seconds",
    [
        ("size_kib,latency_us,world_size", 4 * 1024, 5e-6),
        ("Size (MiB),Time [ms],GPUs", 4 * 2**20, 5e-3),
        ("bytes,time_ns,nranks", 4, 5e-9),
        ("message_size_gb,avg_latency(s),np", 4 * 10**9, 5.0),
        ("size(B),t_us,Ranks", 4, 5e-6),
        *((f"nbytes,seconds,{n}", 4, 5) for n in ("world", "devices", "ntasks", "Num GPUs")),
    ],
)
def test_units_and_names_are_those_of_the_header(names, nbytes, seconds):
    table, _ = read(f"{names}\n4,5,2\n", "f")
    assert table.nbytes.tolist() == [nbytes] and table.n_workers.tolist() == [2]
    assert table.seconds.tolist() == [pytest.approx(seconds, rel=1e-15)]


@pytest.mark.parametrize(
    "text, shown",
    [
        ("size,time_us,np\n4,5,2\n", "'size'"),  # no unit
        ("size_mb,time,np\n4,5,2\n", "'time'"),
        ("bytes,latency,gpus\n4,5,2\n", "'latency'"),
        ("bytes,time_us,latency_us,np\n4,5,6,2\n", "'time_us', 'latency_us'"),
        ("nbytes,seconds,team\n8,1,2\n", "world_size"),
        ("extent,seconds,np\n8,1,2\n", "size_mib"),
        ("nbytes,span,np\n8,1,2\n", "time_us"),
        ("nbytes,seconds\n8,1\n", "got nbytes, seconds"),
        ("nbytes;seconds;np\n8;0,5;2\n", "0,5"),
        ('nbytes;seconds;np\n8;"1.024,5";2\n', "1.024,5"),
        ("n_workers,nbytes,seconds\nx,y,z\n", "line 2"),
    ],
)
def test_columns_and_numbers_that_are_not_clear_are_refused(text, shown):
    refusal(lambda: read(text, "f"), "f", shown)


def test_the_text_and_the_table_of_a_file_hold_the_same_bytes():
    text = "world,size_MB,time_ms\n8,0.000976562,0.1\n8,1.5,0.2\n"
    table, problems = read(text, "f")
    again, same = from_table(pd.read_csv(io.StringIO(text)))
    assert table.nbytes.tolist() == again.nbytes.tolist() == [977, 1_500_000]
    assert table.n_workers.tolist() == again.n_workers.tolist() == [8, 8]
    assert problems == same and len(problems) == 1


def test_decimal_units_are_said_and_doubted_where_binary_ones_give_powers_of_two():
    problems = read("size_MB,seconds,np\n0.25,5,2\n4,5,2\n512,5,2\n", "f")[1]
    assert "1048576 bytes all sizes would be powers of 2" in problems[0]
    problems = read("size_MB,seconds,np\n3,5,2\n4,5,2\n", "f")[1]
    assert "1000000 bytes" in problems[0] and "would be" not in problems[0]


def test_of_two_columns_for_one_quantity_the_one_with_our_name_is_taken():
    table, _ = read("bytes,time_us,seconds,np\n4,5,6,2\n", "f")
    assert table.seconds.tolist() == [6] and table["time_us"].tolist() == [5]


@pytest.mark.parametrize("mark", ["\t", ";", ","])
def test_any_usual_delimiter_and_quotes(mark):
    text = mark.join(["nbytes", "seconds", "np", "note"]) + "\r\n"
    text += mark.join(["8", "0.5", "2", '"a, b; c"']) + "\r\n"
    table, problems = read(text, "f")
    assert table.note.tolist() == ["a, b; c"] and problems == []


@pytest.mark.parametrize(
    "row, shown",
    [
        *((f"8,{time},2", "seconds") for time in ("0", "-1", "nan", "inf", "")),
        ("many,1,2", "'many'"),
        ("8,1", "2 fields, not 3"),
    ],
)
def test_a_row_without_its_numbers_is_left_out_and_named_by_its_line(row, shown):
    table, (problem,) = read(f"nbytes,seconds,np\n0,1,2\n{row}\n", "f")
    assert table.nbytes.tolist() == [0]
    assert "line 3 left out" in problem and shown in problem


def test_collectives_are_called_by_our_names():
    text = "collective,bytes,seconds,np\nAllReduce,8,1,2\nncclReduceScatter,8,1,2\nx,8,1,2\n"
    assert read(text, "f")[0].op.tolist() == ["all_reduce", "reduce_scatter", "x"]


def test_a_frame_is_read_like_a_file():
    frame = pd.DataFrame(
        {"size_mib": [1, 2.5], "time_ms": [3, -1.0], "gpus": pd.array([4, 8], dtype="Int64")}
    )
    table, problems = from_table(frame)
    assert table[list(MEASUREMENTS)].dtypes.astype(str).to_dict() == DTYPES
    assert (table.nbytes.tolist(), table.seconds.tolist()) == ([2**20], [3e-3])
    assert problems == ["row 2 left out: time_ms: expected a time above 0, got -1"]
    assert list(frame) == ["size_mib", "time_ms", "gpus"]


def test_missing_numbers_of_a_frame_are_left_out():
    frame = pd.DataFrame({"bytes": [1, 2], "seconds": [1.0, 1.0]})
    frame["ranks"] = pd.array([2, pd.NA], dtype="Int64")
    table, problems = from_table(frame)
    assert table.n_workers.tolist() == [2] and len(problems) == 1


DURATIONS = pd.DataFrame({"nbytes": [10], "n_workers": [2], "seconds": pd.to_timedelta([1])})


@pytest.mark.parametrize(
    "thing, shown",
    [(None, ""), ({"nbytes": [1]}, ""), (pd.DataFrame(), ""), (DURATIONS, "total_seconds()")],
)
def test_what_is_no_table_is_refused(thing, shown):
    refusal(lambda: from_table(thing), "table", shown)


FIELDS = st.sampled_from(
    ["nbytes", "seconds", "np", "time_us", "8", "1e3", "0,5", '"', "-1", "9" * 400, "", "nan", "é"]
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.lists(FIELDS, max_size=5).map(",".join)).map("\n".join) | st.text())
def test_any_text_is_a_table_or_a_value_error(text):
    for start in ("", "nbytes,seconds,np\n8,1,2\n"):
        try:
            table, _ = read(start + text, "f")
        except ValueError as error:
            assert str(error).startswith("f: ")
        else:
            assert table[list(MEASUREMENTS)].dtypes.astype(str).to_dict() == DTYPES
            assert (table.seconds > 0).all()
