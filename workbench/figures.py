"""Figures that go straight into a paper: one draw_* an Axes, paper() for its size, save().

`faults(fig)` tells what cannot be read in a figure, `describe(fig)` what it shows, in words.

Drawing never computes: every draw_* takes an Axes and a table, draws what the table holds and
returns the Axes.
"""

from .drawing.advice import draw_comparison, draw_forecast, draw_fusion_curve, draw_sensitivity
from .drawing.alt import describe
from .drawing.fits import draw_fit, draw_influence, draw_qq, draw_residuals
from .drawing.looks import faults
from .drawing.receipts import save
from .drawing.runs import draw_run
from .drawing.steps import draw_step
from .drawing.style import paper
from .drawing.timelines import draw_breakdown, draw_scaling, draw_timeline
from .drawing.validation import draw_gain, draw_parity

__all__ = [
    "describe",
    "draw_breakdown",
    "draw_comparison",
    "draw_fit",
    "draw_forecast",
    "draw_fusion_curve",
    "draw_gain",
    "draw_influence",
    "draw_parity",
    "draw_qq",
    "draw_residuals",
    "draw_run",
    "draw_scaling",
    "draw_sensitivity",
    "draw_step",
    "draw_timeline",
    "faults",
    "paper",
    "save",
]
