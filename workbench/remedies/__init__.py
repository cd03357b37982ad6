"""What one may change, each with its own cost, behind `workbench.whatif`."""
