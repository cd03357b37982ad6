"""What a message costs: seconds as a function of its bytes and of the workers that take part.

Any callable `cost(nbytes, n_workers) -> seconds`, vectorised over both, is a cost; the classes here
are the common ones. They are built on the alpha-beta model of a link:

    cost = messages(n_workers) * alpha + moved(nbytes, n_workers) * beta

The pair (messages, moved) is also the design matrix of the fit, and for a ring moved / seconds is
the bus bandwidth of nccl-tests. A lone worker sends nothing, so every cost is 0 at n_workers = 1.
"""

from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np


@dataclass(frozen=True)
class Link:
    """A link between two workers: alpha in s a message hop, beta in s a byte (1/beta = bandwidth).

    Both are finite and at least 0; `Link(0, 0)` is a free link. Raises ValueError otherwise.
    """

    alpha: float
    beta: float

    def __post_init__(self):
        for name, unit in (("alpha", "s a message hop"), ("beta", "s a byte")):
            if _numbers(getattr(self, name), f"Link {name} ({unit})").ndim:
                raise ValueError(f"Link {name} ({unit}): expected one number, got an array")


@dataclass(frozen=True)
class LinkCost:
    """A collective over one link; a kind says how many hops it makes and what it moves.

    Raises ValueError for anything but a Link.
    """

    link: Link

    def __post_init__(self):
        if isinstance(self.link, Link):
            return
        kind, has_model = type(self).__name__, hasattr(self.link, "model")
        advice = (
            "pass fit.model.link, or use fit.model as it is"
            if has_model
            else (f"write {kind}(Link(alpha, beta)), alpha in s a message hop, beta in s a byte")
        )
        raise ValueError(f"{kind}: expected a Link, got {shown(self.link)}; {advice}")

    def __call__(self, nbytes, n_workers):
        """Return the seconds of a message, messages * alpha + moved * beta, broadcast over both."""
        return (
            self.messages(n_workers) * self.link.alpha
            + self.moved(nbytes, n_workers) * self.link.beta
        )


class Ring(LinkCost):
    """Ring all-reduce: 2(n-1) hops, each worker sends 2(n-1)/n bytes for every byte of the message.

    cost = 2(n-1) alpha + 2(n-1)/n nbytes beta. Source: the ring of MPICH's
    src/mpi/coll/allreduce (Thakur et al., 2005) without its reduction term.
    """

    def messages(self, n_workers):
        """Return the hops one after another, 2(n-1)."""
        return 2 * (whole_workers(n_workers) - 1)

    def moved(self, nbytes, n_workers):
        """Return the bytes each worker sends, 2(n-1)/n nbytes."""
        n = whole_workers(n_workers)
        return 2 * (n - 1) / n * _numbers(nbytes, "nbytes")


class Affine(LinkCost):
    """A message at alpha + nbytes beta whatever the workers, as published per-cluster fits give it.

    Holds for the number of workers it was fitted at; a lone worker still sends nothing.
    """

    def messages(self, n_workers):
        """Return 1, and 0 for a lone worker."""
        return np.where(whole_workers(n_workers) > 1, 1.0, 0.0)[()]

    def moved(self, nbytes, n_workers):
        """Return the message's own bytes, and 0 for a lone worker."""
        return self.messages(n_workers) * _numbers(nbytes, "nbytes")


# nccl-tests, doc/PERFORMANCE.md: bus bandwidth = algorithm bandwidth * factor(n)
_BUS_FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": np.ones_like,
    "reduce": np.ones_like,
    "send_recv": np.ones_like,
}


def bus_bandwidth(nbytes, seconds, n_workers, op: str = "all_reduce"):
    """Return the bus bandwidth in bytes/s: nbytes / seconds times the nccl-tests factor of the op.

    The factor is 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter, all_gather, all_to_all,
    gather and scatter, and 1 for broadcast, reduce and send_recv (nccl-tests doc/PERFORMANCE.md).
    nbytes is S there: the full buffer, the gathered or unscattered size.

    Raises ValueError for an unknown op, negative bytes, or a time that is not positive.
    """
    if op not in _BUS_FACTORS:
        raise ValueError(f"op: expected one of {', '.join(_BUS_FACTORS)}; got {op!r}")
    elapsed = _numbers(seconds, "seconds")
    if (elapsed == 0).any():
        raise ValueError("seconds: expected times above 0 s, got 0; drop rows that took no time")
    return _numbers(nbytes, "nbytes") / elapsed * _BUS_FACTORS[op](whole_workers(n_workers))


def whole_workers(n_workers) -> np.ndarray:
    """Return n_workers as floats, or raise ValueError unless all are whole and at least 1."""
    expected = "whole numbers from 1 up"
    n = _numbers(n_workers, "n_workers", expected)
    wrong = n[(n < 1) | (n != np.floor(n))]
    if wrong.size:
        raise ValueError(f"n_workers: expected {expected}, got {shown(wrong.flat[0])}")
    return n


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


def check_callable(value, name: str, example: str):
    """Return a cost or a policy, or raise ValueError for a class, a fit, or what is not callable.

    `example` says how to write one, such as Ring(Link(alpha, beta)).
    """
    if isinstance(value, type):
        called = example if value is Link else value.__name__ + example[example.index("(") :]
        raise ValueError(f"{name}: got {shown(value)}; write {called}")
    if not callable(value):
        advice = "pass fit.model" if hasattr(value, "model") else f"write {example}"
        raise ValueError(f"{name}: expected a callable, got {shown(value)}; {advice}")
    return value


def _numbers(values, name: str, expected: str = "finite numbers from 0 up") -> np.ndarray:
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
