"""Notebooks with widgets in JupyterLab in a real browser: run, move controls, save the figure."""

import json
import os
from contextlib import contextmanager
from pathlib import Path

import pytest
from lab_server import lab, open_notebook, run_all
from playwright.sync_api import expect, sync_playwright
from run_notebooks import NOTEBOOKS
from test_notebooks import saving_to

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update",
         "--disable-dev-shm-usage"]  # fmt: skip
ARTEFACTS = Path(__file__).parent / "artefacts"

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM.exists():
        reason = f"{CHROMIUM} is missing: apt-get install chromium"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield browser
        browser.close()


class Notebook:
    """A notebook whose cells have all run, with what the page complained of."""

    def __init__(self, page, problems: list, figures: Path):
        self.page, self.problems, self.figures = page, problems, figures

    def explorer(self, image: int):
        """The nth explorer of the page: 0 is the timeline, 1 the scaling figure."""
        return self.page.locator(".widget-vbox:has(> .wb-bandwidth)").nth(image)

    def keep(self, name: str) -> None:
        ARTEFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=str(ARTEFACTS / f"{name}.png"))


@contextmanager
def opened(browser, folder: Path, name: str):
    """Yield a notebook in a page of its own, all cells run."""
    (root := folder / "notebooks").mkdir()
    (state := folder / "state").mkdir()
    saving_to(NOTEBOOKS / name, folder / "figures", root / name)
    problems = []
    with lab(root, state) as (address, token):
        page = browser.new_page(viewport={"width": 1300, "height": 1300})
        page.on("pageerror", lambda error: problems.append(f"page: {error}"))
        page.on("requestfailed", lambda request: problems.append(f"request: {request.url}"))
        page.on("console", lambda line: line.type == "error" and problems.append(line.text))
        open_notebook(page, address, token, name)
        assert run_all(page), "a cell failed"
        yield Notebook(page, problems, folder / "figures")
        page.close()


@pytest.fixture(scope="module")
def notebook(browser, tmp_path_factory):
    with opened(browser, tmp_path_factory.mktemp("lab"), "00-start-here.ipynb") as notebook:
        yield notebook


def test_every_figure_and_both_explorers_appear(notebook):
    figures = notebook.page.locator(".jp-OutputArea-output img[src^='data:image/png']")
    expect(figures).to_have_count(4)
    for number in (0, 1):
        explorer = notebook.explorer(number)
        status = explorer.locator(".wb-status .widget-html-content")
        # the fit itself: showing the sliders has not moved them
        expect(status).to_contain_text("0.971 at 32 workers")
        expect(status).to_contain_text("43.5 Gbit/s, 6.72 us a hop")
        expect(explorer.locator("img.wb-image")).to_be_visible()


@pytest.mark.parametrize(("number", "name"), [(0, "timeline"), (1, "scaling")])
def test_a_slider_moved_by_keyboard_redraws_the_picture(notebook, number, name):
    explorer = notebook.explorer(number)
    explorer.scroll_into_view_if_needed()
    status, picture = explorer.locator(".wb-status .widget-html-content"), explorer.locator("img")
    numbers, before = status.inner_text(), picture.screenshot()
    notebook.keep(f"{name}-start")
    explorer.locator(".wb-bandwidth .noUi-handle").focus()
    for _ in range(10):
        notebook.page.keyboard.press("ArrowLeft")
    # ten steps of a twentieth of a decade: 43.5 Gbit/s by the square root of ten
    expect(status).to_contain_text("13.7 Gbit/s, 6.72 us a hop")
    assert status.inner_text() != numbers and picture.screenshot() != before
    notebook.keep(f"{name}-explored")


def test_the_pictures_keep_their_shape(notebook):
    for number in (0, 1):
        box = notebook.explorer(number).locator("img").bounding_box()
        # the paper's column, 3.33 in by the golden ratio, at 200 pixels an inch
        assert (box["width"], box["height"]) == pytest.approx((666, 412), abs=1)


@pytest.mark.parametrize(("number", "name"), [(0, "timeline-explored"), (1, "scaling-explored")])
def test_the_save_button_writes_the_figure(notebook, number, name):
    explorer = notebook.explorer(number)
    explorer.locator("button.wb-export").click()
    expect(explorer.locator(".wb-status .widget-html-content")).to_contain_text(f"{name}.pdf")
    assert (notebook.figures / f"{name}.pdf").read_bytes().startswith(b"%PDF-")
    receipt = json.loads((notebook.figures / f"{name}.receipt.json").read_text())
    assert set(receipt["written"]) == {f"{name}.{suffix}" for suffix in ("pdf", "svg", "csv")}


def test_the_page_reports_no_error(notebook):
    assert notebook.problems == []


# --- where the time goes --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spent(browser, tmp_path_factory):
    name = "01-where-the-time-goes.ipynb"
    with opened(browser, tmp_path_factory.mktemp("lab"), name) as notebook:
        yield notebook


@pytest.fixture
def seen(spent):
    """The explorer of the run, in sight."""
    explorer = spent.page.locator(".widget-vbox:has(> .wb-rank)")
    explorer.scroll_into_view_if_needed()
    return explorer


def test_the_run_starts_as_its_first_iteration(spent, seen):
    figures = spent.page.locator(".jp-OutputArea-output img[src^='data:image/png']")
    expect(figures).to_have_count(2)
    expect(said(seen)).to_contain_text("rank 0, iteration 2: 0 s to 694 ms of 694 ms")
    expect(seen.locator(".wb-below")).to_contain_text("ConvolutionBackward0")
    spent.keep("run-start")


def test_another_rank_and_iteration_bring_their_own_threads(spent, seen):
    before = seen.locator("img").screenshot()
    seen.locator(".wb-rank select").select_option("1")
    seen.locator(".wb-iteration select").select_option("4")
    expect(said(seen)).to_contain_text("rank 1, iteration 4: 0 s to 717 ms of 717 ms")
    assert seen.locator("img").screenshot() != before
    seen.locator(".wb-stream select").select_option("thread 15322")
    expect(said(seen)).to_contain_text("thread 15322")
    expect(seen.locator(".wb-below")).to_contain_text("gloo:all_reduce")
    spent.keep("run-thread")


def test_the_time_shown_is_narrowed_by_keyboard(spent, seen):
    seen.locator(".wb-shown .noUi-handle").first.focus()
    for _ in range(100):  # of five steps each, half of all
        spent.page.keyboard.press("PageUp")
    expect(said(seen)).to_contain_text("359 ms to 717 ms of 717 ms")
    spent.keep("run-narrowed")


def test_the_run_explored_is_saved(spent, seen):
    seen.locator("button.wb-export").click()
    expect(said(seen)).to_contain_text("run-explored.pdf")
    assert (spent.figures / "run-explored.pdf").read_bytes().startswith(b"%PDF-")


def test_the_page_of_the_run_reports_no_error(spent):
    assert spent.problems == []


# --- the price of a link --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prices(browser, tmp_path_factory):
    with opened(browser, tmp_path_factory.mktemp("lab"), "02-price-of-a-link.ipynb") as notebook:
        yield notebook


@pytest.fixture
def fits(prices):
    """The explorer of fits, in sight."""
    explorer = prices.page.locator(".widget-vbox:has(> .wb-kind)")
    explorer.scroll_into_view_if_needed()
    return explorer


def said(explorer):
    return explorer.locator(".wb-status .widget-html-content")


def test_the_fit_starts_as_the_line_of_the_notebook(prices, fits):
    figures = prices.page.locator(".jp-OutputArea-output img[src^='data:image/png']")
    expect(figures).to_have_count(5)
    expect(said(fits)).to_contain_text("27 points of NCCL, 32 GPUs, 1 set aside: mean error 36.8 %")
    expect(fits.locator(".wb-below")).to_contain_text("1/beta")
    prices.keep("fit-start")


def test_another_kind_changes_picture_card_and_numbers(prices, fits):
    before = fits.locator("img").screenshot()
    fits.locator(".wb-kind select").select_option("ring in regimes")
    expect(said(fits)).to_contain_text("mean error 2.83 %")
    expect(fits.locator(".wb-below")).to_contain_text("break_1")
    assert fits.locator("img").screenshot() != before
    prices.keep("fit-regimes")


def test_a_range_moved_by_keyboard_sets_small_messages_aside(prices, fits):
    fits.locator(".wb-sizes .noUi-handle").first.focus()
    for _ in range(18):  # from 4 B to 1 MiB by doubling
        prices.page.keyboard.press("ArrowRight")
    expect(said(fits)).to_contain_text("10 points of NCCL, 32 GPUs, 18 set aside")
    expect(fits.locator(".wb-below")).to_contain_text("1.00 MiB to 512 MiB")
    prices.keep("fit-range")


def test_other_data_bring_their_own_sizes(prices, fits):
    fits.locator(".wb-kind select").select_option("ring")
    fits.locator(".wb-data select").select_option("MPI, 8 nodes")
    expect(said(fits)).to_contain_text("798 points of MPI, 8 nodes")
    expect(fits.locator(".wb-sizes .widget-readout")).to_contain_text("1 MiB")
    prices.keep("fit-other-data")


def test_the_fit_explored_is_saved(prices, fits):
    fits.locator("button.wb-export").click()
    expect(said(fits)).to_contain_text("price-explored.pdf")
    assert (prices.figures / "price-explored.pdf").read_bytes().startswith(b"%PDF-")


def test_the_page_of_prices_reports_no_error(prices):
    assert prices.problems == []


# --- deriving OSF ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def derived(browser, tmp_path_factory):
    with opened(browser, tmp_path_factory.mktemp("lab"), "03-deriving-osf.ipynb") as notebook:
        yield notebook


@pytest.fixture
def stepper(derived):
    """The explorer of steps, in sight."""
    explorer = derived.page.locator(".widget-vbox:has(> .wb-step)")
    explorer.scroll_into_view_if_needed()
    return explorer


def test_the_stepper_starts_as_the_figure_above_it(derived, stepper):
    figures = derived.page.locator(".jp-OutputArea-output img[src^='data:image/png']")
    expect(figures).to_have_count(2)
    expect(said(stepper)).to_contain_text("scaling factor 0.952 at 16 workers")
    below = stepper.locator(".wb-below")
    expect(below).to_contain_text("message 4, 9.27 MiB: starts at 64.8 ms, as soon as its last")
    derived.keep("steps-start")


def test_a_step_back_by_keyboard_shows_the_message_before(derived, stepper):
    before = stepper.locator("img").screenshot()
    stepper.locator(".wb-step .noUi-handle").focus()
    for _ in range(3):
        derived.page.keyboard.press("ArrowLeft")
    below = stepper.locator(".wb-below")
    expect(below).to_contain_text("message 1, 30.0 MiB: starts at 6.10 ms, when message 0 is over")
    expect(below).to_contain_text("Of 2 messages so far started: 1 when its last gradient is ready")
    assert stepper.locator("img").screenshot() != before
    derived.keep("steps-back")


def test_another_policy_brings_its_own_steps(derived, stepper):
    stepper.locator(".wb-fusion select").select_option("per tensor")
    expect(said(stepper)).to_contain_text("161 messages")
    expect(stepper.locator(".wb-below")).to_contain_text("message 1, 7.81 MiB")
    stepper.locator(".wb-step .noUi-handle").focus()
    for _ in range(10):  # beyond the five messages of before
        derived.page.keyboard.press("ArrowRight")
    expect(stepper.locator(".wb-below")).to_contain_text("Of 12 messages so far")
    derived.keep("steps-per-tensor")


def test_the_step_seen_is_saved(derived, stepper):
    stepper.locator("button.wb-export").click()
    expect(said(stepper)).to_contain_text("osf-step-explored.pdf")
    assert (derived.figures / "osf-step-explored.pdf").read_bytes().startswith(b"%PDF-")


def test_the_page_of_steps_reports_no_error(derived):
    assert derived.problems == []


# --- what would help ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def advised(browser, tmp_path_factory):
    with opened(browser, tmp_path_factory.mktemp("lab"), "05-what-would-help.ipynb") as notebook:
        yield notebook


@pytest.fixture
def fusions(advised):
    """The explorer of fusion, in sight."""
    explorer = advised.page.locator(".widget-vbox:has(> .wb-policy)")
    explorer.scroll_into_view_if_needed()
    return explorer


@pytest.fixture
def options(advised):
    """The explorer of optimisations, in sight."""
    explorer = advised.page.locator(".widget-vbox:has(> .wb-option-0)")
    explorer.scroll_into_view_if_needed()
    return explorer


def test_both_explorers_of_advice_start_as_the_notebook_tells(advised, fusions, options):
    expect(said(fusions)).to_contain_text("scaling factor 0.776 at 32 workers")
    expect(said(fusions)).to_contain_text("iteration 165 ms; 1 message")
    expect(fusions.locator(".wb-paste")).to_contain_text("FixedBuffer(buffer_bytes=134217728")
    expect(said(options)).to_contain_text("times the baseline: scaling factor 0.553 to 0.97")
    expect(options.locator(".wb-below")).to_contain_text("gradients were float32")
    advised.keep("advice-start")


def test_another_fusion_brings_its_picture_and_its_text_to_paste(advised, fusions):
    before = fusions.locator("img").screenshot()
    fusions.locator(".wb-policy select").select_option("Horovod")
    expect(said(fusions)).to_contain_text("no headroom")
    paste = fusions.locator(".wb-paste")
    expect(paste).to_contain_text("HOROVOD_FUSION_THRESHOLD=4194304 HOROVOD_CYCLE_TIME=1")
    assert fusions.locator("img").screenshot() != before
    fusions.locator(".wb-setting .noUi-handle").focus()
    advised.page.keyboard.press("ArrowLeft")  # the settings are four times one another
    expect(paste).to_contain_text("HOROVOD_FUSION_THRESHOLD=1048576")
    advised.keep("advice-horovod")


def test_an_optimisation_switched_off_leaves_its_picture(advised, options):
    before = options.locator("img").screenshot()
    numbers = said(options).inner_text()
    options.locator(".wb-option-4 input").uncheck()
    expect(said(options)).not_to_have_text(numbers)
    assert options.locator("img").screenshot() != before
    # six are left: all orders of more are refused
    options.locator(".wb-view select").select_option("mean over all orders (Shapley)")
    expect(said(options)).to_contain_text("the gains of each by itself would add", timeout=30000)
    advised.keep("advice-shares")


@pytest.mark.parametrize("name", ["fusion-explored", "what-if-explored"])
def test_the_advice_explored_is_saved(advised, fusions, options, name):
    explorer = fusions if name.startswith("fusion") else options
    explorer.locator("button.wb-export").click()
    expect(said(explorer)).to_contain_text(f"{name}.pdf")
    assert (advised.figures / f"{name}.pdf").read_bytes().startswith(b"%PDF-")


def test_the_page_of_advice_reports_no_error(advised):
    assert advised.problems == []
