"""Create the databases, tables, indexes, foreign keys and views of a copy, in a safe order.

They are removed when the copy is given up. What is there already is taken as made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.changes.rules import Filter, Routes
from sluice.etl.copy.chunk_loader import count_rows, generated_downstream
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.plan import CopyPlan, PlannedTable, without_values
from sluice.etl.copy.sources import BootstrapSpec
from sluice.etl.copy.statements import (
    add_indexes_and_keys,
    bare_table,
    create_object,
    create_schema,
    scoped_statement,
)
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.ddl import ALREADY_EXISTS, DdlExecutor
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table
from sluice.tidb.table_name import full_name

__all__ = ["TableCreator"]

log = logging.getLogger("sluice.copy")

OnActivity = Callable[[str], None]
"""Called with what comes next, in a few words; may raise what ends the work there."""
AddIndexes = Callable[[PlannedTable, int, Callable[[], None]], None]
"""Called with a table, the bytes that are copied in about the time, and what makes its indexes."""


class TableCreator:
    """Create what a copy needs downstream beside rows. Methods raise DdlError, DownstreamError."""

    indexes_after_bytes = 32 << 20
    """Size from which on tables get secondary indexes after their rows.

    See docs/decisions/0117-indexes-after-rows.md.
    """

    def __init__(
        self,
        session: MySQLSession,
        rules: tuple[Filter, Routes],
        plan: CopyPlan,
        asked: BootstrapSpec,
    ) -> None:
        self._session = session
        self._executor = DdlExecutor(session)
        self._filters, self._routes = rules
        self._plan = plan
        self._asked = asked
        self.warnings: list[str] = []
        """Warnings for people."""

    def create(self, definitions: SourceSchema, doing: OnActivity) -> None:
        """Create databases, and tables without what is better made after their rows.

        Raises CopyError for columns that the downstream would have to compute and doesn't.
        """
        names = {planned.table.schema_name for planned in self._plan.tables}
        for schema in definitions.schemas:
            if self._filters.wants_schema(schema.name) and (
                schema.name in names or not self._asked.tables
            ):
                self._execute(create_schema(schema, self._plan.ts))
        for place, planned in enumerate(self._plan.tables):
            doing("creating tables")
            bare = (
                planned.table
                if planned.merged
                else bare_table(planned.table, indexes=self._indexes_after(planned))
            )
            self._execute(create_object(bare, self._plan.ts))
            # else it has no rows, and replication brings all there will be
            if place in self._plan.of_table:
                self._check_computed(planned)

    def index_work(self, planned: PlannedTable) -> int:
        """Return about how many bytes are copied in the time that the later indexes take.

        MariaDB took a quarter of the table's time for an index on one of four columns, and half for
        one on its longest. The columns' widths aren't known.
        """
        if planned.merged or not self._indexes_after(planned):
            return 0
        kept = bare_table(planned.table, indexes=True).indexes
        width = max(len(planned.table.columns), 1)
        later = [index for index in planned.table.indexes if index not in kept]
        return round(planned.bytes * sum(0.25 + 0.5 * len(it.columns) / width for it in later))

    def add_indexes(self, definitions: SourceSchema, add: AddIndexes) -> None:
        """Create indexes, then foreign keys, and last what keeps no rows.

        `add` gets a table, about what its statement takes (`index_work`), and what executes it.
        """
        for what in (0, 1):  # every index before the first foreign key
            for planned in self._plan.tables:
                bare = bare_table(planned.table, indexes=self._indexes_after(planned))
                steps = (
                    []
                    if planned.merged
                    else add_indexes_and_keys(bare, planned.table, self._plan.ts)
                )
                for step in steps:
                    if (step.type == steps[0].type and bare.indexes != planned.table.indexes) == (
                        what == 0
                    ):
                        work = self.index_work(planned) if what == 0 else 0
                        add(planned, work, partial(self._execute, step))
        for table in self._others(definitions):
            self._execute(create_object(table, self._plan.ts))

    def take_back(self, rows: Mapping[tuple[str, str], int], doing: OnActivity) -> list[str]:
        """Drop the tables that hold the copied rows alone, and no other one.

        What stays, in words. `rows`: how many were copied, by schema and table downstream.
        """
        self._session.execute("SET SESSION foreign_key_checks = 0")
        stays = []
        for schema, name in dict.fromkeys(
            (planned.schema, planned.name) for planned in self._plan.tables
        ):
            doing(f"removing {full_name(schema, name)}")
            there = self._existing_rows(schema, name)
            if there is None:
                continue
            if there != rows.get((schema, name), 0):
                stays.append(
                    f"{full_name(schema, name)} has {there} rows, of which"
                    f" {rows.get((schema, name), 0)} were copied: another program wrote there"
                )
                continue
            self._session.query(f"DROP TABLE {quote_name(schema)}.{quote_name(name)}")
        return stays

    def expected(self, there: Mapping[int, int]) -> dict[tuple[str, str], int]:
        """Return how many rows each downstream table has if it has those of these chunks."""
        found: dict[tuple[str, str], int] = {}
        for number, rows in there.items():
            planned = self._plan.tables[self._plan.of_table[number]]
            found[planned.schema, planned.name] = (
                found.get((planned.schema, planned.name), 0) + rows
            )
        return found

    def _existing_rows(self, schema: str, name: str) -> int | None:
        found = self._session.query(
            "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (schema, name),
        )
        return count_rows(self._session, schema, name) if found else None

    def _others(self, definitions: SourceSchema) -> list[Table]:
        """Return the views, sequences and temporary tables that the rules want.

        DDL behind the copy may name each of them.
        """
        if self._asked.tables:
            return []
        found = [
            table
            for table in definitions.tables
            if not table.is_base_table and self._filters.wants_table(table.schema_name, table.name)
        ]
        return sorted(found, key=lambda table: (table.is_view, table.id))

    def _check_computed(self, planned: PlannedTable) -> None:
        """Check that generated columns which the source hasn't are computed downstream.

        These are columns that rows bring in replication.
        """
        stored = (column.name for column in planned.table.stored_columns if column.generated)
        wanted = [name for name in stored if name not in planned.brought]
        if not wanted:
            return
        computed = generated_downstream(self._session, planned)
        if plain := [name for name in wanted if folded(name) not in computed]:
            raise CopyError(without_values(planned.table, plain))

    def _execute(self, ddl: DdlJob) -> None:
        wanted = scoped_statement(ddl, self._filters, self._routes)
        if wanted is None:
            return
        self._executor.fingerprint(wanted)  # makes the databases that routes need
        for warning in self._executor.execute(wanted):
            if not warning.endswith(ALREADY_EXISTS):  # a process before this one has made it
                log.info("%s: %s", ddl.query, warning)
                self.warnings.append(warning)
        self._session.commit()

    def _indexes_after(self, planned: PlannedTable) -> bool:
        return planned.bytes >= self.indexes_after_bytes
