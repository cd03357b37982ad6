from pathlib import Path

import pandas as pd
import pytest
from conftest import refusal

from workbench.base.checks import checked
from workbench.base.tables import EVENTS, GRADIENTS, LEDGER, check, table_of
from workbench.traces import Run

TABLE = pd.DataFrame({"name": ["a"], "nbytes": [4], "ready_s": [0.0], "more": [1]})


def test_a_complete_table_passes_unchanged():
    assert check(TABLE, GRADIENTS, "gradients") is TABLE
    assert checked(given=table_of(GRADIENTS))(lambda given: given)(TABLE) is TABLE


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ({}, "dict"),
        (TABLE.rename(columns={"nbytes": "size"}), f"nbytes ({GRADIENTS['nbytes']}). Found: name"),
        (pd.DataFrame(), "no column"),
        (pd.DataFrame([[1] * 13]), "11, ..."),
        (pd.concat([TABLE, TABLE["nbytes"]], axis=1), "column nbytes"),
        (pd.DataFrame(columns=list(EVENTS)), "pass gradients(events)"),
    ],
)
def test_a_refused_table_is_described(table, found):
    refusal(lambda: check(table, GRADIENTS, "gradients"), "gradients", found)
    refusal(lambda: checked(x=table_of(GRADIENTS))(lambda x: x)(table), "x")


@pytest.mark.parametrize(
    ("what", "of_run", "of_path"),
    [
        ("events", "run.events", "load_run(path)"),
        ("gradients", "gradients(run)", "gradients(load_run(path))"),
        ("measurements", "all_reduces(run)", "read_measurements(path)"),
    ],
)
def test_the_call_that_makes_the_table_is_named_for_a_run_and_for_a_path(what, of_run, of_path):
    run = Run("a run", {}, pd.DataFrame(columns=list(EVENTS)), pd.DataFrame(columns=list(LEDGER)))
    for given, call in ((run, of_run), ("a.json", of_path), (Path("a.json"), of_path)):
        assert refusal(lambda given=given: check(given, GRADIENTS, what), what).endswith(call)
