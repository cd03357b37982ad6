"""Tensor fusion: which gradients travel in one message.

`fuse` applies a policy, a callable that maps a GRADIENTS table to bucket numbers; the policies are
those of `policies`, to be imported from here, or any callable of that kind.
"""

from numbers import Real

import numpy as np
import pandas as pd

from ..base.checks import check_callable, shown
from ..base.tables import GRADIENTS, check
from .policies import Policy, Timed, check_limit, doubt_limit, kinds


def fuse(gradients: pd.DataFrame, policy: Policy) -> pd.DataFrame:
    """Return the BUCKETS a policy makes of the gradients, in the order they are sent.

    A bucket is ready with its last member; bytes and gradients are neither lost nor added.
    Columns: n_gradients, nbytes (bytes), ready_s (s since backward began) and, for a policy with a
    clock of its own, launch_s (s since backward began, when the host sends the message).

    Raises ValueError for an incomplete GRADIENTS table (see check_gradients), or when the policy
    is a class or does not return bucket numbers as the module describes them.
    """
    return pd.DataFrame(buckets(check_gradients(gradients), policy))


def buckets(gradients: pd.DataFrame, policy: Policy) -> dict[str, np.ndarray]:
    """Return the columns of `fuse` for GRADIENTS that have been checked: many policies, one check.

    Raises ValueError as fuse does for a policy.
    """
    check_callable(policy, "fusion", "DDPBuckets()")
    grouped = policy(gradients.copy(deep=False))  # what a policy writes there is its own
    timed = grouped if isinstance(grouped, Timed) else Timed(grouped, None)
    bucket = _bucket_numbers(timed.numbers, gradients, policy)
    n_gradients = np.bincount(bucket)
    nbytes, ready = np.zeros(len(n_gradients), "int64"), np.zeros(len(n_gradients))
    np.add.at(nbytes, bucket, gradients["nbytes"].to_numpy("int64"))
    np.maximum.at(ready, bucket, gradients["ready_s"].to_numpy(float))
    columns = {"n_gradients": n_gradients, "nbytes": nbytes, "ready_s": ready}
    if timed.launch_s is not None:
        columns["launch_s"] = np.asarray(timed.launch_s, dtype=float)
        if columns["launch_s"].shape != n_gradients.shape:
            raise ValueError(
                f"{shown(policy)}: expected a launch for each of {len(n_gradients)} messages, got "
                f"{columns['launch_s'].size}"
            )
    return columns


def partition(gradients: pd.DataFrame, piece_bytes: int) -> pd.DataFrame:
    """Return the GRADIENTS with every gradient above piece_bytes cut into pieces, ready together.

    A gradient of S bytes becomes ceil(S / piece_bytes) rows of piece_bytes, the last holding the
    rest, named name[0], name[1] ...; the other columns are repeated.
    """
    check_gradients(gradients)
    check_piece(piece_bytes, "partition piece_bytes")
    doubt_limit(piece_bytes, gradients, "partition piece_bytes")
    sizes = gradients["nbytes"].to_numpy("int64")
    counts = np.maximum(-(-sizes // int(piece_bytes)), 1)
    row = np.repeat(np.arange(len(sizes)), counts)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    names = gradients["name"].astype(str).to_numpy()[row]
    cut = counts[row] > 1
    return (
        gradients.iloc[row]
        .reset_index(drop=True)
        .assign(
            name=[f"{n}[{k}]" if c else n for n, k, c in zip(names, piece, cut, strict=True)],
            nbytes=np.minimum(sizes[row] - piece * int(piece_bytes), int(piece_bytes)),
        )
    )


def check_piece(nbytes, what: str):
    """Raise ValueError unless nbytes is a whole number of bytes from 1 up."""
    check_limit(nbytes, what)
    if not (1 <= nbytes < np.inf and nbytes == int(nbytes)):
        raise ValueError(f"{what}: expected whole bytes from 1 up, got {shown(nbytes)}")


def check_gradients(gradients: pd.DataFrame) -> pd.DataFrame:
    """Return the GRADIENTS table when it is complete enough to be sent, else raise ValueError.

    Complete: at least one row, every nbytes known, whole and from 0 up, less than 2**63 in all,
    every ready_s finite, from 0 up and non-decreasing.
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
    _refuse(gradients, "nbytes", np.cumsum(nbytes) >= 2.0**63, "less than 2**63 bytes in all")
    ready = _floats(gradients["ready_s"])
    _refuse(gradients, "ready_s", ~((ready >= 0) & (ready < np.inf)), "finite s from 0 up")
    if "enqueued_s" in gradients:
        enqueued = _floats(gradients["enqueued_s"])
        wrong = ~(np.isfinite(enqueued) & (enqueued <= ready))
        _refuse(gradients, "enqueued_s", wrong, "finite s, at most its ready_s")
    early = np.diff(ready, prepend=0.0) < 0
    _refuse(gradients, "ready_s", early, "gradients in the order backward makes them (sort first)")
    return gradients


def _floats(column: pd.Series) -> np.ndarray:
    """Return a column as floats, NaN for whatever is no number, "25" in quotes included."""
    if column.dtype.kind in "iuf":
        return column.to_numpy(float, na_value=np.nan)
    real = (isinstance(v, Real) and not isinstance(v, bool | np.bool_) for v in column)
    return np.array([float(v) if r else np.nan for v, r in zip(column, real, strict=True)])


def _refuse(gradients: pd.DataFrame, column: str, wrong: np.ndarray, expected: str):
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        got = gradients[column].iloc[row]
        raise ValueError(f"gradients: {column} of row {row}: expected {expected}; got {got}")


def _by_type(bucket: np.ndarray, gradients: pd.DataFrame):
    """Yield the numbers of the gradients of each type of data."""
    if "dtype" not in gradients:
        yield bucket
        return
    types = np.array(kinds(gradients))
    yield from (bucket[types == kind] for kind in np.unique(types))


def _bucket_numbers(bucket, gradients: pd.DataFrame, policy) -> np.ndarray:
    """Return a policy's numbers, or raise ValueError unless each type's rise over 0, 1, 2 ..."""
    bucket, n = np.asarray(bucket), len(gradients)
    if bucket.shape != (n,):
        raise ValueError(
            f"{shown(policy)}: expected one bucket number for each of {n} gradients, "
            f"got shape {bucket.shape}"
        )
    used, wrong = np.unique(bucket), bucket.dtype.kind not in "iuf"
    wrong = wrong or not np.array_equal(used, np.arange(len(used)))
    if wrong or any((np.diff(each) < 0).any() for each in _by_type(bucket, gradients)):
        raise ValueError(
            f"{shown(policy)}: expected bucket numbers 0, 1, 2 ... over consecutive gradients, "
            f"got {bucket[:12].tolist()}"
        )
    return bucket.astype("int64")
