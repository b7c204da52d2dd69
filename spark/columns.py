"""Give a table's changes the columns of one definition, whatever DDL came before or after."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaTimeline
from sluice.etl.copy.snapshot_source import SnapshotSource
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.history.lake import LakeLayout, lake_columns
from sluice.relay import WindowRecord
from sluice.relay.archive import Archive
from sluice.spark.query import ChangesError
from sluice.tidb import tso
from sluice.tidb.folded import folded
from sluice.tidb.id_maps import names_by_id
from sluice.tidb.schema import Table
from sluice.tidb.table_name import TableName

__all__ = ["ChangeColumns", "find_table", "ids_named", "is_named"]


def find_table(past: HistoryLog, name: TableName, until: int) -> Table:
    """Return the table of that name as it is at `until` (TSO), or was when it was last there.

    Raises ChangesError if nothing that is there describes it, relay errors.
    """
    snapshot = Archive.open(past.settings.archive_url).snapshots.latest(until)
    known = None
    if snapshot is not None:
        source = SnapshotSource.from_snapshot(past.settings.archive_url, snapshot)
        tables = source.definitions().tables
        known = next((t for t in tables if is_named(t.schema_name, t.name, name)), None)
    for stretch in reversed(past.ranges(0, until)):
        for window in stretch.log.backwards(stretch.until, stretch.since):
            # What a window describes is newer than the snapshot only if it lies behind it.
            if known is not None and snapshot is not None and window.hi <= snapshot.ts:
                return known
            if (table := _described(window, name, until)) is not None:
                return table
    if known is not None:
        return known
    raise ChangesError(
        f"no change and no DDL of a table {name} is known through {tso.text(until)}",
        hint="write SCHEMA.TABLE as TiDB shows it, and look at `sluice find --table`",
    )


def _described(window: WindowRecord, name: TableName, until: int) -> Table | None:
    if not window.tables and not window.ddls:
        return None
    schema = RecordedSchema.from_window(window)
    timeline = SchemaTimeline(schema)
    for table_id in ids_named(schema, name):
        table = timeline.find(table_id, min(window.hi, until) + 1)
        if table is not None and is_named(table.schema_name, table.name, name):
            return table
    return None


def ids_named(schema: RecordedSchema, name: TableName) -> set[int]:
    """Return the ids of the tables of a window that have the name at some moment in it."""
    described = (schema.tables, *(ddl.effect.tables for ddl in schema.ddls))
    return {
        table_id
        for tables in described
        for table_id, schema_name, table in names_by_id(tables)
        if is_named(schema_name, table, name)
    }


def is_named(schema: str, table: str, name: TableName) -> bool:
    """Return whether a table has the name, upper and lower case aside, as in TiDB."""
    return (folded(schema), folded(table)) == (folded(name.schema), folded(name.table))


@dataclass(frozen=True, slots=True)
class ChangeColumns:
    """The columns in which changes are returned.

    `schema`: Spark's. `table`: the definition that it comes from, as of `table_ts` (TSO); None if
    the user gave the schema, which then is matched by names alone.
    """

    schema: StructType
    table: Table | None = None
    table_ts: int = 0
    arrow: pa.Schema = field(init=False)
    """The same for Arrow, as Spark expects it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrow", to_arrow_schema(self.schema, timezone="UTC"))

    def __reduce__(self) -> tuple[Any, ...]:
        return ChangeColumns, (self.schema, self.table, self.table_ts)

    @classmethod
    def of_table(cls, table: Table, table_ts: int) -> ChangeColumns:
        """Return the columns of a table as of `table_ts`: the lake's, under its names."""
        schema = from_arrow_schema(LakeLayout.for_table(table).schema, prefer_timestamp_ntz=True)
        return cls(schema, table, table_ts)

    def sources(self, layout: LakeLayout, table: Table) -> dict[str, str]:
        """Return which column of a definition's rows each wanted one is taken from, by name.

        A renamed column is found by its id, any other by its name.
        """
        found = {column.name: column.name for column in layout.columns}
        if self.table is not None:
            now = {column.name: column.id for column in self.table.stored_columns}
            then = {column.id: column.name for column in table.stored_columns}
            lake_names = {column.source: column.name for column in layout.columns}
            for column in lake_columns(self.table):
                # The hidden row id has no column id, and always the same name.
                was = then.get(now.get(column.source, -1))
                if was is not None:
                    found[column.name] = lake_names[was]
        found |= {name: name for name in _OWN.names}
        return {name: found[name] for name in self.schema.names if name in found}

    def check_newer(self, table: Table, commit_ts: int) -> None:
        """Check that a definition which holds at `commit_ts` (TSO) has no column beyond these.

        Raises ChangesError where DDL behind `table_ts` has added some: their values would be lost.
        """
        if self.table is None or commit_ts <= self.table_ts:
            return
        layout = LakeLayout.for_table(table)
        shown = set(self.sources(layout, table).values())
        if added := sorted({column.name for column in layout.columns} - shown):
            raise ChangesError(
                f"{table.full_name} has other columns at commit ts {commit_ts} than when the query"
                f" began: {', '.join(added)}",
                hint="start the query again from its checkpoint: it takes the new columns up",
            )

    def fit(self, rows: pa.Table, table: Table, layout: LakeLayout) -> pa.Table:
        """Return rows of the lake in these columns; null for those that their definition lacks.

        Raises ChangesError for a column whose values can't become the wanted type.
        """
        sources = self.sources(layout, table)
        arrays = []
        for entry in self.arrow:
            source = sources.get(entry.name)
            if source is None:
                arrays.append(pa.nulls(rows.num_rows, entry.type))
                continue
            try:
                arrays.append(_converted(rows[source].combine_chunks(), entry.type))
            except pa.ArrowInvalid as error:
                raise ChangesError(
                    f"{table.full_name}: values of {source} were {rows.schema.field(source).type},"
                    f" and don't fit {entry.type}: {error}",
                    hint=f"load with .schema(…) in which {entry.name} is a STRING",
                ) from error
        return pa.Table.from_arrays(arrays, schema=self.arrow)


_OWN = LakeLayout(0, ()).schema
"""The columns that the lake adds to a table's own."""


def _converted(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    held = values.type
    if held == wanted or _are_numbers(held, wanted) or pa.types.is_map(held):
        return values.cast(wanted)
    if pa.types.is_string(wanted) and not pa.types.is_binary(held):
        return values.cast(wanted)
    raise pa.ArrowInvalid(f"{held} isn't converted to {wanted}")


def _are_numbers(*kinds: pa.DataType) -> bool:
    return all(
        pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_floating(kind)
        for kind in kinds
    )
