"""Query the downstream for a backfill: its checkpoint, its tables, and the chunks' results.

Rows are written by the process that applies; here only tables that aren't there are made, and
results removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sluice.etl.copy.backfill.upstream_catalog import TableSize
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.errors import BackfillError
from sluice.etl.copy.statements import create_object, scoped_statement
from sluice.etl.downstream import Checkpoint, CheckpointTable, DownstreamError, MySQLSession
from sluice.etl.downstream.chunk_results import ChunkResult, ChunkResults
from sluice.etl.downstream.ddl import DdlExecutor
from sluice.etl.settings import Settings
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table
from sluice.tidb.table_name import full_name

T = TypeVar("T")

_MAX_ATTEMPTS = 30
_RETRY_INTERVAL_S = 1.0


class BackfillDownstream:
    """One session.

    Every method raises DownstreamError; a lost connection is made again, for a while.
    """

    def __init__(self, settings: Settings, cluster_id: int) -> None:
        self._settings = settings
        self._session = MySQLSession(settings.downstream)
        self._checkpoint = CheckpointTable.from_settings(
            self._session, settings.downstream, cluster_id
        )
        self._results = ChunkResults(settings.downstream.checkpoint_schema)

    @property
    def address(self) -> str:
        return self._session.address

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint, None if it isn't a replica yet."""
        return self._asked(lambda: self._checkpoint.load() if self._checkpoint.exists() else None)

    def result_of(self, job: str, at_ts: int) -> ChunkResult | None:
        """Return the result of an aligned chunk, None: nothing yet."""
        return self._asked(lambda: self._find_result(job, at_ts))

    def is_past(self, at_ts: int) -> bool:
        """Return whether the checkpoint is surely beyond this timestamp.

        No result for it comes later.
        """

        def look() -> bool:
            seen = self._checkpoint.load()
            if seen is None or seen.commit_ts <= at_ts:
                return False
            self._session.commit()
            self._session.begin()
            locked = self._checkpoint.load(wait=True)
            return locked is not None and locked.commit_ts > at_ts

        return self._asked(look)

    def columns(self) -> dict[str, set[str]]:
        """Return the names of columns by the full name of their table, all in lower case."""

        def look() -> dict[str, set[str]]:
            found: dict[str, set[str]] = {}
            for schema, table, column in self._session.query(
                "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS"
            ):
                found.setdefault(folded(full_name(schema, table)), set()).add(folded(str(column)))
            return found

        return self._asked(look)

    def sizes(self) -> dict[str, TableSize]:
        """Return the tables' estimated sizes, by folded full name."""

        def look() -> dict[str, TableSize]:
            return {
                folded(full_name(schema, table)): TableSize(int(rows or 0), int(size or 0))
                for schema, table, rows, size in self._session.query(
                    "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS, DATA_LENGTH FROM"
                    " information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE'"
                )
            }

        return self._asked(look)

    def create_table(self, table: Table, definitions: Callable[[int], SourceSchema]) -> list[str]:
        """Create an empty table as it was upstream at the checkpoint; return warnings.

        Replication goes on from there with it. Raises BackfillError, DdlError.
        """
        for _ in range(_MAX_ATTEMPTS):
            before = self.checkpoint()
            assert before is not None
            found = next(
                (t for t in definitions(before.commit_ts).tables if t.id == table.id), None
            )
            if found is None:  # the checkpoint will come to its CREATE TABLE, or just has
                time.sleep(_RETRY_INTERVAL_S)
                if folded(table.full_name) in self.columns():
                    return []
                continue
            ddl = scoped_statement(
                create_object(found, before.commit_ts),
                self._settings.filters,
                self._settings.routes,
            )
            if ddl is None:
                raise BackfillError(f"{table.full_name} isn't wanted by the rules")
            executor = DdlExecutor(self._session)
            executor.fingerprint(ddl)  # makes the database that a route needs
            warnings = executor.execute(ddl)
            self._session.commit()
            return warnings
        raise BackfillError(
            f"{table.full_name} was created upstream after the checkpoint, which hasn't come to it:"
            " see to it that the pipeline runs"
        )

    def sweep(self, is_over: Callable[[str], bool]) -> None:
        """Remove the notes of jobs that are over.

        Without its note a chunk is done again, to the same rows: so it does no harm that pipelines
        of other clusters, whose jobs aren't known here, may have theirs in the same table.
        """

        def remove() -> None:
            for job in filter(is_over, self._results.jobs(self._session)):
                self._results.forget(self._session, job)

        self._asked(remove)

    def _find_result(self, job: str, at_ts: int) -> ChunkResult | None:
        return (
            self._results.find(self._session, job, at_ts)
            if self._results.exists(self._session)
            else None
        )

    def _asked(self, ask: Callable[[], T]) -> T:
        for attempt in range(_MAX_ATTEMPTS):
            try:
                if not self._session.is_connected:
                    self._session.connect()
                found = ask()
                self._session.commit()
            except DownstreamError as error:
                self._session.close()
                if not error.transient or attempt == _MAX_ATTEMPTS - 1:
                    raise
                time.sleep(_RETRY_INTERVAL_S)
            else:
                return found
        raise AssertionError("unreachable")
