"""Settings of the frameworks: the policy of each one, and the text to paste."""

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..base.checks import require
from ..base.units import KIB, MIB, MS
from .policies import DDPBuckets, DeepSpeedBuckets, FixedBuffer, HorovodFusion, Plan, Policy

_PHASES = 4  # phases of Horovod's ticks to average over: any phase is possible
_CYCLES_MS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0)
FRAMEWORKS = {
    DDPBuckets: "PyTorch DDP",
    HorovodFusion: "Horovod",
    DeepSpeedBuckets: "DeepSpeed",
    FixedBuffer: "constant buffer",
}


class Setting(NamedTuple):
    """One setting: its value in the framework's unit, Horovod's cycle, text, and its policy."""

    value: float
    cycle_ms: float
    setting: str
    policy: Policy


def variations(
    gradients: pd.DataFrame, policy: Policy, values: Iterable | None = None
) -> list[Setting]:
    """Return settings of the policy's framework; other fields of the policy are kept.

    DDPBuckets: bucket_cap_mb in MiB; HorovodFusion: HOROVOD_FUSION_THRESHOLD in MiB with cycles of
    1 to 50 ms; DeepSpeedBuckets: reduce_bucket_size in elements; FixedBuffer: MiB. The
    default values are round, up to the first that holds all gradients.
    """
    known = ", ".join(each.__name__ for each in FRAMEWORKS)
    ok, expected = type(policy) in FRAMEWORKS, f"a policy with a setting to vary: {known}"
    require(ok, "policy", expected, policy)
    total = int(gradients["nbytes"].sum())
    if isinstance(policy, DeepSpeedBuckets):
        tried = _round_values(total / policy.element_bytes, (1, 2, 5), lowest=1000)
    else:
        tried = _round_values(total / MIB, (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8), lowest=1)
    values = tried if values is None else list(values)
    if isinstance(policy, HorovodFusion):
        return [_horovod(policy, *pair) for pair in itertools.product(values, _CYCLES_MS)]
    return [_setting(policy, value) for value in values]


def _setting(policy: Policy, value: float) -> Setting:
    if isinstance(policy, DeepSpeedBuckets):
        varied = replace(policy, elements=int(value))
        return Setting(varied.elements, np.nan, _zero(varied.elements), varied)
    nbytes = int(value * MIB)
    if isinstance(policy, DDPBuckets):
        text = f"DistributedDataParallel(model, bucket_cap_mb={value:g})"
        return Setting(value, np.nan, text, DDPBuckets(nbytes, nbytes))
    text = f"a buffer of {value:g} MiB"
    return Setting(value, np.nan, text, replace(policy, buffer_bytes=nbytes))


def _zero(elements: int) -> str:
    """Return DeepSpeed's complete block of stage 2, since ZeRO is off without a stage.

    Overlap is off by default, and stage 1 ignores overlap_comm. Sources: the
    table of zero_optimization in docs/_pages/config-json.md, and _configure_zero_optimizer of
    deepspeed/runtime/engine.py.
    """
    block = {"stage": 2, "overlap_comm": True, "contiguous_gradients": True}
    return json.dumps({"zero_optimization": block | {"reduce_bucket_size": elements}})


def as_given(policy: Policy) -> str:
    """Return the text to paste for a policy as it is, such as a framework's default."""
    if isinstance(policy, DeepSpeedBuckets):
        return _zero(int(policy.elements))
    if isinstance(policy, HorovodFusion):
        return _horovod(policy, policy.threshold_bytes / MIB, policy.cycle_s / MS).setting
    if policy == DDPBuckets():
        return "DistributedDataParallel(model)"
    return repr(policy)


def _horovod(policy: HorovodFusion, value: float, cycle_ms: float) -> Setting:
    threshold = int(value * MIB)
    text = f"HOROVOD_FUSION_THRESHOLD={threshold} HOROVOD_CYCLE_TIME={cycle_ms:g}"
    varied = replace(policy, threshold_bytes=threshold, cycle_s=cycle_ms * MS)
    return Setting(value, cycle_ms, text, varied)


def phases(policy: Policy) -> list[Policy]:
    """Return the policies to average over: Horovod's at several phases, others as they are."""
    if not isinstance(policy, HorovodFusion):
        return [policy]
    return [replace(policy, phase_s=k * policy.cycle_s / _PHASES) for k in range(_PHASES)]


def _round_values(total: float, steps: tuple, lowest: float) -> list:
    """Return steps times powers of ten from lowest up to the first that holds the total."""
    values = [lowest * step * 10**power for power in range(13) for step in steps]
    return values[: 1 + next((i for i, v in enumerate(values) if v >= total), len(values))]


def cap_list(gradients: pd.DataFrame, plan: Plan) -> tuple[str, DDPBuckets]:
    """Return bucket_cap_mb_list for a plan, as text and as the policy it makes.

    A bucket closes after the gradient that reaches its cap, so a cap may lie between the bytes
    before its last gradient and those with it: the roundest is used. A cap is at least 1 KiB, so
    if a smaller message is planned, the policy may differ from the plan.
    """
    sizes = gradients["nbytes"].to_numpy("int64")
    held = np.add.reduceat(sizes, np.append(0, plan.boundaries[:-1]).astype("int64"))
    last = sizes[np.array(plan.boundaries) - 1]
    caps = [_roundest((a - b) / MIB, a / MIB) for a, b in zip(held, last, strict=True)]
    caps = [max(cap, 1 / KIB) for cap in caps]
    text = ", ".join(str(int(cap) if cap == int(cap) else cap) for cap in caps)
    policy = DDPBuckets(caps=tuple(int(cap * MIB) for cap in caps))
    return f"DistributedDataParallel(model, bucket_cap_mb_list=[{text}])", policy


def _roundest(low: float, high: float) -> float:
    """Return the number with the fewest decimals above low and up to high."""
    for digits in range(7):
        value = math.floor(high * 10**digits) / 10**digits
        if low < value:
            return value
    return high
