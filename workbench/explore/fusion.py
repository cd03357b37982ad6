"""Explore the settings of fusion: what each loses against the optimum, and the text to paste."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from html import escape

import pandas as pd
import traitlets
from ipywidgets import Dropdown, SelectionSlider

from ..base.checks import require
from ..base.units import counted, format_seconds
from ..figures import draw_fusion_curve, draw_timeline
from ..fusion import DDPBuckets, DeepSpeedBuckets, HorovodFusion
from ..fusion.frameworks import cap_list, variations
from ..timeline import Prediction, Scenario, predict
from ..timeline.scenario import a_scenario
from ..whatif import loss_curve, optimal
from .code import call
from .explorer import Explorer, labelled
from .pictures import Picture, center_legend
from .positions import differs, in_digits
from .scenarios import SLIDER_LABELS, TOOLTIPS, WORKERS, in_code, link_at, moved_to, recorded

AS_IT_IS, OPTIMUM = "as it is", "optimum"
_OFFERED = {
    "PyTorch DDP": DDPBuckets(),
    "Horovod": HorovodFusion(),
    "DeepSpeed": DeepSpeedBuckets(),
}
_LINK = tuple(step * 10.0**power for power in range(-1, 3) for step in (1, 2, 5)) + (1000.0,)
_NOISE = 0.01  # of iteration times: a measurement does not resolve less
_PANELS = {"left": 0.14, "right": 0.97, "bottom": 0.11, "top": 0.87, "hspace": 0.75}


def explore_fusion(
    scenario: Scenario, name="fusion", folder=None, inputs=(), frameworks: dict | None = None
) -> "FusionExplorer":
    """Show what each setting of a framework loses against the optimum, and the buckets it makes.

    Starts at the scenario's own fusion. The other policies are the optimum and those of each
    framework; a slider goes through a framework's settings, starting at the best. The text to
    paste is below the picture. The link has sliders if the scenario's all_reduce has one link.

    frameworks : {label: policy with a setting to vary}, such as HorovodFusion(version="0.20.3");
        default is PyTorch DDP, Horovod and DeepSpeed. Horovod is shown with its best cycle.
    name, folder, inputs : as in figures.save, for the button "Save figure"

    `explorer.scenario` is the scenario of the current positions.
    """
    a_scenario(scenario, "explore_fusion")
    frameworks = frameworks or _OFFERED
    labelled = isinstance(frameworks, Mapping) and not {AS_IT_IS, OPTIMUM} & set(frameworks)
    expected = f"{{label: policy}}, no label {AS_IT_IS!r} or {OPTIMUM!r}"
    require(labelled, "frameworks", expected, frameworks)
    return FusionExplorer(scenario, frameworks, (name, folder, inputs))


class FusionExplorer(Explorer):
    """A policy, its setting, link and workers; loss, buckets on a timeline, and text to paste.

    scenario : the scenario of the current positions; can be observed
    """

    scenario = traitlets.Any()
    ratio = 1.2
    late = ("setting",)
    grid = {"policy": None, "bandwidth": (1.0, 100.0), "workers": (8, 128)}
    follows = {"setting": "unchanged, or the best for another framework"}

    def __init__(self, scenario: Scenario, frameworks: dict, target: tuple):
        self._start, self._frameworks = scenario, dict(frameworks)
        self._curve = lru_cache(maxsize=64)(self._computed)
        self._best = lru_cache(maxsize=64)(lambda place: predict(optimal(self._base(dict(place)))))
        settings = variations(scenario.gradients, next(iter(frameworks.values())))
        settings = _options({each.value for each in settings})
        policies = [AS_IT_IS, *frameworks, OPTIMUM]
        tooltip = "size of a message in the framework's unit: MiB; for DeepSpeed elements"
        controls = {
            "policy": labelled(Dropdown, "fusion", "whose fusion is shown", options=policies),
            "setting": labelled(SelectionSlider, "setting", tooltip, options=settings),
        }
        controls |= {name: _slider(name, _LINK, at) for name, at in link_at(scenario).items()}
        controls["workers"] = _slider("workers", WORKERS, int(scenario.n_workers))
        super().__init__(controls, *target)

    def picture(self, values: dict, moved: set) -> Picture:
        """Return the picture of the policy and setting that the controls select."""
        label, base = values["policy"], self._base(values)
        framework, curve = self._curve_of(values)
        at = values["setting"] or _best(curve)["value"] if label in self._frameworks else None
        best = self._best(_place(values))
        now, text = self._chosen(base, label, at, curve, best.scenario)
        prediction = best if now is best.scenario else predict(now)
        panels = [curve.assign(panel="loss"), prediction.timeline.assign(panel="timeline")]
        return Picture(
            partial(_draw, curve=curve, at=at, prediction=prediction),
            pd.concat(panels, ignore_index=True),
            _compared(prediction, best),
            recorded(now) | {"policy": label, "setting": text, "noise": _NOISE},
            _to_paste(text, _best(curve), framework),
            self._code_of(values, moved, base if label == OPTIMUM else now, framework, at),
            {"scenario": now},
        )

    def follow(self, moved: set):
        """Offer the settings of another framework, starting at the best."""
        if "policy" not in moved:
            return
        _, curve = self._curve_of(self.state())
        slider, used = self._controls["setting"], self._controls["policy"].value in self._frameworks
        slider.options = _options(set(curve["value"]))
        slider.index = sorted(set(curve["value"])).index(_best(curve)["value"]) if used else 0
        slider.disabled = not used  # a setting counts only for a framework

    def placed(self, values: dict) -> dict:
        """Return a place of a static page; None is the best setting of another framework."""
        other = values["policy"] != self._controls["policy"].value
        return values | ({"setting": None} if other else {})

    def _base(self, values: dict) -> Scenario:
        """Return the scenario with the workers, and with the link of the sliders moved."""
        return moved_to(self._start, values, self.moved(values))

    def _curve_of(self, values: dict) -> tuple[str, pd.DataFrame]:
        """Return the framework chosen, or the first, and its loss curve."""
        label = values["policy"]
        framework = label if label in self._frameworks else next(iter(self._frameworks))
        return framework, self._curve(framework, _place(values))

    def _computed(self, framework: str, place: tuple) -> pd.DataFrame:
        """Return the loss curve of a framework."""
        policy = self._frameworks[framework]
        return loss_curve(self._base(dict(place)), policy, _NOISE, self._tried(policy))

    def _tried(self, policy) -> list | None:
        """Return few settings for Horovod, which has six cycles of four phases for each."""
        if not isinstance(policy, HorovodFusion):
            return None
        largest = max(each.value for each in variations(self._start.gradients, policy))
        return [4.0**k for k in range(math.ceil(math.log(largest, 4)) + 1)]

    def _chosen(self, base: Scenario, label: str, at, curve: pd.DataFrame, best: Scenario):
        """Return the scenario with the policy chosen, and the text to paste for it."""
        if label == AS_IT_IS:
            return base, repr(base.fusion)
        if label == OPTIMUM:
            return best, f"{cap_list(base.gradients, best.fusion)[0]}  # torch 2.13 or later"
        text = _best(curve[curve["value"] == at])["setting"]
        found = variations(base.gradients, self._frameworks[label], [at])
        policy = next(each.policy for each in found if each.setting == text)
        return replace(base, fusion=policy), text

    def _code_of(self, values: dict, moved: set, now: Scenario, framework: str, at) -> str:
        policy = self._frameworks[framework]
        tried, fused = self._tried(policy), in_code(self._start, now, values, moved)
        explored = call("optimal", fused) if values["policy"] == OPTIMUM else fused
        curve = [repr(policy), repr(_NOISE), *([] if tried is None else [repr(tried)])]
        return f"""explored = {explored}
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
    """Return the positions of the controls of the link and the workers."""
    names = ("bandwidth", "latency", "workers")
    return tuple((name, values[name]) for name in names if name in values)


def _best(curve: pd.DataFrame) -> pd.Series:
    return curve.loc[curve["iteration_s"].idxmin()]


def _slider(name: str, values, start) -> SelectionSlider:
    """Return a slider through round values and the start, which keeps its last bit."""
    options = _options({start, *(value for value in values if differs(value, start))})
    label, tooltip = SLIDER_LABELS.get(name, name), TOOLTIPS[name]
    return labelled(SelectionSlider, label, tooltip, options=options, value=start)


def _options(values: set) -> list[tuple[str, float]]:
    return [(in_digits(value, 4), value) for value in sorted(values)]


def _compared(prediction: Prediction, best: Prediction) -> str:
    """Return a prediction in one line, compared with the optimum."""
    n = counted(int(prediction.scenario.n_workers), "worker")
    loss = 1 - prediction.scaling_factor / best.scaling_factor
    verdict = "no headroom" if prediction.iteration_s <= best.iteration_s * (1 + _NOISE) else "loss"
    return (
        f"scaling factor {prediction.scaling_factor:.3f} at {n}, of the optimum "
        f"{best.scaling_factor:.3f}: {verdict} {loss:.2%}; iteration "
        f"{format_seconds(prediction.iteration_s)}; {counted(len(prediction.timeline), 'message')}"
    )


def _to_paste(text: str, best: pd.Series, framework: str) -> str:
    """Return the HTML below the picture: the setting as text, and the best of the framework."""
    return (
        f'<pre class="wb-paste" style="white-space: pre-wrap; width: 48em">{escape(text)}</pre>'
        f"Best of {escape(framework)}, {best['loss']:.2%} below the optimum: "
        f"<code>{escape(best['setting'])}</code>"
    )


def _draw(figure, curve: pd.DataFrame, at, prediction: Prediction):
    above, below = figure.subplots(2, 1, height_ratios=(1.5, 1), gridspec_kw=_PANELS)
    center_legend(draw_fusion_curve(above, curve, at))
    center_legend(draw_timeline(below, prediction))
