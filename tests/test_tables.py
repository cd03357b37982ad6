import pandas as pd
import pytest

from workbench.tables import GRADIENTS, check


def test_a_complete_table_passes_unchanged():
    table = pd.DataFrame({"name": ["a"], "nbytes": [4], "ready_s": [0.0], "more": [1]})
    assert check(table, GRADIENTS, "gradients") is table


def test_the_missing_column_is_named_with_its_unit_and_what_was_found():
    table = pd.DataFrame({"name": ["a"], "size": [4], "ready_s": [0.0]})
    with pytest.raises(ValueError, match=r"gradients: missing column nbytes \(bytes.*Found: name"):
        check(table, GRADIENTS, "gradients")


def test_another_type_is_named():
    with pytest.raises(ValueError, match="expected a DataFrame, got dict"):
        check({}, GRADIENTS, "gradients")


def test_a_column_that_is_there_twice_is_named():
    table = pd.DataFrame([["a", 4, 0.0, 1]], columns=["name", "nbytes", "ready_s", "nbytes"])
    with pytest.raises(ValueError, match="gradients: column nbytes is there more than once"):
        check(table, GRADIENTS, "gradients")
