"""Leaves a downstream as a Drainer does that is killed: its checkpoint lies behind, and beyond that
each table, or each row, has come some way of its own; or a DDL has just run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.etl.mariadb_fixture import MariaDBServer
from tests.judge.invented_tidb import Upstream
from tests.judge.tables import SYSTEM_SCHEMAS, quoted

_KEPT = "kept"
_STOPS = (
    "has no key, and",
    ", a table without a key, is not as",
    "a second time would undo it",
)
"""What Sluice says where nothing tells how far the Drainer had come."""


@dataclass(frozen=True)
class Broken:
    """The checkpoint that it left, how far it can have come, and from when on that is over for
    certain (commit timestamps).
    """

    checkpoint: int
    reached: int
    safe_until: int


def may_stop(error: str) -> bool:
    """Whether a takeover may end with this: it names what nothing tells."""
    return any(stop in error for stop in _STOPS)


def break_off(
    upstream: Upstream,
    server: MariaDBServer,
    relay: Path,
    rng: random.Random,
    apply_until: Callable[[int], None],
) -> Broken:
    """Have a Drainer work on an empty downstream and break off.

    `apply_until` brings the downstream to a commit timestamp.
    """
    stamps = [ts for ts, _ in upstream.commits]
    first = rng.randrange(len(stamps))
    ddl = next((n for n in range(first + 1, len(stamps)) if upstream.commits[n][1]), len(stamps))
    # killed between a DDL and the checkpoint that says so
    if rng.random() < 0.4 and ddl < len(stamps):
        broken = _between(stamps, first, ddl, rng)
        apply_until(broken.reached)
    else:
        last = rng.randint(first, min(ddl - 1, first + 8))
        broken = _between(stamps, first, last, rng)
        _tear(server, sorted({first, rng.randint(first, last), last}), stamps, rng, apply_until)
    _leave_checkpoint(server, broken)
    # nothing was applied from this relay log yet
    (relay / "downstream.json").unlink(missing_ok=True)
    upstream.story.append(f"a Drainer broke off: {broken}")
    return broken


def _between(stamps: Sequence[int], first: int, last: int, rng: random.Random) -> Broken:
    later = rng.choice((last, min(last + 3, len(stamps) - 1)))
    return Broken(stamps[first], stamps[last], stamps[later])


def _tear(
    server: MariaDBServer,
    moments: Sequence[int],
    stamps: Sequence[int],
    rng: random.Random,
    apply_until: Callable[[int], None],
) -> None:
    """Each table as at one of the moments, between which there is no DDL.

    Where keys tell rows apart, each row.
    """
    kept: dict[tuple[tuple[str, str], int], list[str]] = {}
    for number, moment in enumerate(moments):
        apply_until(stamps[moment])
        with _connected(server) as connection, connection.cursor() as cursor:
            if not number:
                cursor.execute(f"DROP DATABASE IF EXISTS {_KEPT}")
                cursor.execute(f"CREATE DATABASE {_KEPT}")
            for name in _tables(cursor):
                kept[name, number] = _columns(cursor, name)
                cursor.execute(
                    f"CREATE TABLE {_copy(kept, name, number)} AS SELECT"
                    f" {', '.join(kept[name, number])} FROM {_full(name)}"
                )
    with _connected(server) as connection, connection.cursor() as cursor:
        for name in _tables(cursor):
            # rows can know the columns of a change that comes behind them: it is applied with them
            alike = [
                number
                for number in range(len(moments))
                if kept.get((name, number)) == _columns(cursor, name)
            ]
            columns = ", ".join(_columns(cursor, name))
            older, newer = sorted(rng.choice(alike) for _ in range(2))
            key = _telling(cursor, name)
            rows = [f"SELECT {columns} FROM {_copy(kept, name, older)}"]
            if key:
                which = f"CRC32(CONCAT_WS('#', {', '.join(key)})) % 2"
                newest = f"SELECT {columns} FROM {_copy(kept, name, newer)} WHERE {which} = 1"
                rows = [f"{rows[0]} WHERE {which} = 0", newest]
            cursor.execute(f"DELETE FROM {_full(name)}")
            for select in rows:
                cursor.execute(f"INSERT INTO {_full(name)} ({columns}) {select}")
        cursor.execute(f"DROP DATABASE {_KEPT}")


def _copy(kept: dict[tuple[tuple[str, str], int], list[str]], name: Any, number: int) -> str:
    """Return the name of the copy of a table as at a moment."""
    return f"{_KEPT}.t{list(kept).index((name, number))}"


def _leave_checkpoint(server: MariaDBServer, broken: Broken) -> None:
    document = {
        "consistent": False,
        "commitTS": broken.checkpoint,
        "ts-map": {},
        "schema-version": 0,
        "sluice": {"safe-until": broken.safe_until},
    }
    with _connected(server) as connection, connection.cursor() as cursor:
        # a Drainer keeps no rows of what is truncated
        cursor.execute("DROP DATABASE IF EXISTS sluice_recycle")
        cursor.execute("UPDATE tidb_binlog.checkpoint SET checkPoint = %s", (json.dumps(document),))
        assert cursor.rowcount == 1, cursor.rowcount


def _connected(server: MariaDBServer) -> Any:
    return server.connect(init_command="SET time_zone='+00:00', sql_mode='NO_AUTO_VALUE_ON_ZERO'")


def _tables(cursor: Any) -> list[tuple[str, str]]:
    cursor.execute(
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE"
        f" TABLE' AND TABLE_SCHEMA NOT IN ({SYSTEM_SCHEMAS},'{_KEPT}') ORDER BY 1, 2"
    )
    return [tuple(row) for row in cursor.fetchall()]


def _columns(cursor: Any, name: tuple[str, str]) -> list[str]:
    """Those that are written, quoted."""
    cursor.execute(
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME"
        " = %s AND COALESCE(GENERATION_EXPRESSION, '') = '' ORDER BY ORDINAL_POSITION",
        name,
    )
    return [quoted(column) for (column,) in cursor.fetchall()]


def _telling(cursor: Any, name: tuple[str, str]) -> list[str]:
    """The columns of the only unique key, quoted, where they are numbers.

    A row goes its own way then.
    """
    cursor.execute(
        "SELECT s.INDEX_NAME, s.COLUMN_NAME, c.DATA_TYPE, s.NULLABLE FROM"
        " information_schema.STATISTICS s JOIN information_schema.COLUMNS c USING (TABLE_SCHEMA,"
        " TABLE_NAME, COLUMN_NAME) WHERE s.NON_UNIQUE = 0 AND s.TABLE_SCHEMA = %s AND s.TABLE_NAME"
        " = %s ORDER BY s.SEQ_IN_INDEX",
        name,
    )
    found = cursor.fetchall()
    alone = len({index for index, *_ in found}) == 1
    numbers = all(kind in ("int", "bigint") and not nullable for *_, kind, nullable in found)
    return [quoted(column) for _, column, *_ in found] if alone and numbers else []


def _full(name: tuple[str, str]) -> str:
    return ".".join(map(quoted, name))
