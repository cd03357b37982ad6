"""Ranks on one axis of time: by the clocks in their files, else by the ends of collectives."""

import numpy as np
import pandas as pd

_EPOCH_NS = 10**18  # 2001: times beyond it count from the epoch, smaller ones from some boot
_MESSAGE = ["iteration", "op", "group"]


def align(tables: list[pd.DataFrame], infos: list[dict]) -> tuple[list[pd.DataFrame], str]:
    """Put the ranks' EVENTS (times in ns) on one axis; also say how, and how well it worked.

    Clocks are taken as they are when every file counts from the epoch. Otherwise each rank is
    shifted so that its collectives end with those of the first rank, since all workers leave a
    collective together. Raises ValueError when neither is possible.
    """
    if len(tables) < 2:
        return tables, ""
    ends = [_ends(table) for table in tables]
    if all(table["start_ns"].min() >= _EPOCH_NS for table in tables if len(table)):
        how, shifts = "clocks of the ranks as their files state them", np.zeros(len(tables), int)
    else:
        how = "clocks of the ranks aligned on the ends of their collectives"
        shifts = np.array([_shift(ends[0], other) for other in ends])
    apart = [_apart(ends[0], other + int(s)) for other, s in zip(ends[1:], shifts[1:], strict=True)]
    apart = [value for value in apart if value is not None]
    residual = f"; matching ends differ by up to {max(apart) / 1e3:.1f} us" if apart else ""
    moved = [
        table.assign(start_ns=table["start_ns"] + s, end_ns=table["end_ns"] + s) if s else table
        for table, s in zip(tables, shifts.tolist(), strict=True)
    ]
    return moved, how + residual


def _ends(table: pd.DataFrame) -> pd.Series:
    """End in ns of each collective of one rank, by iteration, op, group and order."""
    comm = table[table["kind"] == "comm"].sort_values("start_ns", kind="stable")
    comm = comm.astype({"op": "str", "group": "str"})
    order = comm.groupby(_MESSAGE).cumcount()
    return comm.set_index([*(comm[c] for c in _MESSAGE), order])["end_ns"]


def _shift(reference: pd.Series, other: pd.Series) -> int:
    common = reference.index.intersection(other.index)
    if common.empty:
        raise ValueError(
            "the clocks of the ranks cannot be aligned: not every file states a time since the "
            "epoch (baseTimeNanoseconds), and the ranks have no collective in common. "
            "Load the ranks one at a time"
        )
    return int(np.median((reference[common] - other[common]).to_numpy()))


def _apart(reference: pd.Series, other: pd.Series) -> float | None:
    """The largest difference of matching ends in ns, None without any."""
    common = reference.index.intersection(other.index)
    return None if common.empty else float((reference[common] - other[common]).abs().max())
