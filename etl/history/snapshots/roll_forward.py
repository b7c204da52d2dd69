"""Roll an older snapshot forward with the archive, by Spark, group of tables by group of tables.

It needs no database. The schema comes from DDL in the archive's windows; the rows are computed as
for `sluice as-of`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sluice.etl.changes.recorded_schema import SchemaReplay
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.source import SourceChunk
from sluice.etl.display_units import counted
from sluice.etl.history.as_of import TimeTravelQuery, tables_as_of
from sluice.etl.history.errors import SnapshotError
from sluice.etl.history.snapshots.plan import SnapshotPlan, schemas_of, table_of
from sluice.etl.history.snapshots.request import ARCHIVE
from sluice.etl.history.snapshots.reuse import unchanged_tables
from sluice.etl.settings import Settings
from sluice.relay import WindowRecord
from sluice.relay.archive import ArchiveSnapshot, SnapshotFile
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Schema, Table
from sluice.tidb.table_name import exactly, full_name

__all__ = [
    "ROLL_GROUP_BYTES",
    "definitions_after",
    "roll_forward",
    "roll_forward_plan",
    "tables_at",
]

ROLL_GROUP_BYTES = 512 << 20
"""Bytes of the tables that are computed together: each time the changes of all of them are read."""

QueryTables = Callable[[Sequence[str]], TimeTravelQuery]
"""Tables (names as `tables_as_of` takes them) at the moment of the new snapshot."""


def roll_forward_plan(
    name: str, older: ArchiveSnapshot, definitions: SourceSchema, changed: set[int]
) -> SnapshotPlan:
    """Return the plan of a snapshot `name` as of `definitions`.

    `changed`: ids of tables that differ from the older one. There is a chunk for each table that is
    computed.
    """
    unchanged = unchanged_tables(older, definitions.tables, changed)
    sizes = {table.full_name: table.row_bytes for table in older.tables}
    chunks = [
        SourceChunk(
            table.schema_name,
            table.name,
            0,
            {"as_of": definitions.ts},
            sizes.get(table.full_name, 0),
        )
        for table in definitions.tables
        if table.is_base_table and table.full_name not in unchanged
    ]
    tables = tuple(
        unchanged.get(table.full_name) or table_of(table) for table in definitions.tables
    )
    return SnapshotPlan(
        name,
        definitions.ts,
        definitions.schema_version,
        older.cluster_id,
        f"the snapshot {older.id} and the archive",
        {"kind": ARCHIVE, "older": older.id},
        schemas_of(definitions.schemas),
        tables,
        tuple(chunks),
        older.id,
        tuple(sorted(unchanged)),
    )


def definitions_after(
    older: ArchiveSnapshot, windows: Iterable[WindowRecord], ts: int
) -> SourceSchema:
    """Return the schema at `ts` (TSO): the snapshot's with the DDL behind it.

    `windows` are those in between, without a hole. Raises SnapshotError if transactions were left
    out of them.
    """
    replay = SchemaReplay(
        older.ts,
        (Table.from_json(one.table) for one in older.tables),
        map(Schema.from_json, older.schemas),
        older.schema_version,
    )
    for window in windows:
        if skipped := [entry for entry in window.skipped if older.ts < entry["commit_ts"] <= ts]:
            raise SnapshotError(
                f"the transaction committed at {skipped[0]['commit_ts']} isn't in the archive, as"
                f" an operator had it left out: {skipped[0]['why']}",
                hint="make the snapshot from TiDB: it holds what the transaction did",
            )
        for _ in replay.advance(map(DdlJob.from_json, window.ddls), ts):
            pass
    found = SourceSchema(
        ts, replay.schema_version,
        tuple(sorted(replay.schemas.values(), key=lambda schema: schema.name)),
        tuple(sorted(replay.tables.values(), key=lambda table: (table.schema_name, table.name))),
    )  # fmt: skip
    return found.of_users()


def tables_at(settings: Settings, ts: int) -> QueryTables:
    """Return tables as of `ts` (TSO), by Spark."""
    return lambda names: tables_as_of(settings, ts, names, shows_values=False)


def roll_forward(
    read: QueryTables,
    on_file: Callable[[str, SnapshotFile], None] = lambda name, file: None,
    doing: Callable[[str], None] = lambda what: None,
) -> Callable[[Sequence[str]], list[str]]:
    """Return a function for orders of `sluice.etl.history.snapshots.chunk_writer.chunk_order`.

    `on_file` is called with each file that a table gets, `doing` with what is computed. Raises
    SnapshotError, AsOfError, relay errors, SparkError.
    """

    def make(texts: Sequence[str]) -> list[str]:
        orders = [json.loads(text) for text in texts]
        tables = {full_name(o["chunk"]["schema"], o["chunk"]["table"]): o for o in orders}
        first, more = next(iter(tables)), len(tables) - 1
        doing(f"computing {first}" + (f" and {counted(more, 'more table')}" if more else ""))
        past = read([exactly(name) for name in tables])
        if missing := sorted(tables.keys() - past.tables.keys()):
            raise SnapshotError(
                f"the archive knows no table {', '.join(missing[:5])} at that moment"
            )
        (folder,) = {order["folder"].rpartition("/")[0] for order in orders}
        files = past.files(folder, on_file)
        return [_written_text(order, files[name]) for name, order in tables.items()]

    return make


def _written_text(order: dict[str, Any], files: Sequence[Any]) -> str:
    return json.dumps({"number": order["number"], "files": [file.to_json() for file in files]})
