"""Figures with sliders, behind `workbench.explore`."""
