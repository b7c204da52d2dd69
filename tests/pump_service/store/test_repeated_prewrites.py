"""A transaction has one Prewrite: the first. The same bytes are answered, others are refused."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.pump_service.cluster import ClientLiveness
from sluice.pump_service.store import (
    Record,
    RefusedRecordsError,
    Store,
    TxnOutcome,
    TxnOutcomeKind,
)
from tests.examples import examples
from tests.pump_service.storekit import (
    BASE,
    OPTIONS,
    Answer,
    commit,
    prewrite,
    settle,
    stalled_index,
    window,
)

_AHEAD = 1000


class Pump:
    """What stands between a client's calls and the store, and how transactions ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.committed: dict[int, int] = {}
        """commit_ts by start_ts - BASE"""
        self._open()

    def _open(self) -> None:
        self.store = Store.open(self._folder, OPTIONS, self._resolve)
        self._origins = ClientLiveness(list, lambda start_ts: self.store.is_open(start_ts))
        self._origins.old_ts = self.store.stored_ts
        self._client = self._origins.connect("10.0.0.1")

    def _resolve(self, start_ts: int, key: bytes) -> TxnOutcome:
        found = self.committed.get(start_ts - BASE)
        if found is None:
            return TxnOutcome(TxnOutcomeKind.PENDING)
        return TxnOutcome(TxnOutcomeKind.COMMITTED, found)

    def restart(self) -> None:
        self.store.close()
        self._open()

    def send(self, *records: Record) -> list[BaseException | None]:
        """Sends records as one read's calls; the answer of each."""
        answer = Answer()
        doubtful = self._origins.record_prewrites(records, self._client)
        if doubtful is None:
            self.store.submit(records, answer)
        else:
            self.store.submit_checked(records, answer, "10.0.0.1", doubtful)
        assert answer.done.wait(60)
        assert answer.calls == 1
        if isinstance(answer.error, RefusedRecordsError):
            refused = answer.error.refused
            return [refused.get(place) for place in range(len(records))]
        return [answer.error] * len(records)


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[Pump]:
    made = Pump(tmp_path / "pump")
    yield made
    made.store.close()


steps = st.one_of(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([b"a", b"b"])), min_size=1, max_size=4),
    st.integers(0, 3),
    st.just("restart"),
)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(steps, max_size=16))
def test_readers_get_the_first_prewrite_and_every_other_one_is_refused(steps: list) -> None:
    first: dict[int, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        pump = Pump(Path(folder) / "pump")
        for step in steps:
            if step == "restart":
                pump.restart()
            elif isinstance(step, int):
                if step in first and step not in pump.committed:
                    pump.committed[step] = BASE + _AHEAD + len(pump.committed)
                    assert pump.send(commit(BASE + step, pump.committed[step])) == [None]
            else:
                answers = pump.send(*(prewrite(BASE + n, value) for n, value in step))
                for (n, value), error in zip(step, answers, strict=True):
                    is_first = first.setdefault(n, value) == value
                    assert (error is None) == is_first
                    assert is_first or f"transaction {BASE + n}" in str(error)
        settle(pump.store, timeout=0)
        through = BASE + _AHEAD + 100
        if all(n in pump.committed for n in first):
            assert settle(pump.store, through) >= through
            found = {start: payload for _, start, payload in window(pump.store)}
            assert found == {
                BASE + n: prewrite(BASE + n, value).payload for n, value in first.items()
            }
        pump.store.close()


def test_the_same_prewrite_again_holds_no_reader_up(pump: Pump) -> None:
    assert pump.send(prewrite(BASE)) == [None]
    assert pump.send(prewrite(BASE + 1)) == [None]
    assert pump.send(commit(BASE, BASE + 5)) == [None]
    pump.restart()
    assert pump.send(prewrite(BASE), prewrite(BASE + 1), prewrite(BASE + 6)) == [None] * 3
    assert pump.store.stats().records == 1
    assert not pump.store.is_open(BASE)
    assert pump.store.stats().contradictions == 0


def test_a_repeated_prewrite_is_refused_for_now_while_the_index_lags(pump: Pump) -> None:
    assert pump.send(prewrite(BASE)) == [None]
    with stalled_index(pump.store), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.pump_service.store.store_reads._FENCE_TIMEOUT_S", 0.05)
        (error,) = pump.send(prewrite(BASE))
        assert error is not None and "caught up" in str(error)
        assert error.transient
    assert pump.send(prewrite(BASE)) == [None]
