"""Figures that go straight into a paper: one draw_* an Axes, paper() for its size, save().

`faults(fig)` tells what cannot be read in a figure, `describe(fig)` what it shows, in words,
and `rebuild(receipt)` whether its numbers moved since it was saved.

Drawing never computes: every draw_* takes an Axes and a table, draws what the table holds and
returns the Axes.
"""

from .advice import draw_comparison, draw_forecast, draw_fusion_curve, draw_sensitivity
from .alt_text import describe
from .fits import draw_fit, draw_influence, draw_qq, draw_regimes, draw_residuals
from .labels import remark
from .legibility import faults
from .models import draw_buffers, draw_factors, draw_models, name_marks
from .receipts import save
from .runs import draw_run
from .style import VENUES, paper
from .timelines import draw_breakdown, draw_overlap, draw_scaling, draw_step, draw_timeline
from .validation import draw_adaptive, draw_claims, draw_errors, draw_gain, draw_parity

__all__ = [
    "VENUES",
    "describe",
    "draw_adaptive",
    "draw_breakdown",
    "draw_buffers",
    "draw_claims",
    "draw_comparison",
    "draw_errors",
    "draw_factors",
    "draw_fit",
    "draw_forecast",
    "draw_fusion_curve",
    "draw_gain",
    "draw_influence",
    "draw_models",
    "draw_overlap",
    "draw_parity",
    "draw_qq",
    "draw_regimes",
    "draw_residuals",
    "draw_run",
    "draw_scaling",
    "draw_sensitivity",
    "draw_step",
    "draw_timeline",
    "faults",
    "name_marks",
    "paper",
    "remark",
    "save",
]
