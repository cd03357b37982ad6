"""What a message costs: seconds as a function of its bytes and of the workers that take part.

Any callable `cost(nbytes, n_workers) -> seconds`, vectorised over both, is a cost; the classes here
are the common ones. They are built on the alpha-beta model of a link:

    cost = messages(n_workers) * alpha + moved(nbytes, n_workers) * beta

The pair (messages, moved) is also the design matrix of the fit, and for a ring moved / seconds is
the bus bandwidth of nccl-tests. A lone worker sends nothing, so every cost is 0 at n_workers = 1.
"""

from dataclasses import dataclass, replace

import numpy as np

from .checks import numbers, shown, whole_workers


@dataclass(frozen=True)
class Link:
    """A link between two workers: alpha in s a message hop, beta in s a byte (1/beta = bandwidth).

    Both are finite and at least 0; `Link(0, 0)` is a free link. Raises ValueError otherwise.
    """

    alpha: float
    beta: float

    def __post_init__(self):
        for name, unit in (("alpha", "s a message hop"), ("beta", "s a byte")):
            if numbers(getattr(self, name), f"Link {name} ({unit})").ndim:
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

    @property
    def parameters(self) -> dict[str, float]:
        """The fitted numbers: alpha in s a message hop, beta in s a byte moved."""
        return {"alpha": self.link.alpha, "beta": self.link.beta}

    def with_parameters(self, alpha: float, beta: float):
        """Return the same collective over another link."""
        return replace(self, link=Link(alpha, beta))

    def columns(self, nbytes, n_workers) -> dict[str, np.ndarray]:
        """Return what each parameter is multiplied by: cost = sum of parameter * column."""
        moved = self.moved(nbytes, n_workers)
        hops = np.broadcast_to(self.messages(n_workers), np.shape(moved))
        return {"alpha": hops, "beta": moved}


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
        return 2 * (n - 1) / n * numbers(nbytes, "nbytes")


class Affine(LinkCost):
    """A message at alpha + nbytes beta whatever the workers, as published per-cluster fits give it.

    Holds for the number of workers it was fitted at; a lone worker still sends nothing.
    """

    def messages(self, n_workers):
        """Return 1, and 0 for a lone worker."""
        return np.where(whole_workers(n_workers) > 1, 1.0, 0.0)[()]

    def moved(self, nbytes, n_workers):
        """Return the message's own bytes, and 0 for a lone worker."""
        return self.messages(n_workers) * numbers(nbytes, "nbytes")


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
    elapsed = numbers(seconds, "seconds")
    if (elapsed == 0).any():
        raise ValueError("seconds: expected times above 0 s, got 0; drop rows that took no time")
    return numbers(nbytes, "nbytes") / elapsed * _BUS_FACTORS[op](whole_workers(n_workers))
