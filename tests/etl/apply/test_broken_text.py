"""Text that isn't what its column declares, which TiDB takes where it doesn't check: it arrives
byte for byte, in a column of bytes if need be.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.etl.apply.run import ApplyError
from sluice.tidb.schema import Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Row, Story, table

BROKEN = (b"a\xe9b", b"\xff\xfe'\\", b"\xe9", b"\xf0\x9f\x98", b"\xe9\t\n\0")
SPECS = (
    "varchar(20)",
    "varchar(20) character set latin1",
    "varchar(20) character set ascii",
    "text",
)


def made(story: Story, spec: str, primary: str) -> Table:
    keys = ", PRIMARY KEY (`v`)" if primary == "v" else ", PRIMARY KEY (`id`)" if primary else ""
    return story.create(
        table(11, "t", "id int", f"v {spec}", primary=primary),
        f"CREATE TABLE `t` (`id` int, `v` {spec}{keys})",
    )


def rows_of(broken: tuple[bytes, ...]) -> list[Row]:
    return [
        {"id": i, "v": value} for i, value in enumerate([*broken, "é", "plain", "😀", "it's \\"])
    ]


def stored(story: Story) -> list[tuple[int, bytes]]:
    return sorted(
        (number, bytes.fromhex(digits)) for number, digits in story.rows("t", "id, HEX(v)")
    )


def bytes_in(rows: list[Row]) -> list[tuple[int, bytes]]:
    return sorted(
        (row["id"], row["v"].encode() if isinstance(row["v"], str) else row["v"]) for row in rows
    )


@pytest.mark.parametrize(
    "primary", ["id", "v", ""], ids=["with a key", "in the key", "without a key"]
)
def test_utf8_in_an_ascii_column_arrives(
    mariadb: MariaDBServer, tmp_path: Path, primary: str
) -> None:
    story = Story(mariadb, tmp_path)
    of = made(story, "varchar(20) character set ascii", primary)
    rows = rows_of(())
    story.insert(of, *rows)
    story.apply()
    assert stored(story) == bytes_in(rows)
    story.delete(of, rows.pop(0))
    story.apply()
    assert stored(story) == bytes_in(rows)


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("count", [1, 30], ids=["few rows", "many rows"])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("primary", ["id", ""], ids=["with a key", "without a key"])
def test_bytes_that_text_cannot_hold_make_the_column_one_of_bytes(
    mariadb: MariaDBServer, tmp_path: Path, spec: str, primary: str, count: int
) -> None:
    story = Story(mariadb, tmp_path)
    of = made(story, spec, primary)
    rows = rows_of(BROKEN) + [{"id": 100 + i, "v": f"é{i}"} for i in range(count)]
    story.insert(of, *rows)
    summary = story.apply()
    assert any(
        "d.t: the column v holds bytes from here on" in warning for warning in summary.warnings
    )
    assert stored(story) == bytes_in(rows)
    rows[0] = story.update(of, rows[0], {"v": b"\xfe\xfd"})
    story.delete(of, rows.pop(1), rows.pop(4))
    after = table(
        11, "t", "id int", f"v {spec.replace('(20)', '(30)')}", "more int", primary=primary
    )
    story.statement(5, "ALTER TABLE `t` ADD COLUMN `more` int", after)
    story.delete(after, rows.pop(1) | {"more": None})
    story.apply()
    assert stored(story) == bytes_in(rows)


def test_broken_keys_are_found_again(mariadb: MariaDBServer, tmp_path: Path) -> None:
    story = Story(mariadb, tmp_path)
    of = made(story, "varchar(20)", "v")
    story.apply()
    rows = rows_of(BROKEN)
    story.insert(of, *rows)
    story.apply()
    story.delete(of, rows.pop(0), rows.pop(0), rows.pop(-1))
    story.apply()
    assert stored(story) == bytes_in(rows)


def test_long_broken_text_is_found_again_without_a_key(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    of = made(story, "mediumtext", "")
    story.apply()
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE d.t MODIFY v MEDIUMBLOB")
    rows: list[Row] = [
        {"id": i, "v": value * 3000} for i, value in enumerate((b"a\xe9", b"b\xe9", b"\xc3\xa9"))
    ]
    story.insert(of, *rows)
    story.apply()
    story.delete(of, rows.pop(0), rows.pop(-1))
    story.apply()
    assert stored(story) == bytes_in(rows)


def test_broken_text_of_a_chinese_character_set_stops_by_name(
    mariadb: MariaDBServer, tmp_path: Path
) -> None:
    story = Story(mariadb, tmp_path)
    of = made(story, "varchar(20) character set gbk", "id")
    story.insert(of, *rows_of((b"\xd6\xd0",)))
    with pytest.raises(ApplyError, match=r"d\.t\.v: text in gbk"):
        story.apply()
