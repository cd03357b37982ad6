"""The figures with sliders: what becomes of the forecast on another link, bucket or cluster?

A widget neither computes nor draws: it turns sliders into a Scenario, asks `timeline` for the
prediction and `figures` for the picture. `explorer.scenario` is the scenario of the sliders'
present positions, to go on with in the next cell.

Every explorer has buttons to save the figure, to reset the controls and to copy its code, and
`state()` and `restore(state)`: where its controls stand; `reset()`; `code()`: Python text that
makes the same picture from what was given; `static()`: HTML of a few positions that needs no
kernel, and `static().save("page.html")`.
"""

from ..figures import draw_scaling, draw_timeline
from ..timeline import Scenario, predict, sweep
from .code import drawn
from .explorer import static_of
from .fits import explore_fit
from .fusion import explore_fusion
from .pictures import Picture, amid
from .runs import explore_run
from .scenarios import AS_GIVEN, WORKERS, ScenarioExplorer, parameters, words
from .steps import explore_steps
from .whatif import explore_whatif

__all__ = [
    "explore_fit",
    "explore_fusion",
    "explore_run",
    "explore_scaling",
    "explore_steps",
    "explore_timeline",
    "explore_whatif",
    "static_of",
]


def explore_timeline(
    scenario: Scenario, name="timeline", folder=None, inputs=()
) -> ScenarioExplorer:
    """Show draw_timeline of a scenario, with sliders for its link, its fusion and its workers.

    The first picture is that of `scenario` itself. Sliders of the link are there where its
    all_reduce has one: not for measured times or for a price in regimes. "Save figure" writes
    `name`.pdf, .svg, .csv and .receipt.json with figures.save, which takes `folder` and `inputs`.
    Raises what save raises for them, and ValueError for what is no scenario.
    """
    return ScenarioExplorer(scenario, _timeline, name, folder, inputs)


def explore_scaling(
    scenario: Scenario, name="scaling", folder=None, inputs=(), fitted_to: int | None = None
) -> ScenarioExplorer:
    """Show draw_scaling from 1 to 1,024 workers with the same sliders, a curve a fusion policy.

    The curves are one message a gradient, DDP's buckets of the slider's size, one message in all,
    and the scenario's own policy when it is none of these. `fitted_to` is the number of workers
    beyond which the cost is extrapolated; the rest is as in explore_timeline.
    """

    def picture(scenario: Scenario, policies: dict, values: dict) -> Picture:
        return _scaling(scenario, policies, fitted_to)

    explorer = ScenarioExplorer(scenario, picture, name, folder, inputs)
    explorer.grid = {"bandwidth": (1.0, 10.0, 100.0, 400.0), "latency": (1.0, 10.0, 100.0),
                     "workers": (8, 32)}  # fmt: skip
    return explorer


def _timeline(scenario: Scenario, policies: dict, values: dict) -> Picture:
    prediction = predict(scenario)
    place = {"left": 0.14, "right": 0.95, "bottom": 0.19, "top": 0.9}

    def draw(figure):
        amid(draw_timeline(figure.subplots(gridspec_kw=place), prediction))

    code = "prediction = predict(explored)\ntable = prediction.timeline\n"
    code += drawn("draw_timeline(ax, prediction)")
    return Picture(draw, prediction.timeline, words(prediction), parameters(scenario), code=code)


def _scaling(scenario: Scenario, policies: dict, fitted_to: int | None) -> Picture:
    workers = sorted({*WORKERS, scenario.n_workers})
    data = sweep(scenario, fusion=list(policies.values()), n_workers=workers)
    data = data.assign(fusion=[label for label in policies for _ in workers])
    marks = {"fitted_to": fitted_to, "at": scenario.n_workers}
    place = {"left": 0.14, "right": 0.96, "bottom": 0.18, "top": 0.92}

    def draw(figure):
        draw_scaling(figure.subplots(gridspec_kw=place), data, "fusion", **marks)

    own = {label: "scenario.fusion" for label in policies if label == AS_GIVEN}
    curves = {label: repr(policy) for label, policy in policies.items()} | own
    code = [
        "policies = {",
        *(f"    {label!r}: {text}," for label, text in curves.items()),
        "}",
        f"workers = {workers!r}",
        "table = sweep(explored, fusion=list(policies.values()), n_workers=workers)",
        "table = table.assign(fusion=[label for label in policies for _ in workers])",
        drawn(f'draw_scaling(ax, table, "fusion", {fitted_to=}, at=explored.n_workers)'),
    ]
    told = words(predict(scenario))
    return Picture(draw, data, told, parameters(scenario), code="\n".join(code))
