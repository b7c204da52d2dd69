"""A table drawn by hypothesis, and what a model leaves of it where deleted rows stay."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Table
from tests.etl.story import Row, Story, table

KEYS: dict[str, tuple[Any, ...]] = {
    "number": (1, 2, 3),
    "text": ("a", "a ", "b", "B"),
    "any case": ("a", "A ", "É", "e", "b"),
    "pair": (1, 2, 3),
}


def made_of(kind: str, *, clustered: bool) -> Table:
    text = {"text": "k varchar(9)", "any case": "k varchar(9) collate utf8mb4_general_ci"}
    more = {"pair": ("k2 varchar(4)", "k,k2")}.get(kind)
    return table(
        11,
        "t",
        text.get(kind, "k int"),
        *([more[0]] if more else []),
        "u int",
        "v varchar(9)",
        primary=more[1] if more else "k",
        clustered=clustered,
        unique=("u",),
    )


def time_of(ts: int) -> datetime:
    """The time of a TSO in UTC, without a zone, as a DATETIME comes from the server."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return (epoch + timedelta(milliseconds=ts >> 18)).replace(tzinfo=None)


@dataclass
class Drawn:
    """A table upstream and, by its key as the server compares it, what should be downstream."""

    story: Story
    kind: str
    table: Table
    data: st.DataObject
    living: dict[Any, Row] = field(default_factory=dict)
    left: dict[Any, tuple[Row, datetime | None]] = field(default_factory=dict)
    rowid: int = 0

    def same(self, row: Row) -> Any:
        key = row["k"]
        if self.kind == "text":
            return key.rstrip()
        if self.kind == "any case":
            return key.rstrip().upper().replace("É", "E")
        return (key, row["k2"]) if self.kind == "pair" else key

    @property
    def rows(self) -> dict[Any, Row]:
        """The rows that are upstream."""
        return self.living

    def transaction(self) -> None:
        self.story.idle(self.story.now + 1 + (self.data.draw(st.integers(0, 1500)) << 18))
        when = time_of(self.story.now + 10)
        encoded = [
            change for _ in range(self.data.draw(st.integers(1, 5))) for change in self.change(when)
        ]
        self.story.changes(*encoded)

    def change(self, when: datetime) -> list[tuple[Table, int, bytes]]:
        new: Row = {"k": self.data.draw(st.sampled_from(KEYS[self.kind]))}
        if self.kind == "pair":
            new["k2"] = self.data.draw(st.sampled_from(["x", "y"]))
        taken = {row["u"] for row in self.living.values()}
        new["u"] = self.data.draw(st.sampled_from([None, *({1, 2, 3, 4, 5} - taken)]))
        new["v"] = self.data.draw(st.sampled_from([None, "x", "", "é"]))
        there = self.living.get(self.same(new))
        if there is None and self.living and self.data.draw(st.booleans()):
            return self.other_key(new, when)
        if there is None:
            return [self.came(new)]
        if self.data.draw(st.booleans()):
            return [self.went(there, when)]
        new |= {name: there[name] for name in ("k", "k2", "_tidb_rowid") if name in there}
        self.living[self.same(new)] = new
        self.left[self.same(new)] = new, None
        return [(self.table, UPDATE, encode_update(self.table, there, new))]

    def other_key(self, new: Row, when: datetime) -> list[tuple[Table, int, bytes]]:
        """An update of the key: of a clustered one TiDB makes a delete and an insert."""
        old = self.living[self.data.draw(st.sampled_from([*self.living]))]
        if self.table.handle_kind != "heap":
            return [self.went(old, when), self.came(new)]
        del self.living[self.same(old)]
        self.left[self.same(old)] = old, when
        new["_tidb_rowid"] = old["_tidb_rowid"]
        self.living[self.same(new)] = new
        self.left[self.same(new)] = new, None
        return [(self.table, UPDATE, encode_update(self.table, old, new))]

    def came(self, row: Row) -> tuple[Table, int, bytes]:
        self.rowid += 1
        row["_tidb_rowid"] = self.rowid
        self.living[self.same(row)] = row
        self.left[self.same(row)] = row, None
        return self.table, INSERT, encode_insert(self.table, row)

    def went(self, row: Row, when: datetime) -> tuple[Table, int, bytes]:
        del self.living[self.same(row)]
        self.left[self.same(row)] = row, when
        return self.table, DELETE, encode_delete(self.table, row)

    def wanted(self) -> list[tuple[Any, ...]]:
        shown = [column.name for column in self.table.columns]
        rows = ((*(row[name] for name in shown), when) for row, when in self.left.values())
        return sorted(rows, key=repr)
