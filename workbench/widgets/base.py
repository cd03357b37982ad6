"""What every widget is made of: controls, a picture of what they say, and buttons.

A widget neither computes nor draws: it hands its controls' values on, and shows the picture that
comes back. What goes wrong is told beside the buttons, for an error in a callback is seen by no
one. A page moves controls in threads of its own: one at a time is followed.
"""

import io
import itertools
import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from threading import RLock
from weakref import WeakValueDictionary

import matplotlib as mpl
import numpy as np
import pandas as pd
from ipywidgets import HTML, Button, Dropdown, HBox, Image, Layout, VBox
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from traitlets import TraitError

from ..checks import shown
from ..drawing.alt import describe
from ..drawing.receipts import save, target
from ..drawing.style import paper
from .code import written
from .memory import swept
from .page import CODE, COPY
from .positions import axis, differs, in_words, positions
from .static import Cell, Static, palette, static_page

CONTROL = {"style": {"description_width": "11em"}, "layout": {"width": "40em"}}
_LIVE: "WeakValueDictionary[str, Explorer]" = WeakValueDictionary()
_ONE_AT_A_TIME = RLock()  # settings of Matplotlib and controls that follow others are shared


@dataclass(frozen=True)
class Picture:
    """What one setting shows.

    draw : draws it into a figure
    data : the table drawn, for the CSV
    words : a sentence with the numbers
    parameters : what the receipt tells of the setting
    below : HTML that stands below the picture
    code : Python text that makes the same from what was given
    found : what the explorer has as an attribute while the picture stands
    """

    draw: Callable
    data: pd.DataFrame
    words: str
    parameters: dict = field(default_factory=dict)
    below: str = ""
    code: str = ""
    found: dict = field(default_factory=dict)


class Explorer(VBox):
    """Controls, the picture of their present values, a line of words, and buttons.

    A subclass says what the values mean: `picture(values, moved)`, where moved names the controls
    that no longer stand where they started; and, in `follow(moved)`, what the `late` controls offer
    when others moved.

    ratio, engine : height over width of the figure, and what lays it out
    given : what `code` starts from
    late : the controls that follow others, in order
    grid : positions of a static page by control, the most telling first; None for all it offers
    follows : what that page says of the controls that follow its own, as `placed` lets them
    """

    ratio = paper()["figure.figsize"][1] / paper()["figure.figsize"][0]
    engine = "constrained"
    given = "scenario, as it was given to the explorer"
    late: tuple = ()
    grid: Mapping = {}
    follows: Mapping = {}

    def __init__(self, controls: dict, name: str, folder, inputs):
        _, inputs = target(name, folder, inputs)  # refused here rather than at the button
        self._target = {"name": name, "folder": folder, "inputs": inputs}
        self._controls = {name: named(each, f"wb-{name}") for name, each in controls.items()}
        self._quiet = False
        self._paper = paper(ratio=self.ratio)
        width, height = (inch * self._paper["figure.dpi"] for inch in self._paper["figure.figsize"])
        size = Layout(width=f"{width:.0f}px", height=f"{height:.0f}px")  # fixed: no page jumps
        self._image = named(Image(format="png", layout=size), "wb-image")
        self._status, self._below = named(HTML(), "wb-status"), named(HTML(), "wb-below")
        self._code = named(HTML(layout=Layout(width="100%")), "wb-code")
        for name, control in self._controls.items():
            control.observe(lambda _, name=name: self._moved(name), "value")
        self._rows = {name: self._row(name) for name in self._controls}
        buttons = HBox([*self._buttons(), self._status, self._code])
        buttons.layout.flex_flow = "row wrap"
        rows = [*self._rows.values(), self._image, buttons, self._below]
        super().__init__(rows, layout=Layout(align_items="flex-start"))
        named(self, "wb-explorer")
        self._at_start = self.state()
        self._follow(set(self._controls))
        self._at_start = self.state()
        with swept():
            self._status.value = self._redraw()
        _LIVE[self.model_id] = self

    def picture(self, values: dict, moved: set) -> Picture:
        """Return the picture of the controls' values."""
        raise NotImplementedError

    def follow(self, moved: set):
        """Let the late controls offer what goes with the controls that moved."""

    def placed(self, values: dict) -> dict:
        """Return the values of a place of a static page, the late controls where they follow."""
        return values

    def state(self) -> dict:
        """Return where every control stands, by name: plain values, for `restore`."""
        return {name: control.value for name, control in self._controls.items()}

    def moved(self, values: Mapping) -> set:
        """Return the names of the controls that do not stand where they started."""
        return {name for name in values if differs(values[name], self._at_start[name])}

    def restore(self, state: Mapping):
        """Move the controls to a state, or to a part of one, and redraw once.

        Raises ValueError for what is no control or no position of it; nothing has moved then.
        """
        with _ONE_AT_A_TIME:
            before = self.state()
            unknown = [name for name in state if name not in before]
            if unknown:
                expected = ", ".join(before)
                raise ValueError(f"restore: expected controls {expected}; got {shown(unknown[0])}")
            try:
                self._go(state)
            except ValueError:
                self._go(before)
                raise
            self._show(self._redraw)

    def reset(self):
        """Move every control back to where it started, and redraw once."""
        self.restore(self._at_start)

    def code(self) -> str:
        """Return Python text that makes the present scenario, table and figure again."""
        return written(self.given, self._present().code)

    def static(self, grid: Mapping | None = None) -> Static:
        """Return HTML that needs no kernel: a grid of positions, all else as it stands now.

        grid : {control: positions}, the most telling control first; by default a few of each
            of the controls that tell most. More than 60 pictures are thinned out.

        `explorer.static().save("page.html")` writes a page of its own. Raises ValueError for what
        is no control.
        """
        with _ONE_AT_A_TIME:
            return self._static(self.grid if grid is None else grid)

    # --- what happens -----------------------------------------------------------------------------

    def _moved(self, name: str):
        with _ONE_AT_A_TIME:
            if not self._quiet:
                self._show(lambda: self._followed({name}))

    def _show(self, action):
        """Do it and tell the outcome; an error in a callback would otherwise go unseen."""
        try:
            with swept():
                self._status.value = action()
        except Exception as error:
            text = escape(f"{type(error).__name__}: {error}")
            self._status.value = f'<b style="color: #B00020">not done. {text}</b>'

    def _followed(self, moved: set) -> str:
        self._follow(moved)
        return self._redraw()

    def _follow(self, moved: set):
        """Let the late controls follow, without a redraw."""
        extents = {name: _extent(self._controls[name]) for name in self.late}
        with self._hushed():
            self.follow(moved)
        for name, before in extents.items():
            row = self._rows[name]
            if isinstance(row, HBox) and _extent(self._controls[name]) != before:
                row.children = ()  # made anew: a page keeps a slider's first end for its End key
                row.children = (self._controls[name],)

    def _go(self, state: Mapping):
        """Move controls without a redraw, the late ones after what they follow."""
        early = [name for name in self._controls if name not in self.late]
        for group in (early, *([name] for name in self.late)):
            moved = set()
            with self._hushed():
                for name in group:
                    if name in state and differs(state[name], self._controls[name].value):
                        _put(self._controls[name], state[name], name)
                        moved.add(name)
            if moved:
                self._follow(moved)

    @contextmanager
    def _hushed(self):
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before

    def _redraw(self) -> str:
        picture = self._present()
        text = written(self.given, picture.code)
        with mpl.rc_context(self._paper):
            png = io.BytesIO()
            figure = _figure(picture, self.engine)
            figure.savefig(png, format="png", pil_kwargs={"compress_level": 1})
        self._image.value = png.getvalue()
        self._below.value = picture.below
        # describe(figure) would draw it once more, at every move
        self._code.value = CODE.format(code=escape(text), alt=escape(picture.words))
        for name, value in picture.found.items():
            setattr(self, name, value)
        return escape(picture.words)

    def _save(self) -> str:
        picture = self._present()
        with mpl.rc_context(self._paper):
            figure = _figure(picture, self.engine)
        parameters = picture.parameters | {"code": written(self.given, picture.code)}
        path = save(figure, data=picture.data, parameters=parameters, caption=picture.words,
                    **self._target)  # fmt: skip
        receipt = path.with_name(f"{self._target['name']}.receipt.json")
        files = json.loads(receipt.read_text(encoding="utf-8"))["written"]
        names = ", ".join([path.name, *sorted({*files} - {path.name}), receipt.name])
        return f"saved {escape(names)} in {escape(str(path.parent))}"

    def _present(self, values: dict | None = None) -> Picture:
        values = self.state() if values is None else values
        return self.picture(values, self.moved(values))

    # --- what stands there ------------------------------------------------------------------------

    def _buttons(self) -> list:
        export = named(Button(description="Save figure", icon="download"), "wb-export")
        export.tooltip = "write the figure, its data and its receipt into the figures' folder"
        export.on_click(lambda _: self._press(self._save))
        reset = named(Button(description="Reset", icon="undo"), "wb-reset")
        reset.tooltip = "move every control back to where it started"
        reset.on_click(lambda _: self._press(self._reset))
        return [export, reset, named(HTML(COPY), "wb-copy")]

    def _press(self, action):
        with _ONE_AT_A_TIME:
            self._show(action)

    def _reset(self) -> str:
        self._go(self._at_start)
        return self._redraw()

    def _row(self, name: str):
        control = self._controls[name]
        made_anew = name in self.late and not isinstance(control, Dropdown)
        return HBox([control]) if made_anew else control

    def _static(self, wanted: Mapping) -> Static:
        unknown = [name for name in wanted if name not in self._controls]
        if unknown:
            expected = ", ".join(self._controls)
            raise ValueError(f"static: expected controls {expected}; got {shown(unknown[0])}")
        places = positions(self._controls, wanted)
        cells = [
            self._cell(self.placed(self.state() | dict(zip(places, values, strict=True))))
            for values in itertools.product(*places.values())
        ]
        if all(cell.why for cell in cells):
            raise ValueError(f"static: no position can be shown. {cells[0].why}")
        axes = [axis(self._controls[name], each) for name, each in places.items()]
        rest = {name: each for name, each in self._controls.items() if name not in places}
        fixed = {
            each.description: self.follows.get(name) or in_words(each, each.value)
            for name, each in rest.items()
        }
        return static_page(axes, cells, fixed, self._target["name"])

    def _cell(self, values: dict) -> Cell:
        """Return what stands at a place of the grid, or why nothing can."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the place, not of the page
                picture = self._present(values)
                with mpl.rc_context(self._paper):
                    figure = _figure(picture, self.engine)
                    figure.canvas.draw()
                    png = palette(np.asarray(figure.canvas.buffer_rgba()))
                    alt = describe(figure)  # last: it leaves an empty canvas
        except Exception as error:
            return Cell(why=f"Cannot be shown here. {type(error).__name__}: {error}")
        return Cell(png, alt, escape(picture.words), picture.below)


def static_of(model_id: str) -> str:
    """Return the static HTML of the live explorer with a model_id; ValueError where there is none.

    For pages made of a notebook, whose widgets are known by their model_id.
    """
    if model_id not in _LIVE:
        raise ValueError(f"static_of: expected the model_id of an explorer, got {shown(model_id)}")
    return _LIVE[model_id].static().html


def named(widget, name: str):
    """Return the widget with a class name, by which a page or a test finds it."""
    return widget.add_class(name)


def _figure(picture: Picture, engine: str) -> Figure:
    """A fresh figure outside pyplot, which would keep every one of them alive."""
    figure = Figure(layout=engine)
    FigureCanvasAgg(figure)
    picture.draw(figure)
    return figure


def _put(control, value, name: str):
    """Move a control; ValueError where it has no such position."""
    try:
        control.value = tuple(value) if isinstance(control.value, tuple) else value
    except TraitError:
        pass
    if differs(control.value, tuple(value) if isinstance(control.value, tuple) else value):
        raise ValueError(f"restore: {name}: it has no position {shown(value)}")


def _extent(control):
    """Return what a control can be moved to."""
    return getattr(control, "options", None) or control.max
