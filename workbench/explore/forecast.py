"""Explore a forecast: the timeline of one iteration, and the scaling factor by worker count."""

from functools import partial

from ..figures import draw_scaling, draw_timeline
from ..timeline import Scenario, predict, sweep
from .code import on_one_axes
from .pictures import Picture, on_axes
from .scenarios import AS_GIVEN, WORKERS, ScenarioExplorer, in_one_line, recorded


def explore_timeline(
    scenario: Scenario, name="timeline", folder=None, inputs=()
) -> ScenarioExplorer:
    """Show draw_timeline of a scenario, with sliders for its link, fusion and workers.

    The first picture shows `scenario` itself. The link has sliders if the scenario's all_reduce has
    one link: not for measured times or a price in regimes. "Save figure" writes `name`.pdf, .svg,
    .csv and .receipt.json with figures.save, which takes `folder` and `inputs`.
    """
    return ScenarioExplorer(scenario, _timeline, name, folder, inputs)


def explore_scaling(
    scenario: Scenario, name="scaling", folder=None, inputs=(), fitted_to: int | None = None
) -> ScenarioExplorer:
    """Show draw_scaling from 1 to 1,024 workers with the same sliders, one curve per policy.

    The policies are one message per gradient, DDP buckets of the slider's size, one message for all
    gradients, and the scenario's own if it is none of these.

    fitted_to : number of workers beyond which the cost is extrapolated
    """

    draw = partial(_scaling, fitted_to=fitted_to)
    explorer = ScenarioExplorer(scenario, draw, name, folder, inputs)
    explorer.grid = {"bandwidth": (1.0, 10.0, 100.0, 400.0), "latency": (1.0, 10.0, 100.0),
                     "workers": (8, 32)}  # fmt: skip
    return explorer


def _timeline(scenario: Scenario, policies: dict, values: dict) -> Picture:
    prediction = predict(scenario)
    draw = on_axes((0.14, 0.95, 0.19, 0.9), draw_timeline, prediction)
    code = "prediction = predict(explored)\ntable = prediction.timeline\n"
    code += on_one_axes("draw_timeline(ax, prediction)")
    data, words = prediction.timeline, in_one_line(prediction)
    return Picture(draw, data, words, recorded(scenario), code=code)


def _scaling(scenario: Scenario, policies: dict, values: dict, fitted_to) -> Picture:
    workers = sorted({*WORKERS, scenario.n_workers})
    data = sweep(scenario, fusion=list(policies.values()), n_workers=workers)
    data = data.assign(fusion=[label for label in policies for _ in workers])
    marks = {"fitted_to": fitted_to, "at": scenario.n_workers}
    draw = on_axes((0.14, 0.96, 0.18, 0.92), draw_scaling, data, "fusion", **marks)
    own = {label: "scenario.fusion" for label in policies if label == AS_GIVEN}
    curves = {label: repr(policy) for label, policy in policies.items()} | own
    code = [
        "policies = {",
        *(f"    {label!r}: {text}," for label, text in curves.items()),
        "}",
        f"workers = {workers!r}",
        "table = sweep(explored, fusion=list(policies.values()), n_workers=workers)",
        "table = table.assign(fusion=[label for label in policies for _ in workers])",
        on_one_axes(f'draw_scaling(ax, table, "fusion", {fitted_to=}, at=explored.n_workers)'),
    ]
    words = in_one_line(predict(scenario))
    return Picture(draw, data, words, recorded(scenario), code="\n".join(code))
