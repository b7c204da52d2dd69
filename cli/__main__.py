"""`python -m cli` is `sluice`."""

from sluice.cli import main

main()
