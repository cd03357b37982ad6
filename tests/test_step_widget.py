"""The stepper: it goes through the messages, tells which branch won, and follows every slider."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from workbench import GBIT, MIB, MS, US
from workbench.costs import Link, Ring
from workbench.explore import explore_steps
from workbench.fusion import DDPBuckets, OneMessage, PerTensor
from workbench.timeline import Scenario, predict


@pytest.fixture
def scenario():
    """Ten gradients of 4 MiB, one every 6 ms of a backward of 60 ms, on 8 workers."""
    names = [f"gradient {i}" for i in range(10)]
    ready_s = np.arange(1, 11) * 6 * MS
    gradients = pd.DataFrame({"name": names, "nbytes": 4 * MIB, "ready_s": ready_s})
    cost = Ring(Link(20 * US, 1 / (10 * GBIT)))
    return Scenario(gradients, 100 * MS, 60 * MS, 8, cost, PerTensor())


def control(explorer, name):
    """The control a page finds by its class name."""
    rows = [row.children if hasattr(row, "children") else (row,) for row in explorer.children]
    return next(each for row in rows for each in row if f"wb-{name}" in each._dom_classes)


def shown(explorer) -> tuple:
    """What a page shows: the picture, the step in words, the line of numbers."""
    return tuple(control(explorer, name).value for name in ("image", "below", "status"))


def test_the_start_is_the_whole_timeline_of_the_scenario_itself(scenario):
    explorer = explore_steps(scenario)
    step = control(explorer, "step")
    assert (step.min, step.max, step.value) == (0, 9, 9)
    for field in ("n_workers", "all_reduce", "fusion", "one_worker_s", "backward_s", "overlap"):
        assert getattr(explorer.scenario, field) == getattr(scenario, field), field
    factor = predict(scenario).scaling_factor
    assert f"scaling factor {factor:.3f} at 8 workers" in control(explorer, "status").value


@pytest.mark.parametrize("step", [0, 1, 9])
def test_each_step_is_told_in_the_words_of_the_explanation(scenario, step):
    explorer = explore_steps(scenario)
    control(explorer, "step").value = step
    why = predict(scenario).explain()["why"]
    assert f"<b>{why[step]}</b>" in control(explorer, "below").value


def test_the_terms_of_the_maximum_are_shown_and_the_latest_is_marked(scenario):
    # a message takes 6.15 ms and more: message 1 is ready at 12 ms, while message 0 runs
    explorer = explore_steps(scenario)
    control(explorer, "step").value = 1
    rows = re.findall(r"<tr>(.*?)</tr>", control(explorer, "below").value)
    cells = [re.findall(r"<td>(.*?)</td>", row) for row in rows]
    end = predict(scenario).timeline["end_s"][0]
    assert [cell[1] for cell in cells] == ["12.0 ms", f"{end / MS:.3g} ms"]
    assert [bool(cell[2]) for cell in cells] == [False, True]


def test_a_launch_is_a_term_where_the_host_is_known(scenario):
    late = replace(scenario, launch_s=0.070)
    explorer = explore_steps(late)
    control(explorer, "step").value = 0
    below = control(explorer, "below").value
    assert "the host launches it</td><td>70.0 ms</td><td>&larr;" in below
    assert "Of 1 message so far started: 1 when the host launches it." in below


def test_the_first_message_has_none_before_it(scenario):
    explorer = explore_steps(scenario)
    control(explorer, "step").value = 0
    assert "no message before it" in control(explorer, "below").value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", 4),
        ("bandwidth", 1.0),
        ("latency", 100.0),
        ("workers", 64),
        ("fusion", "DDP buckets"),
    ],
)
def test_picture_words_and_numbers_follow_every_control(scenario, name, value):
    explorer = explore_steps(scenario)
    before = shown(explorer)
    control(explorer, name).value = value
    picture, below, _ = shown(explorer)
    assert picture != before[0] and below != before[1]


def test_the_range_of_steps_is_that_of_the_messages(scenario):
    explorer = explore_steps(scenario)
    control(explorer, "fusion").value = "one message"
    step = control(explorer, "step")
    assert (step.max, step.value) == (0, 0)
    control(explorer, "fusion").value = "DDP buckets"
    n_buckets = len(predict(replace(scenario, fusion=DDPBuckets())).timeline)
    assert (step.max, step.value) == (n_buckets - 1, n_buckets - 1)


def test_a_step_in_the_middle_stays_where_it_is(scenario):
    explorer = explore_steps(scenario)
    step = control(explorer, "step")
    step.value = 3
    control(explorer, "bandwidth").value = 1.0
    assert step.value == 3
    control(explorer, "bucket").value = 1.0
    control(explorer, "fusion").value = "DDP buckets"
    assert (step.max, step.value) == (9, 3)


def test_a_lone_worker_sends_and_exposes_nothing(scenario):
    explorer = explore_steps(replace(scenario, n_workers=1, fusion=OneMessage()))
    assert "Exposed so far: 0 s of 0 s." in control(explorer, "below").value


@pytest.mark.parametrize("changes", [{"n_streams": 3}, {"slowdown": 0.5}, {"overlap": False}])
def test_in_the_end_all_is_exposed_that_is_exposed(scenario, changes):
    slow = replace(scenario, all_reduce=Ring(Link(20 * US, 1 / GBIT)), **changes)
    below = control(explore_steps(slow), "below").value
    so_far, whole = re.search(r"Exposed so far: (.*) of (.*)\.$", below).groups()
    assert so_far == whole != "0 s"


def test_what_is_seen_is_saved(scenario, tmp_path):
    explorer = explore_steps(scenario, "step", tmp_path)
    control(explorer, "step").value = 2
    control(explorer, "export").click()
    assert (tmp_path / "step.pdf").read_bytes().startswith(b"%PDF-")
    assert len(pd.read_csv(tmp_path / "step.csv", comment="#")) == 3
    receipt = json.loads((tmp_path / "step.receipt.json").read_text())
    assert receipt["parameters"]["step"] == 2


def test_what_is_no_scenario_is_refused_in_words(scenario):
    with pytest.raises(ValueError, match=r"got Prediction; pass prediction\.scenario"):
        explore_steps(predict(scenario))
