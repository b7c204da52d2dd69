"""Three small tables, one with an index, one with a foreign key, one without a key: what a
bootstrap does to them is few statements, so that every place between two of them can be tried.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.copy.source import RowSource
from sluice.etl.copy.tidb_sql import TidbSql
from sluice.tidb.schema import Index, Schema
from tests.etl.copy.dump_writer import Way, content, write
from tests.etl.copy.given_rows import NOW, serving_all
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import table

_PARENT = table(11, "parent", "id int", "v int", primary="id")
_CHILD = table(12, "child", "id int", "p int", primary="id")
_KEY = {
    "id": 1,
    "fk_name": {"O": "to_parent"},
    "ref_schema": {"O": "d"},
    "ref_table": {"O": "parent"},
    "ref_cols": [{"O": "id"}],
    "cols": [{"O": "p"}],
    "on_delete": 0,
    "on_update": 0,
    "state": 5,
    "version": 1,
}
TABLES = (
    replace(_PARENT, indexes=(Index(1, "by_v", (("v", 1, -1),)),)),
    replace(_CHILD, indexes=(Index(1, "by_p", (("p", 1, -1),)),), foreign_keys=(_KEY,)),
    table(13, "log", "v int"),
)
ROWS: dict[str, list[tuple[int, ...]]] = {
    "parent": [(1, 10), (2, 20)],
    "child": [(1, 1), (2, 2), (3, 1)],
    "log": [(7,), (7,), (8,), (8,)],
}
TS = NOW - 5
"""Of the dump, and the time at which the live TiDB is read."""


def definitions() -> SourceSchema:
    """The schema at TS."""
    return SourceSchema(TS, 5, (Schema(1, "d", "utf8mb4", "utf8mb4_bin"),), TABLES)


def write_dump(folder: Path) -> str:
    """A file for each table, two of the one without a key."""
    files = {}
    for one in TABLES:
        rows = [tuple(str(value).encode() for value in row) for row in ROWS[one.name]]
        columns = [(c.name, "int", False) for c in one.columns]
        for number, some in enumerate((rows[:1], rows[1:]) if one.name == "log" else (rows,)):
            files[f"d.{one.name}.{number}.sql"] = content(one.name, columns, some, Way())
    return write(folder, files, TS)


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """A live TiDB with the same rows, as `open_source` wants it; a region has three rows."""
    rows: dict[int, list[list[Any]]] = {
        one.id: [
            [*row, *([n + 1] if one.handle_kind == "heap" else [])]
            for n, row in enumerate(ROWS[one.name])
        ]
        for one in TABLES
    }
    with serving_all(list(TABLES), rows, 3) as address:
        yield f"tidb://{address.port}"


def open_source(place: str) -> RowSource:
    """The folder, or the TiDB at ``tidb://port``."""
    if not place.startswith("tidb://"):
        return DumplingFolder.open(place)
    address = {"host": "127.0.0.1", "port": int(place.removeprefix("tidb://")), "user": "root"}
    return TidbSql.from_spec({"address": address, "position": TS})


def check(server: MariaDBServer, *, tidied: bool = True) -> None:
    """Every row once, indexes and keys, the checkpoint.

    `tidied`: and the list of chunks is empty.
    """
    with server.connect() as connection, connection.cursor() as cursor:
        for name, rows in ROWS.items():
            cursor.execute(f"SELECT * FROM d.{name}")
            assert Counter(cursor.fetchall()) == Counter(rows), name
        cursor.execute(
            "SELECT TABLE_NAME, INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA ="
            " 'd' ORDER BY 1, 2"
        )
        found = set(cursor.fetchall())
        assert found == {
            ("child", "PRIMARY"),
            ("child", "by_p"),
            ("parent", "PRIMARY"),
            ("parent", "by_v"),
        }, found
        cursor.execute("SELECT CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS")
        assert cursor.fetchall() == (("to_parent",),)
        cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
        ((text,),) = cursor.fetchall()
        assert f'"commitTS":{TS}' in text
        cursor.execute("SELECT COUNT(*) FROM tidb_binlog.sluice_copied")
        assert cursor.fetchone() == (0,) or not tidied
