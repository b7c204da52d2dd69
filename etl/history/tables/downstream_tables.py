"""The downstream's tables as its information_schema counts them: asked in the background, now and then, since a server
with ten thousand tables takes its time, and one that is away mustn't keep anybody waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from sluice.errors import ours
from sluice.etl.downstream import MySQLSession
from sluice.etl.settings import Downstream
from sluice.tidb.folded import folded

__all__ = ["DownstreamTableSize", "DownstreamTables", "DownstreamTablesCache", "read_tables"]

CACHE_TTL_S = 60.0
_CONNECT_TIMEOUT_S = 3
_READ_TIMEOUT_S = 60
_SYSTEM = ("information_schema", "mysql", "performance_schema", "sys", "metrics_schema", "inspection_schema")
_TABLES = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS, COALESCE(DATA_LENGTH, 0) + COALESCE(INDEX_LENGTH, 0)"
    f" FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE' AND TABLE_SCHEMA NOT IN {_SYSTEM!r}"
)


@dataclass(frozen=True, slots=True)
class DownstreamTableSize:
    """`rows` and `bytes` (with indexes) are the server's estimates; None: it has none."""

    schema: str
    name: str
    rows: int | None
    bytes: int | None


Tables = Mapping[tuple[str, str], DownstreamTableSize]
"""By schema and name in lower case."""


@dataclass(frozen=True, slots=True)
class DownstreamTables:
    """The tables as of `at_ms` (Unix ms), 0: never read. `problem`: why they can't be
    read now, "" if they can. `reading`: they are being read.
    """

    tables: Tables = field(default_factory=dict)
    at_ms: int = 0
    problem: str = ""
    reading: bool = False


def read_tables(downstream: Downstream) -> Tables:
    """What its information_schema says. Raises DownstreamError."""
    session = MySQLSession(replace(downstream, connect_timeout_s=_CONNECT_TIMEOUT_S, read_timeout_s=_READ_TIMEOUT_S))
    session.connect()
    with closing(session):
        found = [
            DownstreamTableSize(_text(schema), _text(name), _number(rows), _number(size))
            for schema, name, rows, size in session.query(_TABLES)
        ]
        own = folded(downstream.checkpoint_schema)
        return {(folded(t.schema), folded(t.name)): t for t in found if folded(t.schema) not in (own, "sluice_recycle")}


def _text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))


class DownstreamTablesCache:
    """The tables of downstreams, each read in a thread of its own where somebody asks, and kept. Safe for threads."""

    def __init__(
        self,
        read: Callable[[Downstream], Mapping[tuple[str, str], DownstreamTableSize]] = read_tables,
        fresh_s: float = CACHE_TTL_S,
    ) -> None:
        self._read = read
        self._ttl_s = fresh_s
        self._lock = threading.Lock()
        self._cached: dict[Downstream, tuple[float, DownstreamTables]] = {}
        self._refreshing: dict[Downstream, threading.Event] = {}

    def of(self, downstream: Downstream, wait_s: float = 0.0) -> DownstreamTables:
        """What was read last. If that is old it is read again, for which one waits so long at most."""
        with self._lock:
            read_s, kept = self._cached.get(downstream, (float("-inf"), DownstreamTables()))
            if time.monotonic() - read_s < self._ttl_s:
                return kept
            done = self._refreshing.get(downstream)
            if done is None:
                done = self._refreshing[downstream] = threading.Event()
                threading.Thread(target=self._work, args=(downstream, done), name="replica-tables", daemon=True).start()
        done.wait(wait_s)
        with self._lock:
            found = self._cached.get(downstream, (0.0, DownstreamTables()))[1]
            return replace(found, reading=downstream in self._refreshing)

    def _work(self, downstream: Downstream, done: threading.Event) -> None:
        with self._lock:
            before = self._cached.get(downstream, (0.0, DownstreamTables()))[1]
        try:
            found = DownstreamTables(self._read(downstream), time.time_ns() // 1_000_000)
        except Exception as error:
            found = replace(before, problem=str(ours(error)))
        with self._lock:
            self._cached[downstream] = (time.monotonic(), found)
            del self._refreshing[downstream]
        done.set()
