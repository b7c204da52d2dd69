"""What there is to know of the replication itself, from the relay log and the archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from etl.settings import Settings
from expectations.errors import QualityError
from expectations.place import TableShape

__all__ = ["ReplicationPlace", "replication_place"]


class ReplicationPlace:
    """The facts; no tables."""

    on = "replication"
    ts = 0

    def __init__(self, settings: Settings, at_ms: int) -> None:
        self.settings = settings
        self.at_ms = at_ms

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        raise QualityError("the replication has no rows to ask for")

    def table(self, name: str) -> str:
        raise QualityError(f"the replication has no table {name}")

    def shape(self, name: str) -> TableShape:
        return TableShape(name, ())

    def tables(self) -> Sequence[str]:
        return ()


@contextmanager
def replication_place(settings: Settings) -> Iterator[ReplicationPlace]:
    import time

    yield ReplicationPlace(settings, time.time_ns() // 1_000_000)
