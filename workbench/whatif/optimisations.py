"""Optimisations: one change of a training set-up each, with what the change itself costs.

An optimisation is a frozen callable Scenario -> Scenario, and so is any function of that kind.
What it costs itself is in the scenario it returns, in Tn and never in T1: coding in fixed_s, copies
in the cost of a message. PriorityScheduling alone returns a prediction, as its schedule is not one
of a queue; it comes last. An optimisation may tell, as attributes:

    samples : samples an iteration trains on, over those before (1 unless told)
    own : names of its fields that are its own cost; at 0 it is free
    stage : `Together` applies 0 first, set-ups; then 1, compression; 2, fusion that adapts to what
        is there; 3, a schedule of its own
    assumes : what is not modelled, in words
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ..base.checks import check_callable, one_number, shown
from ..costs import Hierarchical, Link
from ..costs.adjusted import adjusted, around
from ..fusion import DDPBuckets
from ..timeline import Scenario
from ..timeline.scaling import TIMES
from .optimum import optimal
from .priority import PriorityPrediction, predict_priority
from .workloads import above_0, from_0


@dataclass(frozen=True)
class TensorFusion:
    """Gradients fused by a policy, such as FixedBuffer(64 * MIB) or HorovodFusion().

    copy_s_per_byte : s a byte to copy gradients into the buffer and out of it, before and after
        each message in its queue
    """

    policy: object = DDPBuckets()
    copy_s_per_byte: float = 0.0
    own: ClassVar = ("copy_s_per_byte",)

    def __post_init__(self):
        from_0(self, "copy_s_per_byte")
        check_callable(self.policy, "TensorFusion policy", "DDPBuckets()")

    def __call__(self, scenario: Scenario) -> Scenario:
        return replace(_copied(scenario, self.copy_s_per_byte), fusion=self.policy)


@dataclass(frozen=True)
class AdaptiveFusion:
    """Gradients fused so that the last message ends first: the optimum for this very scenario.

    copy_s_per_byte : as in TensorFusion; planning happens once and costs an iteration nothing
    """

    copy_s_per_byte: float = 0.0
    own: ClassVar = ("copy_s_per_byte",)
    stage: ClassVar = 2

    def __post_init__(self):
        from_0(self, "copy_s_per_byte")

    def __call__(self, scenario: Scenario) -> Scenario:
        return optimal(_copied(scenario, self.copy_s_per_byte))


@dataclass(frozen=True)
class PriorityScheduling:
    """P3 and ByteScheduler: pieces of the layers next needed go first; see priority.

    The next forward starts as soon as its layers' gradients are there. Replaces fusion, and what it
    copies, unless fused: then messages are cut and ordered as gradients are.
    """

    piece_bytes: int = 4_000_000
    forward_s: object = None
    piece_s: float = 0.0
    fused: bool = False
    own: ClassVar = ("piece_s",)
    stage: ClassVar = 3

    def __post_init__(self):
        from_0(self, "piece_s")

    def __call__(self, scenario: Scenario) -> PriorityPrediction:
        scenario = scenario if self.fused else _copied(scenario, 0.0)
        options = self.piece_bytes, self.forward_s, self.piece_s, self.fused
        return predict_priority(scenario, *options)

    @property
    def assumes(self) -> str:
        if self.forward_s is not None:
            return ""
        return "forward of a layer in proportion to its backward"


@dataclass(frozen=True)
class Compression:
    """Gradients compressed on the device to 1/ratio of their bytes.

    Coding runs where backward does, after each gradient, and so delays the gradients that follow
    and the end of backward; decoding runs after the last message, hidden by nothing. Both are in
    fixed_s. Costs are of the uncompressed bytes, and of each gradient:

        s = encode_s_per_byte nbytes + encode_s_per_gradient, and likewise for decoding

    compress_first : True where gradients are compressed before they are fused, so that buffers
        hold compressed bytes (Horovod); False where a fused message is (communication hooks of DDP)

    The sum is that of the scenario's all_reduce over compressed bytes: for sparse gradients, which
    have to be gathered, give `OtherCollective` too. Error feedback, and what compression does to
    convergence, are not modelled.
    """

    ratio: float
    encode_s_per_byte: float = 0.0
    encode_s_per_gradient: float = 0.0
    decode_s_per_byte: float = 0.0
    decode_s_per_gradient: float = 0.0
    compress_first: bool = False
    own: ClassVar = (
        "encode_s_per_byte",
        "encode_s_per_gradient",
        "decode_s_per_byte",
        "decode_s_per_gradient",
    )
    stage: ClassVar = 1
    assumes: ClassVar = "error feedback and convergence not modelled"

    def __post_init__(self):
        from_0(self, *self.own)
        expected = "Compression ratio: expected a number from 1 up"
        if not 1 <= one_number(self.ratio, expected, "10 leaves a tenth of the bytes") < np.inf:
            raise ValueError(f"{expected}, got {shown(self.ratio)}; 10 leaves a tenth of the bytes")

    def __call__(self, scenario: Scenario) -> Scenario:
        table = scenario.gradients
        sizes = table["nbytes"].to_numpy(float)
        encode = sizes * self.encode_s_per_byte + self.encode_s_per_gradient
        decode = sizes * self.decode_s_per_byte + self.decode_s_per_gradient
        late = {n: table[n] + np.cumsum(encode) for n in TIMES if n in table}
        if self.compress_first:
            late["nbytes"] = np.ceil(sizes / self.ratio).astype("int64")
            cost = scenario.all_reduce
        else:
            cost = adjusted(scenario.all_reduce)
            cost = replace(cost, compression=cost.compression * float(self.ratio))
        return replace(
            scenario,
            gradients=table.assign(**late),
            backward_s=scenario.backward_s + encode.sum(),
            all_reduce=cost,
            fixed_s=scenario.fixed_s + float(encode.sum() + decode.sum()),
        )


@dataclass(frozen=True)
class HalfPrecision:
    """Gradients sent as float16, half the bytes of float32, fused after the cast.

    cast_s_per_byte : s a byte of float32 to cast to float16, and as much back
    """

    cast_s_per_byte: float = 0.0
    own: ClassVar = ("cast_s_per_byte",)
    stage: ClassVar = 1
    assumes: ClassVar = "gradients were float32"

    def __post_init__(self):
        from_0(self, "cast_s_per_byte")

    def __call__(self, scenario: Scenario) -> Scenario:
        cast = self.cast_s_per_byte
        return Compression(
            2.0, encode_s_per_byte=cast, decode_s_per_byte=cast, compress_first=True
        )(scenario)


@dataclass(frozen=True)
class HierarchicalAllReduce:
    """All-reduce inside nodes and between them, by rings; see costs.Hierarchical.

    between : the link between nodes, as one worker sees it; None for the link of the scenario's
        all_reduce

    Every worker of a node sends its part between nodes at once, so with `between` each has that
    bandwidth to itself. A link fitted to one ring through all nodes gives what the whole node
    moved; with workers that share its network card give `between` a beta workers_per_node as large.
    """

    inside: Link
    workers_per_node: int
    between: Link | None = None

    @property
    def assumes(self) -> str:
        return "" if self.between else "each worker has the link between nodes to itself"

    def __call__(self, scenario: Scenario) -> Scenario:
        between = self.between
        if between is None:
            cost = adjusted(scenario.all_reduce).cost
            between = getattr(cost, "between", getattr(cost, "link", None))
        if between is None:
            raise ValueError(
                f"HierarchicalAllReduce between: {shown(cost)} has no link to take; "
                "give between=Link(alpha, beta)"
            )
        cost = Hierarchical(self.inside, between, self.workers_per_node)
        return replace(scenario, all_reduce=around(scenario.all_reduce, cost))


@dataclass(frozen=True)
class OtherCollective:
    """Another cost of a message: another algorithm or link, such as Tree(link)."""

    all_reduce: object

    def __call__(self, scenario: Scenario) -> Scenario:
        return replace(scenario, all_reduce=around(scenario.all_reduce, self.all_reduce))


@dataclass(frozen=True)
class FasterLink:
    """A link of `bandwidth` times the bandwidth, whose latency is divided by `latency`.

    Whatever an empty message costs is taken for latency.
    """

    bandwidth: float = 2.0
    latency: float = 1.0

    def __post_init__(self):
        above_0(self, "bandwidth", "latency")

    def __call__(self, scenario: Scenario) -> Scenario:
        cost = adjusted(scenario.all_reduce)
        bandwidth, latency = cost.bandwidth * self.bandwidth, cost.latency * self.latency
        return replace(scenario, all_reduce=replace(cost, bandwidth=bandwidth, latency=latency))


@dataclass(frozen=True)
class Overlap:
    """Messages beside backward; Overlap(False) sends them all after it."""

    overlap: bool = True

    def __call__(self, scenario: Scenario) -> Scenario:
        return replace(scenario, overlap=self.overlap)


@dataclass(frozen=True)
class Together:
    """Several optimisations at once, by stage and within a stage in the order given."""

    optimisations: tuple

    def __post_init__(self):
        if not np.iterable(self.optimisations):
            raise ValueError(
                f"Together: expected several optimisations, got {shown(self.optimisations)}; "
                "write Together((HalfPrecision(), AdaptiveFusion()))"
            )
        object.__setattr__(self, "optimisations", tuple(self.optimisations))
        for optimisation in self.optimisations:
            check_optimisation(optimisation, "Together")

    @property
    def samples(self) -> float:
        return float(np.prod([getattr(each, "samples", 1.0) for each in self.optimisations]))

    @property
    def assumes(self) -> str:
        told = [getattr(each, "assumes", "") for each in self.optimisations]
        return "; ".join(dict.fromkeys(filter(None, told)))

    @property
    def stages(self) -> tuple:
        """The optimisations in the order they are applied, those within a Together among them."""
        flat = [
            inner
            for each in self.optimisations
            for inner in (each.stages if isinstance(each, Together) else (each,))
        ]
        return tuple(sorted(flat, key=lambda each: getattr(each, "stage", 0)))

    def __call__(self, scenario: Scenario):
        found = scenario
        for optimisation in self.stages:
            if not isinstance(found, Scenario):
                raise ValueError(
                    "Together: expected at most one optimisation with a schedule of its own, "
                    f"applied last; {shown(optimisation)} comes after one"
                )
            found = returned(optimisation(found), optimisation)
        return found


def returned(found, optimisation):
    """Return what an optimisation did, a Scenario or a prediction, or raise ValueError."""
    if not (isinstance(found, Scenario) or hasattr(found, "iteration_s")):
        raise ValueError(
            f"{shown(optimisation)}: expected it to return a Scenario, got {shown(found)}"
        )
    return found


def free(optimisation):
    """Return an optimisation without its own cost."""
    if isinstance(optimisation, Together):
        return Together(tuple(map(free, optimisation.optimisations)))
    own = getattr(optimisation, "own", ())
    return replace(optimisation, **dict.fromkeys(own, 0.0)) if own else optimisation


def check_optimisation(value, name: str):
    """Return an optimisation, or raise ValueError for a class or what is not callable."""
    return check_callable(value, name, "HalfPrecision()")


def _copied(scenario: Scenario, copy_s_per_byte: float) -> Scenario:
    """Return the scenario with the copies of one way of fusion in place of another's."""
    copies = getattr(scenario.all_reduce, "copy_s_per_byte", 0.0), copy_s_per_byte
    if copies == (0.0, 0.0):
        return scenario
    cost = replace(adjusted(scenario.all_reduce), copy_s_per_byte=float(copy_s_per_byte))
    return replace(scenario, all_reduce=cost)
