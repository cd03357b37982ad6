"""Explore what would help: optimisations switched on one by one, and the settings of fusion."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache, partial
from html import escape

import pandas as pd
import traitlets
from ipywidgets import Checkbox, Dropdown, SelectionSlider

from ..checks import shown
from ..drawing.advice import LETTERS, draw_comparison, draw_fusion_curve
from ..figures import draw_timeline
from ..fusion import DDPBuckets, DeepSpeedBuckets, HorovodFusion
from ..optimum import headroom, loss_curve, optimal
from ..schedules.scenario import count
from ..settings import cap_list, variations
from ..timeline import Prediction, Scenario, predict
from ..units import GBIT, US, format_seconds
from ..whatif import Together, ablate, compare
from .base import CONTROL, Explorer, Picture
from .code import call, drawn
from .scenarios import TOLD, WORKERS, in_code, moved_to, parameters

VIEWS = ("one after another", "mean over all orders (Shapley)", "each by itself, in time")
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
    _refuse(scenario, "explore_whatif")
    return WhatIfExplorer(scenario, optimisations, (name, folder, inputs))


class WhatIfExplorer(Explorer):
    """A checkbox an optimisation, how their gains are counted, and the figure of it.

    `optimisation` is what is switched on now, Together; it can be observed.
    """

    optimisation = traitlets.Any()
    engine = "none"  # axes that stay in place, drawn in half the time
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
            name: Checkbox(True, description=str(label), tooltip=told, **CONTROL)
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
        self._order = list(state.get("order", self._order))
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


# --- fusion ---------------------------------------------------------------------------------------

AS_IT_IS, OPTIMUM = "as it is", "optimum"
FRAMEWORKS = {
    "PyTorch DDP": DDPBuckets(),
    "Horovod": HorovodFusion(),
    "DeepSpeed": DeepSpeedBuckets(),
}
BANDWIDTHS = tuple(step * 10.0**power for power in range(-1, 3) for step in (1, 2, 5)) + (1000.0,)
LATENCIES = BANDWIDTHS  # us; both over four decades
NOISE = 0.01  # of iteration times: below it a measurement cannot tell
PANELS = {"left": 0.14, "right": 0.97, "bottom": 0.11, "top": 0.87, "hspace": 0.75}


def explore_fusion(
    scenario: Scenario, name="fusion", folder=None, inputs=(), frameworks: dict | None = None
) -> "FusionExplorer":
    """Show what each setting of a framework loses against the optimum, and the buckets it makes.

    Starts at the scenario's own fusion; the other policies are the optimum and the settings of each
    framework, which the slider goes through, starting at the best. Below stands the text to paste.
    Sliders of the link are there where the scenario's all_reduce has one.

    frameworks : {label: policy with a setting to vary}, such as HorovodFusion(version="0.20.3");
        PyTorch DDP, Horovod and DeepSpeed by default. Of Horovod's cycles the best is shown.
    name, folder, inputs : as in figures.save, for the button "Save figure"

    `explorer.scenario` is what stands there now. Raises ValueError for what is no scenario, what
    `loss_curve` and save refuse.
    """
    _refuse(scenario, "explore_fusion")
    return FusionExplorer(scenario, frameworks or FRAMEWORKS, (name, folder, inputs))


class FusionExplorer(Explorer):
    """A policy, its setting, link and workers; loss, buckets on a timeline, and text to paste.

    `scenario` is the scenario of the controls' present positions; it can be observed.
    """

    scenario = traitlets.Any()
    ratio = 1.2
    engine = "none"
    late = ("setting",)
    grid = {"policy": None, "bandwidth": (1.0, 100.0), "workers": (8, 128)}
    follows = {"setting": "as it stands, of another framework the best"}

    def __init__(self, scenario: Scenario, frameworks: dict, target: tuple):
        self._start, self._frameworks = scenario, frameworks
        self._curve = lru_cache(maxsize=64)(self._computed)
        self._best = lru_cache(maxsize=64)(self._optimum)
        policies = [AS_IT_IS, *frameworks, OPTIMUM]
        policy = Dropdown(
            options=policies, description="fusion", tooltip="whose fusion is shown", **CONTROL
        )
        first = variations(scenario.gradients, next(iter(frameworks.values())))
        setting = SelectionSlider(
            options=_settings(first),
            description="setting",
            tooltip="size of a message in the framework's unit: MiB, of DeepSpeed elements",
            **CONTROL,
        )
        super().__init__({"policy": policy, "setting": setting} | _link_controls(scenario), *target)

    def picture(self, values: dict, moved: set) -> Picture:
        """Return the picture of the policy and setting that the controls say."""
        base, label = self._base(values), values["policy"]
        framework, curve = self._curve_of(values)
        at = values["setting"] if label in self._frameworks else None
        if label in self._frameworks and at is None:
            at = _best(curve)
        best = self._best(base.all_reduce, int(base.n_workers))
        now, text = self._chosen(base, label, at, curve, best.scenario)
        prediction = best if now is best.scenario else predict(now)
        return Picture(
            partial(_draw, curve=curve, at=at, prediction=prediction),
            pd.concat(
                [curve.assign(panel="loss"), prediction.timeline.assign(panel="timeline")],
                ignore_index=True,
            ),
            _compared(prediction, best),
            parameters(now) | {"policy": label, "setting": text, "noise": NOISE},
            _to_paste(text, curve, framework),
            self._code_of(values, moved, base, now, at),
            {"scenario": now},
        )

    def follow(self, moved: set):
        """Let the setting go through those of another framework, from the best one on."""
        if "policy" not in moved:
            return
        _, curve = self._curve_of(self.state())
        slider, used = self._controls["setting"], self._controls["policy"].value in self._frameworks
        slider.options = options = _options(sorted(set(curve["value"])))
        slider.index = [value for _, value in options].index(_best(curve)) if used else 0

    def placed(self, values: dict) -> dict:
        """Return a place of a static page: of another framework its best setting, None."""
        other = values["policy"] != self._controls["policy"].value
        return values | ({"setting": None} if other else {})

    def _base(self, values: dict) -> Scenario:
        """Return the scenario with the link and the workers of the sliders that were moved."""
        moved = moved_to(self._start, values, self.moved(values))
        return replace(moved, n_workers=int(values["workers"]))

    def _curve_of(self, values: dict) -> tuple[str, pd.DataFrame]:
        """Return the framework chosen, or the first, and its loss curve."""
        base, label = self._base(values), values["policy"]
        framework = label if label in self._frameworks else next(iter(self._frameworks))
        return framework, self._curve(framework, base.all_reduce, int(base.n_workers))

    def _computed(self, framework: str, all_reduce, n_workers: int) -> pd.DataFrame:
        """Return the loss curve of a framework."""
        policy = self._frameworks[framework]
        scenario = replace(self._start, all_reduce=all_reduce, n_workers=n_workers)
        return loss_curve(scenario, policy, NOISE, self._tried(policy))

    def _tried(self, policy) -> list | None:
        """Return settings to try: of Horovod, with six cycles at four phases each, but few."""
        if not isinstance(policy, HorovodFusion):
            return None
        largest = max(each.value for each in variations(self._start.gradients, policy))
        return [4.0**k for k in range(math.ceil(math.log(largest, 4)) + 1)]

    def _optimum(self, all_reduce, n_workers: int) -> Prediction:
        return predict(optimal(replace(self._start, all_reduce=all_reduce, n_workers=n_workers)))

    def _chosen(self, base: Scenario, label: str, at, curve: pd.DataFrame, best: Scenario):
        """Return the scenario with the policy chosen, and what to write for it."""
        if label == AS_IT_IS:
            return base, repr(base.fusion)
        if label == OPTIMUM:
            return best, f"{cap_list(base.gradients, best.fusion)[0]}  # torch 2.13 or later"
        rows = curve[curve["value"] == at]
        text = rows.loc[rows["iteration_s"].idxmin(), "setting"]
        found = variations(base.gradients, self._frameworks[label], [at])
        policy = next(each.policy for each in found if each.setting == text)
        return replace(base, fusion=policy), text

    def _code_of(self, values: dict, moved: set, base: Scenario, now: Scenario, at) -> str:
        label = values["policy"]
        fused = in_code(self._start, base if label == OPTIMUM else now, values, moved)
        framework = label if label in self._frameworks else next(iter(self._frameworks))
        policy = self._frameworks[framework]
        tried = self._tried(policy)
        curve = [repr(policy), repr(NOISE), *([] if tried is None else [repr(tried)])]
        return f"""explored = {call("optimal", fused) if label == OPTIMUM else fused}
prediction = predict(explored)
curve = {call("loss_curve", "explored", *curve)}
table = pd.concat(
    [curve.assign(panel="loss"), prediction.timeline.assign(panel="timeline")],
    ignore_index=True,
)
with plt.rc_context(paper(ratio={self.ratio})):
    fig, (above, below) = plt.subplots(2, 1, height_ratios=(1.5, 1))
    draw_fusion_curve(above, curve, {at!r})
    draw_timeline(below, prediction)"""


def _best(curve: pd.DataFrame) -> float:
    return curve.loc[curve["iteration_s"].idxmin(), "value"]


def _link_controls(scenario: Scenario) -> dict:
    """Return sliders of workers and, where the cost has a link, of bandwidth and latency."""
    cost, controls = scenario.all_reduce, {}
    if is_dataclass(cost) and "link" in {field.name for field in fields(cost)}:
        bandwidth = 1 / cost.link.beta / GBIT if cost.link.beta else BANDWIDTHS[-1]
        latency = cost.link.alpha / US
        controls["bandwidth"] = _slider("bandwidth (Gbit/s)", BANDWIDTHS, bandwidth)
        controls["latency"] = _slider("latency (us a hop)", LATENCIES, latency)
    controls["workers"] = _slider("workers", WORKERS, int(scenario.n_workers))
    for name, control in controls.items():
        control.tooltip = TOLD[name]
    return controls


def _slider(description: str, values, start) -> SelectionSlider:
    """Return a slider through round values, among which the start stands to the last bit."""
    options = _options(sorted({*values, start}))
    return SelectionSlider(options=options, value=start, description=description, **CONTROL)


def _options(values) -> list[tuple[str, float]]:
    return [(f"{value:,.4g}" if value < 1000 else f"{value:,.0f}", value) for value in values]


def _settings(found: list) -> list[tuple[str, float]]:
    return _options(sorted({each.value for each in found}))


def _compared(prediction: Prediction, best: Prediction) -> str:
    """Return a prediction in one line, beside the optimum."""
    n = count(int(prediction.scenario.n_workers), "worker")
    loss = 1 - prediction.scaling_factor / best.scaling_factor
    verdict = "no headroom" if prediction.iteration_s <= best.iteration_s * (1 + NOISE) else "loss"
    return (
        f"scaling factor {prediction.scaling_factor:.3f} at {n}, of the optimum "
        f"{best.scaling_factor:.3f}: {verdict} {loss:.2%}; iteration "
        f"{format_seconds(prediction.iteration_s)}; {count(len(prediction.timeline), 'message')}"
    )


def _to_paste(text: str, curve: pd.DataFrame, framework: str) -> str:
    """Return what stands below the picture: the setting as text, and the best of the framework."""
    best = curve.loc[curve["iteration_s"].idxmin()]
    return (
        f'<pre class="wb-paste" style="white-space: pre-wrap; width: 48em">{escape(text)}</pre>'
        f"Best of {escape(framework)}, {best['loss']:.2%} below the optimum: "
        f"<code>{escape(best['setting'])}</code>"
    )


def _draw(figure, curve: pd.DataFrame, at, prediction: Prediction):
    above, below = figure.subplots(2, 1, height_ratios=(1.5, 1), gridspec_kw=PANELS)
    draw_fusion_curve(above, curve, at)
    draw_timeline(below, prediction)
    middle = (0.5 - PANELS["left"]) / (PANELS["right"] - PANELS["left"])
    for ax in (above, below):
        ax.get_legend().set_bbox_to_anchor((middle, 1))  # amid the figure


def _refuse(scenario, caller: str):
    if not isinstance(scenario, Scenario):
        advice = "prediction.scenario" if isinstance(scenario, Prediction) else "Scenario(...)"
        raise ValueError(f"{caller}: expected a Scenario, got {shown(scenario)}; pass {advice}")
