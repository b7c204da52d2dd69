"""Looking all the time at what changes seldom costs one small read in an object store, and misses
no change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.relay import SKIP, AlignedChunk, Control, Override, RelayError, RelayLog
from sluice.relay import cached_storage as module
from sluice.relay.storage import Storage
from tests.object_store.s3_server import S3Server

AT = 470_000_000_000_000_000


def another(url: str) -> RelayLog:
    """The log as another process sees it: it remembers nothing of this one's looks."""
    return RelayLog.open(url)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SETTLED_AFTER_S", 0.0)


@pytest.mark.usefixtures("settled")
def test_looking_again_at_what_is_as_it_was_lists_nothing(s3_server: S3Server) -> None:
    log = RelayLog.open(s3_server.url())
    log.overrides.add(Override(5, SKIP))
    log.change_control(lambda control: Control(land_paused=True))

    def look() -> None:
        assert log.control().land_paused
        assert [each.commit_ts for each in log.overrides.list()] == [5]
        assert log.aligned_chunks.agenda(0).pending == ()

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
        other.overrides.add(Override(5, SKIP, why=why))
        assert [each.why for each in log.overrides.list()] == [why]
        assert [each.why for each in log.overrides.list()] == [why]
        other.overrides.remove(5)
        assert log.overrides.list() == []
    made = AlignedChunk(AT, "job", 0, 1, "d", "t")
    other.aligned_chunks.make(made)
    assert log.aligned_chunks.agenda(0).pending == (made,)
    assert log.aligned_chunks.exists(AT)
    other.aligned_chunks.remove(AT)
    assert not log.aligned_chunks.exists(AT)
    assert log.aligned_chunks.agenda(0).pending == ()


@pytest.mark.usefixtures("settled")
def test_what_nobody_told_of_is_seen_after_a_while(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RelayLog.open(s3_server.url())
    assert not log.control().apply_paused
    former = RelayLog.open(s3_server.url())
    former.storage.create("control/000000000001.json", Control(apply_paused=True).to_bytes())
    monkeypatch.setattr(module, "REFRESH_INTERVAL_S", 0.0)
    assert log.control().apply_paused


def test_a_list_that_may_lag_is_not_remembered_right_after_a_change(s3_server: S3Server) -> None:
    log = RelayLog.open(s3_server.url())
    log.overrides.add(Override(5, SKIP))
    log.overrides.list()
    s3_server.counted()
    log.overrides.list()
    assert s3_server.counted()["LIST"] == 1


class Refusing:
    """A storage of which writes of the word fail from the `first` on."""

    def __init__(self, storage: Storage, first: int) -> None:
        self._storage = storage
        self._left = first

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def replace(self, path: str, data: bytes) -> None:
        if path == module.VERSION_FILE:
            self._left -= 1
            if self._left < 0:
                raise OSError("the store refuses")
        self._storage.replace(path, data)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("first", [0, 1])
def test_an_order_that_is_acknowledged_is_seen_at_the_next_look_though_the_word_cannot_be_written(
    s3_server: S3Server, first: int
) -> None:
    log, other = RelayLog.open(s3_server.url()), another(s3_server.url())
    other.change_control(lambda control: Control(land_paused=True))
    for _ in range(2):
        assert not log.control().apply_paused
    orders = other._orders
    assert isinstance(orders, module.CachedStorage)
    orders._storage = Refusing(orders._storage, first)  # type: ignore[assignment]
    if first:
        other.change_control(lambda control: Control(apply_paused=True))
    else:
        with pytest.raises(OSError, match="the store refuses"):
            other.change_control(lambda control: Control(apply_paused=True))
    for _ in range(2):
        assert log.control().apply_paused is bool(first)
    if first:
        another(s3_server.url()).change_control(lambda control: Control())
        assert not log.control().apply_paused


def test_orders_that_are_gone_with_their_mount_are_not_taken_for_withdrawn(tmp_path: Path) -> None:
    log = RelayLog.open(f"file://{tmp_path}/relay")
    assert not log.control().land_paused, "nobody has ordered anything"
    log.change_control(lambda control: Control(land_paused=True))
    assert log.control().land_paused
    (tmp_path / "relay").rename(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(RelayError, match=r"is the relay log.s folder not mounted") as told:
            log.control()
        assert told.value.transient
        (tmp_path / "relay").mkdir(exist_ok=True)
    (tmp_path / "relay").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "relay")
    assert log.control().land_paused
