"""Which MEASUREMENTS are fitted, and why the others are set aside."""

import itertools
import warnings

import numpy as np
import pandas as pd
from pandas.api.types import is_any_real_numeric_dtype

from ..base.checks import one_of, refuse, require
from ..base.tables import MEASUREMENTS, check
from ..base.units import format_bytes, format_seconds

FACTOR, DEVIATIONS = 1.5, 5.0  # a row further than both from its neighbours is set aside,
BESIDE = 1.2  # unless it is within this factor of one of them
FASTEST, SLOWEST = 1e13, 1e5  # bytes/s: above any real link, and below any used for training
SLOW = 1e6  # bytes/s: below any link for training; KiB or MiB instead of bytes look like this
LATENCY, LONGEST = 1e-3, 86400.0  # s: most per hop, and most per message
OUTLIERS = ("set aside", "keep")


def screen(
    measurements: pd.DataFrame, op: str, min_bytes: float = 0, outliers: str = "set aside"
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows to fit and the rows set aside, the latter with the reason in column why.

    Rows of another op, of one worker, without bytes or below min_bytes are set aside, and, unless
    outliers="keep", those found by `strays`. Columns of the rows to fit are converted to numbers.
    Raises ValueError for a time that is not positive, an unknown size or number of workers, and
    inconsistent units, with the row.
    """
    one_of(OUTLIERS)(outliers, "outliers")
    check(measurements, MEASUREMENTS, "measurements")
    why, numbers = _reasons(measurements, op, min_bytes)
    fitted = np.flatnonzero(why == "")
    nbytes, n_workers, seconds = (values[fitted] for values in numbers.values())
    refuse_units(nbytes, n_workers, seconds, fitted)
    _warn_of_slow(nbytes, seconds)
    if outliers == "set aside":
        why[fitted] = strays(nbytes, n_workers, seconds)
    kept = why == ""
    return _numeric(measurements[kept]), measurements.assign(why=pd.array(why, dtype="str"))[~kept]


def _numeric(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows whose sizes, workers and times are of a numeric type."""
    for name in ("nbytes", "n_workers", "seconds"):
        if not is_any_real_numeric_dtype(rows[name].dtype):
            rows = rows.assign(**{name: pd.to_numeric(rows[name].astype(object))})
    return rows


def strays(nbytes, n_workers, seconds) -> np.ndarray:
    """Return why each timing is an outlier among its neighbours in size, "" for the others.

    For each number of workers, a time is compared with the log-log interpolation between the median
    times of the next smaller and larger size; at either end, with any time that neither falls with
    size nor rises faster than it. It is an outlier if it differs by more than a factor of 1.5 and
    more than 5 robust standard deviations of those residuals, unless it is between its neighbours'
    times or within a factor of 1.2 of one, as next to a step in the price. The worst is removed
    first and the others are compared again. A size timed three times or more is compared with its
    own median: times that repeat are not outliers.
    """
    nbytes, n_workers = (np.asarray(values, float) for values in (nbytes, n_workers))
    why = np.full(len(nbytes), "", dtype=object)
    log_bytes, log_seconds = np.log(nbytes), np.log(np.asarray(seconds, float))
    for n in np.unique(n_workers):
        mine = np.flatnonzero(n_workers == n)
        off = _off(log_bytes[mine], log_seconds[mine])
        for at in np.flatnonzero(off):
            times = np.exp(abs(off[at]))
            word = "above" if off[at] > 0 else "below"
            why[mine[at]] = f"outlier: {times:.3g} times {word} its neighbours in size"
    return why


def _off(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the log residual of each outlier of one number of workers, 0 for all others."""
    found, kept = np.zeros(len(x)), np.ones(len(x), bool)
    _, group, count = np.unique(x, return_inverse=True, return_counts=True)
    often = count[group] >= 3
    while True:
        at = np.flatnonzero(kept)
        residuals, outside = _neighbourly(x[at], y[at], often[at])
        size = np.abs(residuals)
        limit = max(np.log(FACTOR), DEVIATIONS * 1.4826 * np.median(size))
        wrong = (size > limit) & outside
        if not wrong.any():
            return found
        # the worst of each run of neighbours: it also affects those next to it
        order = np.argsort(x[at], kind="stable")
        worst = np.where(wrong, size, 0.0)[order]
        beside = np.maximum(np.r_[0.0, worst[:-1]], np.r_[worst[1:], 0.0])
        gone = order[(worst > 0) & (worst >= beside)]
        found[at[gone]] = residuals[gone]
        kept[at[gone]] = False


def _neighbourly(x: np.ndarray, y: np.ndarray, often: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's log distance from its neighbours, and whether it is outside their times.

    often : whether a row is compared with its own size, which was timed often enough
    """
    sizes, group = np.unique(x, return_inverse=True)
    medians = pd.Series(y).groupby(group).median().to_numpy()
    if len(sizes) < 3:
        return np.where(often, y - medians[group], 0.0), often
    rise = np.diff(sizes)
    left, right = np.r_[np.nan, medians[:-1]], np.r_[medians[1:], np.nan]
    share = np.r_[np.nan, rise[:-1] / (rise[:-1] + rise[1:]), np.nan]
    middle = left + share * (right - left)
    low, high = np.fmin(left, right), np.fmax(left, right)
    low[0], high[-1] = high[0] - rise[0], low[-1] + rise[-1]  # a time at most in proportion to size
    inside = np.clip(y, low[group], high[group])
    expected = np.where(np.isnan(middle[group]), inside, middle[group])
    expected = np.where(often, medians[group], expected)
    return y - expected, often | (np.abs(y - inside) > np.log(BESIDE))


def refuse_units(nbytes, n_workers, seconds, rows: np.ndarray):
    """Raise ValueError for impossible bandwidths, and for times that jump by 1e3 or 1e6.

    rows : the row of each timing in the caller's table, for the message
    """
    bandwidth = nbytes / seconds
    hops = 2 * (n_workers - 1)
    slow = nbytes < SLOWEST * (seconds - LATENCY * hops)
    for wrong, what in (
        (nbytes < 1, "a message of a byte or more"),
        (bandwidth > FASTEST, "a bandwidth that a link can have"),
        ((nbytes >= 1e6) & slow, "a bandwidth of a link used for training"),
    ):
        if wrong.any():
            _refuse_time(int(wrong.argmax()), nbytes, seconds, rows, what)
    refuse_longest(seconds, rows, "measurements")
    curves = {}
    for n in np.unique(n_workers):
        mine = np.flatnonzero(n_workers == n)
        mine = mine[np.lexsort((seconds[mine], nbytes[mine]))]
        _refuse_slope(mine, nbytes, seconds, rows)
        _refuse_jumps(nbytes[mine], seconds[mine], rows[mine])
        curves[n] = mine
    for (n, few), (more, many) in itertools.pairwise(curves.items()):
        _refuse_shift(n, few, more, many, nbytes, seconds, rows)


def _warn_of_slow(nbytes: np.ndarray, seconds: np.ndarray):
    """Warn if the largest messages are so slow that their sizes may be in another unit."""
    if not len(nbytes):
        return
    small, large = nbytes == nbytes.min(), nbytes == nbytes.max()
    longest = np.median(seconds[large])  # well above the smallest's, or else it is only latency
    bandwidth = nbytes.max() / longest
    if bandwidth < SLOW and longest > 4 * np.median(seconds[small]):
        warnings.warn(
            f"measurements: the largest messages, {nbytes.max():.6g} bytes, have a bandwidth of "
            f"{bandwidth:.3g} bytes/s, less than any link for training. Convert sizes to bytes",
            stacklevel=5,
        )


def refuse_longest(seconds: np.ndarray, rows: np.ndarray, what: str):
    """Raise ValueError for a time longer than a day."""
    at = int(seconds.argmax()) if len(seconds) else 0
    if len(seconds) and seconds[at] > LONGEST:
        refuse(f"{what} row {rows[at]}", "s, less than a day", seconds[at], "Convert to s")


def _refuse_time(at: int, nbytes, seconds, rows, what: str):
    found = f"{nbytes[at]:.6g} bytes in {seconds[at]:.6g} s, {nbytes[at] / seconds[at]:.3g} bytes/s"
    do = "Convert times to s and sizes to bytes"
    refuse(f"measurements row {rows[at]}", what, found=found, do=do)


def _refuse_slope(mine, nbytes, seconds, rows):
    """Raise ValueError if larger messages take so much longer that sizes cannot be in bytes."""
    first, last = mine[0], mine[-1]
    more, longer = nbytes[last] - nbytes[first], seconds[last] - seconds[first]
    if seconds[last] > 10 * seconds[first] and longer > more / SLOWEST:
        what = f"a bandwidth of a link used for training from row {rows[first]} on"
        _refuse_time(last, nbytes, seconds, rows, what)


def _refuse_shift(n, few, more, many, nbytes, seconds, rows):
    """Raise ValueError if all times of one number of workers are about 1e3 off those of the next.

    More workers take as long or longer: by the extra hops, or by a link some hundred times slower.
    """
    x, y = np.log(nbytes), np.log(seconds)
    both = (x[many] >= x[few[0]]) & (x[many] <= x[few[-1]])
    if not both.any():
        return
    rise = float(np.median(y[many][both] - np.interp(x[many][both], x[few], y[few])))
    if -np.log(100) < rise < np.log(400 * (more - 1) / (n - 1)):
        return
    at = many[both][0]
    found = f"{_timing(at, nbytes, seconds, rows)}, {np.exp(rise):.3g} times as long"
    expected = f"{more:.6g} workers to take about as long as {n:.6g} at the same sizes"
    refuse("measurements", expected, found=found, do="Convert all to s")


def _timing(at: int, nbytes, seconds, rows) -> str:
    return f"row {rows[at]} ({format_bytes(nbytes[at])} in {format_seconds(seconds[at])})"


def _refuse_jumps(nbytes: np.ndarray, seconds: np.ndarray, rows: np.ndarray):
    """Raise ValueError if two or more rows are about 1e3 or 1e6 times off the others.

    The rows are in the order of their sizes.
    """
    rise, jump = np.diff(np.log(nbytes)), np.diff(np.log(seconds))
    thousand, slack = np.log(1e3), np.log(3)
    thousands = np.rint((jump - rise / 2) / thousand)
    rest = jump - thousands * thousand  # the rest grows at most in proportion to size
    plain = (jump > -slack) & (jump < rise + slack)
    thousands[plain | (rest < -slack) | (rest > rise + slack)] = 0
    level = np.r_[0.0, np.cumsum(thousands)]
    values, count = np.unique(level, return_counts=True)
    odd = level != values[count.argmax()]
    if odd.sum() < 2:
        return
    first, others = odd.argmax(), np.flatnonzero(~odd)
    beside = others[np.abs(others - first).argmin()]
    found = " but ".join(_timing(at, nbytes, seconds, rows) for at in (first, beside))
    found += f": {odd.sum()} rows are about 1000 or a million times off the others"
    refuse("measurements", "times in one unit", found=found, do="Convert all to s")


def warn_of_copies(rows: pd.DataFrame, table: pd.DataFrame):
    """Warn of rows that repeat another one in every column, such as a file read twice."""
    copies = table.duplicated() & table.index.isin(rows.index)
    if copies.any():
        places = np.flatnonzero(copies)
        named = ", ".join(map(str, places[:5])) + (", ..." if len(places) > 5 else "")
        word = "row repeats" if len(places) == 1 else "rows repeat"
        warnings.warn(
            f"measurements: {len(places)} {word} another one in every column (row {named}). If "
            "they are copies, intervals are too narrow: remove them with drop_duplicates()",
            stacklevel=4,
        )


def _reasons(measurements: pd.DataFrame, op: str, min_bytes: float) -> tuple[np.ndarray, dict]:
    """Return why each row is set aside, empty for a row to fit, and the columns as floats."""
    other = (measurements["op"] != op).to_numpy()
    found = ", ".join(sorted(map(str, measurements["op"].unique()))) or "no row"
    require(not other.all(), "measurements op", f"rows of {op}", found=found)
    seconds = known(measurements, "seconds", ~other, above=0.0)
    nbytes = known(measurements, "nbytes", ~other, above=-1.0)
    n_workers = known(measurements, "n_workers", ~other, above=0.0, whole=True)
    reasons = {
        f"op is not {op}": other,
        "one worker sends nothing": n_workers == 1,
        "no byte moved": nbytes == 0,
        f"below min_bytes, {format_bytes(min_bytes)}": nbytes < min_bytes,
    }
    why = np.select(list(reasons.values()), list(reasons), "").astype(object)
    return why, {"nbytes": nbytes, "n_workers": n_workers, "seconds": seconds}


def known(
    table: pd.DataFrame,
    name: str,
    wanted: np.ndarray,
    above: float,
    what: str = "measurements",
    whole: bool = False,
) -> np.ndarray:
    """Return a column as floats, or raise ValueError if a wanted row has an impossible value."""
    ok, dtype = table[name].dtype.kind not in "mMbc", str(table[name].dtype)
    require(ok, f"{what} {name}", "numbers", found=dtype, do="Convert the column")
    column = table[name]
    column = column if is_any_real_numeric_dtype(column.dtype) else column.astype(object)
    values = pd.to_numeric(column, errors="coerce").astype("Float64")
    values = values.to_numpy(float, na_value=np.nan)
    wrong = wanted & ~((values > above) & (values < np.inf))
    wrong |= wanted & whole & (values != np.floor(values))
    if wrong.any():
        row, kind = int(wrong.argmax()), "whole" if whole else "known"
        expected, found = f"a {kind} number above {above:g}", str(table[name].iloc[row])
        do = "Correct the row or drop it"
        refuse(f"{what} {name} of row {row}", expected, found=found, do=do)
    return values
