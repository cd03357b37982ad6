"""Explore a recorded run: one iteration of a rank, stream by stream, as near as one likes."""

from functools import lru_cache
from html import escape

import pandas as pd
from ipywidgets import Dropdown, FloatRangeSlider

from ..drawing.runs import LABELS, draw_run
from ..drawing.style import short
from ..iterations import iterations
from ..lanes import Lanes, lanes
from ..units import format_seconds
from .base import CONTROL, Explorer, Picture

ALL = "all"


def explore_run(run, name="run", folder=None, inputs=()) -> "RunExplorer":
    """Show draw_run with controls for the rank, the iteration, the stream and the time shown.

    Below stand the kernels or operators that run longest in what is shown. `run` is a Run or its
    EVENTS; `name`, `folder` and `inputs` are as in figures.save, for the button "Save figure".
    `explorer.lanes` is the Lanes seen. Raises ValueError for what holds no iteration, and what
    `save` refuses.
    """
    return RunExplorer(run, (name, folder, inputs))


class RunExplorer(Explorer):
    """Controls for what is looked at of a run, its picture, and what runs longest in it."""

    engine = "none"  # axes that stay in place, drawn in half the time

    def __init__(self, run, target: tuple):
        events = getattr(run, "events", run)
        table = iterations(events)
        ranks = table["rank"].drop_duplicates()
        numbers = {"unknown" if pd.isna(r) else str(r): None if pd.isna(r) else r for r in ranks}
        self._lanes = lru_cache(maxsize=32)(
            lambda rank, iteration: lanes(events, numbers[rank], iteration)
        )
        self._iterations = {
            label: [int(i) for r, i in table[["rank", "iteration"]].values if _same(r, rank)]
            for label, rank in numbers.items()
        }
        start = next(iter(numbers))
        controls = {
            "rank": Dropdown(options=list(numbers), description="rank", **CONTROL),
            "iteration": Dropdown(
                options=self._iterations[start], description="iteration", **CONTROL
            ),
            "stream": Dropdown(options=[ALL], description="stream or thread", **CONTROL),
            "shown": FloatRangeSlider(value=(0.0, 100.0), description="shown (% of its time)",
                                      readout_format=".1f", **CONTROL),
        }  # fmt: skip
        self._fit(controls)
        for each in ("rank", "iteration"):  # before the frame's own, which redraws
            controls[each].observe(lambda _: self._quiet or self._fit(controls), "value")
        super().__init__(controls, *target)

    @property
    def lanes(self) -> Lanes:
        """The Lanes of the rank, the iteration and the stream that are seen."""
        return self._seen(self._values())

    def picture(self, values: dict, moved: set) -> Picture:
        """Return the picture of what the controls ask for."""
        seen = self._seen(values)
        low, high = (percent / 100 * seen.duration_s for percent in values["shown"])
        return Picture(
            lambda figure: _draw(figure, seen, (low, high)),
            seen.spans[(seen.spans["end_s"] > low) & (seen.spans["start_s"] < high)],
            _words(seen, values, low, high),
            values | {"shown_s": [low, high]},
            _table(seen.longest(low, high)),
        )

    def _seen(self, values: dict) -> Lanes:
        found = self._lanes(values["rank"], values["iteration"])
        return found if values["stream"] == ALL else found.of(values["stream"])

    def _fit(self, controls: dict):
        """Let the controls offer what the rank and the iteration have, without a redraw."""
        self._quiet = True
        rank, iteration, stream, _ = controls.values()
        _offer(iteration, self._iterations[rank.value])
        found = self._lanes(rank.value, iteration.value)
        _offer(stream, [ALL, *found.spans["lane"].unique()])
        self._quiet = False


def _same(a, b) -> bool:
    return pd.isna(a) if b is None else not pd.isna(a) and a == b


def _offer(control: Dropdown, options: list):
    """Give a choice other options, and keep what stood there when it is among them."""
    before = control.value
    control.options = options
    control.value = before if before in options else options[0]


def _words(seen: Lanes, values: dict, low: float, high: float) -> str:
    spent = seen.spent(low, high)
    labels = LABELS | {"comm": "hidden communication", "idle": "nothing running"}
    told = ", ".join(f"{labels[kind]} {format_seconds(s)}" for kind, s in spent.items() if s > 0)
    where = "" if values["stream"] == ALL else f", {values['stream']}"
    return (
        f"rank {values['rank']}, iteration {values['iteration']}{where}: "
        f"{format_seconds(low)} to {format_seconds(high)} of {format_seconds(seen.duration_s)}: "
        f"{told}"
    )


def _table(longest: pd.DataFrame) -> str:
    """Return the longest names as HTML; they come from the file, so they are escaped."""
    rows = "".join(
        f"<tr><td>{LABELS[kind]}</td><td>{n_rows:,}</td><td>{format_seconds(seconds)}</td>"
        f"<td>{escape(short(name, 70))}</td></tr>"
        for kind, name, n_rows, seconds in longest.itertuples(index=False)
    )
    heads = "".join(f"<th>{head}</th>" for head in ("kind", "times", "in all", "what ran longest"))
    style = "line-height: 1.3; text-align: left; border-spacing: 1em 0; border-collapse: separate"
    return f'<table style="{style}"><tr>{heads}</tr>{rows}</table>'


def _draw(figure, seen: Lanes, zoom: tuple):
    longest = max(map(len, seen.spans["lane"].unique()), default=0)  # characters
    left, right = max(0.22, 0.02 + 0.017 * longest), 0.96
    place = {"left": left, "right": right, "bottom": 0.19, "top": 0.9}
    ax = draw_run(figure.subplots(gridspec_kw=place), seen, zoom=zoom)
    ax.get_legend().set_bbox_to_anchor(((0.5 - left) / (right - left), 1))  # amid the figure
