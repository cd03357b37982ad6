"""Figures that go straight into a paper: one draw_* an Axes, paper() for its size, save().

`faults(fig)` tells what cannot be read in a figure, `describe(fig)` what it shows, in words,
and `rebuild(receipt)` whether its numbers moved since it was saved.

Drawing never computes: every draw_* takes an Axes and a table, draws what the table holds and
returns the Axes.
"""

from .drawing.advice import draw_comparison, draw_forecast, draw_fusion_curve, draw_sensitivity
from .drawing.alt import describe
from .drawing.buffers import draw_buffers
from .drawing.claims import draw_claims
from .drawing.errors import draw_errors
from .drawing.factors import draw_factors
from .drawing.fits import draw_fit, draw_influence, draw_qq, draw_residuals
from .drawing.gains import draw_adaptive
from .drawing.labels import remark
from .drawing.looks import faults
from .drawing.models import draw_models, name_marks
from .drawing.overlap import draw_overlap
from .drawing.rebuilding import rebuild
from .drawing.receipts import save
from .drawing.regimes import draw_regimes
from .drawing.runs import draw_run
from .drawing.steps import draw_step
from .drawing.style import paper
from .drawing.timelines import draw_breakdown, draw_scaling, draw_timeline
from .drawing.validation import draw_gain, draw_parity
from .drawing.venues import VENUES

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
    "rebuild",
    "save",
]
