"""Convert the schemas in a window record between JSON and TiDB's types, and replay them.

The relay log stores these parts of a record unread, since it knows nothing of TiDB. Landing writes
them; planning, the takeover and all that reads the past read them. `SchemaTimeline` answers within
one window, `SchemaReplay` across windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sluice.relay import WindowRecord
from sluice.tidb.ddl_job import DdlJob, FinishedRowMove
from sluice.tidb.id_maps import tables_by_id, to_json
from sluice.tidb.schema import Schema, Table

T = TypeVar("T", Schema, Table)
_RECORD_KEYS = (
    "tables",
    "ddls",
    "truncated_tables",
    "schema_version",
    "moved",
    "relaxed",
    "doubled",
)


@dataclass(frozen=True, slots=True)
class RecordedSchema:
    """The tables of a window, and the DDL in it."""

    tables: Mapping[int, Table | None]
    """Every table, as of lo, whose rows are inside or that a DDL inside touches, if it existed."""
    ddls: tuple[DdlJob, ...]
    """Ascending commit_ts."""
    truncated_tables: tuple[int, ...]
    """Ids of tables truncated before, whose rows inside are to be dropped."""
    schema_version: int
    """After the DDL."""
    moved: tuple[FinishedRowMove, ...] = ()
    """DDL before lo that some of the rows inside don't know of."""
    relaxed: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Tables with unique indexes, by id, which the upstream enforces no longer.

    () where it does, but for rows of partitions that are about to be dropped.
    """
    doubled: Mapping[int, bool] = field(default_factory=dict)
    """True if TiDB has written rows twice under different hidden row ids, by table id.

    The tables are those that a job reorganizes behind the window.
    """

    @classmethod
    def from_window(cls, window: WindowRecord) -> RecordedSchema:
        """Read a record. Tables are parsed on first use."""
        return cls.from_json({name: getattr(window, name) for name in _RECORD_KEYS})

    def write_to(self, window: WindowRecord) -> WindowRecord:
        """Return the record with this schema in place of its own."""
        document = self.to_json()
        lists = {name: tuple(document[name]) for name in ("ddls", "truncated_tables", "moved")}
        return replace(window, **document | lists)

    def through(self, hi: int) -> RecordedSchema:
        """Return the schema of the part of a window that ends at `hi` (TSO)."""
        later = [ddl.schema_version for ddl in self.ddls if ddl.commit_ts > hi]
        if not later:
            return self
        return replace(
            self,
            ddls=tuple(ddl for ddl in self.ddls if ddl.commit_ts <= hi),
            schema_version=max(
                [min(later) - 1, *(ddl.schema_version for ddl in self.ddls if ddl.commit_ts <= hi)]
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the parts by their names in a window record."""
        return {
            "tables": to_json(self.tables),
            "ddls": [ddl.to_json() for ddl in self.ddls],
            "truncated_tables": list(self.truncated_tables),
            "schema_version": self.schema_version,
            "moved": [move.to_json() for move in self.moved],
            "relaxed": {str(table_id): list(indexes) for table_id, indexes in self.relaxed.items()},
            "doubled": {str(table_id): differ for table_id, differ in self.doubled.items()},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RecordedSchema:
        """Read what `to_json` has written."""
        return cls(
            tables_by_id(document["tables"]),
            tuple(DdlJob.from_json(ddl) for ddl in document["ddls"]),
            tuple(int(table_id) for table_id in document["truncated_tables"]),
            int(document["schema_version"]),
            tuple(FinishedRowMove.from_json(move) for move in document["moved"]),
            {int(key): tuple(map(int, indexes)) for key, indexes in document["relaxed"].items()},
            {int(key): bool(differ) for key, differ in (document.get("doubled") or {}).items()},
        )


class SchemaTimeline:
    """The tables of a window as they were at any commit timestamp in it.

    Tables are parsed when they are looked at.
    """

    def __init__(self, schema: RecordedSchema) -> None:
        self._moved = [move.before for move in schema.moved]
        self._steps: list[tuple[int, Mapping[int, Table | None]]] = [(-1, schema.tables)]
        self._steps += [(ddl.commit_ts, ddl.effect.tables) for ddl in schema.ddls]

    @classmethod
    def from_window(cls, window: WindowRecord) -> SchemaTimeline:
        """Read a record."""
        return cls(RecordedSchema.from_window(window))

    def find(self, table_id: int, commit_ts: int) -> Table | None:
        """Return the table that rows committed at `commit_ts` belong to.

        None if the window doesn't have it.
        """
        found = None
        for after_ts, tables in self._steps:
            if after_ts < commit_ts and table_id in tables:
                found = tables[table_id]
        return found

    def reads(self, table_id: int, commit_ts: int) -> Table | None:
        """Return the table by which rows committed at `commit_ts` are read.

        None if the window doesn't have it. Rows that come behind the DDL that took the id of their
        table away are read by the last one with that id.
        """
        found = None
        for tables in self._moved:
            found = tables.get(table_id) or found
        for after_ts, tables in self._steps:
            if after_ts < commit_ts:
                found = tables.get(table_id) or found
        return found

    def before(self, ddl: DdlJob) -> dict[int, Table]:
        """Return the tables that a DDL of the window changes as they were, by id.

        Without those that weren't there.
        """
        found = ((table_id, self.find(table_id, ddl.commit_ts)) for table_id in ddl.effect.tables)
        return {table_id: table for table_id, table in found if table is not None}

    def changed_at(self, table_id: int) -> list[int]:
        """Return the commit timestamps of the DDL that changed a table, ascending."""
        return [after_ts for after_ts, tables in self._steps[1:] if table_id in tables]


class SchemaReplay:
    """Move a schema on from a timestamp, window by window and DDL by DDL.

    The caller takes windows in the order of the log: `enter`, then `advance`. A window may begin
    before the position. Only DDL changes a table that is known: descriptions of it in later windows
    don't count.
    """

    def __init__(
        self,
        since: int,
        tables: Iterable[Table] = (),
        schemas: Iterable[Schema] = (),
        schema_version: int = 0,
    ) -> None:
        """Begin with the tables and databases that are known as of `since` (TSO)."""
        self.at = since
        """The position (TSO): DDL through it has been applied."""
        self.tables = {table.id: table for table in tables}
        """The tables, views and sequences there are at the position, by id."""
        self.schemas = {schema.id: schema for schema in schemas}
        """The databases at the position, of those that were known or that DDL changed, by id."""
        self.schema_version = schema_version
        self.unknown: dict[int, Table] = {}
        """Tables the caller didn't know, as windows first described them, by id."""

    def enter(self, schema: RecordedSchema) -> None:
        """Add unknown tables that a window describes, as they are at the position."""
        described = dict(schema.tables)
        for ddl in schema.ddls:
            if ddl.commit_ts <= self.at:
                described.update(ddl.effect.tables)
        for table_id, table in described.items():
            if table is not None and table_id not in self.tables:
                self.unknown[table_id] = self.tables[table_id] = table

    def advance(self, ddls: Iterable[DdlJob], until: int) -> Iterator[DdlJob]:
        """Apply the DDL behind the position through `until` (TSO), and yield each with `before`.

        While the caller has a DDL, the position is in front of it. DDL that the caller doesn't
        take isn't applied.
        """
        for ddl in ddls:
            if self.at < ddl.commit_ts <= until:
                yield replace(
                    ddl, before={i: self.tables[i] for i in ddl.effect.tables if i in self.tables}
                )
                _update(self.tables, ddl.effect.tables)
                _update(self.schemas, ddl.effect.schemas)
                self.schema_version = max(self.schema_version, ddl.schema_version)
                self.at = ddl.commit_ts


def _update(there: dict[int, T], effect: Mapping[int, T | None]) -> None:
    for each_id, left in effect.items():
        if left is None:
            there.pop(each_id, None)
        else:
            there[each_id] = left
