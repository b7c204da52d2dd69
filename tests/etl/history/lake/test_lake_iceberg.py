"""A table of the lake in an Iceberg catalog: the same files, read back by name, brought up to date
in one commit.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sluice.etl.history.lake import remove_superseded, write_lake
from sluice.etl.history.lake.iceberg import IcebergError, export_iceberg, open_catalog
from sluice.relay.storage import open_storage
from tests.etl.history.lake.told_lake import ToldLake
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.story import column, table

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
NARROW = table(
    41, "account", column(1, "id int not null"), column(2, "balance decimal(12,2)"), primary="id"
)
WIDER = table(
    41,
    "account",
    column(1, "id int not null"),
    column(2, "balance decimal(12,2)"),
    column(3, "day date"),
    primary="id",
)
OTHER = table(
    41, "account", column(1, "id int not null"), column(2, "balance varchar(20)"), primary="id"
)


@pytest.fixture
def catalog(tmp_path: Path):
    (tmp_path / "warehouse").mkdir()
    return open_catalog(
        "here",
        {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": f"file://{tmp_path}/warehouse",
        },
    )


def test_an_exported_table_has_the_lakes_rows_and_its_files(tmp_path: Path, catalog) -> None:
    lake = ToldLake(tmp_path)
    files = list(
        lake.changes(NOON, NARROW, [(None, {"id": i, "balance": "1.25"}) for i in range(5)])
    )
    later = {"id": 9, "balance": "2.00", "day": "2026-11-23"}
    files += lake.changes(
        NOON + timedelta(days=1), WIDER, [(None, later), (later, None)], version=8
    )
    (exported,) = export_iceberg(lake.storage, files, catalog, "shop.account")
    assert (exported.versions, exported.files, exported.added, exported.removed) == (
        (8, 7),
        2,
        2,
        0,
    )
    rows = catalog.load_table("shop.account").scan().to_arrow()
    assert sorted(
        zip(rows["id"].to_pylist(), rows["_op"].to_pylist(), rows["_day"].to_pylist(), strict=True)
    ) == [
        *((i, "insert", None) for i in range(5)),
        (9, "delete", date(2026, 11, 23)),
        (9, "insert", date(2026, 11, 23)),
    ]
    assert not list((tmp_path / "warehouse").rglob("*.parquet"))
    of_a_day = catalog.load_table("shop.account").scan(
        "_commit_time >= '2026-11-23T00:00:00+00:00'"
    )
    assert [task.file.record_count for task in of_a_day.plan_files()] == [2]


def test_after_a_compaction_an_export_changes_files_and_no_rows(tmp_path: Path, catalog) -> None:
    lake = ToldLake(tmp_path)
    before = [
        file
        for hour in range(3)
        for file in lake.changes(
            NOON + timedelta(hours=hour), NARROW, [(None, {"id": hour, "balance": "1.25"})]
        )
    ]
    export_iceberg(lake.storage, before, catalog, "shop.account")
    after = lake.compacted()
    remove_superseded(lake.storage, before, after)
    (exported,) = export_iceberg(lake.storage, after, catalog, "shop.account")
    assert (exported.files, exported.added, exported.removed) == (1, 1, 3)
    assert sorted(catalog.load_table("shop.account").scan().to_arrow()["id"].to_pylist()) == [
        0,
        1,
        2,
    ]
    (again,) = export_iceberg(lake.storage, after, catalog, "shop.account")
    assert (again.added, again.removed) == (0, 0)


def test_versions_whose_types_contradict_are_tables_of_their_own(tmp_path: Path, catalog) -> None:
    lake = ToldLake(tmp_path)
    files = [
        *lake.changes(NOON, NARROW, [(None, {"id": 1, "balance": "1.25"})]),
        *lake.changes(
            NOON + timedelta(hours=1), OTHER, [(None, {"id": 2, "balance": "much"})], version=9
        ),
    ]
    exported = export_iceberg(lake.storage, files, catalog, "shop.account")
    assert [(found.table, found.versions) for found in exported] == [
        ("shop.account", (9,)),
        ("shop.account_v7", (7,)),
    ]
    assert catalog.load_table("shop.account").scan().to_arrow()["balance"].to_pylist() == ["much"]


def test_a_table_of_other_files_is_refused(tmp_path: Path, catalog) -> None:
    one, other = ToldLake(tmp_path / "one"), ToldLake(tmp_path / "other")
    row = (None, {"id": 1, "balance": "1.25"})
    export_iceberg(one.storage, one.changes(NOON, NARROW, [row]), catalog, "shop.account")
    with pytest.raises(IcebergError, match="aren't of this lake"):
        export_iceberg(other.storage, other.changes(NOON, NARROW, [row]), catalog, "shop.account")


def test_every_type_comes_back_from_iceberg_as_the_lake_has_it(tmp_path: Path, catalog) -> None:
    relay = land(RECORDINGS / "types", f"file://{tmp_path}/relay")
    first = relay.first()
    assert first is not None
    (tmp_path / "archive").mkdir()
    storage = open_storage(f"file://{tmp_path}/archive")
    files = write_lake(relay.storage, storage, list(relay.windows(first.lo)), "t")
    for name in ("times", "decs", "ints", "strs", "we`ird 名"):
        own = [file for file in files if file.table == name]
        export_iceberg(storage, own, catalog, f"types.{'odd' if '`' in name else name}")
        rows = catalog.load_table(f"types.{'odd' if '`' in name else name}").scan().to_arrow()
        expected = [
            row
            for file in own
            for row in pq.ParquetFile(storage.open(file.path)).read().to_pylist()
        ]
        assert sorted(map(repr, rows.to_pylist())) == sorted(map(repr, expected)), name
