"""Optimisations of what a worker computes: a faster device, larger batches, fewer messages.

See `optimising` for what an optimisation is. A batch of another size changes how well a model
converges, which is not modelled: speedups are in samples a second.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd

from ..base.checks import check_callable, numbers, one_number, shown, single
from ..timeline import Scenario
from ..timeline.scaling import with_compute


@dataclass(frozen=True)
class FasterCompute:
    """A device `factor` times as fast: T1, backward and ready times are divided by it.

    The scaling factor then compares with the faster device's own T1. Jitter and times of the host
    stay as they are.
    """

    factor: float

    def __post_init__(self):
        above_0(self, "factor")

    def __call__(self, scenario: Scenario) -> Scenario:
        return _with_compute(scenario, scenario.one_worker_s / self.factor)


@dataclass(frozen=True)
class LargerBatch:
    """A batch `factor` times as large on each worker: compute takes longer, messages do not.

    batch_time, batch : seconds of a batch, such as fit_batch_time(table).model, and today's samples
        of a worker; without them compute grows in proportion
    """

    factor: float
    batch_time: object = None
    batch: float | None = None
    assumes: ClassVar = "convergence with a larger batch not modelled"

    def __post_init__(self):
        above_0(self, "factor")
        if (self.batch_time is None) != (self.batch is None):
            raise ValueError("LargerBatch: expected batch_time and batch together, or neither")
        if self.batch is not None:
            check_callable(self.batch_time, "LargerBatch batch_time", "BatchTime(fixed_s, s)")
            above_0(self, "batch")

    @property
    def samples(self) -> float:
        return float(self.factor)

    def __call__(self, scenario: Scenario) -> Scenario:
        longer = self.factor
        if self.batch is not None:
            times = [self.batch_time(self.batch * factor) for factor in (1, self.factor)]
            what = f"LargerBatch batch_time: what {shown(self.batch_time)} gave"
            before, after = numbers(times, what, "finite s above 0").tolist()
            if before == 0:
                raise ValueError(f"{what}: expected finite s above 0, got 0")
            longer = after / before
        return _with_compute(scenario, float(scenario.one_worker_s * longer))


@dataclass(frozen=True)
class Accumulation:
    """Gradients of `steps` micro-batches added up before they are sent: a batch steps times larger.

    update_s : s of T1 that the optimiser takes, once an iteration; at 0 T1 just grows steps times
    """

    steps: int
    update_s: float = 0.0
    assumes: ClassVar = "convergence with a larger batch not modelled"

    def __post_init__(self):
        _whole_steps(self)
        from_0(self, "update_s")

    @property
    def samples(self) -> float:
        return float(self.steps)

    def __call__(self, scenario: Scenario) -> Scenario:
        most_s = scenario.one_worker_s - scenario.micro_batches * scenario.backward_s
        if self.update_s > max(0.0, most_s):
            raise ValueError(
                "Accumulation update_s: expected at most what T1 leaves beside backward, "
                f"{max(0.0, most_s):.6g} s; got {self.update_s:.6g}"
            )
        once = (self.steps - 1) * self.update_s
        return _repeated(scenario, self.steps, self.steps * scenario.one_worker_s - once)


@dataclass(frozen=True)
class LocalSGD:
    """Workers train alone for `steps` steps and then average their parameters, after the update.

    An iteration is then the steps and one average: as many bytes as the gradients, not overlapped.
    """

    steps: int
    assumes: ClassVar = "an iteration is all local steps; convergence not modelled"

    def __post_init__(self):
        _whole_steps(self)

    @property
    def samples(self) -> float:
        return float(self.steps)

    def __call__(self, scenario: Scenario) -> Scenario:
        scenario = replace(scenario, overlap=False)
        return _repeated(scenario, self.steps, self.steps * scenario.one_worker_s)


@dataclass(frozen=True)
class _OverSteps:
    """Jitter of the sum of independent steps: sqrt(steps) times that of one (exact for normals)."""

    jitter: object
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


def from_0(optimisation, *names: str):
    """Raise ValueError unless the named fields are finite numbers from 0 up."""
    for name in names:
        what = f"{type(optimisation).__name__} {name} (s)"
        single(numbers(getattr(optimisation, name), what), what)


def above_0(optimisation, *names: str):
    """Raise ValueError unless the named fields are finite numbers above 0."""
    for name in names:
        value = getattr(optimisation, name)
        expected = f"{type(optimisation).__name__} {name}: expected a number above 0"
        if not 0 < one_number(value, expected, "2.0 is twice") < np.inf:
            raise ValueError(f"{expected}, got {shown(value)}; 2.0 is twice")


def _whole_steps(optimisation):
    expected = f"{type(optimisation).__name__} steps: expected a whole number from 1 up"
    steps = one_number(optimisation.steps, expected, "write steps=4")
    if not (1 <= steps < np.inf and steps == int(steps)):
        raise ValueError(f"{expected}, got {shown(steps)}")
