"""Rows of the past as files: whole or not there, and read back as what they were."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from sluice.errors import RequestError
from sluice.etl.history.as_of.output import file_output, render_rows
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import table

TABLE = table(
    7,
    "t",
    "id bigint unsigned",
    "s varchar(20)",
    "b varbinary(20)",
    "f float",
    "n decimal(20,5)",
    "x bit(9)",
    primary="id",
)
SCHEMA = pa.schema(
    [
        ("id", pa.uint64()),
        ("s", pa.large_string()),
        ("b", pa.large_binary()),
        ("f", pa.float32()),
        ("n", pa.large_string()),
        ("x", pa.uint64()),
    ]
)
ROWS = [
    (2**64 - 1, 'it\'s \\ "quoted",\n', b"\0\xff", 1.100000023841858, "1.50000", 257),
    (1, "", b"", None, None, None),
    (2, None, None, 3.4028234663852886e38, "-0.00001", 0),
]


def batch() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(zip(*ROWS), SCHEMA, strict=True)],
        schema=SCHEMA,
    )


def write(folder: Path, kind: str) -> Path:
    with file_output(folder, kind, "d.we`ird/name", SCHEMA, TABLE) as output:
        output.write(batch())
        output.write(batch().slice(0, 0))
    (path,) = folder.iterdir()
    return path


def test_parquet_is_the_rows_themselves(tmp_path: Path) -> None:
    path = write(tmp_path, "parquet")
    assert path.name == "d.we%60ird%2Fname.parquet"
    assert pq.read_table(path).to_pylist() == batch().to_pylist()


def test_csv_tells_null_from_nothing_and_shows_bytes(tmp_path: Path) -> None:
    read = pa_csv.read_csv(
        write(tmp_path, "csv"),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types={"id": pa.uint64(), "s": pa.string(), "b": pa.string(), "n": pa.string()},
            strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""],
        ),
    )  # fmt: skip
    assert read["s"].to_pylist() == [row[1] for row in ROWS]
    assert read["b"].to_pylist() == ["0x00FF", "0x", None]
    assert read["id"].to_pylist() == [row[0] for row in ROWS]
    assert read["n"].to_pylist() == [row[4] for row in ROWS]


def test_sql_makes_the_same_rows_in_a_database(tmp_path: Path, mariadb: MariaDBServer) -> None:
    statements = write(tmp_path, "sql").read_text()
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE d")
        cursor.execute(
            "CREATE TABLE d.t (id bigint unsigned primary key, s varchar(20), b varbinary(20), f"
            " float, n decimal(20,5), x bit(9))"
        )
        for statement in statements.split(";\n"):
            if statement.strip():
                cursor.execute(statement)
        cursor.execute("SELECT id, s, b, f+0e0, CAST(n AS CHAR), x+0 FROM d.t")
        assert sorted(cursor.fetchall(), key=repr) == sorted(ROWS, key=repr)


def test_a_file_that_is_there_stays_and_one_that_isnt_complete_isnt_there(tmp_path: Path) -> None:
    path = write(tmp_path, "csv")
    before = path.read_bytes()
    with (
        pytest.raises(RequestError, match="exists"),
        file_output(tmp_path, "csv", "d.we`ird/name", SCHEMA, TABLE),
    ):
        raise AssertionError
    with pytest.raises(KeyError), file_output(tmp_path, "parquet", "d.u", SCHEMA, TABLE) as output:
        output.write(batch())
        raise KeyError
    assert (path.read_bytes(), [path]) == (before, list(tmp_path.iterdir()))


def test_people_read_null_bytes_and_text_that_isnt_utf_8() -> None:
    broken = pa.array([b"a\xff"], pa.large_binary())
    text = pa.LargeStringArray.from_buffers(1, *broken.buffers()[1:], broken.buffers()[0])
    row = pa.RecordBatch.from_arrays(
        [text, pa.array([b"\1"], pa.large_binary()), pa.nulls(1, pa.int64())], ["s", "b", "n"]
    )
    assert list(render_rows(["s", "b", "n"], row)) == [["a\\xff", "0x01", "NULL"]]


ODD = table(8, "odd", "id int", "day date", "s mediumtext", primary="id")


def odd_rows() -> pa.RecordBatch:
    texts = [b"caf\xe9", *[b"x" * 300_000] * 7]
    days = ["2020-02-31", "0000-00-00", *["2020-01-01"] * 6]
    text = pa.Array.from_buffers(pa.large_string(), 8, pa.array(texts, pa.large_binary()).buffers())
    return pa.record_batch(
        [pa.array(range(8), pa.int64()), pa.array(days, pa.large_string()), text],
        ["id", "day", "s"],
    )


def test_sql_loads_whatever_the_servers_mode_and_packets_are(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    with file_output(tmp_path, "sql", "d.odd", odd_rows().schema, ODD) as output:
        output.write(odd_rows())
    statements = (tmp_path / "d.odd.sql").read_bytes().split(b";\n")[:-1]
    assert max(map(len, statements)) < 1 << 20
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE'")
        cursor.execute("CREATE DATABASE d")
        cursor.execute(
            "CREATE TABLE d.odd (id INT AUTO_INCREMENT PRIMARY KEY, day DATE, s MEDIUMBLOB)"
        )
        for statement in statements:
            cursor.execute(statement)
        connection.commit()
        cursor.execute("SELECT id, CAST(day AS CHAR), LENGTH(s) FROM d.odd ORDER BY id LIMIT 2")
        assert cursor.fetchall() == ((0, "2020-02-31", 4), (1, "0000-00-00", 300_000))


def test_text_that_is_not_utf_8_is_shown_as_bytes_in_csv(tmp_path: Path) -> None:
    with file_output(tmp_path, "csv", "d.odd", odd_rows().schema, ODD) as output:
        output.write(odd_rows().slice(0, 2))
    assert (tmp_path / "d.odd.csv").read_text().splitlines()[1] == '0,"2020-02-31","0x636166E9"'


def test_json_is_a_row_a_line_with_exact_numbers_and_bytes_as_digits(tmp_path: Path) -> None:
    lines = write(tmp_path, "json").read_text(encoding="utf-8").splitlines()
    documents = [json.loads(line) for line in lines]
    assert {each["table"] for each in documents} == {TABLE.full_name}
    shown = [("0x00FF", "0x", None)[number] for number in range(3)]
    assert [tuple(each["row"].values()) for each in documents] == [
        (*row[:2], digits, *row[3:]) for row, digits in zip(ROWS, shown, strict=True)
    ]
    (tmp_path / "odd").mkdir()
    with file_output(tmp_path / "odd", "json", "d.odd", odd_rows().schema, ODD) as output:
        output.write(odd_rows().slice(0, 1))
    row = json.loads((tmp_path / "odd" / "d.odd.json").read_text())["row"]
    assert list(row.values()) == [0, "2020-02-31", "0x636166E9"]
