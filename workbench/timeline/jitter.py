"""How much later the slowest of n workers is than the mean one: order statistics of iterations.

An iteration of synchronous training lasts as long as its slowest worker. If the workers' times
are independent draws from one distribution F, the expected time of the slowest of n is

    E[max of n] = integral of x dF(x)^n

which grows with n even on a free link. A jitter is a callable n_workers -> E[max of n] - mean, in
s, vectorised, 0 for one worker. Independent means that workers share no cause of delay, such as a
hot room or a storage that all wait for; such a delay is not jitter.
Source: H. A. David and H. N. Nagaraja, Order Statistics, 3rd edition (2003), sections 2.1 and 3.1.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from ..base.checks import checked, numbers, require, whole_workers
from .scenario import from_0


@dataclass(frozen=True, eq=False)
class SampleJitter:
    """Jitter of measured durations of one worker's iterations, s.

        E[max of n] = x_m - sum over i < m of (x_{i+1} - x_i) (i/m)^n        x sorted, m durations

    Pass iterations(run.events)["duration_s"] of a run of one worker, or "compute_s" of a run of
    several, whose durations already contain the wait for the slowest.
    Exact for draws with replacement, so never more than the slowest iteration measured: for more
    workers than iterations it is a lower bound. Raises ValueError for fewer than two durations.
    """

    durations_s: object

    def __post_init__(self):
        sample = numbers(self.durations_s, "durations_s", "finite s from 0 up")
        found, do = f"shape {sample.shape}", "Pass iterations(run.events)['duration_s']"
        several = sample.ndim == 1 and len(sample) > 1
        require(several, "durations_s", "two or more durations", found=found, do=do)

    def __call__(self, n_workers):
        n = whole_workers(n_workers)
        sample = np.sort(numbers(self.durations_s, "durations_s"))
        most = np.full_like(n, sample[-1])
        for below, gap in enumerate(np.diff(sample), start=1):
            most = most - gap * (below / len(sample)) ** n
        return np.where(n > 1, np.maximum(0.0, most - sample.mean()), 0.0)[()]


@checked(std_s=from_0("Take durations.std()"))
@dataclass(frozen=True)
class NormalJitter:
    """Jitter of normal durations with standard deviation std_s: std_s times E[max of n normals].

        E[max of n] = integral of x n phi(x) Phi(x)^(n-1) dx

    by the trapezoid rule, to 1e-9 up to a million workers. It extrapolates beyond the measured
    durations if they are normal: 2.25 std_s at 50 workers, 4.86 std_s at a million.
    """

    std_s: float

    def __call__(self, n_workers):
        n = whole_workers(n_workers)
        step, most = 0.04, np.zeros_like(n)
        for x in np.arange(-9.0, 9.0, step):
            density = np.exp(np.log(n) - x**2 / 2 + (n - 1) * log_ndtr(x)) / np.sqrt(2 * np.pi)
            most = most + step * x * density
        return np.where(n > 1, self.std_s * most, 0.0)[()]
