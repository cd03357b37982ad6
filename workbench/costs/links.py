"""What a message costs: seconds as a function of its bytes and of the number of workers.

Any callable `cost(nbytes, n_workers) -> seconds`, vectorised over both, is a cost; the classes here
are the common ones. They are built on the alpha-beta model of a link:

    cost = messages(n_workers) * alpha + moved(nbytes, n_workers) * beta

messages is the number of consecutive hops; moved is what the busiest worker sends, in pieces so
small that hops overlap. The pair is also the design matrix of the fit, and for a ring moved /
seconds is the bus bandwidth of nccl-tests. One worker sends nothing: every cost is 0 there.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pandas as pd

from ..base.checks import (
    above_0,
    checked,
    instance,
    numbers,
    one_of,
    one_worker_count,
    require,
    single,
    whole_workers,
)
from ..base.tables import check


class Cost(Protocol):
    """What a message costs: any callable cost(nbytes, n_workers) -> seconds."""

    def __call__(self, nbytes, n_workers):
        """Return the seconds of a message of nbytes among n_workers, broadcast over both."""


def _from_0(value, name: str) -> float:
    """Return one finite number from 0 up, or raise ValueError."""
    return single(numbers(value, name, "a finite number from 0 up"), name)


@checked(alpha=_from_0, beta=_from_0)
@dataclass(frozen=True)
class Link:
    """A link between two workers: alpha in s per hop, beta in s per byte (1/beta = bandwidth).

    Both are finite and at least 0; `Link(0, 0)` is a free link.
    """

    alpha: float
    beta: float


def _require_link(cost, name: str):
    link, kind = getattr(cost, name), type(cost).__name__
    do = "Write Link(alpha, beta), alpha in s per hop and beta in s per byte"
    if hasattr(link, "model"):
        do = "Pass fit.model.link, or use fit.model as it is"
    require(isinstance(link, Link), f"{kind} {name}", "a Link", link, do)


@dataclass(frozen=True)
class LinkCost:
    """A collective over one link; subclasses define its hops and the bytes it moves."""

    link: Link

    def __post_init__(self):
        _require_link(self, "link")

    def __call__(self, nbytes, n_workers):
        """Return the seconds of a message, messages * alpha + moved * beta, broadcast over both."""
        return (
            self.messages(n_workers) * self.link.alpha
            + self.moved(nbytes, n_workers) * self.link.beta
        )

    def messages(self, n_workers):
        """Return the number of consecutive hops."""
        hops, _ = self._counts(whole_workers(n_workers))
        return hops[()]

    def moved(self, nbytes, n_workers):
        """Return the bytes that the busiest worker sends."""
        _, factor = self._counts(whole_workers(n_workers))
        return factor * numbers(nbytes, "nbytes")

    @property
    def parameters(self) -> dict[str, float]:
        """The fitted numbers: alpha in s per hop, beta in s per byte moved."""
        return {"alpha": self.link.alpha, "beta": self.link.beta}

    def with_parameters(self, **values: float):
        """Return the same collective over a link with other numbers; those not named are kept."""
        return replace(self, link=Link(**_renewed(self, values)))

    def columns(self, nbytes, n_workers) -> dict[str, np.ndarray]:
        """Return the factor of each parameter: cost = sum of parameter * column."""
        moved = self.moved(nbytes, n_workers)
        hops = np.broadcast_to(self.messages(n_workers), np.shape(moved))
        return {"alpha": hops, "beta": moved}


def _renewed(cost, values: dict[str, float]) -> dict[str, float]:
    """Return the parameters of a cost with some replaced, or raise ValueError for another name."""
    known = cost.parameters
    for name in values:
        one_of(known)(name, f"{type(cost).__name__} parameters")
    return known | values


def _shared(n):
    return (n - 1) / n


def _whole(n):
    return np.where(n > 1, 1.0, 0.0)


# op -> (consecutive hops, bytes the busiest worker sends per byte of the buffer), by n workers.
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


@checked(op=one_of(_RING))
@dataclass(frozen=True)
class Ring(LinkCost):
    """Ring all-reduce: 2(n-1) hops, each worker sends 2(n-1)/n bytes per byte of the message.

    cost = 2(n-1) alpha + 2(n-1)/n nbytes beta. Source: the ring of MPICH's
    src/mpi/coll/allreduce (Thakur et al., 2005) without its reduction term.

    op : another collective of nccl-tests on the same ring. reduce_scatter, all_gather, all_to_all,
        gather and scatter make n-1 hops and move (n-1)/n; broadcast and reduce are a chain of n-1
        hops moving the whole; send_recv is one hop. nbytes is the full buffer, as in bus_bandwidth.
    """

    op: str = "all_reduce"

    def _counts(self, n):
        hops, factor = _RING[self.op]
        return hops(n), factor(n)


class HalvingDoubling(LinkCost):
    """Recursive halving and doubling (Rabenseifner's all-reduce), for any number of workers.

    With c the largest power of two up to n, c workers make 2 lg c hops and move 2(c-1)/c nbytes.
    If n > c, the n - c others first send their whole message to a partner and at the end
    receive the whole result: 2 hops and 2 nbytes more.

        cost = (2 lg c + 2[n > c]) alpha + (2(c-1)/c + 2[n > c]) nbytes beta

    Source: MPICH's src/mpi/coll/allreduce (Thakur et al., 2005) without its reduction term. Its
    comment gives 2(n-1)/n for the core also if n > c; the core has c workers, so c is used here.
    """

    def _counts(self, n):
        lg = np.frexp(n)[1] - 1  # rounded down; exact, unlike log2
        core = np.exp2(lg)
        return 2.0 * lg + 2 * (n > core), 2 * (core - 1) / core + 2 * (n > core)


class Tree(LinkCost):
    """Double binary tree: half of the message goes up and down each of two trees, as in NCCL.

    A worker inside one tree is a leaf of the other, so the busiest sends nbytes up and nbytes
    down: 2 nbytes, less with 2 or 3 workers. The depth is lg n rounded up.

        cost = 2 ceil(lg n) alpha + min(n/2, 2) nbytes beta

    Source: Sanders, Speck, Traeff 2009; src/graph/trees.cc and tuning.cc (lg, and twice the bytes)
    of NCCL. Pieces are assumed so small that filling the pipeline costs latency only.
    """

    def _counts(self, n):
        return 2.0 * np.frexp(n - 1)[1], np.where(n > 1, np.minimum(n / 2, 2), 0.0)


@checked(n_servers=one_worker_count)
@dataclass(frozen=True)
class ParameterServer(LinkCost):
    """Push to servers that sum, and pull from them: each of n_servers has an equal part.

    The servers are separate machines on links like the workers'. A worker sends nbytes, a server
    sends its part to all n: the busier of the two sets the pace, both directions at once.

        cost = 2 alpha + max(1, n / n_servers) nbytes beta

    Source: Li et al., OSDI 2014; the bound of Jiang et al. (BytePS), OSDI 2020, for servers that
    are not the workers' machines.
    """

    n_servers: int

    def _counts(self, n):
        return 2 * _whole(n), _whole(n) * np.maximum(1.0, n / self.n_servers)


class Affine(LinkCost):
    """alpha + nbytes beta for any number of workers, as in published fits of one cluster.

    Valid for the number of workers it was fitted at; one worker sends nothing.
    """

    def _counts(self, n):
        return _whole(n), _whole(n)


def _kind_of_cost(kind, name: str):
    """Raise ValueError unless kind maps one Link to a cost."""
    try:
        made = None if kind is Link or isinstance(kind, LinkCost) else kind(Link(0.0, 0.0))
    except TypeError:
        made = None
    do = "Write kind=Ring, or partial(ParameterServer, n_servers=4)"
    known = hasattr(made, "messages") and hasattr(made, "columns")
    require(known, name, "a class of cost over one Link", kind, do)


@checked(kind=_kind_of_cost)
@dataclass(frozen=True)
class Piecewise:
    """A collective whose price per hop differs by message size, with a floor per message.

    With x = moved / messages, the bytes of one hop, and hop(0) = alpha, hop has slope betas[k]
    between breaks[k-1] and breaks[k] and no jump:

        cost = max(floor_s, messages(n) * hop(moved / messages))

    One beta, no break and no floor are the cost of `kind` itself. Every number is at least 0, so
    a larger message never costs less. One worker costs nothing, floor included.

    Parameters
    ----------
    kind : Link -> cost with `messages` and `moved`: Ring, or partial(ParameterServer, n_servers=4)
    alpha : s per hop
    betas : s per byte of each segment of the hop, first to last
    breaks : bytes per hop between segments, rising, one fewer than betas; None: for a fit to find
    floor_s : s that any message takes, such as a cycle of Horovod

    Raises ValueError when called with breaks=None.
    """

    kind: Callable = Ring
    alpha: float = 0.0
    betas: tuple[float, ...] = (0.0,)
    breaks: tuple[float, ...] | None = ()
    floor_s: float = 0.0

    def __post_init__(self):
        for name in ("alpha", "floor_s"):
            object.__setattr__(self, name, _from_0(getattr(self, name), f"Piecewise {name}"))
        for name in ("betas", "breaks"):
            if name != "breaks" or self.breaks is not None:
                row = np.ravel(numbers(getattr(self, name), f"Piecewise {name}")).tolist()
                object.__setattr__(self, name, tuple(row))
        if self.breaks is not None:
            n, found = len(self.breaks) + 1, f"{len(self.betas)} betas"
            require(len(self.betas) == n, "Piecewise betas", f"{n} for these breaks", found=found)
            rising = (np.diff(self.breaks, prepend=0.0) > 0).all()
            require(rising, "Piecewise breaks", "rising bytes above 0", found=str(self.breaks))

    def __call__(self, nbytes, n_workers):
        """Return the seconds of a message, broadcast over both."""
        values = self.parameters
        columns = self.columns(nbytes, n_workers)
        linear = sum(values[name] * column for name, column in columns.items())
        return np.maximum(linear, np.where(columns["alpha"] > 0, self.floor_s, 0.0))[()]

    @property
    def parameters(self) -> dict[str, float]:
        """The numbers in s, s per byte and bytes per hop: alpha, beta_1.., break_1.., floor."""
        betas = {f"beta_{k}": beta for k, beta in enumerate(self.betas, start=1)}
        breaks = {f"break_{k}": at for k, at in enumerate(self._breaks(), start=1)}
        return {"alpha": self.alpha} | betas | breaks | {"floor": self.floor_s}

    def with_parameters(self, **values: float) -> "Piecewise":
        """Return the same segments with other numbers; those not named are kept."""
        new = _renewed(self, values)
        betas, breaks = (
            tuple(value for name, value in new.items() if name.startswith(prefix))
            for prefix in ("beta_", "break_")
        )
        return Piecewise(self.kind, new["alpha"], betas, breaks, new["floor"])

    def columns(self, nbytes, n_workers) -> dict[str, np.ndarray]:
        """Return the factors of alpha and the betas; above the floor, they sum to the cost."""
        hops, moved = self.kind(Link(0.0, 0.0)).columns(nbytes, n_workers).values()
        each = moved / np.maximum(hops, 1.0)
        edges = (0.0, *self._breaks(), np.inf)
        parts = (np.clip(each, a, b) - a for a, b in zip(edges, edges[1:], strict=False))
        return {"alpha": hops} | {f"beta_{k}": hops * x for k, x in enumerate(parts, start=1)}

    def segments(self) -> pd.DataFrame:
        """Return one row per segment: the line alpha + x beta in the bytes x of a hop.

        Columns from_bytes and to_bytes (per hop), alpha (s per hop; below 0 if a steep segment
        follows a flat one) and beta (s per byte).
        """
        edges = np.array([0.0, *self._breaks()])
        betas = np.array(self.betas)
        alphas = self.alpha - np.cumsum(np.diff(betas, prepend=betas[0]) * edges)
        tops = np.append(edges[1:], np.inf)
        return pd.DataFrame({"from_bytes": edges, "to_bytes": tops, "alpha": alphas, "beta": betas})

    def _breaks(self) -> tuple[float, ...]:
        do = "Find them with fit_all_reduce(measurements, kind=Piecewise), or write breaks=(65536,)"
        require(self.breaks is not None, "Piecewise breaks", "bytes to price a message", None, do)
        return self.breaks


@dataclass(frozen=True)
class NodesCost:
    """An all-reduce over nodes of workers_per_node: one link inside a node, one between nodes.

    Subclasses define the hops over each link and the bytes it moves. All nodes but the last are
    full, so n workers occupy ceil(n / workers_per_node) nodes.
    """

    inside: Link
    between: Link
    workers_per_node: int

    def __post_init__(self):
        _require_link(self, "inside")
        _require_link(self, "between")
        one_worker_count(self.workers_per_node, f"{type(self).__name__} workers_per_node")

    def __call__(self, nbytes, n_workers):
        """Return the seconds of a message, broadcast over both."""
        values = self.parameters
        columns = self.columns(nbytes, n_workers)
        return sum(values[name] * column for name, column in columns.items())[()]

    @property
    def parameters(self) -> dict[str, float]:
        """The fitted numbers of both links: alpha in s per hop, beta in s per byte moved."""
        return {
            "alpha_inside": self.inside.alpha,
            "beta_inside": self.inside.beta,
            "alpha_between": self.between.alpha,
            "beta_between": self.between.beta,
        }

    def with_parameters(self, **values: float):
        """Return the same collective over links with other numbers; those not named are kept."""
        new = _renewed(self, values)
        links = {at: Link(new[f"alpha_{at}"], new[f"beta_{at}"]) for at in ("inside", "between")}
        return replace(self, **links)

    def columns(self, nbytes, n_workers) -> dict[str, np.ndarray]:
        """Return the factor of each parameter: cost = sum of parameter * column."""
        n, message = whole_workers(n_workers), numbers(nbytes, "nbytes")
        n_nodes = np.ceil(n / self.workers_per_node)
        shape = np.broadcast_shapes(n.shape, message.shape)
        return {
            name: moved * message if name.startswith("beta") else np.broadcast_to(moved, shape)
            for name, moved in zip(self.parameters, self._counts(n, n_nodes), strict=True)
        }


class Hierarchical(NodesCost):
    """Reduce-scatter inside each node, all-reduce between nodes, all-gather inside: all are rings.

    With w workers per node on N nodes, each worker's all-reduce between nodes is of nbytes / w:

        cost = 2(w-1) alpha_inside + 2(w-1)/w nbytes beta_inside
             + 2(N-1) alpha_between + 2(N-1)/N nbytes/w beta_between

    On one node it is the ring inside. If the last node is not full, the message is not divided:
    one worker per node has the sum and sends all nbytes, between a reduce and a broadcast inside:

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

    Of its 2(n-1) hops 2(N-1) are between nodes, and all bytes move at the pace of the link
    between nodes, which every step crosses. On one node it is the ring inside.

        cost = 2(n-N) alpha_inside + 2(N-1) alpha_between + 2(n-1)/n nbytes beta_between

    Source: the counts of NCCL's src/graph/tuning.cc (nInterSteps).
    """

    def _counts(self, n, n_nodes):
        moved, alone = 2 * _shared(n), n_nodes == 1
        return 2 * (n - n_nodes), moved * alone, 2 * (n_nodes - 1), moved * ~alone


@dataclass(frozen=True, eq=False)
class Interpolated:
    """The timed messages, with straight lines on log-log axes between the measured sizes.

    Rows of the same size and workers are replaced by their median, and a larger message never
    costs less (running maximum). Between measured numbers of workers, log-log as well. Outside:

    - smaller messages: the time of the smallest, all of it latency;
    - larger messages: the bandwidth of the largest, so in proportion to bytes;
    - other workers: the nearest measured number's time, of which the time of its smallest message
      is latency and grows as the hops of a ring, and the rest as the bytes it moves.

    table : columns n_workers, nbytes, seconds, such as MEASUREMENTS of one op. Beyond the measured
        workers the ring of its column op is used, if it has one, otherwise that of an all-reduce

    Rows of one worker or of 0 bytes are ignored. Raises ValueError for missing columns, several
    ops, times that are not positive, or if no row is left.
    """

    table: pd.DataFrame = field(repr=False)

    def __post_init__(self):
        object.__setattr__(self, "_curves", _curves(self.table)[0])
        object.__setattr__(self, "_ring", Ring(Link(0.0, 0.0), _op_of(self.table)))

    def scaled(self, factors: np.ndarray) -> "list[Interpolated]":
        """Return one cost per row of factors, shape (costs, rows of the table), all above 0.

        It is Interpolated(table) with each time multiplied by its factor, computed together.
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
        upper = np.searchsorted(counts, n)  # the first measured number not below n
        if (k := upper.max(initial=0)) == upper.min(initial=k):
            return self._near(x, n, counts, k)[()]
        upper = upper.astype(np.min_scalar_type(len(counts)))  # few: sorted by radix
        n, x, places = (each.ravel() for each in np.broadcast_arrays(n, x, upper))
        order, seconds = np.argsort(places, kind="stable"), np.empty(len(places))
        for here in np.split(order, np.flatnonzero(np.diff(places[order])) + 1):
            seconds[here] = self._near(x[here], n[here], counts, int(places[here[0]]))
        return seconds.reshape(np.broadcast_shapes(message.shape, upper.shape))

    def _near(self, x, n, counts, k):
        """Return the seconds from the log of the bytes; counts[k] is the first not below n."""
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
    found = ", ".join(map(str, ops)) or "no row"
    do = "Keep one: table[table.op == 'all_reduce']"
    require(len(ops) == 1, "Interpolated table: op", "one collective", do=do, found=found)
    return ops[0]


@checked(table=instance(pd.DataFrame, "a DataFrame"))
def _curves(table: pd.DataFrame, factors=1.0) -> list[dict[float, tuple[np.ndarray, np.ndarray]]]:
    """Return n_workers -> (log bytes, log seconds), both rising, for each row of factors.

    Rows that send nothing are ignored. The last point is far beyond the largest message, at its
    bandwidth.
    """
    what = "Interpolated table"
    check(table, dict.fromkeys(("n_workers", "nbytes", "seconds"), "of MEASUREMENTS"), what)
    n = whole_workers(table["n_workers"], f"{what}: n_workers")
    nbytes = numbers(table["nbytes"], f"{what}: nbytes")
    seconds = above_0(table["seconds"], f"{what}: seconds")
    sent = np.flatnonzero((n > 1) & (nbytes > 0))
    require(len(sent), what, "rows of 2 workers or more", found="none")
    order = sent[np.lexsort((nbytes[sent], n[sent]))]
    n, nbytes = n[order], nbytes[order]
    first = np.flatnonzero((np.diff(n, prepend=0) != 0) | (np.diff(nbytes, prepend=0) != 0))
    x = np.log(nbytes[first])
    y = np.log(_medians(np.atleast_2d(seconds * factors)[:, order], first))
    counts, begins = np.unique(n[first], return_index=True)
    ends = np.append(begins[1:], len(first))
    for low, high in zip(begins, ends, strict=True):
        np.maximum.accumulate(y[:, low:high], axis=1, out=y[:, low:high])
    x, y = (np.insert(v, ends, v[..., ends - 1] + _FAR, axis=-1) for v in (x, y))
    edges = np.append(0, ends + np.arange(1, len(ends) + 1))  # each curve has a point more
    spans = dict(zip(counts.tolist(), map(slice, edges[:-1], edges[1:]), strict=True))
    return [{at: (x[span], of[span]) for at, span in spans.items()} for of in y]


def _medians(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return the medians of groups of consecutive columns that begin at first."""
    sizes = np.diff(first, append=values.shape[1])
    medians = np.empty((len(values), len(first)))
    for size in np.unique(sizes):
        groups = np.flatnonzero(sizes == size)
        medians[:, groups] = np.median(values[:, first[groups, None] + np.arange(size)], axis=2)
    return medians


@checked(fixed_s=_from_0, per_sample_s=_from_0)
@dataclass(frozen=True)
class BatchTime:
    """Seconds of computing a batch on one worker: fixed_s + per_sample_s * batch.

    fixed_s is in s per iteration, per_sample_s in s per sample; the reciprocal of the latter is
    the throughput of large batches. Both are finite and at least 0.
    """

    fixed_s: float
    per_sample_s: float

    def __call__(self, batch):
        """Return the seconds of each batch, a number of samples."""
        return (self.fixed_s + self.per_sample_s * numbers(batch, "batch"))[()]

    @property
    def parameters(self) -> dict[str, float]:
        """The fitted numbers: fixed_s in s, per_sample_s in s per sample."""
        return {"fixed_s": self.fixed_s, "per_sample_s": self.per_sample_s}

    def with_parameters(self, **values: float) -> "BatchTime":
        """Return the same line with other numbers; those not named are kept."""
        return BatchTime(**_renewed(self, values))

    def columns(self, batch) -> dict[str, np.ndarray]:
        """Return the factor of each parameter: seconds = sum of parameter * column."""
        samples = numbers(batch, "batch")
        return {"fixed_s": np.ones_like(samples), "per_sample_s": samples}


@checked(op=one_of(_RING))
def bus_bandwidth(nbytes, seconds, n_workers, op: str = "all_reduce"):
    """Return the bus bandwidth in bytes/s: nbytes / seconds times the nccl-tests factor of the op.

    The factor is 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter, all_gather, all_to_all,
    gather and scatter, and 1 for broadcast, reduce and send_recv (nccl-tests doc/PERFORMANCE.md).
    nbytes is S there: the full buffer, the gathered or unscattered size. For one worker it is 0.
    """
    _, factor = _RING[op]
    elapsed = above_0(seconds, "seconds")
    return numbers(nbytes, "nbytes") / elapsed * factor(whole_workers(n_workers))
