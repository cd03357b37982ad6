"""The price NCCL's tuner expects of a message: a prior to use before anything is timed.

For every message NCCL takes the algorithm and protocol of the least expected time. NcclTuner is
that expectation for an all-reduce by ring or tree. Constants and rules change with the version (a
hop of the ring over the network costs 9.6 us, later 28, later 14), so the version is required.

Source: github.com/NVIDIA/nccl, src/graph/tuning.cc at tags v2.9.9-1 and v2.19.4-1 (BSD-3-Clause)
and src/tuning at commit 5067397c2676d5aed50042fc39e5c8ee96eb0027, here 2026-06 (Apache-2.0).
"""

from dataclasses import dataclass

import numpy as np

from ..base.checks import checked, numbers, one_of, one_worker_count, real, whole_workers
from ..base.units import GB, US

_PROTOCOLS = ("LL", "LL128", "Simple")
_ALGORITHMS = ("Ring", "Tree")

# us, one value for each of _PROTOCOLS: per message, and per hop over each link
_BASE = {
    "2.9.9": {"Ring": (3.6, 10.0, 8.4), "Tree": (4.4, 4.4, 0.0)},
    "2.19.4": {"Ring": (6.6, 14.0, 8.4), "Tree": (6.8, 14.0, 0.0)},
    "2026-06": {"Ring": (6.6, 14.0, 8.4), "Tree": (6.8, 14.0, 8.4)},
}
_HOP = {
    "2.9.9": {
        "NVLink": {"Ring": (0.47, 1.9, 3.4), "Tree": (0.52, 1.25, 28.0)},
        "PCI": {"Ring": (1.0, 2.5, 5.7), "Tree": (1.0, 1.9, 28.0)},
        "network": {"Ring": (2.7, 4.0, 9.6), "Tree": (5.0, 8.5, 28.0)},
    },
    "2.19.4": {
        "NVLink": {"Ring": (0.6, 1.9, 3.4), "Tree": (0.6, 1.25, 28.0)},
        "PCI": {"Ring": (1.0, 2.5, 5.7), "Tree": (1.0, 1.9, 28.0)},
        "network": {"Ring": (2.7, 4.0, 14.0), "Tree": (5.0, 8.5, 28.0)},
    },
    "2026-06": {
        "NVLink": {"Ring": (0.6, 1.9, 3.4), "Tree": (0.6, 1.25, 4.0)},
        "PCI": {"Ring": (1.0, 2.5, 5.7), "Tree": (1.0, 1.9, 4.0)},
        "network": {"Ring": (2.7, 4.0, 14.0), "Tree": (5.0, 8.5, 14.0)},
    },
}

# GB/s on 1, 2 and more nodes: the limit per channel, and the limit of all channels with LL, whose
# row on several nodes depends on the CPU
_OLD_LL = {"Volta": (39.0, 39.0, 20.4), "Ampere": (87.7, 22.5, 19.0)}
_OLD_LL128 = {"Volta": (20.0,) * 3, "Ampere": (20.0,) * 3}
_NEW_TREE = {
    "Volta": (26.5, 18.5, 10.0),
    "Ampere": (24.0, 23.6, 17.8),
    "Hopper": (38.7, 41.4, 36.0),
}
_CAPS = {
    "2.9.9": {
        "LL": _OLD_LL,
        "Tree": {"Volta": (26.5, 18.5, 10.0), "Ampere": (24.0, 22.5, 16.0)},
        "Ring LL128": _OLD_LL128,
        "Tree LL128": _OLD_LL128,
    },
    "2.19.4": {
        "LL": _OLD_LL | {"Hopper": (87.7, 22.5, 19.0)},
        "Tree": _NEW_TREE,
        "Ring LL128": _OLD_LL128 | {"Hopper": (36.7,) * 3},
        "Tree LL128": _OLD_LL128 | {"Hopper": (36.7, 36.7, 29.0)},
    },
    "2026-06": {
        "LL": _OLD_LL | {"Hopper": (141.0, 45.0, 35.0), "Blackwell": (282.0, 90.0, 70.0)},
        "Tree": _NEW_TREE | {"Blackwell": (70.0, 42.8, 24.0)},
        "Ring LL128": _OLD_LL128 | {"Hopper": (36.7,) * 3, "Blackwell": (40.0,) * 3},
        "Tree LL128": _OLD_LL128 | {"Hopper": (36.7, 36.7, 29.0), "Blackwell": (55.6, 31.67, 20.0)},
    },
}
_LL_ROW = {"Intel": "Volta", "AMD": "Ampere"}
_NETWORK_POST = {"Intel": 1.0, "AMD": 2.0}  # us to post a message to the network


_bandwidth = real("bytes/s above 0", lambda v: v > 0)


@checked(
    version=one_of(_BASE),
    algorithm=one_of(_ALGORITHMS),
    protocol=one_of(_PROTOCOLS),
    workers_per_node=one_worker_count,
    inside_bandwidth=_bandwidth,
    between_bandwidth=_bandwidth,
    n_channels=one_worker_count,
    link=one_of(("NVLink", "PCI")),
    cpu=one_of(_LL_ROW),
)
@dataclass(frozen=True, kw_only=True)
class NcclTuner:
    """An all-reduce as NCCL's tuner expects it: latency + nbytes / algorithm bandwidth.

    NCCL finds channels and their bandwidth by searching the machine; here they are arguments. Two
    things are not modelled: what the network plugin adds to a hop, and the factor that lowers a
    tree's bandwidth at medium sizes, which could make a larger message cheaper. One worker costs
    nothing.

    Parameters
    ----------
    version : 2.9.9, 2.19.4 or 2026-06
    architecture : Volta, Ampere, Hopper (from 2.19.4) or Blackwell (2026-06)
    algorithm : Ring or Tree
    protocol : LL, LL128 or Simple
    workers_per_node : workers per node; n workers occupy ceil(n / workers_per_node) nodes
    inside_bandwidth, between_bandwidth : bytes/s of all channels, on one node and on several
    n_channels : channels
    link : NVLink or PCI, inside a node
    cpu : Intel or AMD; only matters on several nodes
    """

    version: str
    architecture: str
    algorithm: str
    protocol: str
    workers_per_node: int
    inside_bandwidth: float
    between_bandwidth: float
    n_channels: int
    link: str = "NVLink"
    cpu: str = "Intel"

    def __post_init__(self):
        known = one_of(_CAPS[self.version]["Tree"])
        known(self.architecture, "NcclTuner architecture")

    def __call__(self, nbytes, n_workers):
        """Return the seconds of a message, broadcast over both."""
        n, message = whole_workers(n_workers), numbers(nbytes, "nbytes")
        latency = self.latency(n) * self._plateau(message, n)
        return np.where(n > 1, latency + message / self.bandwidth(n), 0.0)[()]

    def latency(self, n_workers):
        """Return the latency in s of messages too small for the ring's plateau.

        Ring: base + (2(n-1) - k) inside + k between with k = 2(N-1) on N nodes (2N in 2.19.4, and
        0 on one); tree: base + 2 ((n // N - 1) inside + lg N between).
        """
        n, n_nodes = self._nodes(n_workers)
        base, inside, between = self._latencies(n_nodes)
        if self.algorithm == "Tree":
            hops = 2 * (np.floor(n / n_nodes) - 1), 2.0 * (np.frexp(n_nodes)[1] - 1)
        else:
            crossing = 2 * (n_nodes - 1 if self.version != "2.19.4" else n_nodes * (n_nodes > 1))
            hops = 2 * (n - 1) - crossing, crossing
        return np.where(n > 1, base + hops[0] * inside + hops[1] * between, 0.0)[()] * US

    def bandwidth(self, n_workers):
        """Return the algorithm bandwidth in bytes/s: nbytes / (seconds - latency)."""
        n, n_nodes = self._nodes(n_workers)
        bus = np.where(n_nodes == 1, self.inside_bandwidth, self.between_bandwidth) / GB
        if self.version == "2.9.9" and self.architecture == "Ampere":
            bus = np.minimum(bus, 235.0)
        if self.algorithm == "Ring":
            return self._ring(bus, n, n_nodes) * n / (2 * np.maximum(n - 1, 1)) * GB
        return self._tree(bus, n_nodes) / 2 * GB

    def _nodes(self, n_workers):
        n = whole_workers(n_workers)
        return n, np.ceil(n / self.workers_per_node)

    def _latencies(self, n_nodes):
        """Return us per message, per hop inside a node and per hop between nodes."""
        at, hops = _PROTOCOLS.index(self.protocol), _HOP[self.version]
        inside, between = hops[self.link][self.algorithm][at], hops["network"][self.algorithm][at]
        if self.version == "2.9.9":
            inside = np.where((n_nodes > 1) & (self.protocol == "LL"), 1.8 * inside, inside)
        elif self.algorithm == "Ring":
            post = _NETWORK_POST[self.cpu] * (3 if self.protocol == "Simple" else 1)
            inside = np.where(n_nodes > 1, np.maximum(inside, post), inside)
        if self.version == "2026-06" and self.workers_per_node == 1:
            between = hops["network"]["Tree"][at]
        return _BASE[self.version][self.algorithm][at], inside, between

    def _plateau(self, message, n):
        """Return the factor on the ring's latency when its steps over the network are full."""
        if (self.algorithm, self.protocol) != ("Ring", "Simple"):
            return 1.0
        old = self.version == "2.9.9"
        full = message >= n * (65536 / 16 if old else 64 * self.n_channels)
        factor = 1.9 if old or self.architecture == "Volta" else 1.4
        return np.where(full & (n > self.workers_per_node), factor, 1.0)

    def _ring(self, bus, n, n_nodes):
        if self.protocol == "LL":
            share = 0.5 if self.version == "2026-06" else 0.25
            return np.minimum(bus * share, self._ll_cap(n_nodes))
        if self.protocol == "LL128":
            sparse = (n / n_nodes < 2) & (self.version != "2026-06")
            return np.minimum(bus * np.where(sparse, 0.7, 0.92), self._cap("Ring LL128", n_nodes))
        return bus

    def _tree(self, bus, n_nodes):
        bus = np.minimum(0.92 * bus, self._cap("Tree", n_nodes))
        if self.protocol == "LL":
            return np.minimum(bus / 3.8, self._ll_cap(n_nodes))
        if self.protocol == "LL128":
            share = np.where(n_nodes == 1, 7 / 9, 120 / 128)
            return np.minimum(bus * share, self._cap("Tree LL128", n_nodes))
        return bus

    def _cap(self, table, n_nodes):
        row = np.array(_CAPS[self.version][table][self.architecture])
        return self.n_channels * row[_scale(n_nodes)]

    def _ll_cap(self, n_nodes):
        rows = _CAPS[self.version]["LL"]
        alone, several = np.array(rows[self.architecture]), np.array(rows[_LL_ROW[self.cpu]])
        return np.where(n_nodes == 1, alone[0], several[_scale(n_nodes)])


def _scale(n_nodes):
    return np.minimum(n_nodes, 3).astype(int) - 1
