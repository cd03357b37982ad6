"""Explore what would help: optimisations switched on one by one, and the gain of each."""

from collections.abc import Mapping
from functools import lru_cache
from html import escape

import pandas as pd
import traitlets
from ipywidgets import Checkbox, Dropdown

from ..base.checks import require
from ..base.units import format_seconds
from ..figures import draw_comparison
from ..figures.advice import ROW_LETTERS
from ..figures.style import short
from ..timeline import Scenario
from ..timeline.scenario import a_scenario
from ..whatif import Together, ablate, compare, headroom
from .code import on_one_axes
from .explorer import Explorer, labelled
from .pictures import Picture
from .scenarios import recorded

VIEWS = ("one after another", "mean over all orders (Shapley)", "each by itself, in time")
_SHOWN = 48  # letters of a label next to its box
_SWITCHES = 5  # optimisations that a static page switches
_MOST = 6  # optimisations whose every subset is predicted between two pictures


def explore_whatif(
    scenario: Scenario, optimisations: dict, name="what-if", folder=None, inputs=()
) -> "WhatIfExplorer":
    """Show draw_comparison of the optimisations that are switched on, in the order of switching.

    The views are `ablate` in the order of switching, `ablate` by Shapley shares (of up to 6
    optimisations), and `compare` with the bounds of `headroom`.

    optimisations : {label: optimisation} as for whatif.ablate; all are on at the start, in the
        order given
    name, folder, inputs : as in figures.save, for the button "Save figure"

    `explorer.optimisation` combines all that are on, for
    `predict_with(scenario, explorer.optimisation)`.
    """
    a_scenario(scenario, "explore_whatif")
    return WhatIfExplorer(scenario, optimisations, (name, folder, inputs))


class WhatIfExplorer(Explorer):
    """One checkbox per optimisation, a choice of how gains are counted, and their figure.

    optimisation : all that are switched on, as Together; can be observed
    """

    optimisation = traitlets.Any()
    given = "scenario and optimisations, as they were given to the explorer"

    def __init__(self, scenario: Scenario, optimisations: dict, target: tuple):
        compare(scenario, optimisations)  # refuses what it cannot compare before any picture
        self._scenario, self._optimisations = scenario, dict(optimisations)
        self._labels = {f"option-{i}": label for i, label in enumerate(optimisations)}
        self._order = list(self._labels)  # what was switched on last comes last
        self.grid = dict.fromkeys([*self._order[:_SWITCHES], "view"])
        self._table = lru_cache(maxsize=256)(self._computed)
        self._bounds = headroom(scenario)
        height = 0.95 + 0.15 * (len(self._labels) + 5)  # in: legend and axis, and the rows
        self._place, self.ratio = _place(list(optimisations), height), height / 3.33
        tooltip = "switch it on or off; what is switched on last is added last"
        controls = {
            name: labelled(Checkbox, short(label, _SHOWN), tooltip, value=True)
            for name, label in self._labels.items()
        }
        controls["view"] = labelled(Dropdown, "gains", "how gains are counted", options=VIEWS)
        super().__init__(controls, *target)

    def state(self) -> dict:
        """Return the position of every control, and the order in which optimisations were added."""
        return super().state() | {"order": list(self._order)}

    def follow(self, moved: set):
        """Put what was switched on last at the end of the order."""
        on = [name for name in self._labels if self._controls[name].value]
        kept = [name for name in self._order if name in on]
        self._order = kept + [name for name in on if name not in kept]

    def _go(self, state: Mapping):
        order = state.get("order", self._order)
        known = isinstance(order, list | tuple) and set(order) <= set(self._labels)
        require(known, "restore: order", f"some of {', '.join(self._labels)}", order)
        self._order = list(dict.fromkeys(order))
        super()._go(state)

    def picture(self, values: dict, moved: set) -> Picture:
        """Return the picture of all that are on, in the order of switching."""
        names = [*values["order"], *(name for name in self._labels if name not in values["order"])]
        order = [self._labels[name] for name in names if values[name]]
        require(order, "optimisations", "at least one switched on", found="none")
        table, bounds = self._table(tuple(order), values["view"])
        optimisation = Together(tuple(self._optimisations[each] for each in order))
        return Picture(
            lambda figure: draw_comparison(figure.subplots(gridspec_kw=self._place), table, bounds),
            table,
            _gained(table, values["view"]),
            recorded(self._scenario) | {"optimisations": list(map(str, order))} | values,
            f"Not modelled: {escape(optimisation.assumes)}" if optimisation.assumes else "",
            self._code_of(order, values["view"]),
            {"optimisation": optimisation},
        )

    def _code_of(self, order: list, view: str) -> str:
        chosen, labels = "optimisations", list(self._optimisations)
        if order != labels:
            at = {label: f"list(optimisations)[{i}]" for i, label in enumerate(labels)}
            names = [repr(each) if isinstance(each, str) else at[each] for each in order]
            chosen = f"{{label: optimisations[label] for label in ({', '.join(names)},)}}"
        order, bounds = {VIEWS[1]: ', "shapley"'}.get(view, ""), ""
        compared = f"ablate(scenario, chosen{order})"
        if view == VIEWS[2]:
            compared, bounds = "compare(scenario, chosen)", ", headroom(scenario)"
        return f"""chosen = {chosen}
optimisation = Together(tuple(chosen.values()))
table = {compared}
{on_one_axes(f"draw_comparison(ax, table{bounds})", f"ratio={self.ratio:.2f}")}"""

    def _computed(self, labels: tuple, view: str):
        """Return the table of the view, and the bounds if the table does not contain them."""
        chosen = {label: self._optimisations[label] for label in labels}
        if view == VIEWS[2]:
            return compare(self._scenario, chosen), self._bounds
        order = "shapley" if view == VIEWS[1] else "given"
        few, expected = len(chosen) <= _MOST, f"at most {_MOST} for all their orders"
        do = "Switch some off, or call ablate(..., order='shapley') in a cell"
        require(few or order == "given", "optimisations", expected, len(chosen), do)
        return ablate(self._scenario, chosen, order, self._bounds), None


def _place(labels: list, height: float) -> dict:
    """Return the place of the axes in a figure, with room for the longest name on the left."""
    letters = max(16, *(min(len(str(label)), ROW_LETTERS) for label in labels))
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
