"""Slowdown: a known one comes back, partial overlaps included, and none without overlap."""

import numpy as np
import pandas as pd
import pytest

from workbench.base.tables import EVENTS
from workbench.fits import fit_slowdown

NAMES = ["gemm", "conv", "norm", "relu"]


def events(rng, factor: float, noise=0.05, n=100, comm=True) -> pd.DataFrame:
    """EVENTS of kernels one after another, with communication over every second 2 ms.

    A kernel makes progress at 1/factor of its speed while communication runs.
    """
    rows, now = [], 0.0
    for k in range(n * len(NAMES)):
        work = (1 + k % len(NAMES)) * 2e-4 * np.exp(noise * rng.standard_normal())
        start = now
        while work > 1e-12:
            slow = comm and int(now / 2e-3) % 2 == 1
            left = 2e-3 - now % 2e-3 + 1e-12
            speed = 1 / factor if slow else 1.0
            spent = min(left, work / speed)
            now, work = now + spent, work - spent * speed
        rows.append((NAMES[k % len(NAMES)], "compute", 7, k // 40, start, now))
    if comm:
        spans = np.arange(2e-3, now, 4e-3)
        rows += [("ncclKernel", "comm", 20, 0, start, start + 2e-3) for start in spans]
    table = pd.DataFrame(rows, columns=["name", "kind", "stream", "iteration", "start_s", "end_s"])
    return table.assign(rank=0)


@pytest.mark.parametrize("factor", [1.0, 1.2, 2.0])
def test_a_known_slowdown_comes_back_from_partial_overlaps(rng, factor):
    found = fit_slowdown(events(rng, factor))
    assert found.factor == pytest.approx(factor, rel=0.03)
    assert found.n_kernels == len(NAMES) and found.n_beside + found.n_alone == 400


@pytest.mark.all
def test_its_interval_covers_about_as_often_as_its_level():
    # 200 runs; 3 standard errors of 1.5 %
    inside = 0
    for seed in range(200):
        found = fit_slowdown(events(np.random.default_rng(seed), 1.3, noise=0.1, n=25))
        inside += found.low <= 1.3 <= found.high
    assert inside / 200 == pytest.approx(0.95, abs=0.047)


def test_a_kernel_of_another_rank_is_another_kernel(rng):
    # rank 1's kernels are three times as long and never beside communication
    fast, slow = events(rng, 1.3), events(rng, 1.0, comm=False).assign(rank=1)
    slow = slow.assign(start_s=3 * slow["start_s"], end_s=3 * slow["end_s"])
    found = fit_slowdown(pd.concat([fast, slow], ignore_index=True))
    assert found.factor == pytest.approx(1.3, rel=0.03)


def test_place_holds_the_shape_fixed(rng):
    # one name, two shapes: the small one runs alone, the large one half the times beside
    # communication that slows nothing; by name the shape shows as slowdown, by place it does not
    rows = []
    for k in range(200):
        start = k * 1e-2
        noise = np.exp(0.02 * rng.standard_normal(2))
        rows.append(("gemm", "compute", 7, k, start, start + 1e-4 * noise[0]))
        rows.append(("gemm", "compute", 7, k, start + 2e-3, start + 2e-3 + 4e-4 * noise[1]))
        if k % 2:
            rows.append(("nccl", "comm", 20, k, start + 1e-3, start + 5e-3))
    table = pd.DataFrame(rows, columns=["name", "kind", "stream", "iteration", "start_s", "end_s"])
    table = table.assign(rank=0)
    assert fit_slowdown(table).factor > 1.5
    assert fit_slowdown(table, by="place").factor == pytest.approx(1, rel=0.02)


def test_without_communication_it_is_not_determined(rng):
    found = fit_slowdown(events(rng, 1.3, comm=False))
    assert found.factor is None
    assert repr(found) == "Slowdown not determined: no comm row on a device"


def test_without_overlap_it_is_not_determined(rng):
    table = events(rng, 1.0, comm=False)
    comm = pd.DataFrame(table.iloc[[0]]).assign(kind="comm", start_s=1e3, end_s=1e3 + 1)
    assert "not determined: no compute kernel ran both" in repr(
        fit_slowdown(pd.concat([table, comm], ignore_index=True))
    )


def test_no_events_are_not_determined():
    table = pd.DataFrame(columns=list(EVENTS)).astype({"stream": int})
    assert fit_slowdown(table).factor is None
