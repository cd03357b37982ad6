"""The seconds of one message: costs of collectives over links, and how a price is printed.

Ring(Link(alpha, beta))(nbytes, n_workers)
"""

from .adjusted import Adjusted
from .links import (
    Affine,
    BatchTime,
    Cost,
    FlatRing,
    HalvingDoubling,
    Hierarchical,
    Interpolated,
    Link,
    LinkCost,
    NodesCost,
    ParameterServer,
    Piecewise,
    Ring,
    Tree,
    bus_bandwidth,
)
from .nccl import NcclTuner

__all__ = [
    "Adjusted",
    "Affine",
    "BatchTime",
    "Cost",
    "FlatRing",
    "HalvingDoubling",
    "Hierarchical",
    "Interpolated",
    "Link",
    "LinkCost",
    "NcclTuner",
    "NodesCost",
    "ParameterServer",
    "Piecewise",
    "Ring",
    "Tree",
    "bus_bandwidth",
]
