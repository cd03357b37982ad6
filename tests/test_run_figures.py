"""The picture of one iteration: what is drawn stands where the trace has it, in ms."""

import numpy as np
import pytest
from conftest import launched
from figure_tables import legend, paper_axes, rows
from matplotlib.colors import to_hex
from matplotlib.text import Text
from test_lanes import HTML, two_steps

from workbench import US
from workbench.figures import draw_run
from workbench.figures.runs import LABELS
from workbench.figures.style import COLOURS, HATCHES
from workbench.traces import lanes, load_run


@pytest.fixture
def ax():
    with paper_axes() as ax:
        yield ax


@pytest.fixture
def run(write_trace):
    return load_run(write_trace(two_steps(), distributedInfo={"rank": 0}))


def drawn(ax) -> dict:
    """Boxes by colour: (low, high) in us and the lane's place, in order of time."""
    found = {}
    for collection in ax.collections:
        vertices = collection.get_paths()[0].vertices.reshape(-1, 5, 2)
        x, y = vertices[:, :4, 0] * 1000, vertices[:, :4, 1]
        boxes = zip(x.min(axis=1), x.max(axis=1), y.mean(axis=1), strict=True)
        found.setdefault(to_hex(collection.get_facecolor()[0]).upper(), []).extend(boxes)
    return {kind: sorted(found[colour]) for kind, colour in COLOURS.items() if colour in found}


def hatches(ax) -> dict:
    """Hatches by kind, of the collections that hold a box."""
    drawn = [each for each in ax.collections if len(each.get_paths()[0].vertices)]
    by_colour = {to_hex(c.get_facecolor()[0]).upper(): c.get_hatch() or "" for c in drawn}
    return {kind: by_colour[COLOURS[kind]] for kind in LABELS if COLOURS[kind] in by_colour}


def test_boxes_stand_where_the_spans_are(ax, run):
    draw_run(ax, run)
    boxes = drawn(ax)
    expected = {
        "compute": [(0, 30, 0), (100, 140, 0)],
        "exposed": [(30, 80, 1)],
        "memory": [(150, 155, 0)],
        "comm": [(20, 30, 1)],
    }
    assert set(boxes) == set(expected)
    for kind, each in expected.items():
        assert np.array(boxes[kind]) == pytest.approx(np.array(each), abs=1e-6), kind


def test_exposed_communication_is_hatched_as_in_every_figure(ax, run):
    draw_run(ax, run, zoom=(0, 200 * US))  # where the copy of 5 us is 2.5 % of the axis
    assert hatches(ax) == {kind: HATCHES[kind] for kind in LABELS}

    ax.clear()
    draw_run(ax, run)  # 5 us of a millisecond: narrower than a hatch
    assert hatches(ax) == {kind: HATCHES[kind] for kind in LABELS} | {"memory": ""}


def test_lanes_and_kinds_are_named(ax, run):
    draw_run(ax, run)
    assert rows(ax) == ["stream 7", "stream 20"]
    assert legend(ax) == ["compute", "communication", "exposed", "copies"]
    assert ax.get_xlabel().endswith("(ms)")


def test_the_axis_is_the_whole_iteration_idle_time_included(ax, run):
    assert draw_run(ax, run).get_xlim() == pytest.approx((0, 1.0))


def test_a_zoom_shows_what_lies_in_it(ax, run):
    draw_run(ax, lanes(run), zoom=(110 * US, 120 * US))
    assert ax.get_xlim() == pytest.approx((0.110, 0.120))
    assert np.array(drawn(ax)["compute"]) == pytest.approx(np.array([(110, 120, 0)]), abs=1e-6)
    assert set(drawn(ax)) == {"compute"}


def test_gaps_that_nobody_sees_are_closed_and_no_span_grows(ax, write_trace):
    # 5 kernels of 1 us, 1 us apart, then idle time to 10 ms: a thousandth is 10 us
    events = two_steps()[:1]
    for n in range(5):
        events += launched("gemm", 1000 + 2 * n, 1, 1000, n + 1)
    events += launched("gemm", 11_000, 1, 1000, 99)
    run = load_run(write_trace(events, distributedInfo={"rank": 0}))
    draw_run(ax, run)
    assert np.array(drawn(ax)["compute"])[:1] == pytest.approx(np.array([(0, 9, 0)]), abs=1e-6)


def test_names_from_the_file_are_not_in_the_picture(ax, write_trace):
    run = load_run(write_trace(two_steps(HTML), distributedInfo={"rank": 0}))
    draw_run(ax, run)
    assert HTML in set(run.events["name"])
    assert not any("<" in text.get_text() for text in ax.figure.findobj(Text))


def test_no_path_is_empty_as_it_would_have_no_extent(ax, run):
    draw_run(ax, run)
    assert all(len(path.vertices) for each in ax.collections for path in each.get_paths())
