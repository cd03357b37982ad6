"""Sets of half-open spans [start, end), as two equally long arrays; integers stay exact."""

import numpy as np


def union(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merge spans that touch or overlap: sorted, disjoint `(start, end)`. Empty spans vanish.

    Raises ValueError when an end lies before its start.
    """
    start, end = _spans(start, end)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    if start.size == 0:
        return start, end
    reach = np.maximum.accumulate(end)
    opens = np.r_[True, start[1:] > reach[:-1]]
    return start[opens], reach[np.r_[opens[1:], True]]


def measure(start: np.ndarray, end: np.ndarray):
    """Length covered by the spans, overlaps counted once."""
    start, end = union(start, end)
    return (end - start).sum()


def intersection(a: tuple, b: tuple) -> tuple[np.ndarray, np.ndarray]:
    """Where both sets of spans `a` and `b` cover: sorted, disjoint `(start, end)`."""
    (a_start, a_end), (b_start, b_end) = union(*a), union(*b)
    first = np.searchsorted(b_end, a_start, side="right")
    count = np.maximum(np.searchsorted(b_start, a_end, side="left") - first, 0)
    i = np.repeat(np.arange(a_start.size), count)
    j = (
        np.repeat(first, count)
        + np.arange(count.sum())
        - np.repeat(np.cumsum(count) - count, count)
    )
    return np.maximum(a_start[i], b_start[j]), np.minimum(a_end[i], b_end[j])


def overlap(a: tuple, b: tuple):
    """Length that both sets of spans cover."""
    start, end = intersection(a, b)
    return (end - start).sum()


def clip(start: np.ndarray, end: np.ndarray, low, high) -> tuple[np.ndarray, np.ndarray]:
    """The part of each span inside [low, high); spans outside it vanish."""
    start, end = _spans(start, end)
    start, end = np.maximum(start, low), np.minimum(end, high)
    inside = end > start
    return start[inside], end[inside]


def _spans(start, end) -> tuple[np.ndarray, np.ndarray]:
    start, end = np.asarray(start), np.asarray(end)
    if start.shape != end.shape or start.ndim != 1:
        raise ValueError(
            f"spans: expected two equally long lists, got shapes {start.shape} and {end.shape}"
        )
    bad = np.flatnonzero(~(end >= start))
    if bad.size:
        i = bad[0]
        raise ValueError(
            f"spans: end must not lie before start; span {i} is [{start[i]}, {end[i]})"
        )
    filled = end > start
    return start[filled], end[filled]
