"""Explore what would help: optimisations switched on one by one, and what each of them gains."""

from collections.abc import Mapping
from functools import lru_cache
from html import escape

import pandas as pd
import traitlets
from ipywidgets import Checkbox, Dropdown

from ..base.checks import shown
from ..base.units import format_seconds
from ..figures import draw_comparison
from ..figures.advice import LETTERS
from ..figures.style import short
from ..timeline import Scenario
from ..timeline.scenario import check_scenario
from ..whatif import Together, ablate, compare, headroom
from .code import drawn
from .explorer import CONTROL, Explorer
from .pictures import Picture
from .scenarios import parameters

VIEWS = ("one after another", "mean over all orders (Shapley)", "each by itself, in time")
SHOWN = 48  # letters of a label beside its box
SWITCHES = 5  # optimisations that a static page switches
MOST = 6  # optimisations whose every set is predicted between two pictures


def explore_whatif(
    scenario: Scenario, optimisations: dict, name="what-if", folder=None, inputs=()
) -> "WhatIfExplorer":
    """Show draw_comparison of the optimisations that are switched on, in the order of switching.

    optimisations : {label: optimisation} as for whatif.ablate; all are on at the start, in the
        order given
    name, folder, inputs : as in figures.save, for the button "Save figure"

    The views are those of `ablate` in the order of switching, of `ablate` by Shapley shares (of up
    to 6), and of `compare` beside the bounds of `headroom`. `explorer.optimisation` is all that is
    on, for `predict_with(scenario, explorer.optimisation)`. Raises ValueError for what is no
    scenario, what ablate and save refuse, and no optimisation at all.
    """
    check_scenario(scenario, "explore_whatif")
    return WhatIfExplorer(scenario, optimisations, (name, folder, inputs))


class WhatIfExplorer(Explorer):
    """A checkbox an optimisation, how their gains are counted, and the figure of it.

    `optimisation` is what is switched on now, Together; it can be observed.
    """

    optimisation = traitlets.Any()
    given = "scenario and optimisations, as they were given to the explorer"

    def __init__(self, scenario: Scenario, optimisations: dict, target: tuple):
        compare(scenario, optimisations)  # refused here, in its words, rather than in a picture
        self._scenario, self._optimisations = scenario, dict(optimisations)
        self._labels = {f"option-{i}": label for i, label in enumerate(optimisations)}
        self._order = list(self._labels)  # of what is on, what was switched on last comes last
        self.grid = dict.fromkeys([*self._order[:SWITCHES], "view"])
        self._table = lru_cache(maxsize=256)(self._computed)
        self._bounds = headroom(scenario)  # whatever is switched on
        height = 0.95 + 0.15 * (len(self._labels) + 5)  # in: legend and axis, and the rows
        self._place, self.ratio = _place(list(optimisations), height), height / 3.33
        view = Dropdown(
            options=VIEWS, description="gains", tooltip="how gains are counted", **CONTROL
        )
        told = "switch it on or off; what is switched on last is added last"
        boxes = {
            name: Checkbox(True, description=short(label, SHOWN), tooltip=told, **CONTROL)
            for name, label in self._labels.items()
        }
        super().__init__(boxes | {"view": view}, *target)

    def state(self) -> dict:
        """Return where every control stands, and the order in which optimisations were added."""
        return super().state() | {"order": list(self._order)}

    def follow(self, moved: set):
        """Let what was switched on last come last."""
        on = [name for name in self._labels if self._controls[name].value]
        kept = [name for name in self._order if name in on]
        self._order = kept + [name for name in on if name not in kept]

    def _go(self, state: Mapping):
        order = state.get("order", self._order)
        if not isinstance(order, list | tuple) or not set(order) <= set(self._labels):
            expected = ", ".join(self._labels)
            raise ValueError(f"restore: order: expected some of {expected}; got {shown(order)}")
        self._order = list(dict.fromkeys(order))
        super()._go(state)

    def picture(self, values: dict, moved: set) -> Picture:
        """Return the picture of what is on, in the order of switching."""
        names = [*values["order"], *(name for name in self._labels if name not in values["order"])]
        order = [self._labels[name] for name in names if values[name]]
        if not order:
            raise ValueError("expected at least one optimisation switched on, got none")
        table, bounds = self._table(tuple(order), values["view"])
        optimisation = Together(tuple(self._optimisations[each] for each in order))
        return Picture(
            lambda figure: draw_comparison(figure.subplots(gridspec_kw=self._place), table, bounds),
            table,
            _gained(table, values["view"]),
            parameters(self._scenario) | {"optimisations": list(map(str, order))} | values,
            f"Not modelled: {escape(optimisation.assumes)}" if optimisation.assumes else "",
            self._code_of(order, values["view"]),
            {"optimisation": optimisation},
        )

    def _code_of(self, order: list, view: str) -> str:
        chosen, labels = "optimisations", list(self._optimisations)
        if order != labels:
            names = (
                repr(each)
                if isinstance(each, str)
                else f"list(optimisations)[{labels.index(each)}]"
                for each in order
            )
            chosen = f"{{label: optimisations[label] for label in ({', '.join(names)},)}}"
        compared = {
            VIEWS[0]: "ablate(scenario, chosen)",
            VIEWS[1]: 'ablate(scenario, chosen, "shapley")',
            VIEWS[2]: "compare(scenario, chosen)",
        }[view]
        bounds = ", headroom(scenario)" if view == VIEWS[2] else ""
        return f"""chosen = {chosen}
optimisation = Together(tuple(chosen.values()))
table = {compared}
{drawn(f"draw_comparison(ax, table{bounds})", f"ratio={self.ratio:.2f}")}"""

    def _computed(self, labels: tuple, view: str):
        """Return the table of the view, and the bounds where it has none of its own."""
        chosen = {label: self._optimisations[label] for label in labels}
        if view == VIEWS[2]:
            return compare(self._scenario, chosen), self._bounds
        if view == VIEWS[1] and len(chosen) > MOST:
            raise ValueError(
                f"expected at most {MOST} optimisations for all their orders, got {len(chosen)}; "
                "switch some off, or take ablate(..., order='shapley') in a cell"
            )
        order = "shapley" if view == VIEWS[1] else "given"
        return ablate(self._scenario, chosen, order, self._bounds), None


def _place(labels: list, height: float) -> dict:
    """Return where the axes stand in a figure of one column: room for the longest name at left."""
    letters = max(16, *(min(len(str(label)), LETTERS) for label in labels))
    left = (0.12 + 0.06 * letters) / 3.33
    return {"left": left, "right": 0.97, "bottom": 0.44 / height, "top": 1 - 0.5 / height}


def _gained(table: pd.DataFrame, view: str) -> str:
    if view == VIEWS[2]:
        best = table.loc[table["speedup"].idxmax()]
        return f"{best['label']} trains most: {best['speedup']:.3f} times the baseline"
    if view == VIEWS[1]:
        total = table[table["kind"] == "total"].iloc[0]
        return (
            f"all together {1 + total['gain']:.3f} times the baseline; the gains of each by itself "
            f"would add up to {1 + total['alone']:.3f}"
        )
    first, last = table.iloc[0], table[table["kind"] == "optimisation"].iloc[-1]
    return (
        f"all together {last['speedup']:.3f} times the baseline: scaling factor "
        f"{first['scaling_factor']:.3f} to {last['scaling_factor']:.3f}, iteration "
        f"{format_seconds(first['iteration_s'])} to {format_seconds(last['iteration_s'])}"
    )
