"""Notebooks: their parameters and data, figures rebuilt from receipts, and HTML pages.

rebuild("figures/scaling.receipt.json")    python -m workbench.notebooks
"""

from .parameters import defaults, settle, shipped_data
from .rebuilding import rebuild

__all__ = [
    "defaults",
    "rebuild",
    "settle",
    "shipped_data",
]
