"""Whether row changes are downstream, told from the rows themselves: what a definition looks like anybody may have
brought about, but rows as only these changes leave them nobody else.

Each row that the changes concern must be as the last of them leaves it, or as a later one does, as far as its columns
are still there; under the names that they have since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from etl.downstream import Checkpoint, MySQLSession
from etl.formats.sql_text import quote_name, row_conditions, shown
from etl.recorded_schema import RecordedSchema, TablesAt
from etl.rules import Rules
from etl.shapes.identity import identity, locating_columns
from etl.shapes.raw_changes import Images, RawChanges, decode
from relay import DELETE, INSERT, SKIP, UPDATE, RelayLog, Window
from upstream.codec.row import column_ids
from upstream.rows import RowDecodeError
from upstream.schema import Column, Table

_COLUMNS = "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
_MAX_ROWS = 200_000


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a table's rows are: its quoted name downstream, and by column id what the columns there are called."""

    name: str
    columns: Mapping[int, str]

    def conditions(self, columns: Sequence[Column], images: Images) -> list[bytes]:
        """One a row, true for rows with these values in those of the columns that are there."""
        there = [(replace(c, name=self.columns[c.id]), images[c.name]) for c in columns if c.id in self.columns]
        if not there:
            return [b"TRUE"] * len(next(iter(images.values())))
        found: list[bytes] = row_conditions([c for c, _ in there], [image for _, image in there]).to_pylist()
        return found


@dataclass(slots=True)
class _Left:
    """What a change leaves of a row. `same`: equal for changes of the same row. `key`: a condition that is true for it
    alone, None where only all values together say which it is. `image`: one that is true for rows that look as it does,
    None: it isn't there. `removed`: what it looked like before it went, None if that isn't known.
    """

    same: tuple[Any, ...]
    place: _Place
    key: bytes | None
    image: bytes | None
    removed: bytes | None
    words: tuple[Table, Images, int]


@dataclass(slots=True)
class _Row:
    """`last`: the last change that counts, committed at `commit_ts`; `images`: what it may look like."""

    last: _Left
    commit_ts: int
    images: list[bytes | None] = field(default_factory=list)


def first_missing(session: MySQLSession, relay: RelayLog, rules: Rules, checkpoint: Checkpoint, through: int) -> str:
    """ "" if every row change committed after `checkpoint` through `through` (TSO) is downstream; else the first row
    that isn't as it should be, in words. Changes through the checkpoint's `safe_until` may be downstream too.
    """
    after, until = checkpoint.commit_ts, checkpoint.safe_until
    places = _Places(session, rules, _left_by_ddl(relay, after, through))
    rows: dict[tuple[Any, ...], _Row] = {}
    for window in relay.windows(after, until) if after < until else ():
        try:
            found = _changes(relay, window, rules, places, checkpoint)
        except RowDecodeError as error:
            return str(error)
        for commit_ts, left in found:
            if commit_ts <= through:
                rows[left.same] = _Row(left, commit_ts, [left.image])
            elif (row := rows.get(left.same)) is not None:
                row.images.append(left.image)
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


class _Places:
    """Where the rows of tables are, once the DDL has run that leaves `tables`."""

    def __init__(self, session: MySQLSession, rules: Rules, tables: Mapping[int, Table | None]) -> None:
        self._session, self._rules, self._tables = session, rules, tables
        self._known: dict[int, _Place | None] = {}

    def of(self, table: Table) -> _Place | None:
        """None if it was dropped with all its rows. `table`: as it was at some moment before."""
        if table.id not in self._known:
            last = self._tables.get(table.id, table)
            self._known[table.id] = self._look(last) if last is not None else None
        return self._known[table.id]

    def _look(self, table: Table) -> _Place:
        goal = self._rules.routes.target(table.schema_name, table.name)
        there = {str(name).lower() for (name,) in self._session.query(_COLUMNS, (goal.schema, goal.table))}
        names = {column.id: column.name for column in table.columns if column.name.lower() in there}
        return _Place(f"{quote_name(goal.schema)}.{quote_name(goal.table)}", names)


def _changes(
    relay: RelayLog, window: Window, rules: Rules, places: _Places, checkpoint: Checkpoint
) -> Iterator[tuple[int, _Left]]:
    """(commit timestamp, what a change leaves) of each that counts, in order. Raises RowDecodeError."""
    changes = relay.read([window])
    known = TablesAt.of(window)
    skipped = {
        decision.commit_ts for decision in relay.decisions.list(window.lo) if decision.action == SKIP
    } | rules.ignored_ts
    alike: dict[tuple[int, int], tuple[Table, list[int]]] = {}
    rest = zip(*(changes[name].to_pylist() for name in ("table_id", "kind", "commit_ts")), strict=True)
    for at, (table_id, kind, commit_ts) in enumerate(rest):
        table = known.find(table_id, commit_ts)
        counts = checkpoint.commit_ts < commit_ts <= checkpoint.safe_until and commit_ts not in skipped
        if counts and table is not None and not _left_out(rules, table, kind) and places.of(table) is not None:
            alike.setdefault((table_id, id(table)), (table, []))[1].append(at)
    left: list[tuple[int, int, list[_Left]]] = []
    for (table_id, _), (table, wanted) in alike.items():
        place = places.of(table)
        assert place is not None
        raw = RawChanges.of(changes.take(pa.array(wanted)))
        each = _left_by(table_id, table, place, raw)
        left += zip(wanted, raw.commit_ts.tolist(), each, strict=True)
    return ((commit_ts, one) for _, commit_ts, several in sorted(left, key=lambda entry: entry[0]) for one in several)


def _left_out(rules: Rules, table: Table, kind: int) -> bool:
    wanted = rules.filters.wants_table(table.schema_name, table.name)
    return not wanted or kind in rules.filters.ignored_row_kinds(table.schema_name, table.name)


def _left_by(table_id: int, table: Table, place: _Place, raw: RawChanges) -> list[list[_Left]]:
    """What each of some changes of a table leaves, under the keys that it concerns."""
    olds, news = decode(table, raw.kinds, raw.own_rows)
    old_sides, new_sides = (_sides(table_id, table, place, images) for images in (olds, news))
    found: list[list[_Left]] = []
    old_at, new_at = iter(old_sides), iter(new_sides)
    for number, kind in enumerate(np.asarray(raw.kinds).tolist()):
        old = next(old_at) if kind != INSERT else None
        new = next(new_at) if kind != DELETE else None
        entries = []
        if old is not None and (new is None or new.same != old.same):
            is_known = old.key is not None or _is_whole(table, kind, raw.rows[number].as_py())
            entries.append(replace(old, image=None, removed=old.image if is_known else None))
        if new is not None:
            entries.append(new)
        found.append(entries)
    return found


def _is_whole(table: Table, kind: int, row: bytes) -> bool:
    """Whether the old image of a change has every column; while TiDB drops one, it comes without it."""
    return {c.id for c in table.stored_columns} <= set(column_ids(row, images=2 if kind == UPDATE else 1))


def _sides(table_id: int, table: Table, place: _Place, images: Images) -> list[_Left]:
    """The rows of some images, as what leaves them so."""
    if not images or not len(next(iter(images.values()))):
        return []
    key = locating_columns(table)
    looks = place.conditions([c for c in table.stored_columns if not c.generated], images)
    is_found = bool(key) and all(column.id in place.columns for column in key)
    keys: Sequence[bytes | None] = place.conditions(key, images) if is_found else [None] * len(looks)
    if is_found:
        sames: list[tuple[Any, ...]] = [(place.name, each) for each in keys]
    elif names := identity(table):
        sames = [(table_id, *each) for each in zip(*(images[name].to_pylist() for name in names), strict=True)]
    else:
        sames = [(place.name, each) for each in looks]
    return [
        _Left(same, place, key_condition, look, None, (table, images, at))
        for at, (same, key_condition, look) in enumerate(zip(sames, keys, looks, strict=True))
    ]


def _is_there(session: MySQLSession, row: _Row) -> bool:
    place, last = row.last.place, row.last
    if not place.columns:
        return False
    looks = [image for image in row.images if image is not None]
    if looks and _count(session, place, looks):
        return True
    gone = last.key or last.removed
    return None in row.images and gone is not None and not _count(session, place, [gone])


def _count(session: MySQLSession, place: _Place, conditions: Sequence[bytes]) -> int:
    either = b") OR (".join(conditions)
    return int(session.query(b"SELECT COUNT(*) FROM %b WHERE (%b)" % (place.name.encode(), either))[0][0])


def _in_words(row: _Row) -> str:
    table, images, at = row.last.words
    key = ", ".join(f"{c.name}={shown(images[c.name], at)!r:.60}" for c in locating_columns(table))
    return (
        f"{table.full_name}, {f'key {key}' if key else 'a table without a key'}, is not as commit_ts {row.commit_ts} or"
        " later leaves it"
    )


__all__ = ["first_missing"]
