"""Explore a recorded run: one iteration of a rank, stream by stream, as near as one likes."""

from functools import lru_cache
from html import escape

import pandas as pd
from ipywidgets import Dropdown, FloatRangeSlider

from ..base.units import format_seconds
from ..figures import draw_run
from ..figures.runs import LABELS
from ..figures.style import short
from ..traces import Lanes, iterations, lanes
from .code import call, drawn
from .explorer import CONTROL, Explorer
from .pictures import Picture, amid
from .positions import in_digits

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
        ranks = table["rank"].drop_duplicates()
        numbers = {
            "unknown" if pd.isna(r) else str(r): None if pd.isna(r) else int(r) for r in ranks
        }
        self._lanes = lru_cache(maxsize=32)(
            lambda rank, iteration: lanes(events, numbers[rank], iteration)
        )
        self._iterations = {
            label: [int(i) for r, i in table[["rank", "iteration"]].values if _same(r, rank)]
            for label, rank in numbers.items()
        }
        self._numbers = numbers
        rank = Dropdown(options=list(numbers), tooltip="the worker that is looked at", **CONTROL)
        iteration = Dropdown(
            options=self._iterations[rank.value], tooltip="the iteration of that worker", **CONTROL
        )
        stream = Dropdown(options=[ALL], tooltip="where work ran: everywhere, or in one", **CONTROL)
        rank.description, iteration.description = "rank", "iteration"
        stream.description = "stream or thread"
        part = FloatRangeSlider(
            value=(0.0, 100.0),
            description="shown (% of its time)",
            tooltip="from where to where the iteration is shown, in % of its time",
            readout_format=".1f",
            **CONTROL,
        )
        controls = {"rank": rank, "iteration": iteration, "stream": stream, "shown": part}
        super().__init__(controls, *target)

    def follow(self, moved: set):
        """Let the controls offer what the rank and the iteration have."""
        if moved & {"rank", "iteration"}:
            rank, iteration, stream, _ = self._controls.values()
            _offer(iteration, self._iterations[rank.value])
            found = self._lanes(rank.value, iteration.value)
            _offer(stream, [ALL, *found.spans["lane"].unique()])

    @property
    def lanes(self) -> Lanes:
        """The Lanes of the rank, the iteration and the stream that are seen."""
        return self._seen(self.state())

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
            self._code_of(values),
        )

    def _seen(self, values: dict) -> Lanes:
        low, high = values["shown"]
        if not low < high:
            raise ValueError(
                f"shown: expected low < high in % of the iteration's time, got "
                f"{in_digits(low)} to {in_digits(high)}; move one end"
            )
        if values["iteration"] not in self._iterations[values["rank"]]:
            raise ValueError(f"rank {values['rank']} has no iteration {values['iteration']}")
        found = self._lanes(values["rank"], values["iteration"])
        stream = values["stream"]
        if stream != ALL and stream not in set(found.spans["lane"]):
            raise ValueError(f"rank {values['rank']} has no {stream} in this iteration")
        return found if stream == ALL else found.of(stream)

    def _code_of(self, values: dict) -> str:
        one = "" if values["stream"] == ALL else f".of({values['stream']!r})"
        low, high = values["shown"]
        seen = call("lanes", "run", repr(self._numbers[values["rank"]]), repr(values["iteration"]))
        return f"""seen = {seen}{one}
low, high = ({low!r} / 100 * seen.duration_s, {high!r} / 100 * seen.duration_s)
table = seen.spans[(seen.spans["end_s"] > low) & (seen.spans["start_s"] < high)]
{drawn("draw_run(ax, seen, zoom=(low, high))")}"""


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
    left = max(0.22, 0.02 + 0.017 * longest)
    place = {"left": left, "right": 0.96, "bottom": 0.19, "top": 0.9}
    amid(draw_run(figure.subplots(gridspec_kw=place), seen, zoom=zoom))
