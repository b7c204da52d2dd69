"""Whether row changes are downstream, told from the rows themselves: what a definition looks like anybody may have
brought about, but rows as only these changes leave them nobody else.

Each row that the changes concern must be as the last of them leaves it, or as a later one does, as far as its columns
are still there; under the names that they have since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from etl.apply._rows_left import Left, LeftRows, Place, Places
from etl.downstream import Checkpoint, MySQLSession
from etl.prepare import Move, PartitionError
from etl.recorded_schema import RecordedSchema
from etl.rules import Rules
from etl.steps import ChangeError
from relay import RelayLog
from upstream.rows import RowDecodeError
from upstream.schema import Table

_MAX_ROWS = 200_000


@dataclass(slots=True)
class _Row:
    """What the last transaction that counts, committed at `commit_ts`, leaves of those that were the row in its course:
    rows may hand a key on, also to another of some merged tables, and changes lie by table, not in their order. `also`:
    what it may look like for what comes later.
    """

    commit_ts: int
    left: dict[tuple[Any, ...], Left]
    also: list[bytes | None] = field(default_factory=list)

    @property
    def last(self) -> Left:
        """Where it is, or what went."""
        lefts = list(self.left.values())
        return next((left for left in lefts if left.image is not None), lefts[-1])


def first_missing(session: MySQLSession, relay: RelayLog, rules: Rules, checkpoint: Checkpoint, through: int) -> str:
    """ "" if every row change committed after `checkpoint` through `through` (TSO) is downstream; else the first row
    that isn't as it should be, in words. Changes through the checkpoint's `safe_until` may be downstream too.
    """
    after, until = checkpoint.commit_ts, checkpoint.safe_until
    left_rows = LeftRows(relay, rules, Places(session, rules, _left_by_ddl(relay, after, through)), after, until)
    rows: dict[tuple[Any, ...], _Row] = {}
    for window in relay.windows(after, until):
        try:
            for commit_ts, left in left_rows.of(window):
                _note(rows, commit_ts, left, through)
        except (RowDecodeError, PartitionError, ChangeError) as error:
            return str(error)
        if len(rows) > _MAX_ROWS:
            return f"more than {_MAX_ROWS} rows are concerned"
    return next((_in_words(row) for row in rows.values() if not _is_there(session, row)), "")


def _left_by_ddl(relay: RelayLog, after: int, through: int) -> dict[int, Table | None]:
    """The tables that DDL committed after `after` through `through` concerns, as it leaves them; None: dropped."""
    tables: dict[int, Table | None] = {}
    for window in relay.windows(after, through):
        for ddl in RecordedSchema.of(window).ddls:
            if after < ddl.commit_ts <= through:
                tables |= ddl.effect.tables
    return tables


def _note(rows: dict[tuple[Any, ...], _Row], commit_ts: int, left: Left | Move, through: int) -> None:
    if isinstance(left, Move):
        for row in rows.values():
            if row.last.may_go_with(left):
                row.also.append(None)
        return
    known = rows.get(left.same)
    if commit_ts > through:
        if known is not None:
            known.also.append(left.image)
        return
    if known is None or known.commit_ts != commit_ts:
        known = rows[left.same] = _Row(commit_ts, {})
    known.left[left.who] = left


def _is_there(session: MySQLSession, row: _Row) -> bool:
    last, place = row.last, row.last.place
    if not place.columns:
        return False
    images = [last.image, *row.also]
    looks = [image for image in images if image is not None]
    if looks and _count(session, place, looks):
        return True
    gone = last.key or last.removed or last.image
    return None in images and gone is not None and not _count(session, place, [gone])


def _count(session: MySQLSession, place: Place, conditions: Sequence[bytes]) -> int:
    either = b") OR (".join(conditions)
    return int(session.query(b"SELECT COUNT(*) FROM %b WHERE (%b)" % (place.name.encode(), either))[0][0])


def _in_words(row: _Row) -> str:
    return f"{row.last.words}, is not as commit_ts {row.commit_ts} or later leaves it"


__all__ = ["first_missing"]
