"""The stack with real etcd and MariaDB: parts come up, come back at the same address, and go
without a trace.
"""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request

import pymysql
import pytest

from sluice.devstack.control import clear_registry
from sluice.devstack.launch import connect, drop_everything
from sluice.devstack.launch.mariadb import socket_path
from sluice.devstack.processes import PART_MARK, STATE_MARK, tagged
from sluice.devstack.stack import Stack
from sluice.devstack.state import StackError

PARTS = ("etcd", "mariadb")


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    stack = Stack(tmp_path_factory.mktemp("stack"))
    try:
        stack.up(PARTS)
        yield stack
    finally:
        stack.down()
    assert tagged(stack.home) == []


def query(stack, statement):
    with contextlib.closing(connect(stack.site())) as database, database.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def kill(stack, name):
    os.kill(stack.state().parts[name].process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while name not in stack.dead():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_up_starts_only_what_does_not_run(stack):
    assert stack.up(PARTS) == []
    assert stack.running() == list(PARTS)


def test_another_process_sees_the_same_stack(stack):
    assert Stack(stack.home).running() == list(PARTS)


def test_a_part_killed_hard_is_reported_dead_and_comes_back_with_its_data_at_its_address(stack):
    query(stack, "CREATE DATABASE kept")
    port = stack.site().ports["mariadb"]
    kill(stack, "mariadb")
    assert stack.dead() == ["mariadb"]
    assert stack.up(PARTS) == ["mariadb"]
    assert stack.site().ports["mariadb"] == port
    assert ("kept",) in query(stack, "SHOW DATABASES")


def test_mariadb_takes_root_with_its_password_on_loopback_and_on_its_own_socket_only(stack):
    site = stack.site()
    ways = (
        {"unix_socket": str(socket_path(site))},
        {"host": "127.0.0.1", "port": site.ports["mariadb"]},
    )
    for way in ways:
        for user, password in (("root", ""), ("root", "wrong"), ("", ""), ("mysql", "")):
            with pytest.raises(pymysql.err.OperationalError):
                pymysql.connect(user=user, password=password, **way)
    password = site.secret("mariadb").read_text()
    socket_connection = pymysql.connect(
        unix_socket=str(socket_path(site)), user="root", password=password
    )
    with contextlib.closing(socket_connection) as database, database.cursor() as cursor:
        cursor.execute(
            "SELECT @@bind_address, @@innodb_flush_log_at_trx_commit, @@character_set_server,"
            " @@datadir"
        )
        bind, flush, charset, datadir = cursor.fetchone()
    assert (bind, flush, charset) == ("127.0.0.1", 1, "utf8mb4")
    assert datadir.startswith(str(stack.home))


def test_the_state_folder_is_closed_to_others_and_names_no_secret_outside_of_its_files(stack):
    passable = 0o711 if os.geteuid() == 0 else 0o700
    assert stat.S_IMODE(stack.home.stat().st_mode) == passable
    secrets = [path.read_text() for path in (stack.home / "secrets").iterdir()]
    assert len(secrets) >= 1
    for path in (stack.home / "secrets").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for text in ((stack.home / "state.json").read_text(), stack.site().config.read_text()):
        assert not any(secret in text for secret in secrets)
    others = [path for path in stack.home.iterdir() if path.stat().st_mode & 0o077]
    assert others == []


def test_drop_everything_leaves_the_servers_own_databases(stack):
    query(stack, "CREATE DATABASE `odd``name`")
    query(stack, "CREATE TABLE `odd``name`.t (a INT)")
    assert "odd`name" in drop_everything(stack.site())
    assert {name for (name,) in query(stack, "SHOW DATABASES")} == {
        "information_schema",
        "mysql",
        "performance_schema",
        "sys",
    }


def test_the_registry_is_cleared_and_nothing_else(stack):
    import base64

    from sluice.devstack.control import _request

    url = f"http://127.0.0.1:{stack.site().ports['etcd-client']}/v3/kv"
    for key in ("/tidb-binlog/v1/pumps/a", "/tidb-binlog/v1/drainers/b", "/tidb-binloh"):
        _request(
            "POST", f"{url}/put", {"key": base64.b64encode(key.encode()).decode(), "value": ""}
        )
    assert clear_registry(stack.site().ports["etcd-client"]) == 2
    rest = _request("POST", f"{url}/range", {"key": "AA==", "range_end": "AA=="})
    assert [base64.b64decode(entry["key"]) for entry in rest["kvs"]] == [b"/tidb-binloh"]


def test_an_unknown_part_is_named_with_those_there_are(stack):
    with pytest.raises(StackError, match=r"foo.*etcd.*airflow-triggerer"):
        stack.up(["foo"])


def test_a_part_that_does_not_come_up_is_reported_with_the_end_of_its_log(tmp_path):
    (tmp_path / "etcd" / "member").mkdir(parents=True)
    (tmp_path / "etcd" / "member" / "snap").write_text("not a folder")
    stack = Stack(tmp_path)
    with pytest.raises(
        StackError, match=r"(?s)etcd ended while starting.*The end of .*etcd\.log.*snap"
    ):
        stack.up(["etcd"])
    stack.down()
    assert tagged(tmp_path) == []


@pytest.mark.slow
def test_a_port_that_was_taken_meanwhile_is_changed_if_nothing_runs_and_named_if_something_does(
    tmp_path,
):
    stack = Stack(tmp_path)
    try:
        stack.up(["etcd"])
        port = stack.site().ports["etcd-client"]
        stack.down()
        with socket.socket() as squatter:
            squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            squatter.bind(("127.0.0.1", port))
            squatter.listen()
            stack.up(["etcd"])
            assert stack.site().ports["etcd-client"] != port
        mariadb = stack.site().ports["mariadb"]
        with socket.socket() as squatter:
            squatter.bind(("127.0.0.1", mariadb))
            squatter.listen()
            with pytest.raises(
                StackError, match=rf"port {mariadb} of mariadb is used by another program"
            ):
                stack.up(["mariadb"])
    finally:
        stack.down()


def test_down_ends_what_a_killed_command_left_behind(tmp_path):
    stack = Stack(tmp_path)
    stack.up(["etcd"])
    # as if it had been killed before it could write down what it started
    (tmp_path / "state.json").unlink()
    assert tagged(tmp_path)
    said = []
    Stack(tmp_path).down(said.append)
    assert tagged(tmp_path) == []
    assert said == ["ended 1 processes that were left behind"]


def test_a_part_that_comes_back_ends_its_leftovers_but_the_workers_that_tasks_reattach_to(
    tmp_path,
):
    stack = Stack(tmp_path)
    env = os.environ | {STATE_MARK: str(tmp_path), PART_MARK: "etcd"}
    own, other = socket.socketpair()
    with own, other:
        resident = subprocess.Popen(
            [sys.executable, "-m", "sluice.etl.tasks.worker", str(other.fileno())],
            pass_fds=[other.fileno()],
            env=env,
        )
        left = subprocess.Popen(["sleep", "600"], env=env)
        try:
            stack.up(["etcd"])
            assert left.wait(10) == -signal.SIGKILL
            assert resident.poll() is None
        finally:
            stack.down()
            assert resident.wait(10) == -signal.SIGKILL


def test_the_pipelines_settings_are_those_of_the_stack(stack):
    from sluice.etl import load_settings

    settings = load_settings(stack.site().config)
    ports = stack.site().ports
    assert settings.downstream.port == ports["mariadb"]
    assert settings.upstream.pd_urls == f"http://127.0.0.1:{ports['cluster']}"
    assert settings.upstream.initial_commit_ts == 0
    assert settings.relay.url == f"file://{stack.home}/relay"


@pytest.mark.slow
def test_metrics_are_served_while_nothing_else_runs(tmp_path):
    stack = Stack(tmp_path)
    try:
        assert stack.up(["metrics"]) == ["metrics"]
        url = f"http://127.0.0.1:{stack.site().ports['metrics']}/metrics"
        text, deadline = "", time.monotonic() + 60
        # It isn't waited for whoever takes long to refuse; a later look tells.
        while (
            'sluice_answers{party="upstream",pipeline=""} 0.0' not in text
            and time.monotonic() < deadline
        ):
            with urllib.request.urlopen(url, timeout=60) as answer:
                text = answer.read().decode()
        assert 'sluice_pipeline_readable{pipeline=""} 1.0' in text
        # nothing is landed: nobody is asked
        assert 'sluice_answers{party="downstream",pipeline=""} 1.0' in text
        assert 'sluice_answers{party="upstream",pipeline=""} 0.0' in text
    finally:
        stack.down()
