"""Fits of known truth: bias and coverage of 95 % intervals by kind of cost, and how long fits take.

For `make bench`. Each kind is timed 1,000 times with 5 % noise; the bias of every parameter should
stay under 1 % and its interval cover in 93-97 % of the sets.
"""

import sys
import time
import warnings

import numpy as np
import pandas as pd

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
)
from workbench.fits import fit_all_reduce, fit_batch_time, fit_collective

NOISE = 0.05
LINK, INSIDE = Link(20e-6, 0.2e-9), Link(5e-6, 0.05e-9)
SIZES = [2**k for k in range(10, 29)]
FINE = [2 ** (k / 2) for k in range(10, 57)]
PIECES = Piecewise(Ring, 5e-6, (2e-9, 0.2e-9), (2.0**14,))
FLOORED = Piecewise(Ring, 50e-6, (0.2e-9,), (), floor_s=1e-3)
TWO = Piecewise(Ring, 5e-6, (4e-9, 0.5e-9, 1.5e-9), (2.0**13, 2.0**19))
# name -> (truth, the kind to fit, sizes, numbers of workers)
CASES = {
    "Ring": (Ring(LINK), Ring, SIZES, (2, 4, 8, 16, 32)),
    "Ring all_gather": (Ring(LINK, "all_gather"), Ring, SIZES, (2, 4, 8, 16, 32)),
    "Affine": (Affine(LINK), Affine, FINE, (8,)),
    "HalvingDoubling": (HalvingDoubling(LINK), HalvingDoubling, SIZES, (2, 3, 8, 12, 32)),
    "Tree": (Tree(LINK), Tree, SIZES, (2, 4, 8, 16, 32)),
    "ParameterServer": (
        ParameterServer(LINK, 4),
        ParameterServer(Link(0, 0), 4),
        SIZES,
        (2, 4, 8, 16, 32),
    ),
    "Hierarchical": (Hierarchical(INSIDE, LINK, 4), Hierarchical, SIZES, (2, 4, 8, 16, 32)),
    "FlatRing": (FlatRing(INSIDE, LINK, 4), FlatRing, SIZES, (2, 3, 4, 8, 16, 32)),
    "Piecewise, a break": (PIECES, Piecewise, FINE, (4, 8, 16)),
    "Piecewise, two breaks": (TWO, Piecewise, FINE, (4, 8, 16)),
    "Piecewise, a floor": (FLOORED, Piecewise, FINE, (4, 8, 16, 32)),
    "BatchTime": (BatchTime(5e-3, 1e-3), BatchTime, [1, 2, 4, 8, 16, 32, 64, 128] * 4, ()),
}


def timed(name: str, rng: np.random.Generator) -> pd.DataFrame:
    """A noisy data set of a case: MEASUREMENTS, or the times of batches."""
    truth, _, sizes, workers = CASES[name]
    if isinstance(truth, BatchTime):
        table = pd.DataFrame({"batch": sizes})
        exact = truth(table["batch"])
    else:
        grid = [(n, size) for n in workers for size in sizes]
        table = pd.DataFrame(grid, columns=["n_workers", "nbytes"])
        table = table.assign(op=getattr(truth, "op", "all_reduce"), n_nodes=pd.NA)
        exact = truth(table["nbytes"], table["n_workers"])
    return table.assign(seconds=exact * (1 + NOISE * rng.standard_normal(len(table))))


def fitted(name: str, table: pd.DataFrame):
    """The fit of a data set of a case."""
    truth, kind, *_ = CASES[name]
    if isinstance(truth, BatchTime):
        return fit_batch_time(table)
    return fit_collective(table, getattr(truth, "op", "all_reduce"), kind)


def recovered(name: str, n_sets: int, seed: int = 0) -> pd.DataFrame:
    """Of each parameter of a case: bias (share), coverage (share of sets), n_sets that tell.

    A set whose fit has another structure, such as a break more, tells nothing of the parameters and
    counts in column odd.
    """
    truth = {key: value for key, value in CASES[name][0].parameters.items() if value}
    estimates, inside = [], []
    for k in range(n_sets):
        fit = fitted(name, timed(name, np.random.default_rng([seed, list(CASES).index(name), k])))
        found = fit.parameters()
        if set(found) != set(truth):
            continue
        estimates.append([found[key] / truth[key] for key in truth])
        bounds = (fit.interval(key) for key in truth)
        inside.append([a <= truth[key] <= b for key, (a, b) in zip(truth, bounds, strict=True)])
    estimates, inside = np.array(estimates), np.array(inside)
    return pd.DataFrame(
        {
            "bias": estimates.mean(axis=0) - 1,
            "deviation": estimates.std(axis=0),
            "coverage": inside.mean(axis=0),
            "odd": n_sets - len(estimates),
        },
        index=pd.MultiIndex.from_product([[name], truth], names=["cost", "parameter"]),
    )


def durations() -> pd.Series:
    """Seconds of a fit of 100,000 measurements and a prediction of a million, best of three."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "op": "all_reduce",
            "n_workers": rng.choice([2, 4, 8], 100_000),
            "n_nodes": 1,
            "nbytes": rng.integers(4, 2**28, 100_000),
        }
    )
    exact = PIECES(table["nbytes"], table["n_workers"])
    table["seconds"] = exact * (1 + NOISE * rng.standard_normal(len(table)))
    sizes, workers = rng.integers(4, 2**28, 1_000_000), rng.choice([2, 4, 8], 1_000_000)
    found = {}
    for kind in (Ring, Piecewise, Interpolated):
        fit, found[f"fit {kind.__name__}, 1e5 rows"] = best(lambda k=kind: fit_all_reduce(table, k))
        _, found[f"predict {kind.__name__}, 1e6 rows"] = best(
            lambda f=fit: f.predict(sizes, workers)
        )
    return pd.Series(found, name="seconds")


def best(call, times: int = 3):
    """What a call returns, and the shortest of several durations in s."""
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        result = call()
        spent.append(time.perf_counter() - start)
    return result, min(spent)


def main():
    warnings.simplefilter("ignore")
    n_sets = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    table = pd.concat([recovered(name, n_sets) for name in CASES])
    table["good"] = (table["bias"].abs() < 0.01) & table["coverage"].between(0.93, 0.97)
    print(f"{n_sets} sets a cost, {NOISE:.0%} noise\n{table.to_string()}\n")
    print(durations().to_string())
    sys.exit(0 if n_sets < 1000 or table["good"].all() else 1)


if __name__ == "__main__":
    main()
