"""kill -9 of the process that writes to a TiDB, at statements that change something: then another
one goes on, and nothing is lost, doubled or left behind. With SLUICE_TEST_EVERY_KILL=1 at every
such statement (a minute), else at every seventh.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story, table
from tests.etl.tidb_stand_in import Seen, TiDBStandIn

_CHANGES = re.compile(
    r"\s*(INSERT|REPLACE|UPDATE|DELETE|COMMIT|ALTER|CREATE|DROP|RENAME|TRUNCATE)\b", re.IGNORECASE
)
_STEP = 1 if os.environ.get("SLUICE_TEST_EVERY_KILL") else 7
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "sluice.etl.apply",
        "sluice.etl.downstream.sinks.mysql",
        "sluice.etl.downstream.sinks.mysql_parallel",
        "tests.etl.apply.test_tidb_killed",
    ]
)


def apply(settings: Settings, until_ts: int) -> None:
    run_apply(settings, until_ts=until_ts, run_seconds=240, prepare=local_preparer(settings))


def told(story: Story) -> dict[str, list[tuple[object, ...]]]:
    """A history of a table with keys, one without, and DDL of which each may run once only.

    What there is in the end.
    """
    keyed = story.create(
        table(11, "k", "id int", "u varchar(9)", "n decimal(20,0)", primary="id", unique=("u",)),
        "CREATE TABLE `k` (`id` int primary key, `u` varchar(9), `n` decimal(20,0), UNIQUE KEY `u2`"
        " (`u`))",
    )
    loose = story.create(
        table(12, "l", "a int", "b varchar(9)"), "CREATE TABLE `l` (`a` int, `b` varchar(9))"
    )
    rows = [{"id": i, "u": f"u{i}", "n": f"1234567890123456789{i}"} for i in range(8)]
    story.insert(keyed, *rows)
    twins = [{"a": 1, "b": "it's \\"} for _ in range(4)]
    story.insert(loose, *twins)
    rows[0] = story.update(keyed, rows[0], {"u": "free"})
    rows[1] = story.update(keyed, rows[1], {"u": "u0"})
    story.delete(keyed, rows[2])
    story.delete(loose, twins[0])
    story.insert(loose, {"a": 2, "b": None})
    more = table(12, "l", "a int", "b varchar(9)", "c int")
    story.statement(5, "ALTER TABLE `l` ADD COLUMN `c` int", more)
    story.insert(more, {"a": 3, "b": "x", "c": 4})
    story.delete(more, twins[1] | {"c": None})
    story.insert(keyed, rows[2])
    story.delete(keyed, rows[3])
    return {
        "k": sorted(
            [(r["id"], r["u"], int(str(r["n"]))) for r in (*rows[:3], *rows[4:])], key=repr
        ),
        "l": sorted([(1, "it's \\", None)] * 2 + [(2, None, None), (3, "x", 4)], key=repr),
    }


@pytest.fixture
def mariadb(own_mariadb: MariaDBServer) -> MariaDBServer:
    return own_mariadb


@pytest.fixture
def tidb(mariadb: MariaDBServer) -> Iterator[TiDBStandIn]:
    stand_in = TiDBStandIn(mariadb)
    yield stand_in
    stand_in.close()


@pytest.mark.ci_cases("parallel")
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_nothing_is_lost_or_doubled_wherever_the_process_is_killed(
    mariadb: MariaDBServer, tidb: TiDBStandIn, tmp_path: Path, mode: str
) -> None:
    story = Story(mariadb, tmp_path)
    wanted = told(story)
    kills = 0
    while True:
        mariadb.empty()
        shutil.copytree(
            tmp_path / "relay", tmp_path / f"relay{kills}"
        )  # a pipeline remembers that it wrote a checkpoint
        relay = Relay(f"file://{tmp_path}/relay{kills}")
        settings = Settings(
            Upstream("http://127.0.0.1:9"), relay, tidb.downstream, apply=Apply(mode, 2, max_rows=8)
        )
        process: list[ForkServerProcess] = []
        changed = 0

        def cut(
            statement: str, process: list[ForkServerProcess] = process, at: int = kills
        ) -> bool:
            nonlocal changed
            changed += bool(_CHANGES.match(statement))
            if changed <= at:
                return False
            os.kill(process[0].pid or 0, signal.SIGKILL)
            return True

        tidb.seen = Seen(cut=cut)
        process.append(FORKS.Process(target=apply, args=(settings, story._ts)))
        process[0].start()
        process[0].join(60)
        assert process[0].exitcode in (0, -signal.SIGKILL), (kills, tidb.seen.statements[-5:])
        survived = process[0].exitcode == 0
        tidb.seen = Seen()
        apply(settings, story._ts)
        found = {name: [tuple(map(_plain, row)) for row in story.rows(name)] for name in wanted}
        assert {name: sorted(rows, key=repr) for name, rows in found.items()} == wanted, (
            f"killed after change {kills}"
        )
        if survived:
            break
        kills += _STEP
    assert kills > 20


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str | int) else int(str(value))
