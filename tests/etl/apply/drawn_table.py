"""A table with rows and statements about them, drawn by hypothesis and told as a story."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.ddl_actions import Action
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Column, Index, Table
from tests.etl.story import Row, Story, column, table

SPECS = ("a varchar(9)", "b int", "c decimal(10,2)", "d enum('x','y')", "e bigint")
VALUES: dict[str, list[Any]] = {
    "varchar": [None, "", "eu", "EU "],
    "int": [None, 0, -7, 2**31 - 1],
    "bigint": [None, 1, -(2**63)],
    "decimal": [None, "0.50", "-10.00"],
    "enum": [None, "x", "y"],
}
KINDS = ("clustered", "text key", "heap", "keyless")


def made_of(kind: str, specs: list[str]) -> Table:
    key = {"text key": "id varchar(9)"}.get(kind, "id int not null")
    if kind in ("clustered", "text key"):
        return table(11, "t", key, *specs, primary="id")
    return table(11, "t", key, *specs, unique=("id",) if kind == "heap" else ())


def spec_kind(one: Column) -> str:
    return {"text": "varchar"}.get(one.kind, "bigint" if one.tp == 8 else one.kind)


class DrawnTable:
    """A table, its rows, and the statements about them, drawn by hypothesis.

    `lasting`: a column that no statement drops. With `renames` columns get other names upstream.
    """

    def __init__(
        self,
        story: Story,
        kind: str,
        data: st.DataObject,
        lasting: str | None = None,
        *,
        renames: bool = False,
    ) -> None:
        self.story, self.kind, self.data = story, kind, data
        self._what = ["add", "drop", "modify", "index", *(["rename"] if renames else [])]
        specs = data.draw(st.lists(st.sampled_from(SPECS), min_size=1, unique=True))
        self.table = made_of(kind, specs if lasting is None else [*specs, lasting])
        self._lasting = lasting.partition(" ")[0] if lasting else None
        self.rows: dict[int, Row] = {}
        self.last_id = len(self.table.columns)
        story.create(self.table, "CREATE TABLE t (...)")

    def row(self, number: int) -> Row:
        found: Row = {"id": f"k{number}" if self.kind == "text key" else number}
        found["_tidb_rowid"] = number
        for one in self.table.columns[1:]:
            found[one.name] = self.data.draw(st.sampled_from(VALUES[spec_kind(one)]))
        return found

    def transaction(self) -> None:
        encoded = []
        for _ in range(self.data.draw(st.integers(1, 5))):
            number = self.data.draw(st.integers(1, 4))
            kind = INSERT
            if number in self.rows:
                kind = self.data.draw(st.sampled_from([UPDATE, UPDATE, DELETE]))
            new = self.row(number)
            if kind == INSERT:
                row = encode_insert(self.table, new)
            elif kind == UPDATE:
                row = encode_update(self.table, self.rows[number], new)
            else:
                row = encode_delete(self.table, self.rows.pop(number))
            if kind != DELETE:
                self.rows[number] = new
            encoded.append((self.table, kind, row))
        self.story.changes(*encoded)

    def step(self) -> None:
        """A transaction, or a DDL one time of three."""
        if self.data.draw(st.integers(0, 2)) == 0:
            self.statement()
        else:
            self.transaction()

    def statement(self) -> None:
        others = self.table.columns[1:]
        what = self.data.draw(st.sampled_from(self._what))
        if what == "add":
            self.last_id += 1
            spec = f"x{self.last_id} " + self.data.draw(st.sampled_from(["int", "varchar(9)"]))
            place = self.data.draw(st.integers(1, len(self.table.columns)))
            new = column(self.last_id, spec)
            self.rows = {i: row | {new.name: None} for i, row in self.rows.items()}
            columns = [*self.table.columns[:place], new, *self.table.columns[place:]]
            self._alter(Action.ADD_COLUMN, columns)
        elif what == "drop" and len(others) > 1:
            gone = self.data.draw(st.sampled_from(others))
            if gone.name == self._lasting or any(
                gone.name in (n for n, _, _ in i.columns) for i in self.table.indexes
            ):
                return
            self._alter(Action.DROP_COLUMN, [c for c in self.table.columns if c is not gone])
        elif what == "modify" and (ints := [c for c in others if c.tp == 3]):
            one = self.data.draw(st.sampled_from(ints))
            wide = replace(column(one.id, f"{one.name} bigint"), offset=one.offset)
            columns = [wide if c is one else c for c in self.table.columns]
            self._alter(Action.MODIFY_COLUMN, columns)
        elif what == "rename" and others:
            was = self.data.draw(st.sampled_from(others))
            self.last_id += 1
            new_name = f"y{self.last_id}"
            self.rows = {
                i: {new_name if n == was.name else n: v for n, v in row.items()}
                for i, row in self.rows.items()
            }
            columns = [replace(c, name=new_name) if c is was else c for c in self.table.columns]
            self._alter(Action.MODIFY_COLUMN, columns)
        elif what == "index":
            one = self.data.draw(st.sampled_from([c for c in others if c.kind != "enum"] or others))
            index = Index(
                20 + len(self.table.indexes),
                f"i{len(self.table.indexes)}",
                ((one.name, one.offset, -1),),
                unique=False,
            )
            self._put(Action.ADD_INDEX, replace(self.table, indexes=(*self.table.indexes, index)))

    def _alter(self, kind: int, columns: list[Column]) -> None:
        placed = tuple(replace(c, offset=n) for n, c in enumerate(columns))
        by_id = {c.id: c for c in placed}
        now = {c.name: by_id[c.id] for c in self.table.columns if c.id in by_id}
        indexes = tuple(
            replace(
                i, columns=tuple((now[name].name, now[name].offset, n) for name, _, n in i.columns)
            )
            for i in self.table.indexes
        )
        self._put(kind, replace(self.table, columns=placed, indexes=indexes))

    def _put(self, kind: int, after: Table) -> None:
        self.table = after
        self.story.statement(kind, "ALTER TABLE t ...", after)
