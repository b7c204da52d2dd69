"""What there is to restore, told to somebody who doesn't know the archive."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from past_model import HOUR
from test_retain import Site

from sluice.cli.archive import command
from sluice.etl.history.retain import archive_status
from sluice.etl.history.retain.catalogue_summary import SegmentSummary
from sluice.etl.history.retain.policy import ArchiveInventory
from sluice.etl.history.retain.ranges import TableRange, table_ranges
from sluice.etl.history.retain.space import Growth, archive_usage, days_until_full
from sluice.etl.history.retain.table_events import ReadStart, TableEvent
from sluice.relay.archive import Pin, Pins


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def _told(site, *options):
    config = site.root / "sluice.toml"
    config.write_text(
        '[upstream]\npd-urls = "http://127.0.0.1:1"\n[relay]\nurl ='
        f' "{site.relay.url}"\n[downstream]\nhost = "db"\n'
    )
    return CliRunner().invoke(
        command, ["status", "--config", str(config), *options], standalone_mode=False
    )


def test_a_stranger_sees_the_range_the_room_and_what_was_never_tried(site):
    done = _told(site)
    assert done.return_value == 0, done.output
    first = site.snapshots.all()[0]
    assert "restorable  every moment from 2026-01-01" in done.output
    assert f"snapshot        {first.id}: 1 table, 1 row, " in done.output
    assert "drill       restoring was never tried" in done.output
    assert "disk        " in done.output


def test_for_scripts_it_is_one_object(site):
    found = json.loads(_told(site, "--json").stdout)
    snapshot = site.snapshots.all()[0]
    assert found["whole_from_ts"] == snapshot.ts
    assert found["tables"] == [
        {"name": "s.t", "from_ts": snapshot.ts, "until_ts": None, "snapshot": snapshot.id}
    ]
    assert (found["landed_ts"], found["holes"]) == (site.past.now, [])
    assert found["spaces"]["snapshots"]["bytes"] == 8


def test_a_hole_is_named_with_its_reason_and_only_what_lies_behind_it_counts(site):
    files = sorted((site.root / "relay/archive/log").rglob("*.windows"))
    files[1].unlink()
    found = archive_status(site.settings())
    assert [hole.why for hole in found.holes if files[1].name in hole.why]
    assert found.lo >= found.holes[0].hi
    done = _told(site)
    assert done.return_value == 1
    assert "HOLE" in done.output and "is missing" in done.output


def test_a_day_of_the_catalogue_that_is_gone_or_damaged_is_a_hole(site):
    day = site.archive.catalogue.days()[0]
    newest = sorted((site.root / f"relay/archive/days/{day}").iterdir())[-1]
    kept = newest.read_bytes()
    newest.write_bytes(kept[:-20])
    assert any(newest.name in hole.why for hole in archive_status(site.settings()).holes)
    for file in (site.root / f"relay/archive/days/{day}").iterdir():
        file.unlink()
    holes = archive_status(site.settings()).holes
    assert ["what is before" in hole.why for hole in holes] == [True]


def test_what_was_removed_by_hand_is_counted_and_what_holds_the_rest_named(site):
    _told(site)
    done = CliRunner().invoke(
        command, ["retain", "--json", "--config", str(site.root / "sluice.toml")]
    )
    found = json.loads(done.stdout)
    assert (found["windows"], found["segments"], found["relay_held_by"]) == (
        0,
        0,
        "[relay] keep, which isn't set",
    )


def test_a_snapshot_that_can_not_be_read_is_named(site):
    path = site.root / "relay/archive" / site.snapshots.all()[0].path
    path.write_bytes(b"{}")
    found = archive_status(site.settings())
    assert len(found.snapshots) == 1 and str(path) in found.faults[0]


def test_who_reads_the_archive_is_named(site):
    snapshot = site.snapshots.all()[0]
    Pins(site.archive.storage).note(
        "r", Pin("as-of of shop.orders", snapshot.ts, (snapshot.id,), "", site.past.now)
    )
    assert "read by     as-of of shop.orders" in _told(site).output


def test_an_archive_that_is_empty_says_what_to_do(tmp_path):
    site = Site.__new__(Site)
    site.root = tmp_path
    from sluice.relay import RelayLog

    site.relay = RelayLog.open(f"file://{tmp_path}/relay")
    done = _told(site)
    assert "the archive is empty" in done.output and done.return_value == 0


def test_a_table_keeps_its_range_through_truncate_and_ends_with_drop():
    turns = (
        TableEvent(5, 8, "s.b", begins=True),
        TableEvent(6, 9, "s.a", begins=True), TableEvent(6, 7, None),
        TableEvent(7, 8, None), TableEvent(9, 10, "s.b", begins=True),
    )  # fmt: skip
    assert table_ranges(ArchiveInventory(1, 20, (ReadStart(3, {7: "s.a"}, "b3"),), turns)) == [
        TableRange("s.a", 3, None, "b3"),
        TableRange("s.b", 5, 7, ""),
        TableRange("s.b", 9, None, ""),
    ]


@pytest.mark.parametrize(
    ("free", "growths", "days"),
    [
        (100, [Growth(10, None)], 10),
        (100, [Growth(10, 5), Growth(10, None)], 5.0),
        (110, [Growth(10, 5), Growth(10, None)], 6),
        (100, [Growth(10, 5)], None),
        (100, [Growth(0, None)], None),
        (100, [Growth(10, 0.0), Growth(50, None)], 2),
    ],
)
def test_when_a_disk_is_full_counts_what_goes_again(free, growths, days):
    assert days_until_full(free, growths) == days


def test_nothing_spans_no_time(site):
    assert archive_status(site.settings("1h", "2h")).spaces["relay"].growth.days == 0.0
    assert site.past.now - HOUR > 0


def test_what_an_archive_that_begins_at_nought_grows_by_is_not_spread_over_all_the_time_before_it():
    day = 24 * HOUR
    first = SegmentSummary(0, 20_000 * day, 1, 1000, 500, ())
    second = SegmentSummary(first.hi, first.hi + day // 2, 1, 300, 100, ())
    alone = archive_usage([first], 0, lake=False)
    assert alone.growth == Growth(1000.0, None)
    assert archive_usage([first, second], 7 * 86_400_000, lake=True).growth == Growth(600.0, 6.5)
