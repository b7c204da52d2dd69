"""Run undo's dry run: check each row of a transaction in the replica.

Nothing is written or locked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.etl.changes.formats.sql_columns import (
    invalid_utf8_mask,
    is_rounded,
    join,
    literal_column,
    near_key_conditions,
)
from sluice.etl.changes.formats.sql_text import quote_name, quote_table
from sluice.etl.changes.write_plans.identity import conflict_keys, lookup_key_columns
from sluice.etl.changes.write_plans.net_effect import unchanged_rows
from sluice.etl.changes.write_plans.raw_changes import Images, image_count
from sluice.etl.downstream import CheckpointTable, DownstreamError, MySQLSession
from sluice.etl.history.errors import UndoError
from sluice.etl.history.find import row_text
from sluice.etl.history.undo.inverse import InverseChanges
from sluice.etl.history.undo.statements import TableUndoSql
from sluice.etl.history.undo.transaction import PastChanges
from sluice.etl.settings import Downstream, Settings
from sluice.tidb import tso
from sluice.tidb.rows import ROWID_NAME
from sluice.tidb.schema import Column, Table
from sluice.tidb.table_name import full_name

_ROWS_PER_QUERY = 200
_MAX_QUERY_BYTES = 1 << 18
CHANGED_SINCE, DELETED_SINCE, KEY_TAKEN = (
    "was changed since, by a later transaction",
    "is gone: a later transaction removed it",
    "can't come again: its place is taken",
)
BACK = "is there again as it was: nothing is left to take back"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A row of the downstream's table that isn't as the transaction left it.

    `row`: its key, or its values.
    """

    table: str
    row: str
    why: str


@dataclass(slots=True)
class DryRun:
    """Result of a dry run; `checkpoint`: TSO as of which the replica was read.

    `rows`: how many row changes were looked at; `unchecked`: tables that the replica doesn't have.
    `conflicts` are the first ones, `count` is all of them. `back`: how many of them are as they
    would be afterwards, because the changes were taken back before.
    """

    checkpoint: int
    rows: int = 0
    count: int = 0
    conflicts: list[Conflict] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    back: int = 0


class _Found(NamedTuple):
    """A conflict, and the place of its row in `images` of the inverse changes."""

    conflict: Conflict
    images: Images
    row: int


def dry_run(
    settings: Settings,
    past: PastChanges,
    reverses: Sequence[InverseChanges],
    limit: int = 100,
) -> DryRun:
    """Return what would conflict if the changes were taken back now, judged by the replica.

    The replica is as far as it has come. Raises UndoError if it is no database or isn't there yet,
    DownstreamError, CheckpointError, RouteError.
    """
    return _look(settings, past, reverses, limit, leaves=False)[0]


def leave_conflicts(
    settings: Settings,
    past: PastChanges,
    reverses: Sequence[InverseChanges],
    limit: int = 100,
) -> tuple[DryRun, list[InverseChanges]]:
    """As `dry_run`, and return the inverse changes without the rows that conflict.

    Raises UndoError, too, for a conflict that can't be left alone without losing a row.
    """
    return _look(settings, past, reverses, limit, leaves=True)


def _look(
    settings: Settings,
    past: PastChanges,
    reverses: Sequence[InverseChanges],
    limit: int,
    *,
    leaves: bool,
) -> tuple[DryRun, list[InverseChanges]]:
    target = settings.target
    if not isinstance(target, Downstream):
        raise UndoError(
            "the downstream is no database: a dry run has nothing to read",
            hint="leave --dry-run out",
        )
    session = MySQLSession(target)
    session.connect()
    with closing(session):
        session.begin()  # one snapshot for all that is read, the checkpoint first
        checkpoint = CheckpointTable.from_settings(session, target, past.cluster_id).load()
        at = checkpoint.commit_ts if checkpoint is not None else 0
        if at < past.last_ts:
            raise UndoError(
                f"the replica is as of {tso.text(at)}: what was committed at"
                f" {tso.text(past.last_ts)} isn't there yet",
                hint="wait until `sluice status` shows a checkpoint behind it",
            )
        done = DryRun(at)
        kept = []
        for reverse in reverses:
            found = _check_table(session, settings, reverse, done, limit)
            done.rows += reverse.rows if found is not None else 0
            # a row that stays may hold a unique value that another one is to get back
            while leaves and found:
                reverse = _without(reverse, found)
                found = _check_table(session, settings, reverse, done, limit)
            kept.append(reverse)
        session.rollback()
    return done, kept


def _without(reverse: InverseChanges, found: Sequence[_Found]) -> InverseChanges:
    first = found[0].conflict
    moves = image_count(reverse.left) and image_count(reverse.again)
    if moves or not lookup_key_columns(reverse.touched.then):
        why = (
            "some rows of the table go and others come again, which may be one row that moved"
            if moves
            else "the table has no key"
        )
        raise UndoError(
            f"{first.table} [{first.row}] {first.why}, and can't be left out: {why}",
            hint="choose other changes by --kind, --table or --where",
        )
    rows = {
        side: [each.row for each in found if each.images is getattr(reverse, side)]
        for side in ("left", "again", "after", "before")
    }
    return reverse.without(rows["left"], rows["again"], rows["after"] + rows["before"])


def _check_table(
    session: MySQLSession, settings: Settings, reverse: InverseChanges, done: DryRun, limit: int
) -> list[_Found] | None:
    """Return the conflicts, and add them to `done`; None if the replica can't be compared."""
    now = reverse.touched.now
    if not settings.filters.wants_table(now.schema_name, now.name):
        done.unchecked.append(f"{now.full_name} isn't replicated")
        return None
    if rules := settings.filters.row_rules(now.schema_name, now.name):
        done.unchecked.append(f"{now.full_name}: {rules[0].text} leaves some of its rows out")
        return None
    if columns := settings.filters.column_rules(now.schema_name, now.name):
        done.unchecked.append(f"{now.full_name}: {columns[0].effect}")
        return None
    goal = settings.routes.target(now.schema_name, now.name)
    if goal.source_column:
        done.unchecked.append(
            f"{now.full_name} shares {full_name(goal.schema, goal.table)} with other tables, by the"
            f" column {goal.source_column}"
        )
        return None
    named = replace(now, schema_name=goal.schema, name=goal.table)
    found = []
    try:
        for each in _TableCheck(session, reverse, named).conflicts():
            found.append(each)
            done.count += 1
            done.back += each.conflict.why == BACK
            if len(done.conflicts) < limit:
                done.conflicts.append(each.conflict)
    except DownstreamError as error:
        if error.transient:
            raise
        raise UndoError(
            f"{named.full_name} can't be compared with what {now.full_name} was: {error}"
        ) from error
    return found


@dataclass(frozen=True, slots=True)
class _Condition:
    """SQL that is true for `count` rows if all is well.

    `row`: the row of the images that it is about.
    """

    sql: bytes
    count: int
    row: int


class _TableCheck:
    def __init__(self, session: MySQLSession, reverse: InverseChanges, named: Table) -> None:
        self._session = session
        self._reverse = reverse
        self._named = named
        self._sql = TableUndoSql(reverse, named, exact_floats=False)

    def conflicts(self) -> Iterator[_Found]:
        reverse = self._reverse
        for images in (reverse.left, reverse.after):
            yield from self._changed_rows(images)
        yield from self._taken_keys(
            reverse.again,
            np.arange(image_count(reverse.again)),
            conflict_keys(reverse.touched.then),
        )
        rows = np.arange(image_count(reverse.after))
        for key in conflict_keys(reverse.touched.then):
            if key and set(key) <= reverse.after.keys():
                old, new = (
                    [images[name] for name in key] for images in (reverse.before, reverse.after)
                )
                yield from self._taken_keys(
                    reverse.before, np.flatnonzero(~unchanged_rows(old, new, rows, rows)), [key]
                )

    def _changed_rows(self, images: Images) -> Iterator[_Found]:
        conditions = self._sql.conditions(images)
        if self._sql.is_keyless:
            firsts: dict[bytes, int] = {}
            for row, condition in enumerate(conditions):
                firsts.setdefault(condition, row)
            for condition, count in Counter(conditions).items():
                if self._count([condition]) < count:
                    yield self._conflict(images, firsts[condition], DELETED_SINCE)
            return
        looked = [_Condition(condition, 1, row) for row, condition in enumerate(conditions)]
        changed = [wrong.row for wrong in self._wrong(looked)]
        back = (
            self._as_they_were(self._reverse.before, changed)
            if images is self._reverse.after
            else set()
        )
        for row in changed:
            if row in back:
                yield self._conflict(images, row, BACK)
                continue
            key = self._equal(self._sql.key, images, np.array([row]))[0]
            assert key is not None
            yield self._conflict(
                images, row, CHANGED_SINCE if self._count([key]) else DELETED_SINCE
            )

    def _as_they_were(self, images: Images, rows: Sequence[int]) -> set[int]:
        """Return which of these rows the replica has, whole."""
        conditions = self._sql.conditions(images) if rows else []
        looked = [_Condition(conditions[row], 1, row) for row in rows]
        return {*rows} - {wrong.row for wrong in self._wrong(looked)}

    def _taken_keys(
        self, images: Images, rows: np.ndarray, keys: Sequence[tuple[str, ...]]
    ) -> Iterator[_Found]:
        """Yield rows whose place in a unique key another row has."""
        columns = {column.name: column for column in self._sql.writable}
        shown: set[int] = set()
        for key in keys:
            if not key or key == (ROWID_NAME,) or not set(key) <= columns.keys():
                continue
            of = [columns[name] for name in key]
            wanted = self._equal(of, images, rows)
            ours = self._rows_to_delete(of)
            looked = [
                _Condition(sql + ours.get(_folded(sql), b""), 0, row)
                for sql, row in zip(wanted, rows.tolist(), strict=True)
                if sql is not None and row not in shown
            ]
            taken = [wrong.row for wrong in self._wrong(looked)]
            back = self._as_they_were(images, taken)
            for row in taken:
                shown.add(row)
                yield self._conflict(images, row, BACK if row in back else KEY_TAKEN)

    def _rows_to_delete(self, key: Sequence[Column]) -> dict[bytes, bytes]:
        """Return the negated conditions of rows that make room on undo, by key condition."""
        found: dict[bytes, bytes] = {}
        for images in (self._reverse.left, self._reverse.after):
            wholes = self._sql.conditions(images)
            for sql, whole in zip(
                self._equal(key, images, np.arange(image_count(images))), wholes, strict=True
            ):
                if sql is not None:
                    found[_folded(sql)] = (
                        found.get(_folded(sql), b"") + b" AND NOT (" + whole + b")"
                    )
        return found

    def _equal(self, key: Sequence[Column], images: Images, rows: np.ndarray) -> list[bytes | None]:
        """Return a condition a row: equal as a unique key of the downstream compares.

        None where the key has a NULL.
        """
        index = pa.array(rows, pa.int64())
        parts = []
        for column, array in zip(key, self._sql.arrays(key, images), strict=True):
            values = array.take(index)
            name = quote_name(column.name).encode()
            bytewise = column.kind == "text" and invalid_utf8_mask(values) is not None
            left = b"CAST(" + name + b" AS BINARY)=" if bytewise else name + b"="
            equal = (
                near_key_conditions(column, values)
                if is_rounded(column)
                else join(left, literal_column(values, column))
            )
            parts.append(_null_where(equal, values))
        found: list[bytes | None] = join(*parts, separator=b" AND ").to_pylist()
        return found

    def _wrong(self, conditions: Sequence[_Condition]) -> Iterator[_Condition]:
        """Yield conditions whose count is wrong: counted together first, then by halves."""
        for group in _condition_groups(conditions):
            yield from self._halved(group)

    def _halved(self, group: Sequence[_Condition]) -> Iterator[_Condition]:
        if self._count([each.sql for each in group]) == sum(each.count for each in group):
            return
        if len(group) == 1:
            yield group[0]
            return
        middle = len(group) // 2
        yield from self._halved(group[:middle])
        yield from self._halved(group[middle:])

    def _count(self, conditions: Sequence[bytes]) -> int:
        either = b"\nOR ".join(b"(" + condition + b")" for condition in conditions)
        ((count,),) = self._session.query(
            f"SELECT COUNT(*) FROM {quote_table(self._named)} WHERE ".encode() + either
        )
        return int(count)

    def _conflict(self, images: Images, row: int, why: str) -> _Found:
        names = [column.name for column in lookup_key_columns(self._reverse.touched.then)] or [
            column.name for column in self._sql.writable
        ]
        return _Found(
            Conflict(self._named.full_name, row_text(images, names, row), why), images, row
        )


def _null_where(texts: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_valid(values), texts, pa.scalar(None, pa.large_binary()))


def _folded(sql: bytes) -> bytes:
    """Fold a value so that values which a collation may take for equal are alike."""
    return (
        sql.decode("utf-8", "surrogateescape")
        .casefold()
        .replace(" '", "'")
        .encode("utf-8", "surrogateescape")
    )


def _condition_groups(conditions: Sequence[_Condition]) -> Iterator[list[_Condition]]:
    group: list[_Condition] = []
    size = 0
    for condition in conditions:
        if group and (
            len(group) == _ROWS_PER_QUERY or size + len(condition.sql) > _MAX_QUERY_BYTES
        ):
            yield group
            group, size = [], 0
        group.append(condition)
        size += len(condition.sql)
    if group:
        yield group
