import contextlib
import gzip
import json
import shutil

import pytest

from sluice.devstack.compare import compare
from sluice.devstack.recording import RecordingError


@pytest.fixture
def connection(mariadb):
    with contextlib.closing(mariadb.connect()) as opened:
        yield opened


def sql(connection, *statements):
    with connection.cursor() as cursor:
        for statement in ("CREATE DATABASE IF NOT EXISTS s", *statements):
            cursor.execute(statement)


def snapshot(folder, **tables):
    """`table=(columns, rows)` as a snapshot folder."""
    label = folder / "snapshots" / "here"
    label.mkdir(parents=True)
    listed = [
        {
            "label": "here",
            "ts": 1,
            "tables": {f"s.{name}": len(rows) for name, (_, rows) in tables.items()},
        }
    ]
    (folder / "snapshots.json").write_text(json.dumps(listed))
    for number, (name, (columns, rows)) in enumerate(tables.items()):
        lines = [json.dumps({"columns": columns}), *(json.dumps(row) for row in rows)]
        path = label / f"s.{name}.jsonl"
        if number % 2:
            path = path.with_name(path.name + ".gz")
        with gzip.open(path, "wt") if number % 2 else path.open("w") as handle:
            handle.write("\n".join(lines) + "\n")
    return label


ALL_KINDS = (
    (
        "CREATE TABLE s.k (id INT PRIMARY KEY, d DECIMAL(20,5), f FLOAT, g DOUBLE, j JSON, b"
        " BIT(20), v VARBINARY(9), t VARCHAR(20), at TIMESTAMP(3) NULL, e ENUM('x','y')) CHARSET"
        " utf8mb4"
    ),
    (
        "INSERT INTO s.k VALUES (1, 1.5, 0.1, 0.1, '{\"b\": 2, \"a\": [1,  2]}', 5, x'00ff', 'Grüße"
        " 名', '2020-01-01 00:00:00.5', 'x'), (2, NULL, -0.0, 16777217, 'null', NULL, '', '', NULL,"
        " NULL)"
    ),
)
KIND_COLUMNS = ["id", "d", "f", "g", "j", "b", "v", "t", "at", "e"]
KIND_ROWS = [
    [
        "1",
        "1.50000",
        "0.1",
        "0.1",
        '{"a":[1,2],"b":2}',
        {"hex": "000005"},
        {"hex": "00ff"},
        "Grüße 名",
        "2020-01-01 00:00:00.500",
        "x",
    ],
    ["2", None, "0", "16777217", "null", None, {"hex": ""}, "", None, None],
]


def test_equal_values_in_another_notation_are_no_difference(connection, tmp_path):
    sql(connection, "SET time_zone='+00:00'", *ALL_KINDS, "SET time_zone='+05:00'")
    report = compare(snapshot(tmp_path, k=(KIND_COLUMNS, KIND_ROWS)), connection)
    assert report.differences == []
    assert (report.tables, report.rows) == (1, 2)
    # The caller's session is as it was.
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@time_zone, 7")
        assert cursor.fetchone() == ("+05:00", 7)


@pytest.mark.parametrize(
    "change",
    ["d = 1.50001", "f = 0.10000001", "g = 0.10000000000000002", "b = 6", "v = x'ff'",
     "j = '{\"a\": [2, 1], \"b\": 2}'", "j = NULL",
     "t = 'grüße 名'", "at = '2020-01-01 00:00:00.501'", "e = 'y'", "e = NULL"],
)  # fmt: skip
def test_a_changed_value_of_any_kind_is_a_difference(connection, tmp_path, change):
    sql(connection, "SET time_zone='+00:00'", *ALL_KINDS, f"UPDATE s.k SET {change} WHERE id = 1")
    [line] = compare(snapshot(tmp_path, k=(KIND_COLUMNS, KIND_ROWS)), connection).differences
    assert line.startswith("s.k: 1 rows missing (")
    assert "1 rows too many (" in line


def test_a_column_that_is_left_aside_has_to_be_there_with_any_value(connection, tmp_path):
    sql(connection, "SET time_zone='+00:00'", *ALL_KINDS, "UPDATE s.k SET t = 'x' WHERE id = 1")
    label = snapshot(tmp_path, k=(KIND_COLUMNS, KIND_ROWS))
    assert compare(label, connection, frozenset({"t"})).differences == []
    assert len(compare(label, connection, frozenset({"v"})).differences) == 1
    sql(connection, "ALTER TABLE s.k DROP COLUMN t")
    [line] = compare(label, connection, frozenset({"t"})).differences
    assert line.startswith("s.k: columns")


def test_rows_are_compared_as_a_multiset(connection, tmp_path):
    sql(connection, "CREATE TABLE s.a (x INT)", "CREATE TABLE s.b (x INT)")
    sql(
        connection,
        "INSERT INTO s.a VALUES (1), (1), (2)",
        "INSERT INTO s.b VALUES (1), (2), (2), (3)",
    )
    label = snapshot(tmp_path, a=(["x"], [["2"], ["1"], ["1"]]), b=(["x"], [["1"], ["1"], ["2"]]))
    report = compare(label, connection)
    assert report.differences == ["s.b: 1 rows missing ((1)), 2 rows too many ((2); (3))"]
    assert (report.tables, report.rows) == (2, 6)


def test_missing_surplus_and_differently_shaped_tables_are_named(connection, tmp_path):
    sql(
        connection,
        "CREATE TABLE s.a (X INT)",
        "CREATE TABLE s.shape (x INT, z INT)",
        "CREATE TABLE s.surplus (x INT)",
    )
    label = snapshot(tmp_path, a=(["x"], []), gone=(["x"], []), shape=(["x", "y"], []))
    assert compare(label, connection).differences == [
        "s.gone: missing downstream",
        "s.shape: columns ['x', 'z'] downstream, ['x', 'y'] upstream",
        "s.surplus: not in the snapshot",
    ]


def test_a_damaged_or_missing_snapshot_file_is_named(connection, tmp_path):
    sql(connection, "CREATE TABLE s.a (x INT)", "CREATE TABLE s.b (x INT)")
    label = snapshot(tmp_path, a=(["x"], [["1"]]), b=(["x"], [["1"]] * 100))
    packed = label / "s.b.jsonl.gz"
    packed.write_bytes(packed.read_bytes()[:40])
    with pytest.raises(RecordingError, match=r"s\.b\.jsonl\.gz, after line \d+: damaged"):
        compare(label, connection)
    (label / "s.a.jsonl").unlink()
    with pytest.raises(RecordingError, match=r"s\.a\.jsonl: missing"):
        compare(label, connection)
    with pytest.raises(RecordingError, match="no label 'elsewhere'"):
        compare(shutil.copytree(label, label.with_name("elsewhere")), connection)


def test_names_like_injections_are_names(connection, tmp_path):
    name = "t`; DROP DATABASE s; -- x"
    quoted = "`" + name.replace("`", "``") + "`"
    sql(connection, f"CREATE TABLE s.{quoted} (`a``b` INT)", f"INSERT INTO s.{quoted} VALUES (1)")
    label = snapshot(tmp_path)
    listed = [{"label": "here", "ts": 1, "tables": {f"s.{name}": 1}}]
    (tmp_path / "snapshots.json").write_text(json.dumps(listed))
    (label / "s.t%60%3B%20DROP%20DATABASE%20s%3B%20--%20x.jsonl").write_text(
        '{"columns": ["a`b"]}\n["1"]\n'
    )
    assert compare(label, connection).differences == []


def test_withheld_tables_may_be_there_and_a_value_that_is_not_of_its_kind_is_a_difference(
    connection, tmp_path
):
    sql(
        connection,
        "CREATE TABLE s.a (x DOUBLE)",
        "INSERT INTO s.a VALUES (1)",
        "CREATE TABLE s.kept (x INT)",
        "CREATE TABLE s.more (x INT)",
    )
    label = snapshot(tmp_path, a=(["x"], [["no number"]]))
    listed = json.loads((tmp_path / "snapshots.json").read_text())
    (tmp_path / "snapshots.json").write_text(json.dumps([listed[0] | {"withheld": ["s.kept"]}]))
    differences = compare(label, connection).differences
    assert len(differences) == 2 and differences[0].startswith("s.a: 1 rows missing ((no number))")
    assert differences[1] == "s.more: not in the snapshot"
