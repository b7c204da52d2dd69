"""Comments and indexes that a server can't have never stop rows: they are shortened or left out,
with a warning.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.changes.dialect import Dialect
from sluice.etl.downstream.ddl import DdlError
from sluice.etl.downstream.ddl._generate import index_definition
from sluice.tidb.schema import Index, Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, column, table, wider


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Story:
    return Story(mariadb, tmp_path)


def indexes(server: MariaDBServer, name: str = "t") -> dict[str, list[tuple[Any, ...]]]:
    """(column, prefix, unique) of each index."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT INDEX_NAME, COLUMN_NAME, SUB_PART, NON_UNIQUE = 0 FROM"
            " information_schema.STATISTICS WHERE TABLE_SCHEMA = 'd' AND TABLE_NAME = %s ORDER BY"
            " INDEX_NAME, SEQ_IN_INDEX",
            (name,),
        )
        found: dict[str, list[tuple[Any, ...]]] = {}
        for index, *rest in cursor.fetchall():
            found.setdefault(index, []).append(tuple(rest))
        return found


def indexed(of: Table, *more: Index) -> Table:
    return replace(of, indexes=(*of.indexes, *more))


def test_comments_that_are_too_long_are_shortened(story: Story, mariadb: MariaDBServer) -> None:
    base = table(
        10, "t", "id int", column(2, "a int", comment="é" * 1200), primary="id", comment="x" * 3000
    )
    made = story.create(indexed(base, Index(3, "k", (("a", 1, -1),), comment="y" * 1500)), "")
    new = wider(made, column(4, "b int", comment="😀 fine" + "z" * 1024))
    story.statement(5, "ALTER TABLE `t` ADD COLUMN `b`", new)
    story.statement(17, "ALTER TABLE `t` COMMENT", replace(new, comment="w" * 2049))
    warnings = "\n".join(story.apply().warnings)
    for what in ("column a of d.t", "column b of d.t", "index k of d.t", "comment of d.t"):
        assert what in warnings, warnings
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT COLUMN_COMMENT FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'd' ORDER"
            " BY 1"
        )
        assert {text for (text,) in cursor.fetchall()} == {"", "é" * 1024, "? fine" + "z" * 1018}
        cursor.execute(
            "SELECT TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'd'"
        )
        assert cursor.fetchall()[0][0] == "w" * 2048


def test_indexes_that_are_too_long_are_shortened(story: Story, mariadb: MariaDBServer) -> None:
    long = table(
        10,
        "t",
        "id int",
        "a varchar(1024)",
        "b varchar(255)",
        "c varbinary(4000)",
        "e bigint",
        primary="id",
    )
    made = story.create(
        indexed(
            long, Index(2, "ab", (("a", 1, -1), ("b", 2, -1))), Index(3, "bytes", (("c", 3, -1),))
        ),
        "",
    )
    story.statement(7, "CREATE INDEX", after := indexed(made, Index(4, "a", (("a", 1, -1),))))
    last = indexed(after, Index(5, "eab", (("e", 4, -1), ("a", 1, 700), ("b", 2, 200))))
    story.statement(7, "CREATE INDEX", last)
    story.insert(made, {"id": 1, "a": "x" * 1024, "b": "y", "c": b"\0" * 4000, "e": 5})
    warnings = story.apply().warnings
    for name in ("ab", "bytes", "a", "eab"):
        assert any(f"index {name} of d.t is longer" in w and "shortened" in w for w in warnings), (
            name,
            warnings,
        )
    found = indexes(mariadb)
    assert found["ab"] == [("a", 513, 0), ("b", None, 0)]
    assert found["bytes"] == [("c", 3072, 0)]
    assert found["a"] == [("a", 768, 0)]
    assert found["eab"] == [("e", None, 0), ("a", 566, 0), ("b", 200, 0)]
    story.statement(
        8, "DROP INDEX", replace(last, indexes=[i for i in last.indexes if i.name != "ab"])
    )
    story.apply()
    assert "ab" not in indexes(mariadb)
    assert len(story.rows("t")) == 1


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize(
    "keys", [{"primary": "v"}, {"primary": "v,w"}, {"unique": ("v",)}], ids=str
)
def test_a_key_that_is_too_long_still_tells_rows_apart(
    story: Story, mariadb: MariaDBServer, keys: dict[str, Any]
) -> None:
    made = story.create(
        table(10, "t", "v varchar(1000) not null", "w varchar(300) not null", "n int", **keys), ""
    )
    rows = [{"v": "x" * 999 + char, "w": "é", "n": n} for n, char in enumerate("abcdef")]
    story.insert(made, *rows)
    hashes = mariadb.dialect.hashes_long_keys
    if "primary" in keys and not hashes:
        with pytest.raises(DdlError, match="Specified key was too long"):
            story.apply()
        return
    warnings = story.apply().warnings
    assert ("primary" not in keys) or any("primary key of d.t is longer" in w for w in warnings), (
        warnings
    )
    kinds = {(parts[0][2], parts[0][1] is None) for parts in indexes(mariadb).values()}
    if not hashes:
        assert kinds == set()
        return  # nothing tells its rows apart downstream: a change of one stops by name
    assert kinds == {(1, True), (0, False)}  # its hashes, and one by which rows are found
    rows[0] = story.update(made, rows[0], {"n": 100})
    story.delete(made, rows.pop(1), rows.pop(2))
    story.apply()
    assert story.rows("t", "RIGHT(v, 1), n") == [("a", 100), ("c", 2), ("e", 4), ("f", 5)]
    one, other = rows[0], rows[1]  # they swap what tells them apart
    story.delete(made, one, other)
    story.insert(made, one | {"n": 7}, other | {"n": 8})
    story.apply()
    assert story.rows("t", "RIGHT(v, 1), n") == [("a", 7), ("c", 8), ("e", 4), ("f", 5)]


def test_indexes_beyond_the_most_are_left_out_and_unique_ones_last(
    story: Story, mariadb: MariaDBServer
) -> None:
    base = table(10, "t", "id int", *(f"c{n} int" for n in range(80)), primary="id")
    several = [Index(10 + n, f"k{n}", ((f"c{n}", n + 1, -1),), unique=n == 70) for n in range(71)]
    made = story.create(indexed(base, *several), "")
    more = indexed(made, Index(200, "more", (("c79", 80, -1),)))
    story.statement(7, "CREATE INDEX", more)
    story.statement(
        8,
        "DROP INDEX",
        without := replace(more, indexes=[i for i in more.indexes if i.name != "k0"]),
    )
    story.statement(7, "CREATE INDEX", indexed(without, Index(201, "fits", (("c78", 79, -1),))))
    warnings = story.apply().warnings
    assert any("index k69 of d.t left out: the server has at most 64" in w for w in warnings), (
        warnings
    )
    found = indexes(mariadb)
    assert len(found) == 64
    assert found["k70"] == [("c70", None, 1)]
    assert "fits" in found
    assert "more" not in found


@pytest.mark.parametrize("name", ["GEN_CLUST_INDEX", "gen_clust_index", "i😀"])
def test_an_index_with_a_name_of_the_servers_own_is_left_out(
    story: Story, mariadb: MariaDBServer, name: str
) -> None:
    base = table(10, "t", "id int", "a int", primary="id")
    made = story.create(indexed(base, Index(3, name, (("a", 1, -1),))), "")
    story.insert(made, {"id": 1, "a": 2})
    story.statement(8, "DROP INDEX", base)
    story.statement(7, "CREATE INDEX", indexed(base, Index(4, name, (("a", 1, -1),))))
    assert sum(f"index {name} of d.t" in w for w in story.apply().warnings) == 2
    assert list(indexes(mariadb)) == ["PRIMARY"]
    assert story.rows("t") == [(1, 2)]


def test_a_server_without_hashes_refuses_a_primary_key_that_is_too_long() -> None:
    made = table(10, "t", "v varchar(1000)", primary="v")
    assert index_definition(made, made.indexes[0], Dialect.from_version("8.0.36")) == (
        ["PRIMARY KEY (`v`)"],
        [],
    )
