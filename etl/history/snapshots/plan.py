"""Plan a snapshot: which tables are copied, in which chunks, and which are referred to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.source import RowSource, SourceChunk
from sluice.etl.history.errors import SnapshotError
from sluice.relay.archive import SnapshotTable
from sluice.relay.jobs import JobCounts, TableProgress
from sluice.relay.json_codec import JsonDocument
from sluice.tidb import tso
from sluice.tidb.schema import Schema, Table
from sluice.tidb.table_name import abbreviate

__all__ = ["SnapshotPlan", "plan_of_source"]


@dataclass(frozen=True, slots=True)
class SnapshotPlan(JsonDocument):
    """A snapshot plan; `snapshot`: its name.

    `spec`: the source's, see `sluice.etl.copy.sources`. `tables` have no files unless they are
    `referred` to (full names). `problems` hinder it, `notes` are for people to know.
    """

    JSON_COMPLETE: ClassVar = True

    snapshot: str
    ts: int
    schema_version: int
    cluster_id: int
    made_from: str
    spec: Mapping[str, Any]
    schemas: tuple[Mapping[str, Any], ...]
    tables: tuple[SnapshotTable, ...]
    chunks: tuple[SourceChunk, ...] = ()
    older: str = ""
    referred: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def bytes(self) -> int:
        """About how much there is to read."""
        return sum(chunk.bytes for chunk in self.chunks)

    @property
    def refers_to(self) -> tuple[str, ...]:
        """Return the older snapshots in whose folders referred files lie."""
        return tuple(
            sorted({file.path.split("/")[1] for table in self.tables for file in table.files})
        )

    def definitions(self) -> dict[str, Table]:
        """Return the tables by full name."""
        return {table.full_name: Table.from_json(table.table) for table in self.tables}

    def progress(self, done: Mapping[int, Sequence[Any]]) -> dict[str, TableProgress]:
        """Return what there is to do, and what is done, by table.

        `done`: the numbers of chunks that are written, with what was written.
        """
        found: dict[str, TableProgress] = {}
        for number, chunk in enumerate(self.chunks):
            before = found.get(chunk.full_name, TableProgress())
            after = (
                before.done + counts_of_files(done[number], chunk.bytes)
                if number in done
                else before.done
            )
            found[chunk.full_name] = TableProgress(
                after, before.bytes_in_all + chunk.bytes, before.chunks_in_all + 1
            )
        return found

    def lines(self) -> list[str]:
        """Return the plan for people."""
        copied = sum(
            1 for table in self.tables if Table.from_json(table.table).is_base_table
        ) - len(self.referred)
        found = [
            (
                f"snapshot     as of {self.ts} ({tso.to_datetime(self.ts):%Y-%m-%d %H:%M:%S} UTC),"
                f" from {self.made_from}"
            ),
            (
                f"copy     {copied} tables, about {self.bytes / 1e6:,.1f} MB in {len(self.chunks)}"
                " chunks"
            ),
        ]
        if self.older:
            found.append(
                f"refer    {len(self.referred)} tables that have not changed since the snapshot"
                f" {self.older}"
            )
        return [
            *found,
            *(f"note     {one}" for one in self.notes),
            *(f"stops    {one}" for one in self.problems),
        ]


def counts_of_files(files: Sequence[Any], planned_bytes: int) -> JobCounts:
    """Return what the files of a chunk count for in the job's progress."""
    return JobCounts(
        sum(file.rows for file in files), sum(file.row_bytes for file in files), 1, planned_bytes
    )


def plan_of_source(
    name: str,
    source: RowSource,
    definitions: SourceSchema,
    cluster_id: int,
    unchanged: Mapping[str, SnapshotTable],
) -> SnapshotPlan:
    """Return the plan of a snapshot `name` of all that a source holds.

    `definitions`: the upstream's schema at its position; `unchanged`: tables of an older snapshot
    that are referred to. Raises CopyError if there can't be a plan.
    """
    known = definitions.of_users()
    held = {estimate.full_name for estimate in source.tables()}
    problems = _table_mismatches(source, known, held)
    tables: list[SnapshotTable] = []
    chunks: list[SourceChunk] = []
    # Wide tables first: narrow ones may not show what separates their fields.
    for table in sorted(known.tables, key=lambda table: -len(table.writable_columns)):
        before = unchanged.get(table.full_name)
        tables.append(before or table_of(table))
        if before is None and table.is_base_table and table.full_name in held:
            try:
                source.check_schema(table)
                chunks += source.chunks(table)
            except CopyError as error:
                problems.append(str(error))
    tables.sort(key=lambda table: (table.schema, table.name))
    return SnapshotPlan(
        name, source.position, known.schema_version, cluster_id, source.describe(), source.spec(),
        schemas_of(known.schemas), tuple(tables), tuple(chunks), problems=tuple(problems),
        referred=tuple(sorted(unchanged)),
    )  # fmt: skip


def table_of(table: Table) -> SnapshotTable:
    """Return a table of a snapshot, without rows."""
    return SnapshotTable(table.schema_name, table.name, table.to_json())


def schemas_of(schemas: Sequence[Schema]) -> tuple[Mapping[str, Any], ...]:
    """Return databases as a snapshot has them."""
    return tuple(schema.to_json() for schema in schemas)


def with_files(
    plan: SnapshotPlan, written: Mapping[int, Sequence[Any]]
) -> tuple[SnapshotTable, ...]:
    """Return the plan's tables with all chunks' files. Raises SnapshotError if one is missing."""
    files: dict[str, list[Any]] = {}
    for number, chunk in enumerate(plan.chunks):
        if number not in written:
            raise SnapshotError(f"chunk {number} of {plan.snapshot} ({chunk}) was not written")
        files.setdefault(chunk.full_name, []).extend(written[number])
    return tuple(
        replace(table, files=(*table.files, *files.get(table.full_name, ())))
        for table in plan.tables
    )


def _table_mismatches(source: RowSource, known: SourceSchema, held: set[str]) -> list[str]:
    """Return the upstream tables that the source lacks, and those that are unknown upstream."""
    tables = {table.full_name for table in known.tables if table.is_base_table}
    found = []
    if missing := sorted(tables - held):
        found.append(
            f"{source.describe()} doesn't hold {abbreviate(missing)}: a snapshot has all tables,"
            " or a restore would lack what was in them. Dump all of them, or make the snapshot from"
            " TiDB"
        )
    if unknown := sorted(held - tables):
        found.append(
            f"the upstream had no {abbreviate(unknown)} at {known.ts}: is {source.describe()} of"
            " another cluster?"
        )
    return found
