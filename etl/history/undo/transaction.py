"""Read one past transaction from the archive or the relay log.

With it its tables as they were and as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaTimeline
from sluice.etl.changes.rules import Filter, is_internal_table, only_tables
from sluice.etl.history.errors import UndoError, restore_hint
from sluice.etl.history.history_log import HistoryLog
from sluice.relay import PART_SCHEMA, WindowRecord, iter_parts
from sluice.tidb import tso
from sluice.tidb.ddl_actions import MOVES_ROWS, Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column, Table

_MAX_STATEMENT_CHARS = 200


@dataclass(frozen=True, slots=True)
class TouchedTable:
    """A table of the transaction.

    It is given as it was `then`, as it is `now`, and with its changes in PART_SCHEMA, in order.
    """

    then: Table
    now: Table
    changes: pa.Table
    added: tuple[Column, ...] = ()
    """Columns that it has got since, and whose values a row that is put back can't have."""


@dataclass(slots=True)
class PastChanges:
    """Row changes of past transactions, which are taken back as one change.

    `first_ts`, `last_ts`: commit timestamps; `transactions`: how many; `others`: tables that they
    changed, too, and that weren't asked for; `partial`: how many of them made row changes that
    weren't; `notes`: what the search left out unasked, for people.
    """

    cluster_id: int
    first_ts: int
    last_ts: int
    transactions: int = 1
    tables: list[TouchedTable] = field(default_factory=list)
    others: tuple[str, ...] = ()
    partial: int = 0
    notes: tuple[str, ...] = ()


def read_transaction(
    past: HistoryLog, commit_ts: int, globs: Iterable[str] = (), start_ts: int = 0
) -> PastChanges:
    """Read the transaction that was committed at `commit_ts`, and began at `start_ts` unless 0.

    Of its tables those whose name then fits a glob. Raises UndoError for what can't be taken back,
    relay errors.
    """
    window, changes = _changes(past, commit_ts, start_ts)
    ids = changes["table_id"].to_numpy()
    known = SchemaTimeline.from_window(window)
    wanted = only_tables(Filter(), tuple(globs))
    read = PastChanges(window.cluster_id, commit_ts, commit_ts)
    then: dict[int, Table] = {}
    others = set()
    for table_id in dict.fromkeys(ids.tolist()):
        table = known.find(table_id, commit_ts)
        if table is None or is_internal_table(table_id):
            continue
        if wanted.wants_table(table.schema_name, table.name):
            then[table_id] = table
        else:
            others.add(table.full_name)
    if not then:
        raise UndoError(
            f"the transaction at commit_ts {tso.text(commit_ts)} changed no such table, but"
            f" {', '.join(sorted(others))}"
        )
    check_not_moved(RecordedSchema.from_window(window), changes, then)
    now = as_they_are(past, then, dict.fromkeys(then, commit_ts))
    read.others = tuple(sorted(others))
    read.tables = [
        TouchedTable(table, now[i][0], changes.filter(pa.array(ids == i)), now[i][1])
        for i, table in then.items()
    ]
    return read


def _changes(past: HistoryLog, commit_ts: int, start_ts: int) -> tuple[WindowRecord, pa.Table]:
    where = f"the transaction at commit_ts {tso.text(commit_ts)}"
    if not past.first < commit_ts <= past.last:
        raise UndoError(
            f"{where} isn't there: what was committed after {tso.text(past.first)} through"
            f" {tso.text(past.last)} is",
            hint="`sluice find` lists transactions",
        )
    for stretch in past.ranges(commit_ts - 1, commit_ts):
        for window in stretch.windows():
            changes = _changes_of_commit(iter_parts(stretch.log.storage, window.parts), commit_ts)
            found = _one_of(window, changes, commit_ts, start_ts)
            if found is not None:
                return window, found
    raise UndoError(
        f"no transaction was committed at {tso.text(commit_ts)}"
        f"{f', started at {start_ts}' if start_ts else ''}",
        hint="`sluice find` lists transactions",
    )


def _one_of(
    window: WindowRecord, changes: pa.Table, commit_ts: int, start_ts: int
) -> pa.Table | None:
    """Return the changes of the one requested transaction. Raises UndoError."""
    ddls = {
        ddl.start_ts: ddl
        for ddl in RecordedSchema.from_window(window).ddls
        if ddl.commit_ts == commit_ts
    }
    skipped = {
        int(one["start_ts"]): one["why"]
        for one in window.skipped
        if int(one["commit_ts"]) == commit_ts
    }
    began = sorted(changes["start_ts"].unique().to_pylist())
    known = [*began, *sorted(skipped), *ddls]
    if not start_ts and len(known) > 1:
        raise UndoError(
            f"several transactions were committed at commit_ts {tso.text(commit_ts)}; they started"
            f" at {', '.join(map(str, known))}",
            hint=f"name one of them: `sluice undo {commit_ts} --start-ts {known[0]}`",
        )
    wanted = start_ts or (known[0] if known else 0)
    if wanted in ddls:
        raise _ddl_error(ddls[wanted])
    if wanted in skipped:
        raise UndoError(
            f"the transaction at commit_ts {tso.text(commit_ts)} was left out when it landed"
            f" ({skipped[wanted]}): its rows aren't there"
        )
    return changes.filter(pc.equal(changes["start_ts"], wanted)) if wanted in began else None


def _changes_of_commit(batches: Iterable[pa.RecordBatch], commit_ts: int) -> pa.Table:
    found = [batch.filter(pc.equal(batch["commit_ts"], commit_ts)) for batch in batches]
    return pa.Table.from_batches(found, PART_SCHEMA)


def _ddl_error(ddl: DdlJob) -> UndoError:
    return UndoError(
        f"at commit_ts {tso.text(ddl.commit_ts)} is DDL:"
        f" {' '.join(ddl.query.split())[:_MAX_STATEMENT_CHARS]}. No SQL takes DDL back: what it"
        " removed isn't in the binlog",
        hint=restore_hint(ddl.commit_ts),
    )


def check_not_moved(schema: RecordedSchema, changes: pa.Table, then: dict[int, Table]) -> None:
    """Raise UndoError for changes by a definition from before DDL that moved rows."""
    oldest = int(np.min(changes["schema_version"].to_numpy()))
    for move in schema.moved:
        ids = move.before.keys() | move.effect.tables.keys()
        if oldest < max(move.versions or (move.schema_version,)) and (
            names := [then[i].full_name for i in ids & then.keys()]
        ):
            raise UndoError(
                f"{names[0]}: DDL job {move.job_id} moved rows of it while the transaction ran"
            )


def as_they_are(
    past: HistoryLog, then: dict[int, Table], changed_at: dict[int, int]
) -> dict[int, tuple[Table, tuple[Column, ...]]]:
    """Return the tables at the end of what has landed, each with its new columns.

    `changed_at`: commit timestamps from which on DDL of a table counts. Raises UndoError if rows of
    one of them can't be separated from the changes any more.
    """
    now = dict(then)
    for stretch in past.ranges(min(changed_at.values()), past.last):
        for window in stretch.windows():
            for ddl in RecordedSchema.from_window(window).ddls if window.ddls else ():
                _apply_ddl(ddl, now, changed_at)
    return {i: (table, _added(then[i], table)) for i, table in now.items()}


def _apply_ddl(ddl: DdlJob, now: dict[int, Table], changed_at: dict[int, int]) -> None:
    for table_id, after in ddl.effect.tables.items():
        before = now.get(table_id)
        if before is None or ddl.commit_ts <= changed_at[table_id]:
            continue
        commit_ts = changed_at[table_id]
        statement = " ".join(ddl.query.split())[:_MAX_STATEMENT_CHARS]
        if after is None or ddl.type in MOVES_ROWS or ddl.type == Action.TRUNCATE_TABLE:
            raise UndoError(
                f"{before.full_name}: DDL at commit_ts {tso.text(ddl.commit_ts)} removed or moved"
                f" its rows since: {statement}",
                hint=restore_hint(commit_ts, before.full_name),
            )
        meanings = {column.id: column_meaning(column) for column in after.columns if column.public}
        for column in before.columns:
            if column.public and meanings.get(column.id) != column_meaning(column):
                raise UndoError(
                    f"{before.full_name}: DDL at commit_ts {tso.text(ddl.commit_ts)} removed or"
                    f" changed its column {column.name} since: {statement}",
                    hint=restore_hint(commit_ts, before.full_name),
                )
        now[table_id] = after


def column_meaning(column: Column) -> tuple[object, ...]:
    """Return what values of a column mean, beside its default and its place."""
    return (
        column.name,
        column.tp,
        column.unsigned,
        column.flen,
        column.decimal,
        column.charset,
        column.collate,
        column.elems,
        column.generated,
    )


def _added(then: Table, now: Table) -> tuple[Column, ...]:
    known = {column.id for column in then.columns}
    return tuple(column for column in now.writable_columns if column.id not in known)
