"""Every notebook runs from another folder, saves its figures, and stays readable."""

import re
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from papermill.translators import PythonTranslator
from run_notebooks import NOTEBOOKS

from workbench.validation.published import CAPTIONS

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
EACH = pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
ALWAYS = {".pdf", ".svg", ".png", ".csv", ".json"}


def cells(path: Path, kind: str) -> list:
    notebook = nbformat.read(path, as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == kind]


def code(path: Path) -> str:
    return "\n".join(cell.source for cell in cells(path, "code"))


def code_lines(source: str) -> list[str]:
    return [line for line in source.splitlines() if line.strip()]


def complaints(done) -> list[str]:
    """Return what a reader of an executed notebook must not see."""
    found = [done.shown("stderr")]
    found += re.findall(r"NaN|Empty DataFrame|nan ", done.said)
    page = BeautifulSoup(done.shown("text/html"), "html.parser")
    return [*filter(None, found)] + [td.text for td in page("td") if td.text.endswith("...")]


@pytest.mark.slow
@EACH
def test_it_runs_from_another_folder_and_saves_its_figures(path, executed):
    done = executed(path.stem)
    assert complaints(done) == []
    assert {file.suffix for file in done.figures.iterdir()} >= ALWAYS


@pytest.mark.slow
def test_every_figure_of_a_paper_has_its_caption_and_the_claims_their_latex(executed):
    done = executed("06-paper-figures")
    assert "No run: the shipped models stand in." in done.said
    for name in CAPTIONS:
        for suffix in ("pdf", "svg", "csv", "receipt.json", "caption.txt"):
            assert (done.figures / f"{name}.{suffix}").is_file(), f"{name}.{suffix}"
    assert r"\toprule" in done.read("claims.tex")


@EACH
def test_its_parameters_stand_in_one_cell_and_are_settled_in_the_next(path):
    found = cells(path, "code")
    (at,) = [i for i, cell in enumerate(found) if "parameters" in cell.metadata.get("tags", ())]
    lines = found[at].source.splitlines()
    assert lines[-1] == "DEFAULTS = defaults(globals())"
    assert all(re.match(r"[\w, ]+ = |[ )\]}]", line) for line in lines), "one name per line"
    settled = f'RECIPE = settle("{path.stem}", DEFAULTS, globals())'
    assert found[at + 1].source.splitlines()[0] == settled
    assert code(path).count("DEFAULTS.") == 0, "it never compares with the defaults"
    known = {parameter.name for parameter in PythonTranslator.inspect(found[at])}  # by papermill
    assert known == set(re.findall(r"^([A-Z_]+)", found[at].source, re.M))
    assert {"RUN", "SWEEP", "VENUE", "FIGURES"} <= known


@pytest.mark.parametrize("path", PATHS[:3], ids=[path.stem for path in PATHS[:3]])
def test_every_figure_of_it_is_drawn_for_the_venue(path):
    calls = re.findall(r"\bpaper\(([^)]*)", code(path))
    assert calls and all(call.startswith("VENUE") for call in calls)


@EACH
def test_it_is_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.outputs or cell.execution_count for cell in cells(path, "code"))
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata


@EACH
def test_it_opens_with_a_question_its_answer_and_how_to_open_your_own_run(path):
    first = cells(path, "markdown")[0].source
    assert re.match(r"# .+\?$", first.splitlines()[0]), "the title is a question"
    assert "Answer" in first and "*Inputs*" in first and "*Outputs*" in first
    assert re.search(r"\byour own\b", first, re.I)


@EACH
def test_it_is_short_argues_more_than_it_computes_and_defines_nothing(path):
    code, texts = cells(path, "code"), cells(path, "markdown")
    n_lines = sum(len(code_lines(cell.source)) for cell in code)
    assert len(code) + len(texts) <= 40 and n_lines <= 120
    assert max(len(cell.source.splitlines()) for cell in code) <= 10
    assert sum(len(cell.source.split()) for cell in texts) >= 5 * n_lines
    for cell in code:
        assert not re.search(r"^\s*(def|class|async def|try|except)\b", cell.source, re.M)


def test_no_two_notebooks_save_a_figure_under_one_name():
    saved = r'\b(?:save|keep)\(fig, "([\w-]+)"'
    names = [name for path in PATHS for name in re.findall(saved, code(path))]
    assert len(names) >= 18 and len(names) == len(set(names)), sorted(names)
