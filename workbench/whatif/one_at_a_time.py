"""What degrades the scaling factor, one factor at a time; everything else stays the same.

The abstract of OSF (WWW '22) mentions the factors that degrade scaling without naming them; these
six are ours. Each value is predicted exactly, so a curve through them is not a derivative (that is
`sensitivity`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from ..base.checks import above_0, checked, numbers, one_of, optional, require
from ..timeline import NormalJitter, Scenario, predict
from ..timeline.scenario import a_scenario
from .optimisations import FasterLink
from .workloads import FasterCompute, LargerBatch

FACTORS = {
    "factor": "what is varied; see `factors`",
    "value": "of the factor, in its unit",
    "unit": "multiple of the present value, or a share",
    "one_worker_s": "T1, s",
    "iteration_s": "Tn, s",
    "exposed_comm_s": "s",
    "scaling_factor": "T1 / Tn of this row",
    "as_it_is": "bool: the present value",
}
DOUBLINGS = 2.0 ** np.arange(-3, 3.25, 0.25)  # an eighth to eight times the present value
MULTIPLE, SHARE_OF_BYTES, SHARE_OF_T1 = (
    "times the present value",
    "share of all bytes",
    "share of T1",
)


def _largest(scenario: Scenario, value: float) -> Scenario:
    """Return the scenario whose largest gradient has this share of the bytes, their sum kept."""
    sizes = scenario.gradients["nbytes"].to_numpy(float)
    total, at = sizes.sum(), int(sizes.argmax())
    rest = total - sizes[at]
    expected = "a share from 0 to 1 of the bytes of two gradients or more"
    found = f"{value:g} of {len(sizes)}"
    require(0 <= value <= 1 and rest, "values largest gradient", expected, found=found)
    scaled = np.rint(sizes * ((1 - value) * total / rest))
    scaled[at] = 0
    scaled[at] = max(0.0, total - scaled.sum())  # with the rest of rounding
    return replace(scenario, gradients=scenario.gradients.assign(nbytes=scaled.astype("int64")))


def _stragglers(scenario: Scenario, share: float) -> Scenario:
    return replace(scenario, jitter=NormalJitter(share * scenario.one_worker_s))


# factor -> (scenario, value) -> scenario, and the unit of the value
VARIED: dict[str, tuple[Callable, str]] = {
    "bandwidth": (lambda scenario, x: FasterLink(x)(scenario), MULTIPLE),
    "latency": (lambda scenario, x: FasterLink(1.0, 1 / x)(scenario), MULTIPLE),
    "batch": (lambda scenario, x: LargerBatch(x)(scenario), MULTIPLE),
    "GPU speed": (lambda scenario, x: FasterCompute(x)(scenario), MULTIPLE),
    "largest gradient": (_largest, SHARE_OF_BYTES),
    "stragglers": (_stragglers, SHARE_OF_T1),
}


def _present(scenario: Scenario, factor: str) -> float:
    if factor != "largest gradient":
        return 0.0 if factor == "stragglers" else 1.0
    sizes = scenario.gradients["nbytes"].to_numpy(float)
    return float(sizes.max() / max(1.0, sizes.sum()))


def _known(values, name: str):
    require(isinstance(values, Mapping), name, f"factors of {', '.join(VARIED)}", values)
    for factor in values:
        one_of(VARIED)(factor, name)


@checked(scenario=a_scenario, values=optional(_known))
def factors(scenario: Scenario, values: Mapping[str, Iterable] | None = None) -> pd.DataFrame:
    """Return FACTORS: the scaling factor at several values of each factor alone.

        bandwidth, latency   multiples; latency is the cost of an empty message
        batch                multiples per worker: compute grows with it, messages do not
        GPU speed            multiples: T1, backward and ready times are divided by it
        largest gradient     its share of all bytes; the others shrink to keep the sum
        stragglers           standard deviation of a worker's iterations, as a share of T1: normal
                             and independent; an iteration waits for the slowest

    values : factor -> its values; by default all six with multiples from 1/8 to 8, shares from
        the second largest gradient's to 90 %, and deviations up to 10 %

    The present value is always included. Every scaling factor is T1 / Tn with its own T1.
    """
    values = usual_values(scenario) if values is None else values
    rows = []
    for factor, given in values.items():
        vary, unit = VARIED[factor]
        valid = above_0 if unit == MULTIPLE else numbers
        present = _present(scenario, factor)
        for value in np.unique([*valid(list(given), f"values {factor}"), present]):
            same = bool(value == present)
            found = predict(scenario if same else vary(scenario, float(value)))
            times = found.scenario.one_worker_s, found.iteration_s, found.exposed_comm_s
            rows.append((factor, value, unit, *times, found.scaling_factor, same))
    return pd.DataFrame(rows, columns=list(FACTORS))


def usual_values(scenario: Scenario) -> dict[str, np.ndarray]:
    """Return the default values of `factors`."""
    sizes = np.sort(scenario.gradients["nbytes"].to_numpy(float))
    second, rest = sizes[-2] if len(sizes) > 1 else 0.0, sizes[:-1].sum()
    least = second / (second + rest) if rest > 0 else 1.0  # tied with the second largest
    shares = np.linspace(least, max(least, 0.9), 17) if rest > 0 else np.ones(1)
    many = dict.fromkeys(("bandwidth", "latency", "batch", "GPU speed"), DOUBLINGS)
    return many | {"largest gradient": shares, "stragglers": np.linspace(0, 0.1, 11)}
