"""A Dask client does the same work as any executor."""

import contextlib
import subprocess
import sys

import pandas as pd
import pytest
from test_timeline import scenario
from test_traces import WORK, of_rank

from workbench.fusion import DDPBuckets, PerTensor
from workbench.timeline import sweep
from workbench.traces import load_run

distributed = pytest.importorskip("distributed")


@contextlib.contextmanager
def started(*arguments):
    command = [sys.executable, "-m", *arguments, "--no-dashboard"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


@contextlib.contextmanager
def address(folder):
    """Yield the address of a scheduler that runs by itself, as does its worker."""
    file = folder / "scheduler.json"
    at = ("--scheduler-file", str(file))
    here = ("--host", "127.0.0.1")
    with (
        started("distributed.cli.dask_scheduler", *here, "--port", "0", *at),
        started("distributed.cli.dask_worker", *here, "--nthreads", "1", "--no-nanny", *at),
        distributed.Client(scheduler_file=str(file)) as client,
    ):
        client.wait_for_workers(1, timeout=600)
        yield client.scheduler.address


def in_this_process(folder):
    return distributed.LocalCluster(
        n_workers=2, processes=False, threads_per_worker=1, dashboard_address=None
    )


@pytest.mark.parametrize("cluster", [in_this_process, pytest.param(address, marks=pytest.mark.all)])
def test_ranks_and_sweeps_on_a_cluster_are_as_they_are_here(write_trace, tmp_path, cluster):
    for rank in range(4):
        path = write_trace(WORK, f"run/{rank}.json", **of_rank(rank, 4))
    here, grid = (
        load_run(path.parent),
        {"n_workers": [1, 16], "fusion": [PerTensor(), DDPBuckets()]},
    )
    with cluster(tmp_path) as at, distributed.Client(at) as client:
        run = load_run(path.parent, executor=client.get_executor())
        swept = sweep(scenario(), executor=client.get_executor(), **grid)
    pd.testing.assert_frame_equal(run.events, here.events)
    pd.testing.assert_frame_equal(run.ledger, here.ledger)
    pd.testing.assert_frame_equal(swept, sweep(scenario(), **grid))
