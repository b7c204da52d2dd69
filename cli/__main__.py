"""`python -m cli` is `sluice`."""

from cli import main

main()
