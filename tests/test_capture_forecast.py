"""From recorded folders to a forecast, a plan and the text to paste."""

import json
import os
import shutil
import subprocess
import sys

import pandas as pd
import pytest
import torch
import torch.distributed as dist
from conftest import complete, launched, refusal
from torch import nn

from workbench.capture import (
    Workload,
    forecasts,
    read_plan,
    record,
    recorded_scenario,
    time_wrapper,
    workload,
)
from workbench.capture.command import main
from workbench.capture.forecast import untimed_workers
from workbench.costs import Interpolated
from workbench.fusion import DDPBuckets, OneMessage, fuse
from workbench.timeline import predict, scenario_of
from workbench.timeline.from_run import wrapper_s
from workbench.traces import load_run, read_measurements
from workbench.validation.study import scenario as study_scenario


class Unused(nn.Linear):
    """A layer beside which another has no part in the loss."""

    def __init__(self):
        super().__init__(3, 1)
        self.other = nn.Linear(3, 1)


def unused():
    batches = [(torch.ones(2, 3), torch.zeros(2, 1))]
    return Workload(Unused(), batches, nn.functional.mse_loss)


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """A recorded profile whose unprofiled iterations are longer than backward on any machine."""
    folder = tmp_path_factory.mktemp("forecast") / "profile"
    record(workload("lstm", 2, small=True), folder, iterations=4, hooked=4, profiled=0)
    path, notes = folder / "iterations_rank0.csv", json.loads((folder / "run.json").read_text())
    times, plain = pd.read_csv(path, comment="#"), notes["iteration_s"]["plain"]
    longer = times["iteration_s"].max()  # a burst of other work may fall on either kind
    notes["iteration_s"]["plain"] = [seconds + longer for seconds in plain]
    (folder / "run.json").write_text(json.dumps(notes))
    times.loc[times["kind"] == "plain", "iteration_s"] += longer
    times.to_csv(path, index=False)
    return folder


@pytest.fixture
def links(tmp_path):
    """Timings of 20 us a message and 1 GB/s, in a folder as `collectives` writes it."""
    nbytes = [2**k for k in range(8, 24)]
    rows = {"op": "all_reduce", "n_workers": 2, "n_nodes": 1, "nbytes": nbytes}
    table = pd.DataFrame(rows).assign(seconds=[20e-6 + n / 1e9 for n in nbytes])
    other = table.assign(op="all_gather", seconds=1.0)
    pd.concat([table, other]).to_csv(tmp_path / "collectives.csv", index=False)
    return tmp_path


def test_a_scenario_holds_what_the_profile_measured(profile, links):
    scenario = recorded_scenario(profile, links, 2)
    times = pd.read_csv(profile / "iterations_rank0.csv", comment="#")
    assert scenario.one_worker_s == times.query("kind == 'plain'")["iteration_s"].median()
    backward_s = times.query("kind == 'hooks'")["backward_s"].median()
    assert scenario.backward_s == max(backward_s, scenario.gradients["ready_s"].max())
    assert (
        scenario.gradients["nbytes"].sum()
        == json.loads((profile / "run.json").read_text())["gradient_bytes"]
    )
    assert scenario.all_reduce(2**20, 2) == pytest.approx(20e-6 + 2**20 / 1e9)


def test_what_the_wrapper_adds_is_fixed_whatever_the_messages(profile, links, tmp_path):
    folder = tmp_path / "profile"
    shutil.copytree(profile, folder)
    assert recorded_scenario(folder, links, 2).fixed_s == 0.0  # not timed
    pairs = pd.DataFrame({"plain_s": [0.1, 0.2, 0.4], "wrapped_s": [0.11, 0.23, 0.42]})
    pairs.to_csv(folder / "wrapper.csv", index_label="iteration")
    scenario = recorded_scenario(folder, links, 2)
    assert scenario.fixed_s == pytest.approx(0.02)
    other = recorded_scenario(profile, links, 2)
    added = predict(scenario).iteration_s - predict(other).iteration_s
    assert added == pytest.approx(0.02)


def test_every_road_from_a_profile_leads_to_the_same_forecast(write_trace, links):
    step = complete("user_annotation", "ProfilerStep#0", 0, 4000)
    folder = write_trace([step, *launched("gemm", 10, 3000, 0, 1)], "profile/rank0.json").parent
    seconds = {"plain": [0.5, 0.4, 0.6], "hooks": [0.7], "profiled": [0.9]}
    (folder / "run.json").write_text(json.dumps({"world_size": 1, "iteration_s": seconds}))
    ready = [("c", 4_000_000, 0.08), ("b", 400, 0.2), ("a", 4_000_000, 0.25)]
    gradients = pd.DataFrame(ready, columns=["name", "nbytes", "ready_s"])
    gradients.to_csv(folder / "gradients.csv", index=False)
    times = {"kind": ["plain", "hooks", "hooks"], "backward_s": [9.0, 0.251, 0.253]}
    pd.DataFrame(times).to_csv(folder / "iterations_rank0.csv", index=False)
    pd.DataFrame({"plain_s": [0.5], "wrapped_s": [0.53]}).to_csv(folder / "wrapper.csv")

    timed = read_measurements(links / "collectives.csv").query("op == 'all_reduce'")
    wrapped_s = wrapper_s(folder / "wrapper.csv")
    row = gradients.assign(
        model="m", scale=1, one_worker_s=0.5, backward_s=0.252, wrapper_s=wrapped_s
    )
    roads = [
        scenario_of(load_run(folder), Interpolated(timed), 2, DDPBuckets()),
        recorded_scenario(folder, links, 2),
        study_scenario(row, timed, 2),
    ]
    found = [predict(each).scaling_factor for each in roads]
    assert found == pytest.approx([found[0]] * 3, rel=1e-12)
    # by hand: DDP sends c alone and then the rest, ready at 0.25 s, 4.0004 ms + 20 us at 1 GB/s
    exposed_s = 0.25 + 20e-6 + 4.0004e-3 - 0.252
    assert found[0] == pytest.approx(0.5 / (0.53 + exposed_s))


@pytest.mark.parametrize("made", [lambda: workload("lstm", 2, small=True), unused])
def test_pairs_with_and_without_the_wrapper_are_timed_once(tmp_path, made):
    path = time_wrapper(made, tmp_path / "wrapper.csv", iterations=3)
    text = path.read_text()
    pairs = pd.read_csv(path, comment="#")
    assert pairs["iteration"].tolist() == [0, 1, 2]
    assert (pairs[["plain_s", "wrapped_s"]] > 0).all(axis=None)
    assert not dist.is_initialized()
    assert time_wrapper(made, path, iterations=3).read_text() == text


def test_forecasts_are_those_of_the_model_and_the_plan_is_the_best(profile, links):
    scenario = recorded_scenario(profile, links, 2, OneMessage())
    best, table = forecasts(scenario)
    table = table.set_index("policy")
    assert table.loc["one-message", "iteration_s"] == predict(scenario).iteration_s
    assert table.loc["plan", "iteration_s"] == table["iteration_s"].min()
    assert table.loc["plan", "n_messages"] == len(fuse(scenario.gradients, best.fusion))
    assert table.loc["per-tensor", "n_messages"] == 11


def test_the_command_writes_the_plan_and_says_the_settings(profile, links, capsys):
    out = links / "plan.json"
    arguments = ["--profile", str(profile), "--collectives", str(links), "--workers", "2"]
    main(["plan", *arguments, "--out", str(out)])
    plan, names = read_plan(out)
    scenario = recorded_scenario(profile, links, 2)
    assert (plan, names) == (forecasts(scenario)[0].fusion, scenario.gradients["name"].tolist())
    said = capsys.readouterr().out
    for text in ("fixed:64", "HOROVOD_FUSION_THRESHOLD=", "reduce_bucket_size", "# PyTorch DDP: "):
        assert text in said


def test_the_plan_is_written_also_where_nobody_reads_what_is_printed(profile, links):
    command = [sys.executable, "-m", "workbench.capture", "plan", "--profile", str(profile)]
    command += ["--collectives", str(links), "--workers", "2", "--out", str(links / "p.json")]
    reading, writing = os.pipe()
    os.close(reading)
    subprocess.run(command, stdout=writing, stderr=subprocess.DEVNULL, timeout=600, check=False)
    os.close(writing)
    assert (
        read_plan(links / "p.json")[0] == forecasts(recorded_scenario(profile, links, 2))[0].fusion
    )


def test_the_command_says_what_was_not_timed(profile, links, capsys):
    arguments = ["plan", "--profile", str(profile), "--collectives", str(links), "--workers"]
    main([*arguments, "2", "--out", str(links / "2.json")])
    assert "timed with" not in capsys.readouterr().out
    main([*arguments, "8", "--out", str(links / "8.json")])
    assert "timed with 2 workers: their price with 8 follows" in capsys.readouterr().out
    table = pd.read_csv(links / "collectives.csv")
    both = pd.concat([table, table.assign(n_workers=16)])
    scenario = recorded_scenario(profile, both, 8)
    assert untimed_workers(scenario).endswith(
        "timed with 2, 16 workers: their price with 8 is interpolated"
    )


@pytest.mark.parametrize("missing", ["gradients.csv", "run.json"])
def test_a_folder_without_a_profile_is_refused(tmp_path, links, missing):
    (tmp_path / "gradients.csv").write_text("name,nbytes,ready_s\nw,4,0.1\n")
    (tmp_path / "run.json").write_text('{"iteration_s": {"plain": [1.0]}}')
    (tmp_path / missing).unlink()
    assert f"no {missing} with" in refusal(
        lambda: recorded_scenario(tmp_path, links, 2), str(tmp_path)
    )


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("gradients.csv", "", "no gradients.csv with rows"),
        (
            "gradients.csv",
            "name,nbytes,ready_s\nw,4,x\n",
            "column ready_s: expected finite",
        ),
        ("iterations_rank0.csv", "", "no iterations_rank0.csv with rows"),
        ("run.json", '{"settings": {}, "complete": false}', "no run.json with iteration_s"),
        ("run.json", '{"iteration_s": {"plain": []}}', "no run.json with iteration_s"),
        ("run.json", "{", "no run.json with iteration_s"),
        ("wrapper.csv", "a,b\n1,2\n", "wrapper.csv: expected a column plain_s"),
    ],
)
def test_a_profile_that_is_not_whole_is_refused(profile, links, tmp_path, name, text, said):
    folder = tmp_path / "profile"
    shutil.copytree(profile, folder)
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=said):
        recorded_scenario(folder, links, 2)


@pytest.mark.parametrize("text", ["", "# a comment\n", "iteration,plain_s,wrapped_s\n0,0.1"])
def test_a_wrapper_that_was_cut_before_its_first_pair_costs_nothing(tmp_path, text):
    (tmp_path / "wrapper.csv").write_text(text)
    assert wrapper_s(tmp_path / "wrapper.csv") == 0.0


def test_one_model_cannot_be_timed_beside_itself(tmp_path):
    work = unused()
    with pytest.raises(ValueError, match="make: expected a new model at each call"):
        time_wrapper(lambda: work, tmp_path / "wrapper.csv")


def test_timings_without_an_all_reduce_are_refused(profile, links):
    path = links / "collectives.csv"
    pd.read_csv(path).query("op == 'all_gather'").to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"expected timed all-reduces \(op all_reduce\), got none"):
        recorded_scenario(profile, links, 2)
