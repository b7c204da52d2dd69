"""``python -m etl.resident DESCRIPTOR``: begun by a task, which holds the other end of the socket."""

from __future__ import annotations

import sys

from etl.resident.process import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
