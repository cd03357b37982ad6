"""Fit the price of a collective, or of a batch, to timings: MEASUREMENTS -> Fit."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd

from ..base.checks import one_number, shown
from ..base.tables import check
from ..costs import BatchTime, Interpolated, Piecewise, Ring
from ..costs.words import prices
from .bands import drawn, predicted, share
from .card import fit_card
from .estimates import Estimate, Method, infer, solve
from .regimes import shaped, steps, tangent
from .screening import LONGEST, known, screen, warn_of_copies


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted cost: `fit.model(nbytes, n_workers)` is in s, and `fit.card()` says how good it is.

    model : the cost, for example Ring(Link(alpha, beta))
    results : statsmodels' result, parameters alpha (s a message hop) and beta (s a byte moved); of
        a robust method or a cost with breaks, over columns scaled to length 1
    measurements : the rows fitted
    set_aside : the rows left out, with the reason in column why
    estimate : the parameters with their covariance, SI units
    method : how they were estimated
    inputs : the columns of measurements that the cost is a function of
    again : measurements -> Fit of the same kind by the same settings, for held-out errors
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
        return (
            f"Fit of {type(self.model).__name__}: {self._found()}\n"
            f"  mean error {error:.3g} % over {len(self.measurements)} points, "
            f"{len(self.set_aside)} set aside; fit.card() tells more"
        )

    def _found(self) -> str:
        text = prices(self.parameters(), self.inputs[0], self.undetermined())
        return text or "the measured times themselves"

    def parameters(self) -> dict[str, float]:
        """Return the numbers of the model in SI units, without a floor where there is none."""
        values = getattr(self.model, "parameters", {})
        return {name: value for name, value in values.items() if name != "floor" or value}

    def undetermined(self) -> dict[str, str]:
        """Return the parameters that the rows leave free -> why, in words.

        A latency a hop counts as such where a constant latency a message explains the rows as
        well, as with one number of workers: its `interval` then holds if there is no constant.
        """
        free = dict.fromkeys(self.estimate.undetermined, "no row tells it from the others")
        return _like_a_constant(self.model, self.measurements) | free

    def relative_errors(self) -> np.ndarray:
        """Return predicted / measured - 1 for every row fitted, shape (n_rows,)."""
        fitted = self.model(*_points(self.measurements, self.inputs))
        return fitted / self.measurements["seconds"].to_numpy(float) - 1

    def r2(self) -> float:
        """Return 1 - (squared errors) / (squares about the mean), both of the seconds.

        The result's own rsquared is about 0, there being no intercept, and near 1 whatever the fit.
        NaN when every row took the same time.
        """
        seconds = self.measurements["seconds"].to_numpy(float)
        spread = np.sum((seconds - seconds.mean()) ** 2)
        unexplained = np.sum((self.relative_errors() * seconds) ** 2)
        return float(1 - unexplained / spread) if spread else float("nan")

    def interval(self, name: str, level: float = 0.95) -> tuple[float, float]:
        """Return the confidence interval of a parameter in SI units.

        NaN for a parameter held at 0 or left free by the rows, and where as many points as
        parameters leave no spread. Raises ValueError for a name that is no parameter.
        """
        values, covariance = self.estimate.values, self.estimate.covariance
        if name not in [*(known := self.parameters())]:
            known = ", ".join(known) or "it has none"
            raise ValueError(f"interval: expected a parameter ({known}), got {shown(name)}")
        if name not in covariance or name in self.estimate.undetermined or self.estimate.dof < 1:
            return float("nan"), float("nan")
        reach = self.estimate.margin(share(level)) * np.sqrt(covariance.loc[name, name])
        return float(values[name] - reach), float(values[name] + reach)

    def card(self, held_out=None) -> pd.DataFrame:
        """Return the fit on a card to read: index quantity, text columns value, unit, low, high.

        low and high bound the 95 % interval of a parameter and are blank where there is none.
        held_out : relative errors at rows left out of the fit, to be told beside those fitted
        """
        return fit_card(self, held_out)

    def predict(self, nbytes, n_workers=None, level: float = 0.95) -> pd.DataFrame:
        """Return predicted times with their bands, a row a pair of the broadcast arguments.

        Columns nbytes, n_workers, seconds; low, high (confidence of the mean); predicted_low,
        predicted_high (a single measurement); extrapolated (how many times beyond what was
        measured, 1 inside); why (in words, empty inside). Where no spread tells, and for a price
        that the rows leave free, the band is from 0 to infinity. A BatchTime takes the batch as
        the first argument and no other.
        """
        return predicted(self, nbytes, n_workers, share(level))

    def draws(self, n: int, rng: np.random.Generator) -> list:
        """Return n costs whose parameters are drawn from the fit's t distribution.

        What is drawn below 0 is 0; parameters held at 0 stay there, and what the rows leave free
        stays at its value. Of an Interpolated the measured times are drawn. Raises ValueError where
        as many points as parameters leave no spread.
        """
        return drawn(self, n, rng)


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

    and likewise for every cost that is a sum of parameters and columns. There is no intercept, no
    parameter is below 0, and intervals are robust to unequal errors (HC3).

    Parameters
    ----------
    measurements : MEASUREMENTS table, or a Run: its messages' medians over iterations
    op : the collective to fit; a Ring is a ring of that collective
    kind : a class of cost, Link -> cost, or an instance, whose structure is kept and whose numbers
        are fitted. Of the classes Piecewise, Hierarchical and FlatRing the structure is found from
        the rows: breaks and floor by BIC3 and AICc, workers a node from n_nodes or the step in
        price. `Piecewise(Tree, breaks=None)` finds the regimes of a tree
    min_bytes : smaller messages are set aside, bytes
    method : "wls" (least squares), "huber" (robust) or "quantile" (regression of `quantile`)
    weights : "relative", errors in proportion to the fitted time; "measured", to the measured one,
        which is biased low but often seen; or "absolute"
    outliers : "set aside" by the rule of screening.strays, or "keep"
    quantile : which quantile, with method="quantile"

    Rows set aside are in `Fit.set_aside` with the reason. A parameter that comes out negative,
    which no link has, is held at 0 and the others fitted anew, with a warning; rows that repeat
    another one in every column are warned of.

    Raises ValueError for a time that is not positive, units that are mixed up, an unknown size or
    number of workers, rows that cannot tell the parameters apart, or an argument of another kind.
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

    table : columns seconds (s) and x, the batch's samples; or the FLOPs of a layer, say, with
        per_sample_s then in s a FLOP
    x : its column; n_samples or batch unless named

    Raises ValueError for a missing column, a time that is not positive, an x that is below 0 or
    unknown, or rows that all have the same x.
    """
    how = Method(method, weights, quantile)
    check(table, {"seconds": "s"}, "table")
    named = x or next((name for name in ("n_samples", "batch") if name in table), "batch")
    check(table, {named: "samples of the batch"}, "table")
    if named == "seconds":
        raise ValueError("x: expected the column of the batch, got that of the times, 'seconds'")
    every = np.ones(len(table), bool)
    seconds = known(table, "seconds", every, above=0.0, what="table")
    values = known(table, named, every, above=-1e-300, what="table")
    if (seconds > LONGEST).any():
        row = int((seconds > LONGEST).argmax())
        raise ValueError(
            f"table: seconds of row {row}: {seconds[row]:.6g} s is longer than a day. Times are in "
            "s: convert them"
        )
    table = table.assign(**{named: values, "seconds": seconds})
    if len(np.unique(values)) < 2:
        raise ValueError(
            f"table: {named}: expected two or more different values, got {len(np.unique(values))}; "
            "fixed_s and per_sample_s cannot be told apart otherwise"
        )
    model, estimate = _estimated(BatchTime(0.0, 0.0), table, (named,), how)
    _warn_of_held(model, estimate)
    nothing = table.iloc[:0].assign(why=pd.Series(dtype="str"))
    again = partial(fit_batch_time, x=named, method=method, weights=weights, quantile=quantile)
    return Fit(model, estimate.results, table, nothing, estimate, how, (named,), again)


def _fit(measurements, op: str, kind, min_bytes: float, how: Method, outliers: str) -> Fit:
    _refuse_arguments(op, min_bytes)
    table = _measured(measurements, op)
    rows, set_aside = screen(table, op, min_bytes, outliers)
    if len(rows) < 2:
        raise ValueError(
            f"measurements: expected two or more timings to fit, got {_left(len(rows), set_aside)}"
        )
    model = shaped(kind, op, rows)
    again = partial(_fit, op=op, kind=kind, min_bytes=min_bytes, how=how, outliers=outliers)
    if isinstance(model, Interpolated):
        estimate = _joined(model, rows)
    else:
        model, estimate = _estimated(model, rows, ("nbytes", "n_workers"), how)
        _refuse_undetermined(estimate, _left(len(rows), set_aside))
    _warn_of_held(model, estimate)
    if isinstance(measurements, pd.DataFrame):
        warn_of_copies(rows, table)
    return Fit(model, estimate.results, rows, set_aside, estimate, how, again=again)


def _estimated(model, rows: pd.DataFrame, inputs: tuple[str, ...], how: Method):
    """Return the model with the numbers that fit best, and their estimate."""
    points, seconds = _points(rows, inputs), rows["seconds"].to_numpy(float)
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
    """Return the estimate of a curve through the measurements: no parameter, only a spread.

    It is the robust standard deviation of the log residuals at each inner size, interpolated
    between its neighbours; half as much again is theirs (variances 1 + 1/4 + 1/4).
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
    if not hasattr(measurements, "events"):
        raise ValueError(
            f"measurements: expected a DataFrame, got {shown(measurements)}; "
            "pass a MEASUREMENTS table: read_measurements(path)"
        )
    from ..traces import medians  # here, so that fits load no reader of traces

    return medians(measurements, op)


def _refuse_arguments(op, min_bytes):
    if not isinstance(op, str):
        raise ValueError(f"op: expected the name of a collective, got {shown(op)}; all_reduce, say")
    expected = "min_bytes: expected one finite number of bytes"
    if not np.isfinite(one_number(min_bytes, expected, "write 1 MiB as 1 * MIB")):
        raise ValueError(f"{expected}, got {shown(min_bytes)}")


def _left(n_rows: int, set_aside: pd.DataFrame) -> str:
    reasons = "; ".join(sorted(set_aside["why"].unique()))
    left = f"{n_rows} {'row' if n_rows == 1 else 'rows'} to fit, {len(set_aside)} set aside"
    return f"{left} ({reasons})" if reasons else left


def _refuse_undetermined(estimate: Estimate, left: str):
    """Raise ValueError when the rows leave all prices free."""
    names = [name for name in estimate.values.index if name in estimate.undetermined]
    if names == ["alpha", "beta"]:
        raise ValueError(
            f"measurements: alpha and beta cannot be told apart, because every row has the same "
            f"number of bytes moved a message hop; got {left}. Time two or more sizes"
        )
    if len(names) == len(estimate.values):
        raise ValueError(
            f"measurements: {', '.join(names)} cannot be told apart; got {left}. "
            "Time more sizes and numbers of workers"
        )


def _warn_of_held(model, estimate: Estimate):
    """Warn of prices held at 0; in a Piecewise a flat segment is nothing odd."""
    thing = "batch" if isinstance(model, BatchTime) else "link"
    for name, value in estimate.held.items():
        if isinstance(model, Piecewise) and name != "alpha":
            continue
        warnings.warn(
            f"{name} came out at {value:.3g} s, which no {thing} has; held at 0 and the rest "
            f"fitted anew. Fit another range of sizes, or another kind than {type(model).__name__}",
            stacklevel=4,
        )


def _points(rows: pd.DataFrame, inputs: tuple[str, ...]) -> list[np.ndarray]:
    return [rows[name].to_numpy(float) for name in inputs]


def _like_a_constant(model, rows: pd.DataFrame) -> dict[str, str]:
    """Return the latencies a hop that a constant latency a message would explain as well."""
    names = [name for name in getattr(model, "parameters", ()) if name.startswith("alpha")]
    if not names:
        return {}
    counts = np.array([2, 3, 4, 8, 64])
    varied = model.columns(np.ones(len(counts)), counts)
    columns = pd.DataFrame(model.columns(*_points(rows, ("nbytes", "n_workers"))))
    x = np.column_stack([columns, np.ones(len(rows))]) / rows["seconds"].to_numpy(float)[:, None]
    length = np.linalg.norm(x, axis=0)
    x = x[:, length > 0] / length[length > 0]
    _, s, vt = np.linalg.svd(np.linalg.qr(x, mode="r"))
    loose = np.abs(vt[(s > 1e-9 * s[0]).sum() :]).max(axis=0, initial=0.0) > 1e-6
    known = [*columns, "constant"]
    found = {known[at] for at, free in zip(np.flatnonzero(length > 0), loose, strict=True) if free}
    why = "apart from a constant a message: time other numbers of workers"
    return {name: why for name in names if name in found and np.ptp(varied[name])}
