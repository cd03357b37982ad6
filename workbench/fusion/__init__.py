"""Tensor fusion: which gradients share a message, and the settings of frameworks.

fuse(gradients, DDPBuckets())
"""

from .buckets import check_gradients, fuse, partition
from .policies import (
    DDPBuckets,
    DeepSpeedBuckets,
    FixedBuffer,
    HorovodFusion,
    MergedGradients,
    OneMessage,
    OptimalFusion,
    PerTensor,
    Plan,
    Policy,
    Timed,
)

__all__ = [
    "DDPBuckets",
    "DeepSpeedBuckets",
    "FixedBuffer",
    "HorovodFusion",
    "MergedGradients",
    "OneMessage",
    "OptimalFusion",
    "PerTensor",
    "Plan",
    "Policy",
    "Timed",
    "check_gradients",
    "fuse",
    "partition",
]
