import io

import pandas as pd
import pytest
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


def test_columns_beyond_the_needed_ones_stay():
    table, problems = read(TEXT, "f")
    assert problems == []
    assert table.iloc[0].to_dict() == {
        "op": "all_reduce",
        "n_workers": 2,
        "n_nodes": 1,
        "nbytes": 1024,
        "seconds": 1e-3,
        "note": "x",
    }


def test_columns_come_first_and_in_their_types():
    table, _ = read(TEXT, "f")
    assert list(table)[:5] == list(MEASUREMENTS)
    assert table.dtypes.astype(str).to_dict() == DTYPES | {"note": "str"}


def test_missing_op_and_nodes_are_filled():
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
    ],
)
def test_units_are_those_of_the_header(names, nbytes, seconds):
    table, _ = read(f"{names}\n4,5,2\n", "f")
    assert table.nbytes.tolist() == [nbytes] and table.n_workers.tolist() == [2]
    assert table.seconds.tolist() == [pytest.approx(seconds, rel=1e-15)]


@pytest.mark.parametrize("names", ["size,time_us,np", "size_mb,time,np", "bytes,latency,gpus"])
def test_a_unit_that_is_not_written_is_asked_for(names):
    with pytest.raises(ValueError, match="f: column '(size|time|latency)'.* a unit, got none. Re"):
        read(f"{names}\n4,5,2\n", "f")


def test_the_text_and_the_table_of_a_file_hold_the_same_bytes():
    text = "world,size_MB,time_ms\n8,0.000976562,0.1\n8,1.5,0.2\n"
    table, problems = read(text, "f")
    again, same = from_table(pd.read_csv(io.StringIO(text)))
    assert table.nbytes.tolist() == again.nbytes.tolist() == [977, 1_500_000]
    assert table.n_workers.tolist() == again.n_workers.tolist() == [8, 8]
    assert problems == same and len(problems) == 1


def test_sizes_that_would_be_powers_of_two_in_a_binary_unit_are_doubted():
    problems = read("size_MB,seconds,np\n0.25,5,2\n4,5,2\n512,5,2\n", "f")[1]
    assert "1048576 bytes all sizes would be powers of 2" in problems[0]
    assert "would be" not in read("size_MB,seconds,np\n3,5,2\n4,5,2\n", "f")[1][0]


@pytest.mark.parametrize("name", ["world", "world_size", "devices", "ntasks", "Num GPUs"])
def test_workers_go_by_many_names(name):
    assert read(f"nbytes,seconds,{name}\n8,1,4\n", "f")[0].n_workers.tolist() == [4]


@pytest.mark.parametrize(
    ("names", "known"),
    [
        ("nbytes,seconds,team", "world_size, world, ranks, gpus"),
        ("extent,seconds,np", "message_size.*with a unit such as size_mib"),
        ("nbytes,span,np", "latency.*with a unit such as time_us"),
    ],
)
def test_names_that_would_be_known_are_told_beside_a_missing_column(names, known):
    with pytest.raises(ValueError, match=f"got {names.replace(',', ', ')}. Rename.*{known}"):
        read(f"{names}\n8,1,2\n", "f")


def test_decimal_units_are_said():
    assert "1000000 bytes" in read("size_mb,seconds,np\n4,5,2\n", "f")[1][0]


def test_two_columns_for_one_quantity_are_refused_unless_one_has_our_name():
    with pytest.raises(ValueError, match="of seconds, got 'time_us', 'latency_us'"):
        read("bytes,time_us,latency_us,np\n4,5,6,2\n", "f")
    table, _ = read("bytes,time_us,seconds,np\n4,5,6,2\n", "f")
    assert table.seconds.tolist() == [6] and table["time_us"].tolist() == [5]


@pytest.mark.parametrize("mark", ["\t", ";", ","])
def test_any_usual_delimiter_and_quotes(mark):
    text = mark.join(["nbytes", "seconds", "np", "note"]) + "\r\n"
    text += mark.join(["8", "0.5", "2", '"a, b; c"']) + "\r\n"
    table, problems = read(text, "f")
    assert table.note.tolist() == ["a, b; c"] and problems == []


@pytest.mark.parametrize("row", ["8;0,5;2", '8;"1.024,5";2'])
def test_decimal_commas_are_refused(row):
    with pytest.raises(ValueError, match="f: column 'seconds': .*, got '.*,5'"):
        read(f"nbytes;seconds;np\n{row}\n", "f")


def test_a_row_without_a_number_is_left_out_and_named_by_its_line():
    table, problems = read(TEXT + "\nall_reduce,2,1,many,1e-3,y\n", "f")
    assert len(table) == 1
    assert "line 5 left out: nbytes: " in problems[0] and "got 'many'" in problems[0]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", ""])
def test_a_time_that_is_none_is_left_out(seconds):
    table, problems = read(f"nbytes,seconds,np\n8,1,2\n8,{seconds},2\n", "f")
    assert len(table) == 1 and "line 3 left out: seconds: " in problems[0]


def test_a_row_of_no_bytes_stays():
    assert read("nbytes,seconds,np\n0,1,2\n", "f")[0].nbytes.tolist() == [0]


def test_a_line_with_too_few_fields_is_named():
    table, problems = read("nbytes,seconds,np\n8,1\n8,1,2\n", "f")
    assert len(table) == 1 and problems == ["line 2 left out: 2 fields, not 3"]


def test_collectives_are_called_by_our_names():
    text = "collective,bytes,seconds,np\nAllReduce,8,1,2\nncclReduceScatter,8,1,2\nx,8,1,2\n"
    assert read(text, "f")[0].op.tolist() == ["all_reduce", "reduce_scatter", "x"]


def test_no_usable_row_is_an_error():
    with pytest.raises(ValueError, match="f: .*row with numbers.*got none; line 2"):
        read("n_workers,nbytes,seconds\nx,y,z\n", "f")


def test_missing_columns_are_named_beside_those_found():
    with pytest.raises(ValueError, match=r"n_workers \(workers\), got nbytes, seconds\."):
        read("nbytes,seconds\n8,1\n", "f")


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


def test_durations_of_pandas_are_refused():
    frame = pd.DataFrame({"nbytes": [10], "n_workers": [2]})
    frame["seconds"] = pd.to_timedelta([1], unit="ms")
    with pytest.raises(ValueError, match=r"'seconds': .* timedelta.*\.dt\.total_seconds\(\)"):
        from_table(frame)


@pytest.mark.parametrize("thing", [None, {"nbytes": [1]}, pd.DataFrame()])
def test_what_is_no_table_is_refused(thing):
    with pytest.raises(ValueError, match="^table: "):
        from_table(thing)


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
