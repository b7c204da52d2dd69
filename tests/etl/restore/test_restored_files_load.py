"""What `restore --files` writes is loaded as a whole by one command that the documents give."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from sluice.etl.restore import FilesRequest
from sluice.tidb.column_types import FLAG_AUTO_INCREMENT
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.restore.restoring import archived, restore_files, settings_of
from tests.etl.story import Story, column, table

_DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "restore-tables.md"
_LONG = b"it's\\\r\n\0\x1a\"," * 300_000
"""3 MB, more than a statement has, with all that needs escapes."""
ODD = replace(
    table(12, "odd", "id int", "day date", "s longtext", "b varbinary(9)", "n int", primary="id"),
    auto_increment=9,
)
ODD = replace(
    ODD,
    columns=(
        replace(ODD.columns[0], flag=ODD.columns[0].flag | FLAG_AUTO_INCREMENT),
        *ODD.columns[1:],
    ),
)
CHILD = table(13, "child of `odd`", "id int", "name varchar(9)", column(3, "e enum('a','x')"))
ROWS = [
    {"id": 0, "day": "0000-00-00", "s": "", "b": b"", "n": None},
    {"id": 1, "day": "2020-02-31", "s": None, "b": None, "n": -1},
    {"id": 2, "day": None, "s": b"caf\xe9", "b": b"0x\xff", "n": 2},
    {"id": 3, "day": "2020-01-01", "s": _LONG, "b": b"NULL", "n": 3},
    {"id": 4, "day": "2020-01-01", "s": "NULL", "b": b"\\N", "n": 4},
]


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    story = Story(mariadb, tmp_path)
    story.create(ODD, "CREATE TABLE odd ...")
    story.create(CHILD, "CREATE TABLE child ...")
    story.insert(ODD, *(dict(row) for row in ROWS))
    story.insert(CHILD, {"id": 1, "name": "ü", "e": "x"}, {"id": None, "name": None, "e": ""})
    return story


def files_of(story: Story, folder: Path, kind: str) -> None:
    from sluice.relay import RelayLog

    archived(RelayLog.open(story.url))
    restore_files(settings_of(story.server, story.url), FilesRequest(story._ts, (), folder, kind))


def documented(begin: str) -> str:
    """The indented block of the document that begins so."""
    (found,) = [
        block.strip()
        for block in _DOCUMENT.read_text().split("\n\n")
        if block.startswith(f"    {begin}")
    ]
    return found


def test_a_whole_folder_of_sql_loads_into_an_empty_server_by_one_command(
    story: Story, tmp_path: Path
) -> None:
    files_of(story, tmp_path / "files", "sql")
    story.server.empty()
    command = documented("cat ").replace("/backup/shop", str(tmp_path / "files"))
    client = f"mariadb --no-defaults -h127.0.0.1 -P{story.server.port} -uroot"
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command.replace("mariadb", client)],
        check=True,
        timeout=60,
    )
    shown = "id, CAST(day AS CHAR), CAST(s AS BINARY), CAST(b AS BINARY), n"
    assert story.rows("odd", shown) == [
        (
            row["id"],
            row["day"],
            row["s"].encode() if isinstance(row["s"], str) else row["s"],
            row["b"],
            row["n"],
        )
        for row in ROWS
    ]
    assert story.rows(CHILD.name, "id, name, e+0") == [(1, "ü", 2), (None, None, 0)]
    with story.server.connect(database="d") as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO odd (n) VALUES (10)")
        cursor.execute("SELECT MAX(id) FROM odd")
        assert cursor.fetchall() == ((9,),)


def test_a_whole_folder_of_csv_loads_by_one_command_with_null_beside_nothing(
    story: Story, tmp_path: Path
) -> None:
    files_of(story, tmp_path / "files", "csv")
    command = documented("FROM read_csv").replace(
        "/backup/shop/shop.orders.csv", str(tmp_path / "files" / "d.odd.csv")
    )
    rows = duckdb.sql(command).fetchall()
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("0", "", "0x"),
        ("1", None, None),
        ("2", "0x636166E9", "0x3078FF"),
        ("3", _LONG.decode(), "0x4E554C4C"),
        ("4", "NULL", "0x5C4E"),
    ]
    assert [(row[1], row[4]) for row in rows][:3] == [
        ("0000-00-00", None),
        ("2020-02-31", "-1"),
        (None, "2"),
    ]
