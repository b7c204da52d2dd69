"""The Pump: takes TiDB's binlogs, keeps them durably in commit order, and gives them to readers.

`python -m pump_service -config pump.toml` runs one; `main(argv)` is the same from Python.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a pump until it is paused or taken offline. Returns the exit code: 0, or 2 if it could not start."""
    from sluice.pump_service.command import main as run

    return run(argv)
