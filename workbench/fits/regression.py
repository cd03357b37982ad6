"""Fit the price of a collective, or of a batch, to timings: MEASUREMENTS -> Fit."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd

from ..base.checks import one_of, real, require
from ..base.tables import check
from ..costs import BatchTime, Interpolated, Piecewise, Ring
from ..costs.words import prices
from .bands import drawn_costs, predicted_with_bands
from .card import fit_card
from .estimates import Estimate, Method, a_level, infer, points_of, solve
from .regimes import shaped, steps, tangent
from .screening import known, refuse_longest, screen, warn_of_copies

_bytes = real("one finite number of bytes", do="Write 1 MiB as 1 * MIB")


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted cost: `fit.model(nbytes, n_workers)` is in s, and `fit.card()` shows how good it is.

    model : the cost, for example Ring(Link(alpha, beta))
    results : statsmodels' result, parameters alpha (s per hop) and beta (s per byte moved); for a
        robust method or a cost with breaks, over columns scaled to length 1
    measurements : the rows fitted
    set_aside : the rows left out, with the reason in column why
    estimate : the parameters with their covariance, SI units
    method : how they were estimated
    inputs : the columns of measurements that the cost is a function of
    again : measurements -> Fit of the same kind with the same settings, for held-out errors
    """

    model: object
    results: object
    measurements: pd.DataFrame
    set_aside: pd.DataFrame
    estimate: Estimate
    method: Method = Method()
    inputs: tuple[str, ...] = ("nbytes", "n_workers")
    again: Callable | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        error = 100 * np.abs(self.relative_errors()).mean()
        text = prices(self.parameters(), self.inputs[0], self.undetermined())
        return (
            f"Fit of {type(self.model).__name__}: {text or 'the measured times themselves'}\n"
            f"  mean error {error:.3g} % over {len(self.measurements)} points, "
            f"{len(self.set_aside)} set aside; see fit.card()"
        )

    def parameters(self) -> dict[str, float]:
        """Return the numbers of the model in SI units, without a floor of 0."""
        values = getattr(self.model, "parameters", {})
        return {name: value for name, value in values.items() if name != "floor" or value}

    def undetermined(self) -> dict[str, str]:
        """Return the parameters that the rows do not determine -> the reason.

        A latency per hop is one if a constant latency per message explains the rows as well, as
        with one number of workers: its `interval` is then valid if there is no constant.
        """
        free = dict.fromkeys(self.estimate.undetermined, "no row separates it from the others")
        return _like_a_constant(self.model, self.measurements) | free

    def relative_errors(self) -> np.ndarray:
        """Return predicted / measured - 1 for every row fitted, shape (n_rows,)."""
        fitted = self.model(*points_of(self.measurements, self.inputs))
        return fitted / self.measurements["seconds"].to_numpy(float) - 1

    def r2(self) -> float:
        """Return 1 - (squared errors) / (squares about the mean), both of the seconds.

        results.rsquared is not meaningful, since there is no intercept. NaN if every row took the
        same time.
        """
        seconds = self.measurements["seconds"].to_numpy(float)
        spread = np.sum((seconds - seconds.mean()) ** 2)
        unexplained = np.sum((self.relative_errors() * seconds) ** 2)
        return float(1 - unexplained / spread) if spread else float("nan")

    def interval(self, name: str, level: float = 0.95) -> tuple[float, float]:
        """Return the confidence interval of a parameter in SI units.

        NaN for a parameter fixed at 0 or not determined by the rows, and if there are as many
        parameters as points. Raises ValueError for another name.
        """
        a_level(level, "level")
        values, covariance = self.estimate.values, self.estimate.covariance
        one_of(self.parameters())(name, "interval")
        if name not in covariance or name in self.estimate.undetermined or self.estimate.dof < 1:
            return float("nan"), float("nan")
        reach = self.estimate.margin(level) * np.sqrt(covariance.loc[name, name])
        return float(values[name] - reach), float(values[name] + reach)

    def card(self, held_out=None) -> pd.DataFrame:
        """Return the fit on a card to read: index quantity, text columns value, unit, low, high.

        low and high bound the 95 % interval of a parameter and are blank if there is none.
        held_out : relative errors at rows left out of the fit, to add a line about them
        """
        return fit_card(self, held_out)

    def predict(self, nbytes, n_workers=None, level: float = 0.95) -> pd.DataFrame:
        """Return predicted times with their bands, one row per pair of the broadcast arguments.

        Columns nbytes, n_workers, seconds; low, high (confidence of the mean); predicted_low,
        predicted_high (a single measurement); extrapolated (how many times beyond what was
        measured, 1 inside); why (empty inside). Without spread, and for a price that the rows do
        not determine, the band is from 0 to infinity. For a BatchTime the first argument is the
        batch, and there is no other.
        """
        a_level(level, "level")
        return predicted_with_bands(self, nbytes, n_workers, level)

    def draws(self, n: int, rng: np.random.Generator) -> list:
        """Return n costs whose parameters are drawn from the fit's t distribution.

        Draws below 0 become 0; parameters fixed at 0 stay there, and undetermined ones keep their
        value. For an Interpolated the measured times are drawn. Raises ValueError if there are as
        many parameters as points.
        """
        return drawn_costs(self, n, rng)


def fit_all_reduce(
    measurements,
    kind=Ring,
    min_bytes: float = 0,
    *,
    method: str = "wls",
    weights: str = "relative",
    outliers: str = "set aside",
    quantile: float = 0.5,
) -> Fit:
    """Fit the price of a link to timed all-reduces: `fit_collective` with op="all_reduce"."""
    how = Method(method, weights, quantile)
    return _fit(measurements, "all_reduce", kind, min_bytes, how, outliers)


def fit_collective(
    measurements,
    op: str = "all_reduce",
    kind=Ring,
    *,
    min_bytes: float = 0,
    method: str = "wls",
    weights: str = "relative",
    outliers: str = "set aside",
    quantile: float = 0.5,
) -> Fit:
    """Fit the parameters of a cost to timed collectives.

        seconds = messages(n_workers) * alpha + moved(nbytes, n_workers) * beta

    and in the same way for every cost that is a sum of parameters and columns. There is no
    intercept, no parameter is below 0, and intervals are robust to unequal errors (HC3).

    Parameters
    ----------
    measurements : MEASUREMENTS table, or a Run: medians of its messages over iterations
    op : the collective to fit; a Ring is a ring of that collective
    kind : a class of cost, Link -> cost, or an instance, whose structure is kept and whose numbers
        are fitted. For the classes Piecewise, Hierarchical and FlatRing the structure is found
        from the rows: breaks and floor by BIC3 and AICc, workers per node from n_nodes or the step
        in price. `Piecewise(Tree, breaks=None)` finds the regimes of a tree
    min_bytes : smaller messages are set aside, bytes
    method : "wls" (least squares), "huber" (robust) or "quantile" (regression of `quantile`)
    weights : "relative", errors in proportion to the fitted time; "measured", to the measured one,
        which is biased low but often seen; or "absolute"
    outliers : "set aside" by the rule of screening.strays, or "keep"
    quantile : which quantile, with method="quantile"

    Rows set aside are in `Fit.set_aside` with the reason. A parameter whose estimate is negative
    is fixed at 0 and the others are refitted, with a warning. Rows that repeat another one in
    every column also cause a warning.

    Raises ValueError for a time that is not positive, inconsistent units, an unknown size or number
    of workers, or rows that do not determine the parameters.
    """
    return _fit(measurements, op, kind, min_bytes, Method(method, weights, quantile), outliers)


def fit_batch_time(
    table: pd.DataFrame,
    x: str | None = None,
    *,
    method: str = "wls",
    weights: str = "relative",
    quantile: float = 0.5,
) -> Fit:
    """Fit the time of a batch on one worker: seconds = fixed_s + per_sample_s * x.

    table : columns seconds (s) and x, the samples of the batch; or the FLOPs of a layer, for
        example, with per_sample_s then in s per FLOP
    x : its column; by default n_samples or batch

    Raises ValueError for a missing column, a time that is not positive, an x that is below 0 or
    unknown, or rows that all have the same x.
    """
    how = Method(method, weights, quantile)
    check(table, {"seconds": "s"}, "table")
    named = x or next((name for name in ("n_samples", "batch") if name in table), "batch")
    check(table, {named: "samples of the batch"}, "table")
    require(named != "seconds", "x", "the column of the batch", named)
    every = np.ones(len(table), bool)
    seconds = known(table, "seconds", every, above=0.0, what="table")
    values = known(table, named, every, above=-1e-300, what="table")
    refuse_longest(seconds, np.arange(len(table)), "table")
    different, do = len(np.unique(values)), "Time two or more to separate fixed_s and per_sample_s"
    require(different > 1, f"table {named}", "different values", found=f"{different}", do=do)
    table = table.assign(**{named: values, "seconds": seconds})
    model, estimate = _estimated(BatchTime(0.0, 0.0), table, (named,), how)
    _warn_of_held(model, estimate)
    nothing = table.iloc[:0].assign(why=pd.Series(dtype="str"))
    again = partial(fit_batch_time, x=named, method=method, weights=weights, quantile=quantile)
    return Fit(model, estimate.results, table, nothing, estimate, how, (named,), again)


def _fit(measurements, op: str, kind, min_bytes: float, how: Method, outliers: str) -> Fit:
    require(isinstance(op, str), "op", "the name of a collective", op, "Write all_reduce, say")
    _bytes(min_bytes, "min_bytes")
    table = _measured(measurements, op)
    rows, set_aside = screen(table, op, min_bytes, outliers)
    reasons = "; ".join(sorted(set_aside["why"].unique()))
    left = f"{len(rows)} to fit, {len(set_aside)} set aside" + (f" ({reasons})" if reasons else "")
    require(len(rows) > 1, "measurements", "two or more timings to fit", found=left)
    model = shaped(kind, op, rows)
    again = partial(_fit, op=op, kind=kind, min_bytes=min_bytes, how=how, outliers=outliers)
    if isinstance(model, Interpolated):
        estimate = _joined(model, rows)
    else:
        model, estimate = _estimated(model, rows, ("nbytes", "n_workers"), how)
        _refuse_undetermined(estimate, left)
    _warn_of_held(model, estimate)
    if isinstance(measurements, pd.DataFrame):
        warn_of_copies(rows, table)
    return Fit(model, estimate.results, rows, set_aside, estimate, how, again=again)


def _estimated(model, rows: pd.DataFrame, inputs: tuple[str, ...], how: Method):
    """Return the model with the best numbers, and their estimate."""
    points, seconds = points_of(rows, inputs), rows["seconds"].to_numpy(float)
    columns = pd.DataFrame(model.columns(*points))
    floor = tangent(model, *points).get("floor")
    above = np.ones(len(rows), bool) if floor is None else floor.to_numpy() == 0
    values = solve(columns[above], seconds[above], how)
    model = model.with_parameters(**{name: float(value) for name, value in values.items()})
    slopes = tangent(model, *points).drop(columns=steps(model, rows), errors="ignore")
    values = pd.Series(model.parameters)[list(slopes)]
    linear = not isinstance(model, Piecewise)
    fitted = np.asarray(model(*points), float)
    return model, infer(slopes, values, fitted, seconds, how, linear)


def _joined(model: Interpolated, rows: pd.DataFrame) -> Estimate:
    """Return the estimate of a curve through the measurements: no parameters, only a spread.

    It is the robust standard deviation of the log distance of each inner size from the line between
    its neighbours, less the share of the neighbours (variances 1 + 1/4 + 1/4).
    """
    medians = rows.groupby(["n_workers", "nbytes"], as_index=False)["seconds"].median()
    parts = []
    for _, each in medians.groupby("n_workers"):
        x, y = np.log(each["nbytes"].to_numpy(float)), np.log(each["seconds"].to_numpy(float))
        if len(x) > 2:
            share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
            parts.append(y[1:-1] - (1 - share) * y[:-2] - share * y[2:])
    residuals = np.concatenate(parts) if parts else np.array([])
    sigma = 1.4826 * np.median(np.abs(residuals)) / np.sqrt(1.5) if residuals.size else 0.0
    nothing = pd.DataFrame(dtype=float)
    return Estimate(
        pd.Series(dtype=float), nothing, None, {}, (), nothing, float(sigma), residuals.size
    )


def _measured(measurements, op: str) -> pd.DataFrame:
    """Return the MEASUREMENTS table, or that of a run."""
    if isinstance(measurements, pd.DataFrame):
        labels = set(measurements.index.names) & set(measurements.columns)
        return measurements.reset_index(drop=True) if labels else measurements
    do = "Pass a MEASUREMENTS table: read_measurements(path)"
    require(hasattr(measurements, "events"), "measurements", "a DataFrame", measurements, do)
    from ..traces import medians  # here, so that fits load no reader of traces

    return medians(measurements, op)


def _refuse_undetermined(estimate: Estimate, left: str):
    """Raise ValueError if the rows do not determine any price."""
    names = [name for name in estimate.values.index if name in estimate.undetermined]
    one_size = names == ["alpha", "beta"]
    more = "two or more sizes" if one_size else "more sizes and numbers of workers"
    ok, expected = not one_size and len(names) < len(estimate.values), "rows that separate"
    expected = f"{expected} {' and '.join(names)}"
    require(ok, "measurements", expected, found=left, do=f"Time {more}")


def _warn_of_held(model, estimate: Estimate):
    """Warn of prices fixed at 0, except flat segments of a Piecewise, which are normal."""
    for name, value in estimate.held.items():
        if isinstance(model, Piecewise) and name != "alpha":
            continue
        warnings.warn(
            f"{name}: estimate was negative ({value:.3g} s); fixed at 0 and the others refitted. "
            f"Fit another range of sizes, or another kind than {type(model).__name__}",
            stacklevel=4,
        )


def _like_a_constant(model, rows: pd.DataFrame) -> dict[str, str]:
    """Return the latencies per hop that a constant latency per message would explain as well."""
    names = [name for name in getattr(model, "parameters", ()) if name.startswith("alpha")]
    if not names:
        return {}
    counts = np.array([2, 3, 4, 8, 64])
    varied = model.columns(np.ones(len(counts)), counts)
    columns = pd.DataFrame(model.columns(*points_of(rows, ("nbytes", "n_workers"))))
    x = np.column_stack([columns, np.ones(len(rows))]) / rows["seconds"].to_numpy(float)[:, None]
    length = np.linalg.norm(x, axis=0)
    x = x[:, length > 0] / length[length > 0]
    _, s, vt = np.linalg.svd(np.linalg.qr(x, mode="r"))
    loose = np.abs(vt[(s > 1e-9 * s[0]).sum() :]).max(axis=0, initial=0.0) > 1e-6
    known = [*columns, "constant"]
    found = {known[at] for at, free in zip(np.flatnonzero(length > 0), loose, strict=True) if free}
    why = "apart from a constant per message: time other numbers of workers"
    return {name: why for name in names if name in found and np.ptp(varied[name])}
