"""Random damage to a replica through a connection of its own, and what it did: told by dumps of the
tables before and after, which share nothing with what is tried.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pymysql

from tests.etl.mariadb_fixture import MariaDBServer

Rows = Counter[tuple[str | None, ...]]

_OTHER = {
    "int": ["{c} + 1", "{c} - 1"],
    "decimal": ["{c} + 1", "-{c}"],
    "double": ["{c} * 1.0000000000000002e0", "-0e0"],
    "float": ["IF(ABS({c}) < 1e15, {c} * 1.0000002e0, 0)", "-0e0"],
    "bit": ["{c} ^ 1"],
    "year": ["{c} + 1"],
    "date": ["{c} + INTERVAL 1 DAY"],
    "datetime": ["{c} + INTERVAL 1 MICROSECOND", "{c} + INTERVAL 1 SECOND"],
    "timestamp": ["{c} + INTERVAL 1 MICROSECOND", "{c} + INTERVAL 1 SECOND"],
    "time": ["ADDTIME({c}, '00:00:00.000001')", "ADDTIME({c}, '00:00:01')"],
    "text": [
        "CONCAT({c}, ' ')",
        "UPPER({c})",
        "LOWER({c})",
        "''",
        "CONCAT('x', {c})",
        "SUBSTR({c}, 2)",
    ],
    "blob": ["CONCAT({c}, x'00')", "CONCAT({c}, ' ')", "x''", "SUBSTR({c}, 2)"],
    "enum": ["1", "2", "3"],
    "set": ["0", "1", "2", "3"],
    "json": ["CONCAT('[', {c}, ']')", "'{{\"other\": null}}'"],
}
_KINDS = {
    "tinyint": "int",
    "smallint": "int",
    "mediumint": "int",
    "bigint": "int",
    "varchar": "text",
    "char": "text",
    "tinytext": "text",
    "mediumtext": "text",
    "longtext": "text",
    "varbinary": "blob",
    "binary": "blob",
    "tinyblob": "blob",
    "mediumblob": "blob",
    "longblob": "blob",
}


@dataclass(frozen=True)
class Column:
    name: str
    kind: str
    nullable: bool
    generated: bool

    @property
    def quoted(self) -> str:
        return "`" + self.name.replace("`", "``") + "`"


class Damager:
    """Damages tables of some databases of a server.

    `float_zeros`: a FLOAT's zero may lose its sign.
    """

    def __init__(
        self,
        server: MariaDBServer,
        seed: int,
        schemas: tuple[str, ...],
        *,
        float_zeros: bool = True,
    ) -> None:
        self._others = _OTHER | ({} if float_zeros else {"float": _OTHER["float"][:1]})
        self._random = random.Random(seed)
        self._connection = server.connect()
        self._run(
            "SET time_zone = '+00:00', sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'"
        )
        self.tables: dict[tuple[str, str], list[Column]] = {}
        self.keys: dict[tuple[str, str], list[str]] = {}
        names = ", ".join(f"'{schema}'" for schema in schemas)
        documents: set[tuple[object, ...]] = set()
        if not server.dialect.has_json_type:
            documents.update(
                self._run(
                    "SELECT CONSTRAINT_SCHEMA, TABLE_NAME, LOWER(CHECK_CLAUSE)"
                    " FROM information_schema.CHECK_CONSTRAINTS"
                )
            )
        for schema, table, name, kind, nullable, expression, key in self._run(
            "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, DATA_TYPE, IS_NULLABLE,"
            " GENERATION_EXPRESSION, COLUMN_KEY FROM information_schema.COLUMNS WHERE TABLE_SCHEMA"
            f" IN ({names}) ORDER BY ORDINAL_POSITION"
        ):
            is_document = (schema, table, f"json_valid(`{name.lower()}`)") in documents
            kind = "json" if is_document else _KINDS.get(kind, kind)
            column = Column(name, kind, nullable == "YES", bool(expression))
            self.tables.setdefault((schema, table), []).append(column)
            if key == "PRI":
                self.keys.setdefault((schema, table), []).append(name)

    def close(self) -> None:
        self._connection.close()

    def damage(self, count: int) -> None:
        """So many statements that change something."""
        done = 0
        while done < count:
            place = self._random.choice(list(self.tables))
            with contextlib.suppress(pymysql.MySQLError):
                done += bool(self._one(place))

    def dump(self) -> dict[tuple[str, str], Rows]:
        """Every row of every table, each value as the hexadecimal digits of what the server has."""
        found = {}
        for place, columns in self.tables.items():
            values = ", ".join(
                (
                    f"CAST({c.quoted}*1e0 AS CHAR)"
                    if c.kind in ("float", "double")
                    else f"HEX(CAST({c.quoted} AS BINARY))"
                )
                for c in columns
            )
            found[place] = Counter(self._run(f"SELECT {values} FROM {_quoted(place)}"))
        return found

    def _one(self, place: tuple[str, str]) -> int:
        columns = [column for column in self.tables[place] if not column.generated]
        action = self._random.choice(
            ["value", "value", "value", "value", "delete", "insert", "null", "swap"]
        )
        target, column = _quoted(place), self._random.choice(columns)
        end = f"ORDER BY RAND({self._random.randrange(1 << 30)}) LIMIT 1"
        if action == "delete":
            return self._changed(f"DELETE FROM {target} {end}")
        if action == "insert":
            return self._insert(place, columns, end)
        if action == "swap":
            return self._swap(place, columns, end)
        if action == "null":
            return (
                self._changed(f"UPDATE {target} SET {column.quoted} = NULL {end}")
                if column.nullable
                else 0
            )
        other = self._random.choice(self._others[column.kind]).format(c=column.quoted)
        return self._changed(f"UPDATE {target} SET {column.quoted} = {other} {end}")

    def _insert(self, place: tuple[str, str], columns: list[Column], end: str) -> int:
        """A copy of a row: a duplicate where nothing is unique.

        Else with one value that is another.
        """
        changed = self._random.choice(columns).name if self._random.random() < 0.8 else ""
        names = ", ".join(column.quoted for column in columns)
        values = ", ".join(
            (
                self._random.choice(self._others[c.kind]).format(c=c.quoted)
                if c.name == changed
                else c.quoted
            )
            for c in columns
        )
        return self._changed(
            f"INSERT INTO {_quoted(place)} ({names}) SELECT {values} FROM {_quoted(place)} {end}"
        )

    def _swap(self, place: tuple[str, str], columns: list[Column], end: str) -> int:
        """Two rows exchange what isn't their key."""
        key, others = (
            self.keys.get(place, []),
            [c for c in columns if c.name not in self.keys.get(place, [])],
        )
        if not key or not others:
            return 0
        target = _quoted(place)
        self._run("DROP TEMPORARY TABLE IF EXISTS test_swap")
        self._run(
            f"CREATE TEMPORARY TABLE test_swap AS SELECT * FROM {target}"
            f" {end.replace('LIMIT 1', 'LIMIT 2')}"
        )
        rows = self._run(f"SELECT {', '.join(map(_name, key))} FROM test_swap")
        if len(rows) < 2:
            return 0
        shown = ", ".join(f"t.{c.quoted} = s.{c.quoted}" for c in others)
        other = " OR ".join(f"t.{_name(name)} <> s.{_name(name)}" for name in key)
        one = " AND ".join(f"t.{_name(n)} = x.{_name(n)}" for n in key)
        self._run("DROP TEMPORARY TABLE IF EXISTS test_both")
        self._run("CREATE TEMPORARY TABLE test_both AS SELECT * FROM test_swap")
        return self._changed(
            f"UPDATE {target} t JOIN test_both x ON {one} JOIN test_swap s ON {other} SET {shown}"
        )

    def _changed(self, statement: str) -> int:
        with self._connection.cursor() as cursor:
            return int(cursor.execute(statement))

    def _run(self, statement: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())


def damaged(
    before: Mapping[tuple[str, str], Rows], after: Mapping[tuple[str, str], Rows]
) -> Iterator[tuple[str, int, int]]:
    """The full name of each table that isn't what it was, how many rows must come, and how many
    must go.
    """
    for place, rows in before.items():
        come, gone = rows - after[place], after[place] - rows
        if come or gone:
            yield f"{place[0]}.{place[1]}", come.total(), gone.total()


def _quoted(place: tuple[str, str]) -> str:
    return f"{_name(place[0])}.{_name(place[1])}"


def _name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
