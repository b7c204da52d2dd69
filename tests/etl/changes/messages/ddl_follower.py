"""A consumer that follows DDL: it keeps what a topic's messages and the upstream's DDL leave.

No format says what a statement does to rows that are there. So statements come as jobs of the relay
log, and new columns have the upstream's defaults. A statement that computes values or moves rows
between partitions makes the follower give up its table, until it is dropped or truncated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sluice.etl.changes.formats.ddl_columns import pair_columns
from sluice.etl.changes.messages import Message, MessageFormat
from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare_steps
from sluice.etl.changes.steps import ScopedDdl
from sluice.etl.history.as_of.versions import is_converted
from sluice.relay import RelayLog
from sluice.tidb.codec.column_value import missing_value
from sluice.tidb.ddl_actions import REMOVES_PARTITIONS, Action
from sluice.tidb.schema import Table
from tests.etl.changes.messages.recorded_messages import (
    Change,
    Reader,
    Row,
    elements_of,
    frozen,
    meaning,
)

_RECOVERS = {Action.RECOVER_TABLE, Action.RECOVER_SCHEMA}
_MOVES = REMOVES_PARTITIONS | {Action.EXCHANGE_PARTITION}


def jobs_of(relay: RelayLog) -> list[ScopedDdl]:
    """Return the DDL jobs in a relay log, with the tables before and after each."""
    batch = BatchPayload.from_windows(relay.windows(0))
    options = PrepareOptions("kafka_messages", message_format=MessageFormat("canal-json"))
    steps = prepare_steps(relay.url, batch, options)
    return [step.detail_of(ScopedDdl) for step in steps if step.kind == "ddl"]


class DdlFollower:
    """The tables of a topic by name. `left`: names of tables that were given up."""

    def __init__(self, reader: Reader, jobs: Sequence[ScopedDdl]) -> None:
        self._reader = reader
        self._jobs = list(jobs)
        self._tables: dict[str, Table] = {}
        self._rows: dict[str, Counter[Any]] = {}
        self._dropped: dict[int, Counter[Any]] = {}
        self._going: dict[str, set[str]] = {}
        """Columns that a DROP COLUMN has begun to drop: rows don't have them any more."""
        self.left: set[str] = set()

    def follow(self, messages: Iterable[Message]) -> dict[str, Counter[Any]]:
        """Return the rows of every table behind all messages and statements, but of those left."""
        for message in messages:
            while self._jobs and self._jobs[0].commit_ts < message.commit_ts:
                self._execute(self._jobs.pop(0))
            change = self._reader.read(message)
            if change is not None and change.op not in ("drop", "truncate"):
                self._apply(change)
        while self._jobs:
            self._execute(self._jobs.pop(0))
        found = {}
        for name, rows in self._rows.items():
            if name not in self.left and +rows:
                found[name] = self._with_columns(name, rows)
        return found

    def _apply(self, change: Change) -> None:
        if change.table in self.left:
            return
        rows = self._rows[change.table] = self._with_columns(
            change.table, self._rows.get(change.table, Counter())
        )
        old, new = (image and self._without(change.table, image) for image in change[2:])
        if old is not None:
            assert rows[frozen(old)] > 0, change
            rows[frozen(old)] -= 1
        if new is not None:
            rows[frozen(new)] += 1

    def _without(self, name: str, row: Row) -> Row:
        going = self._going.get(name, ())
        return {column: value for column, value in row.items() if column not in going}

    def _with_columns(self, name: str, rows: Counter[Any]) -> Counter[Any]:
        """Return rows with the columns that the table's last message has."""
        kinds = self._without(name, self._reader.kinds[name])
        first = next(iter(rows), None)
        if first is None or dict(first).keys() == kinds.keys():
            return rows
        columns = {column.name: column for column in self._tables[name].columns}

        def default(column: str) -> Any:
            made = columns[column]
            value = meaning(missing_value(made), kinds[column], elements_of(made))
            return self._reader.kept(value, kinds[column])

        more = {n: default(n) for n in kinds.keys() - dict(first).keys()}
        found: Counter[Any] = Counter()
        for row, count in rows.items():
            shown = {n: value for n, value in row if n in kinds}
            found[frozen(shown | more)] += count
        return found

    def _execute(self, job: ScopedDdl) -> None:
        pairs = list(job.table_pairs())
        if job.has_only_begun:
            self._begin_to_drop(job)
            return
        for old, _ in pairs:
            self._going.pop(old.full_name, None)
        held = {
            old.id: (
                self._rows.pop(old.full_name, Counter()),
                self._reader.kinds.pop(old.full_name, None),
                old.full_name in self.left,
            )
            for old, _ in pairs
        }
        self.left -= {old.full_name for old, _ in pairs}
        for table_id, table in job.effect.tables.items():
            before = job.before.get(table_id)
            if before is not None and table is None and table_id not in held:
                self._dropped[table_id] = self._rows.pop(before.full_name, Counter())
                self.left.discard(before.full_name)
            if table is not None:
                self._tables[table.full_name] = table
                if job.type in _RECOVERS and before is None:
                    self._rows[table.full_name] = self._dropped.pop(table_id, Counter())
        for old, new in pairs:
            rows, kinds, was_left = held[old.id]
            if job.type == Action.TRUNCATE_TABLE:
                self._dropped[old.id], rows, was_left = rows, Counter(), False
            elif was_left or job.type in _MOVES or self._computes(job, old, new):
                self.left.add(new.full_name)
                rows = Counter()
            names = self._names(job, old, new)
            if kinds is not None:
                self._reader.kinds[new.full_name] = {
                    names[n]: kind for n, kind in kinds.items() if n in names
                }
            renamed: Counter[Any] = Counter()
            for row, count in rows.items():
                renamed[frozen(_renamed(row, names))] += count
            self._rows[new.full_name] = renamed

    def _begin_to_drop(self, job: ScopedDdl) -> None:
        whole = next(each for each in self._jobs if each.job_id == job.job_id)
        for old, new in whole.table_pairs():
            names = {column.name for column in old.columns} - {c.name for c in new.columns}
            self._going[old.full_name] = names

    def _names(self, job: ScopedDdl, old: Table, new: Table) -> dict[str, str]:
        """Return the new name of each column that stays, by its old one."""
        by_id = {column.id: column.name for column in new.columns}
        return {was.name: by_id[i] for i, was in pair_columns(old, new, job).items()}

    def _computes(self, job: ScopedDdl, old: Table, new: Table) -> bool:
        by_id = {column.id: column for column in new.columns}
        pairs = pair_columns(old, new, job).items()
        return any(is_converted(was, by_id[i]) for i, was in pairs)


def _renamed(row: Any, names: dict[str, str]) -> Row:
    return {names[name]: value for name, value in row if name in names}
