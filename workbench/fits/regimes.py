"""Where the price per hop changes: breakpoints and floor, and the boundary of a node.

This module finds the structure of a cost; its numbers are fitted in regression, where breaks and
floor also count as estimated, so that they widen the other intervals.
"""

import itertools
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from ..base.checks import require
from ..costs import (
    FlatRing,
    HalvingDoubling,
    Hierarchical,
    Interpolated,
    Link,
    NodesCost,
    ParameterServer,
    Piecewise,
    Ring,
    Tree,
)
from .estimates import Method, solve
from .screening import known

ALL_REDUCE = (HalvingDoubling, Tree, ParameterServer, NodesCost)  # costs of this collective only
MOST_BREAKS, CANDIDATES = 6, 100
NO_RESIDUAL = 1e-8  # a mean squared relative residual below this counts as none
_FREE = Link(0.0, 0.0)


def shaped(kind, op: str, rows: pd.DataFrame):
    """Return a cost of the kind, with its structure given or found from the rows, to be priced.

    Raises ValueError for anything but a kind of cost, or for an instance of another op.
    """
    if kind is Interpolated:
        return Interpolated(rows)
    kind = Piecewise(breaks=None) if kind is Piecewise else kind
    searched = kind in (Hierarchical, FlatRing)
    if isinstance(kind, Piecewise):
        made = replace(kind, kind=_with_op(kind.kind, op))
    else:
        made = kind(_FREE, _FREE, 1) if searched else _made(kind, op)
    _refuse_other(made, op, kind)
    if searched:
        return kind(_FREE, _FREE, node_boundary(rows, lambda n: kind(_FREE, _FREE, n)))
    if isinstance(made, Piecewise) and made.breaks is None:
        return find_regimes(made, rows)
    return made


def _made(kind, op: str):
    """Return an instance as it is, a cost of a class or a callable, or None for anything else."""
    if hasattr(kind, "parameters") and not isinstance(kind, type):
        return kind
    try:
        return _with_op(kind, op)(_FREE) if kind is not Link else None
    except (TypeError, ValueError, AttributeError):
        return None


def _with_op(kind, op: str):
    return partial(Ring, op=op) if kind is Ring else kind


def _refuse_other(made, op: str, kind):
    """Raise ValueError unless it is a cost of two inputs and of this collective."""
    one = made.kind(_FREE) if isinstance(made, Piecewise) else made
    try:
        known = hasattr(one, "with_parameters") and one.columns(np.ones(1), np.full(1, 2.0))
    except (TypeError, AttributeError):
        known = False
    require(known, "kind", "a class of cost, such as Ring or Affine", kind, "Write kind=Ring")
    found = getattr(one, "op", "all_reduce" if isinstance(one, ALL_REDUCE) else op)
    require(found == op, "kind", f"a cost of {op}", do="Write kind=Ring", found=f"one of {found}")


def tangent(model, *at) -> pd.DataFrame:
    """Return how the seconds change with each parameter, SI units: one column per parameter.

    It is the column itself if the cost is linear; for breaks and a floor it is the derivative.
    """
    if not hasattr(model, "columns"):
        return pd.DataFrame(index=range(len(at[0])))
    columns = {name: np.atleast_1d(values) for name, values in model.columns(*at).items()}
    if not isinstance(model, Piecewise):
        return pd.DataFrame(columns)
    values = model.parameters
    floor = sum(values[name] * column for name, column in columns.items()) < model.floor_s
    hops = columns["alpha"]
    for k in range(1, len(model.betas)):
        bend = values[f"beta_{k}"] - values[f"beta_{k + 1}"]
        columns[f"break_{k}"] = hops * bend * (columns[f"beta_{k + 1}"] > 0)
    columns = {name: np.where(floor, 0.0, column) for name, column in columns.items()}
    if model.floor_s:
        columns["floor"] = np.where(floor & (hops > 0), 1.0, 0.0)
    return pd.DataFrame(columns)


def steps(model, rows: pd.DataFrame) -> list[str]:
    """Return the breaks next to a segment of fewer than two timed sizes, such as ends of a step.

    The rows do not determine where exactly they are, so they are not counted as estimated.
    """
    if not isinstance(model, Piecewise):
        return []
    few = np.flatnonzero(_enclosed(model.breaks, np.unique(_each(model, rows))) < 2)
    return [f"break_{k}" for k in sorted({*few, *(few + 1)}) if 1 <= k <= len(model.breaks)]


def _enclosed(breaks, sizes: np.ndarray) -> np.ndarray:
    """Return the number of sizes in each segment."""
    return np.diff(np.searchsorted(sizes, (0.0, *breaks, np.inf)))


def _each(kind: Piecewise, rows: pd.DataFrame) -> np.ndarray:
    """Return the bytes per hop of each row."""
    hops, moved = kind.kind(_FREE).columns(rows["nbytes"], rows["n_workers"]).values()
    return moved / hops


def find_regimes(kind: Piecewise, rows: pd.DataFrame) -> Piecewise:
    """Return a Piecewise with the breaks and floor of the least `_criterion`.

    With one number of workers a floor cannot be separated from alpha and is left out.
    """
    points, seconds = (rows["nbytes"], rows["n_workers"]), rows["seconds"].to_numpy(float)
    hops = kind.kind(_FREE).columns(*points)["alpha"]
    each = _each(kind, rows)
    best, score = find_breaks(each, seconds / hops)
    model = _built(kind, best, 0.0)
    if len(np.unique(hops)) < 2:
        return model
    low, trial = None, None
    for start in _floors(each, hops, seconds):
        found, loss = _above(kind, start, each, hops, seconds, points)
        if loss < score:
            low, trial, score = start, found, loss
    for _ in range(5 if trial else 0):  # again, with the rows below the floor of the last regimes
        before, low = low, replace(trial, floor_s=0.0)(*points) < trial.floor_s
        if (low == before).all() or min(low.sum(), (~low).sum()) < 4:
            break
        found, loss = _above(kind, low, each, hops, seconds, points)
        if loss >= score:
            break
        trial, score = found, loss
    return trial or model


def _above(kind, low, each, hops, seconds, points) -> tuple[Piecewise, float]:
    """Return a Piecewise, low rows at the floor and others in regimes, and its criterion."""
    found, _ = find_breaks(each[~low], (seconds / hops)[~low])
    trial = _built(kind, found, float(seconds[low].mean()))
    squares = np.sum((seconds / trial(*points) - 1) ** 2)
    return trial, _criterion(squares, len(seconds), 3 + 3 * len(trial.breaks))


def _built(kind: Piecewise, found: tuple, floor: float) -> Piecewise:
    breaks, prices = found
    return replace(
        kind, alpha=prices[0], betas=tuple(prices[1:]), breaks=tuple(breaks), floor_s=floor
    )


def _floors(each: np.ndarray, hops: np.ndarray, seconds: np.ndarray):
    """Yield sets of rows that may be at the floor, given a line for the others."""
    known = set()
    for factor in (1.1, 1.25, 1.5, 2.0, 3.0):
        low = seconds < factor * seconds.min()
        for _ in range(10):
            if low.sum() < 2 or (~low).sum() < 4:
                break
            x = np.column_stack([hops, hops * each])[~low] / seconds[~low, None]
            scale = np.linalg.norm(x, axis=0)
            line = nnls(x / scale, np.ones(len(x)))[0] / scale
            before, low = low, hops * (line[0] + line[1] * each) < seconds[low].mean()
            if (low == before).all():
                break
        if low.sum() >= 2 and (~low).sum() >= 4 and (key := low.tobytes()) not in known:
            known.add(key)
            yield low


def find_breaks(x: np.ndarray, price: np.ndarray) -> tuple[tuple, float]:
    """Return (breaks, (alpha, beta_1, ..)) of the price per hop of x bytes, and their criterion.

    Breaks are added one by one, each time moving all of them to where they fit best, as long as the
    criterion falls. Errors are relative, no slope is below 0, and the first and the last segment
    contain three sizes or more. Results are cached for fits of the same rows by another method.
    """
    order = np.argsort(x, kind="stable")
    return _found(x[order].astype(float).tobytes(), price[order].astype(float).tobytes())


@lru_cache(maxsize=32)
def _found(x: bytes, price: bytes) -> tuple[tuple, float]:
    """Return the result of find_breaks for rising x and the price, both floats as bytes."""
    x, price = np.frombuffer(x), np.frombuffer(price)
    sizes = np.unique(x)
    grid = _candidates(sizes)
    most = min(MOST_BREAKS, len(grid), (len(x) - 3) // 2)  # fewer parameters than rows
    w = 1 / price
    for zooms in (0, 3):  # weights from the times themselves, then from what was fitted
        places, best = np.array([]), _Blocks(x, price, w, np.array([])).score([])
        while len(places) < most:
            trial, score = _one_more(x, price, w, grid, places, zooms)
            if score >= best:
                break
            places, best = trial, score
        prices = _Blocks(x, price, w, places).prices(range(len(places)))
        w = 1 / np.maximum(_hop(x, places, prices), 0.05 * price)
    places = _spread(places, sizes)
    blocks, every = _Blocks(x, price, w, places), range(len(places))
    return (tuple(places), tuple(blocks.prices(every))), blocks.score(every)


def _one_more(x, price, w, grid, places, zooms: int) -> tuple[np.ndarray, float]:
    """Return the breaks and one more, each where it fits best, and their criterion.

    The grid is refined around them first: with a break that is merely off its best place, another
    break would seem necessary.
    """
    edges, sizes = np.unique(np.r_[grid, places]), np.unique(x)
    blocks = _Blocks(x, price, w, edges)
    at = _settled(blocks, _added(blocks, [int(k) for k in np.searchsorted(edges, places)]))
    for _ in range(zooms):
        edges, at = _finer(edges, edges[at], sizes)
        blocks = _Blocks(x, price, w, edges)
        at = _settled(blocks, at, reach=8)
    return edges[at], blocks.score(at)


def _spread(places: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the breaks, two within a gap between neighbouring sizes moved to the ends of the gap.

    They form a step whose place in the gap is unknown; no fitted time changes.
    """
    places = places.copy()
    for k in range(len(places) - 1):
        low = np.searchsorted(sizes, places[k], side="right")
        if low == np.searchsorted(sizes, places[k + 1]) and 0 < low < len(sizes):
            places[k : k + 2] = sizes[low - 1], sizes[low]
    return np.unique(places)


def _hop(x: np.ndarray, breaks: np.ndarray, prices: np.ndarray) -> np.ndarray:
    edges = (0.0, *breaks, np.inf)
    parts = (np.clip(x, a, b) - a for a, b in zip(edges, edges[1:], strict=False))
    return prices[0] + sum(beta * part for beta, part in zip(prices[1:], parts, strict=True))


def _candidates(sizes: np.ndarray) -> np.ndarray:
    """Return possible breaks: the inner sizes and points between, thinned evenly in logarithm."""
    inner = sizes[2:-2]
    if not len(inner):
        return inner
    found = np.unique(np.r_[inner, np.sqrt(inner[:-1] * inner[1:])])
    if len(found) <= CANDIDATES:
        return found
    grid = np.geomspace(found[0], found[-1], CANDIDATES)
    return np.unique(found[np.abs(np.searchsorted(found, grid)).clip(0, len(found) - 1)])


def _finer(edges: np.ndarray, places: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, list]:
    """Return a grid seven times finer around each break, and the positions of the breaks on it.

    A break next to a segment of fewer than two sizes stays, since its exact place is unknown.
    """
    parts, known = [places], _enclosed(places, sizes) >= 2
    for place in places[known[:-1] & known[1:]]:
        at = int(np.searchsorted(edges, place))
        low, high = edges[max(at - 1, 0)], edges[min(at + 1, len(edges) - 1)]
        parts += [np.geomspace(low, place, 8)[1:], np.geomspace(place, high, 8)[:-1]]
    finer = np.unique(np.concatenate(parts))
    return finer, [int(at) for at in np.searchsorted(finer, places)]


def _added(blocks: "_Blocks", breaks: list[int]) -> list[int]:
    others = [k for k in range(len(blocks.edges)) if k not in breaks]
    return min((sorted([*breaks, k]) for k in others), key=blocks.loss)


def _settled(blocks: "_Blocks", breaks: list[int], reach: int | None = None) -> list[int]:
    """Return the breaks, each moved in turn to where it fits best between its neighbours, twice."""
    for _ in range(2):
        before = breaks
        for i in range(len(breaks)):
            low, high = ([-1, *breaks][i] + 1, [*breaks, len(blocks.edges)][i + 1])
            if reach is not None:
                low, high = max(breaks[i] - reach, low), min(breaks[i] + reach + 1, high)
            trials = ([*breaks[:i], k, *breaks[i + 1 :]] for k in range(low, high))
            breaks = min(trials, key=blocks.loss)
        if breaks == before:
            break
    return breaks


class _Blocks:
    """The rows between neighbouring candidates, x rising, each block reduced to three rows by QR.

    Inside a block every segmented line is one straight line, so least squares of the reduced rows
    is that of all of them, however many there are.
    """

    def __init__(self, x, price, w, edges):
        self.edges, self.n = edges, len(x)
        ends = np.r_[0, np.searchsorted(x, edges, side="right"), len(x)]
        rows = np.column_stack([w, w * x, w * price])
        parts = [
            rows[a:b] if b - a <= 3 else np.linalg.qr(rows[a:b], mode="r")
            for a, b in itertools.pairwise(ends)
        ]
        self.one, self.x, self.target = np.concatenate(parts).T.copy()
        self.first = np.cumsum([0, *map(len, parts)]).tolist()  # row of each block
        self._known = {}

    def loss(self, breaks: list[int]) -> float:
        return self._solved(breaks)[1] ** 2

    def prices(self, breaks: list[int]) -> np.ndarray:
        return self._solved(breaks)[0]

    def score(self, breaks: list[int]) -> float:
        return _criterion(self.loss(breaks), self.n, 2 + 3 * len(breaks))

    def _solved(self, breaks: list[int]) -> tuple[np.ndarray, float]:
        if (key := tuple(breaks)) not in self._known:
            x = np.zeros((len(self.one), len(breaks) + 2), order="F")
            x[:, 0] = self.one
            first, low = 0, 0.0
            for k, at in enumerate(breaks, start=1):
                last, high = self.first[at + 1], self.edges[at]
                x[first:last, k] = self.x[first:last] - low * self.one[first:last]
                x[last:, k] = (high - low) * self.one[last:]
                first, low = last, high
            x[first:, -1] = self.x[first:] - low * self.one[first:]
            scale = np.sqrt(np.einsum("ij,ij->j", x, x))
            scale[scale == 0] = 1.0
            found, rest = nnls(x / scale, self.target)
            self._known[key] = found / scale, rest
        return self._known[key]


def _criterion(squares: float, n: int, k: int) -> float:
    """Return BIC3, or AICc if that is larger, so that few rows allow few breaks.

    n log(sum of squared relative residuals / n) and a penalty on k parameters. A break counts as
    three, for a slope and a place that is searched for, since BIC with two finds breaks in a
    straight line (Kim and Kim, Consistent model selection in segmented line regression, 2016).

    k : the prices except slopes beyond breaks, and three per break; the spread is one more
    """
    correction = 2 * (k + 1) * (k + 2) / (n - k - 2) if n > k + 2 else np.inf
    penalty = max((k + 1) * np.log(n), 2 * (k + 1) + correction)
    return n * np.log(max(squares / n, NO_RESIDUAL)) + penalty


def node_boundary(rows: pd.DataFrame, make) -> int:
    """Return the workers per node: from n_nodes if known, otherwise where the price steps up.

    make : workers_per_node -> cost with the price of two links

    Each measured number of workers may be the last on one node; the one with the least sum of
    absolute log residuals is used, if BIC (of Laplace errors) prefers it to no boundary. It is the
    largest number seen on one node, which may be less than the size of a node.
    """
    wanted = rows["n_nodes"].notna().to_numpy()
    nodes = np.where(wanted, known(rows, "n_nodes", wanted, 0.0, "rows to fit", whole=True), np.nan)
    n_workers = rows["n_workers"].to_numpy(float)
    row = int((nodes > n_workers).argmax())
    expected, found = f"at most its {n_workers[row]:g} workers", f"{nodes[row]:g}"
    do = "Correct the row, or leave n_nodes <NA> if unknown"
    ok = not nodes[row] > n_workers[row]
    require(ok, f"rows to fit n_nodes of row {row}", expected, found=found, do=do)
    if not np.isnan(nodes).any():
        return int(np.ceil(n_workers / nodes).max())
    counts, seconds = np.unique(n_workers), rows["seconds"].to_numpy(float)
    scores = {}
    for n in counts:
        model = make(int(n))
        columns = pd.DataFrame(model.columns(rows["nbytes"], rows["n_workers"]))
        fitted = columns.to_numpy() @ solve(columns, seconds, Method()).to_numpy()
        loss = np.abs(np.log(np.maximum(fitted, 1e-12) / seconds)).mean()
        k = 2 if n == counts[-1] else 5
        scores[int(n)] = 2 * len(seconds) * np.log(max(loss, 1e-8)) + k * np.log(len(seconds))
    return min(scores, key=scores.get)
