"""The explorer of a run: it follows every control, lists what runs, and trusts no name."""

import json
from dataclasses import replace
from html import escape

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from explorers import control, press_save, shown, status
from test_lanes import HTML, two_steps

from workbench import format_seconds
from workbench.explore import explore_run
from workbench.traces import iterations, load_run


@pytest.fixture(scope="module")
def recorded():
    return load_run(ROOT / "data" / "runs" / "transformer-cpu-2")


def test_the_start_is_the_whole_first_iteration_of_the_first_rank(recorded):
    explorer = explore_run(recorded)
    assert [control(explorer, n).value for n in ("rank", "iteration", "stream")] == ["0", 2, "all"]
    assert control(explorer, "shown").value == (0, 100)
    assert control(explorer, "rank").options == ("0", "1")
    assert control(explorer, "iteration").options == (2, 3, 4)
    control(explorer, "rank").value = "1"
    control(explorer, "iteration").value = 4
    # ITERATIONS of rank 1, iteration 4: 556 ms, 523.5 of compute, 26.1 of exposed communication
    words = status(explorer)
    assert "rank 1, iteration 4: 0 s to 556 ms of 556 ms: compute 524 ms" in words
    assert "exposed 26.1 ms" in words and "nothing running 6.64 ms" in words


def test_every_position_of_every_control_can_be_shown(recorded):
    explorer = explore_run(recorded)
    for name in ("rank", "iteration", "stream"):
        each, before = control(explorer, name), shown(explorer)
        for option in reversed(each.options):  # the first is the start
            each.value = option
            assert "not done" not in status(explorer), (name, option)
            if option in ("1", 3, "thread 15219"):  # picture, names and numbers follow
                assert all(now != then for now, then in zip(shown(explorer), before, strict=True))
    time = control(explorer, "shown")
    for ends in ((0, time.step), (100 - time.step, 100), (0, 100)):
        time.value = ends
        assert "not done" not in status(explorer), ends
    time.value = (50.0, 50.0)
    assert "not done. ValueError: shown" in status(explorer)


def test_another_rank_keeps_the_time_and_the_stream_that_it_has_too(recorded):
    explorer = explore_run(recorded)
    control(explorer, "stream").value = "thread 15219"
    control(explorer, "shown").value = (40.0, 70.0)
    control(explorer, "iteration").value = 3
    assert control(explorer, "stream").value == "thread 15219"
    assert control(explorer, "shown").value == (40.0, 70.0)
    control(explorer, "rank").value = "1"  # whose threads have other numbers
    assert control(explorer, "stream").value == "all"
    assert control(explorer, "shown").value == (40.0, 70.0)


def test_the_part_shown_is_a_share_of_the_iteration_and_a_move_draws_once(recorded):
    explorer, images = explore_run(recorded), []
    control(explorer, "image").observe(lambda change: images.append(1), "value")
    control(explorer, "shown").value = (25.0, 50.0)
    for row in iterations(recorded).query("rank == 0").itertuples():
        control(explorer, "iteration").value = row.iteration
        low, high = (format_seconds(share * row.duration_s) for share in (0.25, 0.5))
        assert f"iteration {row.iteration}: {low} to {high} of" in status(explorer)
    control(explorer, "rank").value = "1"
    assert len(images) == 4  # 2 is the first iteration


@pytest.mark.parametrize(("name", "text"), [(HTML, escape(HTML)), ("a\nb" + "c" * 500, "a bc")])
def test_names_are_shown_as_text_on_one_line(write_trace, name, text):
    run = load_run(write_trace(two_steps(name), distributedInfo={"rank": 0}))
    below = control(explore_run(run), "below").value
    assert text in below
    assert "<img" not in below and "<script" not in below and "c" * 80 not in below


@pytest.mark.filterwarnings("ignore:.*no rank in the file")
def test_a_run_that_names_no_rank_can_be_seen(write_trace):
    run = load_run(write_trace(two_steps()))
    explorer = explore_run(run)
    assert control(explorer, "rank").options == ("unknown",)
    control(explorer, "iteration").value = 1
    assert "rank unknown, iteration 1" in status(explorer)


def test_a_hundred_thousand_rows_draw_few_spans(recorded):
    n = 100_000
    row = recorded.events[recorded.events["kind"] == "compute"].iloc[[0] * n]
    start = np.arange(n) * 10e-6
    events = row.reset_index(drop=True).assign(
        iteration=0, start_s=start, end_s=start + 5e-6, name=pd.Categorical(["gemm"] * n)
    )
    explorer = explore_run(replace(recorded, events=events))
    assert len(explorer.lanes.spans) == n
    assert len(control(explorer, "image").value) < 50_000  # bytes of the PNG: nothing but one bar
    control(explorer, "shown").value = (50.0, 50.1)  # of a second: a hundred
    assert "<td>100</td><td>500 us</td>" in control(explorer, "below").value


def test_what_is_shown_is_saved(recorded, tmp_path):
    explorer = explore_run(recorded, "seen", tmp_path)
    control(explorer, "shown").value = (40.0, 70.0)
    press_save(explorer)
    data = pd.read_csv(tmp_path / "seen.csv")
    duration_s = iterations(recorded)["duration_s"][0]
    low, high = 0.4 * duration_s, 0.7 * duration_s
    assert (data["end_s"] > low).all() and (data["start_s"] < high).all()
    receipt = json.loads((tmp_path / "seen.receipt.json").read_text())
    assert receipt["parameters"]["shown_s"] == pytest.approx([low, high])
