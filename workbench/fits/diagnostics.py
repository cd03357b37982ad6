"""What to check before using a fit: its curves with their bands, its residuals, its corners."""

import numpy as np
import pandas as pd
from scipy.stats import norm

from ..base.checks import checked, numbers, require
from ..costs import Interpolated, Piecewise
from .estimates import decomposed, weighed
from .regimes import tangent

_POINTS = 120  # per curve, for each number of workers


def a_fit(value, name: str):
    """Raise ValueError unless value is a Fit."""
    require(hasattr(value, "card"), name, "a Fit", value, "Pass fit_all_reduce(measurements)")


@checked(fit=a_fit)
def shown_workers(fit, most: int = 5) -> list[int]:
    """Return the numbers of workers to show of a fit: all, or those that best spread in logarithm.

    The smallest and the largest are among them.
    """
    counts = np.unique(fit.measurements["n_workers"].astype(int))
    if len(counts) <= most:
        return counts.tolist()
    wanted = np.geomspace(counts[0], counts[-1], most)
    nearest = np.abs(np.log(counts) - np.log(wanted)[:, None]).argmin(axis=1)
    return np.unique(counts[nearest]).tolist()


def left_out(fit, n_workers=None) -> pd.DataFrame:
    """Return the rows set aside that can be drawn with the fitted ones: same op, bytes, time.

    n_workers : keep only these numbers of workers
    """
    rows = fit.set_aside
    if not len(rows) or "op" not in rows:
        return rows
    mine = rows["op"].isin(fit.measurements["op"].unique())
    for name in ("nbytes", "seconds"):
        mine &= pd.to_numeric(rows[name], errors="coerce").fillna(0) > 0
    return rows[mine if n_workers is None else mine & rows["n_workers"].isin(n_workers)]


@checked(fit=a_fit)
def curves(fit, nbytes=None, n_workers=None, level: float = 0.95) -> pd.DataFrame:
    """Return the columns of `Fit.predict` along a grid of sizes, for each number of workers.

    Parameters
    ----------
    nbytes : sizes in bytes; by default a grid from the smallest to the largest measured, rows set
        aside included, and the sizes themselves
    n_workers : by default `shown_workers(fit)`
    """
    name = fit.inputs[0]
    if fit.inputs == (name,):  # a batch: no workers
        x = fit.measurements[name].to_numpy(float)
        grid = np.linspace(x.min(), x.max(), _POINTS) if nbytes is None else nbytes
        table = fit.predict(grid, level=level)
    else:
        counts = shown_workers(fit) if n_workers is None else np.atleast_1d(n_workers)
        sizes = _grid(fit, counts) if nbytes is None else np.unique(numbers(nbytes, "nbytes"))
        grid = pd.MultiIndex.from_product([counts, sizes])
        table = fit.predict(grid.get_level_values(1), grid.get_level_values(0), level)
        table = table.astype({"n_workers": int})
    table = table.astype({"why": "str"})
    table.attrs["level"] = level  # shown in the legend of the figure
    return table


def _grid(fit, counts) -> np.ndarray:
    rows = (fit.measurements, left_out(fit, counts))
    sizes = np.concatenate([row["nbytes"].to_numpy(float) for row in rows])
    return np.unique(np.r_[sizes, np.geomspace(sizes.min(), sizes.max(), _POINTS)])


@checked(fit=a_fit)
def residuals(fit) -> pd.DataFrame:
    """Return how far each measurement is from the fit, and how much it influences it.

    Columns: the inputs (such as nbytes and n_workers), seconds, fitted_s,

        relative_error = fitted_s / seconds - 1
        standardised   = r / (sigma sqrt(1 - leverage)), r = (seconds - fitted_s) / fitted_s
        leverage       = the diagonal of the hat matrix of the weighted columns
        cook           = standardised**2 leverage / (1 - leverage) / (number of parameters)
        normal         = the quantile of a standard normal with the same rank

    With absolute weights r is seconds - fitted_s. If a row alone determines a parameter, its
    leverage is 1, its standardised residual 0 and cook inf. An Interpolated has no parameters and
    no columns from standardised on. Source: Cook and Weisberg, Residuals and Influence, 1982.
    """
    rows = fit.measurements[[*fit.inputs, "seconds"]].reset_index(drop=True)
    points, seconds, fitted, w = weighed(fit)
    table = rows.assign(fitted_s=fitted, relative_error=fitted / seconds - 1)
    if isinstance(fit.model, Interpolated):
        return table
    columns = tangent(fit.model, *points)[list(fit.estimate.covariance)]
    u, s, _, _ = decomposed(columns.to_numpy(float) * w[:, None])
    leverage, rank = np.square(u).sum(axis=1), len(s)
    leverage = np.where(leverage > 1 - 1e-8, 1.0, leverage)  # rounding aside
    left, sigma = np.sqrt(1 - leverage), fit.estimate.sigma
    own = (left > 0) & (sigma > 0)
    standard = np.divide((seconds - fitted) * w, sigma * left, where=own, out=np.zeros(len(w)))
    moves = np.divide(leverage, left**2, where=left > 0, out=np.full(len(w), np.inf))
    squares = np.where(left > 0, standard**2, 1.0)
    order = standard.argsort(kind="stable").argsort(kind="stable")
    return table.assign(
        standardised=standard,
        leverage=leverage,
        cook=squares * moves / rank,
        normal=norm.ppf((order + 0.5) / len(w)),
    )


CORNERS = {
    "n_workers": "workers",
    "regime": "number of the regime that ends here, from 1",
    "nbytes": "bytes of a message at the corner",
    "seconds": "its cost, s",
}


@checked(fit=a_fit)
def corners(fit, n_workers: int | None = None) -> pd.DataFrame:
    """Return CORNERS of a fit for a number of workers, by default the most measured.

        S = x h(n) / m(1, n)

    Breaks x are bytes of a hop; h are the hops and m(1, n) what one byte of a message moves. For a
    ring S = n x. A price without regimes has no corner, so no row.
    """
    n = int(fit.measurements["n_workers"].max() if n_workers is None else n_workers)
    bends = isinstance(fit.model, Piecewise) and n > 1
    counts = fit.model.columns(1.0, n) if bends else {"alpha": 0.0, "beta": 1.0}
    hops = float(counts.pop("alpha"))
    moved = float(sum(counts.values()))  # in any regime, the parts add up to the bytes moved
    at = np.array([each * hops / moved for each in (fit.model.breaks if bends else ())], float)
    seconds = np.asarray(fit.model(at, n), float) if len(at) else at
    regime = np.arange(1, len(at) + 1)
    return pd.DataFrame({"n_workers": n, "regime": regime, "nbytes": at, "seconds": seconds})
