"""What adaptive fusion gains over a constant buffer, over traces and links: how it is spread.

The abstract of OSF (WWW '22) says that adaptive tensor fusion improves scaling by 32.2 % to 150 %
over a constant buffer. Which models, links and buffer that was is not public; adaptive fusion here
is the optimum over groupings (ours).
"""

from dataclasses import replace

import numpy as np
import pandas as pd

from ..base.tables import check
from ..base.units import MIB, MS
from ..costs import Affine, Link
from ..fusion import FixedBuffer, HorovodFusion, OptimalFusion
from ..fusion.frameworks import phases
from ..timeline import Scenario, predict

GAIN = {
    "model": "what is trained",
    "source": "whose alpha and beta",
    "network": "their network",
    "n_workers": "workers",
    "baseline": "the constant buffer",
    "constant": "scaling factor with it",
    "adaptive": "scaling factor of the optimum",
    "gain": "adaptive / constant - 1",
    "verdict": "no headroom, below, inside or above what the paper claims",
}
CLAIMED = (0.322, 1.50)  # of the scaling factor, by the paper's abstract
NOISE = 0.01  # a gain below it is no headroom: measurements cannot tell it
BASELINES = {
    "buffer 64 MiB": FixedBuffer(64 * MIB),
    "buffer 128 MiB": FixedBuffer(128 * MIB),
    "Horovod 64 MiB, 5 ms": HorovodFusion(64 * MIB, 5 * MS, "0.20.3"),
    "Horovod 128 MiB, 1 ms": HorovodFusion(128 * MIB, 1 * MS, "0.21.0"),
}


def fusion_gain(models: dict, links: pd.DataFrame) -> pd.DataFrame:
    """Return GAIN: a row for each model, link and constant buffer.

    models : name -> (GRADIENTS, T1 in s); backward ends with the last gradient
    links : source, network, n_workers, alpha (s a message), beta (s a byte)

    A buffer is sent when it is full; Horovod's is sent at ticks too, and counts with the mean of
    its scaling factors over four phases of the ticks.
    """
    columns = ("source", "network", "n_workers", "alpha", "beta")
    check(links, dict.fromkeys(columns, "as the docstring describes it"), "links")
    rows = []
    for name, (gradients, one_worker_s) in models.items():
        for link in links.itertuples(index=False):
            cost, n = Affine(Link(link.alpha, link.beta)), int(link.n_workers)
            backward_s = gradients["ready_s"].max()
            best = OptimalFusion(cost, n)
            scenario = Scenario(gradients, one_worker_s, backward_s, n, cost, best)
            adaptive = predict(scenario).scaling_factor
            for baseline, policy in BASELINES.items():
                each = [predict(replace(scenario, fusion=p)) for p in phases(policy)]
                constant = np.mean([found.scaling_factor for found in each])
                gain = adaptive / constant - 1
                what = (name, link.source, link.network, n, baseline)
                rows.append((*what, constant, adaptive, gain, _verdict(gain)))
    return pd.DataFrame(rows, columns=list(GAIN))


def _verdict(gain: float) -> str:
    low, high = CLAIMED
    if gain < NOISE:
        return "no headroom"
    return "below" if gain < low else "inside" if gain <= high else "above"
