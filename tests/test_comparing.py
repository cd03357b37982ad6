"""Predicted and measured iterations of a run's messages, from folders made by hand."""

import json

import pandas as pd
import pytest
from conftest import refusal

from workbench.capture import compared
from workbench.capture.command import main
from workbench.capture.plans import write_messages

# Gradients of 1 MB ready at 0.1 and 0.2 s of a backward of 0.2 s; T1 0.3 s, the wrapper's 0.01 s;
# an all-reduce takes 0.1 s a MB. Each alone ends 0.1 s after backward, both together 0.2 s.
APART_S, TOGETHER_S = 0.3 + 0.1 + 0.01, 0.3 + 0.2 + 0.01


def settings(**changes):
    return {"model": "m", "batch": 4, "small": False, "size": None} | changes


@pytest.fixture
def profile(tmp_path):
    folder = tmp_path / "profile"
    folder.mkdir()
    table = pd.DataFrame({"name": ["b", "a"], "nbytes": [10**6] * 2, "ready_s": [0.1, 0.2]})
    table.to_csv(folder / "gradients.csv", index=False)
    notes = {"settings": settings(), "iteration_s": {"plain": [0.3, 0.2, 0.4]}}
    (folder / "run.json").write_text(json.dumps(notes))
    times = pd.DataFrame({"kind": ["hooks"], "backward_s": [0.2]})
    times.to_csv(folder / "iterations_rank0.csv", index=False)
    pairs = pd.DataFrame({"plain_s": [0.3], "wrapped_s": [0.31]})
    pairs.to_csv(folder / "wrapper.csv", index_label="iteration")
    return folder


@pytest.fixture
def links(tmp_path):
    sizes = [10**5, 10**6, 10**7]
    rows = {"op": "all_reduce", "n_workers": 2, "n_nodes": 1, "nbytes": sizes}
    table = pd.DataFrame(rows).assign(seconds=[each * 1e-7 for each in sizes])
    table.to_csv(tmp_path / "links.csv", index=False)
    return tmp_path / "links.csv"


def run_of(folder, messages, seconds, world_size=2, **changes):
    folder.mkdir()
    asked = settings(**changes) | {"policy": "ddp"}
    (folder / "run.json").write_text(json.dumps({"settings": asked, "world_size": world_size}))
    write_messages(folder / "plan.json", messages)
    kinds = ["plain"] * len(seconds) + ["profiled"]
    times = pd.DataFrame({"kind": kinds, "iteration_s": [*seconds, 9.0]})
    times.to_csv(folder / "iterations_rank0.csv", index=False)
    return folder


def test_messages_as_sent_are_predicted_and_compared_with_the_median(tmp_path, profile, links):
    apart = run_of(tmp_path / "apart", [["b"], ["a"]], [0.40, 0.42, 0.44])
    one = run_of(tmp_path / "one", [["a", "b"]], [0.5, 0.5])
    table = compared(profile, links, [apart, one]).set_index("run")
    assert table["n_messages"].tolist() == [2, 1]
    assert table["predicted_s"].tolist() == pytest.approx([APART_S, TOGETHER_S])
    assert table["iteration_s"].tolist() == pytest.approx([0.42, 0.5])
    assert table.loc["apart", ["low_s", "high_s"]].tolist() == pytest.approx([0.40, 0.44])
    assert table["error"].tolist() == pytest.approx([APART_S / 0.42 - 1, TOGETHER_S / 0.5 - 1])
    assert table["note"].tolist() == ["", ""]
    factors = table[["predicted_factor", "scaling_factor"]].loc["apart"]
    assert factors.tolist() == pytest.approx([0.3 / APART_S, 0.3 / 0.42])


def test_a_message_waits_for_those_before_it(tmp_path, profile, links):
    swapped = run_of(tmp_path / "swapped", [["a"], ["b"]], [0.5])
    (row,) = compared(profile, links, [swapped]).itertuples()
    assert row.predicted_s == pytest.approx(TOGETHER_S)  # b is ready early, but a goes first


def test_a_row_that_is_not_to_be_trusted_has_a_note(tmp_path, profile, links):
    fast = run_of(tmp_path / "fast", [["b"], ["a"]], [0.25], world_size=4)
    (row,) = compared(profile, links, [fast]).itertuples()
    assert row.scaling_factor == pytest.approx(0.3 / 0.25)
    assert "faster than" in row.note and "timed with 2 workers" in row.note


def test_the_command_prints_the_table_and_writes_it(tmp_path, profile, links, capsys):
    run = run_of(tmp_path / "apart", [["b"], ["a"]], [0.4])
    command = ["compare", str(run), "--profile", str(profile), "--collectives", str(links)]
    main(command)
    assert "apart" in capsys.readouterr().out
    main([*command, "--out", str(tmp_path / "table.csv")])
    found = pd.read_csv(tmp_path / "table.csv", keep_default_na=False)
    assert found.equals(compared(profile, links, [run]).astype(found.dtypes))
    assert {"n_workers", "iteration_s"} <= set(found)  # which notebook 04 takes


def test_what_cannot_be_compared_is_refused(tmp_path, profile, links):
    def refused(folder, value, messages=(["b"], ["a"]), seconds=(0.4,), **changes):
        run = run_of(tmp_path / folder, list(messages), list(seconds), **changes)
        refusal(lambda: compared(profile, links, [run]), folder, value)

    refusal(lambda: compared(profile, links, [tmp_path / "none"]), "none", "run.json")
    refusal(lambda: compared(profile, links, [profile]), "profile", "plan.json")
    refused("other", "'a'", messages=(["b"], ["c"]))
    refused("larger", 8, batch=8)
    refused("empty", "none", seconds=())
    refused("still", 0, seconds=(0.0,))
    refused("alone", 1, world_size=1)
    refused("unknown", None, world_size=None)


@pytest.mark.parametrize("notes", ["[]", "null", "5", "{", '{"settings": []}'])
def test_a_run_with_other_notes_is_refused(tmp_path, profile, links, notes):
    run = run_of(tmp_path / "run", [["b"], ["a"]], [0.4])
    (run / "run.json").write_text(notes)
    refusal(lambda: compared(profile, links, [run]), "run", "run.json")


@pytest.mark.parametrize("name", ["run", "profile"])
def test_a_run_that_was_cut_is_refused(tmp_path, profile, links, name):
    run = run_of(tmp_path / "run", [["b"], ["a"]], [0.4])
    path = tmp_path / name / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"complete": False}))
    refusal(lambda: compared(profile, links, [run]), name, "cut")


def test_names_may_contain_commas_and_quotes(tmp_path, profile, links):
    names = ['b, "x"', "#a"]
    table = pd.DataFrame({"name": names, "nbytes": [10**6] * 2, "ready_s": [0.1, 0.2]})
    table.to_csv(profile / "gradients.csv", index=False)
    run = run_of(tmp_path / 'run, "1"', [[names[0]], [names[1]]], [0.4])
    (row,) = compared(profile, links, [run]).itertuples()
    assert (row.run, row.predicted_s) == ('run, "1"', pytest.approx(APART_S))
