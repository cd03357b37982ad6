"""The fit card: what a fit found and how far to trust it, in the units people read."""

import numpy as np
import pandas as pd

from ..base.checks import shown
from ..base.units import GB, US, format_bytes
from ..costs.words import UNDETERMINED, number, unit_of


def fit_card(fit, held_out=None) -> pd.DataFrame:
    """Return the fit on a card: index quantity, text columns value, unit, low, high.

    low and high bound the 95 % interval of a parameter and are blank where there is none. A
    parameter that the rows leave free says "not determined". held_out are the relative errors at
    rows left out of the fit, in shares: a line of their median, mean and worst is added.
    """
    rows, errors = fit.measurements, 100 * np.abs(fit.relative_errors())
    lines = _parameter_lines(fit) | {
        "R2": (f"{fit.r2():.6f}".replace("nan", "undefined"), ""),
        "mean absolute relative error": (f"{errors.mean():.3g}", "%"),
        "worst relative error": (f"{errors.max():.3g}", "%"),
    }
    if held_out is not None:
        out = 100 * _errors(held_out)
        text = f"median {np.median(out):.3g}, mean {out.mean():.3g}, worst {out.max():.3g}"
        lines["held-out relative error"] = (text, "%")
    lines["points"] = (str(len(rows)), f"and {len(fit.set_aside)} set aside")
    for why, count in fit.set_aside["why"].str.split(":").str[0].value_counts().items():
        lines[f"set aside: {why}"] = (str(count), "points")
    lines |= _range_lines(fit)
    padded = [(*line, "", "")[:4] for line in lines.values()]
    index = pd.Index(lines, name="quantity")
    return pd.DataFrame(padded, index=index, columns=["value", "unit", "low", "high"])


def _errors(held_out) -> np.ndarray:
    """Return the sizes of relative errors, or raise ValueError for what is none."""
    try:
        out = np.abs(np.asarray(held_out, float)).ravel()
    except (TypeError, ValueError):
        out = np.array([])
    if not (len(out) and np.isfinite(out).all()):
        raise ValueError(
            f"held_out: expected one or more finite relative errors, got {shown(held_out)}; "
            "pass held_out(fit)['relative_error']"
        )
    return out


def _parameter_lines(fit) -> dict:
    lines, doubtful = {}, fit.undetermined()
    for name, value in fit.parameters().items():
        scale, unit = unit_of(name, fit.inputs[0])
        if name in doubtful:
            lines[name] = (UNDETERMINED, doubtful[name])
            continue
        low, high = fit.interval(name)
        unit += ", held at 0" * (name in fit.estimate.held)
        unit += ", a step between sizes timed" * (name not in fit.estimate.values)
        lines[name] = (number(value / scale), unit, number(low / scale), number(high / scale))
    for name in [name for name in lines if name.startswith("beta")]:
        lines[f"1/{name}"] = (
            lines[name] if name in doubtful else _bandwidth(fit.parameters()[name], fit, name)
        )
    n_workers = fit.measurements["n_workers"].unique() if "n_workers" in fit.inputs else ()
    if len(n_workers) == 1:
        at = fit.predict(fit.measurements["nbytes"].min(), n_workers[0]).iloc[0]
        text = (number(at[name] / US) for name in ("low", "high"))
        lines["smallest message"] = (number(at["seconds"] / US), "us", *text)
    return lines


def _bandwidth(beta: float, fit, name: str) -> tuple:
    """Return 1/beta in GB/s; its bounds are those of beta swapped, a dear byte is a slow link."""
    if beta == 0:
        return "unbounded", "GB/s moved"
    low, high = fit.interval(name)
    fastest = "unbounded" if low <= 0 else number(1 / low / GB)
    return number(1 / beta / GB), "GB/s moved", number(1 / high / GB), fastest


def _range_lines(fit) -> dict:
    rows, words = (
        fit.measurements,
        {"nbytes": ("sizes", format_bytes), "n_workers": ("workers", str)},
    )
    lines = {}
    for column in fit.inputs:
        title, text = words.get(column, (column, number))
        low, high = text(rows[column].min()), text(rows[column].max())
        lines[title] = (low if low == high else f"{low} to {high}", "")
    return lines
