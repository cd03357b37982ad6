"""A workbench for one question: how well will this data-parallel training scale?

Twelve rooms on seven floors. A room imports only from rooms on lower floors:

    7  explore     figures with sliders
       notebooks   parameters of notebooks, their execution, figures rebuilt, pages
    6  figures     draw_*: a table on a Matplotlib Axes; paper() and save()
    5  validation  predictions compared with published runs, the study, your own recording
       capture     record a run and the price of its messages, apply a plan (needs torch)
    4  whatif      what to change and how sure: compare, headroom, recommend, band, knee
    3  fits        timed messages -> Fit
       timeline    Scenario -> Prediction: OSF itself
    2  traces      files -> Run -> iterations, collectives, gradients
       costs       seconds of one message
       fusion      which gradients share a message, and settings to paste
    1  base        units, tables, checks, spans, progress, Absent

Each room above base lists what it offers in `__all__`: `from workbench.traces import load_run`.
"""

from .base.absent import Absent, or_why
from .base.units import GB, GBIT, GIB, KIB, MIB, MS, US, format_bytes, format_seconds

__all__ = [
    "GB",
    "GBIT",
    "GIB",
    "KIB",
    "MIB",
    "MS",
    "US",
    "Absent",
    "format_bytes",
    "format_seconds",
    "or_why",
]
