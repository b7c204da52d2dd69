"""What a model leaves of a drawn table of which every version is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.etl.apply.soft_deleted import Drawn, time_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Row, Story

RULE = {"history": {"from": "since", "to": "until", "commit-ts": "made_by"}}


@dataclass
class Version:
    """A row from one commit to the next."""

    row: Row
    ts: int
    ended: datetime | None = None


@dataclass
class Versions:
    """The versions of a drawn table's rows: what transactions left of keys, if not the same."""

    upstream: Drawn
    all: list[Version] = field(default_factory=list)

    def transaction(self) -> None:
        before = dict(self.upstream.living)
        self.upstream.transaction()
        self.compare(before)

    def compare(self, before: dict[Any, Row]) -> None:
        """Note what the last transaction did; `before`: the rows that were there, by key."""
        after, ts = self.upstream.living, self.upstream.story.now
        for key in {*before, *after}:
            old, new = self._shown(before.get(key)), self._shown(after.get(key))
            if old == new:
                continue
            if old is not None:
                (opened,) = (
                    one for one in self.all if one.ended is None and self._shown(one.row) == old
                )
                opened.ended = time_of(ts)
            if new is not None:
                self.all.append(Version(after[key], ts))

    def end_all(self, ts: int) -> None:
        for one in self.all:
            one.ended = one.ended or time_of(ts)

    def _shown(self, row: Row | None) -> tuple[Any, ...] | None:
        return row and tuple(row[column.name] for column in self.upstream.table.columns)

    def wanted(self) -> list[tuple[Any, ...]]:
        found = ((*self._shown(one.row), time_of(one.ts), one.ended, one.ts) for one in self.all)  # type: ignore[misc]
        return sorted(found, key=repr)


def open_rows(story: Story) -> list[tuple[Any, ...]]:
    """The rows of the open versions downstream."""
    return [row[:-3] for row in story.rows("t") if row[-2] is None]


def run(server: MariaDBServer, *statements: str) -> list[tuple[Any, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()
        return list(cursor.fetchall())
