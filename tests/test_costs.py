"""Costs: the ring and the affine message on hand-worked numbers, and what they refuse."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from workbench.checks import shown
from workbench.costs import Affine, Link, Ring, bus_bandwidth
from workbench.fits import fit_all_reduce

LINK = Link(alpha=10e-6, beta=1e-9)


def test_ring_of_four_makes_six_hops():
    assert Ring(LINK).messages(4) == 6


def test_ring_of_four_moves_one_and_a_half_times_the_message():
    assert Ring(LINK).moved(1000, 4) == 1500


def test_ring_cost_is_hops_times_alpha_plus_bytes_moved_times_beta():
    # 6 hops x 10 us + 1.5e6 bytes x 1 ns = 60 us + 1500 us
    assert Ring(LINK)(1e6, 4) == pytest.approx(1560e-6)


def test_goyal_worked_example():
    # Goyal et al. 2017: 100 MB over 8 workers is about 200 MB sent, 2(n-1)/n = 1.75 exactly
    assert Ring(LINK).moved(100e6, 8) == pytest.approx(175e6)


def test_affine_costs_the_same_at_any_number_of_workers_above_one():
    costs = Affine(LINK)(1e6, np.array([2, 3, 1024]))
    assert costs == pytest.approx([1010e-6] * 3)


@pytest.mark.parametrize("kind", [Ring, Affine])
def test_a_lone_worker_costs_nothing(kind):
    assert kind(LINK)(1e9, 1) == 0


@pytest.mark.parametrize("kind", [Ring, Affine])
def test_a_free_link_costs_nothing(kind):
    assert kind(Link(0, 0))(1e9, 64) == 0


@pytest.mark.parametrize("kind", [Ring, Affine])
def test_an_empty_message_still_costs_its_latency(kind):
    assert kind(LINK)(0, 2) == pytest.approx(kind(LINK).messages(2) * LINK.alpha)


@pytest.mark.parametrize("kind", [Ring, Affine])
def test_costs_broadcast_bytes_against_workers(kind):
    nbytes, workers = np.array([[0], [10], [10**9]]), np.array([1, 2, 3, 7])
    table = kind(LINK)(nbytes, workers)
    each = [[kind(LINK)(int(b), int(n)) for n in workers] for b in nbytes[:, 0]]
    assert table.shape == (3, 4)
    np.testing.assert_array_equal(table, each)


def test_costs_take_the_columns_of_a_table():
    table = pd.DataFrame({"nbytes": [1000, 2000], "n_workers": [2, 4]}).astype("Int64")
    # 2 hops + 1000 bytes, then 6 hops + 3000 bytes
    assert Ring(LINK)(table["nbytes"], table["n_workers"]) == pytest.approx([21e-6, 63e-6])


def test_a_cost_is_a_value_that_replace_varies():
    faster = dataclasses.replace(Ring(LINK), link=dataclasses.replace(LINK, beta=0.0))
    assert faster == Ring(Link(10e-6, 0.0)) and Ring(LINK).link.beta == 1e-9


def test_ring_and_affine_on_one_link_are_different_costs():
    assert Ring(LINK) != Affine(LINK)


@pytest.mark.parametrize("value", [-1e-6, float("nan"), float("inf"), "fast", "1", True, None])
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_link_refuses_impossible_numbers(name, value):
    with pytest.raises(ValueError, match=f"Link {name}"):
        Link(**({"alpha": 0.0, "beta": 0.0} | {name: value}))


def test_a_link_refuses_an_array():
    with pytest.raises(ValueError, match="Link beta .*one number"):
        Link(0.0, [1e-9, 2e-9])


def test_a_ring_over_no_link_is_refused_with_what_to_write():
    with pytest.raises(ValueError, match=r"Ring: expected a Link, got 5; write Ring.Link.alpha"):
        Ring(5)


def test_a_link_forgotten_as_a_class_is_named_a_class():
    with pytest.raises(ValueError, match="Affine: expected a Link, got the class Link; write Aff"):
        Affine(Link)


def test_a_ring_over_a_fit_asks_for_its_link():
    table = pd.DataFrame({"op": "all_reduce", "n_workers": 4, "n_nodes": 1, "nbytes": [1e3, 1e6]})
    fit = fit_all_reduce(table.assign(seconds=Ring(LINK)(table["nbytes"], 4)))
    with pytest.raises(ValueError, match="Ring: expected a Link, got Fit; pass fit.model.link"):
        Ring(fit)


NO_WORKERS = [0, -2, 1.5, float("nan"), [2, 0], pd.array([2, pd.NA])]
NO_NUMBERS = ["8", True, None, ["8", 16], [True, 2], np.array(["8"]), pd.array([True])]
NO_NUMBERS += [pd.Series(pd.to_timedelta([8], unit="s"))]


@pytest.mark.parametrize("n_workers", NO_WORKERS + NO_NUMBERS)
@pytest.mark.parametrize("kind", [Ring, Affine])
def test_costs_refuse_impossible_workers(kind, n_workers):
    with pytest.raises(ValueError, match="n_workers: expected whole numbers from 1 up, got "):
        kind(LINK)(8, n_workers)


def test_a_number_in_quotes_is_shown_with_what_to_do():
    with pytest.raises(ValueError, match="n_workers: .* got '8'; write it without quotes"):
        Ring(LINK)(8, ["8", 16])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1 / 3, "0.333333"),
        (np.float64(2e-7), "2e-07"),
        (26_214_400, "26214400"),
        (True, "True"),
        (None, "None"),
        ("ring", "'ring'"),
        ("x" * 100, f"'{'x' * 40}' and more"),
        (Ring, "the class Ring"),
        (max, "max"),
        (pd.DataFrame({"nbytes": [1, 2]}), "DataFrame"),
        (LINK, "Link"),
    ],
)
def test_messages_show_numbers_rounded_and_objects_by_their_type(value, text):
    assert shown(value) == text


@pytest.mark.parametrize("nbytes", [-1, float("nan"), [8, -8], "8 MiB", pd.array([8, pd.NA])])
@pytest.mark.parametrize("kind", [Ring, Affine])
def test_costs_refuse_impossible_bytes(kind, nbytes):
    with pytest.raises(ValueError, match="nbytes"):
        kind(LINK)(nbytes, 4)


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.75),
        ("reduce_scatter", 0.875),
        ("all_gather", 0.875),
        ("all_to_all", 0.875),
        ("gather", 0.875),
        ("scatter", 0.875),
        ("broadcast", 1),
        ("reduce", 1),
        ("send_recv", 1),
    ],
)
def test_bus_bandwidth_has_the_factor_of_nccl_tests(op, factor):
    # factors of nccl-tests doc/PERFORMANCE.md at n = 8; algorithm bandwidth 100 bytes / 2 s
    assert bus_bandwidth(100, 2.0, 8, op) == pytest.approx(50 * factor)


def test_bus_bandwidth_equals_a_printed_row_of_nccl_tests():
    # dexhunter/allreduce-experiments, 32 GPUs: 512 MiB in 188913 us prints 2.84 and 5.51 GB/s
    assert bus_bandwidth(2**29, 0.188913, 32) / 1e9 == pytest.approx(5.51, abs=0.005)


def test_a_large_ring_message_runs_at_one_over_beta():
    ring, nbytes = Ring(LINK), 1e15
    assert bus_bandwidth(nbytes, ring(nbytes, 16), 16) == pytest.approx(1 / LINK.beta, rel=1e-6)


def test_an_unknown_collective_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"all_reduce, reduce_scatter, .*send_recv; got 'gossip'"):
        bus_bandwidth(1, 1.0, 2, op="gossip")


@pytest.mark.parametrize("seconds", [0.0, -1.0, [1.0, 0.0], float("nan")])
def test_bus_bandwidth_refuses_times_that_are_not_positive(seconds):
    with pytest.raises(ValueError, match="seconds"):
        bus_bandwidth(1, seconds, 2)
