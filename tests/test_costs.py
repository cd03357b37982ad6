"""Costs: each kind against hand-worked numbers, messages played one by one, published figures."""

import dataclasses
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import published, refusal
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
    NcclTuner,
    ParameterServer,
    Piecewise,
    Ring,
    Tree,
    bus_bandwidth,
)
from workbench.costs.adjusted import adjusted

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
    "adjusted": dataclasses.replace(adjusted(Ring(LINK)), compression=4.0, copy_s_per_byte=1e-10),
    "nccl": NcclTuner(
        version="2.19.4",
        architecture="Ampere",
        algorithm="Ring",
        protocol="Simple",
        workers_per_node=4,
        inside_bandwidth=130e9,
        between_bandwidth=12e9,
        n_channels=2,
    ),
}
any_cost = pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)


# The contract of all costs


@any_cost
def test_a_cost_broadcasts_and_is_zero_for_one_worker(cost):
    nbytes, workers = np.array([[0], [10], [10**9]]), np.array([1, 2, 3, 7, 32])
    table = cost(nbytes, workers)
    each = [[cost(int(b), int(n)) for n in workers] for b in nbytes[:, 0]]
    assert table.shape == (3, 5)
    np.testing.assert_allclose(table, each, rtol=1e-15)
    assert (table[:, 0] == 0).all() and np.ndim(cost(1000, 8)) == 0
    assert cost([], 8).shape == (0,)


@any_cost
def test_a_cost_rises_with_bytes(cost):
    seconds = cost(np.geomspace(1, 1e9, 200), np.array([[2], [8], [9], [64]]))
    assert np.isfinite(seconds).all() and (np.diff(seconds, axis=1) >= 0).all()


@any_cost
def test_a_cost_refuses_impossible_bytes_and_workers(cost):
    refusal(lambda: cost(8, 1.5), "n_workers", 1.5)
    refusal(lambda: cost(8, [2, 0]), "n_workers", 0)
    refusal(lambda: cost(8, True), "n_workers")
    refusal(lambda: cost([8, -8], 4), "nbytes")


@pytest.mark.parametrize("cost", [c for c in COSTS.values() if hasattr(c, "parameters")])
def test_a_cost_is_the_sum_of_parameters_times_columns(cost):
    nbytes, n = np.array([1e3, 1e5, 1e7]), np.array([[1], [3], [8], [9]])
    columns, (name, *others) = cost.columns(nbytes, n), cost.parameters
    assert {column.shape for column in columns.values()} == {(4, 3)}
    total = sum(cost.parameters[name] * column for name, column in columns.items())
    floor = np.where(n > 1, cost.parameters.get("floor", 0.0), 0.0)
    np.testing.assert_allclose(cost(nbytes, n), np.maximum(total, floor), rtol=1e-12)
    assert cost.with_parameters(**cost.parameters) == cost
    other = cost.with_parameters(**{name: 7e-3})
    assert type(other) is type(cost) and other.parameters[name] == 7e-3
    assert {k: other.parameters[k] for k in others} == {k: cost.parameters[k] for k in others}
    refusal(lambda: cost.with_parameters(gamma=1.0), "parameters", "gamma")


# Hand-worked numbers


def test_ring_cost_is_hops_times_alpha_plus_bytes_moved_times_beta():
    # 6 hops x 10 us + 1.5e6 bytes x 1 ns = 60 us + 1500 us
    assert (Ring(LINK).messages(4), Ring(LINK).moved(1e6, 4)) == (6, 1.5e6)
    assert Ring(LINK)(1e6, 4) == pytest.approx(1560e-6)


def test_goyal_worked_example():
    # Goyal et al. 2017: 100 MB over 8 workers is about 200 MB sent, 2(n-1)/n = 1.75 exactly
    assert Ring(LINK).moved(100e6, 8) == pytest.approx(175e6)


def test_costs_take_the_columns_of_a_table():
    table = pd.DataFrame({"nbytes": [1000, 2000], "n_workers": [2, 4]}).astype("Int64")
    # 2 hops + 1000 bytes, then 6 hops + 3000 bytes
    assert Ring(LINK)(table["nbytes"], table["n_workers"]) == pytest.approx([21e-6, 63e-6])


def test_a_cost_is_a_value_that_replace_varies():
    faster = dataclasses.replace(Ring(LINK), link=dataclasses.replace(LINK, beta=0.0))
    assert faster == Ring(Link(10e-6, 0.0)) and Ring(LINK).link.beta == 1e-9


@pytest.mark.parametrize(
    ("op", "factor", "hops"),
    [
        ("all_reduce", 1.75, 14),
        ("reduce_scatter", 0.875, 7),
        ("all_gather", 0.875, 7),
        ("all_to_all", 0.875, 7),
        ("gather", 0.875, 7),
        ("scatter", 0.875, 7),
        ("broadcast", 1, 7),
        ("reduce", 1, 7),
        ("send_recv", 1, 1),
    ],
)
def test_collectives_have_the_factors_of_nccl_tests(op, factor, hops):
    # factors of nccl-tests doc/PERFORMANCE.md at n = 8; algorithm bandwidth 100 bytes / 2 s
    assert bus_bandwidth(100, 2.0, 8, op) == pytest.approx(50 * factor)
    ring = Ring(LINK, op)
    assert ring.messages(8) == hops and ring.moved(100, 8) == pytest.approx(100 * factor)
    assert ring(1e9, 1) == 0 == Ring(Link(0, 0), op)(1e9, 64)


def test_bus_bandwidth_equals_a_printed_row_of_nccl_tests():
    # dexhunter/allreduce-experiments, 32 GPUs: 512 MiB in 188913 us prints 2.84 and 5.51 GB/s
    assert bus_bandwidth(2**29, 0.188913, 32) / 1e9 == pytest.approx(5.51, abs=0.005)


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


WORKERS = [2, 3, 4, 5, 7, 8, 12, 17]


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
@pytest.mark.parametrize("n_servers", [1, 3, 20])
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


@pytest.mark.parametrize("n", [*range(2, 18), 31, 32, 33, 64, 69])
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
def test_links_of_nodes_are_rings_in_the_limit(kind, n):
    # one node is its inside, nodes of one worker are a ring, as is a flat ring over equal links
    assert kind(LINK, SLOW, 8)(1e6, n) == pytest.approx(Ring(LINK)(1e6, n))
    assert kind(LINK, SLOW, 1)(1e6, n) == pytest.approx(Ring(SLOW)(1e6, n))
    assert FlatRing(LINK, LINK, 4)(1e6, 4 * n + 1) == pytest.approx(Ring(LINK)(1e6, 4 * n + 1))


def test_a_flat_ring_of_two_nodes_by_hand():
    # 16 workers: 28 hops inside at 10 us and 2 between at 40 us; 15/8 of 1 MB at 8 ns
    assert FlatRing(LINK, SLOW, 8)(1e6, 16) == pytest.approx(28 * 10e-6 + 2 * 40e-6 + 15e-3)


def test_nodes_not_all_full_send_the_whole_message_between_them():
    # 6 workers on 2 nodes of 4: chains of 3 hops inside with all of 1 MB, and a ring of 2 nodes
    expected = 2 * (3 * 10e-6 + 1e-3) + 2 * 40e-6 + 8e-3
    assert Hierarchical(LINK, SLOW, 4)(1e6, 6) == pytest.approx(expected)


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


@settings(max_examples=100, deadline=None)
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


# Batches


def test_a_batch_costs_a_fixed_time_and_one_per_sample():
    batch = BatchTime(2e-3, 1e-4)
    assert batch([0, 1, 32]) == pytest.approx([2e-3, 2.1e-3, 5.2e-3])
    total = sum(batch.parameters[name] * column for name, column in batch.columns([1, 32]).items())
    assert total == pytest.approx(batch([1, 32]))
    assert batch.with_parameters(fixed_s=0.0) == BatchTime(0.0, 1e-4)


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
