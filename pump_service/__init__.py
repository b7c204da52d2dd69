"""Run the pump: take TiDB's binlogs, keep them in commit order, give them to readers.

Main types: `PumpServer` in `server` (put together), `Store` in `store` (value log, sorter, index),
`BinlogIngest` in `ingest` (which client may write what). It speaks TiDB Binlog's own protocol and
file formats. `python -m sluice.pump_service -config pump.toml` runs one; `main(argv)` is the same
from Python. Why it loses no commit is in docs/explanation/no-loss.md. May import: tidb, errors.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a pump until it is paused or taken offline, or print its flags.

    Returns exit code 0, or 2 if it can't start.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if not {"-h", "-help", "--help"}.isdisjoint(arguments):
        from sluice.pump_service.usage import USAGE

        print(USAGE, end="")
        return 0
    from sluice.pump_service.command import main as run

    return run(arguments)
