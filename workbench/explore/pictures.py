"""What one setting of an explorer shows, and how it is drawn: live, saved or on a static page."""

import gc
import io
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..figures import describe
from .static import Cell, palette


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


@contextmanager
def drawn(picture: Picture, settings: dict):
    """Give a fresh figure of a picture, and Matplotlib's settings while it is used.

    It is outside pyplot, which would keep every figure alive. Its axes stand where the picture puts
    them: they do not jump when a tick gets another digit, and nothing is laid out at each move.
    """
    with mpl.rc_context(settings):
        figure = Figure(layout="none")
        FigureCanvasAgg(figure)
        picture.draw(figure)
        yield figure


def amid(ax):
    """Put the legend above an axes amid the figure, where there is room for more of it."""
    place = ax.get_position()
    ax.get_legend().set_bbox_to_anchor(((0.5 - place.x0) / place.width, 1))


def png_of(picture: Picture, settings: dict) -> tuple[bytes, str]:
    """Return a picture as PNG, and in words."""
    png = io.BytesIO()
    with drawn(picture, settings) as figure:
        figure.savefig(png, format="png", pil_kwargs={"compress_level": 1})
        return png.getvalue(), describe(figure, drawn=True)


def cell_of(present: Callable[[], Picture], settings: dict) -> Cell:
    """Return what stands at a place of a static page, or why nothing can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the place, not of the page
            picture = present()
            with drawn(picture, settings) as figure:
                figure.canvas.draw()
                png = palette(np.asarray(figure.canvas.buffer_rgba()))
                alt = describe(figure, drawn=True)
    except Exception as error:
        return Cell(why=f"Cannot be shown here. {type(error).__name__}: {error}")
    return Cell(png, alt, escape(picture.words), picture.below)


@contextmanager
def swept():
    """Collect what is left over by a picture at its end, at once, and nothing meanwhile.

    A figure is thousands of objects in cycles. Were they collected while it is drawn, what it still
    needs would be moved among the session's old objects, and every few pictures Python would go
    through all of those, a fifth of a second or more. At the end two young collections are enough:
    the second takes what is held by what the first has freed. Does nothing but wait for its block
    where collection is switched off.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(0)
        gc.collect(1)
