"""Summaries: whoever looks with them sees what he would see without."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from test_retain import Site

from sluice.etl.history.retain import ArchiveStatus, archive_status, retain, summaries
from sluice.etl.history.retain.contents import read_contents
from sluice.etl.history.retain.facts import events_between, inventory_of
from sluice.etl.history.retain.summaries import (
    CachedSummaries,
    DirectSummaries,
    HourSizes,
    refresh_summaries,
)
from sluice.relay.archive import write_log
from sluice.relay.checksummed import decode_checksummed, encode_checksummed
from sluice.relay.storage import LocalStorage


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def _without(site: Site) -> ArchiveStatus:
    """What is seen by who reads everything."""
    for root in ("relay", "relay/archive"):
        shutil.rmtree(site.root / root / "summaries", ignore_errors=True)
    return _steady(archive_status(site.settings()))


def _steady(status: ArchiveStatus) -> ArchiveStatus:
    """Without what other programs do to the disk."""
    return replace(status, disks=())


def _summaries(site: Site):
    return sorted((site.root / "relay/archive/summaries").rglob("*.json"))


def test_who_looks_with_summaries_sees_what_he_sees_without_them(site):
    expected = _without(site)
    retain(site.settings())
    assert len(_summaries(site)) == len(site.archive.catalogue.days()) + len(site.snapshots.ids())
    assert _steady(archive_status(site.settings())) == expected


def test_what_ddl_did_is_told_by_summaries_that_grew_as_by_the_windows(site, monkeypatch):
    """Windows with DDL are archived a few at a time, and so each day's summary is made again from
    the one before, and reads no segment twice.
    """
    segments_read = []

    def counted(archive, segments, version):
        segments_read.extend(segments)
        return events_between(archive, segments, version)

    monkeypatch.setattr(summaries, "events_between", counted)
    refresh_summaries(site.relay, site.archive)
    for n in range(24):
        site.past.land(site.relay)
        if n % 3 == 2:
            new = list(site.relay.windows(site.archive.last().hi))
            site.archive.append(
                write_log(site.relay.storage, site.archive.storage, new, f"ddl{n}").segment()
            )
            refresh_summaries(site.relay, site.archive)
    assert len(segments_read) == len(set(segments_read))
    summed, listed = CachedSummaries(site.archive), DirectSummaries(site.archive)
    assert all(summed.day(name).turns is not None for name in site.archive.catalogue.days())
    told, read = (
        inventory_of(site.archive, read_contents(site.archive, known.day), ())
        for known in (summed, listed)
    )
    assert told == read and len(read.turns) > 5


def test_a_summary_of_what_has_changed_since_is_not_believed(site):
    retain(site.settings())
    site.past.land(site.relay)
    site.past.now += 1
    new = list(site.relay.windows(site.archive.last().hi))
    site.archive.append(write_log(site.relay.storage, site.archive.storage, new, "late").segment())
    site.snapshot("late")
    stale = _steady(archive_status(site.settings()))
    assert stale.hi == new[-1].hi and len(stale.snapshots) == 3
    retain(site.settings())
    renewed = _steady(archive_status(site.settings()))
    assert stale == renewed == _without(site)


def test_a_damaged_summary_is_not_believed(site):
    expected = _without(site)
    retain(site.settings())
    for file in _summaries(site):
        file.write_bytes(file.read_bytes().replace(b"1", b"2"))
    (site.root / "relay/summaries/hours.json").write_bytes(b"{}")
    assert _steady(archive_status(site.settings())) == expected


def test_damage_to_what_is_summed_up_is_seen_whatever_the_summary_says(site):
    retain(site.settings())
    snapshot, day = site.snapshots.all()[0], site.archive.catalogue.days()[0]
    for path in (
        site.root / "relay/archive" / snapshot.path,
        max((site.root / f"relay/archive/days/{day}").iterdir()),
    ):
        content = path.read_bytes()
        path.write_bytes(content.replace(b'"tables"', b'"tablez"', 1))
    found = archive_status(site.settings())
    assert len(found.snapshots) == 1 and snapshot.path in found.faults[0]
    assert any(day in hole.why for hole in found.holes)


def test_summaries_of_what_is_gone_go(site):
    retain(site.settings())
    site.snapshots.forget(site.snapshots.all()[0].id)
    retain(site.settings())
    left = {file.stem for file in _summaries(site) if file.parent.name == "snapshots"}
    assert left == {snapshot.id for snapshot in site.snapshots.all()} and len(left) == 1


@pytest.fixture
def looked_at(monkeypatch):
    """The files of relay logs whose sizes were asked for, each one a call of the disk."""
    found: list[str] = []
    sizes = LocalStorage.sizes

    def noted(storage, path, after=""):
        files = sizes(storage, path, after)
        if path.startswith(("windows/", "parts/")):
            found.extend(f"{path}/{name}" for name in files)
        return files

    monkeypatch.setattr(LocalStorage, "sizes", noted)
    return found


def test_bytes_of_hours_are_written_down_and_only_newer_files_looked_at(site, looked_at):
    before = HourSizes(site.relay.storage).all()
    assert len(looked_at) >= 30 and len(before) > 3
    retain(site.settings())
    looked_at.clear()
    assert HourSizes(site.relay.storage).all() == before
    assert looked_at == []
    site.past.land(site.relay)
    grown = HourSizes(site.relay.storage).all()
    last = site.relay.last()
    assert looked_at == [last.path, *(part.path for part in last.parts)]
    shutil.rmtree(site.root / "relay/summaries")
    assert HourSizes(site.relay.storage).all() == grown != before


def test_an_hour_of_which_files_went_is_looked_at_again(site, looked_at):
    hour, *_ = site.relay.storage.names("windows")
    retain(site.settings())
    looked_at.clear()
    folder = site.root / "relay/windows" / hour
    gone = min(folder.iterdir())
    size = gone.stat().st_size
    before = HourSizes(site.relay.storage).all()
    gone.unlink()
    after = HourSizes(site.relay.storage).all()
    assert before[hour][0] - after.get(hour, (0, 0))[0] == size
    assert {path.rpartition("/")[0] for path in looked_at} <= {f"windows/{hour}"}


def test_a_summary_of_an_older_version_has_no_first_and_last_hour(site):
    retain(site.settings())
    file = site.root / "relay/summaries/hours.json"
    document = decode_checksummed(file.read_bytes(), summaries._FORMAT)
    kept = {"format": summaries._FORMAT, "hours": document["hours"]}
    file.write_bytes(encode_checksummed(kept))
    expected = _without(site)
    file.parent.mkdir()
    file.write_bytes(encode_checksummed(kept))
    assert _steady(archive_status(site.settings())) == expected
