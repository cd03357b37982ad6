"""NCCL's expectation: latencies and bandwidths worked by hand from the rules of its tuner."""

import numpy as np
import pytest
from conftest import published

from workbench.costs import NcclTuner, nccl

NODES = {
    "architecture": "Volta",
    "workers_per_node": 8,
    "inside_bandwidth": 130e9,
    "between_bandwidth": 12e9,
    "n_channels": 2,
}
VERSIONS = ["2.9.9", "2.19.4", "2026-06"]
ALGORITHMS = ["Ring", "Tree"]
PROTOCOLS = ["LL", "LL128", "Simple"]


def tuner(version="2.9.9", algorithm="Ring", protocol="Simple", **given):
    chosen = {"version": version, "algorithm": algorithm, "protocol": protocol}
    return NcclTuner(**chosen | NODES | given)


every = pytest.mark.parametrize(
    "cost", [tuner(v, a, p) for v in VERSIONS for a in ALGORITHMS for p in PROTOCOLS]
)


def test_two_nodes_of_eight_by_hand():
    # 2.9.9, Ring Simple: 8.4 + 28 x 3.4 + 2 x 9.6 = 122.8 us, 1.9 times that from 64 KiB on
    cost = tuner()
    assert cost(0, 16) == pytest.approx(122.8e-6)
    assert cost(65535, 16) - 65535 / cost.bandwidth(16) == pytest.approx(122.8e-6)
    assert cost(65536, 16) - 65536 / cost.bandwidth(16) == pytest.approx(1.9 * 122.8e-6)


@pytest.mark.parametrize(
    ("version", "algorithm", "protocol", "n", "microseconds"),
    [
        ("2.9.9", "Ring", "Simple", 8, 8.4 + 14 * 3.4),
        ("2.9.9", "Ring", "LL", 16, 3.6 + 28 * 1.8 * 0.47 + 2 * 2.7),
        ("2.9.9", "Ring", "LL", 8, 3.6 + 14 * 0.47),
        ("2.9.9", "Tree", "LL128", 32, 4.4 + 2 * (7 * 1.25 + 2 * 8.5)),
        ("2.9.9", "Tree", "LL", 40, 4.4 + 2 * (7 * 1.8 * 0.52 + 2 * 5.0)),
        ("2.19.4", "Ring", "Simple", 8, 8.4 + 14 * 3.4),
        ("2.19.4", "Ring", "Simple", 16, 8.4 + 26 * 3.4 + 4 * 14.0),
        ("2.19.4", "Ring", "LL", 16, 6.6 + 26 * 1.0 + 4 * 2.7),
        ("2.19.4", "Tree", "Simple", 16, 2 * (7 * 28.0 + 28.0)),
        ("2026-06", "Ring", "Simple", 16, 8.4 + 28 * 3.4 + 2 * 14.0),
        ("2026-06", "Tree", "Simple", 16, 8.4 + 2 * (7 * 4.0 + 14.0)),
    ],
)
def test_latencies_by_hand(version, algorithm, protocol, n, microseconds):
    assert tuner(version, algorithm, protocol).latency(n) * 1e6 == pytest.approx(microseconds)


def test_posting_to_the_network_takes_longer_on_amd():
    # Simple posts three times: 3 x 2 us exceed the 3.4 us of a hop over NVLink
    assert tuner("2026-06", cpu="AMD").latency(16) * 1e6 == pytest.approx(8.4 + 28 * 6.0 + 2 * 14)


def test_nodes_of_one_worker_expose_the_network_latency_of_the_tree():
    cost = tuner("2026-06", protocol="LL", workers_per_node=1)
    assert cost.latency(4) * 1e6 == pytest.approx(6.6 + 6 * 5.0)


@pytest.mark.parametrize(
    ("version", "algorithm", "protocol", "n", "gbytes_a_second"),
    [
        ("2.9.9", "Ring", "Simple", 8, 130 * 8 / 14),
        ("2.9.9", "Ring", "Simple", 16, 12 * 16 / 30),
        ("2.9.9", "Ring", "LL", 16, 12 / 4 * 16 / 30),
        ("2026-06", "Ring", "LL", 16, 12 / 2 * 16 / 30),
        ("2.9.9", "Ring", "LL128", 16, 12 * 0.92 * 16 / 30),
        ("2.9.9", "Ring", "LL128", 8, 2 * 20 * 8 / 14),
        ("2.9.9", "Tree", "Simple", 16, 12 * 0.92 / 2),
        ("2.9.9", "Tree", "Simple", 8, 2 * 26.5 / 2),
        ("2.9.9", "Tree", "LL", 16, 12 * 0.92 / 3.8 / 2),
        ("2026-06", "Tree", "LL128", 8, 2 * 20 / 2),
        ("2.9.9", "Tree", "LL128", 16, 12 * 0.92 * 120 / 128 / 2),
    ],
)
def test_bandwidths_by_hand(version, algorithm, protocol, n, gbytes_a_second):
    found = tuner(version, algorithm, protocol).bandwidth(n)
    assert found / 1e9 == pytest.approx(gbytes_a_second)


@pytest.mark.parametrize(
    ("given", "n", "bus"),
    [
        ({"architecture": "Ampere"}, 8, 235),
        ({"architecture": "Ampere", "protocol": "LL"}, 8, 235 / 4),
        ({"protocol": "LL"}, 8, 39),
        ({"protocol": "LL"}, 16, 39),
        ({"protocol": "LL", "cpu": "AMD"}, 16, 22.5),
        ({"protocol": "LL", "cpu": "AMD"}, 32, 19),
    ],
)
def test_a_fast_machine_meets_the_caps(given, n, bus):
    fast = tuner(inside_bandwidth=600e9, between_bandwidth=200e9, **given)
    assert fast.bandwidth(n) * 2 * (n - 1) / n / 1e9 == pytest.approx(bus)


@pytest.mark.parametrize(("architecture", "factor"), [("Volta", 1.9), ("Ampere", 1.4)])
def test_later_versions_begin_the_plateau_at_64_bytes_a_channel_and_worker(architecture, factor):
    cost = tuner("2.19.4", architecture=architecture)
    before, after = 64 * 2 * 16 - 1, 64 * 2 * 16
    latency = cost.latency(16)
    assert cost(before, 16) == pytest.approx(latency + before / cost.bandwidth(16))
    assert cost(after, 16) == pytest.approx(factor * latency + after / cost.bandwidth(16))


def test_a_worker_alone_on_its_node_loses_bandwidth_to_ll128_until_2026():
    narrow = {"protocol": "LL128", "workers_per_node": 1}
    old, new = tuner("2.19.4", **narrow), tuner("2026-06", **narrow)
    assert old.bandwidth(4) / 1e9 == pytest.approx(0.7 * 12 * 4 / 6)
    assert new.bandwidth(4) / 1e9 == pytest.approx(0.92 * 12 * 4 / 6)


def test_ll128_gives_a_tree_on_one_node_seven_ninths():
    slow = tuner(algorithm="Tree", protocol="LL128", inside_bandwidth=20e9)
    assert slow.bandwidth(8) / 1e9 == pytest.approx(20 * 0.92 * 7 / 9 / 2)


@every
def test_one_worker_costs_nothing_and_a_larger_message_never_less(cost):
    assert cost(1e9, 1) == 0
    seconds = cost(np.geomspace(1, 1e9, 500), np.array([[2], [8], [9], [16], [64]]))
    assert seconds.shape == (5, 500)
    assert (np.diff(seconds, axis=1) >= 0).all()
    n = np.arange(1, 70)
    assert cost(1e6, n) == pytest.approx([cost(1e6, int(each)) for each in n])


def tagged(name, version):
    tag = {"2.9.9": "2.9.9-1", "2.19.4": "2.19.4-1", "2026-06": "HEAD"}[version]
    table = published(name)
    return table[table["nccl_version"].str.contains(tag)]


@pytest.mark.parametrize("version", VERSIONS)
def test_latencies_are_those_tabulated_from_the_source(version):
    rows = tagged("nccl_tuning_latencies.csv", version).query("algorithm != 'CollNet'")
    rows = rows.set_index(["table", "algorithm"])[PROTOCOLS].apply(tuple, axis=1)
    links = {"NVLink": "NVLINK", "PCI": "PCI", "network": "NET"}
    ours = {("base_latency_us", a): nccl._BASE[version][a] for a in ALGORITHMS}
    for link, name in links.items():
        hops = nccl._HOP[version][link]
        ours |= {(f"hw_latency_us_{name}", a): hops[a] for a in ALGORITHMS}
    assert ours == rows.to_dict()


@pytest.mark.parametrize("version", ["2.9.9", "2026-06"])
def test_caps_are_those_tabulated_from_the_source(version):
    rows = tagged("nccl_tuning_bandwidths.csv", version)
    tables = {"llMaxBw": "LL", "perChMaxTreeBw": "Tree"}
    tables |= {f"perChMax{a}LL128Bw": f"{a} LL128" for a in ALGORITHMS}
    found = rows[["table", "arch", "N1", "N2", "N4plus"]].itertuples(index=False)
    for table, arch, *caps in found:
        assert nccl._CAPS[version][tables[table]][arch.split("(")[0]] == tuple(caps)
