"""How much later the slowest of n workers is than the mean one: order statistics of iterations.

An iteration of synchronous training lasts as long as its slowest worker. When the workers' times
are independent draws of one distribution F, the expected time of the slowest of n is

    E[max of n] = integral of x dF(x)^n

which grows with n even on a free link. A jitter is a callable n_workers -> E[max of n] - mean, in
s, vectorised, 0 for a lone worker. Independent means: no cause shared by all workers, such as a hot
room or a storage that all wait for, which is no jitter but time of its own.
Source: H. A. David and H. N. Nagaraja, Order Statistics, 3rd edition (2003), sections 2.1 and 3.1.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from ..base.checks import numbers, one_number, whole_workers


@dataclass(frozen=True, eq=False)
class SampleJitter:
    """Jitter of measured durations of one worker's iterations, s, drawn from as they are.

        E[max of n] = x_m - sum over i < m of (x_{i+1} - x_i) (i/m)^n        x sorted, m durations

    Take iterations(run.events)["duration_s"] of a run of one worker; of several, their "compute_s",
    as each one's duration holds the wait for the slowest already.
    Exact for draws with replacement, and so never beyond the slowest iteration measured: for more
    workers than iterations it is a lower estimate. Raises ValueError for fewer than two durations.
    """

    durations_s: object

    def __post_init__(self):
        sample = numbers(self.durations_s, "durations_s", "finite s from 0 up")
        if sample.ndim != 1 or len(sample) < 2:
            raise ValueError(
                f"durations_s: expected two or more durations, got shape {sample.shape}; "
                "pass iterations(run.events)['duration_s']"
            )

    def __call__(self, n_workers):
        n = whole_workers(n_workers)
        sample = np.sort(numbers(self.durations_s, "durations_s"))
        most = np.full_like(n, sample[-1])
        for below, gap in enumerate(np.diff(sample), start=1):
            most = most - gap * (below / len(sample)) ** n
        return np.where(n > 1, np.maximum(0.0, most - sample.mean()), 0.0)[()]


@dataclass(frozen=True)
class NormalJitter:
    """Jitter of normal durations of standard deviation std_s: std_s times E[max of n normals].

        E[max of n] = integral of x n phi(x) Phi(x)^(n-1) dx

    by the trapezoid rule, to 1e-9 up to a million workers. It reaches beyond what was measured, as
    far as the normal holds: 2.25 std_s at 50 workers, 4.86 std_s at a million.
    """

    std_s: float

    def __post_init__(self):
        one_number(self.std_s, "std_s: expected one number of s", "take durations.std()")
        numbers(self.std_s, "std_s")

    def __call__(self, n_workers):
        n = whole_workers(n_workers)
        step, most = 0.04, np.zeros_like(n)
        for x in np.arange(-9.0, 9.0, step):
            density = np.exp(np.log(n) - x**2 / 2 + (n - 1) * log_ndtr(x)) / np.sqrt(2 * np.pi)
            most = most + step * x * density
        return np.where(n > 1, self.std_s * most, 0.0)[()]
