"""What every widget is made of: controls, a picture of what they say, and buttons.

A widget neither computes nor draws: it hands its controls' values on, and shows the picture that
comes back. What goes wrong is told beside the buttons, for an error in a callback is seen by no
one. A page moves controls in threads of its own: one at a time is followed.
"""

import itertools
import json
import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from functools import partial
from html import escape
from threading import RLock
from weakref import WeakValueDictionary

from ipywidgets import HTML, Button, Dropdown, HBox, Image, Layout, VBox

from ..base.checks import shown
from ..figures import paper, save
from ..figures.receipts import target
from .code import CODE, COPY, written
from .pictures import Picture, cell_of, drawn, png_of, swept
from .positions import axis, differs, extent, in_words, positions, put
from .static import Static, static_page

CONTROL = {"style": {"description_width": "11em"}, "layout": {"width": "40em"}}
NOTES = 3  # of a move, that are told: a font without letters has one for each
_LIVE: "WeakValueDictionary[str, Explorer]" = WeakValueDictionary()
_ONE_AT_A_TIME = RLock()  # settings of Matplotlib and controls that follow others are shared


class Explorer(VBox):
    """Controls, the picture of their present values, a line of words, and buttons.

    A subclass says what the values mean: `picture(values, moved)`, where moved names the controls
    that no longer stand where they started; and, in `follow(moved)`, what the `late` controls offer
    when others moved.

    ratio : height over width of the figure
    given : what `code` starts from
    late : the controls that follow others, in order
    grid : positions of a static page by control, the most telling first; None for all it offers;
        controls that are not there do not count
    follows : what that page says of the controls that follow its own, as `placed` lets them
    """

    ratio = paper()["figure.figsize"][1] / paper()["figure.figsize"][0]
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
            _check_names("restore", state, before)
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
        with _ONE_AT_A_TIME:
            return written(self.given, self._present().code)

    def static(self, grid: Mapping | None = None) -> Static:
        """Return HTML that needs no kernel: a grid of positions, all else as it stands now.

        grid : {control: positions}, the most telling control first; by default a few of each
            of the controls that tell most. More than 60 pictures are thinned out.

        `explorer.static().save("page.html")` writes a page of its own. Raises ValueError for what
        is no control.
        """
        with _ONE_AT_A_TIME:
            if grid is None:
                grid = {name: each for name, each in self.grid.items() if name in self._controls}
            return self._static(grid)

    # --- what happens -----------------------------------------------------------------------------

    def _moved(self, name: str):
        with _ONE_AT_A_TIME:
            if not self._quiet:
                self._show(lambda: self._followed({name}))

    def _show(self, action):
        """Do it and tell the outcome: errors and warnings in a callback would go unseen."""
        try:
            with swept(), warnings.catch_warnings(record=True) as doubts:
                warnings.simplefilter("always", UserWarning)
                told = action()
            notes = dict.fromkeys(f"<br>note: {escape(str(each.message))}" for each in doubts)
            self._status.value = told + "".join([*notes][:NOTES])
        except Exception as error:
            text = escape(f"{type(error).__name__}: {error}")
            self._status.value = f'<b style="color: #B00020">not done. {text}</b>'

    def _followed(self, moved: set) -> str:
        self._follow(moved)
        return self._redraw()

    def _follow(self, moved: set):
        """Let the late controls follow, without a redraw."""
        extents = {name: extent(self._controls[name]) for name in self.late}
        with self._hushed():
            self.follow(moved)
        for name, before in extents.items():
            row = self._rows[name]
            if isinstance(row, HBox) and extent(self._controls[name]) != before:
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
                        put(self._controls[name], state[name], name)
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
        png, alt = png_of(picture, self._paper)
        self._image.value = png
        self._below.value = picture.below
        self._code.value = CODE.format(code=escape(text), alt=escape(alt))
        for name, value in picture.found.items():
            setattr(self, name, value)
        return escape(picture.words)

    def _save(self) -> str:
        picture = self._present()
        parameters = picture.parameters | {"code": written(self.given, picture.code)}
        with drawn(picture, self._paper) as figure:
            path = save(figure, data=picture.data, parameters=parameters, caption=picture.words,
                        **self._target)  # fmt: skip
        receipt = path.with_name(f"{self._target['name']}.receipt.json")
        files = json.loads(receipt.read_text(encoding="utf-8"))["written"]
        names = ", ".join([path.name, *sorted({*files} - {path.name}), receipt.name])
        return f"saved {escape(names)} in {escape(str(path.parent))}"

    def _present(self, values: dict | None = None) -> Picture:
        values = self.state() if values is None else values
        return self.picture(values, self.moved(values))

    def _at_place(self, values: dict) -> Picture:
        return self._present(self.placed(values))

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
        _check_names("static", wanted, self._controls)
        places = positions(self._controls, wanted)
        found = (
            self.state() | dict(zip(places, values, strict=True))
            for values in itertools.product(*places.values())
        )
        cells = [cell_of(partial(self._at_place, values), self._paper) for values in found]
        if all(cell.why for cell in cells):
            raise ValueError(f"static: no position can be shown. {cells[0].why}")
        axes = [axis(self._controls[name], each) for name, each in places.items()]
        rest = {name: each for name, each in self._controls.items() if name not in places}
        fixed = {
            each.description: self.follows.get(name) or in_words(each, each.value)
            for name, each in rest.items()
        }
        return static_page(axes, cells, fixed, self._target["name"])


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


def _check_names(caller: str, given, controls: Mapping):
    """Raise ValueError for what is no mapping of controls."""
    is_mapping = isinstance(given, Mapping)
    unknown = [name for name in given if name not in controls] if is_mapping else [given]
    if unknown:
        expected = ", ".join(controls)
        raise ValueError(f"{caller}: expected controls {expected}; got {shown(unknown[0])}")
