"""Regression of prices: parameters from 0 up, robust intervals, and what stays undetermined.

    seconds = sum of parameter * column, errors in proportion to the seconds (or of one size)

Relative weights are 1/fitted**2, iterated: with 1/seconds**2 a measurement that is low by chance
would have more weight, which biases every price by minus twice the variance of the noise.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
import statsmodels.api as sm
from scipy.optimize import nnls
from scipy.stats import t as student

from ..base.checks import checked, one_of, real

METHODS = ("wls", "huber", "quantile")
WEIGHTS = ("relative", "measured", "absolute")
COLLINEAR = 1e-9  # a singular value below this share of the largest counts as 0
_EXACT = 1e-8  # relative residuals below this leave nothing for a robust method to weigh

a_level = real("a number between 0 and 1", lambda v: 0 < v < 1, "Write 95 % as 0.95")


@checked(name=one_of(METHODS), weights=one_of(WEIGHTS), quantile=a_level)
@dataclass(frozen=True)
class Method:
    """How prices are estimated: name ("wls", "huber", "quantile"), weights, and the quantile.

    wls is least squares, huber is M-estimation with Huber's norm (statsmodels' RLM), quantile is
    quantile regression. weights is "relative", errors in proportion to the fitted time; "measured",
    in proportion to the measured one, as in spreadsheets; or "absolute", errors of one size.
    """

    name: str = "wls"
    weights: str = "relative"
    quantile: float = 0.5


@dataclass(frozen=True, eq=False)
class Estimate:
    """Parameters with their uncertainty.

    values : every parameter, SI units, those fixed at 0 included
    covariance : of the parameters that were fitted, SI units (HC3 for least squares)
    results : statsmodels' result
    held : parameters fixed at 0 -> their estimate without that bound
    undetermined : parameters that the rows do not determine
    unseen : directions in which the parameters can move without changing any fitted time
    sigma : standard deviation of a measurement, as a share of it (s with absolute weights)
    dof : rows minus parameters; 0 if the rows show no spread
    """

    values: pd.Series
    covariance: pd.DataFrame
    results: object
    held: dict[str, float]
    undetermined: tuple[str, ...]
    unseen: pd.DataFrame
    sigma: float
    dof: int

    def margin(self, level: float) -> float:
        """Return the half width of an interval in standard errors; NaN without spread."""
        return float(student.ppf(0.5 + level / 2, self.dof)) if self.dof > 0 else float("nan")


def solve(columns: pd.DataFrame, seconds: np.ndarray, method: Method) -> pd.Series:
    """Return the parameters, all at least 0, that fit the seconds best by the method."""
    x = columns.to_numpy(float)
    values = _iterate(x, seconds, method, lambda w: _nonnegative(x, seconds, w))
    if method.name == "wls" or _exact(x @ values, seconds):
        return pd.Series(values, columns.columns)

    def robust(w: np.ndarray) -> np.ndarray:
        free = np.flatnonzero(np.abs(x).sum(axis=0) > 0)
        while True:
            scale = _lengths(x[:, free] * w[:, None])
            found = _model(x[:, free] * (w[:, None] / scale), seconds * w, method)
            found = np.asarray(found.params) / scale
            if (found >= 0).all():
                return np.bincount(free, found, minlength=x.shape[1])
            free = np.delete(free, (found * scale).argmin())

    return pd.Series(_iterate(x, seconds, method, robust), columns.columns)


def infer(
    tangent: pd.DataFrame,
    values: pd.Series,
    fitted: np.ndarray,
    seconds: np.ndarray,
    method: Method,
    linear: bool = True,
) -> Estimate:
    """Return the uncertainty of parameters already found.

    tangent : how the fitted seconds change with each parameter; the column itself if the cost is
        linear in it. Structure found from the same data, such as a break, has a column here too
        (Muggeo, Statistics in Medicine 2003), so that the slopes' intervals allow for it
    values, fitted : the parameters found and their fitted seconds
    linear : whether the seconds are a sum of values and columns, so that statsmodels' result is
        in SI units; otherwise, and for a robust method, its columns are scaled to length 1
    """
    w, values = whitening(fitted, seconds, method), values[tangent.columns]
    length = _lengths(tangent.to_numpy(float) * w[:, None])
    scale = np.where(length > 0, length, 1.0)
    white = tangent * (w[:, None] / scale)
    _, s, vt = _svd(white)
    free = (values > 0).to_numpy() | _loose(s, vt)
    residuals = (seconds - fitted) * w
    held = _unbounded(white, values, residuals, scale, ~free)
    white, scale, names = white.loc[:, free], scale[free], tangent.columns[free]
    u, s, vt = _svd(white)
    rank = int((s > COLLINEAR * s[0]).sum())
    unseen = pd.DataFrame(vt[rank:] / scale, columns=names)
    dof = len(seconds) - rank
    varied = names[(white != 0).any().to_numpy()]
    target = residuals + white.to_numpy() @ (values[names].to_numpy() * scale)
    if method.name == "wls" or _exact(fitted, seconds):
        columns = tangent[varied] if linear else white[varied].div(w, axis=0)
        with warnings.catch_warnings():  # collinear columns are listed in undetermined
            warnings.simplefilter("ignore")
            results = sm.WLS(target / w, columns, weights=w**2).fit()
        covariance = _hc3(u[:, :rank], s[:rank], vt[:rank], residuals, dof)
        sigma = np.sqrt(residuals @ residuals / dof) if dof > 0 else 0.0
    else:
        results = _model(white[varied], pd.Series(target, white.index), method)
        seen = results.bcov_scaled if method.name == "huber" else results.cov_params()
        covariance = pd.DataFrame(np.asarray(seen), varied, varied)
        covariance = covariance.reindex(index=names, columns=names, fill_value=0.0).to_numpy()
        sigma = 1.4826 * np.median(np.abs(residuals - np.median(residuals)))
    if not np.isfinite(covariance).all():  # too few or too equal rows to show a spread
        covariance, dof = np.zeros_like(covariance), 0
    covariance = covariance / np.outer(scale, scale)
    return Estimate(
        values=values,
        covariance=pd.DataFrame(covariance, names, names),
        results=results,
        held=held,
        undetermined=tuple(names[_loose(s, vt)]),
        unseen=unseen,
        sigma=float(sigma),
        dof=dof,
    )


def whitening(fitted: np.ndarray, seconds: np.ndarray, method: Method) -> np.ndarray:
    """Return the factors that give rows errors of one size: 1/fitted, 1/seconds, or 1."""
    if method.weights == "absolute":
        return np.ones(len(seconds))
    if method.weights == "measured":
        return 1 / seconds
    return 1 / np.maximum(fitted, 0.05 * seconds)  # a price fixed at 0 may fit a row with 0 s


def points_of(rows: pd.DataFrame, inputs: tuple[str, ...]) -> list[np.ndarray]:
    """Return the columns that a cost is a function of, as floats."""
    return [rows[name].to_numpy(float) for name in inputs]


def weighed(fit) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """Return the points, seconds, fitted seconds and whitening of a fit's rows."""
    points = points_of(fit.measurements, fit.inputs)
    seconds = fit.measurements["seconds"].to_numpy(float)
    fitted = np.asarray(fit.model(*points), float)
    return points, seconds, fitted, whitening(fitted, seconds, fit.method)


def decomposed(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return u, s, vt of x with columns of length 1, collinear parts left out, and the lengths."""
    length = np.linalg.norm(x, axis=0)
    scale = np.where(length > 0, length, 1.0)
    u, s, vt = np.linalg.svd(x / scale, full_matrices=False)
    kept = s > COLLINEAR * s[0]
    return u[:, kept], s[kept], vt[kept], scale


def _iterate(x: np.ndarray, seconds: np.ndarray, method: Method, step) -> np.ndarray:
    """Return the fixed point of fitting with weights from the fitted seconds."""
    if method.weights != "relative":
        return step(whitening(seconds, seconds, method))
    w, values = 1 / seconds, None
    for _ in range(50):
        before, values = values, step(w)
        w = whitening(x @ values, seconds, method)
        if before is not None and np.allclose(values, before, rtol=1e-10, atol=0.0):
            break
    return values


def _nonnegative(x: np.ndarray, seconds: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the weighted least squares with every parameter at least 0."""
    scale = _lengths(x * w[:, None])
    scale = np.where(scale > 0, scale, 1.0)
    both = np.linalg.qr(np.column_stack([x * (w[:, None] / scale), seconds * w]), mode="r")
    return nnls(both[:, :-1], both[:, -1])[0] / scale


def _lengths(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.einsum("ij,ij->j", x, x))


def _exact(fitted: np.ndarray, seconds: np.ndarray) -> bool:
    return bool(np.abs(fitted / seconds - 1).max() < _EXACT)


def _model(white: np.ndarray, target: np.ndarray, method: Method):
    """Return statsmodels' result of a robust method for rows with errors of one size."""
    try:
        with warnings.catch_warnings():  # about few or equal residuals, which infer handles
            warnings.simplefilter("ignore")
            if method.name == "huber":
                return sm.RLM(target, white, M=sm.robust.norms.HuberT()).fit()
            return sm.QuantReg(target, white).fit(q=method.quantile, p_tol=1e-8)
    except (ZeroDivisionError, np.linalg.LinAlgError):
        raise ValueError(
            f"method: expected more measurements, or more varied ones, for {method.name!r}, got "
            f"{len(target)}. Use method='wls' or time more"
        ) from None


def _svd(white: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the singular value decomposition with all rows of vt, free of rounding noise."""
    q, r = np.linalg.qr(white.to_numpy(float))
    u, s, vt = np.linalg.svd(r)
    s = np.r_[s, np.zeros(len(vt) - len(s))]
    return q @ u, s, np.where(np.abs(vt) < 1e-9, 0.0, vt)


def _loose(s: np.ndarray, vt: np.ndarray) -> np.ndarray:
    """Return which columns can change without changing any fitted time."""
    return (np.abs(vt[s <= COLLINEAR * s[0]]) > 1e-6).any(axis=0)


def _unbounded(white, values, residuals, scale, wrong) -> dict[str, float]:
    """Return what the parameters fixed at 0 would be without that bound, rounding aside."""
    if not wrong.any():
        return {}
    found = values.to_numpy() * scale
    found = found + np.linalg.lstsq(white.to_numpy(float), residuals, rcond=None)[0]
    wrong = np.flatnonzero(wrong & (found < -1e-9 * np.sqrt(len(residuals))))
    return {str(white.columns[i]): float(found[i] / scale[i]) for i in wrong}


def _hc3(u, s, vt, residuals, dof) -> np.ndarray:
    """Return the heteroscedasticity-robust covariance HC3 (MacKinnon and White, 1985).

    A row that alone determines a parameter has leverage 1 and no residual; the variance of the
    others stands in for its own.
    """
    if dof <= 0:
        return np.zeros((vt.shape[1],) * 2)
    left = 1 - np.einsum("ij,ij->i", u, u)
    common = residuals @ residuals / dof
    spread = np.where(left > 1e-8, (residuals / np.maximum(left, 1e-8)) ** 2, common)
    half = vt.T / s
    return half @ (u.T * spread) @ u @ half.T
