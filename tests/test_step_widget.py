"""The stepper: it goes through the messages, marks the branch that won, follows every slider."""

import json
import re
from dataclasses import replace

import pandas as pd
import pytest
from explorers import control, press_save, shown, status, ten_gradients

from workbench import GBIT, MS, US
from workbench.costs import Link, Ring
from workbench.explore import explore_steps
from workbench.fusion import DDPBuckets, OneMessage, PerTensor
from workbench.timeline import predict


@pytest.fixture
def scenario():
    return ten_gradients(PerTensor())


def test_the_start_is_the_whole_timeline_of_the_scenario_itself(scenario):
    explorer = explore_steps(scenario)
    step = control(explorer, "step")
    assert (step.min, step.max, step.value) == (0, 9, 9)
    assert explorer.scenario.fusion == scenario.fusion
    factor = predict(scenario).scaling_factor
    assert f"scaling factor {factor:.3f} at 8 workers" in status(explorer)


def test_the_terms_of_the_maximum_are_shown_and_the_latest_is_marked(scenario):
    # a message takes 6.15 ms and more: message 1 is ready at 12 ms, while message 0 runs
    explorer = explore_steps(scenario)
    control(explorer, "step").value = 1
    rows = re.findall(r"<tr>(.*?)</tr>", control(explorer, "below").value)
    cells = [re.findall(r"<td>(.*?)</td>", row) for row in rows]
    end = predict(scenario).timeline["end_s"][0]
    assert [cell[1] for cell in cells] == ["12.0 ms", f"{end / MS:.3g} ms"]
    assert [bool(cell[2]) for cell in cells] == [False, True]
    assert f"<b>{predict(scenario).explain()['why'][1]}</b>" in control(explorer, "below").value
    control(explorer, "step").value = 0
    assert "no message before it" in control(explorer, "below").value


def test_a_launch_is_a_term_where_the_host_is_known(scenario):
    late = replace(scenario, launch_s=0.070)
    explorer = explore_steps(late)
    control(explorer, "step").value = 0
    below = control(explorer, "below").value
    assert "the host launches it</td><td>70.0 ms</td><td>&larr;" in below
    assert "Of 1 message so far started: 1 when the host launches it." in below


def test_picture_and_words_follow_every_control(scenario):
    explorer = explore_steps(scenario)
    moves = {"step": 4, "bandwidth": 1.0, "latency": 99.0, "workers": 64, "fusion": "one message"}
    for name, value in moves.items():
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


def test_one_worker_sends_and_exposes_nothing(scenario):
    explorer = explore_steps(replace(scenario, n_workers=1, fusion=OneMessage()))
    assert "Exposed so far: 0 s of 0 s." in control(explorer, "below").value


@pytest.mark.parametrize("changes", [{"n_streams": 3}, {"slowdown": 0.5}, {"overlap": False}])
def test_at_the_last_step_all_of_the_exposure_is_counted(scenario, changes):
    slow = replace(scenario, all_reduce=Ring(Link(20 * US, 1 / GBIT)), **changes)
    below = control(explore_steps(slow), "below").value
    so_far, whole = re.search(r"Exposed so far: (.*) of (.*)\.$", below).groups()
    assert so_far == whole != "0 s"


def test_what_is_shown_is_saved(scenario, tmp_path):
    explorer = explore_steps(scenario, "step", tmp_path)
    control(explorer, "step").value = 2
    press_save(explorer)
    assert len(pd.read_csv(tmp_path / "step.csv", comment="#")) == 3
    receipt = json.loads((tmp_path / "step.receipt.json").read_text())
    assert receipt["parameters"]["step"] == 2
