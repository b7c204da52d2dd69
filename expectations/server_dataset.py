"""Read tables of a MySQL-protocol server as of one moment: the downstream, or a copy.

The downstream is read at its checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sluice.etl.changes.formats.sql_text import fill_placeholders
from sluice.etl.downstream import MySQLSession
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader
from sluice.etl.settings import Downstream, Settings
from sluice.expectations.dataset import TableShape, quoted
from sluice.expectations.server_shape import shape_of, table_names
from sluice.expectations.suite import QualityError
from sluice.tidb import tso
from sluice.tidb.table_name import TableName

__all__ = ["ServerDataset", "open_copy_dataset", "open_downstream_dataset"]


class ServerDataset:
    """Tables in a session whose transaction began with a consistent snapshot.

    It reads, and nothing else; after every statement `let_go` is called, so that a DDL waits for a
    statement at the most.
    """

    def __init__(
        self,
        session: MySQLSession,
        on: str,
        ts: int,
        own_schemas: tuple[str, ...],
        let_go: Callable[[], None],
    ) -> None:
        self.session = session
        self.on = on
        self.ts = ts
        self.at_ms = tso.physical_ms(ts) if ts else time.time_ns() // 1_000_000
        self.release = let_go
        self._own_schemas = own_schemas
        self._shapes: dict[str, TableShape | None] = {}

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT. Raises DownstreamError."""
        try:
            return self.session.query(statement)
        finally:
            self.release()

    def table(self, name: str) -> str:
        """Return a table's name for a statement. Raises QualityError, DownstreamError."""
        self.shape(name)
        schema, table = TableName.parse(name)
        return f"{quoted(schema)}.{quoted(table)}"

    def shape(self, name: str) -> TableShape:
        """Return a table's shape. Raises QualityError, DownstreamError."""
        if name not in self._shapes:
            self._shapes[name] = shape_of(self._query, name)
        found = self._shapes[name]
        if found is None:
            raise QualityError(
                f"there is no table {name} on {self.session.address}",
                hint="remove its file, or correct the name in it",
            )
        return found

    def tables(self) -> Sequence[str]:
        """Return all tables but those that Sluice itself keeps there. Raises DownstreamError."""
        return table_names(self._query, self._own_schemas)

    def _query(self, statement: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        return self.ask(fill_placeholders(statement, values))


@contextmanager
def open_downstream_dataset(settings: Settings) -> Iterator[ServerDataset]:
    """Open the downstream at its checkpoint, while replication goes on.

    Raises QualityError, SnapshotError, DownstreamError, relay errors.
    """
    target = settings.target
    if not isinstance(target, Downstream):
        raise QualityError(
            f"[downstream] type is {settings.downstream.type}: it has no tables to check",
            hint="check the lake: --on lake",
        )
    last = settings.open_relay().last()
    if last is None:
        raise QualityError("nothing is landed yet", hint="wait until replication has begun")
    with ConsistentReader.open(target, last.cluster_id, 1) as snapshot:
        session = snapshot.session(0)
        ts = snapshot.checkpoint.commit_ts
        yield ServerDataset(
            session, "downstream", ts, _own_schemas(target), lambda: snapshot.release(session)
        )


@contextmanager
def open_copy_dataset(target: Downstream) -> Iterator[ServerDataset]:
    """Open another server, such as a restore's target, as of now. Raises DownstreamError."""
    session = MySQLSession(target)
    session.connect()
    try:
        session.query("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        yield ServerDataset(session, "copy", 0, _own_schemas(target), lambda: None)
    finally:
        session.close()


def _own_schemas(target: Downstream) -> tuple[str, ...]:
    return target.checkpoint_schema, target.recycle_schema
