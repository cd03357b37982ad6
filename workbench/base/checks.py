"""What callers may pass. Every refusal reads `argument: expected X, got Y. Do Z.`

A check is a callable `check(value, name)` that raises ValueError. `checked` runs one for each
argument of a function or field of a dataclass; `require` and `refuse` do the rest in one line.

    @checked(n_workers=whole_workers, level=real("a share between 0 and 1", lambda v: 0 < v < 1))
    def band(scenario, n_workers, level=0.95): ...
"""

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable
from numbers import Integral, Real

import numpy as np

_MOST_WORKERS = 1e7  # more are taken for bytes in the wrong place
_UNSAID = object()


def checked(**checks: Callable):
    """Return a decorator that checks the named arguments of each call, defaults excepted.

    checks : argument or dataclass field -> check(value, name). Values are passed on unchanged.
        A dataclass is named in its messages: `Link alpha: expected ...`.
    """

    def wrap(target):
        is_class = isinstance(target, type)
        call = target.__init__ if is_class else target
        names = list(inspect.signature(call).parameters)
        if unknown := checks.keys() - set(names):
            raise TypeError(f"{target.__name__} has no argument {', '.join(sorted(unknown))}")
        prefix = f"{target.__name__} " if is_class else ""

        @functools.wraps(call)
        def inner(*args, **kwargs):
            for name, value in (*zip(names, args, strict=False), *kwargs.items()):
                if name in checks:
                    checks[name](value, prefix + name)
            return call(*args, **kwargs)

        if not is_class:
            return inner
        target.__init__ = inner
        return target

    return wrap


def require(ok, name: str, expected: str, got=_UNSAID, do: str = "", *, found: str = ""):
    """Refuse unless ok; see `refuse`."""
    if not ok:
        refuse(name, expected, got, do, found=found)


def refuse(name: str, expected: str, got=_UNSAID, do: str = "", *, found: str = ""):
    """Raise ValueError `name: expected X, got Y. Do Z.`

    got : the value that was passed, shown as `shown` shows it
    found : words in place of a value, such as "no row"
    do : what to do instead, without a full stop
    """
    y = found or ("" if got is _UNSAID else shown(got))
    text = f"{name}: expected {expected}{y and f', got {y}'}"
    raise ValueError(text + (f". {do}" if do else ""))


def real(expected: str, ok: Callable = lambda value: True, do: str = "") -> Callable:
    """Return a check for one finite real number, not a bool, for which ok(value) holds."""

    def check(value, name):
        plain = isinstance(value, Real) and not isinstance(value, bool) and abs(value) < np.inf
        require(plain and ok(value), name, expected, value, do)

    return check


def whole(least: int = 1, do: str = "") -> Callable:
    """Return a check for one whole number from `least` up; 2.0 is one, True is not."""
    return real(f"a whole number from {least} up", lambda v: v >= least and v == int(v), do)


def integer(least: int = 1) -> Callable:
    """Return a check for one integer from `least` up; 2.0 is refused."""

    def check(value, name):
        ok = isinstance(value, Integral) and not isinstance(value, bool) and value >= least
        require(ok, name, f"a whole number from {least} up", value)

    return check


def one_of(options: Iterable, do: str = "") -> Callable:
    """Return a check for one of the options, which may be texts, numbers or None."""
    options = list(options)
    expected = "one of " + ", ".join(map(shown, options))

    def check(value, name):
        same = (type(value) is type(each) and value == each for each in options)
        require(any(same), name, expected, value, do)

    return check


def instance(kind, expected: str, do: str = "") -> Callable:
    """Return a check for an instance of a class, a union or a tuple of classes."""
    return lambda value, name: require(isinstance(value, kind), name, expected, value, do)


def optional(check: Callable) -> Callable:
    """Return a check that passes None, and leaves all else to another check."""
    return lambda value, name: None if value is None else check(value, name)


def yes_or_no(value, name: str):
    """Raise ValueError unless value is True or False."""
    require(isinstance(value, bool | np.bool_), name, "True or False", value)


def whole_workers(n_workers, name: str = "n_workers") -> np.ndarray:
    """Return n_workers as floats, or raise ValueError unless all are whole and at least 1."""
    expected = "whole numbers from 1 up"
    n = numbers(n_workers, name, expected)
    if n.size and (n.min() < 1 or (n != np.floor(n)).any()):
        wrong = n[(n < 1) | (n != np.floor(n))]
        refuse(name, expected, wrong.flat[0])
    if n.size and n.max() > _MOST_WORKERS:
        warnings.warn(
            f"{name}: {n.max():.6g} is more than any cluster has; nbytes comes first, then "
            "n_workers",
            stacklevel=1,  # one place, so that hops and bytes moved warn once together
        )
    return n


def single(values: np.ndarray, name: str) -> float:
    """Return the one number of a checked array, or raise ValueError for several."""
    require(not np.ndim(values), name, "one number", found="an array")
    return float(values)


def one_worker_count(n_workers, name: str = "n_workers") -> int:
    """Return one number of workers, or raise ValueError."""
    return int(single(whole_workers(n_workers, name), name))


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
    if type(value).__name__ == "NAType":  # of pandas, which this module does without
        return "<NA>"
    return getattr(value, "__name__", type(value).__name__)


def above_0(values, name: str) -> np.ndarray:
    """Return the values as floats, or raise ValueError unless all are finite and above 0."""
    expected = "finite numbers above 0"
    found = numbers(values, name, expected)
    require(found.all(), name, expected, 0)
    return found


def call_of(example: str) -> Callable:
    """Return a check for a cost, a policy or a jitter: a callable, not a class and not a fit.

    example : how one is written, such as Ring(Link(alpha, beta))
    """

    def check(value, name):
        if isinstance(value, type):
            brackets = example[example.index("(") :]
            call = example if value.__name__ == "Link" else value.__name__ + brackets
            refuse(name, "an instance", value, f"Write {call}")
        do = "Pass fit.model" if hasattr(value, "model") else f"Write {example}"
        require(callable(value), name, "a callable", value, do)

    return check


a_cost = call_of("Ring(Link(alpha, beta))")
a_policy = call_of("DDPBuckets()")


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
        do = "Write it without quotes" if isinstance(odd[0], str) else ""
        refuse(name, expected, odd[0], do)
    wrong = numbers[~((numbers >= 0) & (numbers < np.inf))]
    if wrong.size:
        refuse(name, expected, wrong.flat[0])
    return numbers
