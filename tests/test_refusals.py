"""One table of refusals: what is called, which argument the message names, and the value it shows.

A row is (call, argument, value) or (call, argument): the call raises a ValueError whose text
before the first colon names the argument and whose text after it shows the value. Sentences are
free to improve. The checkers themselves are tested in test_checks.
"""

import pytest
from conftest import refusal

BASE = []

TRACES = []

COSTS = []

FUSION = []

FITS = []

TIMELINE = []

WHATIF = []

VALIDATION = []

CAPTURE = []

FIGURES = []

EXPLORE = []

NOTEBOOKS = []

ROOMS = {
    "base": BASE, "traces": TRACES, "costs": COSTS, "fusion": FUSION, "fits": FITS,
    "timeline": TIMELINE, "whatif": WHATIF, "validation": VALIDATION, "capture": CAPTURE,
    "figures": FIGURES, "explore": EXPLORE, "notebooks": NOTEBOOKS,
}  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=f"{room}-{i}-{row[1]}")
        for room in ROOMS
        for i, row in enumerate(ROOMS[room])
    ],
)
def test_what_cannot_be_is_refused_by_name(row):
    refusal(*row)
