"""Regression and what follows from it, behind `workbench.fits`."""
