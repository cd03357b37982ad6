"""Every optimisation the package knows, at a usual setting, by name: what `compare` takes."""

from ..checks import numbers, shown, single, whole_workers
from ..costs import Link, Tree
from ..fusion import FixedBuffer
from ..units import MIB
from .optimising import (
    AdaptiveFusion,
    Compression,
    FasterLink,
    HalfPrecision,
    HierarchicalAllReduce,
    OtherCollective,
    Overlap,
    PriorityScheduling,
    TensorFusion,
)
from .workloads import Accumulation, FasterCompute, LargerBatch, LocalSGD


def catalogue(
    link: Link, inside: Link, workers_per_node: int, cast_s_per_byte: float, kernel_s: float
) -> dict:
    """Return label -> optimisation, for a scenario whose workers are joined by the link.

    link : of a ring through all nodes, which has a node's adapter to itself
    inside : the link in a node, whose workers share the adapter in a hierarchical all-reduce
    cast_s_per_byte : s a byte of float32 to cast to float16
    kernel_s : s to launch a kernel

    int8 reads gradients twice to encode, by two kernels, and once to decode. Those that change the
    batch or the compute of an iteration, and so T1, are the last four.

    Raises ValueError for what is no link, no whole number of workers, or no s from 0 up.
    """
    for name, value in (("link", link), ("inside", inside)):
        if not isinstance(value, Link):
            raise ValueError(
                f"catalogue: {name}: expected a Link, got {shown(value)}; write Link(alpha, beta)"
            )
    single(whole_workers(workers_per_node, name := "catalogue: workers_per_node"), name)
    single(numbers(kernel_s, "catalogue: kernel_s"), "catalogue: kernel_s")
    between = Link(link.alpha, workers_per_node * link.beta)
    once, launch = cast_s_per_byte, kernel_s
    return {
        "overlap": Overlap(),
        "buffer of 64 MiB": TensorFusion(FixedBuffer(64 * MIB)),
        "adaptive fusion": AdaptiveFusion(),
        "hierarchical": HierarchicalAllReduce(inside, workers_per_node, between),
        "fp16": HalfPrecision(once),
        "int8": Compression(4, 1.5 * once, 2 * launch, once, launch),
        "priority": PriorityScheduling(),
        "tree": OtherCollective(Tree(link)),
        "link twice as fast": FasterLink(2),
        "batch twice as large": LargerBatch(2),
        "4 micro-batches": Accumulation(4),
        "local SGD, 4 steps": LocalSGD(4),
        "device twice as fast": FasterCompute(2),
    }
