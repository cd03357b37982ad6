"""What a fit predicts for times that were not measured: bands, how far outside, and draws."""

import numpy as np
import pandas as pd

from ..base.checks import checked, instance, integer, numbers, require
from ..base.units import format_bytes
from ..costs import Cost, Interpolated, Piecewise
from .estimates import points_of
from .regimes import tangent

CHUNK = 1 << 14  # points at a time, so that arrays stay in the CPU's caches
_COLUMNS = ("seconds", "low", "high", "predicted_low", "predicted_high")


def predicted_with_bands(fit, nbytes, n_workers, level: float) -> pd.DataFrame:
    """Return the table of `Fit.predict`."""
    given = zip(fit.inputs, (nbytes, n_workers), strict=False)
    points = [np.atleast_1d(numbers(value, name)).ravel() for name, value in given]
    points = together(points, fit.inputs)
    parts = [
        _band(fit, [values[k : k + CHUNK] for values in points], level)
        for k in range(0, len(points[0]), CHUNK)
    ]
    columns = np.concatenate(parts, axis=1) if parts else np.empty((len(_COLUMNS), 0))
    table = dict(zip((*fit.inputs, *_COLUMNS), (*points, *columns), strict=True))
    factor, code, words = _beyond(fit.measurements, fit.inputs, points)
    if free := fit.estimate.undetermined:
        unknown = np.isinf(table["high"])
        factor, code = np.where(unknown, np.inf, factor), np.where(unknown, len(words), code)
        words = [*words, f"not determined: {', '.join(free)}"]
    why = pd.Categorical.from_codes(code, words)
    return pd.DataFrame(table | {"extrapolated": factor, "why": why}, copy=False)


def untimed(fit, nbytes) -> str:
    """Return as text which messages have sizes beyond those that were timed, empty if none.

    Such as "messages below 32 MiB: price extrapolated", shown below figures and with advice.
    """
    sent = np.atleast_1d(numbers(nbytes, "nbytes"))
    timed = fit.measurements["nbytes"]
    ends = [f"below {_short(timed.min())}"] * bool((sent < timed.min()).any())
    ends += [f"above {_short(timed.max())}"] * bool((sent > timed.max()).any())
    return f"messages {' and '.join(ends)}: price extrapolated" if ends else ""


def _short(nbytes: float) -> str:
    value, unit = format_bytes(nbytes).split()
    return f"{float(value):g} {unit}"


@checked(
    n=integer(0),
    rng=instance(np.random.Generator, "a NumPy Generator", "Write np.random.default_rng(0)"),
)
def drawn_costs(fit, n: int, rng: np.random.Generator) -> list[Cost]:
    """Return the costs of `Fit.draws`."""
    model, estimate = fit.model, fit.estimate
    do = "Time more sizes"
    require(estimate.dof >= 1, "draws", "more points than parameters, to have a spread", do=do)
    if isinstance(model, Interpolated):
        noise = rng.standard_normal((int(n), len(fit.measurements)))
        return Interpolated(fit.measurements).scaled(np.exp(estimate.sigma * noise))
    names = list(estimate.covariance)
    moves = rng.standard_normal((int(n), len(names))) @ _root(estimate.covariance).T
    # a t distribution, as for the intervals: one spread per draw, with the same degrees of freedom
    moves *= np.sqrt(estimate.dof / rng.chisquare(estimate.dof, (int(n), 1)))
    moves[:, [name in estimate.undetermined for name in names]] = 0.0
    values = pd.DataFrame(np.maximum(estimate.values[names].to_numpy() + moves, 0.0), columns=names)
    if isinstance(model, Piecewise):
        values = _rising(values, model)
    return [model.with_parameters(**row) for row in values.to_dict("records")]


def together(arrays: list[np.ndarray], names: tuple[str, ...]) -> list[np.ndarray]:
    """Return arrays broadcast to one length, or raise ValueError if lengths differ."""
    lengths = {len(values) for values in arrays} - {1}
    found = " and ".join(str(len(values)) for values in arrays)
    expected = "the same length, or one value"
    require(len(lengths) < 2, " and ".join(names), expected, found=found)
    return list(np.broadcast_arrays(*arrays))


def _band(fit, points: list[np.ndarray], level: float) -> np.ndarray:
    """Return one row for each of _COLUMNS, one column per point."""
    estimate, margin = fit.estimate, fit.estimate.margin(level)
    seconds = np.broadcast_to(fit.model(*points), points[0].shape)
    own = estimate.sigma * (1.0 if fit.method.weights == "absolute" else seconds)
    if isinstance(fit.model, Interpolated):
        deviation = own  # the curve is as uncertain as the measurements that it joins
    else:
        columns = tangent(fit.model, *points)
        slopes = np.stack([columns[name] for name in estimate.covariance])
        # einsum, since threads of a matrix product cost more than they save at this width
        parts = np.einsum("kj,kn->jn", _root(estimate.covariance), slopes)
        deviation = np.sqrt(np.einsum("jn,jn->n", parts, parts))
        deviation[_moves(slopes, estimate.unseen)] = np.inf
    if np.isnan(margin):
        margin, deviation = 1.0, np.full_like(seconds, np.inf)
    near, wide = margin * deviation, margin * np.hypot(deviation, own)
    low, wide_low = np.maximum(seconds - near, 0.0), np.maximum(seconds - wide, 0.0)
    return np.stack([seconds, low, seconds + near, wide_low, seconds + wide])


def _root(covariance: pd.DataFrame) -> np.ndarray:
    """Return a matrix whose product with its transpose is the covariance."""
    scale = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    scale = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(covariance.to_numpy() / np.outer(scale, scale))
    return scale[:, None] * vectors * np.sqrt(np.maximum(values, 0.0))


def _moves(slopes: np.ndarray, unseen: pd.DataFrame) -> np.ndarray:
    """Return at which points a price that the rows do not determine would change the seconds."""
    directions = unseen.to_numpy(float)
    moved, all_ = directions @ slopes, np.abs(directions) @ np.abs(slopes)
    return (np.abs(moved) > 1e-6 * all_).any(axis=0)


def _rising(values: pd.DataFrame, model: Piecewise) -> pd.DataFrame:
    """Return draws whose breaks rise, also those not drawn: a break that is crossed moves along."""
    names = [f"break_{k}" for k in range(1, len(model.breaks) + 1)]
    at = values.reindex(columns=names).fillna(dict(zip(names, model.breaks, strict=True)))
    rising = np.maximum.accumulate(np.maximum(at.to_numpy(float), 1e-3), axis=1)
    rising = rising * (1 + 1e-9 * np.arange(len(names)))
    return values.assign(**dict(zip(names, rising.T, strict=True)))


def _beyond(rows: pd.DataFrame, inputs: tuple[str, ...], points: list[np.ndarray]):
    """Return how far each point is beyond the rows, a code of the words, and the words."""
    factor, code, words = np.ones(len(points[0])), np.zeros(len(points[0]), np.int8), [""]
    for name, values, timed in zip(inputs, points, points_of(rows, inputs), strict=True):
        low, high = float(timed.min()), float(timed.max())
        if name == "n_workers":
            values = np.where(values == 1, low, values)  # one worker certainly sends nothing
        under, over = values < low, values > high
        far = np.divide(low, values, out=np.full(len(values), np.inf), where=values > 0)
        factor = np.maximum(factor, np.where(over, values / high, np.where(under, far, 1.0)))
        code = code + len(words) * (over + 2 * under.astype(np.int8))
        low, high = (format_bytes(v) if name == "nbytes" else f"{v:.6g}" for v in (low, high))
        here = ("", f"{name} above {high}", f"{name} below {low}")
        words = [" and ".join(filter(None, (old, new))) for new in here for old in words]
    return factor, code, words
