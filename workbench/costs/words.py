"""How the price of a message is printed: readable units, and a cost on one line."""

import numpy as np

from ..base.units import GB, MS, US

NS = 1e-9
UNDETERMINED = "not determined"
# A parameter's name begins with one of these -> (the unit's size in SI, its name).
UNITS = {
    "alpha": (US, "us per hop"),
    "beta": (NS, "ns per byte moved"),
    "break": (1024.0, "KiB per hop"),
    "floor": (US, "us per message"),
    "fixed_s": (MS, "ms"),
    "per_sample_s": (MS, "ms per {x}"),
}


def unit_of(name: str, x: str) -> tuple[float, str]:
    """Return the unit a parameter is shown in: its size in SI, and its name."""
    scale, words = next(unit for key, unit in UNITS.items() if name.startswith(key))
    return scale, words.format(x=x.rstrip("s") if x != "batch" else "sample")


def prices(values: dict[str, float], x: str, free=()) -> str:
    """Return parameters as one line of text; the beta of a single link is shown as its bandwidth.

    free : names of those that are not determined
    """
    texts = {}
    for name, value in values.items():
        scale, unit = unit_of(name, x)
        texts[name] = UNDETERMINED if name in free else f"{number(value / scale)} {unit}"
    if list(values) == ["alpha", "beta"] and "beta" not in free:
        beta, _ = values["beta"], texts.pop("beta")
        texts["bandwidth"] = f"{number(1 / beta / GB)} GB/s moved" if beta else "unbounded"
    return ", ".join(f"{name} {text}" for name, text in texts.items())


def number(value: float) -> str:
    """Return a number as a card shows it: four digits, blank if it is not finite."""
    return f"{value:.4g}" if np.isfinite(value) else ""
