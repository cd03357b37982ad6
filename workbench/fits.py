"""Fit the price of a link to timed collectives: MEASUREMENTS -> Fit."""

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
import statsmodels.api as sm

from .costs import Link, Ring
from .tables import MEASUREMENTS, check
from .units import GB, US, format_bytes


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

    def relative_errors(self) -> np.ndarray:
        """Return predicted / measured - 1 for every row fitted, shape (n_rows,)."""
        rows = self.measurements
        return self.model(rows["nbytes"], rows["n_workers"]) / rows["seconds"].to_numpy(float) - 1

    def card(self) -> pd.DataFrame:
        """Return the fit on a card to read: index quantity, text columns value, unit, low, high.

        low and high bound the 95 % interval of a parameter; they are blank where the fit has no
        interval, and all of a parameter held at 0. R2 is of the seconds, about their mean.
        """
        errors = np.abs(self.relative_errors())
        rows = self.measurements
        sizes = f"{format_bytes(rows['nbytes'].min())} to {format_bytes(rows['nbytes'].max())}"
        workers = f"{rows['n_workers'].min()} to {rows['n_workers'].max()}"
        lines = [
            ("alpha", *self._parameter("alpha", "us a message hop", US)),
            ("beta", *self._parameter("beta", "ns a byte moved", 1e-9)),
            ("1/beta", *self._bandwidth()),
            (
                "R2",
                f"{_r2(rows['seconds'].to_numpy(float), self.relative_errors()):.6f}",
                "",
                "",
                "",
            ),
            ("mean absolute relative error", _text(100 * errors.mean()), "%", "", ""),
            ("worst relative error", _text(100 * errors.max()), "%", "", ""),
            ("points", str(len(rows)), f"rows, {len(self.set_aside)} set aside", "", ""),
            ("sizes", sizes, "", "", ""),
            ("workers", workers, "", "", ""),
        ]
        columns = ["quantity", "value", "unit", "low", "high"]
        return pd.DataFrame(lines, columns=columns).set_index("quantity")

    def _parameter(self, name: str, unit: str, scale: float) -> tuple:
        low, high = self.interval(name)
        return _text(getattr(self.model.link, name) / scale), unit, *_texts(low, high, scale)

    def _bandwidth(self) -> tuple:
        beta = self.model.link.beta
        if beta == 0:
            return "unbounded", "GB/s moved", "", ""
        low, high = self.interval("beta")
        # the bounds swap: a dear byte is a slow link; a free one has no upper bound
        fastest = "unbounded" if low <= 0 else _texts(1 / low, 1 / high, GB)[0]
        return _text(1 / beta / GB), "GB/s moved", _texts(1 / high, low, GB)[0], fastest

    def interval(self, name: str, level: float = 0.95) -> tuple[float, float]:
        """Return the confidence interval of alpha or beta in SI; NaN where the fit gives none."""
        if name not in self.results.params.index or self.results.df_resid < 1:
            return float("nan"), float("nan")
        low, high = self.results.conf_int(alpha=1 - level).loc[name]
        return float(low), float(high)


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

    Raises ValueError for a time that is not positive, an unknown size or number of workers, or
    rows that cannot tell alpha from beta.
    """
    check(measurements, MEASUREMENTS, "measurements")
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


def _weighted(columns: pd.DataFrame, seconds: np.ndarray):
    return sm.WLS(seconds, columns, weights=seconds**-2.0).fit()


def _reasons(measurements: pd.DataFrame, min_bytes: float) -> pd.Series:
    """Return why each row is set aside, empty for a row to fit, after refusing impossible ones."""
    other = measurements["op"] != "all_reduce"
    if other.all():
        found = ", ".join(sorted(map(str, measurements["op"].unique()))) or "no row"
        raise ValueError(f"measurements: op: expected rows of all_reduce, found {found}")
    limits = {
        "seconds": ("above 0 s", 0.0),
        "nbytes": ("from 0 up", -1.0),
        "n_workers": ("from 1 up", 0.0),
    }
    numbers = {
        name: measurements[name].astype("Float64").to_numpy(float, na_value=np.nan)
        for name in limits
    }
    for name, (expected, floor) in limits.items():
        wrong = ~other & ~((numbers[name] > floor) & (numbers[name] < np.inf))
        if wrong.any():
            row = wrong.idxmax()
            raise ValueError(
                f"measurements: {name} of row {row}: expected a known number {expected}, "
                f"got {measurements[name].loc[row]}. Correct or drop the row"
            )
    reasons = (
        (other, "op is not all_reduce"),
        (numbers["n_workers"] == 1, "a lone worker sends nothing"),
        (numbers["nbytes"] == 0, "no byte moved"),
        (numbers["nbytes"] < min_bytes, f"below min_bytes, {format_bytes(min_bytes)}"),
    )
    conditions, texts = zip(*reasons, strict=True)
    return pd.Series(np.select(conditions, texts, ""), index=measurements.index)


def _refuse_undetermined(columns: pd.DataFrame, seconds: np.ndarray, set_aside: pd.DataFrame):
    """Raise ValueError when the rows leave alpha or beta free."""
    left = f"{len(columns)} rows to fit, {len(set_aside)} set aside"
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


def _r2(seconds: np.ndarray, relative_errors: np.ndarray) -> float:
    spread = np.sum((seconds - seconds.mean()) ** 2)
    return 1 - np.sum((relative_errors * seconds) ** 2) / spread if spread else float("nan")


def _text(value: float) -> str:
    return f"{value:.4g}" if np.isfinite(value) else ""


def _texts(low: float, high: float, scale: float) -> tuple[str, str]:
    return _text(low / scale), _text(high / scale)
