"""A Dask client takes the same work as any executor."""

import pandas as pd
import pytest
from test_traces import WORK, of_rank

from workbench.fusion import DDPBuckets, PerTensor
from workbench.timeline import sweep
from workbench.traces import load_run

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def executor():
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(host="127.0.0.1", **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor()


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
