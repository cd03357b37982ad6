"""From files to what each iteration did.

run = load_run(path)    iterations(run)    gradients(run)    read_measurements(path)
"""

from .breakdown import (
    all_reduces,
    collectives,
    gradients,
    gradients_by_iteration,
    iterations,
    medians,
    stragglers,
)
from .crosscheck import cross_check
from .run import Run, add_sizes, load_run, read_events, read_measurements, read_totals
from .tracks import Lanes, lanes

__all__ = [
    "Lanes",
    "Run",
    "add_sizes",
    "all_reduces",
    "collectives",
    "cross_check",
    "gradients",
    "gradients_by_iteration",
    "iterations",
    "lanes",
    "load_run",
    "medians",
    "read_events",
    "read_measurements",
    "read_totals",
    "stragglers",
]
