"""An upstream told statement by statement: tables, rows and DDL as a TiDB would have written them,
applied to a real server.

`Story` keeps the tables as the DDL jobs leave them, encodes rows in TiDB's format, writes every
call as one window of a relay log, and `apply` brings the downstream up to date. It knows nothing of
how things are applied.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sluice.etl.apply import ApplySummary, run_apply
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE, RelayLog, WindowRecord
from sluice.tidb.ddl_job import DdlEffect
from sluice.tidb.rows import ROWID_NAME, encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Column, Index, Schema, Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer

if TYPE_CHECKING:
    from tests.etl.captured_rows import CapturedRows

_TYPES = {
    "tinyint": 1,
    "smallint": 2,
    "int": 3,
    "float": 4,
    "double": 5,
    "timestamp": 7,
    "bigint": 8,
    "mediumint": 9,
    "date": 10,
    "time": 11,
    "datetime": 12,
    "year": 13,
    "varchar": 15,
    "varbinary": 15,
    "bit": 16,
    "json": 0xF5,
    "decimal": 0xF6,
    "enum": 0xF7,
    "set": 0xF8,
    "tinytext": 0xF9,
    "tinyblob": 0xF9,
    "mediumtext": 0xFA,
    "mediumblob": 0xFA,
    "longtext": 0xFB,
    "longblob": 0xFB,
    "text": 0xFC,
    "blob": 0xFC,
    "char": 0xFE,
    "binary": 0xFE,
}
_TEXT = {"varchar", "char", "text", "tinytext", "mediumtext", "longtext", "enum", "set"}
_COLLATIONS = {
    "utf8mb4": "utf8mb4_bin",
    "utf8": "utf8_bin",
    "latin1": "latin1_bin",
    "ascii": "ascii_bin",
    "gbk": "gbk_chinese_ci",
}
_NOT_NULL, _PRIMARY, _UNSIGNED, _ZEROFILL = 1, 2, 32, 64
_FIRST_TS = 400_000_000_000 << 18

Row = dict[str, Any]


def column(number: int, spec: str, **more: Any) -> Column:
    """A column from its SQL: ``name type[(n[,m])] [unsigned] [character set c] [collate c] [not
    null]``; `more` as in Column.
    """
    match = re.fullmatch(r"(\S+) (\w+)(?:\((.*?)\))?((?: .*)?)", spec)
    assert match, spec
    name, kind, size, rest = match[1], match[2], match[3], match[4].lower()
    flag = (
        _NOT_NULL * ("not null" in rest)
        | _UNSIGNED * ("unsigned" in rest)
        | _ZEROFILL * ("zerofill" in rest)
    )
    flen, decimal, elems = -1, -1, ()
    if kind in ("enum", "set"):
        elems = tuple(e.replace("''", "'") for e in re.findall(r"'((?:[^']|'')*)'", size))
    elif kind in ("time", "datetime", "timestamp"):
        decimal = int(size or 0)
    elif size:
        numbers = [int(n) for n in size.split(",")]
        flen, decimal = (
            numbers[0],
            numbers[1] if len(numbers) > 1 else (0 if kind == "decimal" else -1),
        )
    charset = (
        (re.search(r"character set (\w+)", rest) or (0, "utf8mb4"))[1]
        if kind in _TEXT
        else "binary"
    )
    collate = (
        (re.search(r"collate (\w+)", rest) or (0, _COLLATIONS.get(charset, "binary")))[1]
        if kind in _TEXT
        else "binary"
    )
    if "collate" in rest:
        charset = collate.partition("_")[0]
    return Column(
        number,
        name,
        number - 1,
        _TYPES[kind],
        flag,
        flen,
        decimal,
        charset,
        collate,
        elems,
        **{"version": 2, **more},
    )


def table(
    number: int,
    name: str,
    *columns: Column | str,
    primary: str = "",
    clustered: bool = True,
    unique: tuple[str, ...] = (),
    **more: Any,
) -> Table:
    """A table of schema ``d``.

    `primary` and each of `unique`: comma-separated columns, perhaps with a prefix length ``a(3)``.
    """
    cols = [column(i, c) if isinstance(c, str) else c for i, c in enumerate(columns, 1)]
    by_name = {c.name: c for c in cols}

    def parts(text: str) -> tuple[tuple[str, int, int], ...]:
        found = [re.fullmatch(r"([^()]+)(?:\((\d+)\))?", part.strip()) for part in text.split(",")]
        return tuple((m[1], by_name[m[1]].offset, int(m[2] or -1)) for m in found if m)

    indexes = [Index(i, f"u{i}", parts(text), unique=True) for i, text in enumerate(unique, 2)]
    handle = False
    if primary:
        for key, _, _ in parts(primary):
            at = by_name[key].offset
            cols[at] = replace(cols[at], flag=cols[at].flag | _NOT_NULL | _PRIMARY)
        handle = (
            clustered and "," not in primary and by_name[primary.partition("(")[0]].kind == "int"
        )
        if not handle:
            indexes.insert(0, Index(1, "PRIMARY", parts(primary), unique=True, primary=True))
    return Table(
        number,
        1,
        "d",
        name,
        tuple(cols),
        tuple(indexes),
        "utf8mb4",
        "utf8mb4_bin",
        pk_is_handle=handle,
        is_common_handle=bool(primary) and clustered and not handle,
        common_handle_version=1,
        **more,
    )


def wider(old: Table, *columns: Column) -> Table:
    """`old` after ADD COLUMN."""
    return replace(
        old,
        columns=(
            *old.columns,
            *(replace(c, offset=len(old.columns) + n) for n, c in enumerate(columns)),
        ),
    )


def partitioned(kind: int, expr: str, *definitions: tuple[int, str, str]) -> dict[str, Any]:
    """What a table's `partition` says; of each its id, its name, and below what its rows are."""
    found = [
        {"id": i, "name": {"O": name, "L": name.lower()}, "less_than": [bound]}
        for i, name, bound in definitions
    ]
    return {
        "type": kind,
        "expr": expr,
        "columns": None,
        "enable": True,
        "definitions": found,
        "num": len(found),
    }


class Story:
    """`server` is the downstream. Every method is one committed transaction.

    With `captured` its rows come as a capture of them lands.
    """

    def __init__(
        self,
        server: MariaDBServer,
        folder: Path,
        cluster_id: int = 7,
        captured: CapturedRows | None = None,
    ) -> None:
        self.server = server
        self._captured = captured
        self.cluster_id = cluster_id
        self._url = f"file://{folder}/relay"
        self._relay = RelayLog.open(self._url)
        self._tables: dict[int, Table] = {}
        self._ts = _FIRST_TS
        self._rowid = 0
        self._version = 1
        self.statement(
            1, "CREATE DATABASE `d`", schemas={1: Schema(1, "d", "utf8mb4", "utf8mb4_bin")}
        )

    @property
    def url(self) -> str:
        """Of the relay log."""
        return self._url

    def statement(
        self,
        kind: int,
        query: str,
        *tables: Table | int,
        schemas: Mapping[int, Schema | None] | None = None,
        schema: str = "d",
        name: str = "",
        **more: Any,
    ) -> None:
        """A finished DDL job: its type, its text as in the binlog, the tables as they are
        afterwards (a number: gone).
        """
        effect = DdlEffect(
            dict(schemas or {}),
            {t if isinstance(t, int) else t.id: None if isinstance(t, int) else t for t in tables},
        )
        before = {i: t for i, t in self._tables.items() if i in effect.tables}
        self._version += 1
        self._ts += 10
        known = next((self._tables[i].name for i in effect.tables if i in self._tables), "")
        ddl = {
            "commit_ts": self._ts,
            "start_ts": self._ts - 1,
            "job_id": self._version,
            "query": query,
            "schema_state": 5,
            "type": kind,
            "schema_version": self._version,
            "schema_name": schema,
            "table_name": (
                name or known or (tables[0].name if tables and isinstance(tables[0], Table) else "")
            ),
            "effect": effect.to_json(),
            **more,
        }
        self._window([], before, [ddl])
        for table_id, after in effect.tables.items():
            self._tables.pop(table_id, None)
            if after is not None:
                self._tables[table_id] = after

    def create(self, made: Table, query: str) -> Table:
        """CREATE TABLE."""
        self.statement(3, query, made, name=made.name)
        return made

    def insert(self, into: Table, *rows: Row) -> None:
        """INSERT. In tables with a hidden row id, rows get one under `_tidb_rowid`."""
        encoded = []
        for row in rows:
            self._rowid += 1
            row.setdefault(ROWID_NAME, self._rowid)
            encoded.append((into, INSERT, encode_insert(into, row)))
        self.changes(*encoded)

    def update(self, of: Table, old: Row, new: Row) -> Row:
        """UPDATE that leaves the handle alone; the new row."""
        new = old | new
        self.changes((of, UPDATE, encode_update(of, old, new)))
        return new

    def delete(self, of: Table, *rows: Row) -> None:
        """DELETE."""
        self.changes(*((of, DELETE, encode_delete(of, row)) for row in rows))

    def changes(self, *changes: tuple[Table, int, bytes]) -> None:
        """One transaction of encoded changes.

        The relay log describes their tables as they are without later DDL.
        """
        self._ts += 10
        found = [(of.id, kind, row) for of, kind, row in changes]
        if self._captured is not None:
            self._captured.define(*(of for of, _, _ in changes))
            found = self._captured.take([(self._ts, changes)])[self._ts]
        rows = [
            (self._ts, self._ts - 1, n, table_id, self._version, kind, row)
            for n, (table_id, kind, row) in enumerate(found)
        ]
        self._window(rows, {of.id: self._tables.get(of.id, of) for of, _, _ in changes}, [])

    @property
    def now(self) -> int:
        """The end of the last window (TSO)."""
        return self._ts

    def idle(self, through: int) -> None:
        """A window without changes; what comes later is behind it."""
        self._ts = through
        self._window([], {}, [])

    def apply(self) -> ApplySummary:
        """Bring the downstream up to date."""
        settings = Settings(Upstream("unused"), Relay(self._url), self.server.downstream)
        return run_apply(
            settings, until_ts=self._ts, run_seconds=240, prepare=local_preparer(settings)
        )

    def rows(self, name: str, select: str = "*") -> list[tuple[Any, ...]]:
        """Rows of a downstream table in schema d, sorted."""
        connection = self.server.connect(init_command="SET time_zone='+00:00'")
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT {select} FROM `d`.`{name.replace('`', '``')}`")
                return sorted(cursor.fetchall(), key=repr)
        finally:
            connection.close()

    def _window(
        self, rows: list[tuple[Any, ...]], tables: Mapping[int, Table], ddls: list[dict[str, Any]]
    ) -> None:
        last = self._relay.last()
        lo = last.hi if last else _FIRST_TS
        parts = ()
        if rows:
            batch = pa.RecordBatch.from_arrays(
                [pa.array(c, f.type) for c, f in zip(zip(*rows), PART_SCHEMA)], schema=PART_SCHEMA
            )
            part = self._relay.write_part(lo, self._ts, "t", 0, [batch])
            assert part is not None
            parts = (part,)
        documents = {str(i): t.to_json() for i, t in tables.items()}
        self._relay.commit(
            WindowRecord(
                lo,
                self._ts,
                self.cluster_id,
                "t",
                0,
                1,
                len(rows),
                self._version,
                parts,
                documents,
                tuple(ddls),
            )
        )


ITEM = table(11, "item", "id int", "v int", primary="id")


def with_item(server: MariaDBServer, folder: Path) -> Story:
    """Return a story of the table `ITEM`, which has one row."""
    story = Story(server, folder)
    story.create(ITEM, "CREATE TABLE `item` (`id` int primary key, `v` int)")
    story.insert(ITEM, {"id": 1, "v": 1})
    return story
