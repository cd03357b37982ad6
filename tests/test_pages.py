"""Pages of notebooks: no kernel, no network, equations set, explorers that move, words for images.

Small notebooks stand for any; one of the checkout is made into a page too.
"""

import json
import os
import re
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from conftest import refusal
from driver import pdf_faults
from lab_server import watched
from run_notebooks import NOTEBOOKS

from workbench.figures import VENUES
from workbench.notebooks import parameters
from workbench.notebooks.__main__ import write_from
from workbench.notebooks.markup import rendered
from workbench.notebooks.pages import write_pages

ARTEFACTS = Path(__file__).parent / "artefacts"
QUESTION = "# Does *it* scale?\n\n**Answer: yes, $T_1 / T_n$ is 1.**\n\nMore of it."
PARAMETERS = "FIGURES = None\nNAME = 'a trace'\nN = 1"
DRAW = """
%matplotlib inline
import matplotlib.pyplot as plt
import pandas as pd
from workbench.figures import paper, save
with plt.rc_context(paper()):
    fig, ax = plt.subplots()
    ax.plot([0, N], [0, 2])
    ax.set(xlabel="size (MiB)", ylabel="time (ms)")
save(fig, "line", pd.DataFrame({"x": [0, N]}), FIGURES, caption="One line.")
"""
EXPLORE = """
from workbench.costs import Link, Ring
from workbench.explore import explore_timeline
from workbench.fusion import OneMessage
from workbench.timeline import Scenario
gradients = pd.DataFrame({"name": ["<b>a</b>"], "nbytes": [2**20], "ready_s": [0.01]})
explore_timeline(Scenario(gradients, 0.02, 0.01, 4, Ring(Link(1e-5, 1e-9)), OneMessage()))
"""
HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"


def written(folder: Path, *cells, name="own.ipynb") -> Path:
    """A notebook: texts that begin with # are Markdown, and the first code sets parameters."""
    made = [
        nbformat.v4.new_markdown_cell(text) if text[0] in "#$-" else nbformat.v4.new_code_cell(text)
        for text in cells
    ]
    code = [cell for cell in made if cell.cell_type == "code"]
    if code:
        code[0].metadata.tags = ["parameters"]
    nbformat.write(nbformat.v4.new_notebook(cells=made), folder / name)
    return folder / name


def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of pages of one notebook with an equation, a saved figure and an explorer."""
    folder = tmp_path_factory.mktemp("pages")
    equation = r"- $$C(S, n) = \tfrac{2(n-1)}{n}\,S\,\beta + \max_k \sum_{j \ge k} C_j$$"
    path = written(folder, QUESTION, PARAMETERS, equation, DRAW, EXPLORE)
    write_pages([path], folder / "out", {"N": 3})
    return folder / "out"


pytestmark = pytest.mark.slow


def test_equations_become_mathml_and_explorers_static_pages(made):
    page = soup(made / "own.html")
    (block,) = page.find_all("math", display="block")
    assert block.find("mfrac") and block.find("munder") and "β" in block.text
    assert "$$" not in page.text and "\\tfrac" not in page.text
    assert [math["display"] for math in page.find_all("math")].count("inline") == 1
    assert page.select(".wb-static input[type=range]")  # the explorer, in its static form
    assert "widget-view" not in str(page) and "jupyter.widget-state" not in str(page)


@pytest.mark.parametrize(
    "latex", ["$\\frac{1$", "$$\\begin{cases} 1 & x > 0 \\\\ 0 \\end{cases}$$", "costs $5 alone"]
)
def test_an_equation_that_cannot_be_set_is_shown_as_it_was_written(latex):
    assert BeautifulSoup(rendered(latex), "html.parser").text.strip()


def test_every_image_has_words_and_no_path_of_this_machine_shows(made):
    for name in ("own.html", "index.html"):
        images = soup(made / name).find_all("img")
        assert len(images) >= 2
        for image in images:
            assert len(image["alt"]) > 20 and "No description" not in image["alt"]
    page = (made / "own.html").read_text(encoding="utf-8")
    assert "size (MiB)" in page and "0 to 3" in soup(made / "own.html").find("img")["alt"]
    assert str(made) not in page and "FIGURES = None" in soup(made / "own.html").text


def test_the_gallery_shows_question_answer_and_saved_figure_with_its_files(made):
    index = soup(made / "index.html")
    (card,) = index.select(".cards > li")
    assert card.h2.text == "Does it scale?" and card.h2.a["href"] == "own.html"
    assert card.p.text.startswith("Answer: yes") and card.p.find("math")
    assert card.img["src"].startswith("figures/own/line.")
    (figure,) = index.select(".figures > li")
    assert figure.find("p").text == "One line."
    links = [link["href"] for link in figure.find_all("a")]
    assert {"figures/own/line.pdf", "figures/own/line.svg", "figures/own/line.csv",
            "figures/own/line.receipt.json"} <= set(links)  # fmt: skip
    assert all((made / link).is_file() for link in links)
    widths = {venue.width_in(1 + i) for venue in VENUES.values() for i in range(len(venue.widths))}
    assert pdf_faults(made / "figures" / "own" / "line.pdf", widths) == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1300])
def test_a_page_asks_for_nothing_elsewhere_and_is_no_wider_than_its_window(made, browser, width):
    problems, asked = [], set()
    ARTEFACTS.mkdir(exist_ok=True)
    page = watched(browser, problems)
    page.set_viewport_size({"width": width, "height": 1000})
    page.on("request", lambda request: asked.add(request.url))
    for name in ("own", "index"):
        page.goto((made / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.screenshot(path=str(ARTEFACTS / f"page-{name}-{width}.png"), full_page=True)
        assert page.locator("img").first.evaluate("image => image.naturalWidth") > 100
        if name == "own":  # its explorer moves
            picture = page.locator(".wb-static img")
            page.locator(".wb-static input").first.focus()
            seen = {picture.get_attribute("src")}
            for key in ("End", "Home"):
                page.keyboard.press(key)
                seen.add(picture.get_attribute("src"))
            assert len(seen) >= 2
    assert problems == []
    assert {re.match(r"\w+:", url)[0] for url in asked} <= {"file:", "data:"}


def test_the_gallery_leaves_out_what_an_earlier_run_saved(tmp_path):
    path = written(tmp_path, "FIGURES = None", "print(FIGURES)")
    old = tmp_path / "out" / "figures" / "own" / "old.receipt.json"
    old.parent.mkdir(parents=True)
    old.write_text(json.dumps({"figure": "old", "written": {"old.svg": ""}}))
    os.utime(old, (0, 0))
    assert not soup(write_pages([path], tmp_path / "out")).select(".figures")


def test_names_that_hold_markup_are_text_on_the_page(tmp_path):
    table = f"import pandas as pd\npd.DataFrame({{'name': [{HOSTILE!r}]}})"
    alone = f"print({HOSTILE!r})"
    draw = f"%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1], label={HOSTILE!r});"
    legend = "plt.legend()\nplt.xlabel(plt.gca().get_legend_handles_labels()[1][0]);"
    path = written(tmp_path, "# Is it text?", "A = 1", table, alone, f"{draw}\n{legend}",
                   f"raise_not = {HOSTILE!r}\nraise_not")  # fmt: skip
    write_pages([path], tmp_path / "out")
    page = soup(tmp_path / "out" / "own.html")
    assert not page.find_all("script") and not page.find_all("img", src="x")
    assert page.text.count(HOSTILE) >= 3
    assert HOSTILE in page.find("img")["alt"]


def test_a_notebook_with_neither_question_nor_figure_still_has_a_page(tmp_path):
    path = written(tmp_path, "print('only this')", name="a b.ipynb")
    index = write_pages([path], tmp_path / "out")
    (card,) = soup(index).select(".cards > li")
    assert card.h2.text == "a b" and card.h2.a["href"] == "a%20b.html" and not card.img
    assert "only this" in soup(tmp_path / "out" / "a b.html").text


def test_no_notebook_or_two_of_one_name_are_refused(tmp_path):
    refusal(lambda: write_pages([], tmp_path), "paths", "none")
    refusal(lambda: write_pages(["one/a.ipynb", "two/a.ipynb"], tmp_path), "paths", "a, a")


def test_the_command_line_takes_a_notebook_a_folder_and_parameters(tmp_path, capsys):
    out = tmp_path / "out"
    path = written(tmp_path, "# What?", "N = 1\nRUN = ''", "print(N + 1, RUN)")
    assert not write_from([str(path), "-o", str(out), "-p", "N", "41", "-p", "RUN", "my-run"])
    assert "42 my-run" in soup(out / "own.html").text
    assert capsys.readouterr().out == f"wrote {out / 'index.html'}\n"


def test_the_command_line_returns_why_it_failed(tmp_path, monkeypatch):
    path = written(tmp_path, "N = 1", "1 / (N - 1)")
    why = write_from([str(path), "-o", str(tmp_path / "out")])
    assert "1 / (N - 1)" in why and "ZeroDivisionError" in why
    assert "none.ipynb" in write_from([str(tmp_path / "none.ipynb"), "-o", str(tmp_path / "out")])
    monkeypatch.setattr(parameters, "REPOSITORY", tmp_path)
    assert write_from([]).startswith("notebooks: expected this folder")


@pytest.mark.all
def test_a_notebook_of_the_checkout_becomes_a_page_whose_receipts_name_its_recipe(tmp_path):
    path = NOTEBOOKS / "01-where-the-time-goes.ipynb"
    index = write_pages([path], tmp_path)
    page = soup(tmp_path / f"{path.stem}.html")
    assert page.h1.text.startswith("Where does the time go?")
    assert not [image for image in page.find_all("img") if len(image["alt"]) < 20]
    assert not page.select(".output_stderr")
    (receipt,) = (tmp_path / "figures" / path.stem).glob("*.receipt.json")
    assert json.loads(receipt.read_text())["recipe"]["notebook"] == path.stem
    assert len(soup(index).select(".figures > li")) == 1
