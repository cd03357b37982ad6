"""When messages run and what that costs, behind `workbench.timeline`."""
