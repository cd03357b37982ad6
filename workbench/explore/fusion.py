"""Explore the settings of fusion: what each loses against the optimum, and the text to paste."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from html import escape

import pandas as pd
import traitlets
from ipywidgets import Dropdown, SelectionSlider

from ..base.checks import shown
from ..base.units import counted, format_seconds
from ..figures import draw_fusion_curve, draw_timeline
from ..fusion import DDPBuckets, DeepSpeedBuckets, HorovodFusion
from ..fusion.frameworks import cap_list, variations
from ..timeline import Prediction, Scenario, predict
from ..timeline.scenario import check_scenario
from ..whatif import loss_curve, optimal
from .code import call
from .explorer import CONTROL, Explorer
from .pictures import Picture, amid
from .positions import differs, in_digits
from .scenarios import TOLD, WORKERS, has_link, in_code, in_units, moved_to, parameters

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
    check_scenario(scenario, "explore_fusion")
    frameworks = frameworks or FRAMEWORKS
    if not isinstance(frameworks, Mapping) or {AS_IT_IS, OPTIMUM} & set(frameworks):
        raise ValueError(
            f"explore_fusion: frameworks: expected {{label: policy}}, no label of them "
            f"{AS_IT_IS!r} or {OPTIMUM!r}; got {shown(frameworks)}"
        )
    return FusionExplorer(scenario, frameworks, (name, folder, inputs))


class FusionExplorer(Explorer):
    """A policy, its setting, link and workers; loss, buckets on a timeline, and text to paste.

    `scenario` is the scenario of the controls' present positions; it can be observed.
    """

    scenario = traitlets.Any()
    ratio = 1.2
    late = ("setting",)
    grid = {"policy": None, "bandwidth": (1.0, 100.0), "workers": (8, 128)}
    follows = {"setting": "as it stands, of another framework the best"}

    def __init__(self, scenario: Scenario, frameworks: dict, target: tuple):
        self._start, self._frameworks = scenario, dict(frameworks)
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
        best = self._best(_place(values))
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
        slider.disabled = not used  # no setting counts where no framework fuses

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
        label = values["policy"]
        framework = label if label in self._frameworks else next(iter(self._frameworks))
        return framework, self._curve(framework, _place(values))

    def _computed(self, framework: str, place: tuple) -> pd.DataFrame:
        """Return the loss curve of a framework."""
        policy = self._frameworks[framework]
        return loss_curve(self._base(dict(place)), policy, NOISE, self._tried(policy))

    def _tried(self, policy) -> list | None:
        """Return settings to try: of Horovod, with six cycles at four phases each, but few."""
        if not isinstance(policy, HorovodFusion):
            return None
        largest = max(each.value for each in variations(self._start.gradients, policy))
        return [4.0**k for k in range(math.ceil(math.log(largest, 4)) + 1)]

    def _optimum(self, place: tuple) -> Prediction:
        return predict(optimal(self._base(dict(place))))

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


def _place(values: dict) -> tuple:
    """Return where the controls of the link and the workers stand."""
    names = ("bandwidth", "latency", "workers")
    return tuple((name, values[name]) for name in names if name in values)


def _best(curve: pd.DataFrame) -> float:
    return curve.loc[curve["iteration_s"].idxmin(), "value"]


def _link_controls(scenario: Scenario) -> dict:
    """Return sliders of workers and, where the cost has a link, of bandwidth and latency."""
    controls = {}
    if has_link(scenario.all_reduce):
        latency, bandwidth = in_units(scenario.all_reduce.link, BANDWIDTHS[-1])
        controls["bandwidth"] = _slider("bandwidth (Gbit/s)", BANDWIDTHS, bandwidth)
        controls["latency"] = _slider("latency (us a hop)", LATENCIES, latency)
    controls["workers"] = _slider("workers", WORKERS, int(scenario.n_workers))
    for name, control in controls.items():
        control.tooltip = TOLD[name]
    return controls


def _slider(description: str, values, start) -> SelectionSlider:
    """Return a slider through round values, among which the start stands to the last bit."""
    options = _options(sorted({start, *(value for value in values if differs(value, start))}))
    return SelectionSlider(options=options, value=start, description=description, **CONTROL)


def _options(values) -> list[tuple[str, float]]:
    return [(in_digits(value, 4), value) for value in values]


def _settings(found: list) -> list[tuple[str, float]]:
    return _options(sorted({each.value for each in found}))


def _compared(prediction: Prediction, best: Prediction) -> str:
    """Return a prediction in one line, beside the optimum."""
    n = counted(int(prediction.scenario.n_workers), "worker")
    loss = 1 - prediction.scaling_factor / best.scaling_factor
    verdict = "no headroom" if prediction.iteration_s <= best.iteration_s * (1 + NOISE) else "loss"
    return (
        f"scaling factor {prediction.scaling_factor:.3f} at {n}, of the optimum "
        f"{best.scaling_factor:.3f}: {verdict} {loss:.2%}; iteration "
        f"{format_seconds(prediction.iteration_s)}; {counted(len(prediction.timeline), 'message')}"
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
    amid(draw_fusion_curve(above, curve, at))
    amid(draw_timeline(below, prediction))
