"""Explore the recursion: the timeline message by message, and which branch of the maximum won."""

from functools import lru_cache
from html import escape

import numpy as np
import pandas as pd
from ipywidgets import IntSlider

from ..base.intervals import clip, measure
from ..base.units import counted, format_seconds
from ..figures import draw_step
from ..timeline import Prediction, Scenario, predict
from .code import drawn
from .explorer import CONTROL
from .pictures import Picture, amid
from .scenarios import ScenarioExplorer, parameters, words

BRANCHES = {  # of the maximum, in the order in which they win a tie
    "ready": ("ready_s", "its last gradient is ready"),
    "previous": ("previous_end_s", "the message before it is over"),
    "launch": ("launch_s", "the host launches it"),
}


def explore_steps(scenario: Scenario, name="steps", folder=None, inputs=()) -> "StepExplorer":
    """Show the timeline up to a message, why that message starts when it does, and what it cost.

    The slider on top goes through the messages and starts at the last, so that the first picture is
    the whole timeline of `scenario` itself; the others change its link, its fusion and its workers.
    The words are those of `prediction.explain()`. `explorer.scenario` and "Save figure", and what
    is raised, are as in explore_timeline.
    """
    return StepExplorer(scenario, name, folder, inputs)


class StepExplorer(ScenarioExplorer):
    """Sliders of a step and of a scenario, the timeline so far, and the maximum term by term."""

    late = ("step",)
    grid = {"step": None, "bandwidth": (1.0, 10.0, 100.0, 400.0)}

    def __init__(self, scenario: Scenario, name: str, folder, inputs):
        tooltip = "the messages up to this one, counted from 0 in the order they are sent"
        step = IntSlider(0, 0, 0, description="up to message", tooltip=tooltip, **CONTROL)
        self._predict = lru_cache(maxsize=8)(predict)
        super().__init__(scenario, self._picture_of, name, folder, inputs, step=step)

    def follow(self, moved: set):
        """Let the step go through the messages there are; at the last it stays at the last."""
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
        return Picture(
            lambda figure: _draw(figure, steps, step, backward_s),
            steps[: step + 1],
            words(prediction),
            parameters(scenario) | {"step": step},
            _told(prediction, steps[: step + 1], backward_s),
            _code(step),
        )


def _code(step: int) -> str:
    return f"""prediction = predict(explored)
steps = prediction.explain()
table = steps[: {step} + 1]
backward_s = explored.backward_s + prediction.slowed_s
{drawn(f"draw_step(ax, steps, {step}, backward_s)")}"""


def _told(prediction: Prediction, so_far: pd.DataFrame, backward_s: float) -> str:
    """Return the last step in words, and the terms of its maximum with the one that won."""
    last = so_far.iloc[-1]
    rows = [
        (
            "&larr; the latest" if branch == last["branch"] else "",
            "no message before it" if last[column] < 0 else format_seconds(last[column]),
            meaning,
        )
        for branch, (column, meaning) in BRANCHES.items()
        if branch != "launch" or last["launch_s"] > 0
    ]
    terms = "".join(
        f"<tr><td>{meaning}</td><td>{value}</td><td>{won}</td></tr>" for won, value, meaning in rows
    )
    started = so_far["branch"].value_counts()
    told = ", ".join(f"{started[b]} when {BRANCHES[b][1]}" for b in BRANCHES if b in started)
    spans = clip(so_far["start_s"], so_far["end_s"], backward_s, np.inf)  # of queues side by side
    exposed, whole = map(format_seconds, (measure(*spans), prediction.exposed_comm_s))
    return (
        f"<b>{escape(last['why'])}</b><table>{terms}</table>"
        f"Of {counted(len(so_far), 'message')} so far started: {told}. Exposed: {exposed} of "
        f"{whole}."
    )


def _draw(figure, steps: pd.DataFrame, step: int, backward_s: float):
    place = {"left": 0.12, "right": 0.97, "bottom": 0.18, "top": 0.84}  # two rows of legend
    amid(draw_step(figure.subplots(gridspec_kw=place), steps, step, backward_s))
