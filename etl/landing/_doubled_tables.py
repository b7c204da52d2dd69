"""Know in which windows TiDB may have written a table's rows twice, reorganizing partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.landing._job import TableSpan
from sluice.tidb.ddl_actions import WRITES_TWICE
from sluice.tidb.ddl_schema_versions import LONGEST_STATEMENT


class DoubledTables:
    """The tables that jobs of WRITES_TWICE reorganize, from first schema version to their end."""

    def __init__(self, doubled: Mapping[int, bool]) -> None:
        """Create the doubled tables.

        `doubled`: by table id, whether row ids differ; as in the last window record.
        """
        self._doubled = {table_id: (0, differ) for table_id, differ in doubled.items()}
        """A schema version of a job that isn't over, and whether row ids differ, by table id."""
        self._finished: dict[int, int] = {}
        """The newest schema version whose DDL the window has, by table id."""

    def add_version(
        self, version: int, diff: Mapping[str, Any], changed_at: Mapping[int, int]
    ) -> None:
        """Record a schema version. `changed_at`: the version of each table's last landed DDL."""
        table_id = int(diff.get("old_table_id") or diff.get("table_id") or 0)
        if int(diff.get("type") or 0) in WRITES_TWICE and version > changed_at.get(table_id, 0):
            self._doubled[table_id] = version, self._doubled.get(table_id, (0, False))[1]

    def begin_window(self) -> None:
        """Forget the DDL of the last window."""
        self._finished = {}

    def finish(self, table_ids: Iterable[int], version: int) -> None:
        """Record that the window has DDL of tables, which took a schema version."""
        self._finished |= dict.fromkeys(table_ids, version)

    def written_twice(
        self, spans: Mapping[int, TableSpan], finished_ts: Mapping[int, int]
    ) -> frozenset[int]:
        """Return the tables of a window of which TiDB may have written rows twice.

        `finished_ts`: by table id the TSO at which the last job of WRITES_TWICE ended. A statement
        that began before it may still commit.
        """
        return frozenset(
            table_id
            for table_id, span in spans.items()
            if table_id in self._doubled
            or (
                table_id in finished_ts
                and span.first_commit_ts <= finished_ts[table_id] + LONGEST_STATEMENT
            )
        )

    def describe(self, described: RecordedSchema, differ: Collection[int]) -> RecordedSchema:
        """Return a window's schema with the tables that are still reorganized behind it.

        `differ`: tables of which the window has copies with other hidden row ids. The DDL that ends
        such a job is marked.
        """
        for table_id in differ:
            self._doubled[table_id] = self._doubled.get(table_id, (0, False))[0], True
        marked = {table_id for table_id, (_, is_differing) in self._doubled.items() if is_differing}
        ddls = tuple(
            replace(ddl, row_ids_differ=True)
            if ddl.type in WRITES_TWICE and not marked.isdisjoint(ddl.effect.tables)
            else ddl
            for ddl in described.ddls
        )
        self._doubled = {
            i: state for i, state in self._doubled.items() if self._finished.get(i, -1) < state[0]
        }
        return replace(
            described, ddls=ddls, doubled={i: state[1] for i, state in self._doubled.items()}
        )
