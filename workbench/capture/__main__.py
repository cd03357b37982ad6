"""`python -m workbench.capture`."""

from .command import main

main()
