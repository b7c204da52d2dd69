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
from sluice.relay.service_lease import ServiceLease
from tests.etl.spark_fixture import free_port
from tests.etl.story import Story, table

_MARK = "SLUICE_TEST_SERVICE"
pytestmark = pytest.mark.timeout(1200)


def settings(tmp_path, port, more='replication = "service"'):
    path = tmp_path / "sluice.toml"
    path.write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "file://{tmp_path}/relay"\n'
        f'[downstream]\nhost = "127.0.0.1"\nport = {port}\nuser = "sluice"\n'
        f'[spark]\nremote = "sc://127.0.0.1:1"\n[airflow]\n{more}\n'
    )
    return path


class Service:
    """A host of its own with `sluice replicate` on it."""

    def __init__(self, config, name):
        self.name, self.port = name, free_port()
        with open(config.parent / f"{name}.log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "sluice.cli", "replicate", "--config", str(config)),
                    *("--listen", f"127.0.0.1:{self.port}"),
                ],
                env=os.environ | {_MARK: f"{config.parent}/{name}"},
                stdout=log,
                stderr=log,
            )
        self._mark = f"{config.parent}/{name}"

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

    def host_dies(self):
        """kill -9 of the service and of its worker processes."""
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if each.environ().get(_MARK) == self._mark:
                    each.kill()
        self.process.wait(60)


@pytest.fixture
def services(tmp_path):
    started = []

    def start(config, name):
        started.append(Service(config, name))
        return started[-1]

    yield start
    for each in started:
        each.host_dies()


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
        first.host_dies()
        before, died = len(applied(story)), time.monotonic()
        until(lambda: len(applied(story)) > before)
        print(f"taken over after {time.monotonic() - died:.1f} s")
        until(lambda: second.probe("/readyz")[0] == 200 and second.state() == "active")
    finally:
        traffic.stopped.set()
        traffic.join()
    until(lambda: len(applied(story)) >= traffic.count)
    assert sorted(applied(story)) == list(range(traffic.count))


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
