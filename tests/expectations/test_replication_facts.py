"""What the relay log and the archive say of the replication itself, and of sums that must not
change.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.etl.history.as_of import run_locally, tables_as_of
from sluice.etl.settings import Settings, parse_settings
from sluice.expectations.replication import HOUR_MS, ReplicationDataset
from sluice.expectations.suite import QualityError
from sluice.expectations.sum_drift import sum_changes
from sluice.relay import RelayLog
from sluice.relay.archive import Archive, ArchiveFile, ArchiveSegment, LakeFile
from sluice.tidb import tso
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.relay.archivekit import archive_all
from tests.relay.relaykit import land as land_window

NOW_MS = 1_795_251_600_000
BUSY, NIGHTLY = 11, 12


def settings_in(folder: Path) -> Settings:
    url = (folder / "relay").as_uri()
    return parse_settings(
        {"upstream": {"pd-urls": "pd"}, "relay": {"url": url}, "downstream": {"host": "db"}}
    )


def ts_at(ms: int) -> int:
    return tso.compose(ms)


def archived(settings: Settings, hours: int, tables: dict[int, dict[int, int]]) -> None:
    """Volumes of an hour each, through NOW_MS.

    Changes of each table by how many hours before it.
    """
    archive = Archive.open(settings.archive_url)
    names = {BUSY: "busy", NIGHTLY: "nightly"}
    for before in range(hours, 0, -1):
        counts = {
            table: found.get(before, 0) for table, found in tables.items() if found.get(before)
        }
        lake = tuple(
            LakeFile(f"lake/{table}", 1, count, 0, "shop", names[table], table, 1, "2026-11-21")
            for table, count in counts.items()
        )
        low, high = (ts_at(NOW_MS - hour * HOUR_MS) for hour in (before, before - 1))
        index = ArchiveFile(f"index/{before}", 1, 1, 0)
        archive.append(
            ArchiveSegment(
                low,
                high,
                1,
                f"t{before}",
                0,
                1,
                1,
                sum(counts.values()),
                3,
                0,
                None,
                index,
                lake,
                counts,
            )
        )


def test_a_gap_between_windows_is_found_and_none_where_there_is_none(tmp_path):
    settings = settings_in(tmp_path)
    relay = RelayLog.open(settings.relay.url)
    begin = ts_at(NOW_MS - HOUR_MS // 2)
    for n in range(4):
        land_window(relay, begin + 10 * n, begin + 10 * n + 10, begin + 10 * n + 5)
    place = ReplicationDataset(settings, NOW_MS)
    assert place.broken(1) == ("", 4)
    assert place.broken(0.25) == ("", 0)
    land_window(relay, begin + 50, begin + 60, begin + 55)
    said, count = place.broken(1)
    assert str(begin + 40) in said and str(begin + 50) in said and count == 4


def test_a_relay_log_that_begins_behind_the_archives_end_is_a_gap(tmp_path):
    settings = settings_in(tmp_path)
    archived(settings, 3, {BUSY: {1: 5, 2: 5, 3: 5}})
    relay = RelayLog.open(settings.relay.url)
    land_window(relay, ts_at(NOW_MS), ts_at(NOW_MS) + 10)
    assert ReplicationDataset(settings, NOW_MS).broken(1)[0] == ""
    other = settings_in(tmp_path / "other")
    archived(other, 1, {BUSY: {1: 5}})
    land_window(RelayLog.open(other.relay.url), ts_at(NOW_MS) + 1, ts_at(NOW_MS) + 10)
    assert "the relay log begins at" in ReplicationDataset(other, NOW_MS).broken(1)[0]


def test_changes_are_counted_by_table_and_hour_and_what_is_usual_is_that_of_the_same_hour(tmp_path):
    settings = settings_in(tmp_path)
    nightly = {1 + 24 * day: 1000 for day in range(1, 8)}
    archived(
        settings, 24 * 8, {BUSY: dict.fromkeys(range(1, 193), 100) | {1: 5000}, NIGHTLY: nightly}
    )
    place = ReplicationDataset(settings, NOW_MS)
    last = place.last_hour
    assert last == NOW_MS // HOUR_MS - 1
    assert place.changes["shop.busy"][last] == 5000 and place.usual("shop.busy", last, 7) == 100
    assert (
        place.changes["shop.nightly"].get(last, 0) == 0
        and place.usual("shop.nightly", last, 7) == 1000
    )
    assert place.usual("shop.busy", min(place.changes["shop.busy"]), 7) is None


def test_changes_of_a_compacted_volume_are_spread_over_its_hours(tmp_path):
    settings = settings_in(tmp_path)
    low, high = ts_at(NOW_MS - 4 * HOUR_MS), ts_at(NOW_MS)
    index = ArchiveFile("index/x", 1, 1, 0)
    whole = ArchiveSegment(low, high, 1, "t", 0, 1, 1, 400, 3, 0, None, index, (), {BUSY: 400})
    Archive.open(settings.archive_url).append(whole)
    place = ReplicationDataset(settings, NOW_MS)
    assert dict(place.changes["table 11"]) == pytest.approx(
        {NOW_MS // HOUR_MS - n: 100 for n in range(1, 5)}
    )


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A recording of a bank in an archive, computed in this process."""
    settings = settings_in(tmp_path_factory.mktemp("bank"))
    relay = land(RECORDINGS / "shop", settings.relay.url, 1000)
    archive_all(relay, Archive.open(settings.archive_url))
    return settings


def total(settings: Settings, ts: int, table: str, column: str) -> Decimal:
    found = Decimal(0)
    for _, batch in tables_as_of(settings, ts, [table], run=run_locally).rows():
        found += sum(
            (
                Decimal(str(value))
                for value in batch.column(column).to_pylist()
                if value is not None
            ),
            Decimal(0),
        )
    return found


def test_the_change_of_a_sum_between_two_moments_is_that_of_the_whole_sums(bank):
    windows = list(RelayLog.open(bank.relay.url).windows(0))
    early, late = windows[len(windows) // 2].hi, windows[-1].hi
    for table, columns in (
        ("bank.account", ["balance", "ver"]),
        ("bank.ledger", ["amt"]),
        ("bank.cart", ["qty"]),
    ):
        found = sum_changes(bank, table, columns, (early, late), run=run_locally)
        assert [one.column for one in found] == columns
        for one in found:
            assert one.change == total(bank, late, table, one.column) - total(
                bank, early, table, one.column
            )
            assert one.rows > 0
    transfers = sum_changes(bank, "bank.ledger", ["amt"], (early, late), run=run_locally)[0]
    assert transfers.change > 0


class Differences:
    """Of one table, as `sluice.etl.history.as_of` tells them."""

    def __init__(self, old: list[str], new: list[str]) -> None:
        names = ["old.amount", "new.amount"]
        self._batch = pa.record_batch(
            [pa.array(old, pa.large_string()), pa.array(new, pa.large_string())], names
        )

    def diff_schemas(self) -> dict[str, pa.Schema]:
        return {"bank.account": self._batch.schema}

    def differences(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        yield "bank.account", self._batch


def test_a_sum_of_large_decimals_is_not_rounded(bank, monkeypatch):
    past = Differences(["9" * 35 + "." + "0" * 30, "0.1"], ["9" * 35 + "." + "0" * 29 + "1", "0.1"])
    monkeypatch.setattr("sluice.expectations.sum_drift.differences_between", lambda *_, **__: past)
    windows = list(RelayLog.open(bank.relay.url).windows(0))
    found = sum_changes(bank, "bank.account", ["amount"], (windows[0].hi, windows[-1].hi))
    assert [one.change for one in found] == [Decimal("1E-30")]


def test_what_cannot_be_summed_is_named(bank):
    windows = list(RelayLog.open(bank.relay.url).windows(0))
    between = (windows[len(windows) // 2].hi, windows[-1].hi)
    with pytest.raises(QualityError, match=r"bank\.account hasn't had nothing"):
        sum_changes(bank, "bank.account", ["nothing"], between, run=run_locally)
    with pytest.raises(QualityError, match=r"email can't be summed"):
        sum_changes(bank, "bank.account", ["email"], between, run=run_locally)
