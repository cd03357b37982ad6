"""What every explorer has, in a real JupyterLab: names of controls, code, keys, saved pictures."""

import json
import re

import nbformat
import pytest
from lab_server import chromium, lab, open_notebook, run_all
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CELLS = (
    """from test_frame import scenario
from workbench.explore import explore_steps
explorer = explore_steps(scenario())
explorer""",
    "explorer.static({'step': None})",
)
SAVE = """async () => {
  const commands = window.jupyterapp.commands;
  await commands.execute('@jupyter-widgets/jupyterlab-manager:saveWidgetState');
  await commands.execute('docmanager:save');
}"""


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def seen(browser, tmp_path_factory):
    """A page with an explorer and its static copy, what it complained of, and the notebook."""
    folder = tmp_path_factory.mktemp("lab")
    (root := folder / "notebooks").mkdir()
    (state := folder / "state").mkdir()
    notebook = nbformat.v4.new_notebook()
    tests = json.dumps(str(__file__).rsplit("/", 1)[0])
    path = f"import sys; sys.path.insert(0, {tests})\n"
    notebook.cells = [nbformat.v4.new_code_cell(path * (i == 0) + t) for i, t in enumerate(CELLS)]
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, root / "frame.ipynb")
    with lab(root, state) as (address, token):
        context = browser.new_context(viewport={"width": 1200, "height": 1500})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page, problems = context.new_page(), []
        page.on("pageerror", lambda error: problems.append(str(error)))
        open_notebook(page, address, token, "frame.ipynb")
        assert run_all(page), "a cell failed"
        yield page, problems, root / "frame.ipynb"
        context.close()


@pytest.fixture
def explorer(seen):
    return seen[0].locator(".wb-explorer")


def said(explorer):
    return explorer.locator(".wb-status .widget-html-content")


def test_the_picture_and_every_slider_have_a_name_for_those_who_do_not_see(explorer):
    shown = re.compile("Time since backward began .* in rows: worker; link")
    expect(explorer.locator("img.wb-image")).to_have_attribute("alt", shown)
    for handle in explorer.locator(".noUi-handle").all():
        assert handle.get_attribute("aria-label") and handle.get_attribute("title")


def test_every_control_and_button_is_reached_with_tab(seen, explorer):
    page = seen[0]
    explorer.locator(".noUi-handle").first.focus()
    found = []
    for _ in range(13):
        page.keyboard.press("Tab")
        found.append(
            page.evaluate("""() => {
          const now = document.activeElement;
          return now.getAttribute('aria-label') || now.labels?.[0]?.textContent || now.innerText;
        }""")
        )
    told = [each.strip() for each in found if "to be typed" not in each]
    assert told == ["bandwidth (Gbit/s)", "latency (us a hop)", "bucket size (MiB)", "workers",
                    "fusion", "Save figure", "Reset", "Copy as code"]  # fmt: skip


def test_end_goes_to_the_last_message_of_another_policy(seen, explorer):
    explorer.locator(".wb-fusion select").select_option("per tensor")
    expect(said(explorer)).to_contain_text("10 messages")
    step = explorer.locator(".wb-step .noUi-handle")
    step.focus()
    seen[0].keyboard.press("Home")
    expect(explorer.locator(".wb-below")).to_contain_text("message 0,")
    seen[0].keyboard.press("End")
    expect(explorer.locator(".wb-below")).to_contain_text("message 9,")
    expect(step).to_have_attribute("aria-label", "up to message")


def test_one_click_copies_the_code_and_shows_it(seen, explorer):
    code = explorer.locator(".wb-code pre")
    expect(code).not_to_be_visible()
    explorer.locator(".wb-copy button").click()
    expect(code).to_be_visible()
    expect(explorer.locator(".wb-copy button")).to_contain_text("Copied")
    text = seen[0].evaluate("navigator.clipboard.readText()")
    assert text == code.text_content() and "replace(scenario, fusion=PerTensor())" in text


def test_of_quick_moves_the_last_is_seen(seen, explorer):
    explorer.locator(".wb-workers .noUi-handle").focus()
    for key in ["ArrowRight"] * 7 + ["ArrowLeft"] * 3:
        seen[0].keyboard.press(key)
    expect(said(explorer)).to_contain_text("at 128 workers")
    expect(explorer.locator(".wb-workers .widget-readout")).to_have_text("128")


def test_reset_brings_the_start_back(explorer):
    explorer.locator("button.wb-reset").click()
    expect(said(explorer)).to_contain_text("at 8 workers")
    expect(explorer.locator(".wb-fusion select")).to_have_value("DDP buckets")
    expect(explorer.locator(".wb-code pre")).not_to_contain_text("replace")


def test_the_static_copy_moves_by_its_arrow_keys(seen):
    copy = seen[0].locator(".wb-static")
    copy.locator("input").focus()
    seen[0].keyboard.press("Home")
    expect(copy.locator(".wb-told")).to_contain_text("message 0,")


def test_the_saved_notebook_holds_the_picture(seen):
    page, problems, path = seen
    page.evaluate(SAVE)
    page.wait_for_timeout(1000)
    saved = nbformat.read(path, 4).metadata["widgets"]
    models = saved["application/vnd.jupyter.widget-state+json"]["state"].values()
    [image] = [each for each in models if each["model_name"] == "ImageModel"]
    assert len(image["buffers"][0]["data"]) > 10_000
    assert problems == []
