"""Explore a fit: its line, its residuals and its card change together."""

import warnings
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import pandas as pd
import traitlets
from ipywidgets import Dropdown, SelectionRangeSlider

from ..base.checks import one_of, require
from ..base.tables import MEASUREMENTS, check
from ..costs import FlatRing, HalvingDoubling, Hierarchical, Interpolated, Piecewise, Ring, Tree
from ..figures import draw_fit, draw_residuals
from ..figures.style import binary, size_axis
from ..fits import Fit, curves, fit_collective, residuals
from ..fits.diagnostics import left_out
from .code import call
from .explorer import Explorer, labelled
from .pictures import Picture, center_legend
from .positions import in_digits

COST_KINDS = {
    "ring": Ring,
    "ring in regimes": Piecewise,
    "halving-doubling": HalvingDoubling,
    "double tree": Tree,
    "two links, one ring": FlatRing,
    "two links, hierarchical": Hierarchical,
    "measured times, joined": Interpolated,
}
_OTHER_OPS = ("ring", "ring in regimes", "measured times, joined")  # kinds for any collective
_HOW = {  # arguments of fit_collective, by label
    "method": {"least squares": "wls", "robust (Huber)": "huber", "median": "quantile"},
    "weights": {
        "relative errors": "relative",
        "relative to measured times": "measured",
        "absolute errors": "absolute",
    },
    "outliers": {"set aside": "set aside", "keep": "keep"},
}
_TOOLTIPS = {
    "data": "the timings that are fitted",
    "kind": "the cost of a message that is fitted to them",
    "method": "how the fit is made",
    "weights": "which errors the fit makes small",
    "outliers": "whether timings far from the others are set aside",
    "sizes": "the message sizes whose timings are fitted, from and to",
}
_DRAWN = """
table = residuals(fit)
with plt.rc_context(paper(ratio=1.0)):
    fig, (above, below) = plt.subplots(2, 1, height_ratios=(2.4, 1))
    draw_fit(above, fit, curves(fit), card=False)
    draw_residuals(below, table)"""
_CARD = '<div style="line-height: 1.3; white-space: nowrap; overflow-x: auto">{}</div>'


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
    kinds : {label: kind of fit_collective}; default is every kind that has the op

    `explorer.fit` is the current Fit. A setting that cannot be fitted leaves the picture and the
    card as they were and shows why. Raises ValueError if the first fit cannot be made.
    """
    several = isinstance(measurements, dict)
    tables = measurements if several else {"measurements": measurements}
    require(tables, "measurements", "one table or more", found="none")
    for label, table in tables.items():
        check(table, MEASUREMENTS, f"measurements {label!r}")
    if kinds is None:
        kept = COST_KINDS if op == "all_reduce" else _OTHER_OPS
        kinds = {label: COST_KINDS[label] for label in kept}
    one_of(kinds)(kind, "kind")
    return FitExplorer(tables, kind, kinds, op, (name, folder, inputs), several)


class FitExplorer(Explorer):
    """Controls for the data, the kind, the method and the sizes of a fit, with its picture.

    fit : the Fit of the current positions; can be observed
    """

    fit = traitlets.Any()
    given = "measurements, as they were given to the explorer"
    late = ("sizes",)
    grid = {"kind": None, "data": None, "outliers": None}
    ratio = 1.0

    def __init__(self, tables: dict, kind: str, kinds: dict, op: str, target: tuple, several: bool):
        self._tables, self._kinds, self._op, self._several = tables, kinds, op, several
        if len(tables) > 1:
            self.follows = {"sizes": "unchanged, or all for other data"}
        if not set(kinds.values()) <= set(COST_KINDS.values()):
            self.given = "measurements and kinds, as they were given to the explorer"
        self._fitted = lru_cache(maxsize=64)(self._fit)
        controls = {
            name: labelled(Dropdown, name, _TOOLTIPS[name], options=list(each))
            for name, each in {"data": tables, "kind": kinds, **_HOW}.items()
        }
        controls["kind"].value = kind
        edges = self._edges(next(iter(tables)))
        controls["sizes"] = labelled(
            SelectionRangeSlider, "sizes", _TOOLTIPS["sizes"],
            options=edges, index=(0, len(edges) - 1), continuous_update=False,
        )  # fmt: skip
        super().__init__(controls, *target)

    def follow(self, moved: set):
        """Offer all sizes of another table."""
        sizes, edges = self._controls["sizes"], self._edges(self._controls["data"].value)
        if "data" in moved and list(sizes.options) != edges:
            sizes.options = edges
            sizes.index = (0, len(edges) - 1)

    def placed(self, values: dict) -> dict:
        """Return a place of a static page, with all sizes of another table, as when chosen."""
        if values["data"] == self._controls["data"].value:
            return values
        edges = self._edges(values["data"])
        return values | {"sizes": (edges[0][1], edges[-1][1])}

    def picture(self, values: dict, moved: set) -> Picture:
        """Return the picture of the fit that the controls select."""
        fit, notes = self._fitted(**values)
        errors = residuals(fit)
        worst, mean = (np.abs(errors["relative_error"]).agg(which) for which in ("max", "mean"))
        words = (
            f"{values['kind']} over {len(errors)} points of {values['data']}, "
            f"{len(fit.set_aside)} set aside: mean error {_percent(mean)}, worst {_percent(worst)}"
        )
        # the longest column comes last, so that a narrow page hides no number
        card = fit.card().reset_index()[["quantity", "value", "low", "high", "unit"]]
        out = left_out(fit)[["nbytes", "n_workers", "seconds", "why"]]
        return Picture(
            partial(_draw, fit=fit, table=curves(fit), errors=errors),
            pd.concat([errors, out], ignore_index=True),
            "; ".join([words, *notes]),
            values | {"op": self._op, "fitted": fit.parameters()},
            _CARD.format(card.to_html(index=False, border=0, justify="left")),
            self._code_of(values, moved),
            {"fit": fit},
        )

    def _code_of(self, values: dict, moved: set) -> str:
        kind, source = self._kinds[values["kind"]], f"[{values['data']!r}]"
        how = [f"{name}={_HOW[name][values[name]]!r}" for name in _HOW if name in moved]
        known = kind.__name__ if kind in COST_KINDS.values() else f"kinds[{values['kind']!r}]"
        lines = [f"timings = measurements{source if self._several else ''}"]
        if "sizes" in moved:
            low, high = values["sizes"]
            lines.append(f'timings = timings[timings["nbytes"].between({low!r}, {high!r})]')
        lines.append(f"fit = {call('fit_collective', 'timings', repr(self._op), known, *how)}")
        return "\n".join(lines) + _DRAWN

    def _fit(self, data, kind, sizes, **how) -> tuple[Fit, list[str]]:
        """Return the fit and its warnings; sizes outside the range join those set aside."""
        table = self._tables[data]
        sized = (table["op"] == self._op) & (table["nbytes"] > 0)  # the fit judges the others
        outside = sized & ~table["nbytes"].between(*sizes)
        how = {name: _HOW[name][label] for name, label in how.items()}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit = fit_collective(table[~outside], self._op, self._kinds[kind], **how)
        rest = table[outside].assign(why="size not chosen").astype({"why": "str"})
        aside = pd.concat([fit.set_aside, rest])
        return replace(fit, set_aside=aside), [str(each.message) for each in caught]

    def _edges(self, data: str) -> list[tuple[str, float]]:
        """Return the sizes at which a range may begin or end: powers of two, and both ends."""
        table = self._tables[data]
        sizes = pd.to_numeric(table.loc[table["op"] == self._op, "nbytes"]).dropna()
        sizes = sizes[sizes > 0].astype(float)
        n, expected = sizes.nunique(), f"two or more sizes of {self._op}"
        require(n > 1, f"measurements {data!r}", expected, n)
        low, high = sizes.min(), sizes.max()
        inner = 2.0 ** np.arange(np.floor(np.log2(low)) + 1, np.ceil(np.log2(high)))
        return [(binary(size), float(size)) for size in (low, *inner, high)]


def _percent(share: float) -> str:
    return f"{in_digits(round(100 * share, 3))} %"  # smaller digits are rounding


def _draw(figure, fit: Fit, table: pd.DataFrame, errors: pd.DataFrame):
    place = {"left": 0.18, "right": 0.95, "bottom": 0.13, "top": 0.83, "hspace": 0.1}
    above, below = figure.subplots(2, 1, height_ratios=(2.4, 1), gridspec_kw=place)
    draw_residuals(below, errors)
    draw_fit(above, fit, table, card=False)
    size_axis(below, table["nbytes"].min(), table["nbytes"].max())
    center_legend(above)
    above.set_xlabel("")
    above.tick_params(labelbottom=False)
