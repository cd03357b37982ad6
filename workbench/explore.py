"""The figures with sliders: what becomes of the forecast on another link, bucket or cluster?

A widget neither computes nor draws: it turns sliders into a Scenario, asks `timeline` for the
prediction and `figures` for the picture. `explorer.scenario` is the scenario of the sliders'
present positions, to go on with in the next cell. `explore_fit` is in fit_widget.
"""

import math
from dataclasses import fields, is_dataclass, replace

import traitlets
from ipywidgets import Dropdown, FloatLogSlider, SelectionSlider

from .figures import draw_scaling, draw_timeline
from .fit_widget import explore_fit
from .fusion import DDPBuckets, OneMessage, PerTensor
from .timeline import Prediction, Scenario, predict, sweep
from .units import GBIT, MIB, US, format_seconds
from .widget import CONTROL, Explorer, Picture

__all__ = ["explore_fit", "explore_scaling", "explore_timeline"]

WORKERS = [2**k for k in range(11)]  # 1 to 1,024


def explore_timeline(
    scenario: Scenario, name="timeline", folder=None, inputs=()
) -> "ScenarioExplorer":
    """Show draw_timeline of a scenario, with sliders for its link, its fusion and its workers.

    The first picture is that of `scenario` itself. "Save figure" writes `name`.pdf, .svg, .csv and
    .receipt.json with figures.save, which takes `folder` and `inputs`. Raises what save raises for
    them, and ValueError when the scenario's all_reduce has no link to change.
    """
    return ScenarioExplorer(scenario, _timeline, name, folder, inputs)


def explore_scaling(
    scenario: Scenario, name="scaling", folder=None, inputs=(), fitted_to: int | None = None
) -> "ScenarioExplorer":
    """Show draw_scaling from 1 to 1,024 workers with the same sliders, a curve a fusion policy.

    The curves are one message a gradient, DDP's buckets of the slider's size, one message in all,
    and the scenario's own policy when it is none of these. `fitted_to` is the number of workers
    beyond which the cost is extrapolated; the rest is as in explore_timeline.
    """

    def picture(scenario: Scenario, policies: dict) -> Picture:
        return _scaling(scenario, policies, fitted_to)

    return ScenarioExplorer(scenario, picture, name, folder, inputs)


def _timeline(scenario: Scenario, policies: dict) -> Picture:
    prediction = predict(scenario)
    data = prediction.timeline
    draw = lambda figure: draw_timeline(figure.subplots(), prediction)  # noqa: E731
    return Picture(draw, data, _words(prediction), _parameters(scenario))


def _scaling(scenario: Scenario, policies: dict, fitted_to: int | None) -> Picture:
    workers = sorted({*WORKERS, scenario.n_workers})
    data = sweep(scenario, fusion=list(policies.values()), n_workers=workers)
    data = data.assign(fusion=[label for label in policies for _ in workers])
    marks = {"fitted_to": fitted_to, "at": scenario.n_workers}
    draw = lambda figure: draw_scaling(figure.subplots(), data, "fusion", **marks)  # noqa: E731
    return Picture(draw, data, _words(predict(scenario)), _parameters(scenario))


def _words(prediction: Prediction) -> str:
    scenario, link = prediction.scenario, prediction.scenario.all_reduce.link
    speed = f"{1 / link.beta / GBIT:.3g} Gbit/s" if link.beta else "unbounded bandwidth"
    return (
        f"scaling factor {prediction.scaling_factor:.3f} at {scenario.n_workers} workers: "
        f"iteration {format_seconds(prediction.iteration_s)}, of which exposed communication "
        f"{format_seconds(prediction.exposed_comm_s)}; {len(prediction.timeline)} messages; "
        f"{speed}, {link.alpha / US:.3g} us a hop"
    )


class ScenarioExplorer(Explorer):
    """Sliders of a scenario, a picture of what they say, a line of numbers, "Save figure".

    `scenario` is the scenario of the sliders' present positions; it can be observed.
    """

    scenario = traitlets.Any()

    def __init__(self, scenario: Scenario, drawn, name: str, folder, inputs):
        if not isinstance(scenario, Scenario):
            advice = "prediction.scenario" if isinstance(scenario, Prediction) else "Scenario(...)"
            got = type(scenario).__name__
            raise ValueError(f"explore: expected a Scenario, got {got}; pass {advice}")
        self._start, self._drawn = scenario, drawn
        super().__init__(_controls(scenario), name, folder, inputs)

    def picture(self, values: dict, moved: set) -> Picture:
        """Return the picture of the scenario that the sliders say.

        What nobody moved keeps the start's own value to the last bit.
        """
        link = self._start.all_reduce.link
        if "bandwidth" in moved:
            link = replace(link, beta=1 / (values["bandwidth"] * GBIT))
        if "latency" in moved:
            link = replace(link, alpha=values["latency"] * US)
        policies = _policies(self._start, values["bucket"] if "bucket" in moved else None)
        scenario = replace(
            self._start,
            n_workers=values["workers"],
            all_reduce=replace(self._start.all_reduce, link=link),
            fusion=policies[values["fusion"]],
        )
        picture = self._drawn(scenario, policies)
        self.scenario = scenario
        return picture


def _controls(scenario: Scenario) -> dict:
    """Every slider by name, standing where the scenario does."""
    cost = scenario.all_reduce
    if not is_dataclass(cost) or "link" not in {field.name for field in fields(cost)}:
        raise ValueError(
            f"all_reduce: expected a cost with a link whose bandwidth and latency can be changed, "
            f"such as Ring(Link(alpha, beta)); got {type(cost).__name__}"
        )
    bandwidth = 1 / cost.link.beta / GBIT if cost.link.beta else 1000.0
    policies = _policies(scenario, None)
    workers = sorted({*WORKERS, int(scenario.n_workers)})
    chosen = next(label for label, policy in policies.items() if policy == scenario.fusion)
    shared = CONTROL
    return {
        "bandwidth": _log_slider("bandwidth (Gbit/s)", bandwidth, 0.1, 1000, shared),
        "latency": _log_slider("latency (us a hop)", cost.link.alpha / US, 0.1, 1000, shared),
        "bucket": _log_slider("bucket size (MiB)", _buckets(scenario).cap_bytes / MIB, 0.25, 256,
                              shared),
        "workers": SelectionSlider(options=workers, value=int(scenario.n_workers),
                                   description="workers", **shared),
        "fusion": Dropdown(options=list(policies), value=chosen, description="fusion", **shared),
    }  # fmt: skip


STEP = 0.05  # decades: a step of a logarithmic slider is 12 %


def _log_slider(description: str, value: float, low: float, high: float, shared: dict):
    """A logarithmic slider whose range takes the value in; a value of 0 stands at the low end.

    The page rounds a slider to whole steps from its low end, so the ends lie whole steps from the
    value: else a slider that nobody touched would move when it is shown.
    """
    value = value or low
    down, up = (
        max(0, math.ceil(math.log10(ratio) / STEP)) for ratio in (value / low, high / value)
    )
    place = math.log10(value)
    return FloatLogSlider(value, min=place - down * STEP, max=place + up * STEP, step=STEP,
                          readout_format=".3r", description=description, **shared)  # fmt: skip


def _buckets(scenario: Scenario) -> DDPBuckets:
    return scenario.fusion if isinstance(scenario.fusion, DDPBuckets) else DDPBuckets()


def _policies(scenario: Scenario, bucket_mib: float | None) -> dict:
    """The policies compared, by label; the scenario's own among them."""
    buckets = _buckets(scenario)
    if bucket_mib is not None:
        cap = round(bucket_mib * MIB)
        buckets = DDPBuckets(min(buckets.first_bytes, cap), cap)
    known = {"per tensor": PerTensor(), "DDP buckets": buckets, "one message": OneMessage()}
    own = isinstance(scenario.fusion, DDPBuckets) or scenario.fusion in known.values()
    return known if own else known | {"as given": scenario.fusion}


def _parameters(scenario: Scenario) -> dict:
    """What the receipt tells of a scenario: every field but the table of gradients."""
    values = {field.name: getattr(scenario, field.name) for field in fields(scenario)}
    return {
        name: value if is_dataclass(value) or isinstance(value, str | int | float) else repr(value)
        for name, value in values.items()
        if name != "gradients"
    }
