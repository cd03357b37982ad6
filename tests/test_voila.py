"""The notebooks with widgets in Voila, in a real browser: all appear, and one is driven through."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from driver import Driven
from lab_server import chromium, voila, watched
from playwright.sync_api import expect
from run_notebooks import NOTEBOOKS, saving_to
from test_notebooks import cells

ARTEFACTS = Path(__file__).parent / "artefacts"
# Voila's own: its page shares modules with extensions that it does not load. All works without.
KNOWN = "RUNTIME-012"


def n_explorers(path: Path) -> int:
    return len(re.findall(r"\bexplore_\w+\(", "\n".join(cells(path, "code"))))


WITH_WIDGETS = [path.name for path in sorted(NOTEBOOKS.glob("*.ipynb")) if n_explorers(path)]
DRIVEN = "03-deriving-osf.ipynb"  # the quickest to run

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("voila")
    (root := folder / "notebooks").mkdir()
    (state := folder / "state").mkdir()
    for name in WITH_WIDGETS:
        saving_to(NOTEBOOKS / name, folder / "figures" / Path(name).stem, root / name)
    with voila(root, state) as address, chromium() as browser:
        yield SimpleNamespace(address=address, browser=browser, figures=folder / "figures")


@pytest.mark.parametrize("name", WITH_WIDGETS)
def test_a_notebook_appears_with_its_widgets_and_asks_for_nothing_elsewhere(server, name):
    problems, asked = [], set()
    page = watched(server.browser, problems, permissions=["clipboard-read", "clipboard-write"])
    page.on("request", lambda request: asked.add(request.url))
    page.goto(f"{server.address}/voila/render/{name}", timeout=240_000)
    explorers = page.locator(".wb-explorer")
    expect(explorers).to_have_count(n_explorers(NOTEBOOKS / name), timeout=60_000)
    for number in range(explorers.count()):
        expect(explorers.nth(number).locator("img.wb-image")).to_be_visible()
        expect(explorers.nth(number).locator(".wb-status")).not_to_contain_text("not done")
    if name == DRIVEN:
        drive(explorers.first, server.figures / Path(name).stem)
    ARTEFACTS.mkdir(exist_ok=True)
    page.screenshot(path=str(ARTEFACTS / f"voila-{Path(name).stem}.png"))
    page.close()
    assert [problem for problem in problems if KNOWN not in problem] == []
    assert {url for url in asked if not url.startswith((server.address, "data:", "blob:"))} == set()


def drive(explorer, figures: Path):
    driven = Driven(explorer)
    driven.move_all()
    driven.reset()
    driven.copy()
    driven.save(figures)
    assert driven.faults == []
