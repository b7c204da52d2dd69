"""Looking all the time at what changes seldom costs one small read in an object store, and misses no change."""

from __future__ import annotations

import pytest

from relay import SKIP, Appointment, Control, Decision, RelayLog
from relay import remembered as module
from tests.object_store.s3_server import S3Server

AT = 470_000_000_000_000_000


def another(url: str) -> RelayLog:
    """The log as another process sees it: it remembers nothing of this one's looks."""
    return RelayLog.open(url)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLED_S", 0.0)


@pytest.mark.usefixtures("settled")
def test_looking_again_at_what_is_as_it_was_lists_nothing(s3_server: S3Server) -> None:
    log = RelayLog.open(s3_server.url())
    log.decisions.add(Decision(5, SKIP))
    log.change_control(lambda control: Control(land_paused=True))

    def look() -> None:
        assert log.control().land_paused
        assert [each.commit_ts for each in log.decisions.list()] == [5]
        assert log.appointments.agenda(0).pending == ()

    look()
    s3_server.counted()
    for _ in range(10):
        look()
    counted = s3_server.counted()
    assert counted == {"GET": counted["GET"]} and counted["GET"] <= 30


@pytest.mark.usefixtures("settled")
def test_what_another_process_orders_is_seen_at_the_next_look(s3_server: S3Server) -> None:
    log, other = RelayLog.open(s3_server.url()), another(s3_server.url())
    for paused in (True, False, True):
        other.change_control(lambda control, paused=paused: Control(apply_paused=paused))
        assert log.control().apply_paused is paused
        assert log.control().apply_paused is paused
    for why in ("first", "again"):
        other.decisions.add(Decision(5, SKIP, why=why))
        assert [each.why for each in log.decisions.list()] == [why]
        assert [each.why for each in log.decisions.list()] == [why]
        other.decisions.remove(5)
        assert log.decisions.list() == []
    made = Appointment(AT, "job", 0, 1, "d", "t")
    other.appointments.make(made)
    assert log.appointments.agenda(0).pending == (made,)
    assert log.appointments.is_there(AT)
    other.appointments.remove(AT)
    assert not log.appointments.is_there(AT)
    assert log.appointments.agenda(0).pending == ()


@pytest.mark.usefixtures("settled")
def test_what_nobody_told_of_is_seen_after_a_while(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RelayLog.open(s3_server.url())
    assert not log.control().apply_paused
    former = RelayLog.open(s3_server.url())
    former.storage.create("control/000000000001.json", Control(apply_paused=True).to_json())
    monkeypatch.setattr(module, "RELOOK_S", 0.0)
    assert log.control().apply_paused


def test_a_list_that_may_lag_is_not_remembered_right_after_a_change(s3_server: S3Server) -> None:
    log = RelayLog.open(s3_server.url())
    log.decisions.add(Decision(5, SKIP))
    log.decisions.list()
    s3_server.counted()
    log.decisions.list()
    assert s3_server.counted()["LIST"] == 1
