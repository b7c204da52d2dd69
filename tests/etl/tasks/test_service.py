"""`sluice replicate`: one process replicates, the others stand by and go on when it dies.

Landing is paused here: it needs no upstream. The windows come from a story. Rows of the table have
no key, so one that arrived twice would be there twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import psutil
import pytest

from sluice.errors import SluiceError
from sluice.etl.settings.pipelines import NamedPipeline
from sluice.etl.tasks import airflow_task
from sluice.etl.tasks.service import ReplicationService
from sluice.relay import ClaimLostError, Control, Failure, RelayLog
from sluice.relay.json_codec import to_bytes
from sluice.relay.service_lease import ServiceLease
from tests.etl.story import Story, table
from tests.ports import free_port

_MARK = "SLUICE_TEST_SERVICE"
_TAKEOVER_S = 40.0
"""On quiet cores it takes about 20 s."""
pytestmark = pytest.mark.timeout(1200)


def settings(tmp_path, port, more='replication = "service"'):
    path = tmp_path / "sluice.toml"
    path.write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "file://{tmp_path}/relay"\n'
        f'[downstream]\nhost = "127.0.0.1"\nport = {port}\nuser = "sluice"\n'
        f'[spark]\nremote = "sc://127.0.0.1:1"\n[airflow]\n{more}\n'
    )
    return path


class Host:
    """A host of its own with one program on it."""

    def __init__(self, config, name, *arguments):
        self._mark = f"{config.parent}/{name}"
        with open(f"{self._mark}.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                env=os.environ | {_MARK: self._mark}, stdout=log, stderr=log,
            )  # fmt: skip

    def processes(self):
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if each.environ().get(_MARK) == self._mark:
                    yield each

    def workers(self):
        """Process ids of those that land and apply."""
        return {
            each.pid for each in self.processes() if "sluice.etl.tasks.worker" in each.cmdline()
        }

    def dies(self):
        """kill -9 of everything on it."""
        for each in self.processes():
            with contextlib.suppress(psutil.Error):
                each.kill()
        self.process.wait(60)


_CALL = """
import logging, sys, time
from pathlib import Path
from sluice.airflow.calls import CALLS
from sluice.etl.settings.pipelines import NamedPipeline
logging.basicConfig(level=logging.INFO)
config, name, seconds = sys.argv[1:]
CALLS["serve_replication"](NamedPipeline("", Path(config)), name, float(seconds), time.time())
"""


class Task(Host):
    """A task of the DAG `service_1` or another one, on a host of its own."""

    def __init__(self, config, name, seconds, host=""):
        super().__init__(config, host or name, "-c", _CALL, str(config), name, str(seconds))


class Service(Host):
    """`sluice replicate` on a host of its own."""

    def __init__(self, config, name):
        self.name, self.port = name, free_port()
        super().__init__(
            config, name, "-m", "sluice.cli", "replicate", "--config", str(config),
            "--listen", f"127.0.0.1:{self.port}",
        )  # fmt: skip

    def probe(self, path):
        """(status, state), (0, {}) while nothing listens."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=60
            ) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())
        except OSError:
            return 0, {}

    def state(self):
        return self.probe("/readyz")[1].get("state")


@pytest.fixture
def services(tmp_path):
    started = []

    def start(config, name, *more, kind=Service):
        started.append(kind(config, name, *more))
        return started[-1]

    yield start
    for each in started:
        each.dies()


def until(true):
    deadline = time.monotonic() + 600
    while not (found := true()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


class Traffic(threading.Thread):
    """Transactions of one row each, until it is told to stop.

    They come slowly: there is no Spark, and a backlog would wait for it.
    """

    def __init__(self, story):
        super().__init__()
        self.story, self.count, self.stopped = story, 0, threading.Event()
        self.log = story.create(table(2, "log", "n int"), "CREATE TABLE `log` (`n` int)")

    def run(self):
        while not self.stopped.wait(0.3):
            self.story.insert(self.log, {"n": self.count})
            self.count += 1


def applied(story):
    with contextlib.suppress(Exception):  # the table isn't there yet
        return [n for (n,) in story.rows("log")]
    return []


@pytest.mark.slow
def test_the_standby_goes_on_when_the_host_of_the_active_one_dies(tmp_path, mariadb, services):
    story, config = Story(mariadb, tmp_path), settings(tmp_path, mariadb.port)
    RelayLog.open(story.url).change_control(lambda _: Control(land_paused=True, apply_paused=False))
    first = services(config, "first")
    until(lambda: first.state() == "active")
    second = services(config, "second")
    until(lambda: second.state() == "standby")
    assert second.probe("/healthz")[0] == second.probe("/readyz")[0] == 200
    traffic = Traffic(story)
    traffic.start()
    try:
        until(lambda: len(applied(story)) > 5)
        assert second.state() == "standby"
        first.dies()
        before, died = len(applied(story)), time.monotonic()
        until(lambda: len(applied(story)) > before)
        assert (took := time.monotonic() - died) < _TAKEOVER_S, f"taken over after {took:.1f} s"
        until(lambda: second.probe("/readyz")[0] == 200 and second.state() == "active")
    finally:
        traffic.stopped.set()
        traffic.join()
    until(lambda: len(applied(story)) >= traffic.count)
    assert sorted(applied(story)) == list(range(traffic.count))


@pytest.mark.slow
def test_the_next_run_s_task_goes_on_with_the_same_workers_and_no_standby_takes_over(
    tmp_path, mariadb, services
):
    story, config = Story(mariadb, tmp_path), settings(tmp_path, mariadb.port)
    relay = RelayLog.open(story.url)
    relay.change_control(lambda _: Control(land_paused=True, apply_paused=False))
    lease = ServiceLease(relay.place)
    traffic = Traffic(story)
    traffic.start()
    try:
        first = services(config, "service_1", 25, kind=Task)
        until(lambda: applied(story))
        second = services(config, "service_2", 600, kind=Task)
        working = first.workers()
        assert first.process.wait(120) == 0
        assert lease.entry().name == "service_1" and len(working) == 2
        following = services(config, "service_1", 600, kind=Task)
        until(lambda: lease.entry().pid == following.process.pid)
        before = len(applied(story))
        until(lambda: len(applied(story)) > before)
        assert following.workers() == working and not second.workers()
        following.dies()
        before, died = len(applied(story)), time.monotonic()
        until(lambda: len(applied(story)) > before)
        assert (took := time.monotonic() - died) < _TAKEOVER_S, f"taken over after {took:.1f} s"
        assert lease.entry().name == "service_2"
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(120) == 0
        assert not lease.entry().holder and not second.workers()
        services(config, "service_2", 600, kind=Task)
        until(lambda: lease.entry().name == "service_2")
    finally:
        traffic.stopped.set()
        traffic.join()
    until(lambda: len(applied(story)) >= traffic.count)
    assert sorted(applied(story)) == list(range(traffic.count))


def test_a_process_follows_one_of_its_name_at_once_but_only_as_its_first_act(tmp_path):
    storage = RelayLog.open(f"file://{tmp_path}/relay").place
    first, second, other = (ServiceLease(storage, name) for name in ("a", "a", "b"))
    assert first.try_acquire()
    assert not other.try_acquire()
    assert second.try_acquire()
    with pytest.raises(ClaimLostError):
        first.renew()
    assert not first.try_acquire() and not other.try_acquire()
    second.renew()
    assert second.entry().name == "a"
    unnamed = ServiceLease(RelayLog.open(f"file://{tmp_path}/unnamed").place)
    assert unnamed.try_acquire()
    assert b"name" not in to_bytes(unnamed.entry())


@pytest.mark.slow
def test_a_service_that_is_told_to_end_hands_over_at_once(tmp_path, mariadb, services, monkeypatch):
    story, config = Story(mariadb, tmp_path), settings(tmp_path, mariadb.port)
    RelayLog.open(story.url).change_control(lambda _: Control(land_paused=True, apply_paused=False))
    first = services(config, "first")
    until(lambda: first.state() == "active")
    second = services(config, "second")
    until(lambda: second.state() == "standby")
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(120) == 0
    assert not ServiceLease(RelayLog.open(story.url).place).entry().holder or second.state()
    until(lambda: second.state() == "active")


def test_only_an_unchanged_lease_is_taken_over_and_the_one_before_can_not_renew_it(
    tmp_path, monkeypatch
):
    storage = RelayLog.open(f"file://{tmp_path}/relay").place
    first, second, third = (ServiceLease(storage) for _ in range(3))
    assert first.try_acquire()
    assert not second.try_acquire()
    monkeypatch.setattr("sluice.relay.service_lease.LEASE_TIMEOUT_S", 0.0)
    first.renew()
    assert second.try_acquire()
    with pytest.raises(ClaimLostError, match="process"):
        first.renew()
    with pytest.raises(ClaimLostError):
        first.release()
    second.release()
    monkeypatch.undo()
    assert third.try_acquire()


def test_a_pipeline_that_its_dag_replicates_has_no_service(tmp_path):
    config = settings(tmp_path, 1, "")
    with pytest.raises(SluiceError, match='replication = "service"'):
        ReplicationService(NamedPipeline("", config))


def test_a_role_that_has_stopped_waits_for_an_operator_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(airflow_task, "_SERVICE_POLL_INTERVAL_S", 0.02)
    pipeline = NamedPipeline("", settings(tmp_path, 1))
    relay, ended, stopped, calls = pipeline.settings.open_relay(), threading.Event(), [], []

    class BrokenError(SluiceError):
        hint = "repair it"

    def work(settings, got_on):
        calls.append(settings)
        if len(calls) == 1:
            raise BrokenError("broken")
        return {"done": True}

    def answer():
        (failure,) = until(relay.failures.list)
        assert isinstance(failure, Failure)
        relay.failures.answer(failure)

    operator = threading.Thread(target=answer)
    operator.start()
    done = airflow_task.run_task(pipeline, "apply", work, ended=ended, on_stop=stopped.append)
    operator.join()
    assert (done, len(calls), str(stopped[0])) == ({"done": True}, 2, "broken")
