"""Optimisations of what a worker computes: a faster device, larger batches, fewer messages.

`optimisations` defines what an optimisation is. Another batch size changes how well a model
converges, which is not modelled: speedups are in samples per second.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd

from ..base.checks import above_0, call_of, checked, optional, real, require, shown, whole
from ..timeline import Jitter, Scenario
from ..timeline.scaling import with_compute

TIMES_AS_MUCH = real("a number above 0", lambda v: v > 0, "2.0 is twice")
SECONDS = real("finite s from 0 up", lambda v: v >= 0)
_STEPS = whole(1, "Write steps=4")


@checked(factor=TIMES_AS_MUCH)
@dataclass(frozen=True)
class FasterCompute:
    """A device `factor` times as fast: T1, backward and ready times are divided by it.

    The scaling factor is then relative to the T1 of the faster device. Jitter and times of the host
    do not change.
    """

    factor: float

    def __call__(self, scenario: Scenario) -> Scenario:
        return _with_compute(scenario, scenario.one_worker_s / self.factor)


@checked(
    factor=TIMES_AS_MUCH,
    batch_time=optional(call_of("BatchTime(fixed_s, per_sample_s)")),
    batch=optional(TIMES_AS_MUCH),
)
@dataclass(frozen=True)
class LargerBatch:
    """A batch `factor` times as large on each worker: compute takes longer, messages do not.

    batch_time : s of a batch, such as fit_batch_time(table).model; None: compute is proportional
    batch : samples per worker today; goes with batch_time
    """

    factor: float
    batch_time: object = None
    batch: float | None = None
    assumes: ClassVar = "convergence with a larger batch not modelled"

    def __post_init__(self):
        both = (self.batch_time is None) == (self.batch is None)
        require(both, "LargerBatch batch_time", "batch_time and batch together, or neither")

    @property
    def samples(self) -> float:
        return float(self.factor)

    def __call__(self, scenario: Scenario) -> Scenario:
        longer = self.factor
        if self.batch is not None:
            times = [self.batch_time(self.batch * factor) for factor in (1, self.factor)]
            before, after = above_0(
                times, f"LargerBatch batch_time: what {shown(self.batch_time)} gave"
            )
            longer = after / before
        return _with_compute(scenario, float(scenario.one_worker_s * longer))


@checked(steps=_STEPS, update_s=SECONDS)
@dataclass(frozen=True)
class Accumulation:
    """Gradients of `steps` micro-batches added up before they are sent: a batch steps times larger.

    update_s : s of T1 that the optimiser takes, once per iteration; at 0, T1 grows steps times
    """

    steps: int
    update_s: float = 0.0
    assumes: ClassVar = "convergence with a larger batch not modelled"

    @property
    def samples(self) -> float:
        return float(self.steps)

    def __call__(self, scenario: Scenario) -> Scenario:
        most_s = max(0.0, scenario.one_worker_s - scenario.micro_batches * scenario.backward_s)
        expected = f"at most T1 less backward, {most_s:.6g} s"
        require(self.update_s <= most_s, "Accumulation update_s", expected, self.update_s)
        once = (self.steps - 1) * self.update_s
        return _repeated(scenario, self.steps, self.steps * scenario.one_worker_s - once)


@checked(steps=_STEPS)
@dataclass(frozen=True)
class LocalSGD:
    """Workers train alone for `steps` steps and then average their parameters, after the update.

    An iteration is then the steps and one average: as many bytes as the gradients, not overlapped.
    """

    steps: int
    assumes: ClassVar = "an iteration is all local steps; convergence not modelled"

    @property
    def samples(self) -> float:
        return float(self.steps)

    def __call__(self, scenario: Scenario) -> Scenario:
        scenario = replace(scenario, overlap=False)
        return _repeated(scenario, self.steps, self.steps * scenario.one_worker_s)


@dataclass(frozen=True)
class _OverSteps:
    """Jitter of the sum of independent steps: sqrt(steps) times that of one (exact for normals)."""

    jitter: Jitter
    steps: int

    def __call__(self, n_workers):
        return np.sqrt(self.steps) * np.asarray(self.jitter(n_workers), float)


def _repeated(scenario: Scenario, steps: int, one_worker_s: float) -> Scenario:
    jitter = None if scenario.jitter is None else _OverSteps(scenario.jitter, steps)
    return replace(
        scenario,
        one_worker_s=float(one_worker_s),
        micro_batches=int(scenario.micro_batches * steps),
        jitter=jitter,
    )


def _with_compute(scenario: Scenario, one_worker_s: float) -> Scenario:
    """Return the scenario with compute that takes one_worker_s; no host is behind its device."""
    table, factor = scenario.gradients, one_worker_s / scenario.one_worker_s
    early = enqueued_by(table, table["ready_s"] * min(1.0, factor))
    return with_compute(replace(scenario, gradients=early), one_worker_s)


def enqueued_by(gradients: pd.DataFrame, ready_s) -> pd.DataFrame:
    """Return GRADIENTS whose host, where its clock is known, enqueues none after ready_s."""
    if "enqueued_s" not in gradients:
        return gradients
    return gradients.assign(enqueued_s=np.minimum(gradients["enqueued_s"], ready_s))
