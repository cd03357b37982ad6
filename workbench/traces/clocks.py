"""Ranks on one time axis: by the clocks in their files, or by the ends of collectives."""

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

_EPOCH_NS = 10**18  # 2001: times beyond it count from the epoch, smaller ones from some boot
_SKEW_NS = 1_000_000  # clocks that agree differ by far less, and so do the ends of a collective
_FAR_NS = 60 * 10**9  # no clock of a cluster is off by more: the files are of different times
_ENOUGH = 8  # messages
_DOUBT = ": they do not agree, so compare times of different ranks only roughly"
_NO_CLOCK = (
    "the clocks of the ranks cannot be aligned: expected times since the epoch in every file "
    "(baseTimeNanoseconds) or a collective that all ranks share. Load the ranks one at a time"
)


def align(tables: list[pd.DataFrame]) -> tuple[list[pd.DataFrame], str, bool]:
    """Put the ranks' EVENTS (times in ns) on one axis; also return how, and if that is doubtful.

    Clocks are used as they are if every file counts from the epoch and they agree. Otherwise each
    rank is shifted so that its collectives end with those of the first rank, since all workers
    leave a collective together. Raises ValueError if neither is possible.
    """
    if len(tables) < 2:
        return tables, "", False
    ends = _ends(tables)
    apart = [_apart(ends[0], other) for other in ends]
    middles = [middle for middle, _, _ in apart]
    if all(table["start_ns"].min() >= _EPOCH_NS for table in tables if len(table)):
        how = "clocks of the ranks as their files state them"
        skewed = [_is_skewed(*each) for each in apart]
        middles = [middle if off else 0 for middle, off in zip(middles, skewed, strict=True)]
        if any(skewed):
            most = max(map(abs, middles)) / 1e6
            how += f", but {sum(skewed)} of them shifted, by up to {most:.1f} ms, onto the ends"
            how += " of their collectives"
    elif np.isnan(middles).any():
        raise ValueError(_NO_CLOCK)
    else:
        how = "clocks of the ranks aligned on the ends of their collectives"
    shifts = list(map(round, middles))
    left = [_apart(ends[0], *each) for each in zip(ends[1:], shifts[1:], strict=True)]
    doubtful = any(abs(m) > (_SKEW_NS if n >= _ENOUGH else _FAR_NS) for m, _, n in left)
    left = [abs(middle) for middle, _, _ in left if middle == middle]
    residual = f"; matching ends differ by {max(left) / 1e3:.1f} us (median)" if left else ""
    moved = [
        table.assign(start_ns=table["start_ns"] + s, end_ns=table["end_ns"] + s) if s else table
        for table, s in zip(tables, shifts, strict=True)
    ]
    return moved, how + residual + _DOUBT * doubtful, doubtful


def _ends(tables: list[pd.DataFrame]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (message, end in ns) of each rank's collectives, by message and then in order.

    A message is an iteration, op and group, as a whole number that all ranks share.
    """
    columns = ["iteration", "op", "group", "start_ns", "end_ns"]
    comm = [table.loc[table["kind"] == "comm", columns] for table in tables]
    comm = [rows.iloc[np.argsort(rows["start_ns"].to_numpy(), kind="stable")] for rows in comm]
    message = pd.factorize(np.concatenate([rows["iteration"] for rows in comm]))[0]
    for column in ("op", "group"):
        codes = union_categoricals([rows[column].astype("category") for rows in comm]).codes
        message = pd.factorize(message * (int(codes.max(initial=0)) + 1) + codes)[0]
    message = np.split(message, np.cumsum([len(rows) for rows in comm])[:-1])
    orders = [np.argsort(each, kind="stable") for each in message]
    return [
        (each[order], rows["end_ns"].to_numpy()[order])
        for each, rows, order in zip(message, comm, orders, strict=True)
    ]


def _is_skewed(middle: float, spread: float, n: int) -> bool:
    """Return whether a clock is off: enough messages, all too early or too late by as much."""
    return n >= _ENOUGH and spread < _SKEW_NS < abs(middle) < _FAR_NS


def _apart(reference: tuple, other: tuple, shift: int = 0) -> tuple[float, float, int]:
    """Return how far matching ends are apart, ns: median, interquartile range, and their number.

    Both are NaN if nothing matches. In an iteration in which a rank lacks a message the order
    would pair wrong ones, so it does not count.
    """
    n = max(int(message.max(initial=-1)) + 1 for message, _ in (reference, other))
    counts = [np.bincount(message, minlength=n) for message, _ in (reference, other)]
    alike = counts[0] == counts[1]
    ends = [ends[alike[message]] for message, ends in (reference, other)]  # pair by pair
    if not ends[0].size:
        return float("nan"), float("nan"), 0
    low, middle, high = np.quantile(ends[0] - (ends[1] + shift), [0.25, 0.5, 0.75])
    return float(middle), float(high - low), ends[0].size
