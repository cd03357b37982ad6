"""Sliders of a scenario: link, fusion and workers, for every widget that has them."""

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
from ..timeline.scenario import a_scenario
from .code import call
from .explorer import Explorer, labelled
from .pictures import Picture
from .positions import in_digits

WORKERS = [2**k for k in range(11)]  # 1 to 1,024
AS_GIVEN = "as given"  # label of a policy that the user wrote
TOOLTIPS = {
    "bandwidth": "bandwidth of the link in Gbit/s, 1/beta",
    "latency": "latency of a message hop in us, alpha",
    "bucket": "size in MiB at which DDP closes a bucket; counts if fusion is DDP buckets",
    "workers": "number of workers that train together",
    "fusion": "which gradients travel in one message",
}
SLIDER_LABELS = {
    "bandwidth": "bandwidth (Gbit/s)",
    "latency": "latency (us per hop)",
    "bucket": "bucket size (MiB)",
}
_MOST_GBIT = 1000.0  # position of the slider for an unbounded bandwidth
_STEP = 0.05  # decades: one step of a logarithmic slider is 12 %


def in_one_line(prediction: Prediction) -> str:
    """Return a prediction in one line, with its link if its cost has one."""
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
    return f"; {speed}, {in_digits(link.alpha / US)} us per hop"


def has_link(cost) -> bool:
    """Whether a cost has one link, whose bandwidth and latency can be changed."""
    return is_dataclass(cost) and "link" in {field.name for field in fields(cost)}


class ScenarioExplorer(Explorer):
    """Sliders of a scenario, a picture of it, and a line of numbers.

    Bandwidth and latency have sliders if the scenario's all_reduce has one link.

    scenario : the scenario of the current positions; can be observed
    drawn : called as drawn(scenario, policies by label, values), returns a Picture whose code
        starts from `explored`, the scenario
    more : further controls, above the others
    """

    scenario = traitlets.Any()
    grid = {"bandwidth": (1.0, 10.0, 100.0, 400.0), "workers": (8, 32, 128), "fusion": None}

    def __init__(self, scenario: Scenario, drawn, name: str, folder, inputs, **more):
        a_scenario(scenario, "explore")
        self._start, self._drawn = scenario, drawn
        self._wanted = lru_cache(maxsize=8)(self._made)
        super().__init__(more | _controls(scenario), name, folder, inputs)

    def picture(self, values: dict, moved: set) -> Picture:
        """Return the picture of the scenario at these positions."""
        scenario, policies = self.wanted(values)
        picture = self._drawn(scenario, policies, values)
        code = f"explored = {in_code(self._start, scenario, values, moved)}\n{picture.code}"
        return replace(picture, code=code, found={"scenario": scenario})

    def wanted(self, values: dict) -> tuple[Scenario, dict]:
        """Return the scenario at these positions, and the policies compared, by label.

        What was not moved keeps the start's value to the last bit.
        """
        return self._wanted(*((name, values[name]) for name in TOOLTIPS if name in values))

    def _made(self, *places) -> tuple[Scenario, dict]:
        values = dict(places)
        moved = self.moved(values)
        policies = _policies(self._start, values["bucket"] if "bucket" in moved else None)
        scenario = moved_to(self._start, values, moved)
        return replace(scenario, fusion=policies[values["fusion"]]), policies


def moved_to(scenario: Scenario, values: dict, moved: set) -> Scenario:
    """Return the scenario with the workers of the slider, and with the link of those moved."""
    link = {}
    if "bandwidth" in moved:
        link["beta"] = 1 / (values["bandwidth"] * GBIT)
    if "latency" in moved:
        link["alpha"] = values["latency"] * US
    cost = scenario.all_reduce
    cost = replace(cost, link=replace(cost.link, **link)) if link else cost
    return replace(scenario, all_reduce=cost, n_workers=int(values["workers"]))


def in_code(start: Scenario, scenario: Scenario, values: dict, moved: set) -> str:
    """Return the call that makes a scenario from the start, in the units of the sliders moved."""
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
    """Return every slider by name, at the position of the scenario."""
    policies = _policies(scenario, None)
    workers = sorted({*WORKERS, int(scenario.n_workers)})
    chosen = next(label for label, policy in policies.items() if policy == scenario.fusion)
    controls = {name: _log_slider(name, at, 0.1, 1000) for name, at in link_at(scenario).items()}
    controls["bucket"] = _log_slider("bucket", _buckets(scenario).cap_bytes / MIB, 0.25, 256)
    choices = {
        "workers": (SelectionSlider, workers, int(scenario.n_workers)),
        "fusion": (Dropdown, list(policies), chosen),
    }
    for name, (kind, options, at) in choices.items():
        controls[name] = labelled(kind, name, TOOLTIPS[name], options=options, value=at)
    return controls


def link_at(scenario: Scenario) -> dict:
    """Return bandwidth in Gbit/s and latency in us per hop, or nothing if the cost has no link."""
    if not has_link(scenario.all_reduce):
        return {}
    link = scenario.all_reduce.link
    bandwidth = 1 / link.beta / GBIT if link.beta else _MOST_GBIT
    return {"bandwidth": bandwidth, "latency": link.alpha / US}


def _log_slider(name: str, value: float, low: float, high: float) -> FloatLogSlider:
    """Return a logarithmic slider whose range includes the value; 0 is put at the low end.

    The page rounds a slider to whole steps from its low end, so the ends lie whole steps from the
    value: otherwise an untouched slider would move when it is shown.
    """
    value = value or low
    place = math.log10(value)
    down, up = (
        max(0, math.ceil(math.log10(ratio) / _STEP)) for ratio in (value / low, high / value)
    )
    return labelled(
        FloatLogSlider, SLIDER_LABELS[name], TOOLTIPS[name], value=value, step=_STEP,
        min=place - down * _STEP, max=place + up * _STEP, readout_format=".3r",
    )  # fmt: skip


def _buckets(scenario: Scenario) -> DDPBuckets:
    return scenario.fusion if isinstance(scenario.fusion, DDPBuckets) else DDPBuckets()


def _policies(scenario: Scenario, bucket_mib: float | None) -> dict:
    """Return the policies compared, by label, with the scenario's own among them."""
    buckets = _buckets(scenario)
    if bucket_mib is not None:
        cap = round(bucket_mib * MIB)
        buckets = DDPBuckets(min(buckets.first_bytes, cap), cap)
    known = {"per tensor": PerTensor(), "DDP buckets": buckets, "one message": OneMessage()}
    own = isinstance(scenario.fusion, DDPBuckets) or scenario.fusion in known.values()
    return known if own else known | {AS_GIVEN: scenario.fusion}


def recorded(scenario: Scenario) -> dict:
    """Return a scenario as a receipt records it: every field except the table of gradients."""
    names = [field.name for field in fields(scenario) if field.name != "gradients"]
    return {name: _recorded(getattr(scenario, name)) for name in names}


def _recorded(value):
    """Return a value as a receipt records it: by its repr if it holds a table or a function."""
    try:
        return as_plain(value, "")
    except ValueError:
        return re.sub(" at 0x[0-9a-f]+", "", repr(value))  # addresses differ between runs
