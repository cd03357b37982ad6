"""A Dask client takes the same work as any executor, whoever started its workers."""

import contextlib
import subprocess
import sys

import pandas as pd
import pytest
from test_traces import WORK, of_rank

from workbench.fusion import DDPBuckets, PerTensor
from workbench.timeline import sweep
from workbench.traces import load_run

distributed = pytest.importorskip("distributed")
ALONE = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}


@contextlib.contextmanager
def started(*arguments):
    command = [sys.executable, "-m", *arguments, "--no-dashboard"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


@contextlib.contextmanager
def scheduler(folder):
    """Yield the address of a scheduler that runs by itself, as does its worker."""
    file = folder / "scheduler.json"
    at = ("--scheduler-file", str(file))
    here = ("--host", "127.0.0.1")
    with (
        started("distributed.cli.dask_scheduler", *here, "--port", "0", *at),
        started("distributed.cli.dask_worker", *here, "--nthreads", "1", "--no-nanny", *at),
        distributed.Client(scheduler_file=str(file)) as client,
    ):
        client.wait_for_workers(1, timeout=60)
        yield client.scheduler.address


@pytest.fixture(scope="module", params=["LocalCluster", "address"])
def executor(request, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        if request.param == "address":
            cluster = stack.enter_context(scheduler(tmp_path_factory.mktemp("dask")))
        else:
            cluster = stack.enter_context(distributed.LocalCluster(host="127.0.0.1", **ALONE))
        yield stack.enter_context(distributed.Client(cluster)).get_executor()


@pytest.mark.slow
def test_ranks_load_on_a_cluster_as_they_do_here(write_trace, executor):
    for rank in range(4):
        path = write_trace(WORK, f"run/{rank}.json", **of_rank(rank, 4))
    run, here = load_run(path.parent, executor=executor), load_run(path.parent)
    pd.testing.assert_frame_equal(run.events, here.events)
    pd.testing.assert_frame_equal(run.ledger, here.ledger)


@pytest.mark.slow
def test_a_sweep_runs_on_a_cluster_as_it_does_here(executor):
    from test_timeline import scenario

    grid = {"n_workers": [1, 4, 16], "fusion": [PerTensor(), DDPBuckets()]}
    pd.testing.assert_frame_equal(
        sweep(scenario(), executor=executor, **grid), sweep(scenario(), **grid)
    )
