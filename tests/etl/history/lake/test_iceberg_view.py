"""Iceberg tables that follow the archive: whole snapshots, and each file while one names it."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.utils.config import Config

from sluice.etl.history.archive import compact
from sluice.etl.history.archive.archiver import Archiver
from sluice.etl.history.lake.iceberg import IcebergError
from sluice.etl.history.lake.iceberg_view import IcebergView
from sluice.etl.history.retain import retain
from sluice.etl.settings import Settings, SettingsError
from sluice.relay import RelayLog
from sluice.relay.archive import Archive
from tests.etl.history.archive.archiving import Growing, LocalJobs, settings_of
from tests.etl.relay_from_recording import RECORDINGS, land

NAME = ("bank", "cart")
COLUMNS = ("_commit_ts", "_pos", "_op")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> RelayLog:
    """A recording in some twenty windows."""
    return land(RECORDINGS / "shop", tmp_path_factory.mktemp("shop").as_uri(), 1_000)


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """The catalog `here`, as pyiceberg's environment names it."""
    (tmp_path / "warehouse").mkdir()
    told = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    told["warehouse"] = (tmp_path / "warehouse").as_uri()
    configure(monkeypatch, told)
    return load_catalog("here")


def configure(monkeypatch: pytest.MonkeyPatch, told: dict[str, str]) -> None:
    """Name the catalog in the environment; pyiceberg reads that when it is imported."""
    for key, value in told.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__HERE__{key.upper()}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


def archived(growing: Growing, settings: Settings, windows: int) -> int:
    """Land and archive so many windows, each in a segment; the archive's end (TSO)."""
    growing.land(windows)
    archiver = Archiver(settings, jobs=LocalJobs(settings), segment_bytes=1)  # type: ignore[arg-type]
    archiver.through()
    archiver.close()
    last = Archive.open(settings.archive_url).last()
    assert last is not None
    return last.hi


def compacted(settings: Settings) -> None:
    compact(settings, jobs=LocalJobs(settings, settings.archive_url))  # type: ignore[arg-type]


def changes(rows: pa.Table, through: int = 1 << 62) -> Counter[tuple[Any, ...]]:
    values = zip(*(rows[name].to_pylist() for name in COLUMNS), strict=True)
    return Counter(row for row in values if row[0] <= through)


@pytest.mark.slow
def test_every_snapshot_has_each_change_once_whether_it_appends_or_follows_a_compaction(
    shop: RelayLog, tmp_path: Path, catalog: Catalog
) -> None:
    settings = settings_of(f"{tmp_path.as_uri()}/relay", iceberg="here")
    growing, view = Growing(shop, settings.relay.url), IcebergView.from_settings(settings)
    assert view is not None
    ends = []
    for _ in range(3):
        ends.append(archived(growing, settings, 3))
        view.update()
    compacted(settings)
    ends += [ends[-1], archived(growing, settings, 1)]
    view.update()
    assert view.update() == []
    table = catalog.load_table(NAME)
    now = changes(table.scan().to_arrow())
    assert set(now.values()) == {1}
    snapshots = sorted(table.snapshots(), key=lambda each: each.sequence_number)
    operations = [each.summary.operation.value for each in snapshots if each.summary]
    assert operations == ["append", "append", "append", "overwrite", "append"]
    for snapshot, end in zip(snapshots, ends, strict=True):
        then = changes(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow())
        assert then == Counter({row: 1 for row in now if row[0] <= end})
    duck = table.scan().to_duckdb("cart")
    counts = "count(*), count(DISTINCT (_commit_ts, _pos, _op))"
    assert duck.sql(f"SELECT {counts} FROM cart").fetchall() == [(len(now), len(now))]


def files_in(settings: Settings) -> set[str]:
    root = Path(settings.archive_url.removeprefix("file://"))
    return {str(path.relative_to(root)) for path in root.glob("lake/bank.cart/**/*.parquet")}


@pytest.mark.slow
def test_a_file_stays_as_long_as_a_snapshot_names_it_and_goes_then(
    shop: RelayLog, tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.relay.archive.collecting.GRACE_MS", 0)
    settings = settings_of(f"{tmp_path.as_uri()}/relay", iceberg="here", keep="1h")
    growing, view = Growing(shop, settings.relay.url), IcebergView.from_settings(settings)
    assert view is not None
    archived(growing, settings, 9)
    view.update()
    before = files_in(settings)
    compacted(settings)
    retain(settings)
    table = catalog.load_table(NAME)
    oldest = min(table.snapshots(), key=lambda each: each.sequence_number)
    assert files_in(settings) > before  # and what they became
    assert changes(table.scan(snapshot_id=oldest.snapshot_id).to_arrow())

    with table.transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "1"})
    time.sleep(0.002)
    archived(growing, settings, 1)
    view.update()
    compacted(settings)
    assert before.isdisjoint(files_in(settings))
    assert set(changes(catalog.load_table(NAME).scan().to_arrow()).values()) == {1}


@pytest.mark.slow
def test_while_the_catalog_is_away_the_archive_goes_on_and_removes_no_file(
    shop: RelayLog, tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.relay.archive.collecting.GRACE_MS", 0)
    settings = settings_of(f"{tmp_path.as_uri()}/relay", iceberg="here")
    growing = Growing(shop, settings.relay.url)
    archived(growing, settings, 9)
    configure(monkeypatch, {"uri": f"sqlite:///{tmp_path}/none/catalog.db"})
    before = files_in(settings)
    compacted(settings)
    assert files_in(settings) > before
    with pytest.raises(IcebergError, match="the Iceberg catalog"):
        retain(settings)
    assert files_in(settings) > before


def test_a_view_of_a_lake_that_isnt_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="iceberg = 'here' shows the lake"):
        settings_of(tmp_path.as_uri(), iceberg="here", lake="none")
