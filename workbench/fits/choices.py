"""Which cost fits best, judged on timings it has not seen."""

import warnings

import numpy as np
import pandas as pd

from ..base.checks import checked, integer, one_of, optional, refuse, require
from ..base.progress import bar
from ..costs import (
    Affine,
    FlatRing,
    HalvingDoubling,
    Hierarchical,
    Interpolated,
    NodesCost,
    Piecewise,
    Ring,
    Tree,
)
from .estimates import weighed
from .regimes import NO_RESIDUAL
from .regression import Fit, fit_collective

LEAVE = ("nbytes", "n_workers", "large")
LARGE = 8  # sizes above an eighth of the largest are left out as large
FOLDS = 10  # choose leaves out sizes, or numbers of workers, in at most this many folds
WITHIN = 2.0  # standard errors of a difference within which two errors count as equal
FAR_OFF = 0.2  # a mean error above which even the winner should not be used for a forecast
STRONG = 10.0  # a BIC lower by this is very strong evidence (Kass, Raftery 1995)


def _a_refittable(fit, name: str):
    ok = isinstance(fit, Fit) and fit.again is not None
    require(ok, name, "a fit from fit_collective", fit)


@checked(fit=_a_refittable, folds=optional(integer(2)))
def held_out(fit: Fit, leave: str = "nbytes", folds: int | None = None) -> pd.DataFrame:
    """Return the errors at rows that the fit has not seen: refitted without them, fold by fold.

    Every refit repeats the whole fit: outliers, breaks, floor and node boundary.

    Parameters
    ----------
    fit : from fit_collective, fit_all_reduce or fit_batch_time
    leave : "nbytes" or "n_workers": each size, or number of workers, is left out in turn; "large":
        all sizes above an eighth of the largest are, so up to three doublings beyond the others
    folds : most folds; more values than this share folds in turn; None: one fold per value

    Columns n_workers, nbytes, seconds (s), predicted_s (s), relative_error (predicted / measured -
    1) and fold (what was left out, as text), one row per measurement. Rows set aside as outliers
    are predicted too; those that no fit uses, such as those of one worker, are not.

    Raises ValueError if there is nothing to leave out, or if the other rows cannot be fitted or do
    not determine what all the rows left out depend on.
    """
    strays = fit.set_aside[fit.set_aside["why"].str.startswith("outlier")].drop(columns="why")
    rows = pd.concat([fit.measurements, strays])
    rows = rows.sort_values([*fit.inputs[::-1]], ignore_index=True)
    fold = _folds(rows, fit.inputs, leave, folds)
    names = [name for name in pd.unique(fold) if name]
    parts = [_left_out(fit, rows, fold == name, name) for name in bar(names, "refits")]
    return pd.concat(parts).sort_index(ignore_index=True)


def _folds(rows: pd.DataFrame, inputs: tuple[str, ...], leave: str, most: int | None) -> np.ndarray:
    """Return the fold of each row, empty for a row that is never left out."""
    one_of((*inputs, "large"))(leave, "leave")
    if leave == "large":
        sizes = rows[inputs[0]].to_numpy(float)
        limit = sizes.max() / LARGE
        expected = f"{inputs[0]} up to {limit:.6g}, an eighth of the largest, to fit"
        require(sizes.min() <= limit, "leave", expected, found="none", do="Time smaller ones")
        return np.where(sizes > limit, f"{inputs[0]} above {limit:.6g}", "")
    values, place = np.unique(rows[leave].to_numpy(float), return_inverse=True)
    expected = f"two or more values of {leave!r} to leave one out"
    require(len(values) > 1, "leave", expected, found=f"{values[0]:.6g} in all rows")
    if most is None or len(values) <= most:
        return np.array([f"{leave} {value:.15g}" for value in values], dtype=object)[place]
    return np.array([f"{leave} {k} of {most}" for k in range(1, most + 1)], object)[place % most]


def _left_out(fit: Fit, rows: pd.DataFrame, out: np.ndarray, name: str) -> pd.DataFrame:
    try:
        with warnings.catch_warnings():  # about prices fixed at 0; the whole fit has warned
            warnings.simplefilter("ignore", UserWarning)
            trained = fit.again(rows[~out])
    except ValueError as error:
        raise ValueError(f"leave: without {name}: {error}") from error
    seen = rows.loc[out, [*fit.inputs[::-1], "seconds"]]
    predicted = trained.predict(*(seen[column].to_numpy(float) for column in fit.inputs))
    if np.isinf(predicted["extrapolated"]).all():
        refuse("leave", f"determined parameters without {name}", found=predicted["why"][0])
    seconds = predicted["seconds"].to_numpy()
    error = seconds / seen["seconds"].to_numpy(float) - 1
    return seen.assign(predicted_s=seconds, relative_error=error, fold=name)


def candidates(measurements, op: str = "all_reduce", **settings) -> dict[str, Fit | str]:
    """Return label -> fit of every kind of cost that may explain the timings.

    If the rows cannot determine a kind, or distinguish it from a simpler one, the value is the
    reason as text; `choose` lists it last. settings are those of fit_collective.
    """
    kinds = {"Ring": Ring}
    if op == "all_reduce":
        kinds |= {"HalvingDoubling": HalvingDoubling, "Tree": Tree}
    kinds |= {
        f"Piecewise {name}": Piecewise if name == "Ring" else Piecewise(kind, breaks=None)
        for name, kind in kinds.items()
    }
    if op == "all_reduce":
        kinds |= {"FlatRing": FlatRing, "Hierarchical": Hierarchical}
    kinds |= {"Affine": Affine, "Interpolated": Interpolated}
    return {k: _candidate(measurements, op, settings, k, kind) for k, kind in kinds.items()}


def _candidate(measurements, op: str, settings: dict, label: str, kind) -> Fit | str:
    try:
        with warnings.catch_warnings():  # choose lists the kinds that do not fit
            warnings.filterwarnings("ignore", message=".*fixed at 0")
            fit = fit_collective(measurements, op, kind, **settings)
    except ValueError as error:
        if label == "Ring":  # what stops the simplest kind is wrong with the table
            raise
        return str(error)
    if isinstance(fit.model, NodesCost) and fit.estimate.undetermined:  # no more than a Ring
        return f"not determined: {', '.join(fit.estimate.undetermined)}"
    n_workers = fit.measurements["n_workers"].unique()
    if len(n_workers) == 1 and label not in ("Ring", "Piecewise Ring", "Interpolated"):
        return f"with {n_workers[0]} workers only, the same as that of Ring"
    if isinstance(fit.model, Piecewise) and not (fit.model.breaks or fit.model.floor_s):
        return f"neither break nor floor found, so the same as {label.removeprefix('Piecewise ')}"
    return fit


@checked(by=one_of(LEAVE))
def choose(fits, by: str = "nbytes") -> pd.DataFrame:
    """Return the fits ranked, the winner first, by their errors on timings they have not seen.

    Fits are alike if their mean errors differ from the best by at most two standard errors of the
    difference, fold by fold; with few folds that may be a large difference, which why then states.
    Among these, the winner has the fewest parameters of those whose AICc or BIC, whichever is
    larger, is less than 10 above the least. Then follow the others that are alike; those that are
    alike with about as many numbers as rows, such as a curve through the timings; the worse, by
    their error; and those without such an error, or without a fit.

    Parameters
    ----------
    fits : {label: Fit}, such as from `candidates`, or a list; all fitted to the same rows
    by : which errors decide: "nbytes" (sizes left out), "n_workers" (for a forecast at other
        numbers of workers) or "large" (for messages larger than those timed); see `held_out`

    Index fit, the label. Columns n_parameters (breaks, floor, a node boundary that was searched and
    the spread included), aicc and bic (of Gaussian errors with the fit's own weights; lower is
    better), and for each of nbytes, n_workers and large the mean and the median absolute relative
    error of the rows left out, nbytes_mean, nbytes_median, ...; sizes and numbers of workers are
    left out in at most 10 folds. why explains the rank and values that are <NA>.

        -2 log L = n log(2 pi s2) + n - 2 sum log w,  s2 = mean of (w (seconds - fitted))^2

    w is 1/fitted, 1/seconds for measured weights, 1 for absolute ones; its sum makes fits of
    different weights comparable.
    Source: Burnham and Anderson 2002 (AICc); Breiman et al. 1984 (errors within standard errors).

    Raises ValueError for fits of different rows, for no fit, or if no fit has the error `by`.
    """
    given = _labelled(fits)
    made = {label: fit for label, fit in given.items() if not isinstance(fit, str)}
    _refuse_rows(given, made)
    steps = bar(made.items(), "fits", len(made))
    errors = {label: {leave: _errors(fit, leave) for leave in LEAVE} for label, fit in steps}
    found = next((f"{label}: {each[by]}" for label, each in errors.items()), "")
    known = not all(isinstance(each[by], str) for each in errors.values())
    require(known, "by", f"a fit with an error for {by!r}", found=found)
    lines = {label: _line(fit, errors[label]) for label, fit in made.items()}
    ranked = _ranked(lines, {label: each[by] for label, each in errors.items()}, by)
    none = {label: {"why": f"no fit: {why}"} for label, why in given.items() if label not in made}
    table = pd.DataFrame.from_dict(ranked | none, orient="index").rename_axis("fit")
    types = {"n_parameters": "Int64", "why": "str"}
    return table.astype({name: types.get(name, "Float64") for name in table})


def _labelled(fits) -> dict[str, Fit | str]:
    if not isinstance(fits, dict):
        do = "Write choose(candidates(measurements))"
        require(isinstance(fits, list | tuple), "fits", "{label: fit} or a list of fits", fits, do)
        for k, fit in enumerate(fits):
            _a_refittable(fit, f"fits {k}")
        labels = [type(fit.model).__name__ for fit in fits]
        again = [labels[:k].count(label) for k, label in enumerate(labels)]
        labels = [f"{a} {k + 1}" if k else a for a, k in zip(labels, again, strict=True)]
        fits = dict(zip(labels, fits, strict=True))
    for label, fit in fits.items():
        if not isinstance(fit, str):
            _a_refittable(fit, f"fits {label}")
    return fits


def _refuse_rows(given: dict, made: dict[str, Fit]):
    """Raise ValueError for no fit, fits of a batch, or fits of different rows."""
    reasons = "; ".join(f"{label}: {why}" for label, why in given.items()) or "none"
    require(made, "fits", "one or more to choose among", found=reasons)
    (first, one), *_ = made.items()
    for label, fit in made.items():
        of_collectives = fit.inputs == ("nbytes", "n_workers")
        require(of_collectives, "fits", "fits of collectives", found=f"{label} of {fit.inputs}")
        if not np.array_equal(_rows(one), _rows(fit)):
            rows = [len(each.measurements) for each in (one, fit)]
            found = f"{first} of {rows[0]} and {label} of {rows[1]} different rows"
            do = "Fit both to the same table with the same min_bytes and outliers"
            refuse("fits", "fits of the same rows", found=found, do=do)


def _rows(fit: Fit) -> np.ndarray:
    rows = fit.measurements[["n_workers", "nbytes", "seconds"]].to_numpy(float)
    return rows[np.lexsort(rows.T)]


def _errors(fit: Fit, leave: str) -> pd.DataFrame | str:
    """Return fold and absolute error of the rows left out, or the reason why there are none."""
    try:
        table = held_out(fit, leave, None if leave == "large" else FOLDS)
    except ValueError as error:
        return str(error).removeprefix("leave: ")
    return table[["fold"]].assign(error=table["relative_error"].abs())


def _line(fit: Fit, errors: dict) -> dict:
    """Return the numbers of a fit and, as why, notes about them."""
    line = dict(zip(("n_parameters", "aicc", "bic"), _criteria(fit), strict=True))
    notes = []
    for leave, table in errors.items():
        missing = isinstance(table, str)
        line[f"{leave}_mean"] = pd.NA if missing else table["error"].mean()
        line[f"{leave}_median"] = pd.NA if missing else table["error"].median()
        if missing:
            notes.append(f"no {leave} error: {table}")
    if pd.isna(line["bic"]):
        notes.append("no BIC: the curve joins the timings, so it has no residuals")
    elif pd.isna(line["aicc"]):
        notes.append("no AICc: about as many parameters as rows")
    if fit.estimate.held:
        notes.append(f"fixed at 0: {', '.join(fit.estimate.held)}")
    return line | {"why": "; ".join(notes)}


def _criteria(fit: Fit) -> tuple:
    """Return the number of parameters, AICc and BIC."""
    rows, n = fit.measurements, len(fit.measurements)
    _, seconds, fitted, w = weighed(fit)
    if isinstance(fit.model, Interpolated):
        return len(rows[["n_workers", "nbytes"]].drop_duplicates()), pd.NA, pd.NA
    searched = isinstance(fit.model, NodesCost) and rows["n_nodes"].isna().any()
    k = len(fit.parameters()) - len(fit.estimate.unseen) + 1 + searched
    least = NO_RESIDUAL * np.mean((w * seconds) ** 2)
    variance = max(np.mean((w * (seconds - fitted)) ** 2), least)
    deviance = n * np.log(2 * np.pi * variance) + n - 2 * np.log(w).sum()
    aicc = deviance + 2 * k + 2 * k * (k + 1) / (n - k - 1) if n > k + 1 else pd.NA
    return k, aicc, deviance + k * np.log(n)


def _ranked(lines: dict, errors: dict, by: str) -> dict:
    """Return the lines in order, each with the reason for its rank as why."""
    known = {label: table for label, table in errors.items() if not isinstance(table, str)}
    mean = {label: table["error"].mean() for label, table in known.items()}
    best = min(mean, key=mean.get)
    gap = {label: _gap(known[label], known[best]) for label in known}
    alike = [label for label in known if gap[label][0] <= WITHIN * gap[label][1]]
    priced = {
        label: round(max(lines[label]["aicc"], lines[label]["bic"]), 6)
        for label in alike
        if pd.notna(lines[label]["aicc"])
    }
    near = [label for label in priced if priced[label] < min(priced.values()) + STRONG]
    fewest = {label: (lines[label]["n_parameters"], priced[label]) for label in near}
    winner = min(near, key=fewest.get, default=best)
    order = [winner, *sorted(priced, key=priced.get), *sorted(alike, key=mean.get)]
    order = list(dict.fromkeys([*order, *sorted(known, key=mean.get), *lines]))
    left = {"nbytes": "sizes", "n_workers": "numbers of workers", "large": "large sizes"}[by]
    few, ranked = _few_folds(known[winner], [gap[label][0] for label in alike], mean[winner]), {}
    for label in order:
        text = f"not ranked by {by}"
        if label in known:
            place = _place(label, winner, best, alike, gap, priced, few)
            if label == winner and mean[label] > FAR_OFF:
                place += "; even so too large for a forecast"
            text = f"{100 * mean[label]:.3g} % error at {left} left out{place}"
        ranked[label] = lines[label] | {"why": "; ".join(filter(None, [text, lines[label]["why"]]))}
    return ranked


def _few_folds(table: pd.DataFrame, gaps: list[float], error: float) -> str:
    """Return the number of folds as text if errors that differ by half or more count as alike."""
    if max(gaps) < error / 2:
        return ""
    folds = table["fold"].nunique()
    return f"{folds} folds" if folds > 1 else f"{len(table)} rows"


def _place(label, winner, best, alike, gap, priced, few: str) -> str:
    """Return the reason for the rank of a fit, to follow its error."""
    worse, spread = (f"{100 * value:.2g}" for value in gap[label])
    if label not in alike:
        return f", {worse} +- {spread} more than {best}"
    like = f": {few} cannot separate it from {winner}" if few else f": like {winner}"
    if label != winner and label in priced:
        return f"{like}, with an AICc or BIC that differs by {priced[label] - priced[winner]:+.3g}"
    if label != winner:
        return f"{like}, which needs fewer numbers"
    more = f", {worse} +- {spread} more than {best}{'' if few else ': alike'}"
    place = ", the least" if label == best else more
    if len(alike) == 1:
        return f"{place} beyond chance"
    alike_in = f"that {few} cannot separate" if few else "that are alike"
    return f"{place}; the simplest by AICc and BIC of {len(alike)} {alike_in}"


def _gap(table: pd.DataFrame, best: pd.DataFrame) -> tuple[float, float]:
    """Return by how much a fit's errors exceed the best's, and the standard error of that.

    Errors within a fold are correlated, so folds are the sample, or rows if there is one fold.
    """
    difference = table["error"] - best["error"]
    if table["fold"].nunique() > 1:
        difference = difference.groupby(table["fold"]).mean()
    spread = difference.std() / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
    return float(difference.mean()), float(spread)
