"""What every explorer has: reset, state, code, a static page, errors in place, names as text."""

import itertools
import json
import re
import threading
import warnings
from base64 import b64decode
from dataclasses import replace
from html import unescape
from io import BytesIO

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from ipywidgets import Checkbox, FloatRangeSlider, IntSlider
from PIL import Image
from test_lanes import HTML as HOSTILE
from test_lanes import two_steps

from workbench import GBIT, KIB, MIB, MS, US
from workbench.costs import Link, Ring
from workbench.explore import (
    explore_fit,
    explore_fusion,
    explore_run,
    explore_scaling,
    explore_steps,
    explore_timeline,
    explore_whatif,
    static_of,
)
from workbench.explore.pictures import drawn
from workbench.explore.positions import in_digits, positions
from workbench.figures import describe
from workbench.fusion import DDPBuckets, FixedBuffer
from workbench.timeline import Scenario
from workbench.traces import load_run
from workbench.whatif import AdaptiveFusion, FasterLink, HalfPrecision

RUN = ROOT / "data" / "runs" / "transformer-cpu-2"


def scenario(fusion=None) -> Scenario:
    """Ten gradients of 4 MiB, one every 6 ms of a backward of 60 ms, on 8 workers."""
    names = [f"gradient {i}" for i in range(10)]
    ready_s = np.arange(1, 11) * 6 * MS
    gradients = pd.DataFrame({"name": names, "nbytes": 4 * MIB, "ready_s": ready_s})
    cost = Ring(Link(20 * US, 1 / (10 * GBIT)))
    return Scenario(gradients, 100 * MS, 60 * MS, 8, cost, fusion or DDPBuckets())


def timed(alpha=2e-5, most=15) -> pd.DataFrame:
    """Times of a ring on 4 and 8 workers with 2 % of noise, from 1 KiB by doubling."""
    sizes = KIB * 2.0 ** np.arange(most)
    n, nbytes = (grid.ravel() for grid in np.meshgrid((4, 8), sizes, indexing="ij"))
    noise = 1 + 0.02 * np.random.default_rng(3).standard_normal(len(n))
    table = pd.DataFrame({"op": "all_reduce", "n_workers": n, "n_nodes": 1, "nbytes": nbytes})
    return table.assign(seconds=Ring(Link(alpha, 1e-9))(nbytes, n) * noise)


@pytest.fixture(scope="module")
def given():
    """By explorer: what makes it, and the variables that its code starts from."""
    options = {"adaptive": AdaptiveFusion(), "fp16": HalfPrecision(), "faster": FasterLink(2)}
    tables = {"near": timed(), "far": timed(5e-5, 12)}
    run = load_run(RUN)
    fixed = scenario(FixedBuffer(40 * MIB))
    return {
        "timeline": (explore_timeline, {"scenario": scenario()}),
        "scaling": (explore_scaling, {"scenario": scenario()}),
        "steps": (explore_steps, {"scenario": scenario()}),
        "run": (explore_run, {"run": run}),
        "fit": (explore_fit, {"measurements": tables}),
        "fusion": (explore_fusion, {"scenario": fixed}),
        "what-if": (explore_whatif, {"scenario": fixed, "optimisations": options}),
    }


KINDS = ("timeline", "scaling", "steps", "run", "fit", "fusion", "what-if")
every_explorer = pytest.mark.parametrize("kind", KINDS)


def made(given, kind, **save):
    explore, values = given[kind]
    return explore(*values.values(), **save)


def control(explorer, name):
    """The control a page finds by its class name."""
    rows = [row.children if hasattr(row, "children") else (row,) for row in explorer.children]
    return next(each for row in rows for each in row if f"wb-{name}" in each._dom_classes)


def shown(explorer) -> tuple:
    """What a page shows: the picture, what stands below, the line of numbers."""
    return tuple(control(explorer, name).value for name in ("image", "below", "status"))


def wander(explorer, rng, n=4):
    """Move n controls somewhere, one after another."""
    for name in rng.choice(list(explorer._controls), n):
        each = control(explorer, name)
        if isinstance(each, Checkbox):
            each.value = not each.value
        elif isinstance(each, FloatRangeSlider):
            each.value = tuple(sorted(rng.choice(100, 2, replace=False).astype(float)))
        elif hasattr(each, "options") and isinstance(each.value, tuple):
            each.index = tuple(sorted(rng.choice(len(each.options), 2, replace=False).tolist()))
        elif hasattr(each, "options"):
            each.index = int(rng.integers(len(each.options)))
        elif isinstance(each.value, int):
            each.value = int(rng.integers(each.min, each.max + 1))
        else:
            each.value = float(10 ** rng.uniform(each.min, each.max))


# --- reset and state ------------------------------------------------------------------------------


@every_explorer
def test_reset_gives_the_first_picture_in_one_redraw(given, kind):
    explorer = made(given, kind)
    first, state = shown(explorer), explorer.state()
    wander(explorer, np.random.default_rng(1))
    assert explorer.state() != state
    drawn = []
    control(explorer, "image").observe(drawn.append, "value")
    control(explorer, "reset").click()
    assert shown(explorer) == first and explorer.state() == state
    assert len(drawn) <= 1


@every_explorer
def test_a_state_is_plain_and_brings_the_picture_back(given, kind):
    explorer, other = made(given, kind), made(given, kind)
    for seed in range(2):
        wander(explorer, np.random.default_rng(seed))
        if "not done" in control(explorer, "status").value:
            continue
        other.restore(json.loads(json.dumps(explorer.state())))
        assert other.state() == explorer.state()
        assert shown(other) == shown(explorer)


@every_explorer
def test_what_is_no_position_is_refused_and_nothing_moves(given, kind):
    explorer = made(given, kind)
    before, name = explorer.state(), next(iter(explorer.state()))
    with pytest.raises(ValueError, match=f"restore: expected controls {name}.*got 'nothing'"):
        explorer.restore({"nothing": 1})
    with pytest.raises(ValueError, match=f"restore: {name}: it has no position"):
        explorer.restore({name: 10**9})
    assert explorer.state() == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, "10", None])
def test_what_is_no_number_is_no_position(given, value):
    explorer = made(given, "timeline")
    with pytest.raises(ValueError, match="restore: bandwidth: it has no position"):
        explorer.restore({"bandwidth": value})


@every_explorer
@pytest.mark.parametrize("state", [None, 5, ["shown"], "all"])
def test_what_is_no_state_is_refused_in_words(given, kind, state):
    with pytest.raises(ValueError, match="restore: expected controls .*; got"):
        made(given, kind).restore(state)


# --- code -----------------------------------------------------------------------------------------


@every_explorer
def test_code_makes_the_same_table_and_the_same_scenario(given, kind):
    explorer, values = made(given, kind), given[kind][1]
    for seed in range(4):
        if seed:  # the first is the start
            wander(explorer, np.random.default_rng(seed), 3)
        if "not done" in control(explorer, "status").value:
            continue
        names = dict(values)
        exec(explorer.code(), names)
        table = explorer._present().data.reset_index(drop=True)
        found = names["table"].reset_index(drop=True)
        if kind == "fit":  # what was set aside is no part of the code
            table = table[table["relative_error"].notna()][list(found)].astype(dict(found.dtypes))
        pd.testing.assert_frame_equal(found, table)
        if "explored" in names:
            for field in ("n_workers", "all_reduce", "fusion", "one_worker_s", "backward_s"):
                wanted = getattr(explorer.scenario, field)
                assert getattr(names["explored"], field) == wanted, field
        names["plt"].close("all")


@pytest.mark.parametrize("policy", ["PyTorch DDP", "Horovod", "DeepSpeed", "optimum"])
def test_code_makes_every_fusion_with_its_setting_and_its_link(given, policy):
    explorer = made(given, "fusion")
    explorer.restore({"policy": policy, "bandwidth": 5.0, "workers": 64})
    control(explorer, "setting").index = 1
    names = dict(given["fusion"][1])
    exec(explorer.code(), names)
    pd.testing.assert_frame_equal(names["table"], explorer._present().data)
    assert names["explored"].fusion == explorer.scenario.fusion
    assert names["explored"].all_reduce == explorer.scenario.all_reduce
    names["plt"].close("all")


@pytest.mark.parametrize("view", range(3))
def test_code_keeps_the_order_of_switching_and_the_view(given, view):
    explorer = made(given, "what-if")
    for value in (False, True):
        control(explorer, "option-0").value = value
    control(explorer, "view").index = view
    names = dict(given["what-if"][1])
    exec(explorer.code(), names)
    assert list(names["chosen"]) == ["fp16", "faster", "adaptive"]
    assert names["optimisation"] == explorer.optimisation
    pd.testing.assert_frame_equal(names["table"], explorer._present().data)
    names["plt"].close("all")


@every_explorer
def test_code_says_what_it_starts_from_and_nothing_of_what_stayed(given, kind):
    explorer = made(given, kind)
    text = explorer.code()
    assert text.startswith(f"# given: {next(iter(given[kind][1]))}")
    assert "replace(" not in text and "GBIT" not in text


@pytest.mark.parametrize(("name", "text"), [("bandwidth", "GBIT"), ("latency", "US")])
def test_code_holds_what_was_moved_in_the_units_of_its_slider(given, name, text):
    explorer = made(given, "timeline")
    control(explorer, name).value = 2.0
    assert f"2.0 * {text}" in explorer.code()
    assert "n_workers" not in explorer.code() and "fusion" not in explorer.code()


@every_explorer
def test_the_page_holds_the_code_of_the_present_state(given, kind):
    explorer = made(given, kind)
    wander(explorer, np.random.default_rng(5), 2)
    if "not done" not in control(explorer, "status").value:
        assert explorer.code() in unescape(control(explorer, "code").value)


# --- what everyone can use ------------------------------------------------------------------------


@every_explorer
def test_every_control_and_button_has_a_label_and_says_what_it_does(given, kind):
    explorer = made(given, kind)
    for name in [*explorer._controls, "export", "reset"]:
        each = control(explorer, name)
        assert each.description and each.tooltip and each.tabbable is not False, name
    assert "title=" in control(explorer, "copy").value


@every_explorer
def test_a_mistake_in_drawing_is_told_and_the_picture_stays(given, kind, monkeypatch):
    explorer = made(given, kind)
    before = shown(explorer)

    def broken(*_):
        raise KeyError("<b>no</b> column")

    monkeypatch.setattr(explorer, "picture", broken)
    wander(explorer, np.random.default_rng(0))
    image, below, status = shown(explorer)
    assert (image, below) == before[:2]
    assert "not done" in status and "&lt;b&gt;no&lt;/b&gt; column" in status
    monkeypatch.undo()
    explorer.reset()
    assert shown(explorer) == before


def test_a_warning_of_a_move_is_told_beside_the_numbers(given, monkeypatch):
    explorer = made(given, "timeline")
    picture = explorer.picture

    def doubtful(*values):
        for number in range(5):
            warnings.warn(f"<b>doubt</b> {number}", stacklevel=1)
        return picture(*values)

    monkeypatch.setattr(explorer, "picture", doubtful)
    control(explorer, "workers").value = 4
    told = control(explorer, "status").value
    assert told.startswith("scaling factor") and "note: &lt;b&gt;doubt&lt;/b&gt; 2" in told
    assert "doubt&lt;/b&gt; 3" not in told  # a font without letters warns of each


@every_explorer
def test_the_live_picture_is_told_in_the_words_of_the_figure(given, kind):
    explorer = made(given, kind)
    wander(explorer, np.random.default_rng(2))
    if "not done" in control(explorer, "status").value:
        explorer.reset()
    held = control(explorer, "code").value
    alt = unescape(re.search("wb-alt' hidden>(.*?)</span>", held, re.DOTALL).group(1))
    with drawn(explorer._present(), explorer._paper) as figure:
        assert alt == describe(figure)


def test_moves_from_two_threads_leave_the_picture_of_where_the_controls_stand(given):
    explorer = made(given, "timeline")
    moves = [
        threading.Thread(target=setattr, args=(control(explorer, name), "value", value))
        for value in (4, 16, 64)
        for name in ("workers", "bandwidth", "latency")
    ]
    for move in moves:
        move.start()
    for move in moves:
        move.join()
    found = shown(explorer)
    fresh = made(given, "timeline")
    fresh.restore(explorer.state())
    assert found == shown(fresh)


# --- static pages ---------------------------------------------------------------------------------


def cells(page) -> list:
    """What the script of a static page reads, by place."""
    text = page.html.split('type="application/json">')[1]
    return json.loads(text.split("</script>")[0])["cells"]


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(png)).convert("RGB")).astype(int)


@every_explorer
def test_every_place_of_a_static_page_is_what_the_explorer_shows_there(given, kind):
    explorer = made(given, kind)
    page = explorer.static()
    data = json.loads(page.html.split('type="application/json">')[1].split("</script>")[0])
    places = positions(explorer._controls, explorer.grid)
    wanted = list(itertools.product(*places.values()))
    assert len(wanted) == len(data["cells"])
    for at in np.random.default_rng(4).choice(len(wanted), 4, replace=False):
        explorer.reset()
        explorer.restore(dict(zip(places, wanted[at], strict=True)))
        number, _, words, below, why = data["cells"][at]
        image, *told = shown(explorer)
        assert ("not done" in told[1]) == bool(why)
        if not why:
            assert [below, words] == told
            off = np.abs(pixels(b64decode(data["pictures"][number])) - pixels(image))
            assert (off > 25).mean() < 2e-3  # a palette of few colours rounds some edges of text


@pytest.mark.parametrize("positions", [None, 5, "ten", ["ten"], [(1.0, 2.0)], [float("nan")]])
def test_what_are_no_positions_of_a_grid_are_refused(given, positions):
    with pytest.raises(ValueError, match="static: bandwidth: .* position"):
        made(given, "timeline").static({"bandwidth": positions})


def test_of_too_many_positions_those_kept_are_spread_evenly(given):
    step = IntSlider(3000, 0, 4999)
    found = positions({"step": step}, {"step": None})["step"]
    gaps = np.diff(found)
    assert len(found) == 60 and {0, 3000, 4999} <= set(found)
    assert gaps.max() < 2.1 * 4999 / 59  # the place where it stands is moved in


@every_explorer
def test_a_static_page_is_small_and_starts_as_the_explorer_stands(given, kind):
    explorer = made(given, kind)
    state, before = explorer.state(), shown(explorer)
    page = explorer.static()
    assert len(page.html) < 1.5e6
    assert f'<p class="wb-words" aria-live="polite">{before[2]}</p>' in page.html
    assert before[1] in page.html
    assert 4 <= len(cells(page)) <= 60
    first = re.search(r'src="data:image/png;base64,([^"]+)"', page.html).group(1)
    off = np.abs(pixels(b64decode(first)) - pixels(before[0]))
    assert (off > 25).mean() < 1e-3  # a palette of few colours rounds some edges of text
    assert explorer.state() == state and shown(explorer) == before  # nothing has moved


def test_a_place_of_the_grid_tells_what_the_explorer_would(given):
    explorer = made(given, "timeline")
    found = cells(explorer.static({"workers": [2, 64], "fusion": ["per tensor"]}))
    explorer.restore({"workers": 64, "fusion": "per tensor"})
    assert [cell[2] for cell in found][4] == control(explorer, "status").value
    assert len(found) == 6  # of 2, 8 and 64 workers, each with its own fusion and per tensor


def test_a_static_page_shows_of_another_framework_its_best_setting(given):
    explorer = made(given, "fusion")
    found = cells(explorer.static({"policy": ["Horovod", "optimum"]}))
    for cell, policy in zip(found, ["as it is", "Horovod", "optimum"], strict=True):
        explorer.restore({"policy": policy})
        assert cell[2] == control(explorer, "status").value
        assert cell[3] == control(explorer, "below").value


def test_a_static_page_switches_optimisations(given):
    explorer = made(given, "what-if")
    found = cells(explorer.static({"option-0": None, "option-2": None}))
    assert len(found) == 4
    explorer.restore({"option-0": False})
    assert found[1][2] == control(explorer, "status").value  # off, on


def test_a_place_that_cannot_be_shown_says_why(given):
    explorer = made(given, "run")
    found = cells(explorer.static({"shown": [(0.0, 100.0), (50.0, 50.0)]}))
    assert [cell[4] for cell in found][0] == ""
    assert "Cannot be shown here. ValueError" in found[1][4] and "low < high" in found[1][4]


def test_where_nothing_can_be_shown_there_is_no_page(given):
    explorer = made(given, "run")
    explorer.restore({"shown": (50.0, 50.0)})
    with pytest.raises(ValueError, match="static: no position can be shown. .*low < high"):
        explorer.static({"rank": None})


def test_of_too_many_positions_each_control_keeps_fewer_and_where_it_stands(given):
    controls = made(given, "timeline")._controls
    wanted = {"bandwidth": range(1, 31), "latency": range(1, 31), "workers": [2, 4, 16]}
    found = positions(controls, wanted)
    assert list(found) == list(wanted)
    assert 40 <= np.prod([len(each) for each in found.values()]) <= 60
    assert len(found["bandwidth"]) >= len(found["latency"]) >= 2
    for name, each in found.items():
        assert any(value == pytest.approx(controls[name].value) for value in each), name
        assert each == sorted(each)


def test_of_more_boxes_than_fit_the_last_stay_as_they_are(given):
    boxes = {f"option-{i}": Checkbox(True, description=str(i)) for i in range(9)}
    assert list(positions(boxes, dict.fromkeys(boxes))) == [f"option-{i}" for i in range(5)]


def test_a_page_finds_an_explorer_by_its_model(given):
    explorer = made(given, "steps")
    explorer.grid = {"step": (0, 9)}
    assert static_of(explorer.model_id) == explorer.static().html
    with pytest.raises(ValueError, match="expected the model_id of an explorer, got 'none'"):
        static_of("none")
    with pytest.raises(ValueError, match="static: expected controls step.*got 'speed'"):
        explorer.static({"speed": [1]})


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0."), (1e-5, "0.00001"), (0.00123456, "0.00123"), (12.34, "12.3"), (999.9, "1000."),
     (1000.0, "1,000"), (50_000.0, "50,000"), (10.0, "10"), (0.1, "0.1")],
)  # fmt: skip
def test_numbers_have_three_digits_and_no_exponent(value, text):
    assert in_digits(value) == text.rstrip(".")


# --- names from files -----------------------------------------------------------------------------

NAMES = [HOSTILE, "'\"\n\\'); raise SystemExit #", "\u202e</script>{0}%s"]


def values_of(explorer) -> str:
    """All HTML that the explorer hands to a page."""
    names = ("below", "status", "code", "copy")
    return "".join(control(explorer, name).value for name in names)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["run", "fit", "fusion", "what-if"])
def test_hostile_names_are_text_everywhere(given, kind, name, write_trace):
    made_of = {
        "run": lambda: (
            explore_run,
            {"run": load_run(write_trace(two_steps(name), distributedInfo={"rank": 0}))},
        ),
        "fit": lambda: (explore_fit, {"measurements": {name: timed(), "far": timed(most=12)}}),
        "fusion": lambda: (
            lambda given: explore_fusion(given, frameworks={name: DDPBuckets()}),
            {"scenario": scenario()},
        ),
        "what-if": lambda: (
            explore_whatif,
            {"scenario": scenario(), "optimisations": {name: HalfPrecision()}},
        ),
    }[kind]()
    explorer = made({kind: made_of}, kind)
    if kind == "fusion":
        control(explorer, "policy").value = name
    assert "not done" not in control(explorer, "status").value
    for text in (values_of(explorer), explorer.static({}).html.split("</style>")[1]):
        text = text.replace("<script type=", "").replace("<script>\n(root", "")
        assert "<script" not in text and "onerror=alert" not in unescape_tags(text)
    exec(explorer.code(), dict(made_of[1]))


def unescape_tags(text: str) -> str:
    """The tags of a piece of HTML, without what stands between them."""
    return "".join(part.split(">")[0] for part in text.split("<")[1:])


def test_hostile_gradients_are_text_in_every_explorer_of_a_scenario():
    given = scenario()
    named = replace(given, gradients=given.gradients.assign(name=[HOSTILE] * 10))
    for explore in (explore_timeline, explore_scaling, explore_steps, explore_fusion):
        explorer = explore(named)
        assert "<script" not in values_of(explorer)
        exec(explorer.code(), {"scenario": named})
