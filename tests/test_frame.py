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
from conftest import ROOT, refusal
from explorers import OPTIONS, control, handful, shown, status, ten_gradients, timed, wander
from ipywidgets import Checkbox, IntSlider
from PIL import Image
from test_lanes import HTML as HOSTILE
from test_lanes import two_steps

from workbench import MIB
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
from workbench.explore.pictures import figure_of
from workbench.explore.positions import in_digits, positions
from workbench.figures import describe
from workbench.fusion import DDPBuckets, FixedBuffer
from workbench.traces import load_run
from workbench.whatif import HalfPrecision

RUN = ROOT / "data" / "runs" / "transformer-cpu-2"


@pytest.fixture(scope="module")
def given():
    """By explorer: what makes it, and the variables that its code starts from."""
    forecast, fixed = {"scenario": ten_gradients()}, ten_gradients(FixedBuffer(40 * MIB))
    tables = {"near": timed(), "far": timed(alpha=5e-5, most=12)}
    return {
        "timeline": (explore_timeline, forecast),
        "scaling": (explore_scaling, forecast),
        "steps": (explore_steps, forecast),
        "run": (explore_run, {"run": load_run(RUN)}),
        "fit": (explore_fit, {"measurements": tables}),
        "fusion": (explore_fusion, {"scenario": fixed}),
        "what-if": (explore_whatif, {"scenario": fixed, "optimisations": OPTIONS}),
    }


KINDS = ("timeline", "scaling", "steps", "run", "fit", "fusion", "what-if")
every_explorer = pytest.mark.parametrize("kind", KINDS)


def made(given, kind, **save):
    explore, values = given[kind]
    return explore(*values.values(), **save)


def run_code(explorer, given: dict) -> dict:
    """Return the variables after the explorer's code, and check the table it makes."""
    names = dict(given)
    exec(explorer.code(), names)
    names["plt"].close("all")
    table, found = (
        each.reset_index(drop=True) for each in (explorer._present().data, names["table"])
    )
    if "relative_error" in table:  # the code leaves out what was set aside
        table = table[table["relative_error"].notna()][list(found)].astype(dict(found.dtypes))
    pd.testing.assert_frame_equal(found, table)
    return names


# --- reset and state ------------------------------------------------------------------------------


@every_explorer
def test_a_state_is_plain_and_brings_the_picture_back_and_reset_the_first(given, kind):
    explorer, other = made(given, kind), made(given, kind)
    first, start = shown(explorer), explorer.state()
    for seed in (2, 3):
        if wander(explorer, seed):
            other.restore(json.loads(json.dumps(explorer.state())))
            assert other.state() == explorer.state()
            assert shown(other) == shown(explorer)
    assert explorer.state() != start
    redraws = []
    control(explorer, "image").observe(redraws.append, "value")
    control(explorer, "reset").click()
    assert shown(explorer) == first and explorer.state() == start
    assert len(redraws) <= 1


@every_explorer
def test_an_unknown_position_is_refused_and_nothing_moves(given, kind):
    explorer = made(given, kind)
    before, name = explorer.state(), next(iter(explorer.state()))
    refusal(lambda: explorer.restore({"nothing": 1}), "restore", "nothing")
    refusal(lambda: explorer.restore({name: 10**9}), "restore")
    for state in (None, ["shown"]):
        refusal(lambda state=state: explorer.restore(state), "restore", state)
    assert explorer.state() == before


def test_only_finite_numbers_in_range_are_positions(given):
    explorer = made(given, "timeline")
    for value in (float("nan"), float("inf"), -1.0, "10", None):
        text = refusal(lambda value=value: explorer.restore({"bandwidth": value}), "restore", value)
        assert "bandwidth" in text


# --- code -----------------------------------------------------------------------------------------


@every_explorer
def test_code_makes_the_same_table_and_the_same_scenario(given, kind):
    explorer, values = made(given, kind), given[kind][1]
    text = explorer.code()
    assert text.startswith(f"# given: {next(iter(values))}")
    assert "replace(" not in text and "GBIT" not in text  # nothing was moved
    run_code(explorer, values)
    for seed in (1, 4):
        if wander(explorer, seed, 3):
            assert explorer.code() in unescape(control(explorer, "code").value)
            names = run_code(explorer, values)
            for field in ("n_workers", "all_reduce", "fusion", "one_worker_s", "backward_s"):
                if "explored" in names:
                    wanted = getattr(explorer.scenario, field)
                    assert getattr(names["explored"], field) == wanted, field


@pytest.mark.parametrize("policy", ["PyTorch DDP", "Horovod", "DeepSpeed", "optimum"])
def test_code_makes_every_fusion_with_its_setting_and_its_link(given, policy):
    explorer = made(given, "fusion")
    explorer.restore({"policy": policy, "bandwidth": 5.0, "workers": 64})
    control(explorer, "setting").index = 1
    names = run_code(explorer, given["fusion"][1])
    assert names["explored"].fusion == explorer.scenario.fusion
    assert names["explored"].all_reduce == explorer.scenario.all_reduce


@pytest.mark.parametrize("view", range(3))
def test_code_keeps_the_order_of_switching_and_the_view(given, view):
    explorer = made(given, "what-if")
    for value in (False, True):
        control(explorer, "option-0").value = value
    control(explorer, "view").index = view
    names = run_code(explorer, given["what-if"][1])
    assert list(names["chosen"]) == ["fp16", "faster", "adaptive"]
    assert names["optimisation"] == explorer.optimisation


@pytest.mark.parametrize(("name", "text"), [("bandwidth", "GBIT"), ("latency", "US")])
def test_code_holds_what_was_moved_in_the_units_of_its_slider(given, name, text):
    explorer = made(given, "timeline")
    control(explorer, name).value = 2.0
    assert f"2.0 * {text}" in explorer.code()
    assert "n_workers" not in explorer.code() and "fusion" not in explorer.code()


# --- what everyone can use ------------------------------------------------------------------------


@every_explorer
def test_controls_buttons_and_picture_have_names_for_everyone(given, kind):
    explorer = made(given, kind)
    for name in [*explorer._controls, "export", "reset"]:
        each = control(explorer, name)
        assert each.description and each.tooltip and each.tabbable is not False, name
    assert "title=" in control(explorer, "copy").value
    held = control(explorer, "code").value
    alt = unescape(re.search("wb-alt' hidden>(.*?)</span>", held, re.DOTALL).group(1))
    with figure_of(explorer._present(), explorer._paper) as figure:
        assert alt == describe(figure)


@pytest.mark.parametrize("kind", ["steps", "fit"])
def test_a_mistake_in_drawing_is_shown_and_the_picture_stays(given, kind, monkeypatch):
    explorer = made(given, kind)
    before = shown(explorer)

    def broken(*_):
        raise KeyError("<b>no</b> column")

    monkeypatch.setattr(explorer, "picture", broken)
    assert not wander(explorer, 0)
    image, below, words = shown(explorer)
    assert (image, below) == before[:2]
    assert "not done" in words and "&lt;b&gt;no&lt;/b&gt; column" in words
    monkeypatch.undo()
    explorer.reset()
    assert shown(explorer) == before


def test_a_warning_of_a_move_is_shown_next_to_the_numbers(given, monkeypatch):
    explorer = made(given, "timeline")
    picture = explorer.picture

    def doubtful(*values):
        for number in range(5):
            warnings.warn(f"<b>doubt</b> {number}", stacklevel=1)
        return picture(*values)

    monkeypatch.setattr(explorer, "picture", doubtful)
    control(explorer, "workers").value = 4
    words = status(explorer)
    assert words.startswith("scaling factor") and "note: &lt;b&gt;doubt&lt;/b&gt; 2" in words
    assert "doubt&lt;/b&gt; 3" not in words  # a font warns of each letter it lacks


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


def read(page) -> dict:
    """What the script of a static page reads."""
    return json.loads(page.html.split('type="application/json">')[1].split("</script>")[0])


def differing(*pngs: bytes) -> float:
    """The share of pixels that differ: a palette of few colours rounds some edges of text."""
    a, b = (np.asarray(Image.open(BytesIO(png)).convert("RGB")).astype(int) for png in pngs)
    return (np.abs(a - b) > 25).mean()


@pytest.mark.parametrize("kind", handful(KINDS, "steps"))
def test_every_place_of_a_static_page_is_what_the_explorer_shows_there(given, kind):
    explorer = made(given, kind)
    state, before = explorer.state(), shown(explorer)
    page = explorer.static()
    assert explorer.state() == state and shown(explorer) == before  # nothing has moved
    assert len(page.html) < 1.5e6
    assert f'<p class="wb-words" aria-live="polite">{before[2]}</p>' in page.html
    assert before[1] in page.html
    first = re.search(r'src="data:image/png;base64,([^"]+)"', page.html).group(1)
    assert differing(b64decode(first), before[0]) < 1e-3
    data = read(page)
    places = positions(explorer._controls, explorer.grid)
    wanted = list(itertools.product(*places.values()))
    assert 4 <= len(wanted) == len(data["cells"]) <= 60
    for at in np.random.default_rng(4).choice(len(wanted), 2, replace=False):
        explorer.reset()
        explorer.restore(dict(zip(places, wanted[at], strict=True)))
        number, _, words, below, why = data["cells"][at]
        image, *texts = shown(explorer)
        assert ("not done" in texts[1]) == bool(why)
        if not why:
            assert [below, words] == texts
            assert differing(b64decode(data["pictures"][number]), image) < 2e-3


@pytest.mark.parametrize("positions", [None, "ten", [(1.0, 2.0)], [float("nan")]])
def test_a_grid_of_no_positions_is_refused(given, positions):
    explorer = made(given, "timeline")
    assert "bandwidth" in refusal(lambda: explorer.static({"bandwidth": positions}), "static")


def test_positions_that_are_too_many_are_spread_and_include_the_current(given):
    (steps,) = positions({"step": IntSlider(3000, 0, 4999)}, {"step": None}).values()
    assert len(steps) == 60 and {0, 3000, 4999} <= set(steps)
    assert np.diff(steps).max() < 2.1 * 4999 / 59  # 3000 was moved in
    controls = made(given, "timeline")._controls
    wanted = {"bandwidth": range(1, 31), "latency": range(1, 31), "workers": [2, 4, 16]}
    found = positions(controls, wanted)
    assert list(found) == list(wanted)
    assert 40 <= np.prod([len(each) for each in found.values()]) <= 60
    assert len(found["bandwidth"]) >= len(found["latency"]) >= 2
    for name, each in found.items():
        assert any(value == pytest.approx(controls[name].value) for value in each), name
        assert each == sorted(each)
    boxes = {f"option-{i}": Checkbox(True, description=str(i)) for i in range(9)}
    assert list(positions(boxes, dict.fromkeys(boxes))) == [f"option-{i}" for i in range(5)]


def test_a_static_page_shows_the_best_setting_of_another_framework(given):
    explorer = made(given, "fusion")
    found = read(explorer.static({"policy": ["PyTorch DDP", "optimum"]}))["cells"]
    for cell, policy in zip(found, ["as it is", "PyTorch DDP", "optimum"], strict=True):
        explorer.restore({"policy": policy})
        assert [cell[3], cell[2]] == [*shown(explorer)[1:]]


def test_a_place_that_cannot_be_shown_says_why(given):
    explorer = made(given, "run")
    found = read(explorer.static({"shown": [(0.0, 100.0), (50.0, 50.0)]}))["cells"]
    assert found[0][4] == "" and "low < high" in found[1][4]
    explorer.restore({"shown": (50.0, 50.0)})
    refusal(lambda: explorer.static({"rank": None}), "static")


def test_a_page_finds_an_explorer_by_its_model(given):
    explorer = made(given, "steps")
    explorer.grid = {"step": (0, 9)}
    assert static_of(explorer.model_id) == explorer.static().html
    refusal(lambda: static_of("none"), "model_id", "none")
    refusal(lambda: explorer.static({"speed": [1]}), "static", "speed")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0."), (1e-5, "0.00001"), (0.00123456, "0.00123"), (12.34, "12.3"), (999.9, "1000."),
     (1000.0, "1,000"), (50_000.0, "50,000"), (10.0, "10"), (0.1, "0.1")],
)  # fmt: skip
def test_numbers_have_three_digits_and_no_exponent(value, text):
    assert in_digits(value) == text.rstrip(".")


# --- names from files -----------------------------------------------------------------------------

NAMES = [HOSTILE, "\u202e</script>{0}%s'\"\n\\'); raise SystemExit #"]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_are_text_everywhere(name, write_trace):
    run = load_run(write_trace(two_steps(name), distributedInfo={"rank": 0}))
    scenario = ten_gradients()
    scenario = replace(scenario, gradients=scenario.gradients.assign(name=[name] * 10))
    explorers = [
        (explore_run, {"run": run}),
        (explore_fit, {"measurements": {name: timed(), "far": timed(most=12)}}),
        (explore_whatif, {"scenario": scenario, "optimisations": {name: HalfPrecision()}}),
        (
            lambda given: explore_fusion(given, frameworks={name: DDPBuckets()}),
            {"scenario": scenario},
        ),
        *((each, {"scenario": scenario}) for each in (explore_scaling, explore_steps)),
    ]
    for explore, given in explorers:
        explorer = explore(*given.values())
        if "policy" in explorer.state():
            control(explorer, "policy").value = name
        assert "not done" not in status(explorer)
        parts = "".join(control(explorer, n).value for n in ("below", "status", "code", "copy"))
        for text in (parts, explorer.static({}).html.split("</style>")[1]):
            text = text.replace("<script type=", "").replace("<script>\n(root", "")
            tags = "".join(part.split(">")[0] for part in text.split("<")[1:])
            assert "<script" not in text and "onerror=alert" not in tags
        exec(explorer.code(), dict(given))
