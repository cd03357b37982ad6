"""A figure made again from its receipt: what moved is reported, and only notebooks are run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from conftest import refusal

from workbench.notebooks import rebuild
from workbench.notebooks.execution import execute
from workbench.notebooks.rebuilding import REBUILT, _compared, _saved

PARAMETERS = """
from pathlib import Path
import matplotlib.pyplot as plt
import pandas as pd
from workbench.figures import paper, save
from workbench.notebooks import defaults, settle
TABLE, TIMES, NAME, FIGURES = Path("table.csv"), 1.0, "one", None
DEFAULTS = defaults(globals())
"""
DRAW = """
RECIPE = settle("own", DEFAULTS, globals())
table = pd.read_csv(TABLE, comment="#").assign(y=lambda t: TIMES * t["x"], name=NAME)
with plt.rc_context(paper()):
    fig, ax = plt.subplots()
    ax.plot(table["x"], table["y"], label="curve")
save(fig, "line", table, FIGURES, inputs=[TABLE], recipe=RECIPE)
"""
TABLE = "# source: by hand\nx\n1.0\n2.0\n4.0\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a notebook, its data, and the figure that it saved with TIMES of 3."""
    place = tmp_path_factory.mktemp("own")
    cells = [nbformat.v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}),
             nbformat.v4.new_code_cell(DRAW)]  # fmt: skip
    nbformat.write(nbformat.v4.new_notebook(cells=cells), place / "own.ipynb")
    (place / "table.csv").write_text(TABLE)
    figures = str(place / "figures")
    execute(place / "own.ipynb", parameters={"TIMES": 3.0, "FIGURES": figures})
    return place


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    """The same in a folder of the test's own, in which one stands."""
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def moves(table: pd.DataFrame) -> dict:
    return {row.name: (row.moved, row.detail) for row in table.itertuples(index=False)}


RECEIPT = Path("figures", "line.receipt.json")


@pytest.mark.slow
def test_what_did_not_change_has_not_moved(place):
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    table = rebuild(RECEIPT, notebooks=place)
    assert list(table) == list(REBUILT) and not table["moved"].any()
    assert table["name"].tolist() == ["table.csv", "x", "y", "name", "line.pdf", "line.svg"]
    numbers = table.set_index("name").loc[["x", "y"]]
    assert numbers["rows"].tolist() == [3, 3]
    assert numbers["absolute"].tolist() == [0, 0] == numbers["relative"].tolist()
    assert set(moves(table)["line.pdf"][1].split()) & {"same"}
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_another_input_moves_the_numbers_by_what_it_differs(place):
    (place / "table.csv").write_text(TABLE.replace("4.0", "5.0"))
    table = rebuild(RECEIPT, notebooks=place)
    assert moves(table) == {
        "table.csv": (True, "another content"),
        "x": (True, "1 rows moved"),
        "y": (True, "1 rows moved"),
        "name": (False, ""),
        "line.pdf": (True, "another drawing"),
        "line.svg": (True, "another drawing"),
    }
    numbers = table.set_index("name")
    assert numbers["absolute"][["x", "y"]].tolist() == [1.0, 3.0]  # TIMES is 3
    assert numbers["relative"]["y"] == pytest.approx(3 / 15)


@pytest.mark.slow
def test_a_path_that_moved_may_be_given_and_content_alone_is_compared_by_hashes(place, tmp_path):
    (place / "table.csv").rename(tmp_path / "elsewhere.csv")
    receipt = json.loads(RECEIPT.read_text())
    table = rebuild(receipt, notebooks=place, TABLE=tmp_path / "elsewhere.csv")
    assert moves(table)["line.csv"] == (False, "same bytes")
    assert moves(table)["table.csv"] == (True, "not read now")
    assert moves(table)["elsewhere.csv"] == (True, "not read before")


@pytest.mark.slow
def test_a_text_from_a_receipt_is_a_text_and_never_code(place):
    receipt = json.loads(RECEIPT.read_text())
    hostile = '"; open("hacked", "w")\n' + "'''\\"
    receipt["recipe"]["parameters"]["NAME"] = hostile
    RECEIPT.write_text(json.dumps(receipt))
    table = rebuild(RECEIPT, notebooks=place)
    assert moves(table)["name"] == (True, "3 other texts")
    assert not list(place.rglob("hacked"))


# --- refused before anything is executed ----------------------------------------------------------


def changed(**changes) -> dict:
    return json.loads(RECEIPT.read_text()) | changes


def recipe(notebook="own", parameters=None, **more) -> dict:
    return {"recipe": {"notebook": notebook, "parameters": parameters or {}} | more}


@pytest.mark.parametrize(
    ("changes", "argument", "value"),
    [
        ({"recipe": None}, "line", "none"),
        *((recipe(name), "notebook", name) for name in ("../own", "/tmp/own", "own.ipynb", "")),
        *(
            (recipe(parameters={name: 1}), "recipe", name)
            for name in ("A = 1\nimport os; B", "x", "import", "A B", "__X", 3)
        ),
        # what save() never writes
        ({"figure": 3}, "figure", 3),
        ({"figure": "../../up"}, "written", "../../up.pdf"),
        ({"inputs": ["a"]}, "inputs", "list"),
        ({"written": None}, "written", None),
        ({"written": {"/etc/x.pdf": "0"}}, "written", "/etc/x.pdf"),
        ({"recipe": "own"}, "recipe", "own"),
        ({"recipe": {"notebook": "own"}}, "parameters", None),
        (recipe(["own"]), "notebook", "list"),
        (recipe(paths="A"), "paths", "A"),
        (recipe(paths=["A"]), "A", None),
        (recipe(paths=[[]]), "paths", "list"),
    ],
)
def test_a_receipt_that_save_never_wrote_is_refused(place, changes, argument, value):
    value = repr(value)[1:-1] if isinstance(value, str) else value
    refusal(lambda: rebuild(changed(**changes), notebooks=place), argument, value)


@pytest.mark.parametrize(
    ("chosen", "argument"),
    [
        ({"tolerance": float("nan")}, "tolerance"),
        ({"tolerance": "1e-9"}, "tolerance"),
        ({"notebooks": 3}, "notebooks"),
        ({"TABLE": 3}, "TABLE"),
        ({"TIMES": 2}, "TIMES"),
    ],
)
def test_arguments_are_checked_before_anything_is_run(place, chosen, argument):
    refusal(lambda: rebuild(RECEIPT, **{"notebooks": place} | chosen), argument)


def test_the_default_folder_is_that_of_the_checkout(place):
    assert "00-start-here" in refusal(lambda: rebuild(changed()), "notebook", "own")


@pytest.mark.parametrize(
    ("changes", "chosen", "missing"),
    [
        ({"inputs": {"data/gone.csv": "0" * 64}}, {}, "data/gone.csv"),
        ({"inputs": {"x" * 5000 + "/a": "0"}}, {}, "inputs"),
        ({}, {"TABLE": "nowhere.csv"}, "TABLE: expected nowhere.csv"),
        # a path of a receipt stays within the folder
        (recipe(parameters={"TABLE": "/etc/hostname"}, paths=["TABLE"]), {}, "TABLE: .*hostname"),
        (recipe(parameters={"TABLE": "../../hostname"}, paths=["TABLE"]), {}, "TABLE: .*hostname"),
    ],
)
def test_a_missing_file_is_named(place, changes, chosen, missing):
    with pytest.raises(FileNotFoundError, match=missing):
        rebuild(changed(**changes), notebooks=place, **chosen)


def test_what_is_not_a_receipt_is_refused(place):
    Path("deep.json").write_text("[" * 100_000)
    for name in ("none.json", "x" * 5000):
        with pytest.raises(FileNotFoundError, match=name):
            rebuild(name)
    refusal(lambda: rebuild(place / "table.csv"), "table.csv")
    refusal(lambda: rebuild("deep.json"), "deep.json")
    refusal(lambda: rebuild({"figure": "line"}), "receipt")


def test_what_the_notebook_cannot_give_is_named(place):
    refusal(lambda: _saved("circle", place / "figures", place / "own.ipynb"), "figure", "circle")
    (place / "own.ipynb").write_text('{"cells": 3')
    refusal(lambda: rebuild(RECEIPT, notebooks=place), "own.ipynb")


# --- columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "absolute", "relative", "moved"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0, 0, False),
        ([1.0, 2.0], [1.0, 2.0 + 1e-12], 1e-12, 5e-13, False),
        ([1.0, 2.0], [1.0, 2.5], 0.5, 0.2, True),
        ([0.0, -1.0], [0.1, -1.0], 0.1, 1.0, True),
        ([1.0, None], [1.0, None], 0, 0, False),
        ([1, 2], [1, 4], 2, 0.5, True),
    ],
)
def test_columns_of_numbers_are_compared_by_their_largest_difference(
    before, after, absolute, relative, moved
):
    row = dict(zip(REBUILT, _compared("x", pd.Series(before), pd.Series(after), 1e-9), strict=True))
    assert row["absolute"] == pytest.approx(absolute, rel=1e-3)
    assert row["relative"] == pytest.approx(relative, rel=1e-3)
    assert row["moved"] is moved


def test_gaps_and_rows_that_came_or_went_have_moved():
    before = pd.Series([1.0, 2.0])
    assert _compared("x", before, pd.Series([1.0, None]), 1e-9)[5:] == (True, "1 rows moved")
    assert _compared("x", before, pd.Series([1.0]), 1e-9)[5:] == (True, "2 rows before")


def test_figures_are_imported_without_what_executes_notebooks():
    code = "import sys, workbench.figures; print({'nbclient', 'papermill'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


@pytest.mark.slow
def test_a_notebook_that_fails_is_reported_in_one_sentence(place):
    receipt = json.loads(RECEIPT.read_text())
    receipt["recipe"]["parameters"]["TIMES"] = "often"
    text = refusal(lambda: rebuild(receipt, notebooks=place), "own", "often")
    assert "ValueError: TIMES: exp" in text and "\n" not in text
