"""Random sequences of DDL over odd names, against a model of columns and values."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.tidb.schema import Column, Index
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, column, table
from tests.examples import examples

NAMES = (
    "id",
    "Plain",
    "select",
    "it's",
    'say "x"',
    "a`b",
    "100%",
    "%s",
    "with space",
    "back\\slash",
    "ключ",
    "semi;--",
    "KEY",
    "(paren",
    "/*c*/",
    "@v",
)
TYPES = (
    "int",
    "bigint",
    "varchar(20)",
    "varchar(200)",
    "text",
    "datetime",
    "decimal(10,2)",
    "json",
)
VALUES: dict[str, tuple[Any, ...]] = {
    "int": (0, -5, 2**31 - 1, None),
    "text": ("", "it's \\ %s", "日本", None),
    "datetime": ("2020-01-02 03:04:05", None),
    "decimal": ("1.50", None),
    "json": ('{"a": "it\'s \\\\"}', None),
}
CHANGES = {
    "int": ("bigint", "varchar(30)"),
    "bigint": ("varchar(30)",),
    "varchar(20)": ("varchar(200)", "text"),
    "varchar(200)": ("text",),
}
DEFAULTS: dict[str, tuple[str | None, ...]] = {
    "int": (None, "7"),
    "text": (None, "a'b\\%s"),
    "datetime": (None, "2019-12-31 23:59:59"),
    "decimal": (None, "2.25"),
    "json": (None,),
}


class Model:
    """A table upstream, its rows as column id → value, and the story that tells of it."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._ids = itertools.count(2)
        self._types = {1: "int"}
        self.table = story.create(table(10, "t%", "id int", primary="id"), "CREATE TABLE …")
        self.rows: list[dict[int, Any]] = []
        self._keys = itertools.count(1)
        self._indexes = itertools.count(2)

    def _become(
        self,
        kind: int,
        columns: list[Column],
        indexes: tuple[Index, ...] | None = None,
        query: str = "ALTER TABLE …",
        **more: Any,
    ) -> None:
        placed = tuple(replace(c, offset=n) for n, c in enumerate(columns))
        where = {c.id: c for c in placed}
        old = {c.name: c.id for c in self.table.columns}
        kept = []
        for index in self.table.indexes if indexes is None else indexes:
            at = [
                more.get("ids", {}).get(old.get(name), old.get(name))
                for name, _, _ in index.columns
            ]
            if all(i in where for i in at):
                kept.append(
                    replace(
                        index,
                        columns=tuple(
                            (where[i].name, where[i].offset, 10 if where[i].kind == "text" else -1)
                            for i in at
                        ),
                    )
                )  # type: ignore[index]
        self.table = replace(self.table, columns=placed, indexes=tuple(kept))
        self._story.statement(kind, query, self.table)

    def _free(self, draw: Any) -> str:
        taken = {c.name.lower() for c in self.table.columns}
        return str(draw(st.sampled_from([name for name in NAMES if name.lower() not in taken])))

    def _others(self) -> list[Column]:
        return [c for c in self.table.columns if c.id != 1]

    def insert(self, draw: Any) -> None:
        row: dict[int, Any] = {1: next(self._keys)}
        for c in self._others():
            row[c.id] = draw(st.sampled_from(VALUES[c.kind]))
        self.rows.append(row)
        self._story.insert(self.table, {c.name: row[c.id] for c in self.table.columns})

    def update(self, draw: Any) -> None:
        if self.rows and self._others():
            row, c = draw(st.sampled_from(self.rows)), draw(st.sampled_from(self._others()))
            before = {c.name: row[c.id] for c in self.table.columns}
            row[c.id] = draw(st.sampled_from(VALUES[c.kind]))
            self._story.update(self.table, before, {c.name: row[c.id] for c in self.table.columns})

    def add(self, draw: Any) -> None:
        if len(self.table.columns) > 8:
            return
        kind = draw(st.sampled_from(TYPES))
        number = next(self._ids)
        made = replace(column(number, f"x {kind}"), name=self._free(draw))
        default = draw(st.sampled_from(DEFAULTS[made.kind])) if kind != "text" else None
        made = replace(made, default=default, origin_default=default)
        columns = list(self.table.columns)
        columns.insert(draw(st.integers(0, len(columns))), made)
        self._types[number] = kind
        for row in self.rows:
            row[number] = int(default) if default and made.kind == "int" else default
        self._become(5, columns)

    def drop(self, draw: Any) -> None:
        if self._others():
            gone = draw(st.sampled_from(self._others()))
            for row in self.rows:
                del row[gone.id]
            self._become(6, [c for c in self.table.columns if c.id != gone.id])

    def change(self, draw: Any) -> None:
        """A new name, a new type, a new place: any of them."""
        if not self._others():
            return
        old = draw(st.sampled_from(self._others()))
        new = replace(old, name=self._free(draw)) if draw(st.booleans()) else old
        kinds = CHANGES.get(self._types[old.id], ())
        ids = {}
        if kinds and draw(st.booleans()):
            kind = draw(st.sampled_from(kinds))
            number = next(self._ids)  # rows are rewritten: a new id
            new = replace(
                column(number, f"x {kind}"),
                name=new.name,
                default=None if kind == "text" else old.default,
            )
            self._types[number] = kind
            ids = {old.id: number}
            for row in self.rows:
                value = row.pop(old.id)
                row[number] = str(value) if new.kind == "text" and value is not None else value
        columns = [c for c in self.table.columns if c.id != old.id]
        columns.insert(draw(st.integers(0, len(columns))), new)
        self._become(12, columns, ids=ids)

    def index(self, draw: Any) -> None:
        usable = [c for c in self.table.columns if c.kind != "json"]
        if len(self.table.indexes) < 3:
            c = draw(st.sampled_from(usable))
            made = Index(
                number := next(self._indexes), f"k{number} `%s'", ((c.name, c.offset, -1),)
            )
            self._become(7, list(self.table.columns), (*self.table.indexes, made))
        else:
            self._become(8, list(self.table.columns), self.table.indexes[1:])

    def rename_index(self, draw: Any) -> None:
        if self.table.indexes:
            first, *rest = self.table.indexes
            other = (
                replace(first, name=f"{first.name}+")
                if draw(st.booleans())
                else replace(first, invisible=not first.invisible)
            )
            self._become(
                18 if other.name != first.name else 41, list(self.table.columns), (other, *rest)
            )

    def rename(self, draw: Any) -> None:
        self.table = replace(self.table, name=f"t{draw(st.sampled_from(NAMES))}")
        self._story.statement(14, "RENAME TABLE …", self.table)

    def apply(self, draw: Any) -> None:
        self._story.apply()

    def check(self) -> None:
        self._story.apply()
        connection = self._story.server.connect(conv={}, use_unicode=True)
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM `d`.`{self.table.name.replace('`', '``')}` ORDER BY id")
            assert [d[0] for d in cursor.description] == [c.name for c in self.table.columns]
            found = list(cursor.fetchall())
            cursor.execute(f"SHOW INDEX FROM `d`.`{self.table.name.replace('`', '``')}`")
            indexes = {row[2]: row[4] for row in cursor.fetchall() if row[2] != "PRIMARY"}
        connection.close()
        assert found == [
            tuple(None if row[c.id] is None else str(row[c.id]) for c in self.table.columns)
            for row in self.rows
        ]
        assert indexes == {index.name: index.columns[0][0] for index in self.table.indexes}


STEPS = (
    "insert",
    "insert",
    "update",
    "add",
    "add",
    "drop",
    "change",
    "change",
    "change",
    "index",
    "rename_index",
    "rename",
    "apply",
)


@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_whatever_statements_come_the_columns_their_order_and_their_values_are_the_upstreams(
    mariadb: MariaDBServer, data: st.DataObject
) -> None:
    mariadb.empty()
    folder = Path(tempfile.mkdtemp(prefix="sluice-ddl-"))
    try:
        model = Model(Story(mariadb, folder))
        for step in data.draw(st.lists(st.sampled_from(STEPS), min_size=4, max_size=25)):
            getattr(model, step)(data.draw)
        model.check()
    finally:
        shutil.rmtree(folder)
