"""Costs: each kind against hand-worked numbers, messages played one by one, published figures."""

import dataclasses
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import published
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.costs import (
    Affine,
    BatchTime,
    FlatRing,
    HalvingDoubling,
    Hierarchical,
    Interpolated,
    Link,
    ParameterServer,
    Piecewise,
    Ring,
    Tree,
    bus_bandwidth,
)
from workbench.fits import fit_all_reduce

ROOT = Path(__file__).parents[1]
LINK = Link(alpha=10e-6, beta=1e-9)
SLOW = Link(alpha=40e-6, beta=8e-9)
TIMED = pd.DataFrame(
    {
        "n_workers": [2, 2, 2, 4, 4, 4, 16, 16, 16],
        "nbytes": [100, 10_000, 1_000_000] * 3,
        "seconds": [1e-5, 2e-5, 1e-3, 4e-5, 8e-5, 2e-3, 1e-4, 2e-4, 4e-3],
    }
)
COSTS = {
    "ring": Ring(LINK),
    "broadcast": Ring(LINK, "broadcast"),
    "halving": HalvingDoubling(LINK),
    "tree": Tree(LINK),
    "servers": ParameterServer(LINK, 3),
    "affine": Affine(LINK),
    "piecewise": Piecewise(Ring, 10e-6, (4e-9, 1e-9, 2e-9), (1e3, 1e5), floor_s=2e-4),
    "hierarchical": Hierarchical(LINK, SLOW, 4),
    "flat": FlatRing(LINK, SLOW, 4),
    "interpolated": Interpolated(TIMED),
}
PARAMETRIC = [name for name in COSTS if name != "interpolated"]
any_cost = pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
any_parametric = pytest.mark.parametrize("cost", [COSTS[k] for k in PARAMETRIC], ids=PARAMETRIC)


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


@any_cost
def test_a_lone_worker_costs_nothing(cost):
    assert cost(1e9, 1) == 0


@pytest.mark.parametrize("kind", [Ring, HalvingDoubling, Tree, Affine])
def test_a_free_link_costs_nothing(kind):
    assert kind(Link(0, 0))(1e9, 64) == 0


@pytest.mark.parametrize("kind", [Ring, Affine])
def test_an_empty_message_still_costs_its_latency(kind):
    assert kind(LINK)(0, 2) == pytest.approx(kind(LINK).messages(2) * LINK.alpha)


@any_cost
def test_costs_broadcast_bytes_against_workers(cost):
    nbytes, workers = np.array([[0], [10], [10**9]]), np.array([1, 2, 3, 7, 32])
    table = cost(nbytes, workers)
    each = [[cost(int(b), int(n)) for n in workers] for b in nbytes[:, 0]]
    assert table.shape == (3, 5)
    np.testing.assert_allclose(table, each, rtol=1e-15)


@any_cost
def test_one_message_costs_a_plain_number_and_none_at_all_an_empty_array(cost):
    assert np.ndim(cost(1000, 8)) == 0
    assert cost([], 8).shape == (0,)


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
@any_cost
def test_costs_refuse_impossible_workers(cost, n_workers):
    with pytest.raises(ValueError, match="n_workers: expected whole numbers from 1 up, got "):
        cost(8, n_workers)


@pytest.mark.parametrize("nbytes", [-1, float("nan"), [8, -8], "8 MiB", pd.array([8, pd.NA])])
@any_cost
def test_costs_refuse_impossible_bytes(cost, nbytes):
    with pytest.raises(ValueError, match="nbytes: expected finite numbers from 0 up, got "):
        cost(nbytes, 4)


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


# Messages played one by one: a round is a list of (from, to, chunks, whether they are added up).


def ring_reduce_scatter(ranks):
    n = len(ranks)
    return [
        [(ranks[i], ranks[(i + 1) % n], [(i - step) % n], True) for i in range(n)]
        for step in range(n - 1)
    ]


def ring_all_gather(ranks):
    n = len(ranks)
    return [
        [(ranks[i], ranks[(i + 1) % n], [(i + 1 - step) % n], False) for i in range(n)]
        for step in range(n - 1)
    ]


def ring(n):
    ranks = list(range(n))
    return ring_reduce_scatter(ranks) + ring_all_gather(ranks), n


def halving_doubling(n):
    core = 2 ** (n.bit_length() - 1)
    pairs = [(2 * i, 2 * i + 1) for i in range(n - core)]
    ranks = [odd for _, odd in pairs] + list(range(2 * (n - core), n))
    every = list(range(core))
    held, halving, doubling, distance = {i: every for i in range(core)}, [], [], core // 2
    while distance:
        down, up = [], []
        for i in range(core):
            kept = [c for c in held[i] if c & distance == i & distance]
            sent = [c for c in held[i] if c & distance != i & distance]
            down.append((ranks[i], ranks[i ^ distance], sent, True))
            up.append((ranks[i], ranks[i ^ distance], kept, False))
            held[i] = kept
        halving.append(down)
        doubling.insert(0, up)
        distance //= 2
    into = [[(even, odd, every, True) for even, odd in pairs]] if pairs else []
    out = [[(odd, even, every, False) for even, odd in pairs]] if pairs else []
    return into + halving + doubling + out, core


def parameter_server(n, n_servers):
    every, servers = list(range(n_servers)), range(n, n + n_servers)
    push = [(i, servers[k], [k], True) for i in range(n) for k in every]
    return [push, [(to, sender, chunks, False) for sender, to, chunks, _ in push]], n_servers


def play(rounds, n_chunks, n):
    """Play the rounds of n workers; return the share of a message the busiest sends in each.

    Fails unless each worker ends with every chunk summed over all workers exactly once.
    """
    last = 1 + max(to for each in rounds for _, to, _, _ in each)
    held = np.zeros((max(n, last), n_chunks, n), dtype=int)
    held[range(n), :, range(n)] = 1
    busiest = []
    for each in rounds:
        before, sent = held.copy(), Counter()
        for sender, to, chunks, adds in each:
            held[to, chunks] = before[sender, chunks] + (held[to, chunks] if adds else 0)
            sent[sender] += len(chunks)
        busiest.append(max(sent.values()) / n_chunks)
    assert (held[:n] == 1).all()
    return busiest


WORKERS = range(2, 18)


@pytest.mark.parametrize("n", WORKERS)
@pytest.mark.parametrize(("kind", "played"), [(Ring, ring), (HalvingDoubling, halving_doubling)])
def test_hops_and_bytes_equal_those_of_messages_played_one_by_one(kind, played, n):
    busiest = play(*played(n), n)
    assert kind(LINK).messages(n) == len(busiest)
    assert kind(LINK).moved(1.0, n) == pytest.approx(sum(busiest))


@pytest.mark.parametrize("n", WORKERS)
@pytest.mark.parametrize("op", ["reduce_scatter", "all_gather"])
def test_half_a_ring_all_reduce_makes_half_its_hops(op, n):
    ranks = list(range(n))
    rounds = {"reduce_scatter": ring_reduce_scatter, "all_gather": ring_all_gather}[op](ranks)
    assert Ring(LINK, op).messages(n) == len(rounds)
    assert Ring(LINK, op).moved(1.0, n) == pytest.approx(len(rounds) / n)


@pytest.mark.parametrize("n", WORKERS)
@pytest.mark.parametrize("n_servers", [1, 2, 3, 8, 20])
def test_the_busiest_of_workers_and_servers_sets_the_pace(n, n_servers):
    rounds, n_chunks = parameter_server(n, n_servers)
    push, pull = play(rounds, n_chunks, n)
    server = ParameterServer(LINK, n_servers)
    assert server.messages(n) == 2
    # pushes and pulls of small pieces go on at once, each in its direction of the link
    assert server.moved(1.0, n) == pytest.approx(max(push, pull))


def binary_tree(n):
    """Return the parent of each worker as NCCL's ncclGetBtree gives it; the root is worker 0."""
    parents = {}
    for rank in range(1, n):
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        parents[rank] = up if up < n else rank ^ bit
    return parents


def double_tree(n):
    """Return NCCL's two trees: the second is the first mirrored, or shifted where n is odd."""
    first = binary_tree(n)
    moved = (lambda i: n - 1 - i) if n % 2 == 0 else (lambda i: (i + 1) % n)
    return first, {moved(child): moved(parent) for child, parent in first.items()}


def depth(parents):
    def height(rank):
        return 1 + height(parents[rank]) if rank in parents else 0

    return max(map(height, parents))


@pytest.mark.parametrize("n", range(2, 70))
def test_the_double_tree_is_as_deep_and_its_busiest_worker_as_busy_as_in_nccl(n):
    trees = double_tree(n)
    # half of the message goes up every edge of both trees, and down again
    sent = Counter()
    for child, parent in (edge for tree in trees for edge in tree.items()):
        sent[child] += 0.5
        sent[parent] += 0.5
    assert sum(sent.values()) == 2 * (n - 1)
    assert Tree(LINK).messages(n) == 2 * max(map(depth, trees))
    assert Tree(LINK).moved(1.0, n) == max(sent.values())


@pytest.mark.parametrize(("n_nodes", "w"), [(1, 1), (1, 5), (2, 2), (2, 8), (3, 4), (5, 1), (4, 3)])
def test_a_hierarchical_all_reduce_equals_its_messages_played_one_by_one(n_nodes, w):
    n, n_chunks = n_nodes * w, n_nodes * w
    nodes = [[node * w + i for i in range(w)] for node in range(n_nodes)]

    def wide(rounds):  # a chunk inside a node is n_nodes chunks of the whole
        return [
            [
                (a, b, [c * n_nodes + k for c in cs for k in range(n_nodes)], adds)
                for a, b, cs, adds in each
            ]
            for each in rounds
        ]

    def together(parts):
        return [sum(each, []) for each in zip(*parts, strict=True)]

    def peers(i):  # after the reduce-scatter worker i of a node holds its chunk i + 1
        shard = (i + 1) % w
        ranks = [node[i] for node in nodes]
        rounds = ring_reduce_scatter(ranks) + ring_all_gather(ranks)
        return [
            [(a, b, [shard * n_nodes + c for c in cs], adds) for a, b, cs, adds in each]
            for each in rounds
        ]

    scatter = wide(together([ring_reduce_scatter(node) for node in nodes]))
    between = together([peers(i) for i in range(w)])
    gather = wide(together([ring_all_gather(node) for node in nodes]))
    busiest = play(scatter + between + gather, n_chunks, n) if n > 1 else []
    inside = busiest[: len(scatter)] + busiest[len(scatter) + len(between) :]
    columns = Hierarchical(LINK, SLOW, w).columns(1.0, n)
    assert (columns["alpha_inside"], columns["alpha_between"]) == (len(inside), len(between))
    assert columns["beta_inside"] == pytest.approx(sum(inside))
    assert columns["beta_between"] == pytest.approx(sum(busiest) - sum(inside))


# Identities


@pytest.mark.parametrize(
    "cost",
    [
        Ring(LINK),
        HalvingDoubling(LINK),
        Tree(LINK),
        ParameterServer(LINK, 2),
        Piecewise(Ring, LINK.alpha, (LINK.beta,)),
        Hierarchical(LINK, SLOW, 2),
        Hierarchical(SLOW, LINK, 1),
        FlatRing(LINK, SLOW, 8),
        FlatRing(SLOW, LINK, 1),
    ],
)
def test_all_kinds_agree_on_two_workers(cost):
    # MPICH's formulas at p = 2: 2 alpha + nbytes beta
    assert cost(1e6, 2) == pytest.approx(2 * LINK.alpha + 1e6 * LINK.beta)


@pytest.mark.parametrize("n", [2, 3, 8, 100])
def test_ring_equals_the_dense_all_reduce_of_gtopk(n):
    # HKBU-HPML/gtopkssgd scripts/icdcs2019/communication.py: 2(P-1)a + 2(P-1)/P m b, 1 GbE
    alpha, beta = 4.36e-4, 9e-9
    published = 2 * (n - 1) * alpha + 2 * (n - 1) / n * 1e8 * beta
    assert Ring(Link(alpha, beta))(1e8, n) == pytest.approx(published)


@pytest.mark.parametrize("n", [8, 32, 256])
def test_halving_doubling_takes_2_lg_p_steps_where_a_ring_takes_2_p_minus_1(n):
    # Goyal et al. 2017: the two latency terms; both move 2(p-1)/p
    halving, around = HalvingDoubling(LINK), Ring(LINK)
    assert (halving.messages(n), around.messages(n)) == (2 * np.log2(n), 2 * (n - 1))
    assert halving.moved(1.0, n) == around.moved(1.0, n) == 2 * (n - 1) / n


@pytest.mark.parametrize("kind", [Hierarchical, FlatRing])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_one_node_is_its_inside(kind, n):
    assert kind(LINK, SLOW, 8)(1e6, n) == pytest.approx(Ring(LINK)(1e6, n))


@pytest.mark.parametrize("kind", [Hierarchical, FlatRing])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_nodes_of_one_worker_are_a_ring_between_them(kind, n):
    assert kind(LINK, SLOW, 1)(1e6, n) == pytest.approx(Ring(SLOW)(1e6, n))


@pytest.mark.parametrize("n", [4, 8, 64, 5, 6, 31])
def test_a_flat_ring_over_equal_links_is_a_ring(n):
    assert FlatRing(LINK, LINK, 4)(1e6, n) == pytest.approx(Ring(LINK)(1e6, n))


def test_a_flat_ring_of_two_nodes_by_hand():
    # 16 workers: 28 hops inside at 10 us and 2 between at 40 us; 15/8 of 1 MB at 8 ns
    assert FlatRing(LINK, SLOW, 8)(1e6, 16) == pytest.approx(28 * 10e-6 + 2 * 40e-6 + 15e-3)


def test_nodes_not_all_full_send_the_whole_message_between_them():
    # 6 workers on 2 nodes of 4: chains of 3 hops inside with all of 1 MB, and a ring of 2 nodes
    expected = 2 * (3 * 10e-6 + 1e-3) + 2 * 40e-6 + 8e-3
    assert Hierarchical(LINK, SLOW, 4)(1e6, 6) == pytest.approx(expected)


@any_parametric
def test_a_cost_is_the_sum_of_parameters_times_columns(cost):
    nbytes, n = np.array([1e3, 1e5, 1e7]), np.array([[1], [3], [8], [9]])
    columns = cost.columns(nbytes, n)
    assert {column.shape for column in columns.values()} == {(4, 3)}
    total = sum(cost.parameters[name] * column for name, column in columns.items())
    floor = np.where(n > 1, cost.parameters.get("floor", 0.0), 0.0)
    np.testing.assert_allclose(cost(nbytes, n), np.maximum(total, floor), rtol=1e-12)


@any_parametric
def test_with_its_own_parameters_a_cost_is_itself(cost):
    assert cost.with_parameters(**cost.parameters) == cost


@any_parametric
def test_a_parameter_not_named_stays(cost):
    name, *others = cost.parameters
    other = cost.with_parameters(**{name: 7e-3})
    assert other.parameters[name] == 7e-3
    assert {k: other.parameters[k] for k in others} == {k: cost.parameters[k] for k in others}
    assert type(other) is type(cost)


@any_parametric
def test_an_unknown_parameter_lists_the_known_ones(cost):
    with pytest.raises(ValueError, match=f"expected some of {next(iter(cost.parameters))}.*gamma"):
        cost.with_parameters(gamma=1.0)


def test_other_numbers_keep_the_structure():
    assert ParameterServer(LINK, 3).with_parameters(alpha=0.0).n_servers == 3
    assert Ring(LINK, "broadcast").with_parameters(alpha=0.0).op == "broadcast"
    assert FlatRing(LINK, SLOW, 4).with_parameters(beta_inside=0.0).workers_per_node == 4
    assert Piecewise(Tree, 1e-6, (1e-9,)).with_parameters(alpha=0.0).kind is Tree


numbers_from_0 = st.floats(0, 1e-3)
links = st.builds(Link, numbers_from_0, st.floats(0, 1e-7))
costs = st.one_of(
    st.builds(Ring, links, st.sampled_from(["all_reduce", "reduce_scatter", "broadcast"])),
    st.builds(HalvingDoubling, links),
    st.builds(Tree, links),
    st.builds(ParameterServer, links, st.integers(1, 100)),
    st.builds(Hierarchical, links, links, st.integers(1, 10)),
    st.builds(FlatRing, links, links, st.integers(1, 10)),
    st.lists(st.floats(1, 1e8), max_size=4, unique=True).flatmap(
        lambda breaks: st.builds(
            Piecewise,
            st.sampled_from([Ring, Tree, HalvingDoubling]),
            numbers_from_0,
            st.lists(st.floats(0, 1e-7), min_size=len(breaks) + 1, max_size=len(breaks) + 1),
            st.just(tuple(sorted(breaks))),
            numbers_from_0,
        )
    ),
    st.lists(
        st.tuples(st.sampled_from([2, 3, 8]), st.integers(1, 10**8), st.floats(1e-6, 1)),
        min_size=1,
    ).map(
        lambda rows: Interpolated(pd.DataFrame(rows, columns=["n_workers", "nbytes", "seconds"]))
    ),
)


@settings(max_examples=300, deadline=None)
@given(costs, st.lists(st.integers(0, 10**9), min_size=2), st.integers(1, 100))
def test_a_larger_message_never_costs_less(cost, sizes, n):
    seconds = cost(np.sort(sizes), n)
    assert np.isfinite(seconds).all() and (seconds >= 0).all()
    # 1e-12: the last digit of a power is not the same on both sides of a measured size
    assert (np.diff(seconds) >= -1e-12 * seconds[1:]).all()


# Piecewise

TWO = Piecewise(Ring, 5e-6, (4e-9, 1e-9), (10_000,))


@pytest.mark.parametrize(
    "kind", [Ring, HalvingDoubling, Tree, partial(ParameterServer, n_servers=2)]
)
def test_one_segment_is_the_kind_itself(kind):
    nbytes, n = np.geomspace(1, 1e9, 20), np.array([[1], [2], [7], [32]])
    one = Piecewise(kind, LINK.alpha, (LINK.beta,))
    np.testing.assert_allclose(one(nbytes, n), kind(LINK)(nbytes, n), rtol=1e-12)


def test_segments_by_hand():
    # 4 workers, 6 hops of nbytes/4: below 40 kB 6 x 5 us + 1.5 nbytes 4 ns; past it 1 ns a byte
    assert TWO(20_000, 4) == pytest.approx(30e-6 + 30_000 * 4e-9)
    assert TWO(80_000, 4) == pytest.approx(30e-6 + 60_000 * 4e-9 + 60_000 * 1e-9)


@pytest.mark.parametrize("n", [2, 3, 16])
def test_segments_meet_at_their_breaks(n):
    pieces = Piecewise(Ring, 5e-6, (4e-9, 1e-9, 3e-9), (1e4, 1e6))
    at = np.array(pieces.breaks) * n  # the hop of a ring is nbytes / n
    np.testing.assert_allclose(pieces(at * (1 - 1e-9), n), pieces(at * (1 + 1e-9), n), rtol=1e-8)


def test_each_segment_is_a_line_of_its_own():
    pieces = Piecewise(Tree, 5e-6, (4e-9, 1e-9, 3e-9), (1e4, 1e6))
    table = pieces.segments()
    hops, moved = Tree(LINK).messages(8), Tree(LINK).moved(1.0, 8)
    for row in table.to_dict("records"):
        middle = (row["from_bytes"] + min(row["to_bytes"], 1e9)) / 2
        line = hops * (row["alpha"] + row["beta"] * middle)
        assert pieces(middle * hops / moved, 8) == pytest.approx(line)
    assert table["to_bytes"].tolist() == [1e4, 1e6, np.inf]
    assert table["alpha"][2] == pytest.approx(5e-6 + 1e4 * 3e-9 - 1e6 * 2e-9)


def test_a_floor_is_of_the_message_and_not_of_a_hop():
    floored = Piecewise(Ring, 1e-6, (1e-9,), floor_s=1e-3)
    assert floored(0, [1, 2, 64]).tolist() == [0.0, 1e-3, 1e-3]
    assert floored(1e8, 64) == Piecewise(Ring, 1e-6, (1e-9,))(1e8, 64)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"alpha": -1e-6}, "Piecewise alpha .*got -1e-06"),
        ({"floor_s": float("inf")}, "Piecewise floor_s .*got inf"),
        ({"betas": (1e-9, -1e-9), "breaks": (10,)}, "Piecewise betas .*got -1e-09"),
        ({"betas": (1e-9,), "breaks": (10,)}, "betas: expected one more than breaks, 2; got 1"),
        ({"betas": (1, 1, 1), "breaks": (10, 10)}, "breaks: expected rising bytes above 0"),
        ({"betas": (1, 1), "breaks": (0,)}, "breaks: expected rising bytes above 0"),
        ({"kind": Link}, "kind: expected a class of cost .*the class Link; write kind=Ring"),
        ({"kind": Ring(LINK)}, "kind: expected a class of cost .*got Ring; write kind=Ring"),
        ({"kind": "ring"}, "kind: expected a class of cost .*got 'ring'"),
        ({"kind": ParameterServer}, "got the class ParameterServer; .* partial.ParameterServer"),
        ({"kind": max}, "kind: expected a class of cost .*got max"),
    ],
)
def test_impossible_segments_are_refused(given, text):
    with pytest.raises(ValueError, match=text):
        Piecewise(**given)


def test_breaks_to_be_found_have_no_price_yet():
    with pytest.raises(ValueError, match="breaks=None has no price yet; find them with fit_all"):
        Piecewise(Ring, breaks=None)(8, 2)


# Interpolated

MEASURED = Interpolated(TIMED)


def test_measured_messages_cost_what_was_measured():
    assert MEASURED(TIMED["nbytes"], TIMED["n_workers"]) == pytest.approx(TIMED["seconds"])


def test_repeated_messages_count_by_their_median():
    rows = pd.DataFrame({"n_workers": 2, "nbytes": 8, "seconds": [1e-3, 2e-3, 9e-3]})
    assert Interpolated(rows)(8, 2) == pytest.approx(2e-3)


def test_between_sizes_and_workers_lines_are_straight_on_log_axes():
    # halfway between 100 and 10,000 bytes: the geometric mean of 1 and 2 (x 10 us)
    assert MEASURED(1000, 2) == pytest.approx(np.sqrt(2) * 1e-5)
    # 8 workers are halfway between 4 and 16: the geometric mean of 40 and 100 us
    assert MEASURED(100, 8) == pytest.approx(np.sqrt(4e-5 * 1e-4))


def test_smaller_messages_cost_the_latency_and_larger_ones_the_bandwidth():
    assert MEASURED([0, 1], 2) == pytest.approx([1e-5, 1e-5])
    assert MEASURED(8e6, 2) == pytest.approx(8e-3)


def test_a_dip_in_the_measurements_is_filled():
    rows = pd.DataFrame({"n_workers": 2, "nbytes": [1, 10, 100], "seconds": [2e-3, 1e-3, 4e-3]})
    assert Interpolated(rows)([1, 10, 100], 2) == pytest.approx([2e-3, 2e-3, 4e-3])


def test_scaled_times_are_those_of_a_scaled_table(rng):
    repeated = pd.concat([TIMED, TIMED.assign(seconds=TIMED["seconds"] * 1.5), TIMED.head(3)])
    factors = rng.lognormal(0, 0.5, (4, len(repeated)))
    nbytes, n = rng.integers(1, 2**30, 50), rng.integers(1, 70, 50)
    for factor, cost in zip(factors, Interpolated(repeated).scaled(factors), strict=True):
        alone = Interpolated(repeated.assign(seconds=repeated["seconds"] * factor))
        assert cost(nbytes, n).tolist() == pytest.approx(alone(nbytes, n).tolist(), rel=1e-12)
        assert cost.table.equals(alone.table)


def test_an_interpolated_cost_of_many_pairs_is_that_of_each(rng):
    table = pd.concat([TIMED, TIMED.assign(seconds=TIMED["seconds"] * 1.5)])
    cost, n = Interpolated(table), rng.integers(1, 70, 200)
    nbytes = rng.integers(1, 2**30, 200)
    each = [cost(b, w) for b, w in zip(nbytes.tolist(), n.tolist(), strict=True)]
    assert cost(nbytes, n).tolist() == pytest.approx(each, rel=1e-12)
    assert cost(nbytes[:, None], n).shape == (200, 200)


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "broadcast"])
@pytest.mark.parametrize("n", [2, 64])
def test_beyond_the_measured_workers_a_ring_stays_a_ring(op, n):
    # a free first byte: the time of the smallest message is then latency alone
    sizes, made = np.array([1e-6, 1e4, 1e6, 1e8]), Ring(LINK, op)
    rows = pd.DataFrame({"op": op, "n_workers": 8, "nbytes": sizes, "seconds": made(sizes, 8)})
    assert Interpolated(rows)(sizes, n) == pytest.approx(made(sizes, n))


def test_measurements_of_several_collectives_are_no_cost():
    rows = TIMED.assign(op=["all_reduce"] * 8 + ["broadcast"])
    with pytest.raises(ValueError, match="op: expected one, found all_reduce, broadcast; keep one"):
        Interpolated(rows)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (TIMED.drop(columns="seconds"), "Interpolated table: missing column seconds"),
        (TIMED.assign(seconds=0.0), "seconds: expected times above 0 s, got 0"),
        (TIMED.assign(seconds=-1.0), "seconds: expected finite numbers from 0 up, got -1"),
        (TIMED.assign(n_workers=1), "expected rows of 2 workers or more, found none"),
        (TIMED.assign(op="gossip"), "op: expected one of all_reduce.*'gossip'"),
        (5, "table: expected a DataFrame, got 5"),
    ],
)
def test_measurements_that_cannot_be_interpolated_are_refused(table, text):
    with pytest.raises(ValueError, match=text):
        Interpolated(table)


# Nodes, servers, operations: what they refuse


@pytest.mark.parametrize("kind", [Hierarchical, FlatRing])
@pytest.mark.parametrize("workers_per_node", [0, 2.5, [4, 8], "4"])
def test_a_node_of_an_impossible_size_is_refused(kind, workers_per_node):
    with pytest.raises(ValueError, match="workers_per_node: expected "):
        kind(LINK, SLOW, workers_per_node)


def test_a_link_forgotten_between_nodes_is_named():
    with pytest.raises(ValueError, match="FlatRing between: expected a Link, got 5; write Link"):
        FlatRing(LINK, 5, 4)


@pytest.mark.parametrize("n_servers", [0, 1.5, [1, 2], None])
def test_an_impossible_number_of_servers_is_refused(n_servers):
    with pytest.raises(ValueError, match="n_servers: expected "):
        ParameterServer(LINK, n_servers)


def test_a_ring_of_an_unknown_collective_is_refused():
    with pytest.raises(ValueError, match="op: expected one of all_reduce, .*; got 'gossip'"):
        Ring(LINK, "gossip")


OPS = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "gather", "scatter"]
OPS += ["broadcast", "reduce", "send_recv"]


@pytest.mark.parametrize("op", OPS)
def test_bytes_moved_over_seconds_are_the_bus_bandwidth(op):
    cost, n = Ring(LINK, op), np.array([2, 3, 8])
    seconds = cost(1e6, n)
    expected = bus_bandwidth(1e6, seconds, n, op)
    np.testing.assert_allclose(cost.moved(1e6, n) / seconds, expected)


@pytest.mark.parametrize("op", OPS)
def test_hops_of_every_collective_on_a_ring(op):
    hops = {"all_reduce": 14, "send_recv": 1}.get(op, 7)
    assert Ring(LINK, op).messages(8) == hops
    assert Ring(LINK, op)(1e9, 1) == 0


# Batches


def test_a_batch_costs_a_fixed_time_and_one_a_sample():
    assert BatchTime(2e-3, 1e-4)([0, 1, 32]) == pytest.approx([2e-3, 2.1e-3, 5.2e-3])


def test_a_batch_time_gives_its_parameters_and_columns():
    batch = BatchTime(2e-3, 1e-4)
    columns = batch.columns([1, 32])
    total = sum(batch.parameters[name] * column for name, column in columns.items())
    assert total == pytest.approx(batch([1, 32]))
    assert batch.with_parameters(fixed_s=0.0) == BatchTime(0.0, 1e-4)


@pytest.mark.parametrize(
    ("fixed_s", "per_sample_s", "name"), [(-1, 0, "fixed_s"), (0, np.nan, "per_sample_s")]
)
def test_an_impossible_batch_time_is_refused(fixed_s, per_sample_s, name):
    with pytest.raises(ValueError, match=f"BatchTime {name}"):
        BatchTime(fixed_s, per_sample_s)


# Published measurements


def throughputs(method, network="10GbE with TCP/IP"):
    """Rows of ddl-benchmarks by method and network: t1_s and tn_s by model and n_gpus."""
    rows = published("ddl_benchmarks_throughput.csv")
    rows = rows[(rows["method"] == method) & (rows["network"] == network)]
    one, many = (
        rows["batch_per_gpu"] / rows[name] for name in ("single_gpu_samples_per_s", "samples_per_s")
    )
    rows = rows.assign(t1_s=one, tn_s=many * rows["n_gpus"])
    return rows.set_index(["model", "n_gpus"]).sort_index()


@pytest.fixture(scope="module")
def gradient_bytes():
    table = pd.read_csv(ROOT / "data" / "models" / "gradients.csv", comment="#")
    names = {"resnet50": "ResNet-50", "bert_base": "BERT-Base", "bert_large": "BERT-Large"}
    return table.groupby("model")["nbytes"].sum().rename(names)


@pytest.mark.parametrize("network", ["10GbE with TCP/IP", "100GbE with TCP/IP"])
def test_bus_bandwidths_follow_from_throughputs_of_one_fused_message(network, gradient_bytes):
    # every row of ddl_benchmarks_derived_fused_allreduce.csv from the throughputs of BSP-A2A
    derived = published("ddl_benchmarks_derived_fused_allreduce.csv")
    derived = derived[derived["network"] == network].set_index(["model", "n_gpus"]).sort_index()
    rows = throughputs("BSP-A2A", network)
    assert rows.index.equals(derived.index) and len(rows) == 12
    models, n = rows.index.get_level_values("model"), rows.index.get_level_values("n_gpus")
    found = bus_bandwidth(gradient_bytes[models].to_numpy(), rows["tn_s"] - rows["t1_s"], n)
    np.testing.assert_allclose(found / 1e9, derived["busbw_GBps"], rtol=0.005)


@pytest.mark.parametrize(
    ("network", "workers", "low", "high"),
    [
        ("10GbE with TCP/IP", [8, 16, 32], 1.12, 1.22),
        ("100GbE with TCP/IP", [8, 16, 32], 1.9, 2.7),
        ("10GbE with TCP/IP", [4], 4.1, 6.5),
    ],
)
def test_a_ring_at_the_published_bus_bandwidth_gives_the_published_iteration(
    network, workers, low, high, gradient_bytes
):
    # ddl-benchmarks: bus bandwidths by network, 4 GPUs over PCIe; tolerance: rounding to 2 digits
    rows = throughputs("BSP-A2A", network)
    for model in gradient_bytes.index.intersection(["ResNet-50", "BERT-Base", "BERT-Large"]):
        for n in workers:
            t1_s, tn_s = rows.loc[(model, n), ["t1_s", "tn_s"]]
            slow, fast = (
                Ring(Link(0.0, 1 / (bw * 1e9)))(gradient_bytes[model], n) for bw in (low, high)
            )
            assert t1_s + 0.98 * fast <= tn_s <= t1_s + 1.02 * slow


@pytest.mark.parametrize(
    ("n", "alpha_ms", "hop_us"), [(8, 0.34, 24), (16, 0.51, 17), (32, 0.95, 15)]
)
def test_latencies_follow_from_one_message_against_one_a_tensor(
    n, alpha_ms, hop_us, gradient_bytes
):
    # ddl-benchmarks, ResNet-50 on 10 GbE, rows BSP-A2A (one message) and WFBP-A2A (161 messages,
    # communication-bound from the start of backward, which is the last 2/3 of the iteration)
    one = throughputs("BSP-A2A").loc[("ResNet-50", n)]
    each = throughputs("WFBP-A2A").loc[("ResNet-50", n)]
    columns = Affine(LINK).columns([gradient_bytes["ResNet-50"] / 161], n)
    design = np.array(
        [
            [columns["alpha"][0], 161 * columns["beta"][0]],
            [161 * columns["alpha"][0], 161 * columns["beta"][0]],
        ]
    )
    seconds = [one["tn_s"] - one["t1_s"], each["tn_s"] - each["t1_s"] / 3]
    alpha, _ = np.linalg.solve(design, seconds)
    assert alpha * 1e3 == pytest.approx(alpha_ms, rel=0.05)
    assert alpha / Ring(LINK).messages(n) * 1e6 == pytest.approx(hop_us, rel=0.05)


def test_alpha_and_beta_of_512_sizes_on_100_gbit_infiniband():
    # dexhunter, ring-100g-stepexp2: 5.29e-4 s, 3.556e-10 s/B, bus bandwidth 5.45 GB/s, MAPE 0.6 %
    rows = published("dexhunter_nccl_allreduce_32gpu.csv").query("file.str.contains('ring-100g')")
    seconds = rows["time_us"].to_numpy() * 1e-6
    columns = Affine(LINK).columns(rows["bytes"], 32)
    weighted = np.column_stack(list(columns.values())) / seconds[:, None]
    alpha, beta = np.linalg.lstsq(weighted, np.ones(len(rows)))[0]
    assert (alpha, beta) == (pytest.approx(5.29e-4, rel=0.05), pytest.approx(3.556e-10, rel=0.05))
    fitted = Affine(Link(alpha, beta))
    assert bus_bandwidth(1e12, fitted(1e12, 32), 32) / 1e9 == pytest.approx(5.45, rel=0.05)
    assert np.abs(fitted(rows["bytes"], 32) / seconds - 1).mean() < 0.01


@pytest.mark.parametrize(
    ("network", "n", "alpha", "beta"),
    [
        ("56GbIB", 2, 2.55e-6, 9.84e-11),
        ("56GbIB", 4, 4.204e-5, 2.059e-10),
        ("56GbIB", 8, 9.754e-5, 3.057e-10),
        ("56GbIB", 16, 2.358e-4, 4.059e-10),
        ("10GbE", 8, 5.230e-4, 8.571e-10),
        ("10GbE", 16, 9.081e-4, 7.396e-10),
    ],
)
def test_published_alphas_and_betas_price_a_message(network, n, alpha, beta):
    # rows of HKBU-HPML/MG-WFBP distributed_optimizer.py in alpha_beta_tables.csv, T = a + b bytes
    rows = published("alpha_beta_tables.csv")
    rows = rows[rows["source"].str.endswith("MG-WFBP distributed_optimizer.py")]
    row = rows.set_index(["network", "n_workers"]).loc[(network, str(n))]
    priced = Affine(Link(float(row["alpha"]), float(row["beta"])))([0, 1e8], n)
    assert priced == pytest.approx([alpha, alpha + 1e8 * beta], rel=0.05)


@pytest.mark.parametrize("n", [2, 8, 16])
def test_the_ring_of_b_caffe_has_a_hop_more_each_way(n):
    # hclhkbu/B-Caffe scripts/gmwfbp.py, 10 GbE: T = 2n alpha + 2(n-1)/n M beta (+ reduction)
    row = published("alpha_beta_tables.csv").query("source == 'hclhkbu/B-Caffe scripts/gmwfbp.py'")
    alpha, beta = float(row["alpha"].iloc[0]), float(row["beta"].iloc[0])
    theirs = 2 * n * alpha + 2 * (n - 1) / n * 1e6 * beta
    assert Ring(Link(alpha, beta))(1e6, n) + 2 * alpha == pytest.approx(theirs)
    assert (alpha, beta) == (pytest.approx(45e-6, rel=0.05), pytest.approx(0.993e-9, rel=0.05))


def test_an_op_that_is_no_name_is_refused():
    for op in (["all_reduce"], None):
        with pytest.raises(ValueError, match="op: expected one of all_reduce, .*; got (list|None)"):
            Ring(Link(0.0, 0.0), op)
        with pytest.raises(ValueError, match="op: expected one of all_reduce, .*; got (list|None)"):
            bus_bandwidth(1, 1, 2, op)


def test_a_table_to_join_has_each_column_once():
    table = pd.DataFrame(
        [[2, 8, 1e-3, 2e-3]], columns=["n_workers", "nbytes", "seconds", "seconds"]
    )
    with pytest.raises(ValueError, match="Interpolated table: column seconds is there more than"):
        Interpolated(table)
