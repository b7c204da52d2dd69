"""Restores in processes of their own, which a signal meets at any point.

See `tests.etl.copy.killed_copy`.
"""

from __future__ import annotations

from typing import Any

from sluice.etl.restore import RestoreRequest
from sluice.relay import RelayLog
from tests.etl.copy.killed_copy import Server, counting, main
from tests.etl.restore.restoring import restore, settings_of

TABLES = ("bank.child", "bank.log_nopk")
REPLACED = "bank_restored.child"


def do(command: dict[str, Any]) -> int:
    steps = counting(command)
    server: Any = Server(command["port"])
    settings = settings_of(server, command["place"])
    restore(settings, request(command["place"]))
    return next(steps)  # type: ignore[no-any-return]


def request(url: str) -> RestoreRequest:
    """The same in every process."""
    end = RelayLog.open(url).last()
    assert end is not None
    return RestoreRequest(end.hi, TABLES, replacing=(REPLACED,), verify=False)


if __name__ == "__main__":
    main(do)
