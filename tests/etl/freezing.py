"""What happens when a process that applies is stopped at one of its steps, another one takes over,
and the first goes on.

`histories` tell what is applied, `Point` is one run, `run_point` makes it. The suite runs some of
them, `bench/stall_points.py` all.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.rows import encode_delete, encode_insert, encode_update
from tests.etl.freezer import Freezer, trace_of
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.story import Story, column, table

DROP_TABLE, ADD_COLUMN, TRUNCATE_TABLE, RENAME_TABLES = 4, 5, 11, 47
_BLOCKED_S = 30.0

ITEM = table(11, "item", "id int", "name varchar(20)", "v int", primary="id", unique=("name",))
WIDE = table(
    11,
    "item",
    "id int",
    "name varchar(20)",
    "v int",
    column(4, "made datetime", default="2020-01-01 00:00:00", origin_default="2020-01-01 00:00:00"),
    primary="id",
    unique=("name",),
)
NOTE = table(12, "note", "a int", "b int")


def item(i: int, name: str = "", v: int = 0) -> dict[str, Any]:
    return {"id": i, "name": name or f"n{i}", "v": v}


def wide(i: int, name: str = "", v: int = 0, made: str = "2020-01-01 00:00:00") -> dict[str, Any]:
    return item(i, name, v) | {"made": made}


def tell(server: MariaDBServer, folder: Path) -> Story:
    """Rows, flights with flushes between their rounds, and DDL: of the kind that fills existing
    rows, of the kind that drops what is made again under the same name, and of the kind that swaps
    names.
    """
    story = Story(server, folder)
    story.create(
        ITEM, "CREATE TABLE `item` (`id` int primary key, `name` varchar(20) unique, `v` int)"
    )
    story.create(NOTE, "CREATE TABLE `note` (`a` int, `b` int)")
    story.insert(ITEM, *(item(i) for i in range(4)))
    story.insert(NOTE, {"a": 1, "b": 1}, {"a": 2, "b": 2})
    story.changes(
        (ITEM, UPDATE, encode_update(ITEM, item(1), item(1, "x"))),
        (ITEM, UPDATE, encode_update(ITEM, item(2), item(2, "n1"))),
        (ITEM, DELETE, encode_delete(ITEM, item(0))),
        (ITEM, INSERT, encode_insert(ITEM, item(5, "n2"))),
    )
    story.statement(
        ADD_COLUMN,
        "ALTER TABLE `item` ADD COLUMN `made` datetime DEFAULT '2020-01-01 00:00:00'",
        WIDE,
    )
    story.changes(
        *(
            (WIDE, UPDATE, encode_update(WIDE, old, old | {"made": "2026-01-01 00:00:00"}))
            for old in (wide(1, "x"), wide(3))
        )
    )
    story.insert(WIDE, wide(6, made="2026-02-02 00:00:00"))
    one = story.create(
        table(20, "one", "id int", "v int", primary="id"),
        "CREATE TABLE `one` (`id` int primary key, `v` int)",
    )
    story.insert(one, {"id": 1, "v": 1})
    story.statement(DROP_TABLE, "DROP TABLE `one`", 20, name="one")
    one = story.create(
        table(21, "one", "id int", "v int", primary="id"),
        "CREATE TABLE `one` (`id` int primary key, `v` int)",
    )
    two = story.create(
        table(22, "two", "id int", "v int", primary="id"),
        "CREATE TABLE `two` (`id` int primary key, `v` int)",
    )
    story.insert(one, {"id": 1, "v": 11}, {"id": 2, "v": 12})
    story.insert(two, {"id": 1, "v": 21})
    swapped = (
        table(22, "one", "id int", "v int", primary="id"),
        table(21, "two", "id int", "v int", primary="id"),
    )
    story.statement(
        RENAME_TABLES, "RENAME TABLE `one` TO `t`, `two` TO `one`, `t` TO `two`", *swapped
    )
    story.update(swapped[0], {"id": 1, "v": 21}, {"v": 22})
    story.insert(swapped[1], {"id": 3, "v": 13})
    story.statement(
        TRUNCATE_TABLE,
        "TRUNCATE TABLE `one`",
        22,
        emptied := table(23, "one", "id int", "v int", primary="id"),
    )
    story.insert(emptied, {"id": 9, "v": 9})
    story.delete(NOTE, {"a": 1, "b": 1, "_tidb_rowid": 5})
    story.update(WIDE, wide(3, made="2026-01-01 00:00:00"), {"v": 33})
    return story


EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "item": [
        (1, "x", 0, "2026-01-01 00:00:00"),
        (2, "n1", 0, "2020-01-01 00:00:00"),
        (3, "n3", 33, "2026-01-01 00:00:00"),
        (5, "n2", 0, "2020-01-01 00:00:00"),
        (6, "n6", 0, "2026-02-02 00:00:00"),
    ],
    "note": [(2, 2)],
    "one": [(9, 9)],
    "two": [(1, 11), (2, 12), (3, 13)],
}


def differences(server: MariaDBServer, until: int) -> list[str]:
    """How the downstream differs from what is expected, [] if it doesn't."""
    found = []
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'd' ORDER BY 1"
        )
        names = [str(name) for (name,) in cursor.fetchall()]
        if names != sorted(EXPECTED):
            found.append(f"tables {names}")
        for name in set(names) & EXPECTED.keys():
            cursor.execute(f"SELECT * FROM d.`{name}`")
            rows = sorted(
                (
                    tuple(value if isinstance(value, int | None) else str(value) for value in row)
                    for row in cursor.fetchall()
                ),
                key=repr,
            )
            if rows != EXPECTED[name]:
                found.append(f"{name}: {rows}")
        cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
        document = json.loads(cursor.fetchone()[0])
        if document["commitTS"] != until or not document["consistent"]:
            found.append(f"checkpoint {document}")
    return found


@dataclass(frozen=True, slots=True)
class Point:
    """The first process works in mode `first` and is stopped before its step `stop`.

    The one that takes over works in mode `second`. `crash`: one before them, in mode `first` too,
    was killed before its step of that number; 0: there was none.
    """

    first: str
    second: str
    stop: int
    crash: int = 0
    drainer: bool = False
    """Whether they go on from where a Drainer broke off, see `leave_as_a_drainer`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`at`: the step it was stopped at, "" if it had ended before.

    `blocked`: the second had to wait until the first was woken. `wrong`: what differed, when the
    second had ended or after the first had.
    """

    point: Point
    at: str
    blocked: bool
    wrong: tuple[str, ...]
    ended: tuple[str, ...] = ()


def run_point(
    freezer: Freezer, server: MariaDBServer, story: Story, folder: Path, point: Point
) -> Outcome:
    """Stop, take over, wake, compare."""
    server.empty()
    run = folder / f"{point.first}-{point.second}-{point.crash}-{point.stop}"
    shutil.copytree(folder / "relay", run / "relay")
    if point.drainer:
        leave_as_a_drainer(freezer, server, story, run)
    if point.crash:
        before = freezer.start(run, server.port, story._ts, point.first, point.crash)
        freezer.wait(before, 60)
        freezer.kill(before)
    first = freezer.start(run, server.port, story._ts, point.first, point.stop)
    if freezer.wait(first, 60) != "stopped":
        shutil.rmtree(run)
        return Outcome(point, "", False, tuple(differences(server, story._ts)))
    at = trace_of(run, first)[-1]
    second = freezer.start(run, server.port, story._ts, point.second)
    blocked = freezer.wait(second, _BLOCKED_S) != "ended"
    wrong = (
        []
        if blocked
        else [f"before it was woken: {text}" for text in differences(server, story._ts)]
    )
    freezer.wake(first)
    for pid in (first, second):
        if freezer.wait(pid, 60) != "ended":
            wrong.append("a process did not end")
            freezer.kill(pid)
    ended = tuple(trace_of(run, pid)[-1] for pid in (first, second))
    # Which of the two has come to the end is all the same: a third finds whatever is left.
    third = freezer.start(run, server.port, story._ts, point.second)
    freezer.wait(third, 60)
    wrong += differences(server, story._ts)
    shutil.rmtree(run)
    return Outcome(point, at, blocked, tuple(wrong), ended)


_DRAINER_AT, _DRAINER_CAME_TO = 4, 12  # windows


def leave_as_a_drainer(freezer: Freezer, server: MariaDBServer, story: Story, run: Path) -> None:
    """More is downstream than the checkpoint says, with a DDL among it."""
    windows = list(story._relay.windows(story._relay.first().lo))
    at, came_to = windows[_DRAINER_AT].hi, windows[_DRAINER_CAME_TO].hi
    pid = freezer.start(run, server.port, came_to, "atomic")
    assert freezer.wait(pid, 60) == "ended"
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        document = {
            "consistent": False,
            "commitTS": at,
            "ts-map": {},
            "schema-version": 0,
            "sluice": {"safe-until": came_to},
        }
        cursor.execute("UPDATE tidb_binlog.checkpoint SET checkPoint = %s", (json.dumps(document),))
        cursor.execute("DROP DATABASE IF EXISTS sluice_recycle")  # a Drainer keeps nothing
    (run / "relay" / "downstream.json").unlink()  # and nothing was applied from this relay log


def steps_of(
    freezer: Freezer,
    server: MariaDBServer,
    story: Story,
    folder: Path,
    mode: str,
    drainer: bool = False,
) -> list[str]:
    """The steps of a process that nobody stops."""
    server.empty()
    run = folder / f"whole-{mode}"
    shutil.copytree(folder / "relay", run / "relay")
    if drainer:
        leave_as_a_drainer(freezer, server, story, run)
    pid = freezer.start(run, server.port, story._ts, mode)
    assert freezer.wait(pid, 60) == "ended"
    steps = trace_of(run, pid)
    shutil.rmtree(run)
    found = differences(server, story._ts)
    assert found == [], (found, steps[-1])
    return steps[:-1]


_READS = (
    "SELECT",
    "SET",
    "COMMIT",
    "START",
    "USE",
    "ROLLBACK",
    "SHOW",
    "DO",
    "UPDATE `tidb_binlog`",
    "INSERT INTO `tidb_binlog`",
)


def left_open(steps: list[str]) -> list[int]:
    """Numbers of the steps before which a crash leaves something begun: those right after something
    was written.
    """
    texts = [step.split(" ", 1)[1] for step in steps]
    writes = [
        text.startswith("sql ")
        and not text[4:].startswith(_READS)
        and text[4:5].isalpha()
        and text[4:8].isupper()
        for text in texts
    ]
    return [
        number + 2 for number, written in enumerate(writes) if written and number + 1 < len(texts)
    ]
