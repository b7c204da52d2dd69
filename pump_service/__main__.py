"""Run `python -m sluice.pump_service`."""

import sys

from sluice.pump_service import main

if __name__ == "__main__":  # processes of shares import this module
    sys.exit(main())
