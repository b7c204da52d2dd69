"""Describe the rows that changes leave behind, as conditions on the tables downstream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.etl.changes.formats.sql_columns import display_text, row_conditions
from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.changes.masks import masked_changes
from sluice.etl.changes.planning import (
    PartitionMove,
    marked_changes,
    move_of,
    partition_of,
    relocate,
    selected_changes,
)
from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaTimeline
from sluice.etl.changes.rules import ReplicationRules, is_internal_table, with_stored_mark
from sluice.etl.changes.steps import ChangeError
from sluice.etl.changes.write_plans.identity import identity, lookup_key_columns
from sluice.etl.changes.write_plans.raw_changes import Images, RawChanges, decode
from sluice.etl.downstream import MySQLSession
from sluice.relay import DELETE, INSERT, SKIP, UPDATE, RelayLog, WindowRecord, is_named
from sluice.tidb.codec.row import column_ids
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table

_COLUMNS = (
    "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
)


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A table's quoted name downstream, and the names of its columns there by column id."""

    name: str
    columns: Mapping[int, str]

    def conditions(self, columns: Sequence[Column], images: Images) -> list[bytes]:
        """Return one condition a row: true for rows with these values in the columns that exist."""
        there = [
            (replace(c, name=self.columns[c.id]), images[c.name])
            for c in columns
            if c.id in self.columns
        ]
        if not there:
            return [b"TRUE"] * len(next(iter(images.values())))
        found: list[bytes] = row_conditions(
            [c for c, _ in there], [image for _, image in there]
        ).to_pylist()
        return found


@dataclass(frozen=True, slots=True)
class ExpectedRow:
    """A row as a change leaves it."""

    downstream_identity: tuple[Any, ...]
    """Equal for changes of one row downstream."""
    upstream_identity: tuple[Any, ...]
    """Equal for changes of one row upstream, whatever its key becomes."""
    place: TableLocation
    key: bytes | None
    """A condition that is true for this row alone, None if only all values together identify it."""
    image: bytes | None
    """A condition that is true for rows with its values, None if the change removes it."""
    removed: bytes | None
    """The condition for its values before it was removed, None if they aren't known."""
    table: Table
    images: Images
    at: int
    """Number of the row among `images`."""

    def may_disappear_with(self, move: PartitionMove) -> bool:
        """Return whether it lies in a partition that a DDL drops. Raises PartitionError."""
        if self.table.id != move.table.id or self.image is None:
            return False
        values = {name: image[self.at].as_py() for name, image in self.images.items()}
        return partition_of(move.table, values) in move.partitions

    @property
    def description(self) -> str:
        """Return table and key, for messages."""
        key = ", ".join(
            f"{c.name}={display_text(self.images[c.name], self.at)!r:.60}"
            for c in lookup_key_columns(self.table)
        )
        return f"{self.table.full_name}, {f'key {key}' if key else 'a table without a key'}"


class TableLocations:
    """Locate tables downstream after the DDL that leaves `tables` (None: dropped) has run."""

    def __init__(
        self, session: MySQLSession, rules: ReplicationRules, tables: Mapping[int, Table | None]
    ) -> None:
        self._session, self._rules, self._tables = session, rules, tables
        self._known: dict[int, TableLocation | None] = {}

    def locate(self, table: Table) -> TableLocation | None:
        """Locate `table`, given as of any moment before.

        None if it was dropped with all its rows.
        """
        if table.id not in self._known:
            last = self._tables.get(table.id, table)
            self._known[table.id] = self._load(last) if last is not None else None
        return self._known[table.id]

    def _load(self, table: Table) -> TableLocation:
        goal = self._rules.routes.target(table.schema_name, table.name)
        there = {
            folded(str(name))
            for (name,) in self._session.query(_COLUMNS, (goal.schema, goal.table))
        }
        columns = self._rules.shaped(table).columns
        names = {column.id: column.name for column in columns if folded(column.name) in there}
        return TableLocation(f"{quote_name(goal.schema)}.{quote_name(goal.table)}", names)


class ExpectedRows:
    """Compute the rows that windows leave, given in order, and the DDL that drops partitions."""

    def __init__(
        self,
        relay: RelayLog,
        rules: ReplicationRules,
        places: TableLocations,
        after: int,
        until: int,
    ) -> None:
        """Compute what commits after `after` through `until` (TSO) leave."""
        self._relay, self._rules, self._locations = relay, rules, places
        self._after, self._until = after, until
        self._moves: dict[int, PartitionMove] = {}
        self._dropped: set[int] = set()
        """Ids of tables that were dropped or truncated."""

    def for_window(self, window: WindowRecord) -> list[tuple[int, ExpectedRow | PartitionMove]]:
        """Return, in order, (commit ts, the row that a change leaves or the partitions that go).

        Raises RowDecodeError, PartitionError, and ChangeError for a table that no window describes.
        """
        schema = RecordedSchema.from_window(window)
        known, left = SchemaTimeline(schema), list[tuple[int, ExpectedRow | PartitionMove]]()
        self._dropped.update(schema.truncated_tables)
        for past in schema.moved:
            self._record_move(move_of(past))
        changes = self._relay.read([window])
        decided = self._relay.overrides.list(window.lo)
        skipped = {each.named for each in decided if each.action == SKIP} | self._rules.ignored_ts
        stamps, done = changes["commit_ts"].to_numpy(), 0
        for ddl in schema.ddls:
            before = int(np.searchsorted(stamps, ddl.commit_ts))
            left += self._of_changes(changes.slice(done, before - done), known, skipped)
            move = self._record_move(move_of(ddl.past_move(known.before(ddl))))
            if move is not None and move.drops and self._after < ddl.commit_ts <= self._until:
                left.append((ddl.commit_ts, move))
            self._dropped.update(i for i, table in ddl.effect.tables.items() if table is None)
            done = before
        return left + self._of_changes(changes.slice(done), known, skipped)

    def _record_move(self, move: PartitionMove | None) -> PartitionMove | None:
        if move is not None:
            self._moves.setdefault(move.last_version, move)
        return move

    def _of_changes(
        self, changes: pa.Table, known: SchemaTimeline, skipped: set[int]
    ) -> list[tuple[int, ExpectedRow | PartitionMove]]:
        changes = relocate(changes, [self._moves[version] for version in sorted(self._moves)])
        alike: dict[int, tuple[Table, TableLocation, list[int]]] = {}
        rest = zip(
            *(changes[name].to_pylist() for name in ("table_id", "kind", "commit_ts", "start_ts")),
            strict=True,
        )
        for at, (table_id, kind, commit_ts, start_ts) in enumerate(rest):
            if (
                not self._after < commit_ts <= self._until
                or is_named(skipped, commit_ts, start_ts)
                or is_internal_table(table_id)
            ):
                continue
            table = known.find(table_id, commit_ts)
            if table is None:
                if table_id not in self._dropped:
                    raise ChangeError(
                        f"commit_ts {commit_ts} changes table id {table_id}, which no window"
                        " describes"
                    )
                continue
            place = None if self._is_excluded(table, kind) else self._locations.locate(table)
            if place is not None:
                alike.setdefault(table_id, (table, place, []))[2].append(at)
        found: list[tuple[int, int, list[ExpectedRow]]] = []
        for table, place, wanted in alike.values():
            own = changes.take(pa.array(wanted)).combine_chunks()
            selection = self._rules.filters.row_selection(table)
            narrowed = with_stored_mark(self._rules.shaped(table))
            own = masked_changes(narrowed, own)
            if selection is not None:
                own, places = selected_changes(selection, narrowed, own)
                wanted = [wanted[place] for place in places.tolist()]
            own, places = marked_changes(narrowed, own)
            wanted = [wanted[place] for place in places.tolist()]
            raw = RawChanges.from_table(own)
            left = _rows_left_by(narrowed, place, raw)
            found += zip(wanted, raw.commit_ts.tolist(), left, strict=True)
        found.sort(key=lambda entry: entry[0])
        return [(commit_ts, one) for _, commit_ts, several in found for one in several]

    def _is_excluded(self, table: Table, kind: int) -> bool:
        filters, names = self._rules.filters, (table.schema_name, table.name)
        # No Drainer writes versions, and Sluice's are in one transaction with the checkpoint.
        return (
            not filters.wants_table(*names)
            or kind in filters.ignored_row_kinds(*names)
            or any(rule.history for rule in filters.column_rules(*names))
        )


def _rows_left_by(table: Table, place: TableLocation, raw: RawChanges) -> list[list[ExpectedRow]]:
    """Return the rows that each change of a table leaves, under the keys that it concerns."""
    olds, news = (
        iter(_sides(table, place, images)) for images in decode(table, raw.kinds, raw.own_rows)
    )
    found: list[list[ExpectedRow]] = []
    for number, kind in enumerate(raw.kinds.tolist()):
        old = next(olds) if kind != INSERT else None
        new = next(news) if kind != DELETE else None
        entries = []
        if old is not None and (new is None or new.downstream_identity != old.downstream_identity):
            is_known = old.key is not None or _has_all_columns(
                table, kind, raw.rows[number].as_py()
            )
            entries.append(replace(old, image=None, removed=old.image if is_known else None))
        if new is not None:
            entries.append(new)
        found.append(entries)
    return found


def _has_all_columns(table: Table, kind: int, row: bytes) -> bool:
    """Return whether a change's old image has every column; one that TiDB is dropping is absent."""
    return {c.id for c in table.stored_columns if not c.names_source} <= set(
        column_ids(row, images=2 if kind == UPDATE else 1)
    )


def _sides(table: Table, place: TableLocation, images: Images) -> list[ExpectedRow]:
    """Return the rows of images, as changes leave them."""
    if not images or not len(next(iter(images.values()))):
        return []
    key = lookup_key_columns(table)
    looks = place.conditions([c for c in table.stored_columns if not c.generated], images)
    is_found = bool(key) and all(column.id in place.columns for column in key)
    keys: Sequence[bytes | None] = (
        place.conditions(key, images) if is_found else [None] * len(looks)
    )
    identities: list[tuple[Any, ...]]
    if names := identity(table):
        identities = [
            (table.id, *each)
            for each in zip(*(images[name].to_pylist() for name in names), strict=True)
        ]
    else:
        identities = [(table.id, each) for each in looks]
    sames = [(place.name, each) for each in keys] if is_found else identities
    return [
        ExpectedRow(same, own, place, key_condition, look, None, table, images, at)
        for at, (same, own, key_condition, look) in enumerate(
            zip(sames, identities, keys, looks, strict=True)
        )
    ]
