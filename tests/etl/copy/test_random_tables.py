"""Tables of any columns and keys, with any values, from a dump, a snapshot or a live TiDB to a real
server: what is there then is byte for byte what was made up, or what a rule leaves of its columns.
The model is a list of rows; what a
value looks like in a dump, in TiDB's memory and in the server is said here, kind by kind.
SLUICE_TEST_TABLES says how many tables are tried.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.changes.rules import Filter
from sluice.etl.copy.bootstrap import BootstrapPlanner
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.dumpling import DumplingFolder, DumplingOptions
from sluice.etl.copy.snapshot_source import SnapshotSource
from sluice.etl.copy.source import RowSource
from sluice.etl.copy.tidb_sql import TidbSql
from sluice.etl.copy.worker import make_loads
from sluice.etl.downstream import DownstreamError
from sluice.etl.settings.rules import parse_filter
from sluice.relay.storage import open_storage
from sluice.tidb.schema import Column, Schema, Table
from tests.etl.copy.copying import settings_of
from tests.etl.copy.dump_writer import Way, content, write
from tests.etl.copy.given_rows import NOW, serving
from tests.etl.copy.test_snapshot_source import snapshot_of_dump
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import column, table
from tests.etl.tidb_stand_in import MYSQL, TiDBStandIn

TABLES = int(os.environ.get("SLUICE_TEST_TABLES", "6"))
Row = tuple[bytes | None, ...]
"""Values as TiDB prints them."""


@dataclass(frozen=True)
class Kind:
    """A type of column.

    `port`: a printed value as the stand-in TiDB keeps it; `meaning`: a printed value, and one that
    the server sent, as what must be equal.
    """

    sql: str
    values: st.SearchStrategy[bytes]
    port: Callable[[bytes], Any] = bytes.decode
    meaning: Callable[[bytes], Any] = bytes
    in_key: bool = True


def numbers(low: int, high: int) -> st.SearchStrategy[bytes]:
    return st.integers(low, high).map(lambda n: str(n).encode())


def bits(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


NUMBERS = (
    st.integers(-(2**60), 2**60)
    .flatmap(lambda n: st.integers(-40, 20).map(lambda e: n * 2.0**e))
    .filter(lambda v: v == 0 or 1e-14 < abs(v) < 1e14)
)
NASTY = "a\\'\"`,|+%_\n\r\t\0\x1a();N😀é"
KINDS = {
    "tiny": Kind("tinyint", numbers(-128, 127), int),
    "int": Kind("int", numbers(-(2**31), 2**31 - 1), int),
    "big": Kind("bigint", numbers(-(2**63), 2**63 - 1), int),
    "unsigned": Kind("bigint unsigned", numbers(0, 2**64 - 1), int),
    "decimal": Kind("decimal(20,4)", numbers(-(10**19), 10**19).map(lambda raw: scaled(int(raw)))),
    "double": Kind("double", NUMBERS.map(lambda v: repr(v).encode()), float, float, in_key=False),
    "float": Kind(
        "float",
        NUMBERS.map(
            lambda v: np.format_float_positional(np.float32(v), unique=True, trim="-").encode()
        ),
        float,
        lambda raw: np.float32(float(raw)),
        in_key=False,
    ),
    "date": Kind(
        "date", st.dates().map(lambda d: f"{d.year:04}{d:-%m-%d}".encode()) | st.just(b"0000-00-00")
    ),
    "datetime": Kind(
        "datetime(3)",
        st.datetimes().map(lambda t: f"{t.year:04}{t:-%m-%d %H:%M:%S.%f}"[:23].encode())
        | st.sampled_from(
            [b"0000-00-00 00:00:00.000", b"2024-00-00 00:00:00.000", b"2023-02-00 01:02:03.004"]
        ),
    ),
    "timestamp": Kind(
        "timestamp(6)",
        st.sampled_from(
            [
                b"0000-00-00 00:00:00.000000",
                b"1970-01-01 00:00:01.000000",
                b"2024-03-31 02:30:00.123456",
                b"2038-01-19 03:14:07.999999",
            ]
        ),
    ),
    "time": Kind(
        "time(2)",
        st.sampled_from(
            [b"-838:59:59.00", b"838:59:59.00", b"00:00:00.00", b"-00:00:00.50", b"12:34:56.78"]
        ),
    ),
    "year": Kind("year", st.sampled_from([b"0000", b"1901", b"1970", b"2155"]), int),
    "bit": Kind(
        "bit(17)", st.integers(0, 2**17 - 1).map(lambda v: struct.pack(">I", v)[1:]), bits, bits
    ),
    "varchar": Kind("varchar(40)", st.text(NASTY, max_size=9).map(str.encode), bytes),
    "ci": Kind(
        "varchar(40) collate utf8mb4_general_ci",
        st.text("abcxyz019", max_size=6).map(str.encode),
        bytes,
    ),
    "latin1": Kind(
        "varchar(40) character set latin1", st.text("a\\'\"\téß", max_size=6).map(str.encode), bytes
    ),
    "text": Kind(
        "mediumtext", st.text(NASTY + " ", max_size=30).map(str.encode), bytes, in_key=False
    ),
    "varbinary": Kind("varbinary(40)", st.binary(max_size=9), bytes),
    "blob": Kind("longblob", st.binary(max_size=30), bytes, in_key=False),
    "enum": Kind("enum('z','it''s','a,b')", st.sampled_from([b"z", b"it's", b"a,b"])),
    "set": Kind(
        "set('x','y','it''s')", st.sampled_from([b"", b"x", b"x,y", b"y,it's"]), in_key=False
    ),
    "json": Kind(
        "json",
        st.sampled_from(
            [b"{}", b"null", b'{"a": "it\'s \\"q\\" \\\\ \\n"}', '["é😀", 1.5, [1, {}]]'.encode()]
        ),
        in_key=False,
    ),
}


def scaled(value: int) -> bytes:
    sign, digits = "-" if value < 0 else "", f"{abs(value):05}"
    return f"{sign}{digits[:-4]}.{digits[-4:]}".encode()


@dataclass(frozen=True)
class Made:
    """A table, the kind of each column, its rows in the order of the key, and the names of columns
    that are renamed, or with "" left out.
    """

    table: Table
    kinds: tuple[str, ...]
    rows: list[Row]
    shape: dict[str, str] = field(default_factory=dict)

    @property
    def filters(self) -> Filter:
        left_out = [name for name, new in self.shape.items() if not new]
        new_names = {name: new for name, new in self.shape.items() if new}
        rules = [{"leave-out": left_out}] * bool(left_out) + [{"rename": new_names}] * bool(
            new_names
        )
        return parse_filter({"columns": [{"tables": ["d.*"], **rule} for rule in rules]})[0]


NAMES = ("id", "k`ey", 'qu"ote', "select", "ÄÖ", "a b", "c%s", "d\\e")


@st.composite
def made_tables(draw: st.DrawFn) -> Made:
    handle = draw(st.sampled_from(["int", "common", "plain", "none"]))
    keys = sorted(name for name, kind in KINDS.items() if kind.in_key)
    key = {
        "int": st.sampled_from([["tiny"], ["int"], ["big"], ["unsigned"]]), "none": st.just([]),
    }.get(handle, st.lists(st.sampled_from(keys), min_size=1, max_size=3))  # fmt: skip
    of_key = draw(key)
    kinds = (
        *of_key,
        *draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=0 if of_key else 1, max_size=5)),
    )
    columns = [column(n + 1, f"c{n} {KINDS[kind].sql}") for n, kind in enumerate(kinds)]
    made = table(
        60,
        "t",
        *columns,
        primary=",".join(f"c{n}" for n in range(len(of_key))),
        clustered=handle in ("int", "common"),
    )
    made = replace(
        made, columns=tuple(map(renamed, made.columns, itertools.cycle(NAMES))), name="t`%s"
    )
    made = replace(
        made,
        indexes=tuple(
            replace(
                i, columns=tuple((made.columns[at].name, at, length) for _, at, length in i.columns)
            )
            for i in made.indexes
        ),
    )
    values = [
        KINDS[kind].values if n < len(of_key) else st.none() | KINDS[kind].values
        for n, kind in enumerate(kinds)
    ]
    keyed = (lambda row: row[: len(of_key)]) if of_key else None
    rows = draw(st.lists(st.tuples(*values), max_size=12, unique_by=keyed))
    shape = {
        one.name: draw(st.sampled_from(["", f"new `{one.name}"]))
        for one in made.columns[max(len(of_key), 1) :]
        if draw(st.integers(0, 2)) == 0
    }
    return Made(made, kinds, rows, shape)


def renamed(one: Column, name: str) -> Column:
    return replace(one, name=f"{name}{one.offset}")


def port_rows(made: Made) -> list[list[Any]]:
    rows: list[list[Any]] = [
        [
            None if raw is None else KINDS[kind].port(raw)
            for kind, raw in zip(made.kinds, row, strict=True)
        ]
        for row in made.rows
    ]
    return (
        [[*row, n + 1] for n, row in enumerate(rows)] if made.table.handle_kind == "heap" else rows
    )


def definitions_of(made: Made, source: RowSource) -> SourceSchema:
    schema = Schema(made.table.schema_id, "d", "utf8mb4", "utf8mb4_bin")
    return SourceSchema(source.position, 5, (schema,), (made.table,))


def copied(server: MariaDBServer, folder: Path, made: Made, source: RowSource) -> None:
    definitions = definitions_of(made, source)
    copy = BootstrapPlanner(settings_of(server, folder, made.filters), source, definitions, 7)
    summary = copy.run(lambda chunk, one: make_loads(source.spec(), chunk, one))
    assert summary.rows_there == len(made.rows)
    check(server, made)


def check(server: MariaDBServer, made: Made) -> None:
    columns = [c for c in made.table.columns if made.shape.get(c.name) != ""]
    kinds = [KINDS[made.kinds[c.offset]] for c in columns]
    names = [
        f"{quote_name(made.shape.get(c.name, c.name))}{'+0e0' if c.kind == 'float' else ''}"
        for c in columns
    ]
    with server.connect(conv={}, use_unicode=False) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT {', '.join(names)} FROM d.`{made.table.name.replace('`', '``')}`")
        found = Counter(meanings(kinds, row) for row in cursor.fetchall())
        left = [tuple(row[c.offset] for c in columns) for row in made.rows]
        assert found == Counter(meanings(kinds, row) for row in left)
        cursor.execute(f"SHOW COLUMNS FROM d.`{made.table.name.replace('`', '``')}`")
        assert len(cursor.fetchall()) == len(columns)


def meanings(kinds: list[Kind], row: Row) -> tuple[Any, ...]:
    return tuple(
        None if raw is None else kind.meaning(raw) for kind, raw in zip(kinds, row, strict=True)
    )


WAYS = (Way(), Way("csv"), Way(escapes=False), Way("csv", separator=b"|+|", delimiter=b""))


def schema_file(made: Made) -> bytes:
    types = [re.match(r"\w+", KINDS[kind].sql) for kind in made.kinds]
    lines = [
        f"  `{c.name.replace('`', '``')}` {type_[0] if type_ else ''} NULL"
        for c, type_ in zip(made.table.columns, types)
    ]
    return ("CREATE TABLE `t` (\n" + ",\n".join(lines) + "\n) ENGINE=InnoDB;\n").encode()


def dump_of(made: Made, folder: Path, way: Way) -> str:
    columns = [(c.name, c.kind, c.unsigned) for c in made.table.columns]
    half = len(made.rows) // 2
    name = "d.t`%25s"
    files = {
        f"{name}.{n}.{way.form}": content(made.table.name, columns, rows, way)
        for n, rows in enumerate((made.rows[:half], made.rows[half:]))
        if rows
    }
    return write(folder, files | {f"{name}-schema.sql": schema_file(made)}, NOW - 1)


@settings(max_examples=TABLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=made_tables(), way=st.sampled_from(WAYS), cut=st.sampled_from([60, 1 << 20]))
def test_any_table_arrives_from_a_dump_and_a_snapshot_as_it_is(
    mariadb: MariaDBServer, made: Made, way: Way, cut: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = dump_of(made, Path(folder) / "dump", way)
        options = DumplingOptions(escapes=way.escapes, chunk_bytes=cut)
        if way.form == "csv":
            form = replace(
                options.csv,
                separator=way.separator.decode(),
                delimiter=way.delimiter.decode(),
                terminator="\r\n",
            )
            options = replace(options, csv=form)
        mariadb.empty()
        dump = DumplingFolder.open(url, options)
        copied(mariadb, Path(folder), made, dump)
        archive = open_storage(f"file://{folder}/archive")
        snapshot = snapshot_of_dump(archive, dump, definitions_of(made, dump))
        mariadb.empty()
        copied(mariadb, Path(folder), made, SnapshotSource.from_snapshot(archive.url, snapshot))


@pytest.mark.slow
@settings(max_examples=TABLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=made_tables(), region_rows=st.integers(1, 5))
def test_any_table_arrives_from_a_live_tidb_as_it_is(
    mariadb: MariaDBServer, made: Made, region_rows: int
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(made.table, port_rows(made), region_rows) as address,
    ):
        mariadb.empty()
        copied(mariadb, Path(folder), made, TidbSql(address, NOW - 1))


def wide() -> Made:
    """A hundred columns, one row."""
    kinds = tuple(itertools.islice(itertools.cycle(sorted(set(KINDS) - {"ci"})), 100))
    columns = [column(n + 1, f"c{n} {KINDS[kind].sql}") for n, kind in enumerate(kinds)]
    row = tuple(None if n % 7 == 3 else sample(KINDS[kind]) for n, kind in enumerate(kinds))
    return Made(table(61, "t`%s", *columns), kinds, [row])


def sample(kind: Kind) -> bytes:
    return {"decimal(20,4)": b"-12.3400", "double": b"1.5", "float": b"-2.25"}.get(kind.sql) or {
        "varchar(40)": NASTY.encode(),
        "mediumtext": NASTY.encode(),
        "longblob": bytes(range(256)),
        "date": b"0000-00-00",
        "year": b"2024",
        "bit(17)": b"\x01\x02\x03",
        "json": b"[1]",
        "set('x','y','it''s')": b"x",
        "enum('z','it''s','a,b')": b"a,b",
        "datetime(3)": b"2024-00-00 00:00:00.000",
        "varbinary(40)": b"\0\xff",
        "timestamp(6)": b"2024-03-31 02:30:00.123456",
        "time(2)": b"-00:00:00.50",
        "varchar(40) character set latin1": "éß".encode(),
    }.get(kind.sql, b"7")


def large() -> Made:
    """Values of three megabytes and more, as text and as bytes."""
    kinds = ("int", "text", "blob")
    made = table(62, "t`%s", "id int", "t mediumtext", "b longblob", primary="id")
    text = (NASTY * 140_000).encode()
    rows: list[Row] = [
        (b"1", text, b""),
        (b"2", b"", bytes(range(256)) * 12_000),
        (b"3", b"x" * 3_500_000, None),
    ]
    return Made(made, kinds, rows)


@pytest.mark.quick_cases("wide")
@pytest.mark.parametrize("made", [wide(), large()], ids=["wide", "large"])
def test_wide_rows_and_large_values_arrive_from_both_sources(
    mariadb: MariaDBServer, tmp_path: Path, made: Made
) -> None:
    copied(
        mariadb, tmp_path / "1", made, DumplingFolder.open(dump_of(made, tmp_path / "dump", Way()))
    )
    with serving(made.table, port_rows(made), 1) as address:
        mariadb.empty()
        copied(mariadb, tmp_path / "2", made, TidbSql(address, NOW - 1))


@contextlib.contextmanager
def small_packets(server: MariaDBServer) -> Iterator[MariaDBServer]:
    """Sessions that begin now take statements below 4 MiB."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL max_allowed_packet = 4194304")
        yield server
        cursor.execute("SET GLOBAL max_allowed_packet = DEFAULT")


REFUSED = r"copying d\.t`%s: .*max_allowed_packet is 4194304; raise the server's max_allowed_packet"


def larger_than_a_packet() -> Made:
    return replace(large(), rows=[(b"1", None, bytes(range(256)) * 24_000)])  # 6 MB


def test_a_value_that_is_larger_than_a_statement_may_be_arrives_with_load_data(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    made = larger_than_a_packet()
    source = DumplingFolder.open(dump_of(made, tmp_path / "dump", Way()))
    with small_packets(mariadb) as server:
        copied(server, tmp_path, made, source)


def test_a_value_that_the_server_refuses_for_its_size_is_named_and_nothing_of_its_chunk_stays(
    own_mariadb: MariaDBServer, tmp_path: Path
) -> None:
    made = larger_than_a_packet()
    # Two files: the first row, and the others, which are a chunk of two statements.
    made = replace(made, rows=[(b"-1", None, b"small"), (b"0", None, b"small"), *made.rows])
    source = DumplingFolder.open(dump_of(made, tmp_path / "dump", Way()))
    with small_packets(own_mariadb) as server:
        mysql: Any = TiDBStandIn(server, MYSQL)  # takes no LOAD DATA, so rows go as statements
        with contextlib.closing(mysql), pytest.raises(DownstreamError, match=REFUSED):
            copied(mysql, tmp_path, made, source)
    with own_mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM d.`t``%s` WHERE id >= 0")
        assert cursor.fetchone() == (0,)
