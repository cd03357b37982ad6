"""Every notebook runs from another folder, writes what it promises, and stays readable."""

import re
from pathlib import Path

import nbformat
import pytest
from run_notebooks import NOTEBOOKS, execute

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
EACH = pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
DEFAULT = "FIGURES = None"


def saving_to(path: Path, figures: Path, copy: Path) -> Path:
    """A copy of a notebook whose FIGURES parameter names another folder."""
    notebook = nbformat.read(path, as_version=4)
    found = [cell for cell in notebook.cells if DEFAULT in cell.source]
    assert len(found) == 1, f"{path.name}: one parameter cell with {DEFAULT}"
    found[0].source = found[0].source.replace(DEFAULT, f"FIGURES = {str(figures)!r}")
    nbformat.write(notebook, copy)
    return copy


def cells(path: Path, kind: str) -> list[str]:
    notebook = nbformat.read(path, as_version=4)
    return [cell.source for cell in notebook.cells if cell.cell_type == kind]


def code_lines(source: str) -> list[str]:
    return [line for line in source.splitlines() if line.strip()]


def foreign_warnings(done) -> list[str]:
    """Warnings of other packages that a page would show; our own are of what is measured."""
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    errors = "".join(o["text"] for o in outputs if o.get("name") == "stderr")
    return re.findall(r"\w*(?<!\bUser)Warning: .*", errors)


def test_there_are_notebooks():
    assert PATHS and PATHS[0].name == "00-start-here.ipynb"


@pytest.mark.slow
@EACH
def test_it_runs_from_another_folder_and_saves_its_figures(path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    copy = saving_to(path, tmp_path / "figures", tmp_path / path.name)
    done = execute(copy, cwd=tmp_path / "elsewhere", timeout=120)
    assert foreign_warnings(done) == []
    written = {file.suffix for file in (tmp_path / "figures").iterdir()}
    assert written == {".pdf", ".svg", ".csv", ".json"}
    assert not list((tmp_path / "elsewhere").iterdir()), "a notebook leaves nothing where it runs"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["torchrec-4rank-half-hidden", "torchrec-4rank-straggler", "old-format-resnet50"]
)
def test_where_the_time_goes_takes_a_run_of_gpus_by_its_path_alone(name, shared, tmp_path):
    path = NOTEBOOKS / "01-where-the-time-goes.ipynb"
    notebook = nbformat.read(saving_to(path, tmp_path / "figures", tmp_path / path.name), 4)
    (cell,) = [cell for cell in notebook.cells if cell.source.count("\nRUN = ") == 1]
    run = shared / "traces" / "kineto" / name
    cell.source = re.sub(r"\nRUN = .*", f"\nRUN = {str(run)!r}", cell.source)
    nbformat.write(notebook, tmp_path / path.name)
    done = execute(tmp_path / path.name, timeout=120)
    (shown,) = [cell for cell in done.cells if cell.source.startswith("run = load_run(RUN)")]
    assert f"run: {name}" in shown.outputs[-1]["data"]["text/plain"]
    assert (tmp_path / "figures" / "run-timeline.pdf").exists()


@EACH
def test_it_is_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata


@EACH
def test_it_opens_with_a_question_and_its_answer(path):
    first = cells(path, "markdown")[0]
    assert re.match(r"# .+\?$", first.splitlines()[0]), "the title is a question"
    assert "Answer" in first and "*Inputs*" in first and "*Outputs*" in first


@EACH
def test_it_stays_within_the_limits_of_length(path):
    code = cells(path, "code")
    assert len(code) + len(cells(path, "markdown")) <= 40
    assert max(len(source.splitlines()) for source in code) <= 10
    assert sum(len(code_lines(source)) for source in code) <= 120


@EACH
def test_it_argues_more_than_it_computes(path):
    n_words = sum(len(source.split()) for source in cells(path, "markdown"))
    n_lines = sum(len(code_lines(source)) for source in cells(path, "code"))
    assert n_words >= 5 * n_lines


@EACH
def test_it_defines_no_function_or_class(path):
    for source in cells(path, "code"):
        assert not re.search(r"^\s*(def|class|async def)\b", source, re.M), source
