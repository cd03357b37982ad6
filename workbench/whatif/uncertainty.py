"""How sure a forecast is: bands, the knee with its range, and where it extrapolates.

The price of the link is drawn from a fit, and compute from its measured variation. Both go through
the recursion, all draws at once.
"""

import warnings

import numpy as np
import pandas as pd

from ..base.checks import checked, real, require, whole_workers
from ..costs import Adjusted, NodesCost
from ..fits import untimed
from ..fits.estimates import a_level
from ..fusion import fuse
from ..timeline import Scenario, sweep
from .sampling import Draws, refuse_fit

BAND = {
    "n_workers": "workers",
    "scaling_factor": "T1 / Tn with the fitted price and the measured compute",
    "low": "lower end of the band",
    "high": "upper end of the band",
    "median": "median of the draws",
    "extrapolated": "times beyond what was measured, for the worst message; 1 inside",
    "why": "what is beyond the measurements, empty inside",
}
KNEE = {
    "knee": "workers, with the fitted price",
    "low": "workers, lower end of the knees of a share of the draws",
    "high": "workers, upper end of the same",
    "at_least": "bool: high is the last number asked for, so the knee may lie beyond it",
    "extrapolated": "for the knee, as in BAND",
    "why": "as in BAND, and any price per hop that is not determined",
}
_UP_TO = 2**20  # workers, by default
_THRESHOLD = real("a share from 0 to below 1", lambda v: 0 <= v < 1, "half a worker is 0.5")


def band(
    scenario: Scenario,
    fit,
    n_workers,
    level: float = 0.95,
    n_draws: int = 1000,
    rng: np.random.Generator | None = None,
    compute_cv: float | None = None,
) -> pd.DataFrame:
    """Return BAND: the scaling factor at each number of workers, with its band.

    Parameters
    ----------
    scenario : what is trained; fit.model replaces its all_reduce, but adjustments by optimisations
        stay
    fit : of the all-reduce, such as fit_all_reduce(measurements); it draws the price of the link
    n_workers : one number or several
    level : share of the draws between low and high
    n_draws : number of draws
    rng : generator of the draws; None for a fixed seed, so that figures repeat
    compute_cv : coefficient of variation of compute, 0.02 for 2 %, one normal factor per draw. None
        uses the range ready_min_s to ready_max_s of the gradients if they have it: in a draw each
        gradient is ready at the same place within its range, uniform below and above its median,
        and the rest of T1 follows the last gradient. Otherwise compute is taken as certain

    The band covers the inputs of the forecast, not whether the model holds beyond what was measured
    (see `extrapolated`). If `why` says that a price is not determined, another kind of cost may lie
    outside the band. With a policy with a clock or several streams, each draw is predicted alone,
    which takes some ms per draw.
    """
    a_level(level, "level")
    counts = _counts(n_workers)
    tails = 0.5 - level / 2, 0.5, 0.5 + level / 2
    found = Draws(scenario, fit, n_draws, rng, compute_cv)
    rows = [(n, *np.quantile(found(n), tails)) for n in counts.tolist()]
    table = pd.DataFrame(rows, columns=["n_workers", "low", "median", "high"])
    table = table.assign(
        n_workers=counts.astype("int64"), scaling_factor=[found.expected(n) for n in counts]
    )
    beyond = extrapolation(scenario, fit, counts)
    return table.assign(extrapolated=beyond["extrapolated"], why=beyond["why"])[list(BAND)]


def extrapolation(scenario: Scenario, fit, n_workers=None) -> pd.DataFrame:
    """Return how far each forecast reaches beyond what the fit was measured on.

    Columns: n_workers; extrapolated, how many times the worst message is beyond the measured bytes
    or workers, 1 inside and infinite for a price that is not determined; nbytes of that message;
    why, in words and empty inside: what is beyond, any price per hop that cannot be separated from
    a constant, and links that were not timed, inside a node or between nodes. One worker sends
    nothing, so nothing is beyond.
    """
    refuse_fit(scenario, fit, "extrapolation")
    counts = _counts(scenario.n_workers if n_workers is None else n_workers)
    sent = np.unique(_sent(scenario))
    fitted = fit.predict(*(each.ravel() for each in np.meshgrid(sent, counts)))
    factor = fitted["extrapolated"].to_numpy(float).reshape(len(counts), len(sent))
    factor = np.where(counts[:, None] > 1, factor, 1.0)
    worst = factor.argmax(axis=1)
    why = fitted["why"].astype("str").to_numpy().reshape(factor.shape)
    rows = np.arange(len(counts))
    beyond, besides = factor[rows, worst], _doubts(fit, counts)
    words = ["; ".join(filter(None, w)) for w in zip(why[rows, worst], besides, strict=True)]
    return pd.DataFrame(
        {
            "n_workers": counts.astype("int64"),
            "extrapolated": beyond,
            "nbytes": sent[worst],
            "why": pd.array(np.where(beyond > 1, words, ""), dtype="str"),
        }
    )


def untimed_sizes(fit, *scenarios: Scenario) -> str:
    """Return in words which messages of the scenarios have sizes that the fit never saw.

    "messages below 32 MiB: price extrapolated", for a figure or a table. Empty if all sizes were
    timed, and for one worker, which sends nothing.
    """
    for scenario in scenarios:
        refuse_fit(scenario, fit, "untimed_sizes")
    sizes = [_sent(each) for each in scenarios if each.n_workers > 1]
    return untimed(fit, np.concatenate(sizes)) if sizes else ""


def _sent(scenario: Scenario) -> np.ndarray:
    """Return the bytes of each message on the wire."""
    sizes = fuse(scenario.gradients, scenario.fusion)["nbytes"].to_numpy(float)
    cost = scenario.all_reduce
    return sizes / (cost.compression if isinstance(cost, Adjusted) else 1.0)


def _doubts(fit, counts: np.ndarray) -> list[str]:
    """Return in words what no draw of the fit covers, for each number of workers."""
    timed = fit.measurements["n_workers"].unique()
    free = ["" if n in timed else _not_determined(fit) for n in counts]
    nodes = [_other_links(fit, n) for n in counts]
    return ["; ".join(filter(None, words)) for words in zip(nodes, free, strict=True)]


def _not_determined(fit) -> str:
    """Return in words the prices per hop that a constant per message would explain as well."""
    free = fit.undetermined()
    names = [name for name in free if name not in fit.estimate.undetermined]
    return "; ".join(f"{name} not determined {free[name]}" for name in names)


def _other_links(fit, n_workers: float) -> str:
    """Return in words which links n_workers use that were not timed, for a cost of one link."""
    rows = fit.measurements
    if isinstance(fit.model, NodesCost) or "n_nodes" not in rows or rows["n_nodes"].isna().any():
        return ""
    each = rows["n_workers"].to_numpy(float) / rows["n_nodes"].to_numpy(float)
    across = (rows["n_nodes"] > 1).to_numpy()
    if across.all() and n_workers <= each.min():
        return f"within a node of {each.min():.6g} workers, but timed between nodes only"
    if not across.any() and n_workers > each.max():
        return f"timed within one node of {each.max():.6g} workers or more, not between nodes"
    return ""


@checked(threshold=_THRESHOLD)
def knee(scenario: Scenario, threshold: float = 0.5, n_workers=None) -> int:
    """Return the largest number of workers whose marginal gain is above the threshold.

        gain(n_i) = (n_i SF(n_i) - n_{i-1} SF(n_{i-1})) / (n_i - n_{i-1})

    is what each added worker trains, relative to one worker alone.

    threshold : a share, 0.5 for half of one worker alone
    n_workers : rising numbers to choose from; None for 1, 2, 4 ... 1,048,576

    Returns the first number if none pays. Warns if the last one still pays: the knee is then beyond
    it.
    """
    counts = _choices(n_workers)
    factors = sweep(scenario, n_workers=counts.tolist())["scaling_factor"].to_numpy()
    found = int(_knees(counts, factors[:, None], threshold)[0])
    if found == counts[-1]:
        warnings.warn(
            f"knee: {found} workers, the most in n_workers, still pay. Give larger n_workers",
            stacklevel=3,
        )
    return found


@checked(threshold=_THRESHOLD)
def knee_range(
    scenario: Scenario,
    fit,
    threshold: float = 0.5,
    n_workers=None,
    level: float = 0.95,
    n_draws: int = 1000,
    rng: np.random.Generator | None = None,
    compute_cv: float | None = None,
) -> pd.DataFrame:
    """Return KNEE, the knee with its range from the draws, one row.

    `level` is the share of the draws whose knees lie between low and high. The gains depend on
    other numbers of workers too, so `why` also names a price per hop that is not determined. Other
    arguments are those of knee and band.
    """
    a_level(level, "level")
    counts, tail = _choices(n_workers), 0.5 - level / 2
    found = Draws(scenario, fit, n_draws, rng, compute_cv)
    expected = np.array([[found.expected(n)] for n in counts])
    best = int(_knees(counts, expected, threshold)[0])
    drawn = _knees(counts, np.stack([found(n) for n in counts]), threshold)
    low, high = np.quantile(drawn, [tail, 1 - tail], method="inverted_cdf").astype(int).tolist()
    beyond = extrapolation(scenario, fit, best).iloc[0]
    free = _not_determined(fit)
    why = "; ".join(filter(None, [beyond["why"], free * (free not in beyond["why"])]))
    row = {"knee": best, "low": low, "high": high, "at_least": high == counts[-1]}
    return pd.DataFrame([row | {"extrapolated": beyond["extrapolated"], "why": why}])[list(KNEE)]


def _knees(counts: np.ndarray, factors: np.ndarray, threshold: float) -> np.ndarray:
    """Return the knee of each column of scaling factors, shape (numbers of workers, columns)."""
    trained = counts[:, None] * factors
    gains = np.diff(trained, axis=0) / np.diff(counts)[:, None]
    pays = np.vstack([np.ones((1, factors.shape[1]), bool), gains > threshold])
    return counts[len(counts) - 1 - pays[::-1].argmax(axis=0)]


def _counts(n_workers) -> np.ndarray:
    counts = np.atleast_1d(whole_workers(n_workers))
    ok, found = counts.ndim == 1 and counts.size, f"an array of shape {counts.shape}"
    require(ok, "n_workers", "one number or a flat list of numbers", found=found)
    return counts


def _choices(n_workers) -> np.ndarray:
    if n_workers is None:
        return 2 ** np.arange(int(np.log2(_UP_TO)) + 1)
    counts = np.atleast_1d(whole_workers(n_workers)).astype("int64")
    ok = counts.ndim == 1 and len(counts) > 1 and (np.diff(counts) > 0).all()
    require(ok, "n_workers", "two or more rising numbers", n_workers, "Write [1, 2, 4, 8]")
    return counts
