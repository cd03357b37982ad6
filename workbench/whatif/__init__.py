"""What to change, and how sure the answer is.

compare(scenario, {label: optimisation})    headroom(scenario)    band(scenario, fit, n_workers)
"""

from .comparing import ablate, catalogue, compare, predict_with
from .elasticities import sensitivity
from .one_at_a_time import factors
from .optimisations import (
    AdaptiveFusion,
    Compression,
    FasterLink,
    HalfPrecision,
    HierarchicalAllReduce,
    OtherCollective,
    Overlap,
    PriorityScheduling,
    TensorFusion,
    Together,
)
from .optimum import headroom, loss_curve, optimal, optimal_fusion, recommend
from .priority import predict_priority
from .uncertainty import band, extrapolation, knee, knee_range, untimed_sizes
from .workloads import Accumulation, FasterCompute, LargerBatch, LocalSGD

__all__ = [
    "Accumulation",
    "AdaptiveFusion",
    "Compression",
    "FasterCompute",
    "FasterLink",
    "HalfPrecision",
    "HierarchicalAllReduce",
    "LargerBatch",
    "LocalSGD",
    "OtherCollective",
    "Overlap",
    "PriorityScheduling",
    "TensorFusion",
    "Together",
    "ablate",
    "band",
    "catalogue",
    "compare",
    "extrapolation",
    "factors",
    "headroom",
    "knee",
    "knee_range",
    "loss_curve",
    "optimal",
    "optimal_fusion",
    "predict_priority",
    "predict_with",
    "recommend",
    "sensitivity",
    "untimed_sizes",
]
