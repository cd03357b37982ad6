"""The combinations of a sweep: how they are computed together changes no row."""

import itertools
from dataclasses import replace

import pandas as pd
import pytest
from test_timeline import scenario

from workbench.costs import Affine, HalvingDoubling, Link, Ring, Tree
from workbench.fusion import OneMessage, PerTensor
from workbench.timeline import predict, sweep
from workbench.timeline.grid import Grid, exposed_and_besides


@pytest.mark.parametrize("kind", [Ring, Tree, HalvingDoubling, Affine])
def test_links_of_one_collective_are_swept_together_as_one_by_one(kind, rng):
    links = [Link(*pair) for pair in rng.uniform(0, [0.1, 0.01], size=(7, 2))]
    costs = [kind(link) for link in links] + [Ring(Link(0.2, 0.001), op="broadcast")]
    table = sweep(scenario(), n_workers=[2, 5], all_reduce=costs)
    expected = [
        predict(scenario(n_workers=n, all_reduce=cost)).iteration_s
        for n in (2, 5)
        for cost in costs
    ]
    assert table["iteration_s"].tolist() == pytest.approx(expected, rel=1e-12)


def test_a_cost_of_its_own_making_is_called_as_it_is():
    class Twice(Ring):
        def __call__(self, nbytes, n_workers):
            return 2 * super().__call__(nbytes, n_workers)

    costs = [Twice(Link(0.05, 0.004)), Twice(Link(0.01, 0.002))]
    table = sweep(scenario(), all_reduce=costs)
    expected = [predict(scenario(all_reduce=cost)).iteration_s for cost in costs]
    assert table["iteration_s"].tolist() == pytest.approx(expected)


def test_a_long_sweep_is_cut_into_blocks_without_a_trace(monkeypatch):
    base = scenario(all_reduce=Ring(Link(0.05, 0.004)))
    whole = sweep(base, n_workers=range(1, 300), slowdown=[0.0, 0.2])
    monkeypatch.setattr("workbench.timeline.grid._BLOCK", 50)
    pd.testing.assert_frame_equal(
        sweep(base, n_workers=range(1, 300), slowdown=[0.0, 0.2]), whole, check_exact=True
    )


def test_blocks_cover_every_combination_once_and_send_the_same_buckets():
    grid = {"fusion": [PerTensor(), OneMessage()], "n_workers": [2, 3, 4], "slowdown": [0.0, 0.1]}
    parts = Grid(scenario(), grid).parts()
    assert sorted(itertools.chain(*(rows.tolist() for _, rows in parts))) == list(range(12))
    assert [len(part.nbytes) for part, _ in parts] == [3, 1]


def test_a_block_tells_exposed_and_what_comes_besides():
    base = scenario(slowdown=1.0, launch_s=[0.0, 0.0, 12.0])
    ((part, rows),) = Grid(base, {}).parts()
    exposed, besides = exposed_and_besides(part)
    prediction = predict(base)
    assert rows.tolist() == [0]
    assert exposed.tolist() == pytest.approx([prediction.exposed_comm_s])
    assert besides.tolist() == pytest.approx([prediction.idle_s + prediction.slowed_s])


def test_the_jitter_is_told_of_each_number_of_workers():
    base = scenario(jitter=lambda n: 0.5 * n)
    assert Grid(base, {"n_workers": [4, 1]}).jitter_s().tolist() == [2, 0]
    assert Grid(replace(base, jitter=None), {}).jitter_s().tolist() == [0]
