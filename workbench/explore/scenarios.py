"""Sliders of a scenario: its link, its fusion and its workers, for every widget that has them."""

import math
import re
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache

import traitlets
from ipywidgets import Dropdown, FloatLogSlider, SelectionSlider

from ..base.units import GBIT, MIB, US, counted, format_seconds
from ..figures.provenance import as_plain
from ..fusion import DDPBuckets, OneMessage, PerTensor
from ..timeline import Prediction, Scenario
from ..timeline.scenario import check_scenario
from .code import call
from .explorer import CONTROL, Explorer
from .pictures import Picture
from .positions import in_digits

WORKERS = [2**k for k in range(11)]  # 1 to 1,024
AS_GIVEN = "as given"  # a policy of the scenario's own
TOLD = {  # the controls, and their tooltips
    "bandwidth": "bandwidth of the link in Gbit/s, 1/beta",
    "latency": "latency of a message hop in us, alpha",
    "bucket": "size in MiB at which DDP closes a bucket; counts where fusion is DDP buckets",
    "workers": "number of workers that train together",
    "fusion": "which gradients travel in one message",
}


def words(prediction: Prediction) -> str:
    """Return a prediction in one line, its link among it where its cost has one."""
    scenario = prediction.scenario
    return (
        f"scaling factor {prediction.scaling_factor:.3f} at "
        f"{counted(int(scenario.n_workers), 'worker')}: "
        f"iteration {format_seconds(prediction.iteration_s)}, of which exposed communication "
        f"{format_seconds(prediction.exposed_comm_s)}; "
        f"{counted(len(prediction.timeline), 'message')}"
        + (_price(scenario.all_reduce.link) if has_link(scenario.all_reduce) else "")
    )


def _price(link) -> str:
    speed = f"{in_digits(1 / link.beta / GBIT)} Gbit/s" if link.beta else "unbounded bandwidth"
    return f"; {speed}, {in_digits(link.alpha / US)} us a hop"


def has_link(cost) -> bool:
    """Whether a cost has one link, whose bandwidth and latency can be changed."""
    return is_dataclass(cost) and "link" in {field.name for field in fields(cost)}


class ScenarioExplorer(Explorer):
    """Sliders of a scenario, a picture of what they say, a line of numbers, "Save figure".

    Bandwidth and latency have sliders where the scenario's all_reduce has one link.
    `scenario` is the scenario of the sliders' present positions; it can be observed.
    drawn(scenario, policies, values) gives its Picture, policies by label, whose code begins where
    `explored` is the scenario; `more` are further controls, above the others.
    """

    scenario = traitlets.Any()
    grid = {"bandwidth": (1.0, 10.0, 100.0, 400.0), "workers": (8, 32, 128), "fusion": None}

    def __init__(self, scenario: Scenario, drawn, name: str, folder, inputs, **more):
        check_scenario(scenario, "explore")
        self._start, self._drawn = scenario, drawn
        self._wanted = lru_cache(maxsize=8)(self._made)
        super().__init__(more | _controls(scenario), name, folder, inputs)

    def picture(self, values: dict, moved: set) -> Picture:
        """Return the picture of the scenario that the sliders say."""
        scenario, policies = self.wanted(values)
        picture = self._drawn(scenario, policies, values)
        code = f"explored = {in_code(self._start, scenario, values, moved)}\n{picture.code}"
        return replace(picture, code=code, found={"scenario": scenario})

    def wanted(self, values: dict) -> tuple[Scenario, dict]:
        """Return the scenario that the sliders say, and the policies compared, by label.

        What nobody moved keeps the start's own value to the last bit.
        """
        return self._wanted(*((name, values[name]) for name in TOLD if name in values))

    def _made(self, *places) -> tuple[Scenario, dict]:
        values = dict(places)
        moved = self.moved(values)
        policies = _policies(self._start, values["bucket"] if "bucket" in moved else None)
        scenario = replace(
            moved_to(self._start, values, moved),
            n_workers=values["workers"],
            fusion=policies[values["fusion"]],
        )
        return scenario, policies


def moved_to(scenario: Scenario, values: dict, moved: set) -> Scenario:
    """Return the scenario with the link of the sliders that were moved."""
    if not moved & {"bandwidth", "latency"}:
        return scenario
    link = scenario.all_reduce.link
    if "bandwidth" in moved:
        link = replace(link, beta=1 / (values["bandwidth"] * GBIT))
    if "latency" in moved:
        link = replace(link, alpha=values["latency"] * US)
    return replace(scenario, all_reduce=replace(scenario.all_reduce, link=link))


def in_code(start: Scenario, scenario: Scenario, values: dict, moved: set) -> str:
    """Return the call that makes a scenario of the start's, in the units of the sliders moved."""
    link, changes = [], []
    if "bandwidth" in moved:
        link.append(f"beta=1 / ({values['bandwidth']!r} * GBIT)")
    if "latency" in moved:
        link.append(f"alpha={values['latency']!r} * US")
    if scenario.n_workers != start.n_workers:
        changes.append(f"n_workers={scenario.n_workers!r}")
    if link:
        made = call("replace", "scenario.all_reduce.link", *link)
        changes.append(f"all_reduce={call('replace', 'scenario.all_reduce', f'link={made}')}")
    if scenario.fusion != start.fusion:
        changes.append(f"fusion={scenario.fusion!r}")
    return call("replace", "scenario", *changes) if changes else "scenario"


def _controls(scenario: Scenario) -> dict:
    """Every slider by name, standing where the scenario does."""
    policies = _policies(scenario, None)
    workers = sorted({*WORKERS, int(scenario.n_workers)})
    chosen = next(label for label, policy in policies.items() if policy == scenario.fusion)
    bucket, link = _buckets(scenario).cap_bytes / MIB, {}
    if has_link(scenario.all_reduce):
        latency, bandwidth = in_units(scenario.all_reduce.link, 1000.0)
        link = {
            "bandwidth": _log_slider("bandwidth (Gbit/s)", bandwidth, 0.1, 1000, TOLD["bandwidth"]),
            "latency": _log_slider("latency (us a hop)", latency, 0.1, 1000, TOLD["latency"]),
        }
    return link | {
        "bucket": _log_slider("bucket size (MiB)", bucket, 0.25, 256, TOLD["bucket"]),
        "workers": SelectionSlider(options=workers, value=int(scenario.n_workers),
                                   description="workers", tooltip=TOLD["workers"], **CONTROL),
        "fusion": Dropdown(options=list(policies), value=chosen, description="fusion",
                           tooltip=TOLD["fusion"], **CONTROL),
    }  # fmt: skip


def in_units(link, most: float) -> tuple[float, float]:
    """Return latency in us a hop and bandwidth in Gbit/s, which is `most` where it is unbounded."""
    return link.alpha / US, 1 / link.beta / GBIT if link.beta else most


STEP = 0.05  # decades: a step of a logarithmic slider is 12 %


def _log_slider(description: str, value: float, low: float, high: float, tooltip: str):
    """A logarithmic slider whose range takes the value in; a value of 0 stands at the low end.

    The page rounds a slider to whole steps from its low end, so the ends lie whole steps from the
    value: else a slider that nobody touched would move when it is shown.
    """
    value = value or low
    down, up = (
        max(0, math.ceil(math.log10(ratio) / STEP)) for ratio in (value / low, high / value)
    )
    place = math.log10(value)
    return FloatLogSlider(
        value,
        min=place - down * STEP,
        max=place + up * STEP,
        step=STEP,
        readout_format=".3r",
        description=description,
        tooltip=tooltip,
        **CONTROL,
    )


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
    return known if own else known | {AS_GIVEN: scenario.fusion}


def parameters(scenario: Scenario) -> dict:
    """Return what the receipt tells of a scenario: every field but the table of gradients."""
    names = [field.name for field in fields(scenario) if field.name != "gradients"]
    return {name: _as_told(getattr(scenario, name)) for name in names}


def _as_told(value):
    """Return a value as a receipt holds it, what holds a table or a function in its own words."""
    try:
        return as_plain(value, "")
    except ValueError:
        return re.sub(" at 0x[0-9a-f]+", "", repr(value))  # that differs from run to run
