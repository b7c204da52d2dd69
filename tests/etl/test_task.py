"""What becomes of a task's errors."""

import threading
import time
from types import SimpleNamespace

import pytest

from sluice.airflow.operators import log_hint
from sluice.errors import DefectError
from sluice.etl import operate
from sluice.etl import retry as waiting
from sluice.etl.downstream.sinks import ApplyError
from sluice.etl.settings.pipelines import pipelines
from sluice.etl.tasks import airflow_task as task
from sluice.etl.tasks.airflow_task import TaskFailedPermanently, run_paired, run_task
from sluice.relay import Failure, RelayLog


@pytest.fixture
def relay(tmp_path, monkeypatch):
    url = f"file://{tmp_path}/relay"
    (tmp_path / "sluice.toml").write_text(
        f'[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl = "{url}"\n[downstream]\nhost ='
        ' "h"\n'
    )
    monkeypatch.setenv("SLUICE_CONFIG", str(tmp_path / "sluice.toml"))
    monkeypatch.setattr(task, "_RESUME_WAIT_S", 0.0)
    return RelayLog.open(url)


def test_what_passes_is_tried_again_in_the_same_task(relay):
    attempts = []

    def work(settings, got_on):
        attempts.append(settings.relay.url)
        if len(attempts) < 3:
            raise ConnectionResetError("not yet")
        return {"done": True}

    assert run_task(pipelines()[""], "land", work) == {"done": True}
    assert attempts == [relay.url] * 3
    assert relay.failures.list() == []


def test_trouble_after_it_has_got_on_is_a_new_one_which_is_waited_for_from_the_beginning(
    relay, monkeypatch
):
    clock, delays = [0.0], []
    monkeypatch.setattr(
        waiting, "time", SimpleNamespace(time=lambda: clock[0], monotonic=lambda: clock[0])
    )
    monkeypatch.setattr(task.time, "sleep", delays.append)

    def work(settings, got_on):
        got_on(None)
        if len(delays) == 3:
            return {}
        clock[0] += 36
        raise ConnectionResetError("killed")

    run_task(pipelines()[""], "apply", work)
    assert delays == [0.1] * 3


def test_a_terminal_error_ends_the_task_for_good_and_is_there_to_be_read_until_it_goes_on(
    relay, caplog
):
    def refused(settings, got_on):
        raise ApplyError("a row is missing", hint="bring it back")

    with pytest.raises(
        TaskFailedPermanently,
        match="apply has stopped: ApplyError: a row is missing; bring it back",
    ) as caught:
        run_task(pipelines()[""], "apply", refused)
    assert caught.value.__suppress_context__, "a stack trace tells operators nothing"
    log_hint({"exception": caught.value})
    assert caplog.records[-1].getMessage().startswith("hint: bring it back")
    (failure,) = relay.failures.list()
    assert (failure.what, failure.message, failure.hint) == (
        "apply", "a row is missing; bring it back", "bring it back",
    )  # fmt: skip

    def stands_still(settings, got_on):
        return {}

    run_task(pipelines()[""], "apply", stands_still)
    assert relay.failures.list() == [failure]

    def goes_on(settings, got_on):
        got_on("a batch")
        return {}

    run_task(pipelines()[""], "land", goes_on)
    assert relay.failures.list() == [failure]
    run_task(pipelines()[""], "apply", goes_on)
    assert relay.failures.list() == []


def test_a_programming_error_is_terminal_and_keeps_its_stack_trace(relay):
    def broken(settings, got_on):
        return {}["nothing"]

    with pytest.raises(TaskFailedPermanently, match="KeyError") as caught:
        run_task(pipelines()[""], "land", broken)
    assert isinstance(caught.value.__cause__, KeyError)
    assert relay.failures.list()[0].hint == DefectError.hint


def test_settings_that_are_wrong_stop_the_task(relay, monkeypatch, tmp_path):
    (tmp_path / "sluice.toml").write_text("[nonsense]\n")
    with pytest.raises(TaskFailedPermanently, match=r"SettingsError.*nonsense"):
        run_task(pipelines()[""], "land", lambda settings, got_on: {})


def test_when_one_of_a_runs_two_tasks_has_stopped_the_other_one_ends_so_that_the_dag_pauses_at_once(
    relay, monkeypatch
):
    monkeypatch.setattr(task, "_PEER_CHECK_INTERVAL_S", 0.01)
    relay.failures.note(Failure("apply", "of a run before", "done", 1))

    def lands(settings, got_on, stop):
        assert not stop.wait(0.1), "what stopped in an earlier run counts no longer"
        with pytest.raises(TaskFailedPermanently):
            run_paired(pipelines()[""], "apply", "land", refused)
        assert stop.wait(60)
        return {"landed": 1}

    def refused(settings, got_on, stop):
        raise ApplyError("a row is missing", hint="bring it back")

    assert run_paired(pipelines()[""], "land", "apply", lands) == {"landed": 1}


def test_a_task_that_has_just_stopped_is_resumed_before_its_dag_pauses(relay, monkeypatch):
    monkeypatch.setattr(task, "_RESUME_WAIT_S", 600.0)
    monkeypatch.setattr(task, "_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(task, "_PEER_CHECK_INTERVAL_S", 0.01)
    attempts = []
    settings = pipelines()[""].settings

    def applies(settings, got_on, stop):
        attempts.append(relay.failures.list())
        if len(attempts) == 1:
            raise ApplyError("a row is missing", hint="bring it back")
        return {"applied": 1}

    def operator():
        while not relay.failures.list():
            time.sleep(0.01)
        operate.resume(settings)

    def lands(settings, got_on, stop):
        acting = threading.Thread(target=operator)
        acting.start()
        assert run_paired(pipelines()[""], "apply", "land", applies) == {"applied": 1}
        acting.join()
        assert not stop.wait(0.1), "the other one goes on, too"
        return {"landed": 1}

    assert run_paired(pipelines()[""], "land", "apply", lands) == {"landed": 1}
    assert attempts == [[], []]
    assert relay.failures.list() == []


def test_an_order_to_go_on_is_about_the_failure_that_was_seen(relay):
    before, now = (
        Failure("apply", "of a run before", "done", 1),
        Failure("apply", "of this run", "done", 2),
    )
    relay.failures.note(before)
    operate.resume(pipelines()[""].settings)
    assert relay.failures.is_answered(before)
    relay.failures.note(now)
    assert not relay.failures.is_answered(now)
    assert relay.failures.list() == [now]
    relay.failures.clear("apply")
    assert not relay.failures.is_answered(before)
