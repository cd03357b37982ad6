"""A figure made again from its receipt: what moved is told, and nothing but notebooks is run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest

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


def told(table: pd.DataFrame) -> dict:
    return {row.name: (row.moved, row.detail) for row in table.itertuples(index=False)}


RECEIPT = Path("figures", "line.receipt.json")


@pytest.mark.slow
def test_what_did_not_change_is_told_not_to_have_moved(place):
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    table = rebuild(RECEIPT, notebooks=place)
    assert list(table) == list(REBUILT) and not table["moved"].any()
    assert table["name"].tolist() == ["table.csv", "x", "y", "name", "line.pdf", "line.svg"]
    numbers = table.set_index("name").loc[["x", "y"]]
    assert numbers["rows"].tolist() == [3, 3]
    assert numbers["absolute"].tolist() == [0, 0] == numbers["relative"].tolist()
    assert set(told(table)["line.pdf"][1].split()) & {"same"}
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_another_input_moves_the_numbers_by_what_it_differs(place):
    (place / "table.csv").write_text(TABLE.replace("4.0", "5.0"))
    table = rebuild(RECEIPT, notebooks=place)
    assert told(table) == {
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
def test_a_path_that_moved_may_be_said_and_content_alone_is_compared_by_hashes(place, tmp_path):
    (place / "table.csv").rename(tmp_path / "elsewhere.csv")
    receipt = json.loads(RECEIPT.read_text())
    table = rebuild(receipt, notebooks=place, TABLE=tmp_path / "elsewhere.csv")
    assert told(table)["line.csv"] == (False, "same bytes")
    assert told(table)["table.csv"] == (True, "not read now")
    assert told(table)["elsewhere.csv"] == (True, "not read before")


@pytest.mark.slow
def test_a_text_from_a_receipt_is_a_text_and_never_code(place):
    receipt = json.loads(RECEIPT.read_text())
    hostile = '"; open("hacked", "w")\n' + "'''\\"
    receipt["recipe"]["parameters"]["NAME"] = hostile
    RECEIPT.write_text(json.dumps(receipt))
    table = rebuild(RECEIPT, notebooks=place)
    assert told(table)["name"] == (True, "3 other texts")
    assert not list(place.rglob("hacked"))


def test_a_figure_that_the_notebook_does_not_save_is_named_with_those_it_does(place):
    with pytest.raises(ValueError, match="own does not save a figure circle; it saves line"):
        _saved("circle", place / "figures", place / "own.ipynb")


# --- refused before anything is executed ----------------------------------------------------------


def changed(**changes) -> dict:
    return json.loads(RECEIPT.read_text()) | changes


def test_a_figure_without_a_recipe_says_what_to_do(place):
    with pytest.raises(ValueError, match="line was saved without a recipe.*recipe=RECIPE"):
        rebuild(changed(recipe=None), notebooks=place)


@pytest.mark.parametrize("name", ["../own", "/tmp/own", "own.ipynb", "other", ""])
def test_only_notebooks_of_the_folder_are_run(place, name):
    recipe = {"notebook": name, "parameters": {}}
    with pytest.raises(ValueError, match=r"no notebook .* in copy/; it has own"):
        rebuild(changed(recipe=recipe), notebooks=place)


def test_the_default_folder_is_that_of_the_checkout(place):
    with pytest.raises(ValueError, match=r"no notebook 'own' in notebooks/; it has 00-start-here"):
        rebuild(changed())


@pytest.mark.parametrize("name", ["A = 1\nimport os; B", "x", "import", "A B", "__X"])
def test_the_name_of_a_parameter_is_never_code(place, name):
    recipe = {"notebook": "own", "parameters": {name: 1}}
    with pytest.raises(ValueError, match="is no name of a parameter"):
        rebuild(changed(recipe=recipe), notebooks=place)


def test_a_missing_input_is_named(place):
    with pytest.raises(FileNotFoundError, match="made from data/gone.csv, which is not there"):
        rebuild(changed(inputs={"data/gone.csv": "0" * 64}), notebooks=place)


def test_a_path_that_is_not_there_may_be_said(place):
    (place / "table.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"TABLE: table.csv is not there.*TABLE=\.\.\."):
        rebuild(RECEIPT, notebooks=place)
    with pytest.raises(FileNotFoundError, match="TABLE: nowhere.csv is not there"):
        rebuild(RECEIPT, notebooks=place, TABLE="nowhere.csv")


@pytest.mark.parametrize("path", ["/etc/hostname", "../../../etc/hostname"])
def test_a_path_of_a_receipt_stays_within_the_folder(place, path):
    parameters = {"TABLE": path, "TIMES": 1.0}
    recipe = {"notebook": "own", "parameters": parameters, "paths": ["TABLE"]}
    with pytest.raises(FileNotFoundError, match="TABLE: .*hostname is not there"):
        rebuild(changed(recipe=recipe), notebooks=place)


def test_only_paths_may_be_said_anew(place):
    with pytest.raises(ValueError, match="TIMES is no path among the parameters; there is TABLE"):
        rebuild(RECEIPT, notebooks=place, TIMES=2)


def test_what_is_no_receipt_is_refused(place):
    with pytest.raises(FileNotFoundError, match=r"none.json: no such file; pass a .receipt.json"):
        rebuild("none.json")
    with pytest.raises(ValueError, match="table.csv: is no receipt"):
        rebuild(place / "table.csv")
    with pytest.raises(ValueError, match="expected a receipt with figure, inputs, recipe, written"):
        rebuild({"figure": "line"})


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


def test_a_gap_where_a_number_was_has_moved():
    row = _compared("x", pd.Series([1.0, 2.0]), pd.Series([1.0, None]), 1e-9)
    assert row[5] and row[6] == "1 rows moved"


def test_columns_of_another_length_have_moved():
    row = _compared("x", pd.Series([1.0, 2.0]), pd.Series([1.0]), 1e-9)
    assert row[5] and row[6] == "2 rows before"


def test_figures_are_imported_without_what_executes_notebooks():
    code = "import sys, workbench.figures; print({'nbclient', 'papermill'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


# --- receipts that save() never wrote -------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"figure": 3}, "figure: expected a text"),
        ({"figure": "../../up"}, "'../../up.pdf' is no plain file name"),
        ({"inputs": ["a"]}, "inputs: expected names"),
        ({"written": None}, "written: expected names"),
        ({"written": {"/etc/x.pdf": "0"}}, "'/etc/x.pdf' is no plain file name"),
        ({"recipe": "own"}, "recipe: expected names"),
        ({"recipe": {"notebook": "own"}}, "parameters: expected names"),
        ({"recipe": {"notebook": ["own"], "parameters": {}}}, "notebook: expected a text"),
        ({"recipe": {"notebook": "own", "parameters": {}, "paths": "A"}}, "paths: expected a list"),
        ({"recipe": {"notebook": "own", "parameters": {}, "paths": ["A"]}}, "A: expected a text"),
        ({"recipe": {"notebook": "own", "parameters": {}, "paths": [[]]}}, "paths: expected a te"),
        ({"recipe": {"notebook": "own", "parameters": {3: 1}}}, "3 is no name of a parameter"),
        ({"inputs": {"x" * 5000 + "/a": "0"}}, "which is not there"),
    ],
)
def test_what_save_never_writes_is_named_before_anything_is_run(place, changes, message):
    with pytest.raises((ValueError, FileNotFoundError), match=f"rebuild: .*{message}"):
        rebuild(changed(**changes), notebooks=place)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"tolerance": float("nan")}, "tolerance: expected 0 or more"),
        ({"tolerance": "1e-9"}, "tolerance: expected 0 or more"),
        ({"notebooks": 3}, "notebooks: expected a folder, got 3"),
        ({"TABLE": 3}, "TABLE: expected a path, got 3"),
    ],
)
def test_arguments_are_checked_before_anything_is_run(place, chosen, message):
    with pytest.raises(ValueError, match=f"rebuild: {message}"):
        rebuild(RECEIPT, **{"notebooks": place} | chosen)


def test_a_receipt_that_no_reader_ends_is_no_receipt(place):
    Path("deep.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"deep.json: is no receipt"):
        rebuild("deep.json")
    with pytest.raises(FileNotFoundError, match="no such file"):
        rebuild("x" * 5000)


@pytest.mark.slow
def test_a_notebook_that_fails_is_told_in_one_sentence(place):
    receipt = json.loads(RECEIPT.read_text())
    receipt["recipe"]["parameters"]["TIMES"] = "often"
    with pytest.raises(
        ValueError, match="own cannot be run again: ValueError: TIMES: exp"
    ) as error:
        rebuild(receipt, notebooks=place)
    assert "\n" not in str(error.value)


def test_what_is_no_notebook_is_named(place):
    (place / "own.ipynb").write_text('{"cells": 3')
    with pytest.raises(ValueError, match="own.ipynb: is no notebook"):
        rebuild(RECEIPT, notebooks=place)
