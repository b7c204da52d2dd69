"""Databases, tables, columns, indexes and values named like statements: through DDL, DML, errors
and the search for a culprit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.apply.run import ApplyError
from sluice.etl.settings import Relay, Settings, Upstream
from sluice.relay import REPLACE, SKIP, Override
from sluice.tidb.schema import Column, Index, Schema, Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, column, table

NASTY = "x`; DROP DATABASE d; -- '\" \\ %s"
VALUE = NASTY + "\n\t\0\x1a\\N','),(`"
CREATE_SCHEMA, DROP_TABLE, ADD_COLUMN, ADD_INDEX, RENAME, TRUNCATE, DROP_SCHEMA, MODIFY = (
    1,
    4,
    5,
    7,
    14,
    11,
    2,
    12,
)


def q(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _column(number: int, name: str, spec: str) -> Column:
    from dataclasses import replace

    return replace(column(number, f"c {spec}"), name=name)


def nasty_table(number: int, schema: str, name: str, key: bool, *more: Column) -> Table:
    from dataclasses import replace

    columns = (
        _column(1, "k" + NASTY, "varchar(120) not null"),
        _column(2, "v" + NASTY, "varchar(200)"),
        _column(3, "e" + NASTY, "int"),
        *more,
    )
    made = table(number, "t", *columns)
    indexes: tuple[Index, ...] = ()
    if key:
        indexes = (
            Index(1, "PRIMARY", ((columns[0].name, 0, -1),), unique=True, primary=True),
            Index(2, "u" + NASTY, ((columns[2].name, 2, -1),), unique=True),
        )
    return replace(made, schema_name=schema, name=name, indexes=indexes, is_common_handle=key)


def created(made: Table) -> str:
    lines = [
        f"{q(c.name)}"
        f" {'int' if c.kind == 'int' else f'varchar({c.flen})'}{' NOT NULL' if c.not_null else ''}"
        for c in made.columns
    ]
    for index in made.indexes:
        kind = "PRIMARY KEY" if index.primary else f"UNIQUE KEY {q(index.name)}"
        lines.append(f"{kind} ({', '.join(q(name) for name, _, _ in index.columns)})")
    return f"CREATE TABLE {q(made.name)} ({', '.join(lines)})"


def row(key: str, value: str | None, number: int, **more: Any) -> dict[str, Any]:
    return {"k" + NASTY: key, "v" + NASTY: value, "e" + NASTY: number, **more}


@pytest.fixture
def story(mariadb: MariaDBServer, tmp_path: Path) -> Iterator[Story]:
    """Schema `d` holds what an injection would destroy."""
    story = Story(mariadb, tmp_path)
    guard = story.create(
        table(90, "guard", "id int", primary="id"), "CREATE TABLE `guard` (`id` int primary key)"
    )
    story.insert(guard, {"id": 1})
    story.statement(
        CREATE_SCHEMA,
        f"CREATE DATABASE {q(NASTY)}",
        schemas={2: Schema(2, NASTY, "utf8mb4", "utf8mb4_bin")},
        schema=NASTY,
    )
    story.apply()
    yield story
    assert story.rows("guard") == [(1,)]


def read(story: Story, schema: str, name: str, columns: str = "*") -> list[tuple[Any, ...]]:
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {q(schema)}.{q(name)}")
        return sorted(cursor.fetchall(), key=repr)


@pytest.mark.quick_cases("without a key")
@pytest.mark.parametrize("key", [True, False], ids=["with keys", "without a key"])
def test_a_whole_history_of_nasty_names_and_values_arrives_as_it_is(
    story: Story, key: bool
) -> None:
    first = nasty_table(11, NASTY, "t" + NASTY, key)
    story.statement(3, created(first), first, schema=NASTY, name=first.name)
    rows = [row(f"{VALUE}{i}", VALUE if i % 2 else None, i) for i in range(20)]
    for one in rows:
        story.insert(first, one)
    for one in rows[:4]:
        one.update(story.update(first, one, {"v" + NASTY: "'; DELETE FROM d.guard; -- "}))
    story.delete(first, *rows[4:8])
    story.apply()
    wanted = sorted(
        ((one["k" + NASTY], one["v" + NASTY], one["e" + NASTY]) for one in rows[:4] + rows[8:]),
        key=repr,
    )
    assert read(story, NASTY, first.name) == wanted

    extra = _column(4, "n" + NASTY, "int")
    second = nasty_table(11, NASTY, "t" + NASTY, key, extra)
    story.statement(
        ADD_COLUMN,
        f"ALTER TABLE {q(first.name)} ADD COLUMN {q(extra.name)} int",
        second,
        schema=NASTY,
        name=first.name,
    )
    story.statement(
        ADD_INDEX,
        f"ALTER TABLE {q(first.name)} ADD INDEX {q('i' + NASTY)}({q(extra.name)})",
        second,
        schema=NASTY,
        name=first.name,
    )
    third = nasty_table(11, "d", "r" + NASTY, key, extra)
    story.statement(
        RENAME,
        f"ALTER TABLE {q(first.name)} RENAME TO `d`.{q(third.name)}",
        third,
        schema=NASTY,
        name=first.name,
    )
    story.insert(third, row("last", VALUE, 99, **{extra.name: 7}))
    story.apply()
    assert ("last", VALUE, 99, 7) in read(story, "d", third.name)

    fourth = nasty_table(12, "d", "r" + NASTY, key, extra)
    story.statement(
        TRUNCATE, f"TRUNCATE TABLE {q(third.name)}", 11, fourth, schema="d", name=third.name
    )
    story.apply()
    assert read(story, "d", third.name) == []
    story.insert(fourth, row("again", VALUE, 1, **{extra.name: 1}))
    story.apply()
    story.statement(DROP_TABLE, f"DROP TABLE {q(third.name)}", 12, schema="d", name=third.name)
    story.statement(DROP_SCHEMA, f"DROP DATABASE {q(NASTY)}", schemas={2: None}, schema=NASTY)
    story.apply()
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT SCHEMA_NAME FROM information_schema.SCHEMATA")
        assert NASTY not in {name for (name,) in cursor.fetchall()}
        cursor.execute(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'sluice_recycle'"
        )
        kept = [name for (name,) in cursor.fetchall()]
    assert kept and all(name.replace("_", "").isalnum() for name in kept)
    assert [(1,)] in [read(story, "sluice_recycle", name, "COUNT(*)") for name in kept]


def test_what_the_text_of_a_statement_says_is_never_executed(story: Story) -> None:
    made = nasty_table(11, NASTY, "t" + NASTY, True)
    story.statement(3, created(made) + " NO_SUCH_OPTION", made, schema=NASTY, name=made.name)
    story.insert(made, row("a", VALUE, 1))
    assert story.apply().warnings == []
    assert read(story, NASTY, made.name) == [("a", VALUE, 1)]
    wider = nasty_table(11, NASTY, "t" + NASTY, True, _column(4, "w" + NASTY, "int"))
    story.statement(
        ADD_COLUMN,
        f"ALTER TABLE {q(made.name)} ADD COLUMN {q('w' + NASTY)} int NO_SUCH_OPTION",
        wider,
        schema=NASTY,
        name=made.name,
    )
    story.insert(wider, row("b", VALUE, 2, **{"w" + NASTY: 5}))
    story.apply()
    assert ("b", VALUE, 2, 5) in read(story, NASTY, made.name)


@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("kind", ["missing", "there already", "missing without a key"])
def test_what_errors_are_found_by_stays_quoted_too(story: Story, kind: str) -> None:
    made = nasty_table(11, NASTY, "t" + NASTY, kind != "missing without a key")
    story.statement(3, created(made), made, schema=NASTY, name=made.name)
    one, other = row(VALUE, VALUE, 1), row(VALUE + "2", VALUE, 2)
    story.insert(made, one)
    story.apply()
    with story.server.connect() as connection, connection.cursor() as cursor:
        if kind == "there already":
            target = f"{q(NASTY)}.{q(made.name)}".replace("%", "%%")
            cursor.execute(f"INSERT INTO {target} VALUES (%s, %s, %s)", (VALUE + "2", "mine", 3))
        else:
            cursor.execute(f"DELETE FROM {q(NASTY)}.{q(made.name)}")
    story.insert(made, other) if kind == "there already" else story.delete(made, one)
    with pytest.raises(ApplyError) as caught:
        story.apply()
    assert f"at commit_ts {story._ts}" in str(caught.value)
    story._relay.overrides.add(Override(story._ts, SKIP))
    story.apply()


def test_the_checkpoint_may_lie_in_a_nasty_table_and_replaced_ddl_is_the_operators_own_text(
    story: Story,
) -> None:
    made = nasty_table(11, NASTY, "t" + NASTY, True)
    story.statement(3, created(made), made, schema=NASTY, name=made.name)
    story._relay.overrides.add(
        Override(
            story._ts,
            REPLACE,
            (created(made), f"INSERT INTO {q(made.name)} VALUES ('%s', '{{}}', 1)"),
        )
    )
    from dataclasses import replace

    downstream = replace(
        story.server.downstream, checkpoint_schema="c" + NASTY, checkpoint_table="t" + NASTY
    )
    settings = Settings(Upstream("unused"), Relay(story._url), downstream)
    with story.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE d")  # a new copy, with a checkpoint of its own
        cursor.execute(f"DROP DATABASE {q(NASTY)}")
    # which says where the relay log went so far
    Path(story._url.removeprefix("file://"), "downstream.json").unlink()
    run_apply(settings, until_ts=story._ts, run_seconds=240, prepare=local_preparer(settings))
    assert read(story, NASTY, made.name) == [("%s", "{}", 1)]
    assert len(read(story, "c" + NASTY, "t" + NASTY)) == 1
