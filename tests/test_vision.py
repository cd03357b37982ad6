"""Colours as others see them, against published values and against what dichromats confuse."""

import numpy as np
import pytest

from workbench.figures.distinct import VISIONS, alike, difference, seen
from workbench.figures.style import COLOURS

RED_GREEN = ("#D62728", "#2CA02C")  # of a much used palette, known to be confused


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("grey", [0.0, 0.3, 1.0])
def test_greys_look_the_same_to_everyone(vision, grey):
    assert seen((grey,) * 3, vision) == pytest.approx((grey,) * 3, abs=1e-3)


# L*, a*, b* of sRGB's primaries under D65 (Lindbloom's calculator, www.brucelindbloom.com).
LAB = {
    "red": (53.24, 80.09, 67.20),
    "lime": (87.73, -86.18, 83.18),
    "blue": (32.30, 79.19, -107.86),
}


@pytest.mark.parametrize(("one", "other"), [("red", "lime"), ("red", "blue"), ("lime", "blue")])
def test_differences_are_those_of_published_coordinates(one, other):
    expected = np.linalg.norm(np.subtract(LAB[one], LAB[other]))
    assert difference(one, other) == pytest.approx(expected, rel=1e-3)


def test_white_and_black_are_a_hundred_apart_in_grey():
    assert difference("white", "black", "grey") == pytest.approx(100, abs=0.01)


def test_red_and_green_come_close_for_those_who_lack_a_cone_and_not_for_others():
    apart = {vision: difference(*RED_GREEN, vision) for vision in VISIONS}
    assert apart["deutan"] < 0.5 * apart["normal"] and apart["protan"] < 0.5 * apart["normal"]
    assert apart["tritan"] > 0.8 * apart["normal"]


def test_blue_and_green_come_close_for_tritan_eyes():
    # published example of tritanopia: blue and green are confused, red and green are not
    assert difference("#00A0A0", "#0080C0", "tritan") < 0.5 * difference("#00A0A0", "#0080C0")


def test_what_is_light_as_well_as_red_is_told_in_grey():
    assert "grey" in alike("#D62728", "#1F77B4")  # L* of 47 and 48
    assert alike("black", "white") == {}


def test_a_transparent_colour_lies_on_white_paper():
    assert seen((0, 0, 0, 0.5), "normal") == pytest.approx((0.5, 0.5, 0.5), abs=1e-6)


def test_colours_of_touching_bars_are_told_by_everyone():
    for one, other in [("compute", "exposed"), ("compute", "comm"), ("exposed", "comm"),
                       ("exposed", "memory"), ("memory", "idle")]:  # fmt: skip
        assert alike(COLOURS[one], COLOURS[other]) == {}, (one, other)
