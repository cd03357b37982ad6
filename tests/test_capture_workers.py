"""Several workers: launchers, training runs, collectives, and what happens when one is lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import refusal
from ranks import free_port
from scipy import stats

from workbench.base.tables import MEASUREMENTS, check
from workbench.capture import read_plan, workload
from workbench.capture.collectives import interval
from workbench.capture.hooks import sizes
from workbench.capture.plans import write_messages
from workbench.capture.workers import Workers, announced, joined
from workbench.traces import collectives, gradients, iterations, load_run, read_measurements

ROOT = Path(__file__).parents[1]
RANKS = Path(__file__).parent / "tools" / "ranks.py"
ENVIRONMENT = os.environ | {
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
TINY = ["--model", "lstm", "--small", "--batch", "2"]
SWEEP = ["collectives", "--ops", "all_reduce,reduce_scatter,all_gather", "--workers", "2,3"]
SWEEP += ["--smallest", "1024", "--largest", "4096", "--seconds", "0.02"]
LOST = "; files written so far are kept"


def started(folder, launcher, n, *arguments, **environment):
    folder.mkdir(parents=True)
    command = [sys.executable, str(RANKS), str(folder), launcher, str(n), *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT | environment)


def ended(process, folder):
    """Return exit codes, what was printed, each by rank, and the lines about lost workers."""
    try:
        process.wait(150)
    finally:
        process.kill()
    codes = json.loads((folder / "codes.json").read_text())
    said = [(folder / f"{rank}.err").read_text() for rank in range(len(codes))]
    lines = [line for text in said for line in text.splitlines() if "workbench.capture:" in line]
    return codes, said, lines


def launch(folder, launcher, n, *arguments, **environment):
    codes, said, _ = ended(started(folder, launcher, n, *arguments, **environment), folder)
    assert codes == [0] * n, said


def rows(path):
    return pd.read_csv(path, comment="#")


@pytest.fixture(scope="module")
def messages():
    """A plan in reverse registration order, which is not quite that of backward."""
    names = list(sizes(workload("lstm", 1, small=True).model))[::-1]
    return [names[:3], names[3:7], names[7:]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, messages):
    """Two workers under torchrun, in the messages of a plan."""
    folder = tmp_path_factory.mktemp("train") / "run"
    plan = write_messages(folder.parent / "plan.json", messages)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += ["2", "-m", "workbench.capture", "train", *TINY, "--iterations", "4"]
    command += ["--policy", f"plan:{plan}", "--out", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Three workers under SLURM's variables, sub-worlds of two and three."""
    folder = tmp_path_factory.mktemp("collectives")
    launch(folder / "ranks", "slurm", 3, *SWEEP, "--out", folder / "sweep")
    return folder / "sweep"


@pytest.mark.slow
def test_every_rank_writes_its_iterations_and_sends_the_messages_of_the_plan(trained, messages):
    for rank in (0, 1):
        times = rows(trained / f"iterations_rank{rank}.csv")
        assert times["kind"].tolist() == ["plain"] * 4 + ["profiled"] * 3
        assert (times[["forward_s", "backward_s", "update_s", "iteration_s"]] > 0).all(axis=None)
        ready = rows(trained / f"gradients_rank{rank}.csv")
        assert ready.groupby("iteration").size().to_dict() == {2: 11, 3: 11, 4: 11}
    run = json.loads((trained / "run.json").read_text())
    plan, names = read_plan(trained / "plan.json")
    assert (plan.counts, names) == ((3, 4, 4), [name for each in messages for name in each])
    assert run["as_planned"] is True and run["n_messages"] == 3
    marks = rows(trained / "gradients_rank0.csv").query("iteration == 2")["name"].tolist()
    assert marks != names  # in this order torch's own limits would have made other messages
    assert run["wrapper"] == "Planned"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:clocks of the ranks:UserWarning")  # of a machine that is busy
def test_traces_of_workers_load_whole_with_the_messages_of_the_plan(trained, messages):
    run = load_run(trained)
    lost = run.ledger[~run.ledger["kept"] & (run.ledger["n_events"] > 0)]
    assert set(lost["what"]) <= {"ph s", "ph f", "ph M", "ph i"}  # events that take no time
    ready = rows(trained / "gradients_rank0.csv")
    nbytes = ready.query("iteration == 2")["nbytes"]
    assert gradients(run)["nbytes"].tolist() == nbytes.tolist()
    table = iterations(run)
    assert table["iteration"].tolist() == [2, 3, 4] * 2
    assert (table["comm_s"] > 0).all() and (table["duration_s"] > table["exposed_comm_s"]).all()
    sent = collectives(run.events).query("op == 'all_reduce' and iteration >= 0")
    nbytes = ready.groupby("name")["nbytes"].first()
    planned = sorted(int(nbytes[message].sum()) for message in messages)
    # Two threads of gloo take the messages in order, but either may begin first.
    assert sent.groupby("iteration")["nbytes"].apply(sorted).tolist() == [planned] * 3
    assert set(sent["n_workers"]) == set(sent["n_ranks_seen"]) == {2}


@pytest.mark.slow
def test_a_sweep_times_each_collective_in_each_sub_world(swept):
    table = check(rows(swept / "collectives.csv"), MEASUREMENTS, "sweep")
    counted = table.groupby(["op", "n_workers"]).size()
    assert counted.to_dict() == {
        (op, n): 3 for op in ("all_reduce", "reduce_scatter", "all_gather") for n in (2, 3)
    }
    shared = table[(table["op"] != "all_reduce") & (table["n_workers"] == 3)]
    assert set(shared["nbytes"]) == {1020, 2040, 4092}  # whole floats for each of three
    assert set(table["n_nodes"]) == {1}
    for low, high in (("min_s", "low_s"), ("low_s", "seconds"), ("seconds", "high_s")):
        assert (table[low] <= table[high]).all()
    assert read_measurements(swept / "collectives.csv")["seconds"].tolist() == pytest.approx(
        table["seconds"].tolist(), abs=1e-9
    )


@pytest.mark.all
def test_a_sweep_that_was_cut_is_completed_and_what_is_there_stays(swept, tmp_path):
    folder = tmp_path / "sweep"
    shutil.copytree(swept, folder)
    whole = (folder / "collectives.csv").read_text().splitlines()
    (folder / "collectives.csv").write_text("\n".join([*whole[:-2], whole[-2][:20]]))
    notes = json.loads((folder / "run.json").read_text()) | {"complete": False}
    (folder / "run.json").write_text(json.dumps(notes))
    launch(tmp_path / "ranks", "torchrun", 3, *SWEEP, "--out", folder)
    again = (folder / "collectives.csv").read_text().splitlines()
    data = [line for line in whole if not line.startswith("#")]
    now = [line for line in again if not line.startswith("#")]
    assert now[:-2] == data[:-2]
    assert [line.split(",")[:4] for line in now] == [line.split(",")[:4] for line in data]
    assert json.loads((folder / "run.json").read_text())["complete"]


def wait_for(path, lines, process):
    until = time.monotonic() + 900
    while time.monotonic() < until and process.poll() is None:
        if path.exists() and path.read_text().count("\n") > lines:
            return
        time.sleep(0.05)
    raise AssertionError(f"{path}: no {lines} lines")


@pytest.mark.all
def test_a_killed_rank_ends_the_others_with_one_message_that_names_it(tmp_path):
    out, folder = tmp_path / "run", tmp_path / "ranks"
    arguments = ["train", *TINY, "--iterations", "100000", "--timeout", "900", "--out", out]
    process = started(folder, "torchrun", 3, *arguments)
    wait_for(out / "iterations_rank1.csv", 10, process)
    os.kill(json.loads((folder / "pids.json").read_text())[1], signal.SIGKILL)
    began = time.monotonic()
    codes, said, lines = ended(process, folder)
    assert time.monotonic() - began < 900
    assert codes == [1, -signal.SIGKILL, 1]
    assert lines == [f"workbench.capture: rank 1 was lost{LOST}"]
    assert not any("Traceback" in text for text in said)
    for rank in (0, 2):
        times = rows(out / f"iterations_rank{rank}.csv")
        assert len(times) >= 7 and times.notna().all(axis=None)
    assert json.loads((out / "run.json").read_text())["complete"] is False


BROKEN = """
import sys
import torch, torch.distributed as dist
from workbench.capture import Workload

def loss(outputs, targets):
    loss.calls += 1
    if loss.calls == 6 and dist.get_rank() == 1:
        raise KeyError("no such label")
    return (outputs - targets).square().mean()

loss.calls = 0

class Unused(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self.never = torch.nn.Linear(2, 2)

def unused(batch):
    data = torch.ones(batch, 2), torch.ones(batch, 2)
    return Workload(Unused(), [data], torch.nn.functional.mse_loss)

def exits(batch):
    return Workload(torch.nn.Linear(2, 2), [(torch.ones(batch, 2), 0)], lambda *_: sys.exit(3))

def wrong(batch):
    def loss(outputs, targets):
        raise ValueError("no such class")
    return Workload(torch.nn.Linear(2, 2), [(torch.ones(batch, 2), 0)], loss)

def make(batch):
    return Workload(torch.nn.Linear(2, 2), [(torch.ones(batch, 2), torch.ones(batch, 2))], loss)
"""


@pytest.fixture
def broken(tmp_path):
    """Return the start of a training with a model of BROKEN."""
    (tmp_path / "broken.py").write_text(BROKEN)

    def start(n, model, *arguments):
        command = ["train", "--model", f"broken:{model}", *arguments, "--out", tmp_path / "run"]
        path = {"PYTHONPATH": str(tmp_path)}
        return ended(
            started(tmp_path / "ranks", "torchrun", n, *command, **path), tmp_path / "ranks"
        )

    return start


@pytest.mark.slow
def test_an_error_of_one_rank_ends_the_others_with_that_rank_named_once(broken):
    codes, said, lines = broken(2, "make")
    assert codes == [1, 1]
    assert lines == [f"workbench.capture: rank 1 failed: KeyError: 'no such label'{LOST}"]
    assert "Traceback" not in said[0] and "Traceback" in said[1]


@pytest.mark.all
@pytest.mark.parametrize(
    ("model", "words"), [("exits", "SystemExit: 3"), ("wrong", "ValueError: no such class")]
)
def test_what_ends_the_ranks_is_said_once(broken, model, words):
    codes, _, lines = broken(3, model)
    assert 0 not in codes
    assert len(lines) == 1 and lines[0].endswith(f"failed: {words}{LOST}")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["ddp", pytest.param("per-tensor", marks=pytest.mark.all)])
def test_parameters_that_are_not_used_are_found_out(tmp_path, broken, policy):
    codes, said, _ = broken(2, "unused", "--iterations", "2", "--policy", policy, "--profiled", "0")
    assert codes == [0, 0], said
    sent = json.loads((tmp_path / "run" / "plan.json").read_text())["messages"]
    assert {name for each in sent for name in each} >= {"never.weight", "never.bias", "weight"}


def slurm(**values):
    return {f"SLURM_{name}": str(value) for name, value in values.items()}


NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
HOSTS = "gpu[03-05,9],cpu1"
JOB = slurm(JOB_ID=9, JOB_NODELIST="a[1-4]", TASK_PID=77, NTASKS=32, PROCID=0, NTASKS_PER_NODE=8)
STEP = slurm(STEP_NUM_TASKS=4, STEP_TASKS_PER_NODE="2(x2)", STEP_ID=3, STEP_NODELIST="a[2-3]")


@pytest.mark.parametrize(
    ("environment", "values"),
    [
        (
            slurm(
                PROCID=5, NTASKS=8, LOCALID=1, NTASKS_PER_NODE=4, JOB_ID=123456, JOB_NODELIST=HOSTS
            ),
            ("5", "8", "1", "4", "gpu03", "23456"),
        ),
        (JOB, ()),  # a job's script is alone
        (JOB | STEP | slurm(PROCID=1), ("1", "4", None, "2", "a2", "20012")),
        (
            slurm(PROCID=1, NTASKS=1, JOB_NODELIST="there")
            | {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"},
            ("0", "2", None, None, "here", "1"),  # torchrun's come first
        ),
    ],
)
def test_launchers_announce_a_worker(environment, values):
    expected = {name: value for name, value in zip(NAMES, values, strict=False) if value}
    assert announced(environment) == expected


def test_workers_that_do_not_come_are_named(monkeypatch):
    announcement = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for name, value in (announcement | {"MASTER_PORT": free_port()}).items():
        monkeypatch.setenv(name, value)
    refusal(lambda: joined(timeout_s=1.0).__enter__(), "workers", "127.0.0.1")


@pytest.mark.parametrize(
    ("hosts", "first"), [("gpu03", "gpu03"), ("a1,a2", "a1"), ("n[7]", "n7"), ("x-[01-2]", "x-01")]
)
def test_the_first_host_of_a_job_is_where_workers_meet(hosts, first):
    assert announced({"SLURM_JOB_NODELIST": hosts, "SLURM_JOB_ID": "1"})["MASTER_ADDR"] == first


def test_nodes_of_a_sub_world_fill_one_after_another():
    workers = Workers(n_workers=8, workers_per_node=4)
    assert [workers.nodes_of(n) for n in (1, 4, 5, 8)] == [1, 1, 2, 2]


@pytest.mark.parametrize("backend", ["nccl", "mpi"])
def test_a_backend_that_is_not_there_is_refused_by_name(backend):
    if torch.cuda.is_available() or torch.distributed.is_mpi_available():
        pytest.skip("this torch has it")
    refusal(lambda: joined(backend).__enter__(), "backend", backend)


def test_an_interval_contains_the_median_with_95_percent_or_more():
    for n in range(6, 300):
        low, high = interval(list(range(n)))
        coin = stats.binom(n, 0.5)  # how many of n times are below the true median
        held = coin.cdf(high) - coin.cdf(low)
        assert held >= 0.95
        if n > 100:
            assert held < 0.98  # and hardly wider than need be
