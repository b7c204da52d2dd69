"""A restore that was killed, or stands still, at any point: another process goes on with it, or
gives it up.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.etl.restore import cancel_restore, create_or_resume
from sluice.relay import RelayLog
from sluice.relay.jobs import DONE, FINAL_STATES, Jobs, Runner
from tests.etl.copy.copying import RECORDING
from tests.etl.copy.killed_copy import Forks, forking
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.restore.killed_restore import TABLES, request
from tests.etl.restore.restoring import INTO, archive_of, restore, settings_of
from tests.etl.restore.test_restore import databases, execute, tables
from tests.etl.restore.test_restore_snapshots import based
from tests.etl.snapshots import differences

HERE_BEFORE = "CREATE TABLE bank_restored.child AS SELECT 77 AS mine"


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with forking("tests.etl.restore.killed_restore") as found:
        yield found


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A relay log with its archive and a snapshot, to be copied: jobs are noted in it."""
    folder = tmp_path_factory.mktemp("killed")
    based(archive_of("bootstrap", folder, 2000, windows_a_volume=1))
    return folder / "relay"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.relay.jobs.job.DEAD_AFTER_S", 0.5)


def begun(server: MariaDBServer, original: Path, folder: Path) -> str:
    """The relay log's URL; the server has a table that is to be replaced."""
    server.empty()
    execute(server, "CREATE DATABASE bank_restored", HERE_BEFORE)
    shutil.copytree(original, folder)
    return f"file://{folder}"


def check(server: MariaDBServer, url: str) -> None:
    """All is there, and nothing else."""
    wanted = [
        line
        for line in differences(RECORDING, "z_end", server, INTO)
        if line.split(":")[0] in TABLES
    ]
    assert wanted == []
    assert databases(server) == {"bank_restored"}
    assert tables(server) == {"bank_restored.child", "bank_restored.log_nopk"}
    assert [job.entry().state for job in Jobs(RelayLog.open(url).storage).list()] == [DONE]


@pytest.fixture(scope="module")
def steps(
    mariadb_server: MariaDBServer,
    original: Path,
    tmp_path_factory: pytest.TempPathFactory,
    forks: Forks,
) -> int:
    """Of a restore that nothing meets."""
    folder = tmp_path_factory.mktemp("whole")
    return forks.through(
        mariadb_server.port, folder, begun(mariadb_server, original, folder / "relay")
    )


def go_on(server: MariaDBServer, url: str) -> None:
    """Unless it is done already."""
    states = [job.entry().state for job in Jobs(RelayLog.open(url).storage).list()]
    if not states or any(state not in FINAL_STATES for state in states):
        restore(settings_of(server, url), request(url))


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", [0.5, *(pytest.param(point, marks=pytest.mark.slow) for point in (0.1, 0.9))]
)
def test_another_process_goes_on_where_one_was_killed(
    mariadb: MariaDBServer, original: Path, tmp_path: Path, forks: Forks, steps: int, point: float
) -> None:
    url = begun(mariadb, original, tmp_path / "relay")
    told = forks.run(mariadb.port, tmp_path, url, max(1, round(steps * point)))
    assert told == {"killed": signal.SIGKILL}
    go_on(mariadb, url)
    check(mariadb, url)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["LOAD DATA", "DROP DATABASE"])
def test_one_that_stood_still_wakes_up_and_changes_nothing_any_more(
    mariadb: MariaDBServer, original: Path, tmp_path: Path, forks: Forks, place: str
) -> None:
    url = begun(mariadb, original, tmp_path / "relay")
    told = forks.run(mariadb.port, tmp_path, url, place, signal=int(signal.SIGSTOP))
    restore(settings_of(mariadb, url), request(url))
    check(mariadb, url)
    assert "failed" in forks.wake(told["stopped"])
    check(mariadb, url)


@pytest.mark.parametrize("point", [0.2, pytest.param(0.7, marks=pytest.mark.slow)])
def test_what_was_killed_is_given_up_without_a_trace_and_what_it_was_to_replace_is_back(
    mariadb: MariaDBServer, original: Path, tmp_path: Path, forks: Forks, steps: int, point: float
) -> None:
    url = begun(mariadb, original, tmp_path / "relay")
    forks.run(mariadb.port, tmp_path, url, max(1, round(steps * point)))
    settings = settings_of(mariadb, url)
    for job in Jobs(RelayLog.open(url).storage).list():
        if job.entry().state not in FINAL_STATES:
            assert cancel_restore(settings, job, Runner("test")).left == ()
    assert databases(mariadb) == {"bank_restored"} and tables(mariadb) == {"bank_restored.child"}
    assert execute(mariadb, "SELECT * FROM bank_restored.child") == [(77,)]
    assert create_or_resume(settings, request(url), "test").entry().state not in FINAL_STATES
