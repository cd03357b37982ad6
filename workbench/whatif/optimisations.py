"""Optimisations: one change of a training set-up each, with what the change itself costs.

An optimisation is any callable Scenario -> Scenario. Its own cost is in the scenario it returns, in
Tn and never in T1: coding in fixed_s, copies in the cost of a message. Only PriorityScheduling
returns a prediction, because its schedule is not a queue; it comes last. Optional attributes:

    samples : samples per iteration relative to those before, by default 1
    own : names of the fields that are its own cost; at 0 it is free
    stage : order in `Together`: 0 set-ups, 1 compression, 2 adaptive fusion, 3 other schedules
    assumes : what is not modelled, in words
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ..base.checks import a_policy, call_of, checked, real, require, shown
from ..costs import Cost, Hierarchical, Link
from ..costs.adjusted import adjusted, around
from ..fusion import DDPBuckets, Policy
from ..timeline import Scenario
from ..timeline.prediction import Predicted
from ..timeline.scaling import TIMES
from .optimum import optimal
from .priority import PriorityPrediction, predict_priority
from .workloads import SECONDS, TIMES_AS_MUCH

an_optimisation = call_of("HalfPrecision()")


@checked(policy=a_policy, copy_s_per_byte=SECONDS)
@dataclass(frozen=True)
class TensorFusion:
    """Gradients fused by a policy, such as FixedBuffer(64 * MIB) or HorovodFusion().

    copy_s_per_byte : s per byte to copy gradients into the buffer and out of it, before and after
        each message in its queue
    """

    policy: Policy = DDPBuckets()
    copy_s_per_byte: float = 0.0
    own: ClassVar = ("copy_s_per_byte",)

    def __call__(self, scenario: Scenario) -> Scenario:
        return replace(_copied(scenario, self.copy_s_per_byte), fusion=self.policy)


@checked(copy_s_per_byte=SECONDS)
@dataclass(frozen=True)
class AdaptiveFusion:
    """Gradients fused so that the last message ends first: the optimum for this scenario.

    copy_s_per_byte : as in TensorFusion; planning happens once and costs no iteration time
    """

    copy_s_per_byte: float = 0.0
    own: ClassVar = ("copy_s_per_byte",)
    stage: ClassVar = 2

    def __call__(self, scenario: Scenario) -> Scenario:
        return optimal(_copied(scenario, self.copy_s_per_byte))


@checked(piece_s=SECONDS)
@dataclass(frozen=True)
class PriorityScheduling:
    """P3 and ByteScheduler: pieces of the layers needed next go first; see `priority`.

    The next forward starts as soon as the gradients of its layers have arrived. Replaces fusion and
    its copies, unless fused: then messages are cut and ordered as gradients are.
    """

    piece_bytes: int = 4_000_000
    forward_s: object = None
    piece_s: float = 0.0
    fused: bool = False
    own: ClassVar = ("piece_s",)
    stage: ClassVar = 3

    def __call__(self, scenario: Scenario) -> PriorityPrediction:
        scenario = scenario if self.fused else _copied(scenario, 0.0)
        options = self.piece_bytes, self.forward_s, self.piece_s, self.fused
        return predict_priority(scenario, *options)

    @property
    def assumes(self) -> str:
        return "" if self.forward_s is not None else "forward of a layer proportional to backward"


_CODING = (
    "encode_s_per_byte",
    "encode_s_per_gradient",
    "decode_s_per_byte",
    "decode_s_per_gradient",
)


@checked(
    ratio=real("a number from 1 up", lambda v: v >= 1, "10 leaves a tenth of the bytes"),
    **dict.fromkeys(_CODING, SECONDS),
)
@dataclass(frozen=True)
class Compression:
    """Gradients compressed on the device to 1/ratio of their bytes.

    Encoding runs on the compute stream after each gradient, so it delays later gradients and the
    end of backward. Decoding runs after the last message and nothing hides it. Both are in fixed_s.
    Costs are per uncompressed byte and per gradient:

        s = encode_s_per_byte nbytes + encode_s_per_gradient, and the same for decoding

    compress_first : True if gradients are compressed before they are fused, so that buffers count
        compressed bytes (Horovod); False if a fused message is compressed (DDP communication hooks)

    The scenario's all_reduce sums compressed bytes. Sparse gradients have to be gathered: add
    `OtherCollective` for them. Error feedback and effects on convergence are not modelled.
    """

    ratio: float
    encode_s_per_byte: float = 0.0
    encode_s_per_gradient: float = 0.0
    decode_s_per_byte: float = 0.0
    decode_s_per_gradient: float = 0.0
    compress_first: bool = False
    own: ClassVar = _CODING
    stage: ClassVar = 1
    assumes: ClassVar = "error feedback and convergence not modelled"

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


@checked(cast_s_per_byte=SECONDS)
@dataclass(frozen=True)
class HalfPrecision:
    """Gradients sent as float16, half the bytes of float32, fused after the cast.

    cast_s_per_byte : s per byte of float32 to cast to float16, and the same to cast back
    """

    cast_s_per_byte: float = 0.0
    own: ClassVar = ("cast_s_per_byte",)
    stage: ClassVar = 1
    assumes: ClassVar = "gradients were float32"

    def __call__(self, scenario: Scenario) -> Scenario:
        cast = self.cast_s_per_byte
        return Compression(2.0, cast, decode_s_per_byte=cast, compress_first=True)(scenario)


@dataclass(frozen=True)
class HierarchicalAllReduce:
    """All-reduce inside nodes and between them, by rings; see costs.Hierarchical.

    between : the link between nodes, as one worker sees it; None for the link of the scenario's
        all_reduce

    All workers of a node send their parts between nodes at once, each with the bandwidth of
    `between`. A link fitted to one ring through all nodes describes a whole node; if workers share
    its network card, multiply the beta of `between` by workers_per_node.
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
            cost, do = adjusted(scenario.all_reduce).cost, "Give between=Link(alpha, beta)"
            between = getattr(cost, "between", getattr(cost, "link", None))
            require(between is not None, "HierarchicalAllReduce between", "a Link", cost, do)
        cost = Hierarchical(self.inside, between, self.workers_per_node)
        return replace(scenario, all_reduce=around(scenario.all_reduce, cost))


@dataclass(frozen=True)
class OtherCollective:
    """Another cost of a message: another algorithm or link, such as Tree(link)."""

    all_reduce: Cost

    def __call__(self, scenario: Scenario) -> Scenario:
        return replace(scenario, all_reduce=around(scenario.all_reduce, self.all_reduce))


@checked(bandwidth=TIMES_AS_MUCH, latency=TIMES_AS_MUCH)
@dataclass(frozen=True)
class FasterLink:
    """A link of `bandwidth` times the bandwidth, whose latency is divided by `latency`.

    The cost of an empty message counts as latency.
    """

    bandwidth: float = 2.0
    latency: float = 1.0

    def __call__(self, scenario: Scenario) -> Scenario:
        cost = adjusted(scenario.all_reduce)
        bandwidth, latency = cost.bandwidth * self.bandwidth, cost.latency * self.latency
        return replace(scenario, all_reduce=replace(cost, bandwidth=bandwidth, latency=latency))


@dataclass(frozen=True)
class Overlap:
    """Messages during backward; Overlap(False) sends them all after it."""

    overlap: bool = True

    def __call__(self, scenario: Scenario) -> Scenario:
        return replace(scenario, overlap=self.overlap)


@dataclass(frozen=True)
class Together:
    """Several optimisations at once, by stage and within a stage in the order given."""

    optimisations: tuple

    def __post_init__(self):
        given, do = self.optimisations, "Write Together((HalfPrecision(), AdaptiveFusion()))"
        require(np.iterable(given), "Together optimisations", "several optimisations", given, do)
        object.__setattr__(self, "optimisations", tuple(given))
        for optimisation in self.optimisations:
            an_optimisation(optimisation, "Together optimisations")

    @property
    def samples(self) -> float:
        return float(np.prod([getattr(each, "samples", 1.0) for each in self.optimisations]))

    @property
    def assumes(self) -> str:
        words = [getattr(each, "assumes", "") for each in self.optimisations]
        return "; ".join(dict.fromkeys(filter(None, words)))

    @property
    def stages(self) -> tuple:
        """The optimisations in the order they are applied, including those of inner Togethers."""
        flat = [
            inner
            for each in self.optimisations
            for inner in (each.stages if isinstance(each, Together) else (each,))
        ]
        return tuple(sorted(flat, key=lambda each: getattr(each, "stage", 0)))

    def __call__(self, scenario: Scenario):
        found = scenario
        for optimisation in self.stages:
            one = "at most one optimisation that returns a prediction, as the last"
            require(isinstance(found, Scenario), "Together optimisations", one, optimisation)
            found = returned(optimisation(found), optimisation)
        return found


def returned(found, optimisation):
    """Return the result of an optimisation, a Scenario or a prediction, or raise ValueError."""
    ok = isinstance(found, Scenario | Predicted)
    require(ok, shown(optimisation), "a Scenario as its result", found)
    return found


def free(optimisation):
    """Return an optimisation without its own cost."""
    if isinstance(optimisation, Together):
        return Together(tuple(map(free, optimisation.optimisations)))
    own = getattr(optimisation, "own", ())
    return replace(optimisation, **dict.fromkeys(own, 0.0)) if own else optimisation


def _copied(scenario: Scenario, copy_s_per_byte: float) -> Scenario:
    """Return the scenario with these copies in place of those of its present fusion."""
    copies = getattr(scenario.all_reduce, "copy_s_per_byte", 0.0), copy_s_per_byte
    if copies == (0.0, 0.0):
        return scenario
    cost = replace(adjusted(scenario.all_reduce), copy_s_per_byte=float(copy_s_per_byte))
    return replace(scenario, all_reduce=cost)
