"""Notebooks in JupyterLab and Voila in a real browser: run, each control moved, figures saved."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from driver import Driven
from lab_server import lab, open_notebook, run_all, voila, watched
from playwright.sync_api import expect
from run_notebooks import NOTEBOOKS, edited
from test_notebooks import PATHS, code

N_EXPLORERS = {p.stem: len(re.findall(r"\bexplore_\w+\(", code(p))) for p in PATHS}
QUICKEST = "03-deriving-osf"
OTHERS = [name for name in N_EXPLORERS if name != QUICKEST]
STATIC = nbformat.v4.new_code_cell("_.static({'step': None})")  # of the explorer shown last
SAVE = """async () => {
  const commands = window.jupyterapp.commands;
  await commands.execute('@jupyter-widgets/jupyterlab-manager:saveWidgetState');
  await commands.execute('docmanager:save');
}"""
NAME = """each => each.getAttribute('aria-label') || each.labels?.[0]?.textContent
  || each.innerText"""
# Voila's own: its page shares modules with extensions that it does not load. All works without.
KNOWN = "RUNTIME-012"

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Notebooks that save into figures/, and a static copy of the explorer in the quickest."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "notebooks").mkdir()
    for name in N_EXPLORERS:
        figures = {"FIGURES": str(folder / "figures" / name)}
        notebook = edited(NOTEBOOKS / f"{name}.ipynb", figures)
        notebook.cells += [STATIC] * (name == QUICKEST)
        nbformat.write(notebook, folder / "notebooks" / f"{name}.ipynb")
    return folder


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    with lab(folder / "notebooks", tmp_path_factory.mktemp("lab")) as served:
        yield served


@pytest.fixture(scope="module")
def notebook(request, browser, server, folder):
    """A notebook in a page of its own, all cells run, with what the page complained of."""
    name, problems = request.param, []
    page = watched(browser, problems, permissions=["clipboard-read", "clipboard-write"])
    open_notebook(page, *server, f"{name}.ipynb")
    assert run_all(page), "a cell failed"
    explorers = page.locator(".wb-explorer")
    expect(explorers).to_have_count(N_EXPLORERS[name], timeout=200_000)
    yield SimpleNamespace(
        page=page, problems=problems, explorers=explorers, name=name,
        figures=folder / "figures" / name, path=folder / "notebooks" / f"{name}.ipynb",
    )  # fmt: skip
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.close()


@pytest.fixture
def explorer(notebook):
    return notebook.explorers.first


def said(explorer):
    return explorer.locator(".wb-status .widget-html-content")


def handle(explorer, name: str):
    return explorer.locator(f".wb-{name} .noUi-handle")


# --- one notebook, in one page --------------------------------------------------------------------

ON_QUICKEST = pytest.mark.parametrize("notebook", [QUICKEST], indirect=True)


@ON_QUICKEST
def test_the_picture_and_every_slider_have_a_name_for_those_who_do_not_see(explorer):
    shown = re.compile("Time since backward began .* in rows: worker; link")
    expect(explorer.locator("img.wb-image")).to_have_attribute("alt", shown)
    for each in explorer.locator(".noUi-handle").all():
        assert each.get_attribute("aria-label") and each.get_attribute("title")


@ON_QUICKEST
def test_every_control_and_button_is_reached_with_tab(notebook, explorer):
    seen = explorer.locator(".noUi-handle:visible, select:visible, button:visible").all()
    explorer.locator(".noUi-handle").first.focus()
    found = [explorer.page.evaluate(f"({NAME})(document.activeElement)")]
    for _ in range(2 * len(seen)):
        notebook.page.keyboard.press("Tab")
        found.append(explorer.page.evaluate(f"({NAME})(document.activeElement)"))
    names = [each.evaluate(NAME).strip() for each in seen]
    assert len(names) >= 9 and [each.strip() for each in found if each.strip() in names] == names


@ON_QUICKEST
def test_end_goes_to_the_last_message_of_another_policy(notebook, explorer):
    explorer.locator(".wb-fusion select").select_option("per tensor")
    expect(said(explorer)).to_contain_text("161 messages")
    handle(explorer, "step").focus()
    for key, message in (("Home", 0), ("End", 160)):  # beyond the five messages of before
        notebook.page.keyboard.press(key)
        expect(explorer.locator(".wb-below")).to_contain_text(f"message {message},")
    expect(explorer.locator(".wb-code pre")).not_to_be_visible()
    assert "fusion=PerTensor()" in Driven(explorer).copy()


@ON_QUICKEST
def test_of_quick_moves_the_last_is_seen_and_reset_brings_the_start_back(notebook, explorer):
    handle(explorer, "workers").focus()
    for key in ["ArrowRight"] * 7 + ["ArrowLeft"] * 3:  # the sixth reaches the end, 1024
        notebook.page.keyboard.press(key)
    expect(said(explorer)).to_contain_text("at 128 workers")
    expect(explorer.locator(".wb-workers .widget-readout")).to_have_text("128")
    explorer.locator("button.wb-reset").click()
    expect(said(explorer)).to_contain_text("at 16 workers")
    expect(explorer.locator(".wb-fusion select")).to_have_value("DDP buckets")
    expect(explorer.locator(".wb-code pre")).not_to_contain_text("replace")


@ON_QUICKEST
def test_a_static_copy_moves_and_figures_and_the_notebook_are_saved(notebook, explorer):
    copy = notebook.page.locator(".wb-static")
    copy.locator("input").focus()
    notebook.page.keyboard.press("Home")
    expect(copy.locator(".wb-told")).to_contain_text("message 0,")
    driven = Driven(explorer)
    driven.save(notebook.figures)
    assert driven.faults == []
    explorer.locator(".wb-fusion select").select_option("per tensor")
    explorer.locator("button.wb-reset").click()
    expect(said(explorer)).not_to_contain_text("saved")
    notebook.page.evaluate(SAVE)
    notebook.page.wait_for_timeout(1000)
    saved = nbformat.read(notebook.path, 4).metadata["widgets"]
    models = saved["application/vnd.jupyter.widget-state+json"]["state"].values()
    [image] = [each for each in models if each["model_name"] == "ImageModel"]
    assert len(image["buffers"][0]["data"]) > 10_000
    assert notebook.problems == []


# --- for make test-all ----------------------------------------------------------------------------


def drive(explorer, figures: Path) -> list[str]:
    driven = Driven(explorer)
    driven.move_all()
    driven.reset()
    driven.copy()
    driven.save(figures)
    return driven.faults


@pytest.mark.all
@pytest.mark.parametrize("notebook", [QUICKEST, *OTHERS], indirect=True)
def test_every_control_of_every_explorer_moves_to_both_ends_and_back(notebook, executed):
    for number in range(notebook.explorers.count()):
        explorer = notebook.explorers.nth(number)
        assert drive(explorer, notebook.figures) == [], f"explorer {number} of {notebook.name}"
    assert notebook.problems == []
    if notebook.name == "06-paper-figures":
        assert_same_bytes(notebook.figures, executed(notebook.name).figures)


def assert_same_bytes(folder: Path, other: Path):
    written = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(written) > 40
    commits = [
        {json.dumps(json.loads(path.read_text())["git"]) for path in each.glob("*.receipt.json")}
        for each in (folder, other)
    ]
    if commits[0] == commits[1]:  # else the checkout changed between the two runs
        assert {name for name in written if (other / name).read_bytes() != written[name]} == set()


@pytest.mark.all
@pytest.mark.parametrize("name", [QUICKEST, "00-start-here"])
def test_voila_shows_a_notebook_with_its_widgets_and_asks_for_nothing_elsewhere(
    name, shown_by_voila, browser, folder
):
    problems, asked = [], set()
    page = watched(browser, problems, permissions=["clipboard-read", "clipboard-write"])
    page.on("request", lambda request: asked.add(request.url))
    page.goto(f"{shown_by_voila}/voila/render/{name}.ipynb", timeout=600_000)
    explorers = page.locator(".wb-explorer")
    expect(explorers).to_have_count(N_EXPLORERS[name], timeout=600_000)
    for number in range(explorers.count()):
        expect(explorers.nth(number).locator("img.wb-image")).to_be_visible()
        expect(explorers.nth(number).locator(".wb-status")).not_to_contain_text("not done")
    assert name != QUICKEST or drive(explorers.first, folder / "figures" / name) == []
    page.close()
    assert [problem for problem in problems if KNOWN not in problem] == []
    assert [u for u in asked if not u.startswith((shown_by_voila, "data:", "blob:"))] == []


@pytest.fixture(scope="module")
def shown_by_voila(folder, tmp_path_factory):
    with voila(folder / "notebooks", tmp_path_factory.mktemp("voila")) as address:
        yield address
