"""Every notebook in JupyterLab in a real browser: run, each control moved, figures saved."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from driver import Driven
from lab_server import chromium, lab, open_notebook, run_all, watched
from playwright.sync_api import expect
from run_notebooks import NOTEBOOKS, saving_to
from test_notebooks import cells

from workbench.notebooks.execution import execute

ARTEFACTS = Path(__file__).parent / "artefacts"
NAMES = [path.name for path in sorted(NOTEBOOKS.glob("*.ipynb"))]

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One JupyterLab for all notebooks, each of which saves into a folder of its own."""
    folder = tmp_path_factory.mktemp("lab")
    (root := folder / "notebooks").mkdir()
    (state := folder / "state").mkdir()
    for name in NAMES:
        saving_to(NOTEBOOKS / name, folder / "figures" / Path(name).stem, root / name)
    with lab(root, state) as (address, token):
        yield SimpleNamespace(address=address, token=token, figures=folder / "figures")


@pytest.fixture(scope="module")
def notebook(request, browser, server):
    """A notebook in a page of its own, all cells run, with what the page complained of."""
    problems: list[str] = []
    page = watched(browser, problems, permissions=["clipboard-read", "clipboard-write"])
    open_notebook(page, server.address, server.token, request.param)
    assert run_all(page), "a cell failed"
    name = Path(request.param).stem
    explorers = page.locator(".wb-explorer")
    source = "\n".join(cells(NOTEBOOKS / request.param, "code"))
    n_explorers = len(re.findall(r"\bexplore_\w+\(", source))
    expect(explorers).to_have_count(n_explorers, timeout=20_000)
    yield SimpleNamespace(
        page=page, problems=problems, explorers=explorers, name=name,
        figures=server.figures / name,
    )  # fmt: skip
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.close()


def keep(notebook, number: int, what: str):
    """Keep a picture of an explorer, for eyes."""
    ARTEFACTS.mkdir(exist_ok=True)
    path = ARTEFACTS / f"{notebook.name}-{number}-{what}.png"
    notebook.explorers.nth(number).screenshot(path=str(path))


@pytest.mark.parametrize("notebook", NAMES, indirect=True)
def test_every_control_of_every_explorer_moves_to_both_ends_and_back(notebook):
    for number in range(notebook.explorers.count()):
        driven = Driven(notebook.explorers.nth(number))
        keep(notebook, number, "start")
        driven.move_all()
        keep(notebook, number, "ends")
        driven.reset()
        driven.copy()
        driven.save(notebook.figures)
        keep(notebook, number, "saved")
        assert driven.faults == [], f"explorer {number} of {notebook.name}"


@pytest.mark.parametrize("notebook", ["00-start-here.ipynb"], indirect=True)
def test_a_step_of_the_keyboard_is_a_twentieth_of_a_decade(notebook):
    explorer = notebook.explorers.first
    explorer.get_by_role("button", name="Reset").click()
    explorer.locator(".wb-bandwidth .noUi-handle").focus()
    status = explorer.locator(".wb-status .widget-html-content")
    expect(status).to_contain_text("43.5 Gbit/s")
    for _ in range(10):
        notebook.page.keyboard.press("ArrowLeft")
    expect(status).to_contain_text("13.7 Gbit/s")  # by the square root of ten


@pytest.mark.parametrize("notebook", ["03-deriving-osf.ipynb"], indirect=True)
def test_the_end_key_reaches_the_last_message_of_another_policy(notebook):
    explorer = notebook.explorers.first
    explorer.locator(".wb-fusion select").select_option("per tensor")
    status = explorer.locator(".wb-status .widget-html-content")
    expect(status).to_contain_text("161 messages")
    explorer.locator(".wb-step .noUi-handle").focus()
    notebook.page.keyboard.press("End")  # beyond the five messages of before
    expect(explorer.locator(".wb-below")).to_contain_text("Of 161 messages so far")


@pytest.mark.parametrize("notebook", NAMES, indirect=True)
def test_the_page_reports_no_error(notebook):
    assert notebook.problems == []


@pytest.mark.parametrize("notebook", ["06-paper-figures.ipynb"], indirect=True)
def test_the_figures_of_a_paper_are_the_same_to_the_last_byte_without_a_browser(notebook, tmp_path):
    execute(NOTEBOOKS / f"{notebook.name}.ipynb", parameters={"FIGURES": tmp_path})
    written = {path.name: path.read_bytes() for path in notebook.figures.iterdir()}
    assert len(written) > 40
    if _commits(tmp_path) != _commits(notebook.figures):
        pytest.skip("the checkout changed between the two runs, which receipts tell")
    for name, content in written.items():
        assert (tmp_path / name).read_bytes() == content, name


def _commits(folder: Path) -> set[str]:
    receipts = folder.glob("*.receipt.json")
    return {json.dumps(json.loads(path.read_text())["git"]) for path in receipts}
