"""Which chunks are downstream, in the downstream itself:

    tidb_binlog.sluice_copied(job VARCHAR(64), chunk INT, source VARCHAR(512), copied_rows BIGINT,
                              PRIMARY KEY (job, chunk))

A chunk's row is written in the transaction that writes the chunk's rows: either both are there or none. Of two
transactions that write the same chunk the second finds the key taken, and nothing of it stays.
"""

from __future__ import annotations

from etl.downstream import MySQLSession
from etl.formats.sql_text import fill, quote_name


class CopiedTable:
    """The rows of one job. Every method runs in the session's current transaction and raises DownstreamError."""

    def __init__(self, schema: str, job: str) -> None:
        self._table = f"{quote_name(schema)}.`sluice_copied`"
        self._job = job

    def create(self, session: MySQLSession) -> None:
        """Create the table unless it exists; the checkpoint's schema is there."""
        session.execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} (job VARCHAR(64) CHARACTER SET ascii NOT NULL, chunk INT NOT"
            " NULL, source VARCHAR(512) CHARACTER SET utf8mb4 NOT NULL, copied_rows BIGINT NOT NULL, PRIMARY KEY (job,"
            " chunk)) ENGINE=InnoDB"
        )

    def claim(self, session: MySQLSession, chunk: int, source: str) -> bool:
        """Have this transaction write the chunk; False if it is there already. Waits for a transaction that is writing
        it.
        """
        return bool(
            session.execute(
                fill(f"INSERT IGNORE INTO {self._table} VALUES (%s, %s, %s, 0)", (self._job, chunk, source))
            )
        )

    def note(self, session: MySQLSession, chunk: int, rows: int) -> None:
        """How many rows the chunk has."""
        session.execute(
            fill(
                f"UPDATE {self._table} SET copied_rows = %s WHERE job = %s AND chunk = %s",
                (rows, self._job, chunk),
            )
        )

    def rows(self, session: MySQLSession) -> dict[int, int]:
        """How many rows each chunk that is downstream has."""
        found = session.query(f"SELECT chunk, copied_rows FROM {self._table} WHERE job = %s", (self._job,))
        return {int(chunk): int(rows) for chunk, rows in found}

    def forget(self, session: MySQLSession) -> None:
        """Remove the job's rows: it is over."""
        session.execute(fill(f"DELETE FROM {self._table} WHERE job = %s", (self._job,)))
