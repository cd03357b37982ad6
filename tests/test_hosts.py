"""The scripts for several nodes that `workbench.capture` documents, on namespaces as hosts."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import netlab
import pandas as pd
import pytest

import workbench.capture
from workbench.traces import load_run, read_measurements

ROOT = Path(__file__).parents[1]
TINY = "lstm --small --batch 2"
# The part of srun that matters: one task per node with its variables, and a code if one fails.
SRUN = """#!/bin/bash
hosts=($HOSTS) n=2 code=0
while [[ $1 == --* ]]; do [[ $1 == --ntasks ]] && n=$2; shift 2; done
export SLURM_NTASKS=$n SLURM_STEP_NUM_TASKS=$n SLURM_LOCALID=0 SLURM_NTASKS_PER_NODE=1
for ((rank = 0; rank < n; rank++)); do
    SLURM_PROCID=$rank ip netns exec ${hosts[rank]} "$@" & started+=($!)
done
for each in ${started[@]}; do wait $each || code=1; done
exit $code
"""


@pytest.fixture
def two_hosts():
    if why := netlab.missing():
        pytest.skip(f"no emulated networks: {why}")
    with netlab.hosts(netlab.Network(1000, 100), 2) as hosts:
        yield hosts


def environment(folder, hosts):
    return os.environ | {
        "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GLOO_SOCKET_IFNAME": hosts[0].interface,
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


def shown(beginning, end):
    """The lines of the documentation from one to another, as a shell script."""
    (found,) = re.findall(rf"^ +{beginning}.*?^ +{end}$", workbench.capture.__doc__, re.M | re.S)
    return textwrap.dedent(found)


def instead(script, changes):
    for old, new in changes.items():
        assert old in script, old
        script = script.replace(old, new)
    return script


@pytest.mark.all
@pytest.mark.slow
def test_torchrun_starts_workers_on_every_node_as_documented(two_hosts, tmp_path):
    command = instead(
        shown("torchrun --nnodes 2", ".*shared/ddp"),
        {"--nproc-per-node 8": "--nproc-per-node 1", "bert-base": f"{TINY} --iterations 3"},
    )
    each = [
        subprocess.Popen(
            ["ip", "netns", "exec", host.namespace, "bash", "-c", command],
            cwd=tmp_path,
            env=environment(tmp_path, two_hosts)
            | {"NODE": str(node), "NODE_0": two_hosts[0].address},
            stderr=subprocess.PIPE,
            text=True,
        )
        for node, host in enumerate(two_hosts)
    ]
    said = [process.communicate(timeout=900)[1] for process in each]
    assert [process.returncode for process in each] == [0, 0], said
    run = load_run(tmp_path / "shared" / "ddp")
    assert sorted(run.events["rank"].unique()) == [0, 1]
    assert set(run.events["n_workers"].dropna()) == {2}


@pytest.mark.all
@pytest.mark.slow
def test_a_job_of_slurm_goes_from_profile_to_a_run_as_planned(two_hosts, tmp_path):
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    script = instead(
        shown("#!/bin/bash", r"[^\n]* compare [^\n]*"),
        {
            "bert-base": f"{TINY} --iterations 3",
            "--workers 2,8,16,32": "--workers 2 --largest 65536 --seconds 0.02",
            "--workers 32": "--workers 2",
        },
    )
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "10.231.7.[1-2]"}
    job["HOSTS"] = " ".join(host.namespace for host in two_hosts)
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env=environment(tmp_path, two_hosts) | job,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    timed = read_measurements(tmp_path / "links" / "collectives.csv")
    assert set(timed["op"]) == {"all_reduce", "reduce_scatter", "all_gather"}
    assert set(timed["n_workers"]) == set(timed["n_nodes"]) == {2}
    for name in ("ddp", "fixed", "plan"):
        told = json.loads((tmp_path / name / "run.json").read_text())
        assert (told["world_size"], told["n_nodes"]) == (2, 2), name
        times = [tmp_path / name / f"iterations_rank{rank}.csv" for rank in (0, 1)]
        assert [len(pd.read_csv(path, comment="#").query("kind == 'plain'")) for path in times] == [
            3,
            3,
        ]
    said = [line.split() for line in done.stdout.splitlines()]
    assert [words[:2] for words in said if words[:1] in (["ddp"], ["fixed"], ["plan"])][-3:] == [
        ["ddp", "ddp"], ["fixed", "fixed:64"], ["plan", "plan:p.json"]]  # fmt: skip
    planned = json.loads((tmp_path / "plan" / "run.json").read_text())
    assert planned["as_planned"] is True
