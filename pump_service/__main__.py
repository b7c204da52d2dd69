"""Run `python -m sluice.pump_service`."""

import sys

from sluice.pump_service import main

sys.exit(main())
