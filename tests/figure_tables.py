"""What the tests of figures share: small tables and fits, and every draw_* with what it draws."""

import json
import tempfile
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from explorers import ten_gradients
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from test_lanes import two_steps
from test_timeline import scenario as three_messages

from workbench import KIB, MIB, figures
from workbench.costs import Interpolated, Link, Piecewise, Ring  # noqa: F401
from workbench.fits import fit_all_reduce, residuals
from workbench.fusion import FixedBuffer, HorovodFusion, OneMessage, PerTensor
from workbench.timeline import Scenario, predict
from workbench.traces import lanes, load_run  # noqa: F401
from workbench.validation.cells import VALIDATION
from workbench.validation.claims import CLAIMS
from workbench.validation.gain import GAIN
from workbench.whatif import (
    AdaptiveFusion,
    Compression,
    HalfPrecision,
    PriorityScheduling,
    ablate,
    compare,
    factors,
    headroom,
    loss_curve,
    sensitivity,
)
from workbench.whatif.uncertainty import BAND

TIMELINE = pd.DataFrame(
    {
        "n_gradients": [2, 3, 5],
        "nbytes": [1_000_000, 2_000_000, 3_000_000],
        "ready_s": [0.010, 0.020, 0.050],
        "start_s": [0.010, 0.040, 0.070],
        "end_s": [0.040, 0.070, 0.080],
    }
)
SCALING = pd.DataFrame(
    {
        "n_workers": [1, 2, 4, 8] * 3,
        "scaling_factor": [1, 0.9, 0.8, 0.7, 1, 0.8, 0.6, 0.5, 1, 0.95, 0.9, 0.85],
        "policy": ["one message"] * 4 + ["per tensor"] * 4 + ["DDP buckets"] * 4,
    }
)
ITERATIONS = pd.DataFrame(
    {
        "rank": [0, 0],
        "iteration": [3, 4],
        "duration_s": [0.10, 0.12],
        "compute_s": [0.06, 0.07],
        "exposed_comm_s": [0.02, 0.02],
        "exposed_memory_s": [0.01, 0.01],
        "idle_s": [0.01, 0.02],
    }
)
KNEE = pd.DataFrame({"knee": [8], "low": [4], "high": [16], "at_least": [True]})
ERRORS = pd.DataFrame({"dataset": list("aab"), "error": [0.1, -0.2, 0.05]})
OPTIONS = {
    "adaptive fusion": AdaptiveFusion(),
    "fp16": HalfPrecision(cast_s_per_byte=2e-11),
    "coded at a loss": Compression(1.0, encode_s_per_byte=1e-9),
    "priority": PriorityScheduling(),
}
SIZES = np.array([1, 2, 4, 8, 16]) * MIB
RING = Ring(Link(1e-5, 1e-9))
NOISE = (1.02, 0.98, 1.01, 0.99, 1.0)


@contextmanager
def paper_axes(venue: str = "acm-sigconf", **shape):
    """Yield an Axes of a figure that pyplot does not know, at paper size."""
    with mpl.rc_context(figures.paper(venue, **shape)):
        figure = Figure()
        FigureCanvasAgg(figure)
        yield figure.subplots()


def legend(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def texts(ax) -> list[str]:
    return [text.get_text() for text in ax.texts]


def rows(ax) -> list[str]:
    return [text.get_text() for text in ax.get_yticklabels()]


# --- tables ---------------------------------------------------------------------------------------


def three_gradients(**changes) -> Scenario:
    sizes = {"name": list("abc"), "nbytes": [8_000_000, 1_000_000, 4_000_000]}
    table = pd.DataFrame(sizes | {"ready_s": [0.02, 0.05, 0.1]})
    made = {"gradients": table, "one_worker_s": 0.2, "backward_s": 0.1, "n_workers": 8}
    cost = Ring(Link(1e-4, 1e-8))
    return Scenario(**(made | {"all_reduce": cost, "fusion": PerTensor()} | changes))


def ranges(levels=(1, 2, 4, 8, 16)) -> pd.DataFrame:
    """A band of 0.9 to 1.1 times 1 / (1 + 0.05 n), measured at 4 and 8 workers."""
    n = np.array(levels)
    factor = 1 / (1 + 0.05 * n)
    beyond = np.where(np.isin(n, (1, 4, 8)), 1.0, 2.0)
    columns = n, factor, 0.9 * factor, 1.1 * factor, factor, beyond, [""] * len(n)
    return pd.DataFrame(dict(zip(BAND, columns, strict=True)))


def timed(counts=(4, 8), sizes=SIZES, cost=RING) -> pd.DataFrame:
    n, nbytes = (grid.ravel() for grid in np.meshgrid(counts, sizes, indexing="ij"))
    noise = np.resize(NOISE, len(n))
    table = pd.DataFrame({"op": "all_reduce", "n_workers": n, "n_nodes": 1, "nbytes": nbytes})
    return table.assign(seconds=cost(nbytes, n) * noise)


def wide(counts=(4, 8), cost=RING) -> pd.DataFrame:
    return timed(counts, KIB * 2 ** np.arange(0, 16, 2), cost)


def steep() -> pd.DataFrame:
    """Times of a hop in three regimes, 1 KiB to 256 MiB."""
    cost = Piecewise(Ring, 5e-6, (4e-9, 5e-10, 2e-10), (16 * KIB, 1 * MIB))
    return timed((32,), KIB * 2.0 ** np.arange(19), cost)


def run():
    """A run of one rank with two steps."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace = {"distributedInfo": {"rank": 0}, "traceEvents": two_steps()}
        path.write_text(json.dumps(trace))
        return load_run(path)


def cells(quantity: str, **columns) -> pd.DataFrame:
    """Return VALIDATION with some columns, the others filled."""
    row = dict.fromkeys(VALIDATION, "x") | {"quantity": quantity}
    return pd.DataFrame(columns).assign(**{k: v for k, v in row.items() if k not in columns})


def gains(**columns) -> pd.DataFrame:
    """Return GAIN with some columns, the others 0."""
    three = {"model": list("aba"), "gain": [0.2, 0.5, 0.001], "baseline": ["big", "big", "small"]}
    table = pd.DataFrame(columns or three)
    return table.assign(**{name: 0.0 for name in GAIN if name not in table})


def claimed(**columns) -> pd.DataFrame:
    row = {"work": "$A$", "claim": "that", "source": "x", "unit": "times", "note": ""}
    numbers = {"claimed_low": 2.0, "claimed_high": 2.0, "ours_low": 3.0, "ours_high": 3.0}
    return pd.DataFrame(row | numbers | {"ratio": [1.5]} | columns)[list(CLAIMS)]


def curves(**columns) -> pd.DataFrame:
    table = pd.DataFrame({"n_workers": [8, 16, 8, 16], "model": ["ResNet-50"] * 2 + ["VGG"] * 2})
    table["predicted"], table["measured"] = [0.9, 0.8, 0.5, 0.4], [0.91, np.nan, np.nan, 0.3]
    return table.assign(**columns)


def losses(*names) -> pd.DataFrame:
    curve = loss_curve(three_gradients(), FixedBuffer(2**20), values=[1, 2, 4, 8, 16])
    return pd.concat([curve.assign(model=name) for name in names], ignore_index=True)


def ways() -> dict:
    after = three_gradients(fusion=OneMessage(), overlap=False)
    return {"no overlap": predict(after), "fused": predict(three_gradients())}


# --- every draw_* ---------------------------------------------------------------------------------

PARITY = {"method": list("abc"), "measured": [1, 2, 3.0], "predicted": [1, 2, 2.5]}
ADAPTIVE = {"constant": [0.4, 0.7], "adaptive": [0.6, 0.8], "model": "ResNet-50"}


def judged() -> pd.DataFrame:
    return residuals(FIT)


def one_factor() -> pd.DataFrame:
    return factors(three_gradients(), {"bandwidth": [0.5, 2]}).assign(model="mine")


# name -> function, what it draws, more arguments, and the column whose numbers are checked; None
# for what is not a table of numbers
EXAMPLES = {
    "timeline": ("timeline", lambda: TIMELINE, {"backward_s": 0.06}, "end_s"),
    "breakdown": ("breakdown", lambda: ITERATIONS, {}, None),
    "scaling": ("scaling", lambda: SCALING, {"label": "policy", "fitted_to": 4, "at": 2},
                "scaling_factor"),
    "step": ("step", lambda: predict(three_messages()).explain(), {"step": 2, "backward_s": 5.0},
             "start_s"),
    "overlap": ("overlap", ways, {}, None),
    "run": ("run", run, {}, None),
    "times": ("comparison", lambda: compare(ten_gradients(), OPTIONS),
              {"bounds": headroom(ten_gradients())}, "speedup"),
    "waterfall": ("comparison", lambda: ablate(ten_gradients(), OPTIONS), {}, "gain"),
    "shares": ("comparison", lambda: ablate(ten_gradients(), OPTIONS, "shapley"), {}, "gain"),
    "curve": ("fusion_curve", lambda: loss_curve(ten_gradients()), {"at": 25}, "loss"),
    "cycles": ("fusion_curve", lambda: loss_curve(ten_gradients(), HorovodFusion()), {}, "value"),
    "elasticities": ("sensitivity", lambda: sensitivity(ten_gradients()), {}, "elasticity"),
    "forecast": ("forecast", ranges, {"knee": KNEE}, "low"),
    "beyond": ("forecast", ranges, {"knee": KNEE.assign(knee=2**20, low=2**19)}, "high"),
    "parity": ("parity", lambda: cells("s", **PARITY), {}, "measured"),
    "gain": ("gain", gains, {}, "gain"),
    "claims": ("claims", claimed, {}, "ratio"),
    "errors": ("errors", lambda: ERRORS, {}, "error"),
    "adaptive": ("adaptive", lambda: gains(**ADAPTIVE), {"words": "when full"}, "constant"),
    "models": ("models", curves, {"fitted_to": 8, "words": "the cluster"}, "predicted"),
    "buffers": ("buffers", lambda: losses("ResNet-50", "mine"), {"at": 4}, "loss"),
    "factors": ("factors", one_factor, {}, "scaling_factor"),
    "fit": ("fit", lambda: FIT, {}, None),
    "regimes": ("regimes", lambda: fit_all_reduce(steep(), Piecewise), {}, None),
    "residuals": ("residuals", judged, {}, "relative_error"),
    "qq": ("qq", judged, {}, "relative_error"),
    "influence": ("influence", judged, {}, "relative_error"),
}  # fmt: skip


def example(name: str) -> tuple:
    """Return the draw_*, what it draws, its other arguments and the column to spoil."""
    function, made, more, column = EXAMPLES[name]
    return getattr(figures, f"draw_{function}"), made(), more, column


THREE, FIT = three_gradients(), fit_all_reduce(timed())


def drawn(name: str, *args, **changes):
    """Return a call that draws an example on new Axes, with other arguments."""

    def call():
        draw, table, more, _ = example(name)
        return draw(Figure().subplots(), *(args or (table,)), **more | changes)

    return call
