"""Recording by one worker: models, workloads, run folders and their resumption, bad arguments."""

import gzip
import json
import math
import os
import re
import subprocess
import sys
from collections import UserDict
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
import torch
from torch import nn

from workbench.base.tables import rows_of
from workbench.capture import Workload, record, sweep_batches, sweep_collectives, workload
from workbench.capture.command import main
from workbench.capture.folder import Folder, Table
from workbench.capture.models import BERT, GPT2, LSTM, VGG16, ResNet50
from workbench.capture.plans import policy_of
from workbench.capture.workers import Workers
from workbench.capture.workloads import MODELS
from workbench.fits import fit_batch_time
from workbench.fusion import FixedBuffer, OneMessage, PerTensor, check_gradients
from workbench.traces import gradients, iterations, load_run

ROOT = Path(__file__).parents[1]
TINY = ["profile", "--model", "lstm", "--small", "--batch", "2", "--iterations", "2"]


def trace_of(folder, rank=0):
    with gzip.open(folder / f"rank{rank}.json.gz") as file:
        return json.load(file)


def rows(path):
    return pd.read_csv(path, comment="#")


def profiled_marks(folder):
    return rows(folder / "gradients_rank0.csv")


def small():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    batch = torch.randn(5, 8), torch.randint(4, (5,))
    return Workload(model, [batch], nn.functional.cross_entropy, about={"answer": 42})


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("capture") / "alone"
    on_cpu = Workers()
    return record(small(), folder, iterations=3, hooked=4, profiled=2, workers=on_cpu)


def on_no_device(make):
    with torch.device("meta"):
        return make()


@pytest.mark.parametrize(
    ("make", "n_gradients", "n_parameters"),
    [
        (ResNet50, 161, 25_557_032),
        (VGG16, 32, 138_357_544),
        (BERT, 206, 110_106_428),
        (GPT2, 148, 124_439_808),
        # 66 million in arXiv 1409.2329, whose layers have one bias of 6,000 and not two.
        (LSTM, 11, 66_022_000 + 2 * 6_000),
    ],
)
def test_models_have_their_published_size(make, n_gradients, n_parameters):
    sizes = [p.numel() for p in on_no_device(make).parameters()]
    assert (len(sizes), sum(sizes)) == (n_gradients, n_parameters)


@pytest.mark.parametrize(
    ("make", "name"),
    [(ResNet50, "resnet50"), (VGG16, "vgg16"), (BERT, "bert_base"), (GPT2, "gpt2")],
)
def test_models_have_the_names_and_sizes_of_the_model_table(make, name):
    table = rows(ROOT / "data/models/gradients.csv").query("model == @name")
    own = [(key, 4 * p.numel()) for key, p in on_no_device(make).named_parameters()]
    assert own[::-1] == list(zip(table["name"], table["nbytes"], strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_small_models_train_and_start_at_the_loss_of_guessing(name):
    work = workload(name, 3, small=True)
    inputs, targets = next(iter(work.batches))
    loss = work.loss(work.model(inputs), targets)
    loss.backward()
    assert all(p.grad is not None for p in work.model.parameters())
    n_classes = 10 if "image_size" in work.about else 64
    guessing = math.log(n_classes) + (math.log(2) if name == "bert-base" else 0.0)
    assert loss.item() == pytest.approx(guessing, rel=0.2)  # untrained scores are near alike


def test_attention_of_gpt2_does_not_look_ahead():
    model = workload("gpt2-small", 1, small=True).model
    tokens = torch.arange(8).reshape(1, 8)
    changed = tokens.clone()
    changed[0, 5] = 60
    before, after = (model(each).detach() for each in (tokens, changed))
    same = (before == after).all(dim=1)[0]
    assert same.tolist() == [True] * 5 + [False] * 3


def test_the_whole_input_has_the_models_own_size():
    work = workload("lstm", 3)
    assert next(iter(work.batches))[0].shape == (3, 35)
    assert work.about == {"sequence_length": 35, "batch_per_worker": 3}
    images, _ = next(iter(workload("resnet50", 2, small=True, size=40).batches))
    assert images.shape == (2, 3, 40, 40)


def test_one_process_writes_a_complete_run_folder(alone):
    names = sorted(path.name for path in alone.iterdir())
    assert names == [
        "gradients.csv",
        "gradients_rank0.csv",
        "iterations_rank0.csv",
        "rank0.json.gz",
        "ready_rank0.csv",
        "run.json",
    ]


def test_run_json_tells_the_run_in_words_and_units(alone):
    run = json.loads((alone / "run.json").read_text())
    assert run["world_size"] == run["n_nodes"] == 1 and run["complete"] is True
    assert (run["dtype"], run["n_gradients"], run["answer"]) == ("float32", 4, 42)
    assert run["n_parameters"] == 8 * 16 + 16 + 16 * 4 + 4
    assert {"hardware", "software", "date", "backend", "units"} <= set(run)
    times = rows(alone / "iterations_rank0.csv").groupby("kind")["iteration_s"].apply(list)
    assert run["iteration_s"] == times.to_dict()


def test_plain_iterations_and_those_with_hooks_take_turns(alone):
    times = rows(alone / "iterations_rank0.csv")
    turns = ["plain", "hooks"] * 3 + ["hooks"] + ["profiled"] * 2
    assert times["kind"].tolist() == turns
    assert times["iteration"].tolist() == [*range(7), 2, 3]


def test_parts_of_an_iteration_add_up_to_no_more_than_the_whole(alone):
    times = rows(alone / "iterations_rank0.csv")
    parts = times[["data_s", "forward_s", "backward_s", "update_s"]]
    assert (parts >= 0).all(axis=None) and (times["backward_s"] > 0).all()
    assert (parts.sum(axis=1) <= times["iteration_s"]).all()


def test_gradients_are_the_medians_of_the_iterations_with_hooks(alone):
    table = check_gradients(rows(alone / "gradients.csv"))
    marks = rows(alone / "ready_rank0.csv")
    assert marks.groupby("iteration").size().to_dict() == {1: 4, 3: 4, 5: 4, 6: 4}
    medians = marks.groupby("name")["ready_s"].median()
    assert table.set_index("name")["ready_s"].to_dict() == pytest.approx(
        medians.to_dict(), abs=1e-9
    )
    assert (table["low_s"] <= table["ready_s"]).all() and (table["n_iterations"] == 4).all()
    assert set(table["name"][:2]) == {"2.bias", "2.weight"}


def test_ready_times_lie_within_backward(alone):
    times = rows(alone / "iterations_rank0.csv").set_index(["kind", "iteration"])["backward_s"]
    for kind, name in (("hooks", "ready_rank0.csv"), ("profiled", "gradients_rank0.csv")):
        latest = rows(alone / name).groupby("iteration")["ready_s"].max()
        assert (latest <= times[kind][latest.index]).all() and (latest > 0).all()


@pytest.mark.gpu
def test_ready_times_of_a_gpu_lie_within_its_backward(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    work = workload("resnet50", 16, small=True, size=64)
    folder = record(work, tmp_path / "run", iterations=5, hooked=5, profiled=2)
    table = check_gradients(rows(folder / "gradients.csv"))
    times = rows(folder / "iterations_rank0.csv").query("kind == 'hooks'")
    assert len(table) == 53 and table["ready_s"].iloc[0] > 0
    assert table["ready_s"].iloc[-1] <= times["backward_s"].max()
    assert gradients(load_run(folder))["nbytes"].sum() == table["nbytes"].sum()


def accumulations(trace):
    return [e for e in trace["traceEvents"] if e["name"] == "torch::autograd::AccumulateGrad"]


def test_hooks_see_every_gradient_once_an_iteration_in_the_traces_order(alone):
    marks = profiled_marks(alone)
    assert marks.groupby("iteration").size().to_dict() == {2: 4, 3: 4}
    elements = [
        torch.Size(e["args"]["Input Dims"][0]).numel() for e in accumulations(trace_of(alone))
    ]
    assert marks["nbytes"].tolist() == [4 * n for n in elements]


def test_hooks_mark_their_gradients_inside_the_traces_operators(alone):
    operators = pd.DataFrame(accumulations(trace_of(alone)))[["ts", "dur"]] / 1e6
    table = pd.concat([profiled_marks(alone), operators], axis=1)
    # Hooks count from backward's beginning, the trace from its own: one offset an iteration.
    least = (table["ts"] - table["ready_s"]).groupby(table["iteration"]).max()
    most = (table["ts"] + table["dur"] - table["ready_s"]).groupby(table["iteration"]).min()
    assert (least <= most + 2e-6).all()  # two clocks: torch's and Python's, us apart


def test_a_profile_loads_as_a_run_with_its_gradients_and_iterations(alone):
    run = load_run(alone)
    lost = run.ledger[~run.ledger["kept"] & (run.ledger["n_events"] > 0)]
    assert set(lost["what"]) <= {"ph s", "ph f", "ph M", "ph i"}  # events that take no time
    marks = profiled_marks(alone).query("iteration == 2")
    assert gradients(run)["nbytes"].tolist() == marks["nbytes"].tolist()
    assert iterations(run)["iteration"].tolist() == [2, 3]
    assert run.info["iteration_s"]["plain"][0] > 0


def test_traces_hold_neither_host_nor_path(alone):
    trace = trace_of(alone)
    assert not {"host_name", "traceName"} & set(trace)
    assert os.uname().nodename not in {str(value) for value in trace.values()}
    assert str(alone) not in json.dumps(trace)


def test_model_is_left_without_hooks(alone, tmp_path):
    work = small()
    record(work, tmp_path / "run", iterations=1, hooked=1, profiled=1)
    assert not any(p._post_accumulate_grad_hooks for p in work.model.parameters())


def test_frozen_parameters_are_no_gradients(tmp_path):
    work = small()
    work.model[0].requires_grad_(False)
    folder = record(work, tmp_path / "run", iterations=1, hooked=1, profiled=0)
    assert set(rows(folder / "gradients.csv")["name"]) == {"2.bias", "2.weight"}


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


@pytest.mark.parametrize(
    "inputs",
    [
        (torch.ones(2, 3), torch.ones(2, 3)),
        Pair(torch.ones(2, 3), torch.ones(2, 3)),
        {"a": torch.ones(2, 3), "b": torch.ones(2, 3)},
        UserDict(a=torch.ones(2, 3), b=torch.ones(2, 3)),
    ],
)
def test_several_inputs_are_the_models_arguments(tmp_path, inputs):
    class Sum(nn.Linear):
        def forward(self, a, b):
            return super().forward(a + b)

    work = Workload(Sum(3, 2), [(inputs, torch.zeros(2, 2))] * 2, nn.functional.mse_loss)
    folder = record(work, tmp_path / "run", iterations=3, profiled=0)
    assert len(rows(folder / "iterations_rank0.csv")) == 3  # more than there are batches


def test_a_packed_sequence_is_one_input(tmp_path):
    class Last(nn.LSTM):
        def forward(self, x):
            return super().forward(x)[0].data

    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 3), torch.ones(2, 3)])
    work = Workload(Last(3, 2), [(packed, torch.zeros(5, 2))], nn.functional.mse_loss)
    record(work, tmp_path / "run", iterations=1, profiled=0)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_complete_run_is_not_done_again(alone):
    before = contents(alone)
    record(small(), alone, iterations=3, hooked=4, profiled=2)
    assert contents(alone) == before


def test_a_run_that_was_cut_goes_on_where_it_ended(tmp_path):
    folder = record(small(), tmp_path / "run", iterations=3, hooked=3, profiled=1)
    before, times = contents(folder), rows(folder / "iterations_rank0.csv")
    notes = json.loads(before["run.json"]) | {"complete": False}
    (folder / "run.json").write_text(json.dumps(notes))
    (folder / "rank0.json.gz").unlink()
    record(small(), folder, iterations=3, hooked=3, profiled=1)
    again = rows(folder / "iterations_rank0.csv")
    assert again[:6].equals(times[:6]) and again["kind"].tolist() == times["kind"].tolist()
    assert set(contents(folder)) == set(before)
    assert json.loads((folder / "run.json").read_text())["complete"] is True


def test_half_a_table_is_begun_again(tmp_path):
    folder = record(small(), tmp_path / "run", iterations=3, profiled=0)
    notes = json.loads((folder / "run.json").read_text()) | {"complete": False}
    (folder / "run.json").write_text(json.dumps(notes))
    table = folder / "iterations_rank0.csv"
    table.write_text("\n".join(table.read_text().splitlines()[:-1]))
    record(small(), folder, iterations=3, profiled=0)
    assert rows(table)["iteration"].tolist() == [0, 1, 2]


def test_a_cut_row_of_a_table_is_left_out(tmp_path):
    path = tmp_path / "table.csv"
    assert rows_of(path).empty
    with Table(path, ["a", "b"], ["source: here"]) as table:
        table.add([1, 0.5])
    with path.open("a") as file:
        file.write("2,0.2")
    assert rows_of(path).to_dict("list") == {"a": ["1"], "b": ["0.500000000"]}


def test_a_folder_of_other_settings_is_refused_and_names_the_first(alone):
    with pytest.raises(
        ValueError, match=r"holds a run with iterations 3, not 5: name a new folder"
    ):
        record(small(), alone, iterations=5, hooked=4, profiled=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a,b\n1,2\n", "a column kind, got none.*is damaged"),
        (b"\0\0\0\n", "a column kind, got none.*is damaged"),
        (b"\xff\n", "can't decode byte 0xff.*is damaged"),
        (None, "column data_s: expected finite numbers.*is damaged"),
    ],
)
def test_a_damaged_table_is_named(tmp_path, text, said):
    folder = record(small(), tmp_path / "run", iterations=2, profiled=0)
    notes = json.loads((folder / "run.json").read_text()) | {"complete": False}
    (folder / "run.json").write_text(json.dumps(notes))
    table = folder / "iterations_rank0.csv"
    table.write_bytes(text or table.read_bytes().replace(b"plain,1,0.", b"plain,1,x."))
    with pytest.raises(ValueError, match=rf"iterations_rank0\.csv: .*{said}.*record it again"):
        record(small(), folder, iterations=2, profiled=0)


def test_a_folder_of_other_workers_is_refused(alone):
    for workers, said in (
        (Workers(device=torch.device("meta")), 'device "cpu", not "meta"'),
        (Workers(backend="gloo"), 'backend "none", not "gloo"'),
    ):
        with pytest.raises(ValueError, match=f"holds a run with {said}"):
            record(small(), alone, iterations=3, hooked=4, profiled=2, workers=workers)


def test_a_run_cut_before_run_json_was_whole_is_begun_again(tmp_path):
    (tmp_path / "run.json.part").write_text('{"settings')
    assert not Folder(tmp_path, {}, Workers()).complete
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("at", ["file/run", "file", "n" * 300])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path, at):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="cannot be|not an empty folder"):
        Folder(tmp_path / at, {}, Workers())


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="not an empty folder, nor one of a run to go on with"):
        Folder(tmp_path, {}, Workers())
    assert contents(tmp_path) == {"notes.txt": b"mine"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"iterations": 0}, "iterations: expected a whole number from 1 up, got 0"),
        ({"hooked": -1}, "hooked: expected a whole number from 0 up, got -1"),
        ({"profiled": 1.5}, "profiled: expected a whole number from 0 up, got 1.5"),
    ],
)
def test_a_run_without_iterations_is_refused(tmp_path, options, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        record(small(), tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_model_with_nothing_to_train_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        record(Workload(nn.ReLU(), [], nn.functional.mse_loss), tmp_path / "run")


def test_batches_that_are_empty_are_refused(tmp_path):
    work = Workload(nn.Linear(1, 1), [], nn.functional.mse_loss)
    with pytest.raises(ValueError, match=r"\(inputs, targets\) without end or anew.*got 0 in all"):
        record(work, tmp_path / "run")


def test_a_generator_that_ends_is_refused(tmp_path):
    once = iter([(torch.ones(1, 1), torch.ones(1, 1))] * 3)
    with pytest.raises(ValueError, match="got 3 in all; a generator ends once"):
        record(Workload(nn.Linear(1, 1), once, nn.functional.mse_loss), tmp_path / "run")


X, Y = torch.ones(2, 1), torch.zeros(2, 1)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (torch.ones(2, 1), "got Tensor"),  # which would pass for two
        ((X, Y, Y), "got tuple of 3"),
        ([X], "got list of 1"),
        ({"x": X, "y": Y}, "got dict"),
    ],
)
def test_batches_that_are_no_pairs_are_refused(tmp_path, batch, said):
    with pytest.raises(ValueError, match=rf"expected pairs \(inputs, targets\), {said}"):
        record(Workload(nn.Linear(1, 1), [batch], nn.functional.mse_loss), tmp_path / "run")


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda found, _: found.flatten(), r"Tensor of shape \(2,\)"),
        (lambda found, _: found.sum().detach(), r"Tensor of shape \(\)"),
        (lambda found, _: 0.5, "0.5"),
    ],
)
def test_a_loss_that_is_no_scalar_of_the_parameters_is_refused(tmp_path, loss, said):
    with pytest.raises(ValueError, match=f"loss: expected a scalar tensor that depends.*{said}"):
        record(Workload(nn.Linear(1, 1), [(X, Y)], loss), tmp_path / "run")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": nn.Linear}, "model: expected a torch.nn.Module, got the class Linear"),
        ({"batches": 5}, "batches: expected an iterable, got 5"),
        ({"loss": None}, "loss: expected a function of outputs and targets, got None"),
        ({"optimizer": torch.optim.SGD}, "optimizer: expected one without closure"),
        (
            {"optimizer": torch.optim.LBFGS([torch.ones(1)])},
            "optimizer: expected one without closure",
        ),
        ({"about": {"loss": torch.ones(1)}}, "about: expected a dict that JSON takes whole"),
        ({"about": {"loss": math.nan}}, "about: expected a dict that JSON takes whole"),
        ({"about": "mine"}, "about: expected a dict that JSON takes whole, got 'mine'"),
    ],
)
def test_what_is_no_workload_is_refused_when_it_is_made(changed, said):
    parts = {"model": nn.Linear(1, 1), "batches": [(X, Y)], "loss": nn.functional.mse_loss}
    with pytest.raises(ValueError, match=f"Workload {said}"):
        Workload(**(parts | changed))


def test_run_json_keeps_its_own_words(tmp_path):
    work = Workload(nn.Linear(1, 1), [(X, Y)], nn.functional.mse_loss, about={"settings": "mine"})
    with pytest.raises(ValueError, match="about: settings is a word of run.json's own"):
        record(work, tmp_path / "run")
    with pytest.raises(ValueError, match="settings: expected what JSON takes"):
        record(small(), tmp_path / "other", settings={"path": tmp_path})


def test_settings_are_the_same_after_json(tmp_path):
    for _ in range(2):
        folder = record(small(), tmp_path / "run", iterations=1, settings={"sizes": (1, 2)})
    assert json.loads((folder / "run.json").read_text())["settings"]["sizes"] == [1, 2]


class Parts(nn.Module):
    """Layers by names that a table must quote, and one that no loss depends on."""

    def __init__(self):
        super().__init__()
        self.by = nn.ModuleDict({"a#b": nn.Linear(1, 2), 'c,"d': nn.Linear(2, 1)})
        self.never = nn.Linear(3, 1)

    def forward(self, x):
        return self.by['c,"d'](self.by["a#b"](x))


def test_parameters_without_a_gradient_come_last_and_names_are_kept(tmp_path):
    work = Workload(Parts(), [(X, Y)], nn.functional.mse_loss)
    folder = record(work, tmp_path / "run", iterations=1, hooked=2, profiled=0)
    table = rows_of(folder / "gradients.csv", ("name", "nbytes", "ready_s"))
    assert set(table["name"]) == set(dict(work.model.named_parameters()))
    assert table["name"].tolist()[4:] == ["never.bias", "never.weight"]
    assert table["n_iterations"].tolist() == ["2"] * 4 + ["0"] * 2
    ready = table["ready_s"].astype(float)
    assert ready.is_monotonic_increasing and len(set(ready[3:])) == 1


def test_half_a_run_whose_gradients_vary_goes_on_where_it_ended(tmp_path):
    def made():
        return Workload(Parts(), [(X, Y)], nn.functional.mse_loss)

    asked = {"iterations": 2, "hooked": 2, "profiled": 1}
    folder = record(made(), tmp_path / "run", **asked)
    times = (folder / "iterations_rank0.csv").read_text().splitlines()
    notes = json.loads((folder / "run.json").read_text()) | {"complete": False}
    (folder / "run.json").write_text(json.dumps(notes))
    record(made(), folder, **asked)
    again = (folder / "iterations_rank0.csv").read_text().splitlines()
    assert again[:-1] == times[:-1]  # but for the one profiled


def test_a_parameter_added_on_the_way_is_refused(tmp_path):
    model = nn.Linear(1, 1)

    def loss(found, targets):
        if not hasattr(model, "more"):
            model.more = nn.Parameter(torch.ones(1))
        return (found * model.more - targets).square().mean()

    with pytest.raises(ValueError, match="more was added to it while it was trained"):
        record(Workload(model, [(X, Y)], loss), tmp_path / "run", hooked=1)


def test_sparse_gradients_are_refused(tmp_path):
    work = Workload(nn.Embedding(3, 2, sparse=True), [(X, Y)], nn.functional.mse_loss)
    with pytest.raises(ValueError, match="has sparse gradients; expected sparse=False"):
        record(work, tmp_path / "run")


def test_a_policy_of_one_worker_is_refused(tmp_path):
    with pytest.raises(ValueError, match="policy: one worker sends no messages; start 2 or more"):
        record(small(), tmp_path / "run", policy=PerTensor())


def test_a_sweep_by_one_worker_is_refused(tmp_path):
    with pytest.raises(ValueError, match="2 or more workers, got 1"):
        sweep_collectives(tmp_path / "sweep")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"ops": "all_reduce"}, "ops: expected several such as .*, got 'all_reduce'"),
        ({"n_workers": 2}, "n_workers: expected several such as .*, got 2"),
        ({"n_workers": [2.5]}, "n_workers: expected a whole number from 1 up, got 2.5"),
        ({"n_workers": [4]}, "n_workers: expected 2 to 2, got 4"),
        ({"smallest": 1024.0}, "smallest: expected a whole number from 4 up, got 1024"),
        ({"smallest": 6}, "smallest a multiple of 4 bytes"),
        ({"tight": math.nan}, "tight: expected finite numbers from 0 up, got nan"),
        ({"seconds": -1}, "seconds: expected finite numbers from 0 up, got -1"),
        ({"least": 0}, "least: expected a whole number from 1 up, got 0"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(tmp_path, asked, said):
    with pytest.raises(ValueError, match=said):
        sweep_collectives(tmp_path / "sweep", workers=Workers(n_workers=2), **asked)
    assert not (tmp_path / "sweep").exists()


def test_batch_sizes_are_timed_once_and_fit(tmp_path):
    def make(batch):
        made.append(batch)
        return workload("lstm", batch, small=True)

    made, path = [], tmp_path / "batches.csv"
    sweep_batches(make, [1, 4], path, iterations=3)
    sweep_batches(make, [1, 4, 16], path, iterations=3)
    assert made == [1, 4, 16]
    table = rows(path)
    assert table.groupby("batch").size().to_dict() == {1: 3, 4: 3, 16: 3}
    model = fit_batch_time(table.assign(seconds=0.01 + 0.002 * table["batch"])).model
    assert (model.fixed_s, model.per_sample_s) == pytest.approx((0.01, 0.002))


def test_batch_sizes_that_do_not_fit_are_left_out(tmp_path):
    def make(batch):
        if batch > 2:
            raise torch.OutOfMemoryError
        return workload("lstm", batch, small=True)

    path = sweep_batches(make, [4, 1, 2], tmp_path / "batches.csv", iterations=1)
    assert rows(path)["batch"].tolist() == [1, 2]


def test_policies_are_read_from_their_names():
    assert policy_of("ddp") == (None, None)
    assert policy_of("per-tensor") == (PerTensor(), None)
    assert policy_of("one-message") == (OneMessage(), None)
    assert policy_of("fixed:64") == (FixedBuffer(64 * 2**20), None)


@pytest.mark.parametrize("text", ["horovod", "plan:", "ddp:25", ""])
def test_an_unknown_policy_is_refused_with_those_there_are(text):
    with pytest.raises(ValueError, match=r"per-tensor, one-message, fixed:<MiB> or plan:<file>"):
        policy_of(text)


@pytest.mark.parametrize("text", ["fixed", "fixed:big", "fixed:0", "fixed:nan", "fixed:inf"])
def test_a_buffer_of_no_size_is_refused(text):
    with pytest.raises(ValueError, match="expected"):
        policy_of(text)


def test_a_function_of_the_user_makes_the_workload(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom workbench.capture import Workload\n"
        "def make(batch):\n"
        "    data = torch.ones(batch, 2), torch.ones(batch, 1)\n"
        "    return Workload(torch.nn.Linear(2, 1), [data], torch.nn.functional.mse_loss)\n"
        "def nothing(batch):\n    return batch\n"
        "def two(batch, size):\n    return make(batch)\n"
        "value = 5\n"
        "def failing(batch):\n    raise ValueError('of the model')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    work = workload("mine:make", 7)
    assert work.about == {"batch_per_worker": 7}
    assert next(iter(work.batches))[0].shape == (7, 2)
    with pytest.raises(ValueError, match=r"mine:nothing\(7\) returned 7; expected a workbench"):
        workload("mine:nothing", 7)
    for name in ("mine:none", "no_such_module:make"):
        with pytest.raises(ValueError, match=f"no {name}.*Expected module:function"):
            workload(name, 7)
    for name in ("mine:two", "mine:value", "mine:"):
        with pytest.raises(ValueError, match=f"model: {name} cannot be called with a batch size"):
            workload(name, 7)
    with pytest.raises(ValueError, match="they are of built-in models; mine:make has its own"):
        workload("mine:make", 7, size=3)
    with pytest.raises(ValueError, match="of the model"):  # its traceback helps its author
        main(["profile", "--model", "mine:failing", "--out", str(tmp_path / "run")])


@pytest.mark.slow
def test_the_command_profiles_a_model(tmp_path):
    command = [sys.executable, "-m", "workbench.capture", *TINY, "--batches", "1,2"]
    command += ["--label", "for a test", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"wrote {tmp_path / 'run'}\n"
    assert len(rows(tmp_path / "run" / "batches.csv")) == 4
    assert len(rows(tmp_path / "run" / "gradients.csv")) == 11
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["settings"]["model"] == "lstm" and run["batch_per_worker"] == 2
    assert run["settings"]["label"] == "for a test"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "command"),
        (["run", "--out", "x"], "invalid choice: 'run'"),
        (["profile", "--out", "x"], "--model"),
        (["profile", "--model", "resnet51", "--out", "x"], "resnet51"),
        (["profile", "--model", "resnet50"], "--out"),
        (["train", "--model", "resnet50", "--batch", "0", "--out", "x"], "1 or more, got '0'"),
        (["train", "--model", "lstm", "--iterations", "two", "--out", "x"], "got 'two'"),
        (["train", "--model", "lstm", "--policy", "all", "--out", "x"], "fixed:<MiB>"),
        ([*TINY, "--out", str(ROOT)], "not an empty folder"),
        ([*TINY, "--out", str(ROOT / "LICENSE" / "x")], "cannot be made"),
        ([*TINY, "--timeout", "nan", "--out", "x"], "above 0 up to 1e6, got 'nan'"),
        (["train", "--model", "lstm", "--policy", "plan:none.json", "--out", "x"], "none.json"),
        (["train", "--model", "lstm", "--how", "hooks", "--out", "x"], "ddp has its own"),
        (["profile", "--model", "gpt2-small", "--size", "2000", "--out", "x"], "1 to 1024"),
        (["profile", "--model", "gpt2-small", "--small", "--size", "33", "--out", "x"], "1 to 32"),
        (["profile", "--model", "vgg16", "--small", "--size", "31", "--out", "x"], "32 or more"),
        (["profile", "--model", "resnet50", "--small", "--batch", "1", "--out", "x"], "batch of 2"),
        (["collectives", "--tight", "-1", "--out", "x"], "above 0 up to 1e6, got '-1'"),
        (
            ["plan", "--profile", "x", "--collectives", "x", "--workers", "2", "--out", "y"],
            "no gradients.csv",
        ),
        (["collectives", "--out", "x"], "2 or more workers, got 1"),
        (["collectives", "--workers", "2,b", "--out", "x"], "1 or more, got 'b'"),
        ([*TINY, "--device", "cuda", "--out", "x"], "sees no GPU"),
    ],
)
def test_bad_arguments_give_one_message_and_exit_code_2(arguments, said, capsys):
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit) as end:
        main(arguments)
    errors = [line for line in capsys.readouterr().err.splitlines() if ": error: " in line]
    assert end.value.code == 2
    assert len(errors) == 1 and said in errors[0]
