"""Read the downstream's tables from its information_schema, in the background.

It is read now and then: a server with ten thousand tables takes its time, and one that is away must
not keep callers waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from sluice.errors import ours
from sluice.etl.cached_value import CachedValue
from sluice.etl.downstream import MySQLSession
from sluice.etl.settings import Downstream
from sluice.tidb.folded import folded

__all__ = ["DownstreamTableSize", "DownstreamTables", "DownstreamTablesCache", "read_tables"]

CACHE_TTL_S = 60.0
_CONNECT_TIMEOUT_S = 3
_READ_TIMEOUT_S = 60
_SYSTEM = (
    "information_schema",
    "mysql",
    "performance_schema",
    "sys",
    "metrics_schema",
    "inspection_schema",
)
_TABLES = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS, COALESCE(DATA_LENGTH, 0) +"
    " COALESCE(INDEX_LENGTH, 0) FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE' AND"
    f" TABLE_SCHEMA NOT IN {_SYSTEM!r}"
)


@dataclass(frozen=True, slots=True)
class DownstreamTableSize:
    """A downstream table size.

    `rows` and `bytes` (with indexes) are the server's estimates; None: it has none.
    """

    schema: str
    name: str
    rows: int | None
    bytes: int | None


Tables = Mapping[tuple[str, str], DownstreamTableSize]
"""The tables by schema and name in lower case."""


@dataclass(frozen=True, slots=True)
class DownstreamTables:
    """The tables as of `at_ms` (Unix ms), 0: never read.

    `problem`: why they can't be read now, "" if they can. `reading`: they are being read.
    """

    tables: Tables = field(default_factory=dict)
    at_ms: int = 0
    problem: str = ""
    reading: bool = False


def read_tables(downstream: Downstream) -> Tables:
    """Read the tables from the server's information_schema. Raises DownstreamError."""
    session = MySQLSession(
        replace(downstream, connect_timeout_s=_CONNECT_TIMEOUT_S, read_timeout_s=_READ_TIMEOUT_S)
    )
    session.connect()
    with closing(session):
        found = [
            DownstreamTableSize(_text(schema), _text(name), _number(rows), _number(size))
            for schema, name, rows, size in session.query(_TABLES)
        ]
        own = folded(downstream.checkpoint_schema)
        return {
            (folded(t.schema), folded(t.name)): t
            for t in found
            if folded(t.schema) not in (own, "sluice_recycle")
        }


def _text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))


class DownstreamTablesCache:
    """Cache the tables of downstreams, each read in the background when a caller wants them.

    Threads may share it.
    """

    def __init__(
        self,
        read: Callable[[Downstream], Tables] = read_tables,
        ttl_s: float = CACHE_TTL_S,
    ) -> None:
        self._read = read
        self._ttl_s = ttl_s
        self._cached: dict[Downstream, CachedValue[Tables]] = {}

    def of(self, downstream: Downstream, wait_s: float = 0.0) -> DownstreamTables:
        """Return the tables that were read last.

        If it is older than `ttl_s` it is read again, for up to `wait_s` of waiting.
        """
        cached = self._cached.setdefault(downstream, CachedValue())
        cached.refresh(lambda: self._read(downstream), self._ttl_s)
        state = cached.wait(wait_s)
        problem = str(ours(state.error)) if state.error is not None else ""
        return DownstreamTables(
            state.value or {}, state.updated_ms, problem, reading=state.running is not None
        )
