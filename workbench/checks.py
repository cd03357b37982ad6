"""Checks of what callers pass: each names the argument, what was expected, found and what to do."""

import warnings
from numbers import Integral, Real

import numpy as np

_WORKERS = 1e7  # more are taken for bytes in the wrong place


def whole_workers(n_workers, name: str = "n_workers") -> np.ndarray:
    """Return n_workers as floats, or raise ValueError unless all are whole and at least 1."""
    expected = "whole numbers from 1 up"
    n = numbers(n_workers, name, expected)
    if n.size and (n.min() < 1 or (n != np.floor(n)).any()):
        wrong = n[(n < 1) | (n != np.floor(n))]
        raise ValueError(f"{name}: expected {expected}, got {shown(wrong.flat[0])}")
    if n.size and n.max() > _WORKERS:
        warnings.warn(
            f"{name}: {n.max():.6g} is more than any cluster has; nbytes comes first, then "
            "n_workers",
            stacklevel=1,  # one place, so that hops and bytes moved warn once together
        )
    return n


def single(values: np.ndarray, what: str) -> float:
    """Return the one number of a checked array, or raise ValueError for several."""
    if values.ndim:
        raise ValueError(f"{what}: expected one number, got an array")
    return float(values)


def count(value, name: str, least: int) -> int:
    """Return a whole number of at least so many, or raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name}: expected a whole number from {least} up, got {shown(value)}")
    return int(value)


def shown(value) -> str:
    """Return a value as a message shows it: a number or a short text, else the name of its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, str):
        return repr(str(value)) if len(value) <= 40 else f"{value[:40]!r} and more"
    if value is None or isinstance(value, bool | np.bool_ | Integral):
        return str(value)
    if isinstance(value, Real):
        return f"{float(value):.6g}"
    return getattr(value, "__name__", type(value).__name__)


def one_number(value, what: str, advice: str):
    """Return a plain number as it is, or raise ValueError: what was expected, found, and advice."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{what}, got {shown(value)}; {advice}")
    return value


def above_0(values, name: str) -> np.ndarray:
    """Return the values as floats, or raise ValueError unless all are finite and above 0."""
    expected = "finite numbers above 0"
    found = numbers(values, name, expected)
    if (found == 0).any():
        raise ValueError(f"{name}: expected {expected}, got 0")
    return found


def check_callable(value, name: str, example: str):
    """Return a cost or a policy, or raise ValueError for a class, a fit, or what is not callable.

    `example` says how to write one, such as Ring(Link(alpha, beta)).
    """
    if isinstance(value, type):
        called = (
            example if value.__name__ == "Link" else value.__name__ + example[example.index("(") :]
        )
        raise ValueError(f"{name}: got {shown(value)}; write {called}")
    if not callable(value):
        advice = "pass fit.model" if hasattr(value, "model") else f"write {example}"
        raise ValueError(f"{name}: expected a callable, got {shown(value)}; {advice}")
    return value


def numbers(values, name: str, expected: str = "finite numbers from 0 up") -> np.ndarray:
    """Return the values as floats, or raise ValueError unless all are finite and at least 0."""
    try:
        # NumPy alone would read "8" and True as numbers, also beside numbers in a list
        array = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
        if array.dtype.kind in "mM":
            raise TypeError("dates and spans of time would pass for numbers of ns")
        each = [] if array.dtype.kind in "iuf" else array.ravel().tolist()
        types = {t for t in set(map(type, each)) if t is bool or not issubclass(t, Real)}
        odd = [v for v in each if type(v) in types] if types else []
        numbers = None if odd else np.asarray(array, dtype=float)
    except (TypeError, ValueError, OverflowError):
        odd = [values]
    if odd:
        advice = "; write it without quotes" if isinstance(odd[0], str) else ""
        raise ValueError(f"{name}: expected {expected}, got {shown(odd[0])}{advice}")
    wrong = numbers[~((numbers >= 0) & (numbers < np.inf))]
    if wrong.size:
        raise ValueError(f"{name}: expected {expected}, got {shown(wrong.flat[0])}")
    return numbers
