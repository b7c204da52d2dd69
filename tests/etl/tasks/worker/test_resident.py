"""A process that lands, or applies, outlasts the task that began it.

Landing is paused here: it needs no upstream.
"""

import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

from sluice.errors import SluiceError
from sluice.etl.settings import SettingsError, load_settings
from sluice.etl.settings.airflow_connections import resolve_connections, use_connections
from sluice.etl.settings.secrets import RESOLVED
from sluice.etl.tasks.worker import WorkerLostError, WorkerSpec, client, run_in_worker
from sluice.etl.tasks.worker import server as process
from sluice.etl.tasks.worker.channel import ALIVE, DETACH, FINISHED, MessageChannel
from sluice.etl.tasks.worker.task_spec import code_fingerprint, socket_address
from sluice.relay import Control

_MARK = "SLUICE_TEST_RESIDENT"


@pytest.fixture
def wish(tmp_path, monkeypatch):
    """To land, once it isn't paused any longer; what is left of it is killed in the end."""
    monkeypatch.setenv(_MARK, str(tmp_path))
    (tmp_path / "sluice.toml").write_text(
        '[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl ='
        f' "file://{tmp_path}/relay"\n[downstream]\nhost = "h"\n'
    )
    settings = load_settings(tmp_path / "sluice.toml")
    settings.open_relay().change_control(lambda _: Control(land_paused=True, apply_paused=False))
    yield WorkerSpec("land", settings)
    for each in there():
        each.kill()


def there():
    """The residents of this test."""
    mark, found = os.environ[_MARK], []
    for each in psutil.process_iter(["cmdline", "status"]):
        with contextlib.suppress(psutil.Error):
            is_one = (
                "sluice.etl.tasks.worker" in (each.info["cmdline"] or ())
                and each.info["status"] != psutil.STATUS_ZOMBIE
            )
            if is_one and each.environ().get(_MARK) == mark:
                found.append(each)
    return found


def run(wish):
    """A whole run, which has hardly any time; the process that it has left."""
    run_in_worker(wish, lambda: 0.05, threading.Event(), lambda _: None)
    (left,) = there()
    return left


def gone(left):
    _, alive = psutil.wait_procs([left], 60)
    return not alive or left.status() == psutil.STATUS_ZOMBIE


class Told(logging.Handler):
    """Something to do when a line is logged."""

    def __init__(self, text, do):
        super().__init__()
        self._text, self._do = text, do

    def emit(self, record):
        if self._text in record.getMessage():
            self._do()


@contextlib.contextmanager
def when(text, do):
    logger, handler = logging.getLogger("sluice"), Told(text, do)
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


_TASK = """
import logging, sys, threading
logging.basicConfig(level=logging.INFO)
from sluice.etl.tasks.worker import WorkerSpec, run_in_worker
from sluice.etl.settings import load_settings
spec = WorkerSpec("land", load_settings(sys.argv[1]))
run_in_worker(spec, lambda: 600, threading.Event(), lambda _: None)
"""


@contextlib.contextmanager
def task_at_work(tmp_path):
    """A task in a process of its own, once it has taken a process up."""
    command = [sys.executable, "-c", _TASK, str(tmp_path / "sluice.toml")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as task:
        assert any("goes on in the process" in line for line in task.stderr)
        reading = threading.Thread(target=task.stderr.read)
        reading.start()
        yield task
        reading.join()


def test_the_next_runs_task_takes_up_the_process_that_the_run_before_has_left(wish, caplog):
    caplog.set_level(logging.INFO)
    first = run(wish)
    assert "goes on in the process" not in caplog.text
    assert run(wish) == first
    assert "land goes on in the process of the run before" in caplog.text


def test_what_the_process_says_is_in_the_tasks_log_and_a_task_that_is_told_to_stop_ends_it(wish):
    stop, at_work = threading.Event(), []

    def said():
        at_work.extend(there())
        stop.set()

    with when("landing is paused", said):
        assert run_in_worker(wish, lambda: 600, stop, lambda _: None)["windows"] == 0
    assert gone(at_work[0])


@pytest.mark.slow
def test_another_process_follows_when_the_settings_have_changed_and_the_first_one_ends(wish):
    before = run(wish)
    settings = replace(wish.settings, apply=replace(wish.settings.apply, mode="parallel"))
    run_in_worker(replace(wish, settings=settings), lambda: 0.05, threading.Event(), lambda _: None)
    assert gone(before)
    (after,) = there()
    assert after != before


def test_landing_and_applying_and_two_pipelines_have_processes_of_their_own(wish):
    other = replace(wish.settings, relay=replace(wish.settings.relay, pipeline="other"))
    assert (
        len(
            {
                socket_address(each)
                for each in (wish, replace(wish, what="apply"), replace(wish, settings=other))
            }
        )
        == 3
    )


@pytest.mark.slow
def test_sigterm_which_airflow_sends_for_a_task_that_is_cleared_ends_the_process_too(
    wish, tmp_path
):
    left = run(wish)
    with task_at_work(tmp_path) as task:
        task.send_signal(signal.SIGTERM)
        assert task.wait(60) == 0
    assert gone(left)


@pytest.mark.slow
def test_the_process_of_a_task_that_was_killed_is_taken_up_by_the_one_that_is_started_again(
    wish, tmp_path
):
    left = run(wish)
    with task_at_work(tmp_path) as task:
        task.kill()
    assert run(wish) == left


@pytest.mark.slow
def test_it_is_taken_up_too_when_it_hears_of_the_kill_and_of_the_next_task_at_once(
    wish, tmp_path, caplog
):
    caplog.set_level(logging.INFO)
    left = run(wish)
    with task_at_work(tmp_path) as task:
        left.suspend()
        task.kill()
    resuming = threading.Timer(1, left.resume)
    resuming.start()
    assert run(wish) == left
    assert "land goes on in the process of the run before" in caplog.text
    resuming.join()


@pytest.mark.slow
def test_a_task_that_outlives_who_began_it_leaves_the_process_to_the_one_that_is_started_again(
    wish, tmp_path, caplog
):
    caplog.set_level(logging.INFO)
    left = run(wish)
    command = [sys.executable, "-c", _TASK, str(tmp_path / "sluice.toml")]
    beginning = f"import subprocess; subprocess.run({command!r})"
    with subprocess.Popen(
        [sys.executable, "-c", beginning], stderr=subprocess.PIPE, text=True
    ) as worker:
        assert any("goes on in the process" in line for line in worker.stderr)
        (task,) = psutil.Process(worker.pid).children()
        worker.kill()
        assert gone(task)
        worker.stderr.read()
    assert run(wish) == left
    assert "land goes on in the process of the run before" in caplog.text


@pytest.mark.slow
def test_a_task_whose_process_is_killed_is_told_so_and_may_try_again(wish):
    left = run(wish)
    with (
        when("goes on in the process", left.kill),
        pytest.raises(WorkerLostError, match="the process of land is gone") as caught,
    ):
        run_in_worker(wish, lambda: 600, threading.Event(), lambda _: None)
    assert caught.value.transient
    assert run(wish) != left


@pytest.mark.slow
def test_a_process_that_stands_still_is_killed_so_that_the_next_attempt_has_another(
    wish, monkeypatch, caplog
):
    caplog.set_level(logging.INFO)
    first = run(wish)
    monkeypatch.setattr(client, "SILENCE_TIMEOUT_S", 0.5)
    with (
        when("goes on in the process", first.suspend),
        pytest.raises(WorkerLostError) as lost,
    ):
        run_in_worker(wish, lambda: 600, threading.Event(), lambda _: None)
    assert lost.value.transient and gone(first)
    assert "killing worker land" in caplog.text


def test_a_process_whose_work_takes_long_reports_that_it_is_alive(wish, monkeypatch):
    """Its work makes no progress here, as landing is paused: the line is all that is heard."""
    here, there = socket.socketpair()
    line = MessageChannel(here)
    monkeypatch.setattr(process, "ALIVE_INTERVAL_S", 0.05)
    server = process.WorkerServer(wish, MessageChannel(there))
    thread = threading.Thread(target=server._serve, daemon=True)
    thread.start()
    assert [line.receive()[0] for _ in range(3)] == [ALIVE] * 3
    server._send_logs(FINISHED, {})
    while line.receive()[0] != FINISHED:
        pass
    server._wake_up()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("before_it_is_told", [True, False])
def test_an_installation_with_which_none_begins_stops_the_task_and_says_why(
    before_it_is_told, wish, monkeypatch, tmp_path
):
    def begun(*command, **options):
        one = Popen(*command, **options)
        if before_it_is_told:
            one.wait()
        return one

    Popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", begun)
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho No module named pyarrow >&2\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(
        WorkerLostError, match=r"\(exit code 1\): No module named pyarrow"
    ) as caught:
        run_in_worker(wish, lambda: 600, threading.Event(), lambda _: None)
    assert not caught.value.transient


def test_what_stops_it_is_told_by_the_name_and_with_the_hint_that_it_has_there(wish):
    settings = replace(
        wish.settings, relay=replace(wish.settings.relay, url="s3://nowhere/relay?no")
    )
    with pytest.raises(SluiceError) as caught:
        run_in_worker(
            replace(wish, settings=settings), lambda: 600, threading.Event(), lambda _: None
        )
    assert (type(caught.value).__name__, caught.value.transient) == ("RelayError", False)
    assert caught.value.hint
    assert all(gone(each) for each in there())


def test_without_a_next_task_it_ends(wish, monkeypatch):
    monkeypatch.setattr(process, "HANDOFF_TIMEOUT_S", 0.1)
    own, task = socket.socketpair()
    said = []

    def leave():
        line = MessageChannel(task)
        line.send(DETACH)
        while (message := line.receive())[0] != FINISHED:
            said.append(message)
        said.append(message)

    thread = threading.Thread(target=leave)
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    thread.start()
    try:
        process.WorkerServer(wish, MessageChannel(own)).run()
    finally:
        root.handlers[:] = before
        thread.join()
    assert said[-1][1]["windows"] == 0
    timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    assert all(each.finished.is_set() for each in timers), "one would end this process later"


def test_it_has_the_connections_of_airflow_that_its_task_looked_up_and_is_told_why_there_is_none(
    wish, monkeypatch
):
    downstream = replace(wish.settings.downstream, password_connection="downstream")
    known = SimpleNamespace(
        conn_type="mysql", login="u", password="secret", host="h", extra_dejson={"a": "b"},
        port=3306, schema=None,
    )  # fmt: skip
    monkeypatch.setitem(RESOLVED, "downstream", known)
    lent = resolve_connections(replace(wish.settings, downstream=downstream))
    assert "secret" not in repr(lent)
    use_connections(lent)
    assert downstream.password() == "secret"
    use_connections({"downstream": ("Airflow has no such connection", False)})
    with pytest.raises(SettingsError, match="Airflow has no such connection"):
        downstream.password()


def test_an_old_process_is_not_replaced_in_the_middle_of_a_batch(monkeypatch, wish):
    applying = replace(wish, what="apply")
    own, task = socket.socketpair()
    resident = process.WorkerServer(applying, MessageChannel(own))
    asked = code_fingerprint(), pickle.dumps(applying)
    batches = []

    def run_apply(settings, *, writing, on_batch, **_):
        with writing:
            batches.append(resident._matches(*asked))
        on_batch(None)
        batches.append(resident._matches(*asked))

    monkeypatch.setattr(process, "run_apply", run_apply)
    monkeypatch.setattr(process, "MAX_AGE_S", -1.0)
    resident._work.run(threading.Event(), lambda _: None)
    assert batches == [True, False]
    for each in (own, task):
        each.close()


def test_a_task_that_stands_still_is_left_and_another_one_may_come(monkeypatch, wish):
    monkeypatch.setattr(process, "_SOCKET_TIMEOUT_S", 0.05)
    own, task = socket.socketpair()
    resident = process.WorkerServer(wish, MessageChannel(own))
    resident._listener = socket.socket()
    for number in range(process._MAX_BUFFERED_LINES):
        resident._log.emit(
            logging.LogRecord("sluice", logging.INFO, "", 0, "x" * 4_000 + str(number), None, None)
        )
    resident._forward_logs()
    assert resident._line is None
    assert not resident._stop.is_set()
    for each in (own, task, resident._listener):
        each.close()
