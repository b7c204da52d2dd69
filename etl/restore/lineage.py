"""Follow tables from a snapshot to a moment: their names and ids, and which belong together.

The request names tables as of the moment. A table that had another name before, or whose rows were
in another table (EXCHANGE PARTITION), is followed back by its id. Since changes are applied by
names, all tables that ever had one of these names come along: those among them that weren't
requested are removed in the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.etl.changes.formats.ddl_partitions import plain_name
from sluice.etl.changes.planning import WindowPayload
from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaReplay
from sluice.etl.changes.rules import is_internal_table
from sluice.relay import WindowRecord
from sluice.tidb import tso
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.folded import folded
from sluice.tidb.history import SYSTEM_SCHEMAS
from sluice.tidb.schema import Schema, Table
from sluice.tidb.table_name import fits, full_name

__all__ = ["Name", "RestoreGroup", "TableLineage", "missing_references", "unmatched"]

Name = tuple[str, str]
"""A schema and a table as they are written upstream."""


@dataclass(frozen=True, slots=True)
class RestoreGroup:
    """The requested tables, and those that they can't be restored without.

    `ids`: of tables and of their predecessors; `names`: all that these had; `ddls`: the DDL about
    them, in order.
    """

    asked: tuple[Table, ...]
    others: tuple[Table, ...]
    """Views, sequences and temporary tables that are asked for."""
    ids: frozenset[int]
    names: frozenset[Name]
    begun: tuple[Table, ...]
    """Tables that were there at the beginning, as they were."""
    ddls: tuple[DdlJob, ...]
    gone: frozenset[int]
    """Those of `ids` of which no row can be there in the end: dropped or truncated between, and
    never exchanged.
    """


class TableLineage:
    """The schema from `since` on, moved on by windows.

    `oldest`: where the log of windows begins (TSO).
    """

    def __init__(
        self,
        since: int,
        oldest: int,
        tables: Iterable[Table] = (),
        schemas: Iterable[Schema] = (),
        problems: Iterable[str] = (),
    ) -> None:
        """Begin with a snapshot's tables and databases.

        Or with none, where the log of windows begins.
        """
        self.since = since
        self.oldest = oldest
        self.problems = list(problems)
        self.ddls: list[DdlJob] = []
        """The DDL with `before`."""
        self.schemas = {schema.id: schema for schema in schemas}
        """Also those that were dropped: tables may have been in one of them before."""
        self._replay = SchemaReplay(since, tables)
        self.begun = dict(self.now)
        """Tables, views and sequences as of `since`, by id."""
        self._names: defaultdict[int, set[Name]] = defaultdict(set)
        self._note(self.begun.values())

    @property
    def now(self) -> dict[int, Table]:
        """Return the tables as of the last window that was followed."""
        return self._replay.tables

    @property
    def unknown(self) -> dict[int, Table]:
        """Tables that existed at `since`, as windows describe them, and that no snapshot holds."""
        return self._replay.unknown

    def follow(self, windows: Iterable[WindowRecord], until: int) -> None:
        """Go on through the windows' DDL up to `until` (TSO).

        Raises RelayGapError, RelayCorruptError.
        """
        for window in windows:
            schema = RecordedSchema.from_window(window)
            self._replay.enter(schema)
            for ddl in self._replay.advance(schema.ddls, until):
                self.ddls.append(ddl)
                self.schemas.update(
                    (i, one) for i, one in ddl.effect.schemas.items() if one is not None
                )
                self._note(table for table in ddl.effect.tables.values() if table is not None)
            if schema.ddls:
                self._check_began(window, until)
        self._note(self.unknown.values())

    def _check_began(self, window: WindowRecord, until: int) -> None:
        for commit_ts, began_ts in (
            WindowPayload.from_window(window, self.since, until).ddl_started_before().items()
        ):
            if began_ts < self.oldest:
                self.problems.append(
                    f"the DDL at commit_ts {commit_ts} began at {tso.text(began_ts)}, before the"
                    " oldest window that is there: which rows it keeps is unknown"
                )

    def _note(self, tables: Iterable[Table]) -> None:
        for table in tables:
            self._names[table.id].add((table.schema_name, table.name))

    def family(self, globs: Sequence[str], without: Container[int] = ()) -> RestoreGroup:
        """Return the tables that fit one of the globs now (() for all), and what they need.

        `without`: ids of tables that don't count as asked for.
        """
        wanted = [
            table
            for table in self.now.values()
            if table.id not in without and _matches_any(table, globs)
        ]
        asked = [table for table in wanted if table.is_base_table]
        ids = self._related_tables({table.id for table in asked})
        return RestoreGroup(
            asked=tuple(sorted(asked, key=lambda table: (table.schema_name, table.name))),
            others=tuple(
                sorted((t for t in wanted if not t.is_base_table), key=lambda t: (t.is_view, t.id))
            ),
            ids=frozenset(ids),
            names=frozenset(name for table_id in ids for name in self._names[table_id]),
            begun=tuple(
                table
                for table_id, table in self.begun.items()
                if table_id in ids and table.is_base_table
            ),
            ddls=tuple(ddl for ddl in self.ddls if not ids.isdisjoint(ddl.effect.tables)),
            gone=frozenset(ids - self.now.keys() - self._exchanged()),
        )

    def _exchanged(self) -> set[int]:
        """Return tables whose rows have become others'."""
        return {
            i
            for ddl in self.ddls
            if ddl.type == Action.EXCHANGE_PARTITION
            for i in ddl.effect.tables
        }

    def _related_tables(self, ids: set[int]) -> set[int]:
        """Return `ids`, and tables that have had one of their names, or their rows."""
        of_name: defaultdict[Name, set[int]] = defaultdict(set)
        for table_id, names in self._names.items():
            for schema, table in names:
                of_name[folded(schema), folded(table)].add(table_id)
        with_rows_of: defaultdict[int, set[int]] = defaultdict(set)
        for ddl in self.ddls:
            if ddl.type == Action.EXCHANGE_PARTITION:
                for table_id in ddl.effect.tables:
                    with_rows_of[table_id].update(ddl.effect.tables)
        found: set[int] = set()
        new = set(ids)
        while new:
            found |= new
            named = {
                other
                for i in new
                for schema, table in self._names[i]
                for other in of_name[folded(schema), folded(table)]
            }
            new = (named | {other for i in new for other in with_rows_of[i]}) - found
        return found


def _matches_any(table: Table, globs: Sequence[str]) -> bool:
    if folded(table.schema_name) in SYSTEM_SCHEMAS or is_internal_table(table.id):
        return False
    return not globs or any(fits(table.full_name, glob) for glob in globs)


def unmatched(globs: Iterable[str], family: RestoreGroup) -> list[str]:
    """Return the globs that no table fits."""
    names = [table.full_name for table in (*family.asked, *family.others)]
    return [glob for glob in globs if not any(fits(name, glob) for name in names)]


def missing_references(family: RestoreGroup) -> Mapping[str, list[str]]:
    """Return, by requested table, the tables of its foreign keys that aren't requested."""
    there = {(folded(table.schema_name), folded(table.name)) for table in family.asked}
    found: dict[str, list[str]] = {}
    for table in family.asked:
        for key in table.foreign_keys:
            schema, name = (
                plain_name(key.get("ref_schema") or table.schema_name),
                plain_name(key["ref_table"]),
            )
            if (folded(schema), folded(name)) not in there:
                found.setdefault(table.full_name, []).append(full_name(schema, name))
    return found
