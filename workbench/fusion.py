"""Tensor fusion: which gradients travel in one message.

A policy is a callable that maps a GRADIENTS table to one bucket number a gradient: 0 first, then
the same number or the next. Only consecutive gradients share a bucket, so a policy is a way of
cutting the backward order.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd

from .checks import check_callable, one_number, shown
from .tables import GRADIENTS, check
from .units import KIB, MIB


def fuse(gradients: pd.DataFrame, policy) -> pd.DataFrame:
    """Return the BUCKETS a policy makes of the gradients, in the order they are sent.

    A bucket is ready with its last gradient; bytes and gradients are neither lost nor added.
    Columns: n_gradients, nbytes (bytes), ready_s (s since backward began).

    Raises ValueError for an incomplete GRADIENTS table (see check_gradients), or when the policy
    is a class or does not return consecutive bucket numbers.
    """
    check_callable(policy, "fusion", "DDPBuckets()")
    check_gradients(gradients)
    first = _first_gradients(policy(gradients), len(gradients), policy)
    last = np.append(first[1:], len(gradients)) - 1
    return pd.DataFrame(
        {
            "n_gradients": last - first + 1,
            "nbytes": np.add.reduceat(gradients["nbytes"].to_numpy("int64"), first),
            "ready_s": gradients["ready_s"].to_numpy(float)[last],
        }
    )


@dataclass(frozen=True)
class PerTensor:
    """One message a gradient: wait-free back-propagation without fusion."""

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray:
        return np.arange(len(gradients))


@dataclass(frozen=True)
class OneMessage:
    """All gradients in one message, sent when the last is ready: whole model after backward."""

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray:
        return np.zeros(len(gradients), dtype="int64")


@dataclass(frozen=True)
class DDPBuckets:
    """PyTorch DDP's buckets: one closes after the gradient that brings it to its limit.

    The first bucket's limit is first_bytes, every later one's cap_bytes; the gradient that crosses
    the limit is included, so buckets overshoot. The defaults are DDP's own (1 MiB, then 25 MiB);
    `bucket_cap_mb=25` given by hand has no small first bucket: DDPBuckets(25 * MIB, 25 * MIB).
    Source: compute_bucket_assignment_by_size, torch/csrc/distributed/c10d/reducer.cpp (2.14).
    A limit below 1 KiB is warned of: it may be meant in MiB.
    """

    first_bytes: int = 1 * MIB
    cap_bytes: int = 25 * MIB

    def __post_init__(self):
        for name in ("first_bytes", "cap_bytes"):
            expected = f"DDPBuckets {name}: expected bytes above 0"
            nbytes = one_number(getattr(self, name), expected, "write 25 MiB as 25 * MIB")
            if not nbytes > 0:
                raise ValueError(f"{expected}, got {shown(nbytes)}")
            if nbytes < KIB:
                warnings.warn(
                    f"DDPBuckets {name}: {shown(nbytes)} bytes: sizes are bytes, "
                    f"{shown(nbytes)} MiB is {shown(nbytes)} * MIB",
                    stacklevel=3,
                )

    def __call__(self, gradients: pd.DataFrame) -> np.ndarray:
        numbers, number, held = [], 0, 0
        for nbytes in gradients["nbytes"].to_list():
            numbers.append(number)
            held += nbytes
            if held >= (self.first_bytes if number == 0 else self.cap_bytes):
                number, held = number + 1, 0
        return np.array(numbers)


def check_gradients(gradients: pd.DataFrame) -> pd.DataFrame:
    """Return the GRADIENTS table when it is complete enough to be sent, else raise ValueError.

    Complete: at least one row, every nbytes known, whole and from 0 up, every ready_s finite, from
    0 up and non-decreasing.
    """
    check(gradients, GRADIENTS, "gradients")
    if gradients.empty:
        raise ValueError("gradients: expected at least one gradient, got an empty table")
    unknown = gradients["nbytes"].isna()
    if unknown.any():
        raise ValueError(
            f"gradients: nbytes is unknown for {unknown.sum()} of {len(gradients)} gradients, "
            f"first {gradients['name'][unknown].iloc[0]!r}. The trace holds no shapes: pass a "
            "model table, gradients(run, sizes=table of data/models), or record with "
            "record_shapes=True"
        )
    nbytes = _floats(gradients["nbytes"])
    _refuse(gradients, "nbytes", ~((nbytes >= 0) & (nbytes % 1 == 0)), "whole bytes from 0 up")
    ready = _floats(gradients["ready_s"])
    _refuse(gradients, "ready_s", ~((ready >= 0) & (ready < np.inf)), "finite s from 0 up")
    early = np.diff(ready, prepend=0.0) < 0
    _refuse(gradients, "ready_s", early, "gradients in the order backward makes them (sort first)")
    return gradients


def _floats(column: pd.Series) -> np.ndarray:
    """Return a column as floats, NaN for whatever is no number, "25" in quotes included."""
    if not pd.api.types.is_numeric_dtype(column):
        column = pd.to_numeric(
            column.mask(column.map(lambda v: isinstance(v, str))), errors="coerce"
        )
    return column.to_numpy(float, na_value=np.nan)


def _refuse(gradients: pd.DataFrame, column: str, wrong: np.ndarray, expected: str):
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        got = gradients[column].iloc[row]
        raise ValueError(f"gradients: {column} of row {row}: expected {expected}; got {got}")


def _first_gradients(numbers, n_gradients: int, policy) -> np.ndarray:
    """Return the position of each bucket's first gradient, shape (n_buckets,)."""
    numbers = np.asarray(numbers)
    if numbers.shape != (n_gradients,):
        raise ValueError(
            f"{shown(policy)}: expected one bucket number for each of {n_gradients} gradients, "
            f"got shape {numbers.shape}"
        )
    steps = np.diff(numbers, prepend=-1) if numbers.dtype.kind in "iuf" else np.array([np.nan])
    if steps[0] != 1 or not np.isin(steps[1:], (0, 1)).all():
        raise ValueError(
            f"{shown(policy)}: expected bucket numbers 0, 1, 2 ... over consecutive gradients, "
            f"got {numbers[:12].tolist()}"
        )
    return np.flatnonzero(steps)
