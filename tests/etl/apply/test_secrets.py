"""Passwords come from the environment, a file or an Airflow connection, and appear nowhere else."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.etl.settings import Downstream, Settings, SettingsError, load_settings
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS, land

SECRET = "Pa55-wort'\"\\;é"


def config(folder: Path, port: int, line: str) -> Path:
    path = folder / "sluice.toml"
    path.write_text(
        '[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl ='
        f' "file://{folder}/relay"\n[downstream]\nhost = "127.0.0.1"\nport = {port}\nuser ='
        f' "writer"\nconnect-timeout-s = 2\n{line}\n'
    )
    return path


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Settings lines by the place where they have the password from."""
    (tmp_path / "password").write_text(f"{SECRET}\nsecond line\n", encoding="utf-8")
    monkeypatch.setenv("DOWNSTREAM_PASSWORD", SECRET)
    monkeypatch.setenv(
        "AIRFLOW_CONN_DOWNSTREAM", json.dumps({"conn_type": "mysql", "password": SECRET})
    )
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    return {
        "environment": 'password-env = "DOWNSTREAM_PASSWORD"',
        "file": f'password-file = "{tmp_path}/password"',
        "connection": 'password-connection = "downstream"',
    }


@pytest.mark.quick_cases("environment", "file")  # Airflow, for a connection, takes 6 s to import
@pytest.mark.parametrize("source", ["environment", "file", "connection"])
def test_the_password_of_each_source_opens_the_downstream_and_no_repr_shows_it(
    mariadb: MariaDBServer, tmp_path: Path, sources: dict[str, str], source: str
) -> None:
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP USER IF EXISTS writer@'127.0.0.1'")
        cursor.execute("CREATE USER writer@'127.0.0.1' IDENTIFIED BY %s", (SECRET,))
        cursor.execute("GRANT ALL ON *.* TO writer@'127.0.0.1'")
    settings = load_settings(config(tmp_path, mariadb.port, sources[source]))
    session = MySQLSession(settings.downstream)
    session.connect()
    assert session.query("SELECT 1") == [(1,)]
    for thing in (settings, settings.downstream, session, vars(session), session.address):
        assert SECRET not in repr(thing)
    session.close()


@pytest.mark.parametrize("place", ["[downstream]\n", "[upstream]\n", "[spark]\n"])
@pytest.mark.parametrize("key", ["password", "ssl-key-password", "passwd"])
def test_a_password_in_the_settings_file_is_refused_with_the_places_where_it_goes_and_not_repeated(
    tmp_path: Path, place: str, key: str
) -> None:
    path = config(tmp_path, 1, "")
    path.write_text(
        path.read_text().replace(place, f'{place}{key} = "hush-hush"\n')
        if place in path.read_text()
        else path.read_text() + f'{place}{key} = "hush-hush"\n'
    )
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    secret = "token" if "spark" in place else "password"  # Spark's server is sent a token
    for word in (key, f"{secret}-env", f"{secret}-file", f"{secret}-connection"):
        assert word in str(caught.value)
    assert "hush-hush" not in str(caught.value)


def test_a_source_that_is_not_there_is_named(tmp_path: Path, sources: dict[str, str]) -> None:
    for name, value in (
        ("password_env", "NOT_THERE"),
        ("password_file", "/nowhere/at/all"),
        ("password_connection", "not_there"),
    ):
        with pytest.raises(SettingsError, match=f"{name.replace('_', '-')}.*{value}"):
            Downstream("h", **{name: value}).password()


PROGRAM = """
import logging, sys, threading
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
import pymysql.connections
pymysql.connections.DEBUG = False
from sluice.etl import load_settings
from sluice.etl.apply import run_apply
from tests.etl.preparing import local_preparer
from sluice.etl.operate import status
settings = load_settings()
print(repr(settings), settings)
print(status(settings))
try:
    run_apply(settings, run_seconds=3, prepare=local_preparer(settings))
finally:
    print(open("/proc/self/cmdline").read())
"""


@pytest.mark.slow
@pytest.mark.parametrize("port", [pytest.param("refused", marks=pytest.mark.slow), "denied"])
def test_applying_at_debug_level_with_a_downstream_that_fails_prints_the_password_nowhere(
    mariadb: MariaDBServer, tmp_path: Path, sources: dict[str, str], port: str
) -> None:
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP USER IF EXISTS writer@'127.0.0.1'")
        cursor.execute("CREATE USER writer@'127.0.0.1' IDENTIFIED BY 'another'")
    land(RECORDINGS / "orphans", f"file://{tmp_path}/relay", 1_000)
    path = config(tmp_path, 1 if port == "refused" else mariadb.port, sources["environment"])
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", PROGRAM],
        env=os.environ | {"SLUICE_CONFIG": str(path), "DOWNSTREAM_PASSWORD": SECRET},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = done.stdout + done.stderr
    assert "writer@127.0.0.1" in said
    if port == "denied":
        assert "Access denied" in said
    for hidden in (SECRET, repr(SECRET)[1:-1], json.dumps(SECRET)[1:-1], "Pa55"):
        assert hidden not in said


def test_what_goes_to_spark_and_into_the_task_results_holds_no_secret(
    mariadb: MariaDBServer, tmp_path: Path, sources: dict[str, str]
) -> None:
    from sluice.etl.apply import ApplySummary, prepare_options
    from sluice.etl.apply.prepare_windows import PrepareWindows

    settings: Settings = load_settings(config(tmp_path, mariadb.port, sources["environment"]))
    job = PrepareWindows(settings.relay.url, prepare_options(settings))
    assert "DOWNSTREAM_PASSWORD" not in repr(job) and SECRET not in repr(job)
    assert "writer" not in json.dumps(ApplySummary().as_dict())


def test_a_refused_password_is_not_in_the_error(
    mariadb: MariaDBServer, sources: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(DownstreamError) as caught:
        MySQLSession(
            Downstream("127.0.0.1", mariadb.port, "nobody", password_env="DOWNSTREAM_PASSWORD")
        ).connect()
    assert (
        SECRET
        not in str(caught.value) + repr(caught.value) + str(caught.value.__cause__) + caplog.text
    )
