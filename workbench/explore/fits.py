"""Explore a fit: the line, its residuals and its card move together."""

import warnings
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pandas as pd
import traitlets
from ipywidgets import Dropdown, SelectionRangeSlider

from ..base.checks import shown
from ..base.tables import MEASUREMENTS, check
from ..costs import FlatRing, HalvingDoubling, Hierarchical, Interpolated, Piecewise, Ring, Tree
from ..figures import draw_fit, draw_residuals
from ..figures.style import binary, size_axis
from ..fits import Fit, curves, fit_collective, residuals
from ..fits.diagnostics import left_out
from .code import call
from .explorer import CONTROL, Explorer
from .pictures import Picture, amid
from .positions import in_digits

KINDS = {
    "ring": Ring,
    "ring in regimes": Piecewise,
    "halving-doubling": HalvingDoubling,
    "double tree": Tree,
    "two links, one ring": FlatRing,
    "two links, hierarchical": Hierarchical,
    "measured times, joined": Interpolated,
}
METHODS = {"least squares": "wls", "robust (Huber)": "huber", "median": "quantile"}
WEIGHTS = {
    "relative errors": "relative",
    "relative to measured times": "measured",
    "absolute errors": "absolute",
}
DRAWN = """
table = residuals(fit)
with plt.rc_context(paper(ratio=1.0)):
    fig, (above, below) = plt.subplots(2, 1, height_ratios=(2.4, 1))
    draw_fit(above, fit, curves(fit), card=False)
    draw_residuals(below, table)"""
CARD = '<div style="line-height: 1.3; white-space: nowrap; overflow-x: auto">{}</div>'
OUTLIERS = {"set aside": "set aside", "keep": "keep"}
TOLD = {  # the controls, and their tooltips
    "data": "the timings that are fitted",
    "kind": "the cost of a message that is fitted to them",
    "method": "how the fit is made",
    "weights": "which errors are made small",
    "outliers": "what becomes of timings far off the others",
    "sizes": "from which to which message size timings are fitted",
}


def explore_fit(
    measurements,
    kind: str = "ring",
    name: str = "fit",
    folder=None,
    inputs=(),
    op: str = "all_reduce",
    kinds: dict | None = None,
) -> "FitExplorer":
    """Show draw_fit, draw_residuals and the card of a fit, with controls for how it is made.

    Parameters
    ----------
    measurements : a MEASUREMENTS table, or {label: table} of several to choose from
    kind : where to start, one of the labels of kinds
    name, folder, inputs : as in figures.save, for the button "Save figure"
    op : the collective that is fitted
    kinds : {label: kind of fit_collective}; by default every kind of this package that has the op

    `explorer.fit` is the Fit that stands there now. A setting that cannot be fitted leaves the
    picture and the card as they were and says why. Raises ValueError for tables that are none, an
    unknown kind, what `save` refuses, and a first fit that cannot be made.
    """
    several = isinstance(measurements, dict)
    tables = measurements if several else {"measurements": measurements}
    if not tables:
        raise ValueError("explore_fit: measurements: expected one table or more, got none")
    for label, table in tables.items():
        what = f"explore_fit: measurements {label!r}"
        if not isinstance(table, pd.DataFrame):
            raise ValueError(
                f"{what}: expected a DataFrame, got {shown(table)}; pass {{label: table}}"
            )
        check(table, MEASUREMENTS, what)
    if kinds is None:
        plain = ("ring", "ring in regimes", "measured times, joined")
        kinds = KINDS if op == "all_reduce" else {label: KINDS[label] for label in plain}
    if kind not in kinds:
        raise ValueError(
            f"explore_fit: kind: expected one of {', '.join(kinds)}; got {shown(kind)}"
        )
    return FitExplorer(tables, kind, kinds, op, (name, folder, inputs), several)


class FitExplorer(Explorer):
    """Controls for the data, the kind, the method and the range of a fit, and what comes of them.

    `fit` is the Fit of the controls' present positions; it can be observed.
    """

    fit = traitlets.Any()
    given = "measurements, as they were given to the explorer"
    late = ("sizes",)
    grid = {"kind": None, "data": None, "outliers": None}
    ratio = 1.0

    def __init__(self, tables: dict, kind: str, kinds: dict, op: str, target: tuple, several: bool):
        self._tables, self._kinds, self._op = tables, kinds, op
        self._sources = {
            label: f"measurements[{label!r}]" if several else "measurements" for label in tables
        }
        if len(tables) > 1:
            self.follows = {"sizes": "as they stand, of other data all"}
        if not set(kinds.values()) <= set(KINDS.values()):
            self.given = "measurements and kinds, as they were given to the explorer"
        self._fitted = lru_cache(maxsize=64)(self._fit)
        first = next(iter(tables))
        edges = _edges(tables[first], op)
        choices = {"kind": kinds, "method": METHODS, "weights": WEIGHTS, "outliers": OUTLIERS}
        sizes = SelectionRangeSlider(options=edges, index=(0, len(edges) - 1), description="sizes",
                                     tooltip=TOLD["sizes"], continuous_update=False,
                                     **CONTROL)  # fmt: skip
        controls = {
            name: Dropdown(options=list(each), description=name, tooltip=TOLD[name], **CONTROL)
            for name, each in ({"data": tables} | choices).items()
        }
        controls["kind"].value = kind
        super().__init__(controls | {"sizes": sizes}, *target)

    def follow(self, moved: set):
        """Let the sizes be those of another table, all of them."""
        sizes = self._controls["sizes"]
        edges = _edges(self._tables[self._controls["data"].value], self._op)
        if "data" in moved and list(sizes.options) != edges:
            sizes.options = edges
            sizes.index = (0, len(edges) - 1)

    def placed(self, values: dict) -> dict:
        """Return a place of a static page: of another table all its sizes, as when it is chosen."""
        if values["data"] == self._controls["data"].value:
            return values
        edges = _edges(self._tables[values["data"]], self._op)
        return values | {"sizes": (edges[0][1], edges[-1][1])}

    def picture(self, values: dict, moved: set) -> Picture:
        """Return the picture of the fit that the controls ask for."""
        fit, notes = self._fitted(**values)
        table, errors, card = curves(fit), residuals(fit), fit.card()
        worst, mean = (np.abs(errors["relative_error"]).agg(which) for which in ("max", "mean"))
        words = (
            f"{values['kind']} over {len(errors)} points of {values['data']}, "
            f"{len(fit.set_aside)} set aside: mean error {_percent(mean)}, worst {_percent(worst)}"
        )
        out = left_out(fit)[["nbytes", "n_workers", "seconds", "why"]]
        return Picture(
            lambda figure: _draw(figure, fit, table, errors),
            pd.concat([errors, out], ignore_index=True),
            "; ".join([words, *notes]),
            values | {"op": self._op, "fitted": fit.parameters()},
            CARD.format(_html(card)),
            self._code_of(values, moved),
            {"fit": fit},
        )

    def _code_of(self, values: dict, moved: set) -> str:
        kind = self._kinds[values["kind"]]
        how = {"method": METHODS, "weights": WEIGHTS, "outliers": OUTLIERS}
        told = [f"{name}={how[name][values[name]]!r}" for name in how if name in moved]
        known = kind.__name__ if kind in KINDS.values() else f"kinds[{values['kind']!r}]"
        lines = [f"timings = {self._sources[values['data']]}"]
        if "sizes" in moved:
            low, high = values["sizes"]
            lines.append(f'timings = timings[timings["nbytes"].between({low!r}, {high!r})]')
        lines.append(f"fit = {call('fit_collective', 'timings', repr(self._op), known, *told)}")
        return "\n".join(lines) + DRAWN

    def _fit(self, data, kind, method, weights, outliers, sizes) -> tuple[Fit, list[str]]:
        """Return the fit and what was warned of; sizes outside the range join those set aside."""
        table = self._tables[data]
        sized = (table["op"] == self._op) & (
            table["nbytes"] > 0
        )  # the others are the fit's to judge
        outside = sized & ~table["nbytes"].between(*sizes)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit = fit_collective(
                table[~outside],
                self._op,
                self._kinds[kind],
                method=METHODS[method],
                weights=WEIGHTS[weights],
                outliers=OUTLIERS[outliers],
            )
        rest = table[outside].assign(why="size not chosen").astype({"why": "str"})
        aside = pd.concat([fit.set_aside, rest])
        return replace(fit, set_aside=aside), [str(each.message) for each in caught]


def _percent(share: float) -> str:
    return f"{in_digits(round(100 * share, 3))} %"  # what is less is rounding


def _edges(table: pd.DataFrame, op: str) -> list[tuple[str, float]]:
    """Return the sizes that a range may begin or end at: the powers of two, and both ends."""
    sizes = pd.to_numeric(table.loc[table["op"] == op, "nbytes"]).dropna()
    sizes = sizes[sizes > 0].astype(float)
    if sizes.nunique() < 2:
        raise ValueError(
            f"explore_fit: measurements: expected two or more sizes of {op}, got {sizes.nunique()}"
        )
    low, high = sizes.min(), sizes.max()
    inner = 2.0 ** np.arange(np.floor(np.log2(low)) + 1, np.ceil(np.log2(high)))
    return [(binary(size), float(size)) for size in (low, *inner, high)]


def _html(card: pd.DataFrame) -> str:
    """Return the card with its longest column last, so that a narrow page cuts no number off."""
    columns = ["quantity", "value", "low", "high", "unit"]
    return card.reset_index()[columns].to_html(index=False, border=0, justify="left")


def _draw(figure, fit: Fit, table: pd.DataFrame, errors: pd.DataFrame):
    place = {"left": 0.18, "right": 0.95, "bottom": 0.13, "top": 0.83, "hspace": 0.1}
    above, below = figure.subplots(2, 1, height_ratios=(2.4, 1), gridspec_kw=place)
    draw_residuals(below, errors)
    draw_fit(above, fit, table, card=False)
    size_axis(below, table["nbytes"].min(), table["nbytes"].max())
    amid(above)
    above.set_xlabel("")
    above.tick_params(labelbottom=False)
