"""What one setting of an explorer shows, drawn live, for a file or for a static page."""

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
    """What one setting of the controls shows.

    draw : draws the picture into a figure
    data : the table drawn, for the CSV
    words : a sentence with the numbers
    parameters : the setting as the receipt records it
    below : HTML below the picture
    code : Python text that draws the same from what was given
    found : attributes of the explorer while it shows the picture
    """

    draw: Callable
    data: pd.DataFrame
    words: str
    parameters: dict = field(default_factory=dict)
    below: str = ""
    code: str = ""
    found: dict = field(default_factory=dict)


@contextmanager
def figure_of(picture: Picture, settings: dict):
    """Yield a new figure of a picture, with Matplotlib's settings in force.

    The figure is outside pyplot, which would keep every figure alive. The picture places its axes:
    they do not jump when a tick gets another digit, and no layout is computed per move.
    """
    with mpl.rc_context(settings):
        figure = Figure(layout="none")
        FigureCanvasAgg(figure)
        picture.draw(figure)
        yield figure


def center_legend(ax):
    """Center the legend above an axes on the figure, which is wider than the axes."""
    place = ax.get_position()
    ax.get_legend().set_bbox_to_anchor(((0.5 - place.x0) / place.width, 1))


def on_axes(place: tuple, draw: Callable, *args, **kwargs) -> Callable:
    """Return what draws one axes with a centered legend into a figure.

    place : left, right, bottom, top of the axes, in parts of the figure
    draw : called as draw(ax, *args, **kwargs)
    """

    def into(figure: Figure):
        grid = dict(zip(("left", "right", "bottom", "top"), place, strict=True))
        center_legend(draw(figure.subplots(gridspec_kw=grid), *args, **kwargs))

    return into


def png_of(picture: Picture, settings: dict) -> tuple[bytes, str]:
    """Return a picture as PNG, and in words."""
    png = io.BytesIO()
    with figure_of(picture, settings) as figure:
        figure.savefig(png, format="png", pil_kwargs={"compress_level": 1})
        return png.getvalue(), describe(figure, drawn=True)


def cell_of(present: Callable[[], Picture], settings: dict) -> Cell:
    """Return the cell of a static page for a picture, or for the error that prevents it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they concern this cell, not the page
            picture = present()
            with figure_of(picture, settings) as figure:
                figure.canvas.draw()
                png = palette(np.asarray(figure.canvas.buffer_rgba()))
                alt = describe(figure, drawn=True)
    except Exception as error:
        return Cell(why=f"Cannot be shown here. {type(error).__name__}: {error}")
    return Cell(png, alt, escape(picture.words), picture.below)


@contextmanager
def swept():
    """Collect the garbage of a picture when the block ends, and none before.

    A figure is thousands of objects in cycles. If they were collected while it is drawn, those
    still in use would move to the oldest generation, and every few pictures Python would scan all
    of that, for a fifth of a second or more. Two young collections at the end suffice: the second
    frees what the first released. Does nothing if collection is switched off.
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
