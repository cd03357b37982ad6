"""What to look at before a fit is believed: its curves with their bands, and its residuals."""

import numpy as np
import pandas as pd
from scipy.stats import norm

from ..base.checks import numbers, shown
from ..costs import Interpolated, Piecewise
from .estimates import COLLINEAR, whitening
from .regimes import tangent

POINTS = 120  # of a curve, for each number of workers


def refuse_other(fit, what: str):
    """Raise ValueError unless fit is a Fit."""
    if not hasattr(fit, "card"):
        raise ValueError(
            f"{what}: expected a Fit, got {shown(fit)}; pass fit_all_reduce(measurements)"
        )


def shown_workers(fit, most: int = 5) -> list[int]:
    """Return the numbers of workers to show of a fit: all, or those that best spread in logarithm.

    The smallest and the largest are among them.
    """
    refuse_other(fit, "shown_workers")
    counts = np.unique(fit.measurements["n_workers"].astype(int))
    if len(counts) <= most:
        return counts.tolist()
    wanted = np.geomspace(counts[0], counts[-1], most)
    nearest = np.abs(np.log(counts) - np.log(wanted)[:, None]).argmin(axis=1)
    return np.unique(counts[nearest]).tolist()


def left_out(fit, n_workers=None) -> pd.DataFrame:
    """Return the rows set aside that have a place among the fitted ones: same op, bytes, time.

    n_workers : keep these numbers of workers only
    """
    rows = fit.set_aside
    if not len(rows) or "op" not in rows:
        return rows
    mine = rows["op"].isin(fit.measurements["op"].unique())
    mine &= pd.to_numeric(rows["nbytes"], errors="coerce").fillna(0) > 0
    mine &= pd.to_numeric(rows["seconds"], errors="coerce").fillna(0) > 0
    return rows[mine if n_workers is None else mine & rows["n_workers"].isin(n_workers)]


def curves(fit, nbytes=None, n_workers=None, level: float = 0.95) -> pd.DataFrame:
    """Return what `Fit.predict` says along a grid of sizes, for each number of workers.

    Columns as of predict: seconds, its bands, extrapolated and why.

    nbytes : sizes, bytes; by default a grid from the smallest to the largest measured, rows set
        aside included, and the sizes themselves
    n_workers : by default `shown_workers(fit)`
    """
    refuse_other(fit, "curves")
    name = fit.inputs[0]
    if fit.inputs == (name,):  # a batch: no workers
        x = fit.measurements[name].to_numpy(float)
        grid = np.linspace(x.min(), x.max(), POINTS) if nbytes is None else nbytes
        return _told(fit.predict(grid, level=level), level)
    counts = shown_workers(fit) if n_workers is None else np.atleast_1d(n_workers)
    sizes = _grid(fit, counts) if nbytes is None else np.unique(numbers(nbytes, "nbytes"))
    grid = pd.MultiIndex.from_product([counts, sizes])
    table = fit.predict(grid.get_level_values(1), grid.get_level_values(0), level)
    return _told(table.assign(n_workers=table["n_workers"].astype(int)), level)


def _told(table: pd.DataFrame, level: float) -> pd.DataFrame:
    table = table.assign(why=table["why"].astype("str"))
    table.attrs["level"] = level  # the figure's legend says it
    return table


def _grid(fit, counts) -> np.ndarray:
    rows = (fit.measurements, left_out(fit, counts))
    sizes = np.concatenate([row["nbytes"].to_numpy(float) for row in rows])
    return np.unique(np.r_[sizes, np.geomspace(sizes.min(), sizes.max(), POINTS)])


def residuals(fit) -> pd.DataFrame:
    """Return how far each measurement is from the fit, and how much it moves it.

    Columns: the inputs (nbytes and n_workers, say), seconds, fitted_s,

        relative_error = fitted_s / seconds - 1
        standardised   = r / (sigma sqrt(1 - leverage)), r = (seconds - fitted_s) / fitted_s
        leverage       = the diagonal of the hat matrix of the weighted columns
        cook           = standardised**2 leverage / (1 - leverage) / (number of parameters)
        normal         = the quantile of a standard normal with the same rank

    With absolute weights r is seconds - fitted_s. Where a row alone determines a parameter its
    leverage is 1, its standardised residual 0 and cook inf. An Interpolated has no parameters and
    no columns from standardised on. Source: Cook and Weisberg, Residuals and Influence, 1982.
    """
    refuse_other(fit, "residuals")
    rows = fit.measurements[[*fit.inputs, "seconds"]].reset_index(drop=True)
    points = [rows[name].to_numpy(float) for name in fit.inputs]
    seconds = rows["seconds"].to_numpy(float)
    fitted = np.asarray(fit.model(*points), float)
    table = rows.assign(fitted_s=fitted, relative_error=fitted / seconds - 1)
    if isinstance(fit.model, Interpolated):
        return table
    w = whitening(fitted, seconds, fit.method)
    leverage, rank = _leverage(tangent(fit.model, *points)[list(fit.estimate.covariance)], w)
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


def _leverage(columns: pd.DataFrame, w: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the leverage of each row, 1 where it is so but for rounding, and the rank."""
    x = columns.to_numpy(float) * w[:, None]
    length = np.linalg.norm(x, axis=0)
    u, s, _ = np.linalg.svd(x / np.where(length > 0, length, 1.0), full_matrices=False)
    rank = int((s > COLLINEAR * s[0]).sum())
    leverage = np.square(u[:, :rank]).sum(axis=1)
    return np.where(leverage > 1 - 1e-8, 1.0, leverage), rank


CORNERS = {
    "n_workers": "workers",
    "regime": "number of the regime that ends here, from 1",
    "nbytes": "of a message at the corner, bytes",
    "seconds": "what it costs, s",
}


def corners(fit, n_workers: int | None = None) -> pd.DataFrame:
    """Return CORNERS of a fit for a number of workers, by default the most measured; maybe no row.

        S = x h(n) / m(1, n)

    Breaks x are bytes of a hop; h are the hops and m(1, n) what one byte of a message moves. For a
    ring S = n x. A price without regimes has no corner.
    """
    refuse_other(fit, "corners")
    n = int(fit.measurements["n_workers"].max() if n_workers is None else n_workers)
    bends = isinstance(fit.model, Piecewise) and n > 1
    counts = fit.model.columns(1.0, n) if bends else {"alpha": 0.0, "beta": 1.0}
    hops = float(counts.pop("alpha"))
    moved = float(sum(counts.values()))  # whatever the regime, the parts add up to the bytes moved
    at = np.array([each * hops / moved for each in (fit.model.breaks if bends else ())], float)
    seconds = np.asarray(fit.model(at, n), float) if len(at) else at
    regime = np.arange(1, len(at) + 1)
    return pd.DataFrame({"n_workers": n, "regime": regime, "nbytes": at, "seconds": seconds})
