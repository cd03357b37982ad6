"""What every widget is made of: controls, a picture of their values, and buttons.

A widget neither computes nor draws: it passes the values of its controls on and shows the picture
that comes back. Errors are shown next to the buttons, because nobody sees an error in a callback.
A page moves controls in threads; they are handled one at a time.
"""

import itertools
import json
import warnings
from collections.abc import Mapping, Set
from contextlib import contextmanager
from functools import partial
from html import escape
from threading import RLock
from weakref import WeakValueDictionary

from ipywidgets import HTML, Button, Dropdown, HBox, Image, Layout, VBox

from ..base.checks import require
from ..figures import paper, save
from ..figures.receipts import target
from .code import CODE, COPY, cell_text
from .pictures import Picture, cell_of, figure_of, png_of, swept
from .positions import axis, differs, extent, in_words, positions, put
from .static import Static, static_page

_LOOK = {"style": {"description_width": "11em"}, "layout": {"width": "40em"}}
_NOTES = 3  # warnings shown per move: a font warns of each letter it lacks
_LIVE: "WeakValueDictionary[str, Explorer]" = WeakValueDictionary()
_ONE_AT_A_TIME = RLock()  # moves share Matplotlib's settings, and controls that follow others


def labelled(kind: type, description: str, tooltip: str, **how):
    """Return a control of a kind, such as Dropdown, that looks like the others."""
    return kind(description=description, tooltip=tooltip, **_LOOK, **how)


class Explorer(VBox):
    """Controls, the picture of their current values, a line of words, and buttons.

    A subclass defines `picture(values, moved)`, where moved names the controls that are away from
    their start, and `follow(moved)`, which adapts the `late` controls after others moved.

    ratio : height over width of the figure
    given : what `code` starts from
    late : the controls that follow others, in order
    grid : positions of a static page by control, the most important first; None for all of a
        control; names without a control are ignored
    follows : how that page describes the controls that follow its own, as `placed` sets them
    """

    ratio = paper()["figure.figsize"][1] / paper()["figure.figsize"][0]
    given = "scenario, as it was given to the explorer"
    late: tuple = ()
    grid: Mapping = {}
    follows: Mapping = {}

    def __init__(self, controls: dict, name: str, folder, inputs):
        _, inputs = target(name, folder, inputs)  # refuses now, not when the button is pressed
        self._target = {"name": name, "folder": folder, "inputs": inputs}
        self._controls = {name: each.add_class(f"wb-{name}") for name, each in controls.items()}
        self._quiet = False
        self._paper = paper(ratio=self.ratio)
        width, height = (inch * self._paper["figure.dpi"] for inch in self._paper["figure.figsize"])
        size = Layout(width=f"{width:.0f}px", height=f"{height:.0f}px")  # fixed: no page jumps
        self._image = Image(format="png", layout=size).add_class("wb-image")
        self._status, self._below = HTML().add_class("wb-status"), HTML().add_class("wb-below")
        self._code = HTML(layout=Layout(width="100%")).add_class("wb-code")
        for name, control in self._controls.items():
            control.observe(lambda _, name=name: self._moved(name), "value")
        self._rows = {
            name: HBox([each]) if name in self.late and not isinstance(each, Dropdown) else each
            for name, each in self._controls.items()
        }
        buttons = HBox([*self._buttons(), self._status, self._code])
        buttons.layout.flex_flow = "row wrap"
        rows = [*self._rows.values(), self._image, buttons, self._below]
        super().__init__(rows, layout=Layout(align_items="flex-start"))
        self.add_class("wb-explorer")
        self._at_start = self.state()
        self._follow(set(self._controls))
        self._at_start = self.state()
        with swept():
            self._status.value = self._redraw()
        _LIVE[self.model_id] = self

    def picture(self, values: dict, moved: set) -> Picture:
        """Return the picture of these values of the controls."""
        raise NotImplementedError

    def follow(self, moved: set):
        """Adapt what the late controls offer to the controls that moved."""

    def placed(self, values: dict) -> dict:
        """Return the values of a place of a static page, with the late controls set to follow."""
        return values

    def state(self) -> dict:
        """Return the position of every control by name, as plain values, for `restore`."""
        return {name: control.value for name, control in self._controls.items()}

    def moved(self, values: Mapping) -> set:
        """Return the names of the controls that are away from their start."""
        return {name for name in values if differs(values[name], self._at_start[name])}

    def restore(self, state: Mapping):
        """Move the controls to a state, or to part of one, and redraw once.

        Raises ValueError for an unknown control or position; nothing has moved then.
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
        """Move every control back to its start, and redraw once."""
        self.restore(self._at_start)

    def code(self) -> str:
        """Return Python text that makes the current scenario, table and figure."""
        with _ONE_AT_A_TIME:
            return cell_text(self.given, self._present().code)

    def static(self, grid: Mapping | None = None) -> Static:
        """Return HTML that needs no kernel: a grid of positions, with all else as it is now.

        grid : {control: positions}, the most important control first; default is a few positions
            of the most important controls. More than 60 pictures are thinned out.

        `explorer.static().save("page.html")` writes a complete page.
        """
        with _ONE_AT_A_TIME:
            if grid is None:
                grid = {name: each for name, each in self.grid.items() if name in self._controls}
            return self._static(grid)

    # --- moves and buttons ------------------------------------------------------------------------

    def _moved(self, name: str):
        with _ONE_AT_A_TIME:
            if not self._quiet:
                self._show(partial(self._redraw, {name}))

    def _press(self, action):
        with _ONE_AT_A_TIME:
            self._show(action)

    def _show(self, action):
        """Run it and show its outcome: errors and warnings in a callback would go unseen."""
        try:
            with swept(), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", UserWarning)
                words = action()
            notes = dict.fromkeys(f"<br>note: {escape(str(each.message))}" for each in caught)
            self._status.value = words + "".join([*notes][:_NOTES])
        except Exception as error:
            text = escape(f"{type(error).__name__}: {error}")
            self._status.value = f'<b style="color: #B00020">not done. {text}</b>'

    def _follow(self, moved: set):
        """Adapt the late controls, without a redraw."""
        extents = {name: extent(self._controls[name]) for name in self.late}
        with self._hushed():
            self.follow(moved)
        for name, before in extents.items():
            row = self._rows[name]
            if isinstance(row, HBox) and extent(self._controls[name]) != before:
                row.children = ()  # new on the page: its End key keeps the end it had first
                row.children = (self._controls[name],)

    def _go(self, state: Mapping):
        """Move controls without a redraw, the late ones after those they follow."""
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

    def _redraw(self, moved: Set = frozenset()) -> str:
        if moved:
            self._follow(moved)
        picture = self._present()
        text = cell_text(self.given, picture.code)
        png, alt = png_of(picture, self._paper)
        self._image.value = png
        self._below.value = picture.below
        self._code.value = CODE.format(code=escape(text), alt=escape(alt))
        for name, value in picture.found.items():
            setattr(self, name, value)
        return escape(picture.words)

    def _save(self) -> str:
        picture = self._present()
        parameters = picture.parameters | {"code": cell_text(self.given, picture.code)}
        with figure_of(picture, self._paper) as figure:
            path = save(figure, data=picture.data, parameters=parameters, caption=picture.words,
                        **self._target)  # fmt: skip
        receipt = path.with_name(f"{self._target['name']}.receipt.json")
        files = json.loads(receipt.read_text(encoding="utf-8"))["written"]
        names = ", ".join([path.name, *sorted({*files} - {path.name}), receipt.name])
        return f"saved {escape(names)} in {escape(str(path.parent))}"

    def _reset(self) -> str:
        self._go(self._at_start)
        return self._redraw()

    def _present(self, values: Mapping | None = None) -> Picture:
        values = self.placed(self.state() if values is None else values)
        return self.picture(values, self.moved(values))

    def _buttons(self) -> list:
        export = self._button("export", "Save figure", "download", self._save)
        export.tooltip = "write the figure, its data and its receipt into the figures' folder"
        reset = self._button("reset", "Reset", "undo", self._reset)
        reset.tooltip = "move every control back to where it started"
        return [export, reset, HTML(COPY).add_class("wb-copy")]

    def _button(self, name: str, text: str, icon: str, action) -> Button:
        button = Button(description=text, icon=icon).add_class(f"wb-{name}")
        button.on_click(lambda _: self._press(action))
        return button

    # --- static pages -----------------------------------------------------------------------------

    def _static(self, wanted: Mapping) -> Static:
        _check_names("static", wanted, self._controls)
        places = positions(self._controls, wanted)
        grid = (dict(zip(places, at, strict=True)) for at in itertools.product(*places.values()))
        cells = [cell_of(partial(self._present, self.state() | at), self._paper) for at in grid]
        if all(cell.why for cell in cells):
            raise ValueError(f"static: no position can be shown. {cells[0].why}")
        axes = [axis(self._controls[name], each) for name, each in places.items()]
        fixed = {
            each.description: self.follows.get(name) or in_words(each, each.value)
            for name, each in self._controls.items()
            if name not in places
        }
        return static_page(axes, cells, fixed, self._target["name"])


def static_of(model_id: str) -> str:
    """Return the static HTML of the live explorer with a model_id.

    For pages made from a notebook, which know its widgets by their model_id. Raises ValueError if
    no explorer has it.
    """
    require(model_id in _LIVE, "model_id", "that of an explorer", model_id)
    return _LIVE[model_id].static().html


def _check_names(caller: str, given, controls: Mapping):
    """Raise ValueError unless given maps names of controls."""
    is_mapping = isinstance(given, Mapping)
    unknown = [name for name in given if name not in controls] if is_mapping else [given]
    require(not unknown, caller, f"controls {', '.join(controls)}", *unknown[:1])
