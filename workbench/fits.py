"""Fits of what a message or a batch costs, the choice between them, and what to time next.

fit = fit_all_reduce(read_measurements(path))      fit.card()   fit.predict(nbytes, n_workers)
choose(candidates(measurements))                   next_measurement(fit, target)
"""

from .fitting.bands import untimed
from .fitting.choices import candidates, choose, held_out
from .fitting.diagnostics import curves, residuals
from .fitting.measuring import next_measurement
from .fitting.regression import Fit, fit_all_reduce, fit_batch_time, fit_collective
from .fitting.slowdown import Slowdown, fit_slowdown

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
