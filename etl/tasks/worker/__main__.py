"""Start a worker process: ``python -m sluice.etl.tasks.worker DESCRIPTOR``.

A task does, and holds the other end of the socket.
"""

from __future__ import annotations

import sys

from sluice.etl.tasks.worker.server import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
