"""`python -m pump_service`."""

import sys

from pump_service import main

sys.exit(main())
