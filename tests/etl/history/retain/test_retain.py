"""What goes, and what stays where something can't be read."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from past_model import HOUR, Past, crc32c, definition

from sluice.etl.history.retain import NotArchivedError, RetainError, archive_status, retain
from sluice.etl.history.retain.policy import ArchiveInventory, decide_retention
from sluice.etl.history.retain.settings_policy import policy_of
from sluice.etl.history.retain.table_events import ReadStart
from sluice.etl.settings import Settings, parse_settings
from sluice.etl.settings.rules import parse_filter
from sluice.etl.tasks.retain import retain_or_say_why
from sluice.relay import RelayCorruptError, RelayLog
from sluice.relay.archive import (
    Archive,
    ArchiveSnapshot,
    PendingSnapshot,
    Pin,
    Pins,
    SnapshotFile,
    SnapshotStore,
    SnapshotTable,
    snapshot_id,
    write_log,
)
from sluice.relay.consumers import ARCHIVE_CONSUMER, Consumers
from sluice.relay.jobs import Jobs, Runner, WriteScope
from sluice.relay.measures import StateHistory
from sluice.relay.url import folder_of
from sluice.tidb import tso
from sluice.tidb.table_name import full_name


class Site:
    """Some 30 windows in segments of five, with snapshots near the beginning and in the middle."""

    def __init__(self, root: Path, url: str = "") -> None:
        """In a folder, or at the URL of a relay log."""
        self.root = root
        self.past = Past(random.Random(4))
        self.past.now += 14 * HOUR
        self.past.begin(2)
        self.relay = RelayLog.open(url or f"file://{root}/relay")
        self.archive = Archive.open(folder_of(self.relay.url, "archive"))
        self.snapshots, self.consumers = SnapshotStore(self.archive.storage), Consumers(self.relay)
        begun = self.past.now
        for n in range(30):
            self.past.land(self.relay, quiet=True)
            if n in (3, 15):
                self.snapshot(f"n{n}")
        windows = list(self.relay.windows(begun))
        for n in range(0, len(windows), 5):
            part = windows[n : n + 5]
            self.archive.append(
                write_log(self.relay.storage, self.archive.storage, part, f"v{n}").segment()
            )
        self.consumers.note(ARCHIVE_CONSUMER, self.past.now, "archive")

    def snapshot(self, token: str) -> None:
        name, path = (
            snapshot_id(self.past.now, token),
            f"snapshots/{snapshot_id(self.past.now, token)}/1/0.parquet",
        )
        self.snapshots.begin(name, PendingSnapshot("", ()))
        with self.archive.storage.new_file(path) as sink:
            sink.write(b"rows")
        table = SnapshotTable(
            "s", "t", definition(1, "t"), (SnapshotFile(path, 1, 4, crc32c(b"rows"), 4),)
        )
        self.snapshots.publish(
            ArchiveSnapshot(name, self.past.now, 1, 1, 0, "a test", (), (table,))
        )

    def settings(self, relay_keep: str = "", keep: str = "") -> Settings:
        document = {
            "upstream": {"pd-urls": "http://127.0.0.1:1"},
            "relay": {"url": self.relay.url, "keep": relay_keep},
            "downstream": {"host": "db"},
            "archive": {"keep": keep},
        }
        return parse_settings(document)

    def keep(self) -> str:
        """So that the second snapshot is older than the promised range."""
        second = self.snapshots.all()[1]
        return f"{(self.past.now - second.ts) // HOUR - 1}h"

    def applied(self) -> None:
        self.consumers.note("apply-1", self.past.now, "db")

    def windows(self) -> int:
        first = self.relay.first()
        assert first is not None
        return len(list(self.relay.windows(first.lo)))


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_windows_stay_until_a_pipeline_has_applied_them(site):
    assert retain(site.settings("1h")).relay_held_by == "that no pipeline has applied anything yet"
    assert site.windows() == 30
    site.applied()
    assert retain(site.settings("1h")).windows == 30 - site.windows() > 20


@pytest.mark.slow
def test_in_an_object_store_the_same_goes_as_in_a_folder_and_the_status_says_the_same(
    site, tmp_path, s3_server
):
    stored = Site(tmp_path / "stored", s3_server.url("relay"))
    for each in (site, stored):
        each.applied()
    wanted = [each.settings("1h", each.keep()) for each in (site, stored)]
    before = [archive_status(settings) for settings in wanted]
    done = [retain(settings) for settings in wanted]
    after = [archive_status(settings) for settings in wanted]
    assert (done[0].windows, done[0].segments, len(done[0].snapshots)) == (
        done[1].windows,
        done[1].segments,
        len(done[1].snapshots),
    )
    assert done[0].windows > 20 and done[0].segments > 0 and len(done[0].snapshots) == 1
    for folder, store in (before, after):
        assert (store.whole_from_ts, store.lo, store.hi, store.holes) == (
            folder.whole_from_ts, folder.lo, folder.hi, folder.holes,
        )  # fmt: skip
    assert stored.windows() == site.windows()


def test_without_settings_nothing_goes(site):
    site.applied()
    done = retain(site.settings())
    assert (done.windows, done.segments, done.snapshots, done.files) == (0, 0, (), 0)


def test_windows_that_are_not_archived_stay(site):
    site.applied()
    for _ in range(9):
        site.past.land(site.relay)
    site.consumers.note("apply-1", site.past.now + 50 * HOUR, "db")
    site.consumers.note(ARCHIVE_CONSUMER, site.past.now + 50 * HOUR, "a note that is wrong")
    done = retain(site.settings("1h"))
    last = site.archive.last()
    assert site.relay.first().lo == last.hi
    assert "the archive, which has nothing of" in done.relay_held_by


def _only(folder: Path, suffix: str) -> Path:
    return sorted(folder.rglob(f"*{suffix}"))[0]


def test_windows_stay_if_the_archive_has_other_changes_than_the_relay_log(tmp_path):
    site = Site(tmp_path)
    site.applied()
    first = next(iter(site.relay.windows(site.relay.first().lo)))
    ddl = {"commit_ts": first.hi, "type": 3, "effect": {"tables": {}}}
    site.relay.storage.replace(first.path, replace(first, ddls=(ddl,)).to_json())
    with pytest.raises(NotArchivedError, match="has other DDL"):
        retain(site.settings("1h"))
    assert site.windows() == 30


def test_windows_stay_if_the_archive_can_not_be_read(site):
    site.applied()
    index = _only(site.root / "relay/archive/log", ".windows")
    data = bytearray(index.read_bytes())
    data[len(data) // 2] ^= 1
    index.write_bytes(data)
    with pytest.raises(RelayCorruptError, match=r"\.windows"):
        retain(site.settings("1h"))
    assert site.windows() == 30


def test_older_snapshots_and_segments_go_when_a_younger_snapshot_is_readable(site):
    settings = site.settings(keep=site.keep())
    done = retain(settings)
    old, young = (done.snapshots[0], site.snapshots.all()[0])
    assert old.endswith("n3") and young.id.endswith("n15")
    assert site.archive.first().lo <= young.ts
    assert done.segments >= 2
    assert "in the snapshot" in done.archive_held_by
    assert retain(settings).segments == 0


@pytest.mark.parametrize("damage", ["missing", "flipped", "cut"])
def test_nothing_older_goes_while_the_younger_snapshot_can_not_be_read(site, damage):
    path = site.root / "relay/archive" / site.snapshots.all()[1].tables[0].files[0].path
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"rowz" if damage == "flipped" else b"row")
    with pytest.raises(RetainError, match="n15"):
        retain(site.settings(keep=site.keep()))
    assert len(site.snapshots.all()) == 2
    assert site.archive.first().lo < site.snapshots.all()[0].ts


def test_nothing_goes_while_the_archive_has_a_hole_in_the_promised_range(site):
    files = sorted((site.root / "relay/archive/log").rglob("*.windows"))
    files[-1].unlink()
    before = len(list(site.archive.segments()))
    with pytest.raises(RetainError, match=f"{files[-1].name} is missing"):
        retain(site.settings(keep=site.keep()))
    assert (len(site.snapshots.all()), len(list(site.archive.segments()))) == (2, before)


def test_what_stops_retention_stops_nothing_else_and_is_said_until_it_is_over(site):
    files = sorted((site.root / "relay/archive/log").rglob("*.windows"))
    kept = files[-1].read_bytes()
    files[-1].unlink()
    settings = site.settings(keep=site.keep())
    said = retain_or_say_why(settings, lambda _: None)
    assert files[-1].name in said["failed"]
    (failure,) = archive_status(settings).failures
    assert (failure.what, failure.message) == ("retain", said["failed"])
    files[-1].write_bytes(kept)
    assert StateHistory(site.relay).samples() == ()
    done = retain_or_say_why(settings, lambda _: site.relay.failures.clear("retain"))
    assert done["segments"] > 0
    assert archive_status(settings).failures == ()
    (sample,) = StateHistory(site.relay).samples()  # for the charts of the pages
    assert sample.restorable_ms == 9 * HOUR >> 18
    assert sample.verified_age_ms is None


def test_what_a_job_reads_stays_until_the_job_is_over(site):
    snapshot = site.snapshots.all()[0]
    jobs = Jobs(site.relay.storage)
    job = jobs.create("restore", {}, WriteScope("db", ("x.t",)), "a test")
    Pins(site.archive.storage).note(job.id, Pin("a restore", snapshot.ts, (snapshot.id,), job.id))
    assert retain(site.settings(keep=site.keep())).snapshots == ()
    assert site.archive.first().lo <= snapshot.ts
    with job.run(Runner("a test")) as run:
        run.end("done")
    assert retain(site.settings(keep=site.keep())).snapshots == (snapshot.id,)


def test_a_snapshot_stays_that_alone_holds_a_table_of_a_database_with_a_dot_in_its_name(site):
    rules, _ = parse_filter({"replicate-do-db": ["shop", "my\\.db"]})
    settings = replace(site.settings(keep="30d"), filters=rules)
    days = [tso.compose(1_790_000_000_000 + day * 86_400_000) for day in range(61)]
    orders, own = full_name("shop", "orders"), full_name("my.db", "orders")
    snapshots = (
        ReadStart(days[1], {1: orders, 2: own}, "b1"),
        ReadStart(days[20], {1: orders}, "b20"),
    )
    found = decide_retention(
        ArchiveInventory(days[0], days[60], snapshots, ()), policy_of(settings), days[60]
    )
    assert (found.forget, found.before_ts) == ((), days[1])
    assert "`my.db`.orders, in the snapshot b1" in found.held_by


def test_a_table_that_only_another_pipeline_on_the_archive_wants_holds_its_snapshot(
    site, tmp_path, monkeypatch
):
    (folder := tmp_path / "pipelines").mkdir()
    own, other = (
        parse_filter({"replicate-do-db": ["shop"]})[0],
        '[filter]\nreplicate-do-db = ["crm"]\n',
    )
    head = (
        '[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl ='
        f' "{site.relay.url}"\n[archive]\nkeep = "30d"\n'
    )
    (folder / "other.toml").write_text(f'{head}[downstream]\nhost = "other"\n{other}')
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    monkeypatch.delenv("SLUICE_CONFIG", raising=False)
    keep = policy_of(replace(site.settings(keep="30d"), filters=own))
    assert [name for name in ("shop.t", "crm.t", "else.t") if keep.wanted(name)] == [
        "shop.t",
        "crm.t",
    ]
    (folder / "other.toml").write_text("[relay]\nno such key")
    assert policy_of(replace(site.settings(keep="30d"), filters=own)).wanted("else.t")
