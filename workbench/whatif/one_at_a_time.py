"""What degrades the scaling factor, one factor at a time: all else stays as it is.

The abstract of OSF (WWW '22) says that its model finds the factors that hurt scaling, and does not
say here which; these six are ours. Each is the same scenario with one thing changed, predicted
again, so a curve through the values is exact and no derivative (that is `sensitivity`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from ..base.checks import numbers, shown
from ..timeline import NormalJitter, Scenario, predict
from ..timeline.scenario import check_scenario
from .optimisations import FasterLink
from .workloads import FasterCompute, LargerBatch

FACTORS = {
    "factor": "what is varied; see VARIED",
    "value": "of the factor, in its unit",
    "unit": "times as it is, or a share",
    "one_worker_s": "T1, s",
    "iteration_s": "Tn, s",
    "exposed_comm_s": "s",
    "scaling_factor": "T1 / Tn of this row",
    "as_it_is": "bool: the scenario itself",
}
DOUBLINGS = 2.0 ** np.arange(-3, 3.25, 0.25)  # an eighth to eight times as it is
TIMES, SHARE_OF_BYTES, SHARE_OF_T1 = "times as it is", "share of all bytes", "share of T1"


def factors(scenario: Scenario, values: Mapping[str, Iterable] | None = None) -> pd.DataFrame:
    """Return FACTORS: the scaling factor as each factor alone takes other values.

        bandwidth, latency   of the link, times as it is; latency is what an empty message costs
        batch                of a worker, times as it is: compute grows with it, messages do not
        GPU speed            times as it is: T1, backward and ready times are divided by it
        largest gradient     its share of all bytes; the others shrink, so that their sum stays
        stragglers           standard deviation of a worker's iterations, as a share of T1: normal
                             and independent, an iteration waits for the slowest

    values : factor -> its values; by default all six, an eighth to eight times as it is, shares
        from where the largest gradient is just the largest up to 90 %, and deviations to 10 %

    The value as it is, is always among them. Every scaling factor is T1 / Tn with its own T1.
    Raises ValueError for an unknown factor, or a value that it cannot take.
    """
    check_scenario(scenario, "factors")
    values = usual_values(scenario) if values is None else values
    given = list(values) if isinstance(values, Mapping) else [values]
    unknown = [name for name in given if not isinstance(name, str) or name not in VARIED]
    if unknown:
        raise ValueError(
            f"factors: values: expected {{factor: values}} of {', '.join(VARIED)}; "
            f"got {shown(unknown[0])}"
        )
    rows = []
    for factor, given in values.items():
        vary, unit, now = VARIED[factor]
        present = now(scenario)
        tried = numbers(list(given), f"factors: {factor}", "finite numbers from 0 up")
        if unit == TIMES and (tried == 0).any():
            raise ValueError(f"factors: {factor}: expected numbers of times above 0, got 0")
        for value in np.unique([*tried, present]):
            same = bool(value == present)
            found = predict(scenario if same else vary(scenario, float(value)))
            times = found.scenario.one_worker_s, found.iteration_s, found.exposed_comm_s
            rows.append((factor, value, unit, *times, found.scaling_factor, same))
    return pd.DataFrame(rows, columns=list(FACTORS))


def usual_values(scenario: Scenario) -> dict[str, np.ndarray]:
    """Return the values that factors tries unless told: a fair range of each factor."""
    sizes = np.sort(scenario.gradients["nbytes"].to_numpy(float))
    second, rest = sizes[-2] if len(sizes) > 1 else 0.0, sizes[:-1].sum()
    least = second / (second + rest) if rest > 0 else 1.0  # where it ties with the next largest
    shares = np.linspace(least, max(least, 0.9), 17) if rest > 0 else np.ones(1)
    many = dict.fromkeys(("bandwidth", "latency", "batch", "GPU speed"), DOUBLINGS)
    return many | {"largest gradient": shares, "stragglers": np.linspace(0, 0.1, 11)}


def _bandwidth(scenario: Scenario, value: float) -> Scenario:
    return FasterLink(bandwidth=value)(scenario)


def _latency(scenario: Scenario, value: float) -> Scenario:
    return FasterLink(bandwidth=1.0, latency=1 / value)(scenario)


def _batch(scenario: Scenario, value: float) -> Scenario:
    return LargerBatch(value)(scenario)


def _speed(scenario: Scenario, value: float) -> Scenario:
    return FasterCompute(value)(scenario)


def _largest(scenario: Scenario, value: float) -> Scenario:
    """Return the scenario whose largest gradient has this share of the bytes, their sum kept."""
    sizes = scenario.gradients["nbytes"].to_numpy(float)
    total, at = sizes.sum(), int(sizes.argmax())
    rest = total - sizes[at]
    if not 0 <= value <= 1 or rest == 0:
        raise ValueError(
            f"factors: largest gradient: expected a share of all bytes from 0 to 1, of two "
            f"gradients or more; got {value:g} of {len(sizes)}"
        )
    scaled = np.rint(sizes * ((1 - value) * total / rest))
    scaled[at] = 0
    scaled[at] = max(0.0, total - scaled.sum())  # what rounding left over, too
    return replace(scenario, gradients=scenario.gradients.assign(nbytes=scaled.astype("int64")))


def _stragglers(scenario: Scenario, value: float) -> Scenario:
    return replace(scenario, jitter=NormalJitter(value * scenario.one_worker_s))


def _share(scenario: Scenario) -> float:
    sizes = scenario.gradients["nbytes"].to_numpy(float)
    return float(sizes.max() / max(1.0, sizes.sum()))


def _as_it_is(scenario: Scenario) -> float:
    return 1.0


def _alike(scenario: Scenario) -> float:
    return 0.0


# factor -> (scenario, value) -> scenario; the unit of the value; the value as it is
VARIED: dict[str, tuple[Callable, str, Callable]] = {
    "bandwidth": (_bandwidth, TIMES, _as_it_is),
    "latency": (_latency, TIMES, _as_it_is),
    "batch": (_batch, TIMES, _as_it_is),
    "GPU speed": (_speed, TIMES, _as_it_is),
    "largest gradient": (_largest, SHARE_OF_BYTES, _share),
    "stragglers": (_stragglers, SHARE_OF_T1, _alike),
}
