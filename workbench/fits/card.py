"""The fit card: what a fit found and how reliable it is, in readable units."""

import numpy as np
import pandas as pd

from ..base.checks import require
from ..base.units import GB, US, format_bytes
from ..costs.words import UNDETERMINED, number, unit_of

_RANGES = {"nbytes": ("sizes", format_bytes), "n_workers": ("workers", str)}


def fit_card(fit, held_out=None) -> pd.DataFrame:
    """Return the fit on a card: index quantity, text columns value, unit, low, high.

    low and high bound the 95 % interval of a parameter and are blank if there is none. A parameter
    that the rows do not determine has the value "not determined". held_out : relative errors at
    rows left out of the fit, as shares; adds a line of their median, mean and worst
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
    for column in fit.inputs:
        title, text = _RANGES.get(column, (column, number))
        low, high = text(rows[column].min()), text(rows[column].max())
        lines[title] = (low if low == high else f"{low} to {high}", "")
    padded = [(*line, "", "")[:4] for line in lines.values()]
    index = pd.Index(lines, name="quantity")
    return pd.DataFrame(padded, index=index, columns=["value", "unit", "low", "high"])


def _errors(held_out) -> np.ndarray:
    """Return the sizes of relative errors, or raise ValueError if there are none."""
    try:
        out = np.abs(np.asarray(held_out, float)).ravel()
    except (TypeError, ValueError):
        out = np.array([])
    ok, expected = len(out) and np.isfinite(out).all(), "one or more finite relative errors"
    require(ok, "held_out", expected, held_out, "Pass held_out(fit)['relative_error']")
    return out


def _parameter_lines(fit) -> dict:
    lines, doubtful = {}, fit.undetermined()
    for name, value in fit.parameters().items():
        scale, unit = unit_of(name, fit.inputs[0])
        if name in doubtful:
            lines[name] = (UNDETERMINED, doubtful[name])
            continue
        low, high = fit.interval(name)
        unit += ", fixed at 0" * (name in fit.estimate.held)
        unit += ", a step between timed sizes" * (name not in fit.estimate.values)
        lines[name] = (number(value / scale), unit, number(low / scale), number(high / scale))
    for name in [name for name in lines if name.startswith("beta")]:
        lines[f"1/{name}"] = lines[name] if name in doubtful else _bandwidth(fit, name)
    n_workers = fit.measurements["n_workers"].unique() if "n_workers" in fit.inputs else ()
    if len(n_workers) == 1:
        at = fit.predict(fit.measurements["nbytes"].min(), n_workers[0]).iloc[0]
        text = [number(at[name] / US) for name in ("seconds", "low", "high")]
        lines["smallest message"] = (text[0], "us", *text[1:])
    return lines


def _bandwidth(fit, name: str) -> tuple:
    """Return 1/beta in GB/s; its bounds are those of beta swapped."""
    beta = fit.parameters()[name]
    if beta == 0:
        return "unbounded", "GB/s moved"
    low, high = fit.interval(name)
    fastest = "unbounded" if low <= 0 else number(1 / low / GB)
    return number(1 / beta / GB), "GB/s moved", number(1 / high / GB), fastest
