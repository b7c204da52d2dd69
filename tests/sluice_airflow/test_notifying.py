"""People are notified once for each long wait, wherever the pipeline runs, and the task goes on."""

from __future__ import annotations

import logging

import pytest

from sluice.airflow import notifying
from sluice.airflow.agent_client import call_task
from sluice.errors import MachineError
from sluice.etl import retry
from sluice.etl.settings.pipelines import pipelines
from tests.sluice_airflow.counting_kind import program

notified: list[str] = []


def remember(context):
    notified.append(str(context["exception"]))
    assert isinstance(context["exception"], notifying.TaskWaits)


def fail(context):
    notified.append("failed")
    raise ValueError("no mail server")


@pytest.fixture(autouse=True)
def nothing_yet():
    notified.clear()


def wait(seconds, monkeypatch, backoff):
    """One failure a second."""
    for second in range(seconds):
        monkeypatch.setattr(retry.time, "monotonic", lambda: 1_000.0 + second)
        backoff.after(MachineError("no route to db1"))


@pytest.mark.parametrize(("seconds", "times"), [(60, 0), (61, 1), (600, 1)])
def test_a_wait_of_a_minute_is_notified_once(monkeypatch, seconds, times):
    backoff = retry.RetryBackoff(logging.getLogger("sluice"), "applying")
    with notifying.notified_of_waits(f"{__name__}.remember"):
        wait(seconds, monkeypatch, backoff)
    assert notified == ["applying has waited for a minute: no route to db1"] * times


def test_the_next_wait_is_notified_again_and_none_after_the_task(monkeypatch):
    backoff = retry.RetryBackoff(logging.getLogger("sluice"), "applying")
    for expected in (1, 2):
        with notifying.notified_of_waits(f"{__name__}.remember"):
            wait(100, monkeypatch, backoff)
        assert len(notified) == expected
        backoff.over()
    wait(100, monkeypatch, backoff)
    assert len(notified) == 2


def test_a_notifier_that_fails_is_logged_and_the_task_goes_on(monkeypatch, caplog):
    backoff = retry.RetryBackoff(logging.getLogger("sluice"), "applying")
    with notifying.notified_of_waits(f"{__name__}.fail"):
        wait(100, monkeypatch, backoff)
    assert notified == ["failed"] and "no mail server" in caplog.text


def test_a_wait_in_the_other_environment_is_notified_here(shop):
    file = shop.pipelines / "shop.toml"
    text = f'[airflow]\npython = "{program(shop.folder)}"\nnotify = "{__name__}.remember"\n'
    file.write_text(file.read_text() + text)
    call_task(pipelines()["shop"], "wait")
    assert notified == ["the task wait has waited for a minute: no route"]


def test_both_sides_mean_the_same_logger():
    assert notifying.LONG_WAITS == retry.LONG_WAITS
