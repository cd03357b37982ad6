"""Where the price of a message bends: the corners of a price in regimes, in bytes of a message."""

import numpy as np
import pandas as pd

from ..costs import Piecewise
from .diagnostics import refuse_other

CORNERS = {
    "n_workers": "workers",
    "regime": "number of the regime that ends here, from 1",
    "nbytes": "of a message at the corner, bytes",
    "seconds": "what it costs, s",
}


def corners(fit, n_workers: int | None = None) -> pd.DataFrame:
    """Return CORNERS of a fit for a number of workers, by default the most measured; maybe no row.

        S = x h(n) / m(1, n)

    Breaks x are bytes of a hop; h are the hops and m(1, n) what one byte of a message moves. For a
    ring S = n x. A price without regimes has no corner.
    """
    refuse_other(fit, "corners")
    n = int(fit.measurements["n_workers"].max() if n_workers is None else n_workers)
    bends = isinstance(fit.model, Piecewise) and n > 1
    counts = fit.model.columns(1.0, n) if bends else {"alpha": 0.0, "beta": 1.0}
    hops = float(counts.pop("alpha"))
    moved = float(sum(counts.values()))  # whatever the regime, the parts add up to the bytes moved
    at = np.array([each * hops / moved for each in (fit.model.breaks if bends else ())], float)
    seconds = np.asarray(fit.model(at, n), float) if len(at) else at
    regime = np.arange(1, len(at) + 1)
    return pd.DataFrame({"n_workers": n, "regime": regime, "nbytes": at, "seconds": seconds})
