"""What tests of explorers share: their inputs, their controls, and what a page shows of them."""

import random

import numpy as np
import pandas as pd
import pytest
from bench_explore import move

from workbench import GBIT, KIB, MIB, MS, US
from workbench.costs import Link, Ring
from workbench.fusion import DDPBuckets
from workbench.timeline import Scenario
from workbench.whatif import AdaptiveFusion, FasterLink, HalfPrecision

ALPHA, BETA = 20 * US, 1 / (10 * GBIT)  # 10 Gbit/s
OPTIONS = {"adaptive": AdaptiveFusion(), "fp16": HalfPrecision(), "faster": FasterLink(2)}


def handful(every, *kept) -> list:
    """Values of a parameter: those kept run always, the others in the exhaustive run."""
    return [v if v in kept else pytest.param(v, marks=pytest.mark.all) for v in every]


def ten_gradients(fusion=None, cost=None) -> Scenario:
    """Ten gradients of 4 MiB, one every 6 ms of a backward of 60 ms, on 8 workers."""
    names = [f"gradient {i}" for i in range(10)]
    ready_s = np.arange(1, 11) * 6 * MS
    gradients = pd.DataFrame({"name": names, "nbytes": 4 * MIB, "ready_s": ready_s})
    cost = cost or Ring(Link(ALPHA, BETA))
    return Scenario(gradients, 100 * MS, 60 * MS, 8, cost, fusion or DDPBuckets())


def timed(op="all_reduce", alpha=ALPHA, counts=(4, 8), most=15) -> pd.DataFrame:
    """Times of a ring with 2 % of noise, from 1 KiB by doubling."""
    sizes = KIB * 2.0 ** np.arange(most)
    n, nbytes = (grid.ravel() for grid in np.meshgrid(counts, sizes, indexing="ij"))
    noise = 1 + 0.02 * np.random.default_rng(3).standard_normal(len(n))
    table = pd.DataFrame({"op": op, "n_workers": n, "n_nodes": 1, "nbytes": nbytes})
    return table.assign(seconds=Ring(Link(alpha, 1e-9), op)(nbytes, n) * noise)


def control(explorer, name):
    """The control that a page finds by its class name."""
    rows = [row.children if hasattr(row, "children") else (row,) for row in explorer.children]
    return next(each for row in rows for each in row if f"wb-{name}" in each._dom_classes)


def status(explorer) -> str:
    return control(explorer, "status").value


def shown(explorer) -> tuple:
    """What a page shows: the picture, the HTML below it, the line of numbers."""
    return tuple(control(explorer, name).value for name in ("image", "below", "status"))


def press_save(explorer) -> str:
    control(explorer, "export").click()
    return status(explorer)


def wander(explorer, seed: int, n=4) -> bool:
    """Move n controls somewhere, one after another; whether the last move could be shown."""
    rng = random.Random(seed)
    for name in rng.choices(list(explorer._controls), k=n):
        move(control(explorer, name), rng)
    return "not done" not in status(explorer)
