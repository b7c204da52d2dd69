"""List in the downstream itself which chunks are downstream.

    tidb_binlog.sluice_copied(
        job VARCHAR(64), chunk INT, source VARCHAR(512), copied_rows BIGINT,
        PRIMARY KEY (job, chunk))

All chunks are listed before the first one is copied, by the process that holds the writer's lock;
`copied_rows` is -1 then. A chunk's row is changed in the transaction that writes the chunk's rows:
either both are there or none. Of two transactions that write the same chunk the second finds it
copied, and nothing of it stays. Once the copy is over its rows go: a process that was stopped in
the middle of it and wakes up finds nothing that it may copy.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.etl.changes.formats.sql_text import fill_placeholders, quote_name
from sluice.etl.copy.errors import CopyError
from sluice.etl.downstream import MySQLSession

_END_MARKER = -1
_ROWS_A_STATEMENT = 500


class ChunkLedger:
    """The rows of one job.

    Every method runs in the session's current transaction and raises DownstreamError.
    """

    def __init__(self, schema: str, job: str) -> None:
        self._table = f"{quote_name(schema)}.`sluice_copied`"
        self._job = job

    def create(self, session: MySQLSession) -> None:
        """Create the table unless it exists, in the checkpoint's schema, which must exist."""
        session.execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} (job VARCHAR(64) CHARACTER SET ascii NOT"
            " NULL, chunk INT NOT NULL, source VARCHAR(512) CHARACTER SET utf8mb4 NOT NULL,"
            " copied_rows BIGINT NOT NULL, PRIMARY KEY (job, chunk)) ENGINE=InnoDB"
        )

    def list(self, session: MySQLSession, sources: Mapping[int, str]) -> None:
        """List chunks to be copied, each with a text that names its place, in one transaction.

        Does nothing if they are listed already.
        """
        if session.query(f"SELECT 1 FROM {self._table} WHERE job = %s LIMIT 1", (self._job,)):
            return
        rows = [(self._job, number, source) for number, source in sources.items()]
        for first in range(0, len(rows), _ROWS_A_STATEMENT):
            some = rows[first : first + _ROWS_A_STATEMENT]
            places = ", ".join(["(%s, %s, %s, -1)"] * len(some))
            values = [value for row in some for value in row]
            session.execute(fill_placeholders(f"INSERT INTO {self._table} VALUES {places}", values))

    def claim(self, session: MySQLSession, chunk: int) -> bool:
        """Claim the chunk for this transaction; return False if it is downstream already.

        Waits for a transaction that is writing it. Raises CopyError if the chunk isn't listed: the
        copy is over.
        """
        if session.execute(
            fill_placeholders(
                f"UPDATE {self._table} SET copied_rows = 0 WHERE job = %s AND chunk = %s AND"
                " copied_rows < 0",
                (self._job, chunk),
            )
        ):
            return True
        found = session.query(
            f"SELECT 1 FROM {self._table} WHERE job = %s AND chunk = %s", (self._job, chunk)
        )
        if not found:
            raise CopyError(
                f"chunk {chunk} of {self._job} is in no list of {session.address} any more: another"
                " process has ended this copy, and nothing more is written by this one"
            )
        return False

    def note(self, session: MySQLSession, chunk: int, rows: int) -> None:
        """Record how many rows the chunk has."""
        session.execute(
            fill_placeholders(
                f"UPDATE {self._table} SET copied_rows = %s WHERE job = %s AND chunk = %s",
                (rows, self._job, chunk),
            )
        )

    def rows(self, session: MySQLSession) -> dict[int, int]:
        """Return how many rows each chunk that is downstream has."""
        found = session.query(
            f"SELECT chunk, copied_rows FROM {self._table} WHERE job = %s AND chunk >= 0 AND"
            " copied_rows >= 0",
            (self._job,),
        )
        return {int(chunk): int(rows) for chunk, rows in found}

    def end(self, session: MySQLSession) -> None:
        """End the copy with this transaction. Raises DownstreamError if it has ended."""
        session.execute(
            fill_placeholders(
                f"INSERT INTO {self._table} VALUES (%s, %s, 'checkpoint', 0)",
                (self._job, _END_MARKER),
            )
        )

    def has_ended(self, session: MySQLSession) -> bool:
        """Return whether `end` was committed."""
        return bool(
            session.query(
                f"SELECT 1 FROM {self._table} WHERE job = %s AND chunk = %s",
                (self._job, _END_MARKER),
            )
        )

    def give_up(self, session: MySQLSession) -> None:
        """Keep every process from copying more chunks; what is copied stays listed.

        Waits for transactions that copy one.
        """
        session.execute(
            fill_placeholders(
                f"DELETE FROM {self._table} WHERE job = %s AND chunk >= 0 AND copied_rows < 0",
                (self._job,),
            )
        )

    def forget(self, session: MySQLSession) -> None:
        """Remove the job's rows: it is over."""
        session.execute(
            fill_placeholders(f"DELETE FROM {self._table} WHERE job = %s", (self._job,))
        )
