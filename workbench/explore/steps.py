"""Explore the recursion: the timeline message by message, and what each message waited for."""

from functools import lru_cache
from html import escape

import numpy as np
import pandas as pd
from ipywidgets import IntSlider

from ..base.intervals import clip, measure
from ..base.units import counted, format_seconds
from ..figures import draw_step
from ..timeline import Prediction, Scenario, predict
from .code import on_one_axes
from .explorer import labelled
from .pictures import Picture, on_axes
from .scenarios import ScenarioExplorer, in_one_line, recorded

BRANCHES = {  # of the maximum, in the order in which they win a tie
    "ready": ("ready_s", "its last gradient is ready"),
    "previous": ("previous_end_s", "the message before it is over"),
    "launch": ("launch_s", "the host launches it"),
}


def explore_steps(scenario: Scenario, name="steps", folder=None, inputs=()) -> "StepExplorer":
    """Show the timeline up to a message, why that message starts when it does, and its cost.

    The slider on top goes through the messages and starts at the last, so the first picture is the
    whole timeline of `scenario`; the other sliders change its link, fusion and workers. The words
    are those of `prediction.explain()`. All else is as in explore_timeline.
    """
    return StepExplorer(scenario, name, folder, inputs)


class StepExplorer(ScenarioExplorer):
    """Sliders of a step and of a scenario, the timeline so far, and the terms of the maximum."""

    late = ("step",)
    grid = {"step": None, "bandwidth": (1.0, 10.0, 100.0, 400.0)}

    def __init__(self, scenario: Scenario, name: str, folder, inputs):
        tooltip = "the messages up to this one, counted from 0 in the order they are sent"
        step = labelled(IntSlider, "up to message", tooltip, value=0, min=0, max=0)
        self._predict = lru_cache(maxsize=8)(predict)
        super().__init__(scenario, self._picture_of, name, folder, inputs, step=step)

    def follow(self, moved: set):
        """Set the range of steps to the messages there are; a slider at its end stays there."""
        slider = self._controls["step"]
        at_end = slider.value == slider.max
        slider.max = len(self._predict(self.wanted(self.state())[0]).timeline) - 1
        slider.value = slider.max if at_end else slider.value

    def _picture_of(self, scenario: Scenario, policies: dict, values: dict) -> Picture:
        prediction, step = self._predict(scenario), values["step"]
        steps, n_messages = prediction.explain(), len(prediction.timeline)
        if step >= n_messages:
            raise ValueError(f"step: expected one of {counted(n_messages, 'message')}, got {step}")
        backward_s = scenario.backward_s + prediction.slowed_s
        place = (0.12, 0.97, 0.18, 0.84)  # below two rows of legend
        return Picture(
            on_axes(place, draw_step, steps, step, backward_s),
            steps[: step + 1],
            in_one_line(prediction),
            recorded(scenario) | {"step": step},
            _below(prediction, steps[: step + 1], backward_s),
            f"""prediction = predict(explored)
steps = prediction.explain()
table = steps[: {step} + 1]
backward_s = explored.backward_s + prediction.slowed_s
{on_one_axes(f"draw_step(ax, steps, {step}, backward_s)")}""",
        )


def _below(prediction: Prediction, so_far: pd.DataFrame, backward_s: float) -> str:
    """Return the last step in words, and the terms of its maximum with the latest marked."""
    last = so_far.iloc[-1]
    terms = ""
    for branch, (column, meaning) in BRANCHES.items():
        if branch == "launch" and last["launch_s"] <= 0:
            continue
        value = "no message before it" if last[column] < 0 else format_seconds(last[column])
        won = "&larr; the latest" if branch == last["branch"] else ""
        terms += f"<tr><td>{meaning}</td><td>{value}</td><td>{won}</td></tr>"
    n_started = so_far["branch"].value_counts()
    started = ", ".join(f"{n_started[b]} when {BRANCHES[b][1]}" for b in BRANCHES if b in n_started)
    spans = clip(so_far["start_s"], so_far["end_s"], backward_s, np.inf)  # queues may overlap
    exposed, whole = map(format_seconds, (measure(*spans), prediction.exposed_comm_s))
    return (
        f"<b>{escape(last['why'])}</b><table>{terms}</table>"
        f"Of {counted(len(so_far), 'message')} so far started: {started}. "
        f"Exposed so far: {exposed} of {whole}."
    )
