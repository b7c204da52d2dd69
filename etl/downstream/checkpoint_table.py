"""Read, lock and write the checkpoint row of a downstream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.sql_text import literal, quote_name
from sluice.etl.downstream._writer_lock import WriterLock
from sluice.etl.downstream.checkpoint import Checkpoint, CheckpointError, CheckpointMovedError
from sluice.etl.downstream.mysql import MySQLSession
from sluice.etl.downstream.servers import engines_without_transactions
from sluice.etl.settings import Downstream


def _writer_text(found: Checkpoint | None, expected: Checkpoint | None) -> str:
    if found is None or found.owner == (expected.owner if expected else ""):
        return ""
    return f", pipeline {found.owner}" if found.owner else ", a Drainer it seems"


class CheckpointTable:
    """The row of one cluster. `lock` and `save` run in the sink's current transaction."""

    def __init__(
        self,
        session: MySQLSession,
        cluster_id: int,
        schema: str = "tidb_binlog",
        table: str = "checkpoint",
    ) -> None:
        self._session = session
        self.cluster_id = cluster_id
        self.schema = schema
        self._schema = quote_name(schema)
        self._place = schema, table
        self._table = f"{quote_name(schema)}.{quote_name(table)}"
        self._known: tuple[Checkpoint, str] | None = None
        """A checkpoint, and the text of its row."""

    @classmethod
    def from_settings(cls, session: MySQLSession, settings: Downstream, cluster_id: int) -> Self:
        """Return the table of the row that the settings name."""
        return cls(session, cluster_id, settings.checkpoint_schema, settings.checkpoint_table)

    def writer_lock(self) -> WriterLock:
        """Return the lock of the process that writes where this row is the checkpoint."""
        return WriterLock(self.cluster_id, *self._place)

    def exists(self) -> bool:
        """Return whether there is such a table."""
        try:
            self._session.query(f"SELECT 1 FROM {self._table} LIMIT 1")
            return True
        except Exception as error:
            if getattr(error, "code", 0) not in (
                server_errors.NO_SUCH_TABLE,
                server_errors.UNKNOWN_DATABASE,
            ):
                raise
            return False

    def removal_sql(self) -> str:
        """Return the statement that removes this cluster's row."""
        return f"DELETE FROM {self._table} WHERE clusterID = {self.cluster_id}"

    def create(self) -> None:
        """Create schema and table unless they exist (needs no right to do so if they do).

        Raises CheckpointError if rows there can't be rolled back.
        """
        if not self.exists():
            self._session.query(f"CREATE DATABASE IF NOT EXISTS {self._schema}")
            self._session.query(
                f"CREATE TABLE IF NOT EXISTS {self._table} (clusterID BIGINT UNSIGNED PRIMARY KEY,"
                " checkPoint MEDIUMTEXT)"
            )
        engine = engines_without_transactions(self._session, [self._place])[0]
        if engine:
            raise CheckpointError(
                f"the checkpoint table {self._table} on {self._session.address} is in the storage"
                f" engine {engine}, which has no transactions",
                hint="ALTER TABLE ... ENGINE = InnoDB",
            )
        self._session.query("COMMIT")

    def load(self, *, wait: bool = False) -> Checkpoint | None:
        """Return the checkpoint, None when there is no row.

        `wait`: wait for a transaction that is changing it, such as one whose connection is gone
        while it is committed; the row is locked until the caller's transaction ends.
        """
        return self._select(" FOR UPDATE" if wait else "")

    def lock(self, expected: Checkpoint | None, *, shared: bool = False) -> None:
        """Lock the row for this transaction; it must be `expected` (None: no row).

        Owner and process count. `shared`: other sessions may hold the lock, too, and none can
        change the row. Raises CheckpointMovedError.
        """
        self.expect(expected, self._session.query(self.lock_statement(shared=shared)))

    def lock_statement(self, *, shared: bool = False) -> str:
        """Return the query by which `lock` locks the row."""
        return self._selection(
            f" {self._session.dialect.shared_lock_clause if shared else 'FOR UPDATE'}"
        )

    def expect(self, expected: Checkpoint | None, rows: Sequence[tuple[Any, ...]]) -> None:
        """Check that the row is `expected`; `rows`: the answer to `lock_statement`.

        Raises CheckpointMovedError.
        """
        if expected is not None and rows and rows[0][0] == self._text_of(expected):
            return
        found = self._read(rows)
        if found != expected or (
            found
            and expected
            and (found.owner, found.process) != (expected.owner, expected.process)
        ):
            raise self.moved(found, expected)

    def moved(self, found: Checkpoint | None, expected: Checkpoint | None) -> CheckpointMovedError:
        """Return the error for a row that is `found` in place of `expected`."""
        return CheckpointMovedError(
            f"the checkpoint of cluster {self.cluster_id} in {self._table} on"
            f" {self._session.address} is at {found.commit_ts if found else 'no row'},"
            f" {expected.commit_ts if expected else 'no row'} expected: another process replicates"
            f" to the same downstream{_writer_text(found, expected)}, or has taken over from this"
            " one; stop one of the two"
        )

    def save(self, checkpoint: Checkpoint, *, first: bool = False) -> None:
        """Write the row; `first`: there was none when this process looked.

        Raises CheckpointMovedError if there is one now.
        """
        try:
            if first:
                self._session.query(
                    f"INSERT INTO {self._table} VALUES (%s, %s)",
                    (self.cluster_id, checkpoint.to_text()),
                )
            else:
                self._session.query(self.save_statement(checkpoint))
        except Exception as error:
            if first and getattr(error, "code", 0) == server_errors.DUPLICATE_ENTRY:
                raise CheckpointMovedError(
                    f"another process wrote the first checkpoint of cluster {self.cluster_id}"
                ) from error
            raise

    def save_statement(self, checkpoint: Checkpoint) -> str:
        """Return the statement by which `save` writes the row where there is one."""
        text = literal(self._text_of(checkpoint))
        return f"UPDATE {self._table} SET checkPoint = {text} WHERE clusterID = {self.cluster_id}"

    def swap_statement(self, expected: Checkpoint, checkpoint: Checkpoint) -> str:
        """Return the statement that locks the row, and writes it if its text is `expected`'s.

        It affects one row then, else none, also where the written text equals the row's.
        """
        # before `checkpoint`, whose text is the one that is wanted again
        before = literal(self._text_of(expected))
        return f"{self.save_statement(checkpoint)} AND CAST(checkPoint AS BINARY) = {before}"

    def _text_of(self, checkpoint: Checkpoint) -> str:
        if self._known is None or self._known[0] is not checkpoint:
            self._known = checkpoint, checkpoint.to_text()
        return self._known[1]

    def _select(self, suffix: str) -> Checkpoint | None:
        return self._read(self._session.query(self._selection(suffix)))

    def _selection(self, suffix: str) -> str:
        return f"SELECT checkPoint FROM {self._table} WHERE clusterID = {self.cluster_id}{suffix}"

    def _read(self, rows: Sequence[tuple[Any, ...]]) -> Checkpoint | None:
        return Checkpoint.parse(str(rows[0][0]), self.cluster_id) if rows else None
