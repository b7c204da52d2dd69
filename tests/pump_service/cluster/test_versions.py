"""TiKV is asked to keep the records by which unfinished transactions can be decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.pump_service.cluster import HistoryLostError, ServiceSafePoint
from sluice.pump_service.store import Store
from tests.pump_service.storekit import BASE, OPTIONS, commit, prewrite, settle, write


class PD:
    """Remembers what was registered."""

    def __init__(self) -> None:
        self.now = BASE + 1000
        self.registered: dict[str, tuple[int, int]] = {}
        self.away = False
        self.given_up = 0

    def tso(self) -> int:
        if self.away:
            raise OSError("PD is away")
        return self.now

    def update_service_gc_safe_point(self, service_id: str, ttl_s: int, safe_point: int) -> int:
        self.registered[service_id] = (ttl_s, safe_point)
        return max(safe_point, self.given_up)


def test_what_is_kept_begins_with_the_oldest_unfinished_transaction(tmp_path: Path) -> None:
    store, pd = Store.open(tmp_path, OPTIONS), PD()
    kept = ServiceSafePoint(pd, "one", store.decided_through, 77)
    write(store, prewrite(BASE + 5), prewrite(BASE + 1), prewrite(BASE + 9))
    kept.advance()
    assert pd.registered == {"sluice-pump-one": (77, BASE + 1)}
    write(store, commit(BASE + 1, BASE + 20))
    kept.advance()
    assert pd.registered == {"sluice-pump-one": (77, BASE + 5)}
    write(store, commit(BASE + 5, BASE + 21), commit(BASE + 9, BASE + 22))
    settle(store)
    pd.now = BASE + 2000
    kept.advance()
    assert pd.registered == {"sluice-pump-one": (77, BASE + 2000)}
    pd.away = True
    kept.advance()  # it is only logged
    kept.give_up()
    assert pd.registered == {"sluice-pump-one": (0, 0)}
    store.close()


def test_while_the_index_is_behind_nothing_moves_on() -> None:
    pd = PD()
    ServiceSafePoint(pd, "one", lambda ts: None, 77).advance()
    assert pd.registered == {}


def test_nothing_is_registered_where_that_is_not_wanted() -> None:
    pd = PD()
    kept = ServiceSafePoint(pd, "one", lambda ts: ts, 0)
    kept.advance()
    kept.give_up()
    assert pd.registered == {}


def test_a_capture_does_not_begin_where_tikv_has_dropped_versions() -> None:
    pd = PD()
    kept = ServiceSafePoint(pd, "one", lambda ts: ts, 77)
    kept.claim(BASE)
    assert pd.registered == {"sluice-pump-one": (77, BASE)}
    pd.given_up = BASE + 1
    with pytest.raises(HistoryLostError, match=f"after commit ts {BASE} .*through {BASE + 1}"):
        kept.claim(BASE)
    kept.claim(BASE + 1)


def test_a_capture_learns_that_pd_no_longer_keeps_its_history() -> None:
    pd, lost = PD(), list[str]()
    kept = ServiceSafePoint(pd, "one", lambda ts: BASE, 77, lost.append)
    kept.advance()
    assert lost == []
    pd.given_up = BASE + 5
    kept.advance()
    assert str(BASE + 5) in lost[0]
