"""Fit the price of a link to timed collectives: MEASUREMENTS -> Fit."""

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
import statsmodels.api as sm

from .checks import one_number, shown
from .costs import Link, LinkCost, Ring
from .tables import MEASUREMENTS, check
from .units import GB, US, format_bytes

NS = 1e-9


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted cost: `fit.model(nbytes, n_workers)` is in s, and `fit.card()` says how good it is.

    model : the cost, for example Ring(Link(alpha, beta))
    results : statsmodels' result, parameters alpha (s a message hop) and beta (s a byte moved)
    measurements : the MEASUREMENTS rows fitted
    set_aside : the rows left out, with the reason in column why
    """

    model: object
    results: object
    measurements: pd.DataFrame
    set_aside: pd.DataFrame

    def __repr__(self) -> str:
        alpha, beta = (float(self.results.params.get(name, 0.0)) for name in ("alpha", "beta"))
        bandwidth = f"{_text(1 / beta / GB)} GB/s" if beta else "unbounded"
        error = 100 * np.abs(self.relative_errors()).mean()
        return (
            f"Fit of {type(self.model).__name__}: alpha {_text(alpha / US)} us a hop, "
            f"bandwidth {bandwidth} moved\n"
            f"  mean error {error:.3g} % over {len(self.measurements)} points, "
            f"{len(self.set_aside)} set aside; fit.card() tells more"
        )

    def relative_errors(self) -> np.ndarray:
        """Return predicted / measured - 1 for every row fitted, shape (n_rows,)."""
        rows = self.measurements
        return self.model(rows["nbytes"], rows["n_workers"]) / rows["seconds"].to_numpy(float) - 1

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
        """Return the confidence interval of alpha or beta in SI units.

        NaN for a parameter held at 0, and where as many points as parameters leave no spread.
        """
        if name not in self.results.params.index or self.results.df_resid < 1:
            return float("nan"), float("nan")
        low, high = self.results.conf_int(alpha=1 - level).loc[name]
        return float(low), float(high)

    def card(self) -> pd.DataFrame:
        """Return the fit on a card to read: index quantity, text columns value, unit, low, high.

        low and high bound the 95 % interval of a parameter and are blank where there is none.
        """
        link, rows = self.model.link, self.measurements
        errors = 100 * np.abs(self.relative_errors())
        lines = {
            "alpha": _line(link.alpha / US, "us a hop", self.interval("alpha"), US),
            "beta": _line(link.beta / NS, "ns a byte moved", self.interval("beta"), NS),
            "1/beta": _bandwidth_line(link.beta, *self.interval("beta")),
            "R2": (f"{self.r2():.6f}".replace("nan", "undefined"), ""),
            "mean absolute relative error": (f"{errors.mean():.3g}", "%"),
            "worst relative error": (f"{errors.max():.3g}", "%"),
            "points": (str(len(rows)), f"and {len(self.set_aside)} set aside"),
            "sizes": _range_line(rows["nbytes"].map(format_bytes), rows["nbytes"]),
            "workers": _range_line(rows["n_workers"].astype(str), rows["n_workers"]),
        }
        padded = [(*line, "", "")[:4] for line in lines.values()]
        index = pd.Index(lines, name="quantity")
        return pd.DataFrame(padded, index=index, columns=["value", "unit", "low", "high"])


def fit_all_reduce(measurements: pd.DataFrame, kind=Ring, min_bytes: float = 0) -> Fit:
    """Fit alpha and beta of a link to timed all-reduces, by weighted least squares.

        seconds = messages(n_workers) * alpha + moved(nbytes, n_workers) * beta

    Weights are 1/seconds**2, so relative errors count, and there is no intercept.

    Parameters
    ----------
    measurements : MEASUREMENTS table
    kind : Link -> cost with `messages` and `moved`, such as Ring or Affine
    min_bytes : smaller messages are set aside, bytes

    Rows that are no all-reduce, move no byte, or have one worker are set aside with the reason in
    `Fit.set_aside`. A parameter that comes out negative, which no link has, is held at 0 and the
    other fitted anew, with a warning.

    Raises ValueError for a time that is not positive, an unknown size or number of workers, rows
    that cannot tell alpha from beta, or an argument of another kind.
    """
    _refuse_arguments(measurements, kind, min_bytes)
    why = _reasons(measurements, min_bytes)
    rows = measurements[why == ""]
    set_aside = measurements.assign(why=why)[why != ""]
    columns = design(kind(Link(0.0, 0.0)), rows["nbytes"], rows["n_workers"])
    seconds = rows["seconds"].to_numpy(float)
    _refuse_undetermined(columns, seconds, set_aside)
    results = _weighted(columns, seconds)
    negative = results.params.index[results.params < 0]
    if len(negative):
        warnings.warn(
            f"fit_all_reduce: {negative[0]} came out at {results.params[negative[0]]:.3g} s, which "
            f"no link has; held at 0 and the rest fitted anew. Fit a narrower range of sizes, or "
            f"another kind than {getattr(kind, '__name__', kind)}",
            stacklevel=2,
        )
        results = _weighted(columns.drop(columns=negative), seconds)
    link = Link(*(float(results.params.get(name, 0.0)) for name in ("alpha", "beta")))
    return Fit(kind(link), results, rows, set_aside)


def design(model, nbytes, n_workers) -> pd.DataFrame:
    """Return the design matrix of a cost: columns alpha (message hops) and beta (bytes moved)."""
    moved = np.atleast_1d(model.moved(nbytes, n_workers))
    return pd.DataFrame(
        {"alpha": np.broadcast_to(model.messages(n_workers), len(moved)), "beta": moved}
    )


def _refuse_arguments(measurements, kind, min_bytes):
    if not isinstance(measurements, pd.DataFrame):
        raise ValueError(
            f"measurements: expected a DataFrame, got {shown(measurements)}; "
            "pass a MEASUREMENTS table: read_measurements(path)"
        )
    check(measurements, MEASUREMENTS, "measurements")
    if kind is Link or isinstance(kind, LinkCost) or not callable(kind):
        raise ValueError(
            f"kind: expected a class of cost, such as Ring or Affine, got {shown(kind)}; "
            "write kind=Ring"
        )
    expected = "min_bytes: expected one finite number of bytes"
    if not np.isfinite(one_number(min_bytes, expected, "write 1 MiB as 1 * MIB")):
        raise ValueError(f"{expected}, got {shown(min_bytes)}")


def _weighted(columns: pd.DataFrame, seconds: np.ndarray):
    return sm.WLS(seconds, columns, weights=seconds**-2.0).fit()


def _reasons(measurements: pd.DataFrame, min_bytes: float) -> pd.Series:
    """Return why each row is set aside, empty for a row to fit."""
    other = (measurements["op"] != "all_reduce").to_numpy()
    if other.all():
        found = ", ".join(sorted(map(str, measurements["op"].unique()))) or "no row"
        raise ValueError(f"measurements: op: expected rows of all_reduce, found {found}")
    _known(measurements, "seconds", ~other, above=0.0)
    nbytes = _known(measurements, "nbytes", ~other, above=-1.0)
    n_workers = _known(measurements, "n_workers", ~other, above=0.0)
    reasons = {
        "op is not all_reduce": other,
        "a lone worker sends nothing": n_workers == 1,
        "no byte moved": nbytes == 0,
        f"below min_bytes, {format_bytes(min_bytes)}": nbytes < min_bytes,
    }
    why = np.select(list(reasons.values()), list(reasons), "")
    return pd.Series(why, index=measurements.index, dtype="str")


def _known(measurements: pd.DataFrame, name: str, wanted: np.ndarray, above: float) -> np.ndarray:
    """Return a column as floats, or raise ValueError where a wanted row has no possible value."""
    values = pd.to_numeric(measurements[name], errors="coerce").astype("Float64")
    values = values.to_numpy(float, na_value=np.nan)
    wrong = wanted & ~((values > above) & (values < np.inf))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"measurements: {name} of row {row}: expected a known number above {above:g}, "
            f"got {measurements[name].iloc[row]}. Correct the row or drop it"
        )
    return values


def _refuse_undetermined(columns: pd.DataFrame, seconds: np.ndarray, set_aside: pd.DataFrame):
    """Raise ValueError when the rows leave alpha or beta free."""
    rows = "row" if len(columns) == 1 else "rows"
    left = f"{len(columns)} {rows} to fit, {len(set_aside)} set aside"
    reasons = "; ".join(sorted(set_aside["why"].unique()))
    left = f"{left} ({reasons})" if reasons else left
    if len(columns) < 2:
        raise ValueError(f"measurements: expected two or more all-reduces to fit, got {left}")
    scaled = columns.to_numpy() / seconds[:, None]
    scaled = scaled / np.linalg.norm(scaled, axis=0)
    if np.linalg.matrix_rank(scaled, tol=1e-9) < 2:
        raise ValueError(
            f"measurements: alpha and beta cannot be told apart, because every row has the same "
            f"number of bytes moved a message hop; got {left}. Time two or more sizes"
        )


def _line(value: float, unit: str, interval: tuple, scale: float) -> tuple:
    return _text(value), unit, *(_text(bound / scale) for bound in interval)


def _bandwidth_line(beta: float, low: float, high: float) -> tuple:
    """Return 1/beta in GB/s; its bounds are those of beta swapped, a dear byte is a slow link."""
    if beta == 0:
        return "unbounded", "GB/s moved"
    fastest = "unbounded" if low <= 0 else _text(1 / low / GB)
    return _text(1 / beta / GB), "GB/s moved", _text(1 / high / GB), fastest


def _range_line(texts: pd.Series, values: pd.Series) -> tuple:
    low, high = (texts.iloc[int(at)] for at in (values.argmin(), values.argmax()))
    return (low if low == high else f"{low} to {high}"), ""


def _text(value: float) -> str:
    return f"{value:.4g}" if np.isfinite(value) else ""
