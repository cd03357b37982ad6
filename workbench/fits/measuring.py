"""What to time next: which timing narrows the band of a forecast most, and what it costs."""

import numpy as np
import pandas as pd

from ..base.checks import count, numbers, shown
from ..base.tables import check
from ..costs import Interpolated
from .bands import share, together
from .diagnostics import refuse_other
from .estimates import COLLINEAR, whitening
from .regimes import tangent
from .regression import Fit

MANY = 24  # sizes offered where none are named


def next_measurement(
    fit: Fit, target, candidates=None, n: int = 1, level: float = 0.95
) -> pd.DataFrame:
    """Return what to time next: by how much each candidate would narrow the forecast's band.

    Parameters
    ----------
    fit : a fit with parameters
    target : what is to be forecast, (nbytes, n_workers) or a table with these columns, such as the
        buckets of a timeline; of several messages the band of their total
    candidates : what could be timed, likewise; the sizes and numbers of workers timed before, and
        the target's own, unless given; also half and a quarter of the workers timed where the rows
        do not tell a price of a hop from a constant
    n : how often each would be timed
    level : of the band

    Columns nbytes, n_workers, band_now_s (half the width of the confidence band of the target, as
    predict gives it), band_after_s (with the candidate timed n times), gain (the share of the band
    that goes), cluster_s (worker-seconds: n * seconds * n_workers) and note; the largest gain
    first. Where a price of a hop is not determined, as with one number of workers timed, the band
    does not hold at others: first then come those that would determine it, as the note says. With z
    the candidate's row of weighted slopes, g the slopes of the target and M the information matrix
    of the rows fitted, the variance g' M^-1 g falls by (Sherman and Morrison 1950)

        n (g' M^-1 z)^2 / (1 + n z' M^-1 z)

    the c-optimal choice of one measurement. Breaks and a floor count as estimated, but stay in
    number. Raises ValueError for a fit without parameters or spread, a target that depends on what
    the rows leave free (the message names it), or a candidate that sends nothing.
    """
    refuse_other(fit, "fit")
    _refuse_spread(fit)
    count(n, "n", least=1)
    level = share(level)
    wanted = _points(fit, target, "target")
    offered = (
        _offered(fit, wanted) if candidates is None else _points(fit, candidates, "candidates")
    )
    names = list(fit.estimate.covariance)
    slopes = tangent(fit.model, *wanted)[names].sum().to_numpy()
    _refuse_free(fit, wanted, slopes)
    forecast = fit.predict(*offered)
    seconds = forecast["seconds"].to_numpy()
    if (seconds == 0).any():
        raise ValueError("candidates: expected messages of two workers or more that take time")
    now = fit.estimate.margin(level) * np.sqrt(slopes @ fit.estimate.covariance @ slopes)
    z = tangent(fit.model, *offered)[names].to_numpy()
    left = _left_after(fit, names, slopes, z * whitening(seconds, seconds, fit.method)[:, None], n)
    # what depends on a price that the rows leave free is spent on finding that price
    left = np.where(np.isinf(forecast["extrapolated"]), 1.0, left)
    workers = offered[1] if len(offered) > 1 else 1
    whole = (values.astype(int) if (values % 1 == 0).all() else values for values in offered)
    table = pd.DataFrame(dict(zip(fit.inputs, whole, strict=True)))
    table = table.assign(
        band_now_s=now, band_after_s=now * left, gain=1 - left, cluster_s=n * seconds * workers
    )
    table["note"], told = "", _would_tell(fit, offered)
    if told.any() and not _timed(fit, wanted).all():
        table.loc[told, "note"] = f"would tell {_hop_prices(fit)} from a constant a message"
    order = {"note": False, "gain": False, "cluster_s": True}
    return table.sort_values(list(order), ascending=list(order.values()), ignore_index=True)


def _hop_prices(fit: Fit) -> str:
    """Return the prices of a hop that the rows do not tell from a constant, named."""
    free = fit.undetermined() if "n_workers" in fit.inputs else {}
    return ", ".join(name for name in free if name not in fit.estimate.undetermined)


def _timed(fit: Fit, points: list[np.ndarray]) -> np.ndarray:
    """Return which points are at a number of workers that was timed."""
    return np.isin(points[1], fit.measurements["n_workers"].to_numpy(float))


def _would_tell(fit: Fit, points: list[np.ndarray]) -> np.ndarray:
    """Return which points would determine a price of a hop: they have other hops than the rows."""
    names = _hop_prices(fit).split(", ")
    if names == [""]:
        return np.zeros(len(points[0]), bool)
    seen = tangent(fit.model, *_measured(fit))[names].to_numpy()
    here = tangent(fit.model, *points)[names].to_numpy()
    return ((here < seen.min(axis=0)) | (here > seen.max(axis=0))).any(axis=1)


def _left_after(fit: Fit, names: list[str], slopes, z: np.ndarray, n: int) -> np.ndarray:
    """Return the share of the target's standard error left with each candidate timed n times."""
    rows = fit.measurements
    points, seconds = _measured(fit), rows["seconds"].to_numpy(float)
    fitted = np.asarray(fit.model(*points), float)
    x = tangent(fit.model, *points)[names].to_numpy()
    x = x * whitening(fitted, seconds, fit.method)[:, None]
    scale = np.linalg.norm(x, axis=0)
    scale[scale == 0] = 1.0
    _, s, vt = np.linalg.svd(x / scale, full_matrices=False)
    half = vt[s > COLLINEAR * s[0]].T / s[s > COLLINEAR * s[0]]  # M^-1 = half half'
    g, z = (slopes / scale) @ half, (z / scale) @ half
    saved = n * (z @ g) ** 2 / (1 + n * np.einsum("ij,ij->i", z, z))
    return np.sqrt(np.maximum(1 - saved / (g @ g), 0.0))


def _measured(fit: Fit) -> list[np.ndarray]:
    return [fit.measurements[name].to_numpy(float) for name in fit.inputs]


def _points(fit: Fit, given, what: str) -> list[np.ndarray]:
    """Return the arrays that a table, or a tuple in the order of fit.inputs, holds."""
    if isinstance(given, pd.DataFrame):
        check(given, dict.fromkeys(fit.inputs, "what the fit is a function of"), what)
        given = [given[name] for name in fit.inputs]
    elif not isinstance(given, tuple | list) or len(given) != len(fit.inputs):
        raise ValueError(
            f"{what}: expected a tuple of {', '.join(fit.inputs)}, or a table with these columns; "
            f"got {shown(given)}"
        )
    pairs = zip(fit.inputs, given, strict=True)
    arrays = [np.atleast_1d(numbers(values, f"{what}: {name}")).ravel() for name, values in pairs]
    if not all(map(len, arrays)):
        raise ValueError(f"{what}: expected one message or more, got none")
    return together(arrays, fit.inputs)


def _offered(fit: Fit, wanted: list[np.ndarray]) -> list[np.ndarray]:
    """Return the sizes timed before, thinned, and the target's, at each number of workers."""
    sizes, *workers = (np.unique(values) for values in _measured(fit))
    if len(sizes) > MANY:
        sizes = sizes[np.unique(np.linspace(0, len(sizes) - 1, MANY).round().astype(int))]
    asked = np.unique(wanted[0])
    sizes = np.union1d(sizes, asked if len(asked) <= MANY else asked[[0, -1]])
    if workers:
        fewer = [workers[0] // part for part in (2, 4) if _hop_prices(fit)]
        counts = np.unique(np.concatenate([*workers, wanted[1], *fewer]))
        workers = [counts[counts > 1]]
    return [axis.ravel() for axis in np.meshgrid(sizes, *workers)]


def _refuse_spread(fit: Fit):
    if isinstance(fit.model, Interpolated):
        raise ValueError(
            "fit: an Interpolated has no parameters that one measurement tells others of; time "
            "the target itself, or fit another kind"
        )
    if fit.estimate.dof < 1 or fit.estimate.sigma == 0:
        raise ValueError(
            "fit: as many points as parameters, or no residual at all, leave no spread to narrow; "
            "time more sizes"
        )


def _refuse_free(fit: Fit, wanted: list[np.ndarray], slopes: np.ndarray):
    """Raise ValueError for a target without a band, or with one that has no end."""
    if np.isinf(fit.predict(*wanted)["high"]).any():
        raise ValueError(
            f"target: its band has no end, because the rows leave {fit.estimate.undetermined[0]} "
            f"free (not determined: {', '.join(fit.estimate.undetermined)}); time other sizes and "
            "numbers of workers, two sizes at each, or another kind of cost"
        )
    if not slopes.any():
        raise ValueError("target: a message that costs nothing has no band to narrow")
