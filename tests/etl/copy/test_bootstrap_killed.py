"""Wherever a bootstrap is killed, or stopped and replaced, the next one goes on: every row once,
also in tables without a key. `test_killed_anywhere` has the recorded tables, the others have three
small ones.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.etl.copy import small_story
from tests.etl.copy.copying import BANK_ONLY, RECORDING, bootstrap, settings_of
from tests.etl.copy.killed_copy import Forks, forking
from tests.etl.copy.small_dump import small_dump
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.snapshots import differences

ALL = bool(os.environ.get("SLUICE_TEST_EVERY_KILL"))
SOURCES = ("dump", "tidb")


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with forking() as opened:
        yield opened


@contextlib.contextmanager
def source(kind: str, folder: Path) -> Iterator[str]:
    if kind == "dump":
        yield small_story.write_dump(folder / "dump")
    else:
        with small_story.serving() as place:
            yield place


def check_bank(server: MariaDBServer, folder: Path, dump: Path) -> None:
    summary = bootstrap(settings_of(server, folder, BANK_ONLY), dump)
    assert summary.rows_there == 8_732
    found = differences(RECORDING, "dump_csv_plain", server)
    assert [line for line in found if line.startswith("bank.")] == []
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM tidb_binlog.sluice_copied")
        assert cursor.fetchone() == (0,)
        cursor.execute("SELECT checkPoint FROM tidb_binlog.checkpoint")
        ((text,),) = cursor.fetchall()
    assert '"consistent":true,"commitTS":470629592140349448' in text


@pytest.mark.slow
def test_killed_anywhere_it_goes_on(mariadb: MariaDBServer, tmp_path: Path, forks: Forks) -> None:
    dump = small_dump(tmp_path / "dump")
    steps = forks.through(mariadb.port, tmp_path / "whole", dump, what="bank")
    assert steps > 60
    points = range(1, steps) if ALL else [steps * part // 100 for part in (35, 65, 92)]
    for at in points:
        mariadb.empty()
        folder = tmp_path / str(at)
        told = forks.run(mariadb.port, folder, dump, at, what="bank")
        assert "killed" in told or at > steps - 30, told  # sessions share the work differently
        try:
            check_bank(mariadb, folder, dump)
        except Exception as error:
            if "is done: its result" not in str(error):
                raise AssertionError(f"killed before step {at} of {steps}: {error}") from error


def _ends(told: dict[str, object]) -> bool:
    """Whether a bootstrap is through, or finds that one is."""
    return "steps" in told or "is done: its result" in str(told.get("failed"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOURCES)
def test_killed_between_any_two_steps_it_goes_on(
    kind: str, mariadb: MariaDBServer, tmp_path: Path, forks: Forks
) -> None:
    with source(kind, tmp_path) as place:
        steps = forks.through(mariadb.port, tmp_path / "whole", place)
        small_story.check(mariadb)
        for at in range(1, steps, 1 if ALL else 9):
            mariadb.empty()
            folder = tmp_path / str(at)
            killed = forks.run(mariadb.port, folder, place, at)
            assert "killed" in killed or at > steps - 10, killed
            again = forks.run(mariadb.port, folder, place, 0)
            assert _ends(again), (at, again)
            small_story.check(mariadb, tidied="steps" in again)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOURCES)
def test_killed_again_and_again_while_it_goes_on(
    kind: str, mariadb: MariaDBServer, tmp_path: Path, forks: Forks
) -> None:
    randomly = random.Random(kind)
    with source(kind, tmp_path) as place:
        steps = forks.through(mariadb.port, tmp_path / "whole", place)
        for number in range(20 if ALL else 2):
            mariadb.empty()
            folder = tmp_path / str(number)
            kills = [randomly.randrange(steps // 4, steps) for _ in range(4)]
            for at in kills:
                told = forks.run(mariadb.port, folder, place, at)
                assert "killed" in told or _ends(told), told
            told = forks.run(mariadb.port, folder, place, 0)
            assert _ends(told), (kills, told)
            small_story.check(mariadb, tidied="steps" in told)


@pytest.mark.quick_cases("COMMIT")
@pytest.mark.parametrize("kind", [pytest.param("dump", marks=pytest.mark.slow), "tidb"])
@pytest.mark.parametrize(
    "before",
    ["LOAD DATA", "SET copied_rows", "COMMIT", "INSERT INTO `tidb_binlog`.`sluice_copied`"],
)
def test_who_was_stopped_and_replaced_writes_nothing_when_it_wakes_up(
    before: str, kind: str, mariadb: MariaDBServer, tmp_path: Path, forks: Forks
) -> None:
    with source(kind, tmp_path) as place:
        stopped = forks.run(
            mariadb.port, tmp_path / "one", place, before, signal=int(signal.SIGSTOP)
        )["stopped"]
        end_sessions(mariadb)  # as the server does by itself after `wait_timeout`
        forks.through(mariadb.port, tmp_path / "one", place)
        small_story.check(mariadb)
        told = forks.wake(stopped)
        assert "failed" in told, told
        small_story.check(mariadb)


def end_sessions(server: MariaDBServer) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT ID FROM information_schema.PROCESSLIST WHERE USER IN ('root', 'sluice') AND ID"
            " <> CONNECTION_ID()"
        )
        for (found,) in cursor.fetchall():
            cursor.execute(f"KILL {found}")
