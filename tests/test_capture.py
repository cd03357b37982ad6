"""Recording: model definitions, run folders by one and two workers, the sweep, bad arguments."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from workbench.capture import ResNet50, Transformer, main, record, sweep_all_reduce
from workbench.tables import MEASUREMENTS, check

ROOT = Path(__file__).parents[1]
TINY = ["--model", "resnet50", "--batch", "2", "--image-size", "32", "--iterations", "2"]


def trace_of(folder, rank=0):
    with gzip.open(folder / f"rank{rank}.json.gz") as file:
        return json.load(file)


def accumulations(trace):
    return [e for e in trace["traceEvents"] if e["name"] == "torch::autograd::AccumulateGrad"]


def hook_times(folder, rank=0):
    return pd.read_csv(folder / f"gradients_rank{rank}.csv", comment="#")


def torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += ["2", "-m", "workbench.capture", *map(str, arguments)]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    batch = torch.randn(5, 8), torch.randint(4, (5,))
    folder = tmp_path_factory.mktemp("capture") / "alone"
    return record(model, batch, nn.functional.cross_entropy, folder, iterations=2)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("capture") / "two"
    torchrun("run", *TINY, "--out", folder)
    return folder


def test_resnet50_has_the_published_number_of_gradients_and_parameters():
    sizes = [p.numel() for p in ResNet50().parameters()]
    assert (len(sizes), sum(sizes)) == (161, 25_557_032)


def test_resnet50_has_the_names_and_sizes_of_the_model_table():
    table = pd.read_csv(ROOT / "data/models/gradients.csv", comment="#")
    table = table[table["model"] == "resnet50"]
    own = [(name, 4 * p.numel()) for name, p in ResNet50().named_parameters()]
    assert own[::-1] == list(zip(table["name"], table["nbytes"], strict=True))


def test_models_give_one_score_a_class():
    assert ResNet50(n_classes=7)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    tokens = torch.zeros(2, 128, dtype=torch.int64)
    assert Transformer(n_tokens=50)(tokens).shape == (2, 50, 128)


def test_one_process_writes_a_complete_run_folder(alone):
    names = sorted(path.name for path in alone.iterdir())
    assert names == ["gradients_rank0.csv", "rank0.json.gz", "run.json"]


def test_run_json_tells_the_run_in_words_and_units(alone):
    run = json.loads((alone / "run.json").read_text())
    assert run["world_size"] == run["n_nodes"] == 1
    assert (run["dtype"], run["batch_per_worker"], run["n_gradients"]) == ("float32", 5, 4)
    assert run["n_parameters"] == 8 * 16 + 16 + 16 * 4 + 4
    assert {"hardware", "software", "date", "backend", "iteration_s", "units"} <= set(run)


def test_hooks_see_every_gradient_once_an_iteration_in_the_traces_order(alone):
    times = hook_times(alone)
    assert times.groupby("iteration").size().to_dict() == {2: 4, 3: 4}
    assert times["name"].tolist()[:2] == ["2.bias", "2.weight"]
    elements = [
        torch.Size(e["args"]["Input Dims"][0]).numel() for e in accumulations(trace_of(alone))
    ]
    assert times["nbytes"].tolist() == [4 * n for n in elements]


def test_hook_times_never_decrease(alone):
    assert (hook_times(alone).groupby("iteration")["ready_s"].diff().dropna() >= 0).all()


def test_hooks_mark_their_gradients_inside_the_traces_operators(alone):
    operators = pd.DataFrame(accumulations(trace_of(alone)))[["ts", "dur"]] / 1e6
    table = pd.concat([hook_times(alone), operators], axis=1)
    # Hooks count from backward's beginning, the trace from its own: one offset an iteration.
    least = (table["ts"] - table["ready_s"]).groupby(table["iteration"]).max()
    most = (table["ts"] + table["dur"] - table["ready_s"]).groupby(table["iteration"]).min()
    assert (least <= most + 2e-6).all()  # two clocks: torch's and Python's, us apart


def test_traces_hold_neither_host_nor_path(alone):
    trace = trace_of(alone)
    assert not {"host_name", "traceName"} & set(trace)
    assert os.uname().nodename not in {str(value) for value in trace.values()}
    assert str(alone) not in json.dumps(trace)


def test_model_is_left_without_hooks(tmp_path):
    model = nn.Linear(3, 2)
    batch = torch.ones(2, 3), torch.zeros(2, 2)
    record(model, batch, nn.functional.mse_loss, tmp_path / "run", iterations=1)
    assert not model.weight._post_accumulate_grad_hooks


def test_frozen_parameters_are_no_gradients(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).requires_grad_(False)
    model[1].requires_grad_(True)
    batch = torch.ones(2, 3), torch.zeros(2, 1)
    folder = record(model, batch, nn.functional.mse_loss, tmp_path / "run", iterations=1)
    assert hook_times(folder)["name"].tolist() == ["1.bias", "1.weight"]


def test_a_folder_with_files_is_refused(alone):
    with pytest.raises(ValueError, match="not an empty folder"):
        record(nn.Linear(1, 1), (torch.ones(1, 1),) * 2, nn.functional.mse_loss, alone)


def test_a_run_without_iterations_is_refused(tmp_path):
    with pytest.raises(ValueError, match="iterations: expected 1 or more, got 0"):
        record(nn.Linear(1, 1), (), None, tmp_path / "run", iterations=0)


def test_a_model_with_nothing_to_train_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        record(nn.ReLU(), (), None, tmp_path / "run")


def test_a_sweep_by_one_worker_is_refused(tmp_path):
    with pytest.raises(ValueError, match="2 or more workers, got 1"):
        sweep_all_reduce(tmp_path / "sweep.csv")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "command"),
        (["run", "--out", "x"], "--model"),
        (["run", "--model", "resnet51", "--out", "x"], "resnet51"),
        (["run", "--model", "resnet50"], "--out"),
        (["run", "--model", "resnet50", "--batch", "0", "--out", "x"], "1 or more, got '0'"),
        (["run", "--model", "resnet50", "--iterations", "two", "--out", "x"], "got 'two'"),
        (["run", "--model", "resnet50", "--out", str(ROOT)], "not an empty folder"),
        (["sweep", "--out", "x"], "2 or more workers, got 1"),
        (["sweep", "--smallest", "8", "--largest", "4", "--out", "x"], "smallest <= largest"),
    ],
)
def test_bad_arguments_give_one_message_and_exit_code_2(arguments, said, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    errors = [line for line in capsys.readouterr().err.splitlines() if ": error: " in line]
    assert end.value.code == 2
    assert len(errors) == 1 and said in errors[0]


@pytest.mark.slow
def test_two_workers_write_a_trace_and_hook_times_each(two):
    for rank in (0, 1):
        info = trace_of(two, rank)["distributedInfo"]
        assert (info["rank"], info["world_size"], info["backend"]) == (rank, 2, "gloo")
        assert len(hook_times(two, rank)) == 2 * 161
    assert json.loads((two / "run.json").read_text())["world_size"] == 2


@pytest.mark.slow
def test_two_workers_reduce_every_gradient_in_each_iteration(two):
    for rank in (0, 1):
        events = trace_of(two, rank)["traceEvents"]
        sent = [e["args"]["Input Dims"][0][0] for e in events if e["name"] == "gloo:all_reduce"]
        assert sum(sent) == 2 * 25_557_032
        assert len(accumulations({"traceEvents": events})) == 2 * 161


@pytest.mark.slow
def test_two_workers_sweep_all_reduces(tmp_path):
    path = tmp_path / "sweep.csv"
    torchrun("sweep", "--largest", 8192, "--seconds", "0.01", "--out", path)
    table = check(pd.read_csv(path, comment="#"), MEASUREMENTS, "sweep")
    assert table["nbytes"].tolist() == [1024, 2048, 4096, 8192]
    assert set(table["op"]) == {"all_reduce"} and set(table["n_workers"]) == {2}
    assert (table["min_s"] > 0).all()
    assert (table["min_s"] <= table["seconds"]).all() and (table["seconds"] <= table["p90_s"]).all()
