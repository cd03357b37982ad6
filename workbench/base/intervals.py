"""Sets of half-open spans [start, end), as two equally long arrays; integers stay exact."""

import numpy as np

from .checks import refuse, require


def union(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merge spans that touch or overlap; return sorted, disjoint `(start, end)`, none empty.

    Raises ValueError if an end is before its start.
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
    """Return the length covered by the spans, with overlaps counted once."""
    start, end = union(start, end)
    return (end - start).sum()


def intersection(a: tuple, b: tuple) -> tuple[np.ndarray, np.ndarray]:
    """Return where both sets of spans `a` and `b` cover: sorted, disjoint `(start, end)`."""
    (a_start, a_end), (b_start, b_end) = union(*a), union(*b)
    first = np.searchsorted(b_end, a_start, side="right")
    count = np.maximum(np.searchsorted(b_start, a_end, side="left") - first, 0)
    i = np.repeat(np.arange(a_start.size), count)
    j = np.arange(count.sum()) + np.repeat(first + count - np.cumsum(count), count)
    return np.maximum(a_start[i], b_start[j]), np.minimum(a_end[i], b_end[j])


def overlap(a: tuple, b: tuple):
    """Return the length that both sets of spans cover."""
    start, end = intersection(a, b)
    return (end - start).sum()


def clip(start: np.ndarray, end: np.ndarray, low, high) -> tuple[np.ndarray, np.ndarray]:
    """Return the part of each span inside [low, high), without the spans outside it."""
    start, end = _spans(start, end)
    start, end = np.maximum(start, low), np.minimum(end, high)
    inside = end > start
    return start[inside], end[inside]


def _spans(start, end) -> tuple[np.ndarray, np.ndarray]:
    start, end = np.asarray(start), np.asarray(end)
    lists = start.shape == end.shape and start.ndim == 1
    found = f"shapes {start.shape} and {end.shape}"
    require(lists, "spans", "two equally long lists", found=found)
    for i in np.flatnonzero(~(end >= start))[:1]:
        found = f"span {i} from {start[i]} to {end[i]}"
        refuse("spans", "no end before its start", found=found)
    filled = end > start
    return start[filled], end[filled]
