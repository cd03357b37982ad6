"""Recording by one worker: models, workloads, run folders and their resumption, bad arguments."""

import gzip
import json
import math
import os
from collections import UserDict
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
import torch
from conftest import refusal
from torch import nn

from workbench.base.tables import rows_of
from workbench.capture import Workload, record, sweep_batches, workload
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


def notes_of(folder):
    return json.loads((folder / "run.json").read_text())


def cut(folder):
    """Make a run one that did not end."""
    (folder / "run.json").write_text(json.dumps(notes_of(folder) | {"complete": False}))


def small():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    batch = torch.randn(5, 8), torch.randint(4, (5,))
    return Workload(model, [batch], nn.functional.cross_entropy, about={"answer": 42})


ASKED = {"iterations": 3, "hooked": 4, "profiled": 2}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("capture") / "alone"
    work = small()
    record(work, folder, **ASKED, workers=Workers())  # on the CPU
    assert not any(p._post_accumulate_grad_hooks for p in work.model.parameters())
    return folder


@pytest.mark.parametrize(
    ("make", "n_gradients", "n_parameters", "name"),
    [
        (ResNet50, 161, 25_557_032, "resnet50"),
        (VGG16, 32, 138_357_544, "vgg16"),
        (BERT, 206, 110_106_428, "bert_base"),
        (GPT2, 148, 124_439_808, "gpt2"),
        # 66 million in arXiv 1409.2329, whose layers have one bias of 6,000 and not two.
        (LSTM, 11, 66_022_000 + 2 * 6_000, None),
    ],
)
def test_models_have_their_published_size_and_names(make, n_gradients, n_parameters, name):
    with torch.device("meta"):
        own = [(key, p.numel()) for key, p in make().named_parameters()]
    assert (len(own), sum(n for _, n in own)) == (n_gradients, n_parameters)
    if name:
        table = rows(ROOT / "data/models/gradients.csv").query("model == @name")
        expected = list(zip(table["name"], table["nbytes"], strict=True))
        assert [(key, 4 * n) for key, n in own[::-1]] == expected


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
    images, _ = next(iter(workload("resnet50", 2, small=True, size=40).batches))
    assert images.shape == (2, 3, 40, 40)
    work = workload("lstm", 3)
    assert next(iter(work.batches))[0].shape == (3, 35)
    assert work.about == {"sequence_length": 35, "batch_per_worker": 3}


def test_one_process_writes_a_complete_run_folder(alone):
    names = sorted(path.name for path in alone.iterdir())
    tables = ["gradients.csv", "gradients_rank0.csv", "iterations_rank0.csv"]
    assert names == [*tables, "rank0.json.gz", "ready_rank0.csv", "run.json"]
    run = notes_of(alone)
    assert run["world_size"] == run["n_nodes"] == 1 and run["complete"] is True
    assert (run["dtype"], run["n_gradients"], run["answer"]) == ("float32", 4, 42)
    assert run["n_parameters"] == 8 * 16 + 16 + 16 * 4 + 4
    assert {"hardware", "software", "date", "backend", "units"} <= set(run)
    times = rows(alone / "iterations_rank0.csv").groupby("kind")["iteration_s"].apply(list)
    assert run["iteration_s"] == times.to_dict()


def test_iterations_with_and_without_hooks_take_turns(alone):
    times = rows(alone / "iterations_rank0.csv")
    turns = ["plain", "hooks"] * 3 + ["hooks"] + ["profiled"] * 2
    assert times["kind"].tolist() == turns
    assert times["iteration"].tolist() == [*range(7), 2, 3]
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


def test_hooks_mark_their_gradients_inside_the_traces_operators(alone):
    marks, found = rows(alone / "gradients_rank0.csv"), accumulations(trace_of(alone))
    assert marks.groupby("iteration").size().to_dict() == {2: 4, 3: 4}
    elements = [torch.Size(e["args"]["Input Dims"][0]).numel() for e in found]
    assert marks["nbytes"].tolist() == [4 * n for n in elements]
    table = pd.concat([marks, pd.DataFrame(found)[["ts", "dur"]] / 1e6], axis=1)
    # Hooks count from backward's beginning, the trace from its own: one offset per iteration.
    least = (table["ts"] - table["ready_s"]).groupby(table["iteration"]).max()
    most = (table["ts"] + table["dur"] - table["ready_s"]).groupby(table["iteration"]).min()
    assert (least <= most + 2e-6).all()  # two clocks: torch's and Python's, us apart


def test_a_profile_loads_as_a_run_and_its_trace_has_neither_host_nor_path(alone):
    run = load_run(alone)
    lost = run.ledger[~run.ledger["kept"] & (run.ledger["n_events"] > 0)]
    assert set(lost["what"]) <= {"ph s", "ph f", "ph M", "ph i"}  # events that take no time
    marks = rows(alone / "gradients_rank0.csv").query("iteration == 2")
    assert gradients(run)["nbytes"].tolist() == marks["nbytes"].tolist()
    assert iterations(run)["iteration"].tolist() == [2, 3]
    assert run.info["iteration_s"]["plain"][0] > 0
    trace = trace_of(alone)
    assert not {"host_name", "traceName"} & set(trace)
    assert os.uname().nodename not in {str(value) for value in trace.values()}
    assert str(alone) not in json.dumps(trace)


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


class Sum(nn.Linear):
    def forward(self, a, b):
        return super().forward(a + b)


class Last(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0].data


ONES = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Sum, (ONES, ONES)),
        (Sum, Pair(ONES, ONES)),
        (Sum, {"a": ONES, "b": ONES}),
        (Sum, UserDict(a=ONES, b=ONES)),
        (Last, nn.utils.rnn.pack_sequence([ONES])),  # one input
    ],
)
def test_several_inputs_are_the_models_arguments(tmp_path, model, inputs):
    work = Workload(model(3, 2), [(inputs, torch.zeros(2, 2))] * 2, nn.functional.mse_loss)
    if model is Sum:
        work.model.bias.requires_grad_(False)
    folder = record(work, tmp_path / "run", iterations=3, hooked=1, profiled=0)
    assert len(rows(folder / "iterations_rank0.csv")) == 4  # more than there are batches
    ready = [name for name, p in work.model.named_parameters() if p.requires_grad]
    assert set(rows(folder / "gradients.csv")["name"]) == set(ready)  # none of frozen parameters


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_complete_run_is_not_done_again_and_others_are_refused(alone):
    before = contents(alone)
    record(small(), alone, **ASKED)
    for changed, value in (
        ({"iterations": 5}, "iterations 5"),
        ({"workers": Workers(device=torch.device("meta"))}, "cpu"),
        ({"workers": Workers(backend="gloo")}, "none"),
    ):
        text = refusal(lambda more=ASKED | changed: record(small(), alone, **more), str(alone))
        assert value in text
    assert contents(alone) == before


def test_a_run_that_was_cut_goes_on_where_it_ended(tmp_path):
    asked = {"iterations": 3, "hooked": 3, "profiled": 1}
    folder = record(small(), tmp_path / "run", **asked)
    names, times = set(contents(folder)), rows(folder / "iterations_rank0.csv")
    cut(folder)
    (folder / "rank0.json.gz").unlink()
    record(small(), folder, **asked)
    again = rows(folder / "iterations_rank0.csv")
    assert again[:6].equals(times[:6]) and again["kind"].tolist() == times["kind"].tolist()
    assert set(contents(folder)) == names
    assert notes_of(folder)["complete"] is True


def test_half_a_table_is_begun_again_and_a_damaged_one_is_named(tmp_path):
    asked = {"iterations": 3, "profiled": 0}
    folder = record(small(), tmp_path / "run", **asked)
    table = folder / "iterations_rank0.csv"
    whole = table.read_bytes()
    cut(folder)
    table.write_text("\n".join(table.read_text().splitlines()[:-1]))
    record(small(), folder, **asked)
    assert rows(table)["iteration"].tolist() == [0, 1, 2]
    for text in (b"a,b\n1,2\n", b"\0\n", b"\xff\n", whole.replace(b"plain,1,0.", b"plain,1,x.")):
        cut(folder)
        table.write_bytes(text)
        refusal(lambda: record(small(), folder, **asked), "iterations_rank0.csv")


def test_a_cut_row_of_a_table_is_left_out(tmp_path):
    path = tmp_path / "table.csv"
    assert rows_of(path).empty
    with Table(path, ["a", "b"], ["source: here"]) as table:
        table.add([1, 0.5])
    with path.open("a") as file:
        file.write("2,0.2")
    assert rows_of(path).to_dict("list") == {"a": ["1"], "b": ["0.500000000"]}


def test_a_run_cut_before_run_json_was_whole_is_begun_again(tmp_path):
    (tmp_path / "run.json.part").write_text('{"settings')
    assert not Folder(tmp_path, {}, Workers()).complete
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("at", ["file/run", "file", "n" * 300, ""])
def test_a_folder_that_cannot_be_made_or_has_other_files_is_refused(tmp_path, at):
    (tmp_path / "file").write_text("mine")
    refusal(lambda: Folder(tmp_path / at, {}, Workers()), str(tmp_path / at))
    assert contents(tmp_path) == {"file": b"mine"}


X, Y = torch.ones(2, 1), torch.zeros(2, 1)


def linear(batches=((X, Y),), loss=nn.functional.mse_loss, model=None, **more):
    return Workload(model or nn.Linear(1, 1), batches, loss, **more)


@pytest.mark.parametrize(
    ("make", "argument", "value"),
    [
        (lambda: linear([torch.ones(2, 1)]), "batches", "Tensor"),  # which would pass for two
        (lambda: linear([(X, Y, Y)]), "batches", "tuple of 3"),
        (lambda: linear([[X]]), "batches", "list of 1"),
        (lambda: linear([{"x": X, "y": Y}]), "batches", "dict"),
        (lambda: linear([]), "batches", 0),
        (lambda: linear(iter([(X, Y)] * 3)), "batches", 3),
        (lambda: linear(loss=lambda found, _: found.flatten()), "loss", "shape (2,)"),
        (lambda: linear(loss=lambda found, _: found.sum().detach()), "loss", "shape ()"),
        (lambda: linear(loss=lambda found, _: 0.5), "loss", 0.5),
        (lambda: linear(model=nn.ReLU()), "model", "none"),
        (lambda: linear(model=nn.Embedding(3, 2, sparse=True)), "model", "sparse"),
        (lambda: linear(about={"settings": "mine"}), "about", "settings"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path, make, argument, value):
    refusal(lambda: record(make(), tmp_path / "run"), argument, value)


def test_settings_are_the_same_after_json(tmp_path):
    for _ in range(2):
        asked = {"iterations": 1, "profiled": 0, "settings": {"sizes": (1, 2)}}
        folder = record(small(), tmp_path / "run", **asked)
    assert notes_of(folder)["settings"]["sizes"] == [1, 2]


class Parts(nn.Module):
    """Layers with names that a table must quote, and one that no loss depends on."""

    def __init__(self):
        super().__init__()
        self.by = nn.ModuleDict({"a#b": nn.Linear(1, 2), 'c,"d': nn.Linear(2, 1)})
        self.never = nn.Linear(3, 1)

    def forward(self, x):
        return self.by['c,"d'](self.by["a#b"](x))


def test_parameters_without_a_gradient_come_last_and_names_are_kept(tmp_path):
    work, asked = linear(model=Parts()), {"iterations": 2, "hooked": 2, "profiled": 1}
    folder = record(work, tmp_path / "run", **asked)
    table = rows_of(folder / "gradients.csv", ("name", "nbytes", "ready_s"))
    assert set(table["name"]) == set(dict(work.model.named_parameters()))
    assert table["name"].tolist()[4:] == ["never.bias", "never.weight"]
    assert table["nbytes"].tolist()[4:] == ["4", "12"]
    assert table["n_iterations"].tolist() == ["2"] * 4 + ["0"] * 2
    ready = table["ready_s"].astype(float)
    assert ready.is_monotonic_increasing and len(set(ready[3:])) == 1
    times = (folder / "iterations_rank0.csv").read_text().splitlines()
    cut(folder)
    record(linear(model=Parts()), folder, **asked)
    again = (folder / "iterations_rank0.csv").read_text().splitlines()
    assert again[:-1] == times[:-1]  # except for the profiled one


def test_a_parameter_added_on_the_way_is_refused(tmp_path):
    model = nn.Linear(1, 1)

    def loss(found, targets):
        if not hasattr(model, "more"):
            model.more = nn.Parameter(torch.ones(1))
        return (found * model.more - targets).square().mean()

    work = linear(loss=loss, model=model)
    refusal(lambda: record(work, tmp_path / "run", hooked=1), "model", "more")


def test_batch_sizes_are_timed_once_and_fit(tmp_path):
    def make(batch):
        made.append(batch)
        if batch > 16:
            raise torch.OutOfMemoryError
        return linear()

    made, path = [], tmp_path / "batches.csv"
    sweep_batches(make, [1, 4], path, iterations=3)
    sweep_batches(make, [64, 32, 1, 4, 16], path, iterations=3)
    assert made == [1, 4, 16, 32]  # 64 does not fit either
    table = rows(path)
    assert table.groupby("batch").size().to_dict() == {1: 3, 4: 3, 16: 3}
    model = fit_batch_time(table.assign(seconds=0.01 + 0.002 * table["batch"])).model
    assert (model.fixed_s, model.per_sample_s) == pytest.approx((0.01, 0.002))


def test_policies_are_read_from_their_names():
    assert policy_of("ddp") == (None, None)
    assert policy_of("per-tensor") == (PerTensor(), None)
    assert policy_of("one-message") == (OneMessage(), None)
    assert policy_of("fixed:64") == (FixedBuffer(64 * 2**20), None)


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
    for name in (
        "mine:nothing",
        "mine:none",
        "no_such_module:make",
        "mine:two",
        "mine:value",
        "mine:",
    ):
        refusal(lambda name=name: workload(name, 7), "model", name)
    refusal(lambda: workload("mine:make", 7, size=3), "size", 3)
    with pytest.raises(ValueError, match="of the model"):  # its traceback helps its author
        main(["profile", "--model", "mine:failing", "--out", str(tmp_path / "run")])


def test_the_command_profiles_a_model(tmp_path, capsys):
    folder = tmp_path / "run"
    main([*TINY, "--batches", "1,2", "--label", "for a test", "--out", str(folder)])
    assert capsys.readouterr().out == f"wrote {folder}\n"
    assert len(rows(folder / "batches.csv")) == 4
    assert len(rows(folder / "gradients.csv")) == 11
    run = notes_of(folder)
    assert run["settings"]["model"] == "lstm" and run["batch_per_worker"] == 2
    assert run["settings"]["label"] == "for a test"


def train(*arguments, model="lstm"):
    return ["train", "--model", model, "--out", "x", *arguments]


PLAN = ["plan", "--profile", "x", "--collectives", "x", "--workers", "2", "--out", "y"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "command"),
        (["run", "--out", "x"], "'run'"),
        (["profile", "--out", "x"], "--model"),
        (["profile", "--model", "resnet50"], "--out"),
        (train(model="resnet51"), "resnet51"),
        (train("--batch", "0"), "'0'"),
        (train("--iterations", "two"), "'two'"),
        (train("--policy", "all"), "fixed:<MiB>"),
        (train("--policy", "plan:none.json"), "none.json"),
        (train("--how", "hooks"), "--how"),
        (train("--size", "2000", model="gpt2-small"), "1 to 1024"),
        (train("--small", "--size", "33", model="gpt2-small"), "1 to 32"),
        (train("--small", "--size", "31", model="vgg16"), "32 or more"),
        (train("--small", "--batch", "1", model="resnet50"), "batch"),
        ([*TINY, "--out", str(ROOT)], str(ROOT)),
        ([*TINY, "--out", str(ROOT / "LICENSE" / "x")], "LICENSE"),
        ([*TINY, "--timeout", "nan", "--out", "x"], "'nan'"),
        ([*TINY, "--device", "cuda", "--out", "x"], "GPU"),
        (["collectives", "--tight", "-1", "--out", "x"], "'-1'"),
        (["collectives", "--workers", "2,b", "--out", "x"], "'b'"),
        (["collectives", "--out", "x"], "workers: "),
        (PLAN, "no such folder"),
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
