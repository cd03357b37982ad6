"""What every widget is made of: controls, a picture of what they say, and a button that saves it.

A widget neither computes nor draws: it hands its controls' values on, and shows the picture that
comes back. What goes wrong is told beside the button, for an error in a callback is seen by no one.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape

import matplotlib as mpl
import pandas as pd
from ipywidgets import HTML, Button, HBox, Image, Layout, VBox
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..drawing.receipts import save, target
from ..drawing.style import paper

CONTROL = {"style": {"description_width": "11em"}, "layout": {"width": "40em"}}


@dataclass(frozen=True)
class Picture:
    """What one setting shows.

    draw : draws it into a figure
    data : the table drawn, for the CSV
    words : a sentence with the numbers
    parameters : what the receipt tells of the setting
    below : HTML that stands below the picture
    """

    draw: Callable
    data: pd.DataFrame
    words: str
    parameters: dict = field(default_factory=dict)
    below: str = ""


class Explorer(VBox):
    """Controls, the picture of their present values, a line of words, and "Save figure".

    A subclass says what the values mean: `picture(values, moved)`, where moved names the controls
    that no longer stand where they started. `ratio` is height over width of the figure, and
    `engine` what lays it out. While `_quiet`, moved controls redraw nothing.
    """

    ratio = paper()["figure.figsize"][1] / paper()["figure.figsize"][0]
    engine = "constrained"

    def __init__(self, controls: dict, name: str, folder, inputs):
        _, inputs = target(name, folder, inputs)  # refused here rather than at the button
        self._target = {"name": name, "folder": folder, "inputs": inputs}
        self._controls = {name: named(each, f"wb-{name}") for name, each in controls.items()}
        self._at_start, self._quiet = self._values(), False
        self._paper = paper(ratio=self.ratio)
        width, height = (inch * self._paper["figure.dpi"] for inch in self._paper["figure.figsize"])
        size = Layout(width=f"{width:.0f}px", height=f"{height:.0f}px")  # fixed: no page jumps
        self._image = named(Image(format="png", layout=size), "wb-image")
        self._status, self._below = named(HTML(), "wb-status"), named(HTML(), "wb-below")
        button = named(Button(description="Save figure", icon="download"), "wb-export")
        button.on_click(lambda _: self._show(self._save))
        for control in self._controls.values():
            control.observe(lambda _: self._quiet or self._show(self._redraw), "value")
        rows = [*self._controls.values(), self._image, HBox([button, self._status]), self._below]
        super().__init__(rows, layout=Layout(align_items="flex-start"))
        self._status.value = self._redraw()

    def picture(self, values: dict, moved: set) -> Picture:
        """Return the picture of the controls' values."""
        raise NotImplementedError

    def _show(self, action):
        """Do it and tell the outcome; an error in a callback would otherwise go unseen."""
        try:
            self._status.value = action()
        except Exception as error:
            text = escape(f"{type(error).__name__}: {error}")
            self._status.value = f'<b style="color: #B00020">not done. {text}</b>'

    def _redraw(self) -> str:
        picture = self._present()
        with mpl.rc_context(self._paper):
            png = io.BytesIO()
            _figure(picture, self.engine).savefig(
                png, format="png", pil_kwargs={"compress_level": 1}
            )
        self._image.value = png.getvalue()
        self._below.value = picture.below
        return escape(picture.words)

    def _save(self) -> str:
        picture = self._present()
        with mpl.rc_context(self._paper):
            figure = _figure(picture, self.engine)
        path = save(figure, data=picture.data, parameters=picture.parameters, **self._target)
        return f"saved {escape(str(path))} with its .svg, .csv and .receipt.json"

    def _values(self) -> dict:
        return {name: control.value for name, control in self._controls.items()}

    def _present(self) -> Picture:
        values = self._values()
        moved = {name for name, value in values.items() if differs(value, self._at_start[name])}
        return self.picture(values, moved)


def differs(value, start) -> bool:
    """Whether a control was moved; the page may give back a number with other last digits."""
    if isinstance(value, float) and isinstance(start, float):
        return abs(value - start) > 1e-6 * max(abs(value), abs(start))
    return value != start


def named(widget, name: str):
    """Return the widget with a class name, by which a page or a test finds it."""
    return widget.add_class(name)


def _figure(picture: Picture, engine: str) -> Figure:
    """A fresh figure outside pyplot, which would keep every one of them alive."""
    figure = Figure(layout=engine)
    FigureCanvasAgg(figure)
    picture.draw(figure)
    return figure
