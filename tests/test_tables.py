import re
from pathlib import Path

import pandas as pd
import pytest

from workbench.base.tables import EVENTS, GRADIENTS, LEDGER, check
from workbench.traces import Run


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


@pytest.mark.parametrize(
    ("what", "of_run", "of_path"),
    [
        ("events", "run.events", "load_run(path)"),
        ("gradients", "gradients(run)", "gradients(load_run(path))"),
        ("measurements", "all_reduces(run)", "read_measurements(path)"),
    ],
)
def test_of_a_run_or_a_path_the_call_that_makes_the_table_is_told(what, of_run, of_path):
    run = Run("a run", {}, pd.DataFrame(columns=list(EVENTS)), pd.DataFrame(columns=list(LEDGER)))
    for given, call in ((run, of_run), ("a.json", of_path), (Path("a.json"), of_path)):
        with pytest.raises(ValueError, match=f"{what}: expected.*Pass {re.escape(call)}$"):
            check(given, GRADIENTS, what)


def test_events_in_the_place_of_gradients_are_recognised():
    with pytest.raises(ValueError, match=r"These are EVENTS: pass gradients\(events\)"):
        check(pd.DataFrame(columns=list(EVENTS)), GRADIENTS, "gradients")


def test_a_column_that_is_there_twice_is_named():
    table = pd.DataFrame([["a", 4, 0.0, 1]], columns=["name", "nbytes", "ready_s", "nbytes"])
    with pytest.raises(ValueError, match="gradients: column nbytes is there more than once"):
        check(table, GRADIENTS, "gradients")
