"""Fits of what a message or a batch costs, the choice between them, and what to time next.

fit = fit_all_reduce(read_measurements(path))      fit.card()   fit.predict(nbytes, n_workers)
choose(candidates(measurements))                   next_measurement(fit, target)
"""

from .bands import untimed
from .choices import candidates, choose, held_out
from .diagnostics import curves, residuals
from .measuring import next_measurement
from .regression import Fit, fit_all_reduce, fit_batch_time, fit_collective
from .slowdown import Slowdown, fit_slowdown

__all__ = [
    "Fit",
    "Slowdown",
    "candidates",
    "choose",
    "curves",
    "fit_all_reduce",
    "fit_batch_time",
    "fit_collective",
    "fit_slowdown",
    "held_out",
    "next_measurement",
    "residuals",
    "untimed",
]
