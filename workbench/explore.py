"""The figures with sliders: what becomes of the forecast on another link, bucket or cluster?

A widget neither computes nor draws: it turns sliders into a Scenario, asks `timeline` for the
prediction and `figures` for the picture. `explorer.scenario` is the scenario of the sliders'
present positions, to go on with in the next cell.
"""

import io
import math
from dataclasses import dataclass, fields, is_dataclass, replace
from html import escape

import matplotlib as mpl
import pandas as pd
import traitlets
from ipywidgets import (
    HTML,
    Button,
    Dropdown,
    FloatLogSlider,
    HBox,
    Image,
    Layout,
    SelectionSlider,
    VBox,
)
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .figures import draw_scaling, draw_timeline, paper, save, target
from .fusion import DDPBuckets, OneMessage, PerTensor
from .timeline import Prediction, Scenario, predict, sweep
from .units import GBIT, MIB, US, format_seconds

WORKERS = [2**k for k in range(11)]  # 1 to 1,024


def explore_timeline(scenario: Scenario, name="timeline", folder=None, inputs=()) -> "Explorer":
    """Show draw_timeline of a scenario, with sliders for its link, its fusion and its workers.

    The first picture is that of `scenario` itself. "Save figure" writes `name`.pdf, .svg, .csv and
    .receipt.json with figures.save, which takes `folder` and `inputs`. Raises what save raises for
    them, and ValueError when the scenario's all_reduce has no link to change.
    """
    return Explorer(scenario, _timeline, name, folder, inputs)


def explore_scaling(
    scenario: Scenario, name="scaling", folder=None, inputs=(), fitted_to: int | None = None
) -> "Explorer":
    """Show draw_scaling from 1 to 1,024 workers with the same sliders, a curve a fusion policy.

    The curves are one message a gradient, DDP's buckets of the slider's size, one message in all,
    and the scenario's own policy when it is none of these. `fitted_to` is the number of workers
    beyond which the cost is extrapolated; the rest is as in explore_timeline.
    """

    def picture(scenario: Scenario, policies: dict) -> Picture:
        return _scaling(scenario, policies, fitted_to)

    return Explorer(scenario, picture, name, folder, inputs)


@dataclass(frozen=True)
class Picture:
    """What one setting shows: draw(ax), the table it draws, and a sentence with the numbers."""

    draw: object
    data: pd.DataFrame
    words: str


def _timeline(scenario: Scenario, policies: dict) -> Picture:
    prediction = predict(scenario)
    data = prediction.timeline
    return Picture(lambda ax: draw_timeline(ax, prediction), data, _words(prediction))


def _scaling(scenario: Scenario, policies: dict, fitted_to: int | None) -> Picture:
    workers = sorted({*WORKERS, scenario.n_workers})
    data = sweep(scenario, fusion=list(policies.values()), n_workers=workers)
    data = data.assign(fusion=[label for label in policies for _ in workers])
    marks = {"fitted_to": fitted_to, "at": scenario.n_workers}
    draw = lambda ax: draw_scaling(ax, data, label="fusion", **marks)  # noqa: E731
    return Picture(draw, data, _words(predict(scenario)))


def _words(prediction: Prediction) -> str:
    scenario, link = prediction.scenario, prediction.scenario.all_reduce.link
    speed = f"{1 / link.beta / GBIT:.3g} Gbit/s" if link.beta else "unbounded bandwidth"
    return (
        f"scaling factor {prediction.scaling_factor:.3f} at {scenario.n_workers} workers: "
        f"iteration {format_seconds(prediction.iteration_s)}, of which exposed communication "
        f"{format_seconds(prediction.exposed_comm_s)}; {len(prediction.timeline)} messages; "
        f"{speed}, {link.alpha / US:.3g} us a hop"
    )


class Explorer(VBox):
    """Sliders, a picture of what they say, a line of numbers, and a button that saves the figure.

    `scenario` is the scenario of the sliders' present positions; it can be observed.
    """

    scenario = traitlets.Any()

    def __init__(self, scenario: Scenario, picture, name: str, folder, inputs):
        if not isinstance(scenario, Scenario):
            advice = "prediction.scenario" if isinstance(scenario, Prediction) else "Scenario(...)"
            got = type(scenario).__name__
            raise ValueError(f"explore: expected a Scenario, got {got}; pass {advice}")
        _, inputs = target(name, folder, inputs)  # refused here rather than at the button
        self._start, self._picture = scenario, picture
        self._target = {"name": name, "folder": folder, "inputs": inputs}
        self._controls = _controls(scenario)
        self._at_start = {name: control.value for name, control in self._controls.items()}
        width, height = (inches * paper()["figure.dpi"] for inches in paper()["figure.figsize"])
        size = Layout(width=f"{width:.0f}px", height=f"{height:.0f}px")  # fixed: no page jumps
        self._image = _named(Image(format="png", layout=size), "wb-image")
        self._status = _named(HTML(), "wb-status")
        button = _named(Button(description="Save figure", icon="download"), "wb-export")
        button.on_click(lambda _: self._show(self._save))
        for control in self._controls.values():
            control.observe(lambda _: self._show(self._redraw), "value")
        rows = [*self._controls.values(), self._image, HBox([button, self._status])]
        super().__init__(rows, layout=Layout(align_items="flex-start"))
        self._status.value = self._redraw()

    def _show(self, action):
        """Do it and tell the outcome; an error in a callback would otherwise go unseen."""
        try:
            self._status.value = action()
        except Exception as error:
            text = escape(f"{type(error).__name__}: {error}")
            self._status.value = f'<b style="color: #B00020">not done. {text}</b>'

    def _redraw(self) -> str:
        scenario, policies = self._present()
        picture = self._picture(scenario, policies)
        with mpl.rc_context(paper()):
            png = io.BytesIO()
            _figure(picture).savefig(png, format="png", pil_kwargs={"compress_level": 1})
        self._image.value = png.getvalue()
        self.scenario = scenario
        return escape(picture.words)

    def _save(self) -> str:
        scenario, policies = self._present()
        picture = self._picture(scenario, policies)
        with mpl.rc_context(paper()):
            figure = _figure(picture)
        parameters = _parameters(scenario)
        path = save(figure, data=picture.data, parameters=parameters, **self._target)
        return f"saved {escape(str(path))} with its .svg, .csv and .receipt.json"

    def _present(self) -> tuple[Scenario, dict]:
        """The scenario of the sliders' positions and the policies to compare it with.

        What nobody moved keeps the start's own value to the last bit.
        """
        values = {name: control.value for name, control in self._controls.items()}
        moved = {n for n, value in values.items() if _differs(value, self._at_start[n])}
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
        return scenario, policies


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
    shared = {"style": {"description_width": "11em"}, "layout": Layout(width="40em")}
    controls = {
        "bandwidth": _log_slider("bandwidth (Gbit/s)", bandwidth, 0.1, 1000, shared),
        "latency": _log_slider("latency (us a hop)", cost.link.alpha / US, 0.1, 1000, shared),
        "bucket": _log_slider("bucket size (MiB)", _buckets(scenario).cap_bytes / MIB, 0.25, 256,
                              shared),
        "workers": SelectionSlider(options=workers, value=int(scenario.n_workers),
                                   description="workers", **shared),
        "fusion": Dropdown(options=list(policies), value=chosen, description="fusion", **shared),
    }  # fmt: skip
    return {name: _named(control, f"wb-{name}") for name, control in controls.items()}


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


def _differs(value, start) -> bool:
    """Whether a control was moved; the page may give back a number with other last digits."""
    if isinstance(value, float):
        return not math.isclose(value, start, rel_tol=1e-6)
    return value != start


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


def _figure(picture: Picture) -> Figure:
    """A fresh figure outside pyplot, which would keep every one of them alive."""
    figure = Figure()
    FigureCanvasAgg(figure)
    picture.draw(figure.subplots())
    return figure


def _named(widget, name: str):
    """The widget with a class name, by which a page or a test finds it."""
    return widget.add_class(name)
