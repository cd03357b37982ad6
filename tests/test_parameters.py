"""Parameters of notebooks: unknown names are errors, values keep their kind, recipes are plain."""

from pathlib import Path

import pytest

from workbench.notebooks import defaults, settle


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


@pytest.mark.parametrize("name", ["RUNS", "run", "runs"])
def test_an_unknown_parameter_is_an_error_that_names_the_known_ones(name):
    with pytest.raises(ValueError, match=f"unknown parameter {name}; did you mean RUN") as error:
        settled(**{name: "else/b"})
    assert "It has RUN, N_WORKERS, SWEEP, POLICY" in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("N_WORKERS", "8", "a number such as 32"),
        ("N_WORKERS", True, "a number such as 32"),
        ("RUN", 3, "a text such as 'runs/a'"),
    ],
)
def test_a_value_of_another_nature_is_an_error(name, value, expected):
    with pytest.raises(ValueError, match=f"{name}: expected {expected}"):
        settled(**{name: value})


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
