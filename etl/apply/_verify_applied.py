"""Verify that row changes are downstream, by the rows themselves.

Another program may have made a table's definition look so, but only these changes leave such rows.
Each row must be as the last of its changes leaves it, or as a later one does, in the columns that
still exist and under their present names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice.etl.apply._expected_rows import ExpectedRow, ExpectedRows, TableLocation, TableLocations
from sluice.etl.changes.planning import PartitionError, PartitionMove
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.rules import ReplicationRules
from sluice.etl.changes.steps import ChangeError
from sluice.etl.downstream import Checkpoint, MySQLSession
from sluice.relay import RelayLog
from sluice.tidb.rows import RowDecodeError
from sluice.tidb.schema import Table

_MAX_ROWS = 200_000


@dataclass(slots=True)
class _RowState:
    """The rows that had one downstream identity in the last transaction, committed at `commit_ts`.

    There may be several: rows hand a key on, also between merged tables, and changes lie by table,
    not in their order. `also` has the images that later changes may have left.
    """

    commit_ts: int
    expected: dict[tuple[Any, ...], ExpectedRow]
    alternatives: list[bytes | None] = field(default_factory=list)

    @property
    def latest(self) -> ExpectedRow:
        """Return the row that is there, or the last that was removed."""
        lefts = list(self.expected.values())
        return next((left for left in lefts if left.image is not None), lefts[-1])


def first_unapplied_row(
    session: MySQLSession,
    relay: RelayLog,
    rules: ReplicationRules,
    checkpoint: Checkpoint,
    through: int,
) -> str:
    """Return the first row that isn't as changes through `through` leave it, or "".

    The changes are those after `checkpoint`. Changes through the checkpoint's `safe_until` may be
    downstream, too.
    """
    after, until = checkpoint.commit_ts, checkpoint.safe_until
    expected = ExpectedRows(
        relay,
        rules,
        TableLocations(session, rules, _tables_after_ddl(relay, after, through)),
        after,
        until,
    )
    rows: dict[tuple[Any, ...], _RowState] = {}
    for window in relay.windows(after, until):
        try:
            for commit_ts, left in expected.for_window(window):
                _record_rows(rows, commit_ts, left, through)
        except (RowDecodeError, PartitionError, ChangeError) as error:
            return str(error)
        if len(rows) > _MAX_ROWS:
            return f"more than {_MAX_ROWS} rows are concerned"
    return next((_describe(row) for row in rows.values() if not _matches(session, row)), "")


def _tables_after_ddl(relay: RelayLog, after: int, through: int) -> dict[int, Table | None]:
    """Return the tables that DDL after `after` through `through` leaves, by id; None: dropped."""
    tables: dict[int, Table | None] = {}
    for window in relay.windows(after, through):
        for ddl in RecordedSchema.from_window(window).ddls:
            if after < ddl.commit_ts <= through:
                tables |= ddl.effect.tables
    return tables


def _record_rows(
    rows: dict[tuple[Any, ...], _RowState],
    commit_ts: int,
    left: ExpectedRow | PartitionMove,
    through: int,
) -> None:
    if isinstance(left, PartitionMove):
        for row in rows.values():
            if row.latest.may_disappear_with(left):
                row.alternatives.append(None)
        return
    known = rows.get(left.downstream_identity)
    if commit_ts > through:
        if known is not None:
            known.alternatives.append(left.image)
        return
    if known is None or known.commit_ts != commit_ts:
        known = rows[left.downstream_identity] = _RowState(commit_ts, {})
    known.expected[left.upstream_identity] = left


def _matches(session: MySQLSession, row: _RowState) -> bool:
    last, place = row.latest, row.latest.place
    if not place.columns:
        return False
    images = [last.image, *row.alternatives]
    looks = [image for image in images if image is not None]
    if looks and _count_rows(session, place, looks):
        return True
    gone = last.key or last.removed or last.image
    return None in images and gone is not None and not _count_rows(session, place, [gone])


def _count_rows(session: MySQLSession, place: TableLocation, conditions: Sequence[bytes]) -> int:
    either = b") OR (".join(conditions)
    return int(
        session.query(b"SELECT COUNT(*) FROM %b WHERE (%b)" % (place.name.encode(), either))[0][0]
    )


def _describe(row: _RowState) -> str:
    return f"{row.latest.description}, is not as commit_ts {row.commit_ts} or later leaves it"


__all__ = ["first_unapplied_row"]
