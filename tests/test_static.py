"""A static page: it moves without a kernel, in a real browser, and trusts no name."""

import html
import json
import re
from base64 import b64decode
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from workbench.explore.static import Axis, Cell, palette, static_page

HOSTILE = """"><script>window.hit = 1</script><img src=x onerror="window.hit=1">'\n</script>"""


def png(*colour) -> bytes:
    return palette(np.full((4, 6, 4), (*colour, 255), "uint8"))


RED, GREEN, BLUE = png(200, 0, 0), png(0, 200, 0), png(0, 0, 200)


def a_page(label="workers", position="8", words="some"):
    """Two workers by a choice of two, of which one cannot be shown; it starts at the second."""
    axes = [
        Axis(label, f"how many: {label}", ["2", position], 1, "range"),
        Axis("fusion", "which", ["on", label], 0, "select"),
    ]
    cells = [
        Cell(RED, "red", "two, on", "<b>below</b>"),
        Cell(RED, "red too", "two, off"),
        Cell(GREEN, f"green {label}", words),
        Cell(why=f"Cannot be shown here. {label}"),
    ]
    return static_page(axes, cells, {"latency": position}, label)


def opened(browser, html_text: str, **how):
    """Return a page that shows the text, and what it asked for and complained of."""
    page = browser.new_context(**how).new_page()
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda each: each.url.startswith("data:") or problems.append(each.url))
    page.set_content(html_text)
    return page, problems


def test_the_page_is_plain_html_that_asks_for_nothing_and_holds_each_picture_once(tmp_path):
    text = a_page().html
    found = re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?([^\"')\s>]+)", text)
    assert found and all(each.startswith("data:image/png") for each in found)
    assert "http" not in text
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', text).group(1))
    assert data["sizes"] == [2, 2]
    assert [b64decode(each) for each in data["pictures"]] == [RED, GREEN]
    assert [cell[0] for cell in data["cells"]] == [0, 0, 1, -1]
    assert 'alt="green workers"' in text and '<p class="wb-words" aria-live="polite">some' in text
    assert "A grid of 4 pictures" in text and "Fixed: latency 8." in text
    page = a_page().save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "<title>workers</title>" in page
    assert text in page and a_page()._repr_html_() == text


def test_a_palette_keeps_few_colours_as_they_are():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (8, 3), dtype="uint8")[rng.integers(0, 8, (30, 40))]
    rgba = np.dstack([pixels, np.full((30, 40), 255, "uint8")])
    image = Image.open(BytesIO(palette(rgba)))
    assert image.mode == "P"
    np.testing.assert_array_equal(np.asarray(image.convert("RGB")), pixels)


@pytest.mark.browser
@pytest.mark.slow
def test_the_keyboard_moves_picture_words_and_alt_text(browser):
    page, problems = opened(browser, a_page().html)
    image, words = page.locator("img"), page.locator(".wb-words")
    expect(image).to_have_attribute("alt", "green workers")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowLeft")
    expect(words).to_have_text("two, on")
    expect(image).to_have_attribute("alt", "red")
    expect(page.locator(".wb-told b")).to_have_text("below")
    expect(page.locator("output")).to_have_text("2")
    assert b64decode(image.get_attribute("src").split(",")[1]) == RED
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    expect(words).to_have_text("two, off")
    assert problems == []


@pytest.mark.browser
@pytest.mark.slow
def test_what_cannot_be_shown_says_why_in_its_place(browser):
    page, _ = opened(browser, a_page().html)
    page.locator("select").select_option(index=1)
    expect(page.locator(".wb-why")).to_have_text("Cannot be shown here. workers")
    expect(page.locator("img")).not_to_be_visible()
    page.locator("select").select_option(index=0)
    expect(page.locator("img")).to_be_visible()
    expect(page.locator(".wb-why")).not_to_be_visible()


@pytest.mark.browser
@pytest.mark.slow
def test_two_explorers_on_a_page_do_not_clash(browser):
    page, problems = opened(browser, a_page().html + a_page("ranks").html)
    page.locator("input").nth(1).focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".wb-words")).to_have_text(["some", "two, on"])
    assert problems == []


@pytest.mark.browser
@pytest.mark.slow
def test_without_javascript_the_start_is_seen_and_nothing_can_be_moved(browser, tmp_path):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(a_page().save(tmp_path / "page.html").as_uri())
    expect(page.locator("img")).to_be_visible()
    expect(page.locator("input")).to_be_disabled()
    expect(page.get_by_text("The controls need JavaScript")).to_be_visible()


@pytest.mark.browser
@pytest.mark.slow
def test_names_that_hold_script_are_shown_as_text(browser):
    page, problems = opened(browser, a_page(HOSTILE, HOSTILE, html.escape(HOSTILE)).html)
    for index in (1, 0):
        page.locator("select").select_option(index=index)
    page.locator("input").focus()
    for key in ("ArrowLeft", "ArrowRight"):
        page.keyboard.press(key)
    page.wait_for_timeout(200)
    assert page.evaluate("window.hit") is None and page.locator("img").count() == 1
    expect(page.locator("label span").first).to_have_text(HOSTILE)
    expect(page.locator(".wb-words")).to_have_text(HOSTILE)
    expect(page.locator("input")).to_have_attribute("title", f"how many: {HOSTILE}")
    assert problems == []
