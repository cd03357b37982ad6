"""Notebooks: their parameters, their execution, figures rebuilt from receipts, and pages.

rebuild("figures/scaling.receipt.json")    python -m workbench.notebooks
"""

from .parameters import defaults, settle
from .rebuilding import rebuild

__all__ = [
    "defaults",
    "rebuild",
    "settle",
]
