"""Read the downstream at one checkpoint in several sessions, while replication goes on.

The checkpoint row is locked for the milliseconds in which the sessions open their snapshots. Every
writer locks that row before a commit, so nothing is committed meanwhile: what the sessions see is
the checkpoint's state, each finds that checkpoint in its own snapshot, and no writer waits for
longer than that.

A session keeps a lock on a table's definition (a metadata lock) only while it reads a page of it,
so a DDL waits for a page at the most. A table that a DDL changes before it was read can't be read
any more as of the snapshot: `TableChanged`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

import pyarrow as pa

from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.key_ranges import KeyColumn, in_range
from sluice.etl.downstream import Checkpoint, CheckpointTable, DownstreamError, MySQLSession
from sluice.etl.history.errors import SnapshotError
from sluice.etl.history.snapshots.downstream_rows import DownstreamTable, page_key, read_page
from sluice.etl.settings import Downstream

__all__ = ["ConsistentReader", "KeyBounds", "TableChanged"]

log = logging.getLogger("sluice.snapshot")

OPEN_TIMEOUT_S = 60.0
_POLL_INTERVAL_S = 0.005
_SAVEPOINT = "sluice_snapshot"
TARGET_PAGE_BYTES = 64 << 20
_MIN_PAGE_ROWS, _MAX_PAGE_ROWS = 1_000, 500_000
KeyBounds = tuple[Sequence[str] | None, Sequence[str] | None]
"""Two keys as literals of their columns, or of the first of them; None: no limit."""
_DEFINITION_CHANGED_ERRORS = frozenset({
    server_errors.TABLE_DEF_CHANGED, server_errors.NO_SUCH_TABLE, server_errors.UNKNOWN_COLUMN,
    server_errors.UNKNOWN_DATABASE,
})  # fmt: skip


class TableChanged(SnapshotError):
    """A DDL changed a table after the snapshots were opened.

    A new attempt sees it as it is then.
    """

    transient = True


class ConsistentReader:
    """The downstream at `checkpoint`, read by sessions 0 to `sessions` - 1.

    One thread at a time uses a session. Every method raises DownstreamError.
    """

    def __init__(self, checkpoint: Checkpoint, sessions: list[MySQLSession]) -> None:
        self.checkpoint = checkpoint
        self._sessions = sessions

    @classmethod
    @contextmanager
    def open(
        cls,
        downstream: Downstream,
        cluster_id: int,
        sessions: int,
        *,
        patience_s: float = OPEN_TIMEOUT_S,
    ) -> Iterator[Self]:
        """Open snapshots at one checkpoint of the pipeline that writes there.

        Raises SnapshotError if there is none, transient if none was consistent for `patience_s`: an
        in-flight batch or a DDL was under way at every attempt.
        """
        opener, opened = (
            MySQLSession(downstream),
            [MySQLSession(downstream) for _ in range(sessions)],
        )
        try:
            for session in (opener, *opened):
                session.connect()
            table = CheckpointTable.from_settings(opener, downstream, cluster_id)
            checkpoint = _open_sessions(opener, table, opened, patience_s)
            for session in opened:
                _check_at_checkpoint(
                    session,
                    CheckpointTable.from_settings(session, downstream, cluster_id),
                    checkpoint,
                )
            opener.close()
            yield cls(checkpoint, opened)
        finally:
            for session in (opener, *opened):
                session.close()

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    def session(self, number: int) -> MySQLSession:
        """Return one of the sessions, for SELECTs; `let_go` after each."""
        return self._sessions[number]

    def rows(
        self, number: int, place: DownstreamTable, within: KeyBounds = (None, None)
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table, over session `number`.

        They have `place.columns` in types and texts of `sluice.tidb.rows.arrow_schema`. `within`:
        of a table with a `page_key` only those from the first (inside) to the second (outside).
        Raises TableChanged, SnapshotError. A caller that doesn't read to the end loses the session.
        """
        key = page_key(place.table)
        low, high = within
        if not key:
            yield from self._page(number, place, "TRUE", [])
            return
        limit = self.page_rows(number, place)
        order = ", ".join(column.quoted for column in key)
        beyond = ""
        while True:
            condition = " AND ".join(part for part in (in_range(key, low, high), beyond) if part)
            last: list[bytes] = []
            rows = 0
            for batch in self._page(
                number, place, f"{condition} ORDER BY {order} LIMIT {limit}", key, last
            ):
                rows += batch.num_rows
                yield batch
            if rows < limit:
                return
            low = [column.literal(value) for column, value in zip(key, last, strict=True)]
            equal = (f"{c.quoted} = {text}" for c, text in zip(key, low, strict=True))
            beyond = f"NOT ({' AND '.join(equal)})"

    def _page(
        self,
        number: int,
        place: DownstreamTable,
        condition: str,
        key: list[KeyColumn],
        last: list[bytes] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a condition.

        The key of the last one goes into `last`, as the server printed it.
        """
        session = self._sessions[number]
        names = [column.name for column in place.columns]
        at = [names.index(column.name) for column in key]
        with _translated_errors(session, place):
            for batch, block in read_page(session, place, condition):
                if last is not None:
                    last[:] = [block.column(n)[block.rows - 1].as_py() for n in at]
                yield batch
            self.release(session)

    def rows_where(
        self, number: int, place: DownstreamTable, condition: str
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows of a condition (SQL), as `rows` does, in no order and all at once."""
        return self._page(number, place, condition, [])

    def asked(self, number: int, place: DownstreamTable, statement: str) -> list[tuple[Any, ...]]:
        """Return a small result of a statement that reads that table. Raises TableChanged."""
        session = self._sessions[number]
        with _translated_errors(session, place):
            found = session.query(statement)
            self.release(session)
        return found

    def limits(self, number: int, place: DownstreamTable) -> tuple[int, int] | None:
        """Return the least and the greatest value of a key that is one number.

        None if there are no rows.
        """
        (key,) = (column.quoted for column in page_key(place.table))
        ((low, high),) = self.asked(
            number, place, f"SELECT MIN({key}), MAX({key}) FROM {place.quoted}"
        )
        return None if low is None else (int(low), int(high))

    def close(self) -> None:
        """End the sessions; a thread that reads gets an error that the connection is lost."""
        for session in self._sessions:
            session.close()

    def release(self, session: MySQLSession) -> None:
        """Release all tables' metadata locks: a DDL need not wait for the end of the snapshot."""
        if not session.dialect.is_tidb:
            session.query(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")

    def page_rows(self, number: int, place: DownstreamTable) -> int:
        """Return the rows of a page: about PAGE_BYTES, as far as the server knows their length."""
        found = self._sessions[number].query(
            "SELECT AVG_ROW_LENGTH FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND"
            " TABLE_NAME = %s",
            (place.schema, place.name),
        )
        length = int(found[0][0] or 0) if found else 0
        return max(_MIN_PAGE_ROWS, min(_MAX_PAGE_ROWS, TARGET_PAGE_BYTES // max(length, 64)))


@contextmanager
def _translated_errors(session: MySQLSession, place: DownstreamTable) -> Iterator[None]:
    try:
        yield
    except DownstreamError as error:
        if error.code in _DEFINITION_CHANGED_ERRORS:
            raise TableChanged(
                f"{place.full_name} on {session.address} was changed by a DDL before it was read:"
                f" {error.message}"
            ) from error
        raise


def _open_sessions(
    opener: MySQLSession, table: CheckpointTable, sessions: list[MySQLSession], patience_s: float
) -> Checkpoint:
    """Open the snapshots while nothing is being committed; the checkpoint that they are at."""
    deadline = time.monotonic() + patience_s
    while True:
        found = _await_consistent(opener, table, deadline)
        opener.begin()
        try:
            locked = table.load(wait=True)
            if locked is not None and _inconsistency_reason(locked) is None:
                began = time.monotonic()
                for session in sessions:
                    session.query("START TRANSACTION WITH CONSISTENT SNAPSHOT")
                log.info(
                    "%d snapshots at the checkpoint %d, whose row was locked for %.1f ms",
                    len(sessions), locked.commit_ts, 1000 * (time.monotonic() - began),
                )  # fmt: skip
                return locked
        finally:
            with suppress(DownstreamError):
                opener.rollback()
        log.debug("the checkpoint has moved from %d before its row was locked", found.commit_ts)


def _await_consistent(opener: MySQLSession, table: CheckpointTable, deadline: float) -> Checkpoint:
    """Wait until nothing beyond the checkpoint may be downstream, and return it."""
    while True:
        found = table.load() if table.exists() else None
        opener.rollback()
        if found is None:
            raise SnapshotError(
                f"{opener.address} has no checkpoint of cluster {table.cluster_id}: it is no"
                " replica (yet)",
                hint="make the snapshot from TiDB or from a dump",
            )
        why = _inconsistency_reason(found)
        if why is None:
            return found
        if time.monotonic() > deadline:
            raise SnapshotError(
                f"{opener.address} was never exactly at its checkpoint {found.commit_ts}: {why}",
                transient=True,
                hint="see that applying goes on, or make the snapshot from TiDB",
            )
        time.sleep(_POLL_INTERVAL_S)


def _inconsistency_reason(found: Checkpoint) -> str | None:
    """Return why the downstream may hold more than the checkpoint covers."""
    if found.in_flight is not None:
        return f"changes through {found.in_flight.until} are in flight"
    if found.pending is not None:
        return f"the DDL committed at {found.pending.commit_ts} is being executed"
    if found.shared is not None:
        there = (
            "only rows of some clusters" if found.shared.channels else "the rows, and not all DDL"
        )
        return f"of what was committed at {found.shared.ts} {there} are there"
    if not found.consistent:
        return "a Drainer left changes beyond it, which are written in safe mode"
    return None


def _check_at_checkpoint(
    session: MySQLSession, table: CheckpointTable, expected: Checkpoint
) -> None:
    """Check that the session's snapshot is at the checkpoint.

    From here on it holds no metadata lock.
    """
    if not session.dialect.is_tidb:
        session.query(f"SAVEPOINT {_SAVEPOINT}")
    if table.load() != expected:
        raise SnapshotError(
            f"a snapshot of {session.address} isn't at the checkpoint {expected.commit_ts}, whose"
            " row was locked meanwhile",
            hint=(
                "this must not happen: is there a proxy that sends sessions to different servers?"
            ),
        )
    if not session.dialect.is_tidb:
        session.query(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
