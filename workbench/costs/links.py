"""What a message costs: seconds as a function of its bytes and of the workers that take part.

Any callable `cost(nbytes, n_workers) -> seconds`, vectorised over both, is a cost; the classes here
are the common ones. They are built on the alpha-beta model of a link:

    cost = messages(n_workers) * alpha + moved(nbytes, n_workers) * beta

messages counts the hops that follow one another; moved is what the busiest worker sends, in pieces
so small that hops overlap. The pair is also the design matrix of the fit, and for a ring moved /
seconds is the bus bandwidth of nccl-tests. A lone worker sends nothing: every cost is 0 there.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pandas as pd

from ..base.checks import numbers, shown, single, whole_workers
from ..base.tables import check


class Cost(Protocol):
    """What a message costs: any callable cost(nbytes, n_workers) -> seconds."""

    def __call__(self, nbytes, n_workers):
        """Return the seconds of a message of nbytes among n_workers, broadcast over both."""


@dataclass(frozen=True)
class Link:
    """A link between two workers: alpha in s a message hop, beta in s a byte (1/beta = bandwidth).

    Both are finite and at least 0; `Link(0, 0)` is a free link. Raises ValueError otherwise.
    """

    alpha: float
    beta: float

    def __post_init__(self):
        for name, unit in (("alpha", "s a message hop"), ("beta", "s a byte")):
            what = f"Link {name} ({unit})"
            single(numbers(getattr(self, name), what), what)


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

    def with_parameters(self, **values: float):
        """Return the same collective over a link with other numbers; those not named stay."""
        return replace(self, link=Link(**_renewed(self, values)))

    def columns(self, nbytes, n_workers) -> dict[str, np.ndarray]:
        """Return what each parameter is multiplied by: cost = sum of parameter * column."""
        moved = self.moved(nbytes, n_workers)
        hops = np.broadcast_to(self.messages(n_workers), np.shape(moved))
        return {"alpha": hops, "beta": moved}


def _renewed(cost, values: dict[str, float]) -> dict[str, float]:
    """Return the parameters of a cost with some replaced, or raise ValueError for another name."""
    known = cost.parameters
    if unknown := [name for name in values if name not in known]:
        kind, names = type(cost).__name__, ", ".join(known)
        raise ValueError(f"{kind}: parameters: expected some of {names}; got {unknown[0]!r}")
    return known | values


def _shared(n):
    return (n - 1) / n


def _whole(n):
    return np.where(n > 1, 1.0, 0.0)


# op -> (hops one after another, bytes the busiest worker sends a byte of the buffer), of n workers.
# The latter are the factors of nccl-tests, doc/PERFORMANCE.md.
_RING = {
    "all_reduce": (lambda n: 2 * (n - 1), lambda n: 2 * _shared(n)),
    "reduce_scatter": (lambda n: n - 1, _shared),
    "all_gather": (lambda n: n - 1, _shared),
    "all_to_all": (lambda n: n - 1, _shared),
    "gather": (lambda n: n - 1, _shared),
    "scatter": (lambda n: n - 1, _shared),
    "broadcast": (lambda n: n - 1, _whole),
    "reduce": (lambda n: n - 1, _whole),
    "send_recv": (_whole, _whole),
}


@dataclass(frozen=True)
class Ring(LinkCost):
    """Ring all-reduce: 2(n-1) hops, each worker sends 2(n-1)/n bytes for every byte of the message.

    cost = 2(n-1) alpha + 2(n-1)/n nbytes beta. Source: the ring of MPICH's
    src/mpi/coll/allreduce (Thakur et al., 2005) without its reduction term.

    op : another collective of nccl-tests on the same ring. reduce_scatter, all_gather, all_to_all,
        gather and scatter make n-1 hops and move (n-1)/n; broadcast and reduce are a chain of n-1
        hops moving the whole; send_recv is one hop. nbytes is the full buffer, as bus_bandwidth.

    Raises ValueError for an unknown op.
    """

    op: str = "all_reduce"

    def __post_init__(self):
        super().__post_init__()
        _refuse_op(self.op)

    def messages(self, n_workers):
        """Return the hops one after another, 2(n-1) for an all-reduce."""
        hops, _ = _RING[self.op]
        return hops(whole_workers(n_workers))[()]

    def moved(self, nbytes, n_workers):
        """Return the bytes each worker sends, 2(n-1)/n nbytes for an all-reduce."""
        _, factor = _RING[self.op]
        return factor(whole_workers(n_workers)) * numbers(nbytes, "nbytes")


class HalvingDoubling(LinkCost):
    """Recursive halving and doubling (Rabenseifner's all-reduce), for any number of workers.

    With c the largest power of two up to n, c workers make 2 lg c hops and move 2(c-1)/c nbytes.
    Where n > c, the n - c others first hand their whole message to a partner and at the end
    take the whole result: 2 hops and 2 nbytes more.

        cost = (2 lg c + 2[n > c]) alpha + (2(c-1)/c + 2[n > c]) nbytes beta

    Source: MPICH's src/mpi/coll/allreduce (Thakur et al., 2005) without its reduction term. Its
    comment writes 2(n-1)/n for the core also where n > c; the core has c workers, so c it is here.
    """

    def messages(self, n_workers):
        """Return the hops one after another, 2 lg c, and 2 more unless n is a power of two."""
        n = whole_workers(n_workers)
        lg = _floor_lg(n)
        return (2.0 * lg + 2 * (n > np.exp2(lg)))[()]

    def moved(self, nbytes, n_workers):
        """Return the bytes the busiest worker sends, 2(c-1)/c nbytes, and 2 nbytes more."""
        n = whole_workers(n_workers)
        core = np.exp2(_floor_lg(n))
        return (2 * (core - 1) / core + 2 * (n > core)) * numbers(nbytes, "nbytes")


def _floor_lg(n: np.ndarray) -> np.ndarray:
    return np.frexp(n)[1] - 1  # exact, which log2 is not


class Tree(LinkCost):
    """Double binary tree: half of the message goes up and down each of two trees, as in NCCL.

    A worker inside one tree is a leaf of the other, so the busiest sends nbytes up and as much
    down: 2 nbytes, less with 2 or 3 workers. The depth is lg n rounded up.

        cost = 2 ceil(lg n) alpha + min(n/2, 2) nbytes beta

    Source: Sanders, Speck, Traeff 2009; src/graph/trees.cc and tuning.cc (lg, and twice the bytes)
    of NCCL. Pieces are taken to be so small that filling the pipeline costs latency only.
    """

    def messages(self, n_workers):
        """Return the hops one after another, up and down, 2 ceil(lg n)."""
        return (2.0 * np.frexp(whole_workers(n_workers) - 1)[1])[()]

    def moved(self, nbytes, n_workers):
        """Return the bytes the busiest worker sends, min(n/2, 2) nbytes."""
        n = whole_workers(n_workers)
        return np.where(n > 1, np.minimum(n / 2, 2), 0.0) * numbers(nbytes, "nbytes")


@dataclass(frozen=True)
class ParameterServer(LinkCost):
    """Push to servers that sum, pull from them: each of n_servers holds an equal part.

    The servers are machines of their own on links like the workers'. A worker sends nbytes, a
    server sends its part to all n: the busier of the two sets the pace, both directions at once.

        cost = 2 alpha + max(1, n / n_servers) nbytes beta

    Source: Li et al., OSDI 2014; the bound of Jiang et al. (BytePS), OSDI 2020, for servers that
    are not the workers' machines. Raises ValueError unless n_servers is one whole number from 1 up.
    """

    n_servers: int

    def __post_init__(self):
        super().__post_init__()
        single(whole_workers(self.n_servers, "n_servers"), "n_servers")

    def messages(self, n_workers):
        """Return 2, a push and a pull, and 0 for a lone worker."""
        return (2 * _whole(whole_workers(n_workers)))[()]

    def moved(self, nbytes, n_workers):
        """Return the bytes the busiest worker or server sends, max(1, n / n_servers) nbytes."""
        n = whole_workers(n_workers)
        return _whole(n) * np.maximum(1.0, n / self.n_servers) * numbers(nbytes, "nbytes")


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


@dataclass(frozen=True)
class Piecewise:
    """A collective whose hop has a price in regimes: small messages, large ones, and a floor.

    With x = moved / messages, the bytes of one hop, and hop(0) = alpha, hop has slope betas[k]
    between breaks[k-1] and breaks[k] and no jump:

        cost = max(floor_s, messages(n) * hop(moved / messages))

    One beta, no break and no floor are the cost of `kind` itself. Every number is at least 0, so
    a larger message never costs less. A lone worker costs nothing, floor included.

    Parameters
    ----------
    kind : Link -> cost with `messages` and `moved`: Ring, or partial(ParameterServer, n_servers=4)
    alpha : s a hop
    betas : s a byte of each segment of the hop, first to last
    breaks : bytes a hop between segments, rising, one fewer than betas; None: for a fit to find
    floor_s : s that any message takes, such as a cycle of Horovod

    Raises ValueError for numbers below 0, breaks that do not rise or do not go with the betas, and
    when called with breaks=None.
    """

    kind: Callable = Ring
    alpha: float = 0.0
    betas: tuple[float, ...] = (0.0,)
    breaks: tuple[float, ...] | None = ()
    floor_s: float = 0.0

    def __post_init__(self):
        _refuse_kind(self.kind)
        for name in ("alpha", "floor_s"):
            what = f"Piecewise {name} (s)"
            object.__setattr__(self, name, single(numbers(getattr(self, name), what), what))
        for name, unit in (("betas", "s a byte"), ("breaks", "bytes a hop")):
            given = getattr(self, name)
            if name != "breaks" or given is not None:
                row = np.atleast_1d(numbers(given, f"Piecewise {name} ({unit})"))
                object.__setattr__(self, name, tuple(row.ravel().tolist()))
        if self.breaks is None:
            return
        if len(self.betas) != len(self.breaks) + 1:
            raise ValueError(
                f"Piecewise betas: expected one more than breaks, {len(self.breaks) + 1}; "
                f"got {len(self.betas)}"
            )
        if (np.diff(self.breaks, prepend=0.0) <= 0).any():
            raise ValueError(f"Piecewise breaks: expected rising bytes above 0, got {self.breaks}")

    def __call__(self, nbytes, n_workers):
        """Return the seconds of a message, broadcast over both."""
        values = self.parameters
        columns = self.columns(nbytes, n_workers)
        linear = sum(values[name] * column for name, column in columns.items())
        return np.maximum(linear, np.where(columns["alpha"] > 0, self.floor_s, 0.0))[()]

    @property
    def parameters(self) -> dict[str, float]:
        """The numbers: alpha (s a hop), beta_1.. (s a byte), break_1.. (bytes a hop), floor (s)."""
        betas = {f"beta_{k}": beta for k, beta in enumerate(self.betas, start=1)}
        breaks = {f"break_{k}": at for k, at in enumerate(self._breaks(), start=1)}
        return {"alpha": self.alpha} | betas | breaks | {"floor": self.floor_s}

    def with_parameters(self, **values: float) -> "Piecewise":
        """Return the same segments with other numbers; those not named stay."""
        new = _renewed(self, values)
        betas, breaks = (
            tuple(value for name, value in new.items() if name.startswith(prefix))
            for prefix in ("beta_", "break_")
        )
        return Piecewise(self.kind, new["alpha"], betas, breaks, new["floor"])

    def columns(self, nbytes, n_workers) -> dict[str, np.ndarray]:
        """Return what alpha and the betas are multiplied by; above the floor, cost = their sum."""
        plain = self.kind(Link(0.0, 0.0)).columns(nbytes, n_workers)
        hops, moved = plain["alpha"], plain["beta"]
        each = moved / np.maximum(hops, 1.0)
        edges = (0.0, *self._breaks(), np.inf)
        parts = (np.clip(each, a, b) - a for a, b in zip(edges, edges[1:], strict=False))
        return {"alpha": hops} | {f"beta_{k}": hops * x for k, x in enumerate(parts, start=1)}

    def segments(self) -> pd.DataFrame:
        """Return a row a segment, each as the line alpha + x beta of the bytes x of a hop.

        Columns from_bytes and to_bytes (a hop), alpha (s a hop; below 0 where a steep segment
        follows a flat one) and beta (s a byte).
        """
        edges = np.array([0.0, *self._breaks()])
        betas = np.array(self.betas)
        alphas = self.alpha - np.cumsum(np.diff(betas, prepend=betas[0]) * edges)
        tops = np.append(edges[1:], np.inf)
        return pd.DataFrame({"from_bytes": edges, "to_bytes": tops, "alpha": alphas, "beta": betas})

    def _breaks(self) -> tuple[float, ...]:
        if self.breaks is None:
            raise ValueError(
                "Piecewise: breaks=None has no price yet; find them with "
                "fit_all_reduce(measurements, kind=Piecewise), or write them: breaks=(65536,)"
            )
        return self.breaks


@dataclass(frozen=True)
class NodesCost:
    """An all-reduce over nodes of workers_per_node: one link inside a node, one between nodes.

    A kind says how many hops each link makes and what it moves. All nodes but the last are full,
    so n workers sit on ceil(n / workers_per_node) nodes. Raises ValueError unless both are a Link
    and workers_per_node is one whole number from 1 up.
    """

    inside: Link
    between: Link
    workers_per_node: int

    def __post_init__(self):
        kind = type(self).__name__
        for name in ("inside", "between"):
            if not isinstance(link := getattr(self, name), Link):
                raise ValueError(
                    f"{kind} {name}: expected a Link, got {shown(link)}; write Link(alpha, beta), "
                    "alpha in s a message hop, beta in s a byte"
                )
        single(whole_workers(self.workers_per_node, "workers_per_node"), "workers_per_node")

    def __call__(self, nbytes, n_workers):
        """Return the seconds of a message, broadcast over both."""
        values = self.parameters
        columns = self.columns(nbytes, n_workers)
        return sum(values[name] * column for name, column in columns.items())[()]

    @property
    def parameters(self) -> dict[str, float]:
        """The fitted numbers of both links: alpha in s a message hop, beta in s a byte moved."""
        return {
            "alpha_inside": self.inside.alpha,
            "beta_inside": self.inside.beta,
            "alpha_between": self.between.alpha,
            "beta_between": self.between.beta,
        }

    def with_parameters(self, **values: float):
        """Return the same collective over links with other numbers; those not named stay."""
        new = _renewed(self, values)
        inside, between = (
            Link(new[f"alpha_{link}"], new[f"beta_{link}"]) for link in ("inside", "between")
        )
        return replace(self, inside=inside, between=between)

    def columns(self, nbytes, n_workers) -> dict[str, np.ndarray]:
        """Return what each parameter is multiplied by: cost = sum of parameter * column."""
        n, message = whole_workers(n_workers), numbers(nbytes, "nbytes")
        n_nodes = np.ceil(n / self.workers_per_node)
        hops_inside, moved_inside, hops_between, moved_between = self._counts(n, n_nodes)
        shape = np.broadcast_shapes(n.shape, message.shape)
        return {
            "alpha_inside": np.broadcast_to(hops_inside, shape),
            "beta_inside": moved_inside * message,
            "alpha_between": np.broadcast_to(hops_between, shape),
            "beta_between": moved_between * message,
        }


class Hierarchical(NodesCost):
    """Reduce-scatter inside each node, all-reduce between nodes, all-gather inside: rings all.

    With w workers a node on N nodes, each worker's all-reduce between nodes is of nbytes / w:

        cost = 2(w-1) alpha_inside + 2(w-1)/w nbytes beta_inside
             + 2(N-1) alpha_between + 2(N-1)/N nbytes/w beta_between

    On one node it is the ring inside. Where the last node is not full nothing can be shared out:
    one worker a node holds the sum and all nbytes cross, between a reduce and a broadcast inside:

        cost = 2(w-1) alpha_inside + 2 nbytes beta_inside
             + 2(N-1) alpha_between + 2(N-1)/N nbytes beta_between

    Source: Horovod's NCCLHierarchicalAllreduce (horovod/common/ops/nccl_operations.cc).
    """

    def _counts(self, n, n_nodes):
        full = n == n_nodes * self.workers_per_node
        w = np.minimum(n, self.workers_per_node)
        moved_inside = np.where(full | (n_nodes == 1), 2 * _shared(w), 2.0 * (w > 1))
        moved_between = 2 * _shared(n_nodes) / np.where(full, w, 1)
        return 2 * (w - 1), moved_inside, 2 * (n_nodes - 1), moved_between


class FlatRing(NodesCost):
    """One ring through the workers of all nodes: it crosses from node to node, N times around.

    Of its 2(n-1) hops 2(N-1) are between nodes, and all bytes go at the pace of the link between
    nodes, which every step has to pass. On one node it is the ring inside.

        cost = 2(n-N) alpha_inside + 2(N-1) alpha_between + 2(n-1)/n nbytes beta_between

    Source: the counts of NCCL's src/graph/tuning.cc (nInterSteps).
    """

    def _counts(self, n, n_nodes):
        moved, alone = 2 * _shared(n), n_nodes == 1
        return 2 * (n - n_nodes), moved * alone, 2 * (n_nodes - 1), moved * ~alone


@dataclass(frozen=True, eq=False)
class Interpolated:
    """Timed messages themselves, with straight lines on log-log axes between the measured sizes.

    Of rows of the same size and workers the median counts, and a larger message never costs less
    (running maximum). Between measured numbers of workers, log-log as well. Outside:

    - smaller messages: the time of the smallest, all of it latency;
    - larger messages: the bandwidth of the largest, so in proportion to bytes;
    - other workers: the nearest measured number's time, of which the time of its smallest message
      is latency and grows as the hops of a ring, and the rest as the bytes it moves.

    table : columns n_workers, nbytes, seconds, such as MEASUREMENTS of one op; where it has a
        column op, that op's ring is taken beyond the measured workers, otherwise an all-reduce's

    Rows of a lone worker or of no byte are passed over. Raises ValueError for missing columns,
    several ops, times that are not positive, or no row left.
    """

    table: pd.DataFrame = field(repr=False)

    def __post_init__(self):
        object.__setattr__(self, "_curves", _curves(self.table)[0])
        object.__setattr__(self, "_ring", Ring(Link(0.0, 0.0), _op_of(self.table)))

    def scaled(self, factors: np.ndarray) -> "list[Interpolated]":
        """Return a cost for each row of factors, shape (costs, rows of the table), all above 0.

        It is Interpolated(table) with each time of the table times its factor, found together.
        """
        seconds = self.table["seconds"].to_numpy(float) * factors
        found = [copy(self) for _ in seconds]
        for cost, times, curves in zip(found, seconds, _curves(self.table, factors), strict=True):
            object.__setattr__(cost, "table", self.table.assign(seconds=times))
            object.__setattr__(cost, "_curves", curves)
        return found

    def __call__(self, nbytes, n_workers):
        """Return the seconds of a message, broadcast over both."""
        n, message = whole_workers(n_workers), numbers(nbytes, "nbytes")
        x = np.log(np.maximum(message, 1e-9))
        counts = np.array(list(self._curves))
        upper = np.searchsorted(counts, n)  # of the measured numbers, the first not below n
        if (k := upper.max(initial=0)) == upper.min(initial=k):
            return self._near(x, n, counts, k)[()]
        upper = upper.astype(np.min_scalar_type(len(counts)))  # few: sorted by radix
        n, x, places = (each.ravel() for each in np.broadcast_arrays(n, x, upper))
        order, seconds = np.argsort(places, kind="stable"), np.empty(len(places))
        for here in np.split(order, np.flatnonzero(np.diff(places[order])) + 1):
            seconds[here] = self._near(x[here], n[here], counts, int(places[here[0]]))
        return seconds.reshape(np.broadcast_shapes(message.shape, upper.shape))

    def _near(self, x, n, counts, k):
        """Return the seconds from the log of the bytes, counts[k] being the first not below n."""
        if k < len(counts) and (n == counts[k]).all():
            return np.exp(self._measured(x, counts[k]))
        if not 0 < k < len(counts):
            return self._beyond(x, n, counts[min(k, len(counts) - 1)])
        low, high = counts[k - 1], counts[k]
        share = np.log(n / low) / np.log(high / low)
        return np.exp((1 - share) * self._measured(x, low) + share * self._measured(x, high))

    def _beyond(self, x, n, nearest):
        hops = self._ring.messages(n) / self._ring.messages(nearest)
        moved = self._ring.moved(1.0, n) / self._ring.moved(1.0, nearest)
        latency = np.exp(self._measured(-np.inf, nearest))
        return hops * latency + moved * (np.exp(self._measured(x, nearest)) - latency)

    def _measured(self, x, n_workers):
        """Return the log of the seconds at a measured number of workers."""
        return np.interp(x, *self._curves[n_workers])


_FAR = 1000.0  # of the log of bytes: further than any message


def _op_of(table: pd.DataFrame) -> str:
    ops = table["op"].unique() if "op" in table else ["all_reduce"]
    if len(ops) != 1:
        found = ", ".join(map(str, ops)) or "no row"
        raise ValueError(
            f"Interpolated table: op: expected one, found {found}; "
            "keep one: table[table.op == 'all_reduce']"
        )
    return ops[0]


def _curves(table: pd.DataFrame, factors=1.0) -> list[dict[float, tuple[np.ndarray, np.ndarray]]]:
    """Return n_workers -> (log bytes, log seconds), both rising, for each row of factors.

    Of rows that send something. The last point is far beyond the largest message, at its bandwidth.
    """
    if not isinstance(table, pd.DataFrame):
        raise ValueError(f"Interpolated table: expected a DataFrame, got {shown(table)}")
    names = ["n_workers", "nbytes", "seconds"]
    check(table, dict.fromkeys(names, "of MEASUREMENTS"), "Interpolated table")
    n = whole_workers(table["n_workers"], "Interpolated table: n_workers")
    nbytes, seconds = (numbers(table[name], f"Interpolated table: {name}") for name in names[1:])
    if (seconds == 0).any():
        raise ValueError("Interpolated table: seconds: expected times above 0 s, got 0")
    sent = np.flatnonzero((n > 1) & (nbytes > 0))
    if not len(sent):
        raise ValueError("Interpolated table: expected rows of 2 workers or more, found none")
    order = sent[np.lexsort((nbytes[sent], n[sent]))]
    n, nbytes = n[order], nbytes[order]
    first = np.flatnonzero((np.diff(n, prepend=0) != 0) | (np.diff(nbytes, prepend=0) != 0))
    x, y = (
        np.log(nbytes[first]),
        np.log(_medians(np.atleast_2d(seconds * factors)[:, order], first)),
    )
    counts, begins = np.unique(n[first], return_index=True)
    ends = np.append(begins[1:], len(first))
    for low, high in zip(begins, ends, strict=True):
        np.maximum.accumulate(y[:, low:high], axis=1, out=y[:, low:high])
    x, y = (np.insert(v, ends, v[..., ends - 1] + _FAR, axis=-1) for v in (x, y))
    spans = [
        slice(low + k, high + k + 1) for k, (low, high) in enumerate(zip(begins, ends, strict=True))
    ]
    return [
        {at: (x[span], of[span]) for at, span in zip(counts.tolist(), spans, strict=True)}
        for of in y
    ]


def _medians(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the medians of groups of consecutive columns that begin at first."""
    sizes = np.diff(first, append=values.shape[1])
    medians = np.empty((len(values), len(first)))
    for size in np.unique(sizes):
        groups = np.flatnonzero(sizes == size)
        medians[:, groups] = np.median(values[:, first[groups, None] + np.arange(size)], axis=2)
    return medians


@dataclass(frozen=True)
class BatchTime:
    """Seconds of computing a batch on one worker: fixed_s + per_sample_s * batch.

    fixed_s is in s an iteration, per_sample_s in s a sample; the reciprocal of the latter is the
    throughput of large batches. Raises ValueError unless both are finite and at least 0.
    """

    fixed_s: float
    per_sample_s: float

    def __post_init__(self):
        for name in ("fixed_s", "per_sample_s"):
            what = f"BatchTime {name} (s)"
            single(numbers(getattr(self, name), what), what)

    def __call__(self, batch):
        """Return the seconds of each batch, a number of samples."""
        return (self.fixed_s + self.per_sample_s * numbers(batch, "batch"))[()]

    @property
    def parameters(self) -> dict[str, float]:
        """The fitted numbers: fixed_s in s, per_sample_s in s a sample."""
        return {"fixed_s": self.fixed_s, "per_sample_s": self.per_sample_s}

    def with_parameters(self, **values: float) -> "BatchTime":
        """Return the same line with other numbers; those not named stay."""
        return BatchTime(**_renewed(self, values))

    def columns(self, batch) -> dict[str, np.ndarray]:
        """Return what each parameter is multiplied by: seconds = sum of parameter * column."""
        samples = numbers(batch, "batch")
        return {"fixed_s": np.ones_like(samples), "per_sample_s": samples}


def _refuse_kind(kind):
    try:
        made = None if kind is Link or isinstance(kind, LinkCost) else kind(Link(0.0, 0.0))
    except TypeError:
        made = None
    if not (hasattr(made, "messages") and hasattr(made, "columns")):
        raise ValueError(
            f"Piecewise kind: expected a class of cost over one Link, got {shown(kind)}; "
            "write kind=Ring, or partial(ParameterServer, n_servers=4)"
        )


def _refuse_op(op):
    if not isinstance(op, str) or op not in _RING:
        raise ValueError(f"op: expected one of {', '.join(_RING)}; got {shown(op)}")


def bus_bandwidth(nbytes, seconds, n_workers, op: str = "all_reduce"):
    """Return the bus bandwidth in bytes/s: nbytes / seconds times the nccl-tests factor of the op.

    The factor is 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter, all_gather, all_to_all,
    gather and scatter, and 1 for broadcast, reduce and send_recv (nccl-tests doc/PERFORMANCE.md).
    nbytes is S there: the full buffer, the gathered or unscattered size. A lone worker's is 0.

    Raises ValueError for an unknown op, negative bytes, or a time that is not positive.
    """
    _refuse_op(op)
    _, factor = _RING[op]
    elapsed = numbers(seconds, "seconds")
    if (elapsed == 0).any():
        raise ValueError("seconds: expected times above 0 s, got 0; drop rows that took no time")
    return numbers(nbytes, "nbytes") / elapsed * factor(whole_workers(n_workers))
