"""Figures for a paper: one draw_* per picture, paper() for its size, save() for its files.

    with plt.rc_context(paper("usenix", columns=2)):
        fig, ax = plt.subplots()
        draw_scaling(ax, table)
    save(fig, "scaling", table)

A draw_* function takes an Axes and a table, draws what the table contains, computes nothing and
returns the Axes. `paper` sets the width of a venue to 0.01 inch: acm-sigconf, ieee, usenix,
mlsys, icml, neurips, lncs, thesis. `save` writes PDF and SVG with embedded fonts, PNG, the table
as CSV, PGF if LaTeX is installed, and a receipt: hashes of the inputs, their sources, parameters,
versions, the git commit and an alternative text computed from the axes.
`workbench.notebooks.rebuild(receipt)` draws the figure again and reports whether its numbers
moved. `faults(fig)` lists what cannot be read in a figure; `describe(fig)` returns its content in
words. Colours differ in grey print and for the colour-blind, and never carry a meaning alone.
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
