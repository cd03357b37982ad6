"""Notebooks are executed with other parameters, and those that cannot be set are refused."""

import nbformat
import pytest
from conftest import refusal

from workbench.notebooks.execution import execute


def written(folder, *sources, tagged=None):
    """A notebook of code cells, the one tagged as that of its parameters among them."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    if tagged is not None:
        cells[tagged].metadata.tags = ["parameters"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "own.ipynb")
    return folder / "own.ipynb"


@pytest.mark.slow
def test_parameters_take_the_place_of_those_of_the_notebook(tmp_path):
    path = written(tmp_path, "N = 1\nRUN = 'a'", "print(N, RUN)", tagged=0)
    done = execute(path, parameters={"N": 2, "RUN": tmp_path})
    assert done.cells[-1].outputs[0].text == f"2 {tmp_path}\n"
    assert len(nbformat.read(path, 4).cells) == 2, "the file stays as it is"


def test_a_notebook_without_a_cell_of_parameters_cannot_be_given_any(tmp_path):
    path = written(tmp_path, "N = 1", "print(N)")
    assert "'N'" in refusal(lambda: execute(path, parameters={"N": 2}), "own.ipynb")


@pytest.mark.slow
def test_what_is_asked_after_the_last_cell_is_answered_by_the_same_kernel(tmp_path):
    path = written(tmp_path, "N = 6 * FACTOR\nN", tagged=None)
    asked = lambda done: f"print({done.cells[0].outputs[0].data['text/plain']} + N)"  # noqa: E731
    done = execute(path, before="FACTOR = 7", after=asked)
    assert done.metadata.answers[0].text == "84\n"
    assert [cell.source for cell in done.cells] == ["N = 6 * FACTOR\nN"]
    assert done.cells[0].execution_count == 1
