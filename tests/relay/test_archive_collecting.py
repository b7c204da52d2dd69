"""Files that segments no longer have: how long they stay, whoever removes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.relay import RelayLog
from sluice.relay.archive import Archive, Pin, Pins, remove_unreferenced
from sluice.relay.archive import archive as module
from sluice.tidb import tso
from tests.relay.archivekit import archive_all, merge_segments
from tests.relay.relaykit import BASE, HOUR, land

BASE_MS = tso.physical_ms(BASE)
HOUR_MS = 3_600_000


class Site:
    """An archive whose first day was compacted at BASE + 1 h, in a world where it is `now_ms`."""

    def __init__(self, root: Path) -> None:
        self.relay = RelayLog.open(f"{root.as_uri()}/relay")
        self.archive = Archive.open(f"{root.as_uri()}/archive")
        self.holds = Pins(self.archive.storage)
        self.now_ms = BASE_MS
        self.at = BASE
        for _ in range(4):
            self.land(HOUR // 4)
        self.over: set[str] = set()

    def land(self, span: int) -> None:
        """Time goes by, here and upstream, and all of it is archived."""
        land(self.relay, self.at, self.at + span, self.at + span // 2)
        self.at += span
        self.now_ms = tso.physical_ms(self.at)
        archive_all(self.relay, self.archive)

    def compact(self) -> None:
        merge_segments(self.archive, "2026-11-21", 0, 4, "merged")

    def collect(self) -> int:
        return remove_unreferenced(self.archive, lambda job: job in self.over)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    monkeypatch.setattr(module, "_now_ms", lambda: made.now_ms)
    return made


def test_a_replaced_file_stays_some_hours_for_those_who_read_without_a_hold(site: Site) -> None:
    site.compact()
    site.land(5 * HOUR)
    assert site.collect() == 0
    site.land(2 * HOUR)
    assert site.collect() > 0


def test_it_stays_as_long_as_a_job_reads_that_began_before_it_was_replaced(site: Site) -> None:
    site.holds.note("r1", Pin("a restore", BASE, (), "r1"))
    site.compact()
    site.land(100 * HOUR)
    site.holds.note("r2", Pin("a later restore", BASE, (), "r2"))
    assert site.collect() == 0
    site.over.add("r1")
    assert site.collect() > 0


def test_a_clock_that_jumps_forward_removes_nothing_early(site: Site) -> None:
    site.compact()
    site.land(HOUR)
    site.now_ms += 100 * HOUR_MS
    assert site.collect() == 0


def test_a_file_that_was_replaced_while_the_clock_stood_far_back_stays_as_long(site: Site) -> None:
    site.now_ms -= 100 * HOUR_MS
    site.compact()
    site.land(HOUR)
    assert site.collect() == 0


def test_what_retention_has_let_go_of_goes_at_once_though_something_else_is_read(
    site: Site,
) -> None:
    site.holds.note("r1", Pin("a restore", BASE + HOUR // 2, (), "r1"))
    assert len(site.archive.remove(BASE + HOUR // 4)) == 1
    assert site.collect() > 0
