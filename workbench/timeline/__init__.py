"""OSF itself: a Scenario of one iteration and the Prediction of its messages.

predict(scenario_of(run, Ring(link), 32, DDPBuckets()))    sweep(scenario, n_workers=[8, 16])
"""

from .export import as_events, chrome_trace
from .from_run import OneWorker, one_worker, scenario_of, sizes_of
from .jitter import NormalJitter, SampleJitter
from .prediction import Prediction, predict, sweep
from .queues import schedule
from .scaling import beside_measured, strong_scaling, weak_scaling
from .scenario import Jitter, Scenario
from .sharded import predict_sharded

__all__ = [
    "Jitter",
    "NormalJitter",
    "OneWorker",
    "Prediction",
    "SampleJitter",
    "Scenario",
    "as_events",
    "beside_measured",
    "chrome_trace",
    "one_worker",
    "predict",
    "predict_sharded",
    "scenario_of",
    "schedule",
    "sizes_of",
    "strong_scaling",
    "sweep",
    "weak_scaling",
]
