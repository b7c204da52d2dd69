"""Wherever a bootstrap is killed, the next one goes on: every row once, also in tables without a key."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.etl.copy.copying import BANK_ONLY, RECORDING, bootstrap, settings_of
from tests.etl.copy.small_dump import small_dump
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.snapshots import differences

ROOT = Path(__file__).resolve().parents[3]
ALL = bool(os.environ.get("SLUICE_TEST_EVERY_KILL"))


def run_and_kill(server: MariaDBServer, folder: Path, dump: Path, at: int) -> int:
    """The number of steps it took, 0 if it was killed."""
    command = [sys.executable, "-m", "tests.etl.copy.killed_copy", str(server.port), str(folder), str(dump), str(at)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    if done.returncode == 0:
        return int(done.stdout)
    assert done.returncode == -9, done.stderr
    return 0


def check(server: MariaDBServer, folder: Path, dump: Path) -> None:
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


def test_killed_anywhere_it_goes_on(mariadb: MariaDBServer, tmp_path: Path) -> None:
    dump = small_dump(tmp_path / "dump")
    steps = run_and_kill(mariadb, tmp_path / "whole", dump, 0)
    assert steps > 100
    points = range(1, steps) if ALL else [steps * part // 100 for part in (35, 65, 92)]
    for at in points:
        mariadb.empty()
        folder = tmp_path / str(at)
        assert run_and_kill(mariadb, folder, dump, at) == 0 or at > steps - 30  # sessions share the work differently
        try:
            check(mariadb, folder, dump)
        except Exception as error:
            if "is done: its result" not in str(error):
                raise AssertionError(f"killed before step {at} of {steps}: {error}") from error


@pytest.mark.skipif(not ALL, reason="minutes: SLUICE_TEST_EVERY_KILL=1")
def test_killed_twice_it_goes_on(mariadb: MariaDBServer, tmp_path: Path) -> None:
    dump = small_dump(tmp_path / "dump")
    steps = run_and_kill(mariadb, tmp_path / "whole", dump, 0)
    for number in range(20):
        mariadb.empty()
        folder = tmp_path / str(number)
        for _ in range(2):
            run_and_kill(mariadb, folder, dump, random.randrange(20, steps // 2))
        check(mariadb, folder, dump)
