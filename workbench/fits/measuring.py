"""What to time next: which timing narrows the band of a forecast most, and its cost."""

import numpy as np
import pandas as pd

from ..base.checks import checked, integer, numbers, require
from ..base.tables import check
from ..costs import Interpolated
from .bands import together
from .diagnostics import a_fit
from .estimates import a_level, decomposed, points_of, weighed, whitening
from .regimes import tangent
from .regression import Fit

_MOST_SIZES = 24  # sizes offered by default


@checked(fit=a_fit, n=integer(), level=a_level)
def next_measurement(
    fit: Fit, target, candidates=None, n: int = 1, level: float = 0.95
) -> pd.DataFrame:
    """Return what to time next: by how much each candidate would narrow the forecast's band.

    Parameters
    ----------
    fit : a fit with parameters
    target : what to forecast, (nbytes, n_workers) or a table with these columns, such as the
        buckets of a timeline; for several messages the band of their total
    candidates : what could be timed, in the same form; by default the timed sizes and numbers of
        workers and those of the target, and half and a quarter of the timed workers if the rows do
        not separate a price per hop from a constant
    n : how often each would be timed
    level : of the band

    Columns nbytes, n_workers, band_now_s (half the width of the confidence band of the target, as
    in predict), band_after_s (with the candidate timed n times), gain (the share of the band that
    is removed), cluster_s (worker-seconds: n * seconds * n_workers) and note; the largest gain
    first. If a price per hop is not determined, as with one number of workers timed, the band is
    not valid at others: candidates that would determine it come first, with a note. With z the
    candidate's row of weighted slopes, g the slopes of the target and M the information matrix of
    the rows fitted, the variance g' M^-1 g falls by (Sherman and Morrison 1950)

        n (g' M^-1 z)^2 / (1 + n z' M^-1 z)

    the c-optimal choice of one measurement. Breaks and a floor count as estimated, but stay in
    number. Raises ValueError for a fit without parameters or spread, a target that depends on what
    the rows do not determine, or a candidate that sends nothing.
    """
    _refuse_spread(fit)
    wanted = _points(fit, target, "target")
    default = candidates is None
    offered = _offered(fit, wanted) if default else _points(fit, candidates, "candidates")
    names = list(fit.estimate.covariance)
    slopes = tangent(fit.model, *wanted)[names].sum().to_numpy()
    _refuse_free(fit, wanted, slopes)
    forecast = fit.predict(*offered)
    seconds = forecast["seconds"].to_numpy()
    require(seconds.all(), "candidates", "messages of two workers or more that take time")
    now = fit.estimate.margin(level) * np.sqrt(slopes @ fit.estimate.covariance @ slopes)
    z = tangent(fit.model, *offered)[names].to_numpy()
    left = _left_after(fit, names, slopes, z * whitening(seconds, seconds, fit.method)[:, None], n)
    # a point that depends on an undetermined price only helps to determine that price
    left = np.where(np.isinf(forecast["extrapolated"]), 1.0, left)
    workers = offered[1] if len(offered) > 1 else 1
    whole = (values.astype(int) if (values % 1 == 0).all() else values for values in offered)
    table = pd.DataFrame(dict(zip(fit.inputs, whole, strict=True)))
    table = table.assign(
        band_now_s=now, band_after_s=now * left, gain=1 - left, cluster_s=n * seconds * workers
    )
    table["note"], separates = "", _would_separate(fit, offered)
    if separates.any() and not np.isin(wanted[1], points_of(fit.measurements, fit.inputs)[1]).all():
        note = f"would separate {_hop_prices(fit)} from a constant per message"
        table.loc[separates, "note"] = note
    order = {"note": False, "gain": False, "cluster_s": True}
    return table.sort_values(list(order), ascending=list(order.values()), ignore_index=True)


def _hop_prices(fit: Fit) -> str:
    """Return the names of the prices per hop that the rows do not separate from a constant."""
    free = fit.undetermined() if "n_workers" in fit.inputs else {}
    return ", ".join(name for name in free if name not in fit.estimate.undetermined)


def _would_separate(fit: Fit, points: list[np.ndarray]) -> np.ndarray:
    """Return which points would determine a price per hop: their hops differ from the rows'."""
    names = _hop_prices(fit).split(", ")
    if names == [""]:
        return np.zeros(len(points[0]), bool)
    seen = tangent(fit.model, *points_of(fit.measurements, fit.inputs))[names].to_numpy()
    here = tangent(fit.model, *points)[names].to_numpy()
    return ((here < seen.min(axis=0)) | (here > seen.max(axis=0))).any(axis=1)


def _left_after(fit: Fit, names: list[str], slopes, z: np.ndarray, n: int) -> np.ndarray:
    """Return the share of the target's standard error left with each candidate timed n times."""
    points, _, _, w = weighed(fit)
    x = tangent(fit.model, *points)[names].to_numpy() * w[:, None]
    _, s, vt, scale = decomposed(x)
    half = vt.T / s  # M^-1 = half half'
    g, z = (slopes / scale) @ half, (z / scale) @ half
    saved = n * (z @ g) ** 2 / (1 + n * np.einsum("ij,ij->i", z, z))
    return np.sqrt(np.maximum(1 - saved / (g @ g), 0.0))


def _points(fit: Fit, given, what: str) -> list[np.ndarray]:
    """Return the arrays of a table, or of a tuple in the order of fit.inputs."""
    if isinstance(given, pd.DataFrame):
        check(given, dict.fromkeys(fit.inputs, "input of the fit"), what)
        given = [given[name] for name in fit.inputs]
    else:
        known = ", ".join(fit.inputs)
        ok = isinstance(given, tuple | list) and len(given) == len(fit.inputs)
        require(ok, what, f"a tuple of {known}, or a table with these columns", given)
    pairs = zip(fit.inputs, given, strict=True)
    arrays = [np.atleast_1d(numbers(values, f"{what}: {name}")).ravel() for name, values in pairs]
    require(all(map(len, arrays)), what, "one message or more", found="none")
    return together(arrays, fit.inputs)


def _offered(fit: Fit, wanted: list[np.ndarray]) -> list[np.ndarray]:
    """Return the timed sizes, thinned, and those of the target, at each number of workers."""
    sizes, *workers = map(np.unique, points_of(fit.measurements, fit.inputs))
    if len(sizes) > _MOST_SIZES:
        sizes = sizes[np.unique(np.linspace(0, len(sizes) - 1, _MOST_SIZES).round().astype(int))]
    asked = np.unique(wanted[0])
    sizes = np.union1d(sizes, asked if len(asked) <= _MOST_SIZES else asked[[0, -1]])
    if workers:
        fewer = [workers[0] // part for part in (2, 4) if _hop_prices(fit)]
        counts = np.unique(np.concatenate([*workers, wanted[1], *fewer]))
        workers = [counts[counts > 1]]
    return [axis.ravel() for axis in np.meshgrid(sizes, *workers)]


def _refuse_spread(fit: Fit):
    joined, do = isinstance(fit.model, Interpolated), "Time the target, or fit another kind"
    require(not joined, "fit", "a cost with parameters", found="an Interpolated", do=do)
    spread = fit.estimate.dof >= 1 and fit.estimate.sigma > 0
    expected = "residuals, and more points than parameters, to have a spread"
    require(spread, "fit", expected, do="Time more sizes")


def _refuse_free(fit: Fit, wanted: list[np.ndarray], slopes: np.ndarray):
    """Raise ValueError for a target without a band, or with an unbounded one."""
    unbounded, free = np.isinf(fit.predict(*wanted)["high"]).any(), fit.estimate.undetermined
    found = f"one that depends on what the rows do not determine: {', '.join(free)}"
    do = "Time other sizes and numbers of workers, two sizes at each, or fit another kind of cost"
    require(not unbounded, "target", "a message with a bounded band", found=found, do=do)
    require(slopes.any(), "target", "a message that costs something, so has a band to narrow")
