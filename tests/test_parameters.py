"""Parameters of notebooks: unknown names are errors, values keep their kind, recipes are plain."""

from pathlib import Path

import pytest
from conftest import ROOT, refusal

from workbench.notebooks import defaults, parameters, settle, shipped_data


def cell(**injected):
    """A namespace after the cell of parameters, and with what a tool put after it."""
    space = {"RUN": Path("runs/a"), "N_WORKERS": 32, "SWEEP": None, "POLICY": object(), "load": len}
    space["DEFAULTS"] = defaults(space)
    return space | injected


def settled(**injected):
    space = cell(**injected)
    return settle("00-start-here", space["DEFAULTS"], space), space


def test_the_recipe_names_the_notebook_and_every_plain_parameter():
    recipe, _ = settled()
    assert recipe == {
        "notebook": "00-start-here",
        "parameters": {"RUN": Path("runs/a"), "N_WORKERS": 32, "SWEEP": None},
    }


def test_a_parameter_put_in_by_a_tool_is_taken():
    recipe, space = settled(RUN="else/b", N_WORKERS=8, SWEEP="log.txt")
    assert space["RUN"] == Path("else/b")
    assert recipe["parameters"] == {"RUN": Path("else/b"), "N_WORKERS": 8, "SWEEP": "log.txt"}


@pytest.mark.parametrize("name", ["RUNS", "run"])
def test_an_unknown_parameter_is_an_error_that_names_the_known_ones(name):
    text = refusal(lambda: settled(**{name: "else/b"}), "00-start-here", name)
    assert "mean RUN?" in text
    assert "RUN, N_WORKERS, SWEEP, POLICY" in text


@pytest.mark.parametrize(("name", "value"), [("N_WORKERS", "8"), ("N_WORKERS", True), ("RUN", 3)])
def test_a_value_of_another_kind_is_an_error(name, value):
    refusal(lambda: settled(**{name: value}), name, value)


def test_names_that_later_cells_made_are_no_parameters_when_a_cell_runs_again():
    _, space = settled()
    space["table"] = []
    assert settle("00-start-here", space["DEFAULTS"], space)["parameters"]["N_WORKERS"] == 32


def test_the_folder_of_figures_is_no_part_of_a_recipe():
    space = {"FIGURES": None, "RUN": "a"}
    known = defaults(space)
    assert settle("x", known, space | {"FIGURES": "/elsewhere"})["parameters"] == {"RUN": "a"}


def test_a_text_that_names_what_is_there_is_a_path_in_the_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("myrun", "resnet50", "ieee"):
        (tmp_path / name).mkdir()
    (tmp_path / "sizes.csv").write_text("name,nbytes\n")
    space = {"RUN": None, "ALONE": None, "SIZES": None, "OP": None, "VENUE": "ieee"}
    space["DEFAULTS"] = defaults(space)
    given = {"RUN": "myrun", "ALONE": "nowhere", "SIZES": "resnet50", "OP": ""}
    recipe = settle("x", space["DEFAULTS"], space | given)
    expected = {"RUN": Path("myrun"), "ALONE": "nowhere", "SIZES": "resnet50", "OP": ""}
    assert recipe["parameters"] == expected | {"VENUE": "ieee"}
    recipe = settle("x", space["DEFAULTS"], space | {"SIZES": "sizes.csv", "RUN": "a" * 9000})
    assert recipe["parameters"]["SIZES"] == Path("sizes.csv")
    assert recipe["parameters"]["RUN"] == "a" * 9000


def test_shipped_data_needs_a_checkout(tmp_path, monkeypatch):
    assert shipped_data() == ROOT / "data"
    (tmp_path / "data").mkdir()  # of another package
    monkeypatch.setattr(parameters, "REPOSITORY", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"data: expected .* Clone the repository, or use"):
        shipped_data()
