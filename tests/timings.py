"""Timings of known costs and small GRADIENTS, for tests of costs and fits."""

import numpy as np
import pandas as pd

from workbench.costs import Link

LINK, INSIDE = Link(alpha=20e-6, beta=0.2e-9), Link(5e-6, 0.05e-9)
SIZES = [2**k for k in range(10, 29, 2)]


def timings(cost, sizes=SIZES, workers=(2, 8, 32), noise=0.0, seed=0, n_nodes=1) -> pd.DataFrame:
    """MEASUREMENTS of a known cost, with multiplicative noise of a given standard deviation."""
    rows = [("all_reduce", n, n_nodes, size) for n in workers for size in sizes]
    table = pd.DataFrame(rows, columns=["op", "n_workers", "n_nodes", "nbytes"])
    factor = 1 + noise * np.random.default_rng(seed).standard_normal(len(table))
    return table.assign(seconds=cost(table["nbytes"], table["n_workers"]) * factor)


def gradients(sizes, ready=None, **columns) -> pd.DataFrame:
    """GRADIENTS g0, g1 ... of given bytes, ready at 1, 2 ... s by default."""
    ready = np.arange(1.0, len(sizes) + 1) if ready is None else ready
    names = [f"g{i}" for i in range(len(sizes))]
    return pd.DataFrame({"name": names, "nbytes": sizes, "ready_s": ready} | columns)
