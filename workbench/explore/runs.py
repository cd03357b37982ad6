"""Explore a recorded run: one iteration of a rank, stream by stream, as close as wanted."""

from functools import lru_cache
from html import escape

import pandas as pd
from ipywidgets import Dropdown, FloatRangeSlider

from ..base.checks import require
from ..base.units import format_seconds
from ..figures import draw_run
from ..figures.runs import LABELS
from ..figures.style import short
from ..traces import Lanes, iterations, lanes
from .code import call, on_one_axes
from .explorer import Explorer, labelled
from .pictures import Picture, on_axes
from .positions import in_digits

ALL = "all"
_TOOLTIPS = {
    "rank": "the worker that is shown",
    "iteration": "the iteration of that worker",
    "stream": "where work ran: everywhere, or in one of them",
    "shown": "the part of the iteration that is shown, in % of its time",
}
_TABLE = "line-height: 1.3; text-align: left; border-spacing: 1em 0; border-collapse: separate"


def explore_run(run, name="run", folder=None, inputs=()) -> "RunExplorer":
    """Show draw_run with controls for the rank, the iteration, the stream and the time shown.

    The kernels or operators that run longest in the time shown are listed below the picture.
    `explorer.lanes` is the Lanes shown.

    run : a Run or its EVENTS
    name, folder, inputs : as in figures.save, for the button "Save figure"
    """
    return RunExplorer(run, (name, folder, inputs))


class RunExplorer(Explorer):
    """Controls for the part of a run that is shown, its picture, and what runs longest in it."""

    given = "run, the Run or its EVENTS, as it was given to the explorer"
    late = ("iteration", "stream")
    grid = {
        "iteration": None,
        "rank": None,
        "shown": ((0.0, 100.0), (0.0, 25.0), (25.0, 50.0), (50.0, 75.0), (75.0, 100.0)),
    }

    def __init__(self, run, target: tuple):
        events = getattr(run, "events", run)
        table = iterations(events)
        self._iterations, self._numbers = {}, {}
        for rank, numbers in table.groupby("rank", sort=False, dropna=False)["iteration"]:
            label = "unknown" if pd.isna(rank) else str(rank)
            self._iterations[label] = numbers.astype(int).tolist()
            self._numbers[label] = None if pd.isna(rank) else int(rank)
        self._lanes = lru_cache(maxsize=32)(
            lambda rank, iteration: lanes(events, self._numbers[rank], iteration)
        )
        first = next(iter(self._numbers))
        controls = {
            "rank": labelled(Dropdown, "rank", _TOOLTIPS["rank"], options=list(self._numbers)),
            "iteration": labelled(
                Dropdown, "iteration", _TOOLTIPS["iteration"], options=self._iterations[first]
            ),
            "stream": labelled(Dropdown, "stream or thread", _TOOLTIPS["stream"], options=[ALL]),
            "shown": labelled(
                FloatRangeSlider, "shown (% of its time)", _TOOLTIPS["shown"],
                value=(0.0, 100.0), readout_format=".1f",
            ),
        }  # fmt: skip
        super().__init__(controls, *target)

    def follow(self, moved: set):
        """Offer the iterations of the rank and the streams of the iteration."""
        if moved & {"rank", "iteration"}:
            rank, iteration, stream, _ = self._controls.values()
            _offer(iteration, self._iterations[rank.value])
            found = self._lanes(rank.value, iteration.value)
            _offer(stream, [ALL, *found.spans["lane"].unique()])

    @property
    def lanes(self) -> Lanes:
        """The Lanes of the rank, iteration and stream that are shown."""
        return self._seen(self.state())

    def picture(self, values: dict, moved: set) -> Picture:
        """Return the picture of the part of the run that the controls select."""
        seen = self._seen(values)
        low, high = (percent / 100 * seen.duration_s for percent in values["shown"])
        longest = max(map(len, seen.spans["lane"].unique()), default=0)  # characters
        place = (max(0.22, 0.02 + 0.017 * longest), 0.96, 0.19, 0.9)
        return Picture(
            on_axes(place, draw_run, seen, zoom=(low, high)),
            seen.spans[(seen.spans["end_s"] > low) & (seen.spans["start_s"] < high)],
            _words(seen, values, low, high),
            values | {"shown_s": [low, high]},
            _table(seen.longest(low, high)),
            self._code_of(values),
        )

    def _seen(self, values: dict) -> Lanes:
        rank, iteration, stream, (low, high) = values.values()
        ends = f"{in_digits(low)} to {in_digits(high)}"
        expected = "low < high in % of the iteration's time"
        require(low < high, "shown", expected, found=ends, do="Move one end")
        if iteration not in self._iterations[rank]:
            raise ValueError(f"rank {rank} has no iteration {iteration}")
        found = self._lanes(rank, iteration)
        if stream != ALL and stream not in set(found.spans["lane"]):
            raise ValueError(f"rank {rank} has no {stream} in this iteration")
        return found if stream == ALL else found.of(stream)

    def _code_of(self, values: dict) -> str:
        one = "" if values["stream"] == ALL else f".of({values['stream']!r})"
        low, high = values["shown"]
        seen = call("lanes", "run", repr(self._numbers[values["rank"]]), repr(values["iteration"]))
        return f"""seen = {seen}{one}
low, high = ({low!r} / 100 * seen.duration_s, {high!r} / 100 * seen.duration_s)
table = seen.spans[(seen.spans["end_s"] > low) & (seen.spans["start_s"] < high)]
{on_one_axes("draw_run(ax, seen, zoom=(low, high))")}"""


def _offer(control: Dropdown, options: list):
    """Give a choice other options, and keep its value if it is among them."""
    before = control.value
    control.options = options
    control.value = before if before in options else options[0]


def _words(seen: Lanes, values: dict, low: float, high: float) -> str:
    labels = LABELS | {"comm": "hidden communication", "idle": "nothing running"}
    spent = seen.spent(low, high).items()
    parts = ", ".join(f"{labels[kind]} {format_seconds(s)}" for kind, s in spent if s > 0)
    where = "" if values["stream"] == ALL else f", {values['stream']}"
    return (
        f"rank {values['rank']}, iteration {values['iteration']}{where}: {format_seconds(low)} to "
        f"{format_seconds(high)} of {format_seconds(seen.duration_s)}: {parts}"
    )


def _table(longest: pd.DataFrame) -> str:
    """Return the longest names as HTML; they come from the file, so they are escaped."""
    rows = "".join(
        f"<tr><td>{LABELS[kind]}</td><td>{n_rows:,}</td><td>{format_seconds(seconds)}</td>"
        f"<td>{escape(short(name, 70))}</td></tr>"
        for kind, name, n_rows, seconds in longest.itertuples(index=False)
    )
    heads = "".join(f"<th>{head}</th>" for head in ("kind", "times", "in all", "what ran longest"))
    return f'<table style="{_TABLE}"><tr>{heads}</tr>{rows}</table>'
