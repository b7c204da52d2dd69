"""A Commit that contradicts an earlier verdict counts only if TiKV says so, too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.pump_service.cluster.missing_commits import OutcomeUnknown
from sluice.pump_service.store import (
    DoubtfulRecords,
    Record,
    Store,
    TxnOutcome,
    TxnOutcomeKind,
    verdict_checks,
)
from sluice.tidb.tikv import TiKVError
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    Answer,
    commit,
    eventually,
    prewrite,
    rollback,
    settle,
    window,
    write,
)

_TOP = BASE + 1000


class TiKV:
    """A resolver that knows what a test tells it."""

    def __init__(self) -> None:
        self.committed: dict[int, int] = {}
        self.error: Exception | None = None
        self.asked: list[int] = []
        self.wait: Callable[[], object] = bool

    def __call__(self, start_ts: int, key: bytes) -> TxnOutcome:
        self.asked.append(start_ts)
        self.wait()
        if self.error is not None:
            raise self.error
        found = self.committed.get(start_ts)
        return (
            TxnOutcome(TxnOutcomeKind.ROLLED_BACK)
            if found is None
            else TxnOutcome(TxnOutcomeKind.COMMITTED, found)
        )


@pytest.fixture
def tikv() -> TiKV:
    return TiKV()


@pytest.fixture
def store(tmp_path: Path, tikv: TiKV) -> Iterator[Store]:
    opened = Store.open(tmp_path / "pump", OPTIONS, tikv)
    yield opened
    opened.close()


def checked(store: Store, *records: Record) -> BaseException | None:
    """What the client is answered."""
    answer = Answer()
    store.submit_checked(records, answer, "10.0.0.9", DoubtfulRecords(()))
    assert answer.done.wait(60)
    return answer.error


def readable(store: Store) -> list[tuple[int, int]]:
    settle(store, _TOP)
    return [(row[1], row[0]) for row in window(store)]


def test_the_first_verdicts_after_a_restart_are_taken_without_asking(
    store: Store, tikv: TiKV
) -> None:
    write(store, prewrite(BASE + 1), prewrite(BASE + 2))
    assert (
        checked(store, commit(BASE + 1, BASE + 5), rollback(BASE + 2), prewrite(BASE + 6)) is None
    )
    assert checked(store, commit(BASE + 1, BASE + 5), commit(BASE + 6, BASE + 7)) is None
    assert readable(store) == [(BASE + 1, BASE + 5), (BASE + 6, BASE + 7)]
    assert tikv.asked == []


def test_a_commit_without_a_prewrite_is_kept_as_ever(store: Store, tikv: TiKV) -> None:
    assert checked(store, commit(BASE + 1, BASE + 5)) is None
    write(store, prewrite(BASE + 1))
    tikv.committed[BASE + 1] = BASE + 5
    assert readable(store) == [(BASE + 1, BASE + 5)]


def test_of_two_commits_the_one_counts_that_tikv_has(
    store: Store, tikv: TiKV, caplog: pytest.LogCaptureFixture
) -> None:
    write(store, prewrite(BASE + 1), commit(BASE + 1, BASE + 5))
    tikv.committed[BASE + 1] = BASE + 5
    assert checked(store, commit(BASE + 1, BASE + 8)) is None
    assert readable(store) == [(BASE + 1, BASE + 5)]
    assert "10.0.0.9 reports that transaction" in caplog.text
    assert store.stats().contradictions == 1


def test_a_commit_that_tikv_has_comes_though_a_wrong_one_was_first(
    store: Store, tikv: TiKV, caplog: pytest.LogCaptureFixture
) -> None:
    write(store, prewrite(BASE + 1), commit(BASE + 1, BASE + 5))
    tikv.committed[BASE + 1] = BASE + 9
    assert checked(store, commit(BASE + 1, BASE + 8)) is None, "neither is right"
    assert readable(store) == [(BASE + 1, BASE + 5), (BASE + 1, BASE + 9)]
    assert "rejected: " in caplog.text


def test_a_commit_behind_a_rollback_counts_if_tikv_has_it(store: Store, tikv: TiKV) -> None:
    write(store, prewrite(BASE + 1), prewrite(BASE + 2), rollback(BASE + 1), rollback(BASE + 2))
    tikv.committed[BASE + 1] = BASE + 5
    assert checked(store, commit(BASE + 1, BASE + 5), commit(BASE + 2, BASE + 6)) is None
    assert readable(store) == [(BASE + 1, BASE + 5)]


def test_while_tikv_is_away_readers_wait_and_no_client_decides(store: Store, tikv: TiKV) -> None:
    write(store, prewrite(BASE + 1), commit(BASE + 1, BASE + 5))
    write(store, prewrite(BASE + 2), commit(BASE + 2, BASE + 6))
    tikv.error, tikv.committed[BASE + 2] = TiKVError("away"), BASE + 6
    for commit_ts in (BASE + 8, BASE + 9):
        assert checked(store, commit(BASE + 1, commit_ts), commit(BASE + 2, commit_ts + 10)) is None
    eventually(lambda: store.is_open(BASE + 1))
    assert checked(store, rollback(BASE + 1)) is None
    assert store.barrier(_TOP, 0.1) < BASE + 8
    tikv.error, tikv.committed[BASE + 1] = None, BASE + 5
    assert readable(store) == [(BASE + 1, BASE + 5), (BASE + 2, BASE + 6)]


def test_a_prewrite_that_came_with_a_contradiction_does_not_wait_for_tikv(
    store: Store, tikv: TiKV
) -> None:
    write(store, prewrite(BASE + 1), commit(BASE + 1, BASE + 5))
    answers = threading.Event()
    tikv.wait = lambda: answers.wait(60)
    answer = Answer()
    store.submit_checked(
        [commit(BASE + 1, BASE + 8), prewrite(BASE + 6)], answer, "", DoubtfulRecords(())
    )
    eventually(lambda: store.is_open(BASE + 6))
    assert not answer.calls, "the Commit waits still"
    answers.set()
    assert answer.done.wait(60)
    assert answer.error is None
    assert answer.calls == 1


def test_what_tikv_has_forgotten_holds_nobody_up(store: Store, tikv: TiKV) -> None:
    write(store, prewrite(BASE + 1), commit(BASE + 1, BASE + 5))
    tikv.error = OutcomeUnknown("it is too old")
    assert checked(store, commit(BASE + 1, BASE + 8)) is None
    assert readable(store) == [(BASE + 1, BASE + 5)]


def test_more_than_can_wait_are_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = verdict_checks.OutcomeChecks(store, TiKV())  # not started
    monkeypatch.setattr(verdict_checks, "MAX_QUEUED_OUTCOMES", 1)
    checks._groups.maxsize = 1
    first, second = Answer(), Answer()
    checks.submit([commit(BASE, BASE + 1)], first, "", DoubtfulRecords(()))
    checks.submit([commit(BASE, BASE + 1)], second, "", DoubtfulRecords(()))
    assert not first.calls
    assert "wait already" in str(second.error)
    checks.start()
    checks.close()
    assert first.done.wait(60)
    assert first.error is None
