import pytest

from workbench.readers.plain import read, recognises

TEXT = "# a comment\nop,n_workers,n_nodes,nbytes,seconds,note\nall_reduce,2,1,1024,1e-3,x\n"


def test_a_table_with_the_columns_is_recognised_past_its_comments():
    assert recognises(TEXT.encode())
    assert recognises(b"nbytes,n_workers,seconds\n")
    assert not recognises(b"# size count type\n 1 2 float\n")


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


def test_missing_op_and_nodes_are_filled():
    table, _ = read("n_workers,nbytes,seconds\n4,8,0.5\n", "f")
    assert table.op.tolist() == ["all_reduce"] and table.n_nodes.isna().all()


def test_a_row_without_a_number_is_left_out_and_named():
    table, problems = read(TEXT + "all_reduce,2,1,many,1e-3,y\n", "f")
    assert len(table) == 1
    assert "row 2 of the table left out" in problems[0] and "many" in problems[0]


def test_no_usable_row_is_an_error():
    with pytest.raises(ValueError, match="f: no row with numbers"):
        read("n_workers,nbytes,seconds\nx,y,z\n", "f")
