"""Gather the changes between two barriers into a change set, and plan its steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from sluice.errors import SluiceError
from sluice.etl.changes.masks import masked_changes, with_masked_rows
from sluice.etl.changes.planning._partition_moves import PartitionMove, surviving_changes
from sluice.etl.changes.planning._payloads import BatchPayload, PrepareOptions, SharedPayload
from sluice.etl.changes.planning._schema_cursor import SchemaCursor
from sluice.etl.changes.planning._selected_rows import (
    select_changes,
    selected_changes,
    with_moved,
)
from sluice.etl.changes.planning._soft_deletes import mark_deletes, with_divided_updates
from sluice.etl.changes.planning._table_places import TablePlaces, kind_counts, places_by_table
from sluice.etl.changes.planning._transaction_cuts import Piece, split_points
from sluice.etl.changes.steps import ChangeError, CommitDetail, Step, with_surviving_rows
from sluice.etl.changes.write_plans import ChangeSet, StageTimings, planner_for
from sluice.etl.changes.write_plans.deletes_then_loads import PieceBounds, plan_pieces
from sluice.etl.changes.write_plans.identity import lookup_key_columns
from sluice.etl.changes.write_plans.raw_changes import RawChanges
from sluice.etl.changes.write_plans.reduced_table import TableContext
from sluice.etl.changes.write_plans.table_changes import TableChanges
from sluice.relay import PART_SCHEMA
from sluice.tidb.partitions import PartitionError
from sluice.tidb.schema import Table


class ChangeSetBuilder:
    """Gather the changes between two barriers, from one or more windows."""

    def __init__(
        self,
        schemas: SchemaCursor,
        options: PrepareOptions,
        batch: BatchPayload,
        timings: StageTimings,
    ) -> None:
        """Create the change set builder; `options`: with all that is excluded from this batch."""
        safe, replayed = batch.safe, batch.in_flight is not None
        self._schemas = schemas
        # In safe mode, and for an in-flight batch that is written again, one session writes all,
        # whatever the sink has.
        self._contested = batch.contested
        self._planner = planner_for("net" if safe or replayed else options.write_plan)
        # Elsewhere a commit step isn't all that ends a transaction.
        self._cut_tables = batch.cut_tables if self._planner is planner_for("net") else None
        self._safe = safe
        self._replayed = replayed
        self._workers = options.workers
        self._time_zone = options.time_zone
        self._message_format = options.message_format
        self._has_masks = options.filters.masking_rule is not None
        # What is asked for the newest images of rows wants to know which are gone.
        self._keeps_deleted = options.filters.keeps_deleted_rows and self.loads_rows
        self._timings = timings
        self._tables_under_repair = batch.tables_under_repair
        self._after_ts = batch.after_ts
        self._ignored = np.array(sorted(options.ignored_ts), np.int64)
        self._written = np.array(sorted(batch.written_of(options.ignored_ts)), np.int64)
        self._pieces: list[pa.Table] = []
        self._loose: set[int] = set()
        self._reverted: list[pa.Table] = []
        self._excluded: list[int] = []
        self._warnings: list[str] = []
        self._counts: dict[str, tuple[int, int, int]] = {}
        self._returned = 0
        self._channel: int | None = None
        """The channel that the changes are to be marked with; None: of no ring."""
        self._uncommitted = (0, 0)
        """Rows and changes of steps that no commit step followed yet."""

    def add(self, changes: pa.Table) -> None:
        if changes.num_rows and len(self._ignored):
            changes = self._without_ignored(changes)
        if changes.num_rows:
            self._pieces.append(changes)
            self._loose |= self._schemas.dropping

    def count_returned(self, transactions: int) -> None:
        """Count transactions that came from downstream with the next commit step."""
        self._returned += transactions

    def enter_origin(self, channel: int, before: int) -> Iterator[Step]:
        """Set the channel of what is added next, and yield the steps of what has another one.

        `before`: a timestamp (TSO) between the two.
        """
        if channel != self._channel and (self._pieces or self._reverted):
            yield from self.flush(before, barrier=0)
        self._channel = channel

    def flush_part(self, commit_ts: int) -> Iterator[Step]:
        """Yield the steps of what was added; others that were committed at `commit_ts` follow.

        The checkpoint stays in front of that, and names the channel.
        """
        if self._pieces or self._reverted:
            assert self._channel is not None
            yield from self._flush_in_front(commit_ts, (self._channel,))

    def warn(self, text: str) -> None:
        """Add a warning to the next commit step."""
        self._warnings.append(text)

    def _without_ignored(self, changes: pa.Table) -> pa.Table:
        ignored = _named(changes, self._ignored)
        left_out = changes.filter(pa.array(ignored))
        for ts, rows in zip(
            *np.unique(left_out["commit_ts"].to_numpy(), return_counts=True), strict=True
        ):
            self.warn(
                f"ignored as asked: the transaction at commit_ts {ts} with {rows} row changes"
            )
        pairs = zip(
            *(left_out[name].to_pylist() for name in ("commit_ts", "start_ts")), strict=True
        )
        whole = set(self._ignored.tolist())
        self._excluded += [ts if ts in whole else -start for ts, start in dict.fromkeys(pairs)]
        written = _named(changes, self._written)
        if written.any():
            self._reverted.append(changes.filter(pa.array(written)))
        return changes.filter(pa.array(~ignored)) if ignored.any() else changes

    @property
    def loads_rows(self) -> bool:
        """Return whether the sink writes rows into tables; others record what happened."""
        return self._planner in (planner_for("net"), planner_for("groups"))

    def attach_surviving_rows(
        self, ddl: Step, move: PartitionMove, changes: Iterable[pa.Table]
    ) -> Step:
        """Return the step of a DDL that drops partitions, with the rows that stay.

        `changes`: what came before it, in order.
        """
        try:
            kept = surviving_changes(changes, move).combine_chunks()
        except PartitionError as error:
            raise ChangeError(
                f"DDL at commit_ts {ddl.commit_ts}: {error}.",
                hint=f"`sluice ddl replace {ddl.commit_ts}`",
            ) from error
        found = self._schemas.find(move.table.id, ddl.commit_ts)
        kept = kept.filter(pa.array(~_named(kept, self._ignored)))
        if found is not None:
            kept = masked_changes(found.table, kept)
        if found is not None and found.rows is not None:
            kept, _ = selected_changes(found.rows, found.table, kept)
        if not kept.num_rows or found is None:
            return ddl
        if not self.loads_rows:
            self.warn(
                f"{move.table.full_name}: {kept.num_rows} changes before the DDL at commit_ts"
                f" {ddl.commit_ts} are about rows that its upstream kept, in another partition; a"
                " server that executes its statement drops them"
            )
            return ddl
        if found.table.history:
            raise ChangeError(
                f"DDL at commit_ts {ddl.commit_ts} drops partitions of {found.table.full_name}, of"
                f" which [[filter.columns]] keeps versions, and {kept.num_rows} changes before it"
                " are about rows that the upstream kept, in another partition.",
                hint=(
                    "execute the statement, and copy the table again: `sluice ddl replace"
                    f" {ddl.commit_ts}`, `sluice backfill --table {found.name}`"
                ),
            )
        circumstances = TableContext(partial=True, source=found.source)
        changes_kept = TableChanges(
            found.table, RawChanges.from_table(kept), self._timings, circumstances
        )
        return with_surviving_rows(ddl, changes_kept.loads())

    def flush(self, commit_ts: int, *, barrier: int = 1) -> Iterator[Step]:
        """Yield the planner's steps of what was added, then a commit; nothing without changes.

        Transactions that came from downstream are counted before a DDL moves the checkpoint.

        `barrier`: how far behind it the next segment begins.
        """
        after_ts, self._after_ts = self._after_ts, commit_ts + barrier
        if self._pieces or self._reverted or self._returned:
            yield from self._flush(after_ts, commit_ts, None)

    def finish(self, commit_ts: int, schema_version: int) -> Iterator[Step]:
        """Yield the last steps, with a commit at any rate; `schema_version`: then."""
        yield from self._flush(self._after_ts, commit_ts, schema_version)

    def _flush(self, after_ts: int, commit_ts: int, schema_version: int | None) -> Iterator[Step]:
        table = self._taken()
        places = self._cut_places(table)
        if not places:
            yield from self._steps(table, after_ts, commit_ts, schema_version)
        elif self._keeps_deleted or self._reverted:
            yield from self._steps_one_by_one(table, places, after_ts, commit_ts, schema_version)
        else:
            yield from self._cut_steps(table, places, after_ts, commit_ts, schema_version)
        self._loose = set()

    def flush_shared(self, commit_ts: int) -> Iterator[Step]:
        """Yield the steps of what was added, which was committed at the commit_ts of the next DDL.

        The checkpoint stays in front of that. Sinks that write records commit these with the DDL:
        a record doesn't show on which side of it they are.
        """
        if not (self._pieces or self._reverted or self._returned):
            return
        if self.loads_rows:
            yield from self._flush_in_front(commit_ts)
        else:
            *steps, commit = self._steps(self._taken(), commit_ts - 1, commit_ts, None)
            yield from steps
            detail = commit.detail_of(CommitDetail)
            self._uncommitted = (
                self._uncommitted[0] + commit.rows,
                self._uncommitted[1] + commit.changes,
            )
            self._counts = _added(detail.counts, self._counts)
            self._warnings = [*detail.warnings, *self._warnings]
            self._returned += detail.returned
        self._loose = set()

    def _flush_in_front(self, commit_ts: int, channels: tuple[int, ...] = ()) -> Iterator[Step]:
        """Yield the steps of what was added, and a commit right in front of `commit_ts`.

        One session executes them, in one transaction with the checkpoint.
        """
        planner, self._planner = self._planner, planner_for("net")
        shared = SharedPayload(commit_ts, channels=channels)
        yield from self._steps(self._taken(), commit_ts - 1, commit_ts, None, shared)
        self._planner = planner

    def _taken(self) -> pa.Table:
        """Return what was added, in one piece, and keep nothing of it."""
        pieces, self._pieces = self._pieces, []
        return pa.concat_tables(pieces or [PART_SCHEMA.empty_table()]).combine_chunks()

    def _cut_places(self, changes: pa.Table) -> list[int]:
        """Return the places at which changes are cut, to be committed one by one."""
        if self._cut_tables is None:
            return []
        return split_points(
            changes["table_id"].to_numpy(), changes["commit_ts"].to_numpy(), self._cut_tables
        )

    def _steps_one_by_one(
        self,
        changes: pa.Table,
        places: Sequence[int],
        after_ts: int,
        commit_ts: int,
        schema_version: int | None,
    ) -> Iterator[Step]:
        """Yield the steps of each piece, planned by itself."""
        begin = 0
        for end in places:
            piece = changes.slice(begin, end - begin)
            through = int(piece["commit_ts"][-1].as_py())
            yield from self._steps(piece, after_ts, through, None)
            begin, after_ts = end, through
        yield from self._steps(changes.slice(begin), after_ts, commit_ts, schema_version)

    def _cut_steps(
        self,
        changes: pa.Table,
        places: Sequence[int],
        after_ts: int,
        commit_ts: int,
        schema_version: int | None,
    ) -> Iterator[Step]:
        """Yield the same, planned together: tables are alike across pieces, too."""
        try:
            whole, pieces = self._change_set_in_pieces(changes, places, after_ts, commit_ts)
        except SluiceError:
            # The pieces before the change that is refused can go downstream.
            yield from self._steps_one_by_one(changes, places, after_ts, commit_ts, schema_version)
            return
        last_ts = changes["commit_ts"].to_numpy()[np.array(places) - 1].tolist()
        throughs = [*last_ts, commit_ts]
        planned = plan_pieces(
            whole,
            [
                PieceBounds(piece.end, after, through)
                for piece, after, through in zip(
                    pieces, [after_ts, *throughs], throughs, strict=False
                )
            ],
            self._timings,
        )
        for piece, through, steps in zip(pieces, throughs, planned, strict=True):
            version = schema_version if piece is pieces[-1] else None
            self._counts = _added(self._counts, piece.counts)
            yield from self._committed(steps, piece.changes, through, version)

    def _steps(
        self,
        table: pa.Table,
        after_ts: int,
        commit_ts: int,
        schema_version: int | None,
        shared: SharedPayload | None = None,
    ) -> Iterator[Step]:
        """Yield the planner's steps of `table` and a commit; with `shared` that is in front."""
        segment = (
            self._change_set(table, after_ts, commit_ts)
            if table.num_rows or self._reverted
            else None
        )
        yield from self._committed(
            () if segment is None else self._planner(segment, self._timings, self._workers),
            0 if segment is None else sum(len(places) for _, places in segment.tables),
            commit_ts,
            schema_version,
            shared=shared,
        )

    def _committed(
        self,
        steps: Iterable[Step],
        count: int,
        commit_ts: int,
        schema_version: int | None,
        shared: SharedPayload | None = None,
    ) -> Iterator[Step]:
        """Yield steps of `count` changes, and a commit; with `shared` that is in front."""
        rows, changes = self._uncommitted
        self._uncommitted = (0, 0)
        changes += count
        for step in steps:
            rows += step.rows
            yield step
        detail = CommitDetail(
            schema_version,
            self._timings.to_ms(),
            tuple(self._warnings),
            self._counts,
            rows_through=0 if shared is None else shared.ts,
            returned=self._returned,
            channel=self._channel,
            channels_through=() if shared is None else shared.channels,
        )
        self._warnings, self._counts, self._returned = [], {}, 0
        through = commit_ts if shared is None else commit_ts - 1
        yield Step(detail, through, rows=rows, changes=changes)
        self._timings.clear()

    def _change_set(self, table: pa.Table, after: int, through: int) -> ChangeSet:
        found, (piece,) = self._change_set_in_pieces(table, (), after, through)
        self._counts = _added(self._counts, piece.counts)
        return found

    def _change_set_in_pieces(
        self, table: pa.Table, cuts: Sequence[int], after: int, through: int
    ) -> tuple[ChangeSet, list[Piece]]:
        """Return a change set that is cut at some places: its tables are piece by piece."""
        started = time.perf_counter()
        taken_back = self._reverted_by_table()
        commit_ts, kinds = table["commit_ts"].to_numpy(), table["kind"].to_numpy()
        by_table = list(places_by_table(table["table_id"].to_numpy(), commit_ts, kinds, cuts))
        if self._has_masks:
            # in front of row rules, which look at other columns: a row that they make an insert
            # of has masked defaults
            table = self._masked(table, by_table)
        if self._keeps_deleted:
            table, by_table = self._divided(table, by_table)
            kinds = table["kind"].to_numpy()
        rows = table["row"].combine_chunks()
        tables: list[tuple[Table, np.ndarray]] = []
        loose = self._loose
        partial: set[int] = set()
        sources: dict[int, str] = {}
        moved: dict[int, tuple[int, bytes]] = {}
        pieces = [Piece()]
        for table_id, places, first_ts, *counts in by_table:
            while len(pieces) <= len(cuts) and places[0] >= cuts[len(pieces) - 1]:
                pieces.append(Piece(len(tables)))
            piece = pieces[-1]
            found = self._schemas.find(table_id, first_ts)
            if found is None:
                continue
            gives_way = table_id in loose and bool(lookup_key_columns(found.table))
            if (
                found.ignored_kinds
                or gives_way
                or table_id in self._tables_under_repair
                or found.may_keep_rows
                or found.table.deletion_mark is not None
            ):
                partial.add(table_id)
            if found.ignored_kinds:
                places = places[~np.isin(kinds[places], list(found.ignored_kinds))]
                counts = [
                    0 if kind in found.ignored_kinds else count for kind, count in enumerate(counts)
                ]
            if found.rows is not None:
                if not found.rows.is_of_rows:
                    partial.add(table_id)
                selected = select_changes(found.rows, found.table, kinds, rows, places)
                moved.update(selected.moved)
                places = selected.places
                counts = kind_counts(kinds, places, selected.moved)
            if self._keeps_deleted:
                moved.update(mark_deletes(found.table, table, places, moved))
            if found.source:
                sources[table_id] = found.source
            if len(places) or table_id in taken_back:
                tables.append((found.table, places))
                piece.end = len(tables)
                piece.changes += len(places)
            piece.count(found.name, counts)
        known = {found.id for found, _ in tables}
        tables += [
            (self._schemas.find(i, through).table, np.zeros(0, np.int64))  # type: ignore[union-attr]
            for i in taken_back
            if i not in known
        ]
        pieces += [Piece(len(tables)) for _ in range(len(pieces), len(cuts) + 1)]
        pieces[-1].end = len(tables)
        left_out, self._excluded = tuple(self._excluded), []
        self._timings.decode += time.perf_counter() - started
        change_set = ChangeSet(
            changes=with_moved(table, moved),
            tables=tuple(tables),
            after=after,
            through=through,
            safe=self._safe,
            time_zone=self._time_zone,
            message_format=self._message_format,
            partial=frozenset(partial),
            sources=sources,
            left_out=left_out,
            replayed=self._replayed,
            contested=self._contested,
            channel=self._channel,
            reverted=taken_back,
        )
        return change_set, pieces

    def _divided(
        self, changes: pa.Table, by_table: list[TablePlaces]
    ) -> tuple[pa.Table, list[TablePlaces]]:
        """Return changes with updates of keys divided where deleted rows stay, and their places."""
        there = ((self._schemas.find(each[0], each[2]), each[1]) for each in by_table)
        tables = [(found.table, places) for found, places in there if found is not None]
        divided, _ = with_divided_updates(changes, tables)
        if divided is changes:
            return changes, by_table
        columns = (divided[name].to_numpy() for name in ("table_id", "commit_ts", "kind"))
        return divided, list(places_by_table(*columns))

    def _masked(self, changes: pa.Table, by_table: Iterable[TablePlaces]) -> pa.Table:
        """Return changes with those of masked tables masked; `by_table`: `places_by_table`."""
        there = ((self._schemas.find(each[0], each[2]), each[1]) for each in by_table)
        tables = [(found.table, places) for found, places in there if found is not None]
        return with_masked_rows(changes, tables)

    def _reverted_by_table(self) -> dict[int, pa.Table]:
        """Return what is to be taken back.

        Of some tables it was in one transaction with the checkpoint, see
        `sluice.etl.changes.write_plans.conflict_groups`, so it was never written.
        """
        pieces, self._reverted = self._reverted, []
        if not pieces:
            return {}
        changes = pa.concat_tables(pieces)
        ids = changes["table_id"].to_numpy()
        found = {}
        for table_id in np.unique(ids).tolist():
            own = changes.filter(pa.array(ids == table_id))
            table = self._schemas.find(table_id, int(own["commit_ts"][0].as_py()))
            if (
                table is not None
                and not table.source
                and lookup_key_columns(table.table)
                and not table.ignored_kinds
                and table.table.deletion_mark is None
                and not table.table.history
            ):
                own = masked_changes(table.table, own)
                if table.rows is not None:
                    own, _ = selected_changes(table.rows, table.table, own)
                found[table_id] = own
        return found


def _named(changes: pa.Table, names: np.ndarray) -> np.ndarray:
    """Return of which changes the transaction is among names (`Override.named`)."""
    commits, starts = (changes[name].to_numpy() for name in ("commit_ts", "start_ts"))
    return np.isin(commits, names) | np.isin(-starts, names)


def _added(
    one: Mapping[str, tuple[int, int, int]], other: Mapping[str, tuple[int, int, int]]
) -> dict[str, tuple[int, int, int]]:
    """Return the sums of counts by table."""
    found = dict(one)
    for name, counts in other.items():
        known = found.get(name, (0, 0, 0))
        found[name] = (known[0] + counts[0], known[1] + counts[1], known[2] + counts[2])
    return found
