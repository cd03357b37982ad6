"""Figures, behind `workbench.figures`."""
