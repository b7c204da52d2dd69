"""Follow the tables of row changes through the stream, under their downstream names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from sluice.etl.changes.planning._destinations import Destination, destinations
from sluice.etl.changes.planning._partition_moves import PartitionMove, move_of, relocate
from sluice.etl.changes.planning._payloads import PrepareOptions
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.rules import (
    Filter,
    ScopeResult,
    is_internal_table,
    scope_ddl,
    shown_statement,
    skip_reason,
)
from sluice.etl.changes.steps import ChangeError, DropUniqueness, Step
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.partitions import PartitionError
from sluice.tidb.schema import Table

_PASS_ALL = Filter()


class SchemaCursor:
    """Tables by id, as of the place in the stream that has been reached."""

    def __init__(self, options: PrepareOptions) -> None:
        self._filters, self._routes = options.filters, options.routes
        self._has_masks = options.filters.masking_rule is not None
        self._tables: dict[int, Table] = {}
        self._destinations = destinations(options.filters, options.routes)
        self._routed: dict[int, Destination] = {}
        self._truncated: set[int] = set()
        self._without_rows = options.without_rows
        self._unwanted: set[int] = set(options.without_rows)
        self._moves: dict[int, PartitionMove] = {}
        self._relaxed: dict[int, frozenset[int]] = {}
        self.dropping: set[int] = set()
        """Tables whose keys may have values twice in this window.

        Once is in a partition that is about to be dropped.
        """

    def _put(self, table_id: int, table: Table | None) -> None:
        self._routed.pop(table_id, None)
        if table is None:
            self._tables.pop(table_id, None)
            return
        self._tables[table_id] = table
        destination = self._destinations.for_table(table)
        wanted = (
            destination.is_wanted
            and table_id not in self._without_rows
            and not is_internal_table(table_id)
        )
        (self._unwanted.discard if wanted else self._unwanted.add)(table_id)
        if wanted and not destination.refusal and table_id not in self._relaxed:
            self._routed[table_id] = destination

    def enter_window(self, schema: RecordedSchema) -> None:
        """Move on into a window."""
        for table_id, table in schema.tables.items():
            self._put(table_id, table)
        self._truncated.update(schema.truncated_tables)
        for past in schema.moved:
            self._record_move(move_of(past))
        self.dropping = {table_id for table_id, indexes in schema.relaxed.items() if not indexes}
        for table_id, indexes in schema.relaxed.items():
            # Ids are never used again.
            self._relaxed[table_id] = self._relaxed.get(table_id, frozenset()).union(indexes)
            self._routed.pop(table_id, None)

    def masks_differ(self, schema: RecordedSchema) -> bool:
        """Return whether landing has masked a known table otherwise in the window to come.

        The changes before it aren't read by its tables then.
        """
        if not self._has_masks:
            return False
        return any(
            table is not None
            and (known := self._tables.get(table_id)) is not None
            and known.landed_masks != table.landed_masks
            for table_id, table in schema.tables.items()
        )

    def _record_move(self, move: PartitionMove | None) -> PartitionMove | None:
        if move is not None and move.last_version not in self._moves:
            self._moves[move.last_version] = move
        return move

    def count(self, job_id: int, changes: pa.Table) -> None:
        """Count rows of `changes` that are behind a DDL and before those to be applied."""
        relocate(changes, [move for move in self._moves.values() if move.job_id == job_id])

    def relocate(self, changes: pa.Table) -> pa.Table:
        """Return changes that follow the DDL so far, as they read after it.

        Some may have been made by an earlier definition. Raises ChangeError.
        """
        if not self._moves:
            return changes
        moves = [self._moves[version] for version in sorted(self._moves)]
        try:
            return relocate(
                changes, [move for move in moves if move.table.id not in self._unwanted]
            )
        except PartitionError as error:
            raise ChangeError(str(error)) from error

    def without_unwanted(self, changes: pa.Table) -> pa.Table:
        """Return changes without those of tables of which none go downstream."""
        wanted = ~np.isin(changes["table_id"].to_numpy(), list(self._unwanted))
        return changes if wanted.all() else changes.filter(pa.array(wanted))

    def relaxed_steps(self, commit_ts: int, changed: Iterable[int] | None = None) -> Iterator[Step]:
        """Yield a relax step for each table that gives up unique keys in this window.

        It is one of `changed` (ids).
        """
        for table_id in (
            self._relaxed.keys() if changed is None else self._relaxed.keys() & set(changed)
        ):
            found = self.find(table_id, commit_ts) if table_id in self._tables else None
            if found is not None and not found.source and not found.table.history:
                relaxed = DropUniqueness.from_table(self._tables[table_id], self._relaxed[table_id])
                if relaxed.indexes:
                    yield Step(relaxed, commit_ts, found.table.schema_name, found.table.name)

    def scope(self, ddl: DdlJob) -> ScopeResult | None:
        """Return what of a DDL goes downstream.

        None if nothing does and no replicated table is touched, so that it is no barrier. Raises
        ScopeError.
        """
        scoped = scope_ddl(ddl, self._known_table(ddl), self._filters, self._routes)
        runs = scoped.ddl is not None and skip_reason(ddl, _PASS_ALL) is None
        return scoped if runs or scoped.touches else None

    def shown_statement(self, ddl: DdlJob) -> str:
        """Return a DDL's statement for messages: without defaults if rules mask columns."""
        tables = (*ddl.before.values(), *ddl.effect.tables.values())
        return shown_statement(ddl, self._filters, tables)

    def apply_ddl(self, ddl: DdlJob) -> PartitionMove | None:
        """Go on behind a DDL; what it moves, if it moves rows."""
        move = self._record_move(move_of(ddl.past_move(self._known_table(ddl))))
        for table_id, table in ddl.effect.tables.items():
            if table is None and ddl.type == Action.TRUNCATE_TABLE:
                self._truncated.add(table_id)
            self._put(table_id, table)
        return move

    def table(self, table_id: int) -> Table:
        """Return a table under its upstream name, as it is now."""
        return self._tables[table_id]

    def _known_table(self, ddl: DdlJob) -> dict[int, Table]:
        """Return the tables that a DDL changes as they are now."""
        return {i: self._tables[i] for i in ddl.effect.tables if i in self._tables}

    def find(self, table_id: int, commit_ts: int) -> Destination | None:
        """Return where a change belongs; None if it is to be dropped. Raises ChangeError."""
        found = self._routed.get(table_id)
        if found is not None:
            return found
        if is_internal_table(table_id) or table_id in self._unwanted:
            return None
        table = self._tables.get(table_id)
        if table is None:
            if table_id in self._truncated:
                return None
            raise ChangeError(
                f"commit_ts {commit_ts} changes table id {table_id}, which the relay log doesn't"
                " describe; land the window again, or leave the transaction out: `sluice txn skip"
                f" {commit_ts}`"
            )
        found = self._destinations.for_table(table)
        if found.refusal:
            raise ChangeError(f"row changes at commit_ts {commit_ts}: {found.refusal}")
        given_up = self._relaxed.get(table_id)
        if given_up:
            indexes = tuple(index for index in found.table.indexes if index.id not in given_up)
            found = replace(found, table=replace(found.table, indexes=indexes))
        self._routed[table_id] = found
        return found
