"""Follow the tables' definitions through a range of windows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.id_maps import LazyTables
from sluice.tidb.schema import Table

__all__ = ["LakeSchemaCursor"]


class LakeSchemaCursor:
    """Tables by id.

    One that a DDL removed is still known: rows that were written meanwhile may follow.
    """

    def __init__(self) -> None:
        self._tables: dict[int, Table] = {}
        self._documents: dict[int, object] = {}
        self._given: dict[int, Mapping[int, Table | None]] = {}
        """Definitions that were not decoded yet, by table id."""
        self._ddls: deque[DdlJob] = deque()
        """The window's DDL that lies ahead."""
        self.schema_version = 0
        """TiDB's, at this place."""

    def enter(self, schema: RecordedSchema) -> None:
        """Go on into a window."""
        for move in schema.moved:
            for table_id in move.before:
                if table_id not in self._tables:
                    self._given.setdefault(table_id, move.before)
        for table_id in schema.tables:
            self._given[table_id] = schema.tables
        self._ddls = deque(schema.ddls)
        self.schema_version = min(
            (ddl.schema_version - 1 for ddl in schema.ddls), default=schema.schema_version
        )

    def ranges(self, changes: pa.Table | pa.RecordBatch) -> Iterator[pa.Table | pa.RecordBatch]:
        """Yield the window's next changes, cut at its DDL.

        While a range is being processed, the definitions are the range's.
        """
        commit_ts = changes["commit_ts"].to_numpy()
        at = 0
        while self._ddls and at < len(commit_ts):
            end = int(np.searchsorted(commit_ts, self._ddls[0].commit_ts, side="right"))
            if end > at:
                yield changes.slice(at, end - at)
            at = end
            if end < len(commit_ts):
                self._apply_ddl(self._ddls.popleft())
        if at < len(commit_ts):
            yield changes.slice(at)

    def leave(self) -> None:
        """Go on behind the window."""
        while self._ddls:
            self._apply_ddl(self._ddls.popleft())

    def _apply_ddl(self, ddl: DdlJob) -> None:
        for table_id, table in ddl.effect.tables.items():
            if table is not None:
                self._tables[table_id] = table
                self._documents.pop(table_id, None)
                self._given.pop(table_id, None)
        self.schema_version = max(self.schema_version, ddl.schema_version)

    def get(self, table_id: int) -> Table | None:
        """Return the table; None for one that no window record has described."""
        given = self._given.pop(table_id, None)
        if given is not None:
            document = given.documents.get(str(table_id)) if isinstance(given, LazyTables) else None
            if (
                document is None
                or document != self._documents.get(table_id)
                or table_id not in self._tables
            ):
                table = given[table_id]
                if table is not None:
                    self._tables[table_id] = table
                self._documents[table_id] = document
        return self._tables.get(table_id)
