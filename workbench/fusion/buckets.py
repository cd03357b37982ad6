"""Tensor fusion: which gradients travel in one message.

`fuse` applies a policy, a callable that maps a GRADIENTS table to bucket numbers: one of `policies`
or any other.
"""

from numbers import Real

import numpy as np
import pandas as pd

from ..base.checks import a_policy, refuse, require, shown, whole
from ..base.tables import GRADIENTS, check
from .policies import Policy, Timed, doubt_limit, kinds

check_piece = whole(1, "Write 4 MiB as 4 * MIB")


def fuse(gradients: pd.DataFrame, policy: Policy) -> pd.DataFrame:
    """Return the BUCKETS a policy makes of the gradients, in the order they are sent.

    A bucket is ready with its last member; bytes and gradients are neither lost nor added.
    Columns: n_gradients, nbytes (bytes), ready_s (s since backward began) and, for a policy with
    its own clock, launch_s (s since backward began, when the host sends the message).

    Raises ValueError for an incomplete GRADIENTS table (see check_gradients), or if the policy does
    not return bucket numbers that rise over 0, 1, 2 ...
    """
    return pd.DataFrame(buckets(check_gradients(gradients), policy))


def buckets(gradients: pd.DataFrame, policy: Policy) -> dict[str, np.ndarray]:
    """Return the columns of `fuse`, for GRADIENTS that have been checked once for many policies."""
    a_policy(policy, "fusion")
    grouped = policy(gradients.copy(deep=False))  # a policy may add columns to its copy
    timed = grouped if isinstance(grouped, Timed) else Timed(grouped, None)
    bucket = _bucket_numbers(timed.numbers, gradients, policy)
    n_gradients = np.bincount(bucket)
    nbytes, ready = np.zeros(len(n_gradients), "int64"), np.zeros(len(n_gradients))
    np.add.at(nbytes, bucket, gradients["nbytes"].to_numpy("int64"))
    np.maximum.at(ready, bucket, gradients["ready_s"].to_numpy(float))
    columns = {"n_gradients": n_gradients, "nbytes": nbytes, "ready_s": ready}
    if timed.launch_s is not None:
        columns["launch_s"] = np.asarray(timed.launch_s, dtype=float)
        found = f"{columns['launch_s'].size}"
        ok, expected = columns["launch_s"].shape == n_gradients.shape, len(n_gradients)
        require(ok, shown(policy), f"{expected} launches, one per message", found=found)
    return columns


def partition(gradients: pd.DataFrame, piece_bytes: int) -> pd.DataFrame:
    """Return the GRADIENTS with every gradient above piece_bytes cut into pieces, ready together.

    A gradient of S bytes becomes ceil(S / piece_bytes) rows of piece_bytes, the last with the rest,
    named name[0], name[1] ...; the other columns are repeated.
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


def check_gradients(gradients: pd.DataFrame) -> pd.DataFrame:
    """Return the GRADIENTS table if it is complete enough to be sent, else raise ValueError.

    Complete: at least one row, every nbytes known, whole and from 0 up, less than 2**63 in all,
    every ready_s finite, from 0 up and non-decreasing.
    """
    check(gradients, GRADIENTS, "gradients")
    require(len(gradients), "gradients", "at least one gradient", found="an empty table")
    if (unknown := gradients["nbytes"].isna()).any():
        first = gradients["name"][unknown].iloc[0]
        do = "Pass a model table, gradients(run, sizes=table of data/models), or record with "
        found = f"{unknown.sum()} of {len(gradients)} unknown, first {first!r}"
        refuse("gradients nbytes", "known bytes", do=f"{do}record_shapes=True", found=found)
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
    """Return a column as floats, NaN for anything that is not a number, such as "25" in quotes."""
    if column.dtype.kind in "iuf":
        return column.to_numpy(float, na_value=np.nan)
    real = (isinstance(v, Real) and not isinstance(v, bool | np.bool_) for v in column)
    return np.array([float(v) if r else np.nan for v, r in zip(column, real, strict=True)])


def _refuse(gradients: pd.DataFrame, column: str, wrong: np.ndarray, expected: str):
    if wrong.any():
        row = int(wrong.argmax())
        found = str(gradients[column].iloc[row])
        refuse(f"gradients {column} of row {row}", expected, found=found)


def _by_type(bucket: np.ndarray, gradients: pd.DataFrame):
    """Yield the bucket numbers of the gradients of each dtype."""
    if "dtype" not in gradients:
        yield bucket
        return
    types = np.array(kinds(gradients))
    yield from (bucket[types == kind] for kind in np.unique(types))


def _bucket_numbers(bucket, gradients: pd.DataFrame, policy) -> np.ndarray:
    """Return the bucket numbers, or raise ValueError unless those of each dtype rise from 0."""
    bucket, n = np.asarray(bucket), len(gradients)
    expected = f"one bucket number for each of {n} gradients"
    require(bucket.shape == (n,), shown(policy), expected, found=f"shape {bucket.shape}")
    used, ok = np.unique(bucket), bucket.dtype.kind in "iuf"
    ok = ok and np.array_equal(used, np.arange(len(used)))
    ok = ok and not any((np.diff(each) < 0).any() for each in _by_type(bucket, gradients))
    expected, found = "bucket numbers 0, 1, 2 ... over consecutive gradients", bucket[:12].tolist()
    require(ok, shown(policy), expected, found=str(found))
    return bucket.astype("int64")
