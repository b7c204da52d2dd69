"""Files of the lake become fewer, and who reads meanwhile sees each row once if it goes by the files' names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from etl.lake import live_files, merge, merge_lake, remove_merged
from relay import RelayCorruptError
from relay.archive import LakeFile
from tests.etl.lake.told_lake import ToldLake
from tests.etl.story import column, table

ACCOUNT = table(41, "account", column(1, "id int not null"), column(2, "balance decimal(12,2)"), primary="id")
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def _three_volumes(lake: ToldLake) -> list[LakeFile]:
    files: list[LakeFile] = []
    for number in range(3):
        rows = [{"id": number * 10 + i, "balance": f"{i}.50"} for i in range(10)]
        files += lake.changes(NOON + timedelta(hours=number), ACCOUNT, [(None, row) for row in rows])
    return files


def _ids(folder: Path, paths: Sequence[str]) -> list[int]:
    return sorted(i for path in paths for i in pq.ParquetFile(folder / path).read()["id"].to_pylist())


def _visible(lake: ToldLake) -> list[str]:
    return [str(path.relative_to(lake.folder)) for path in lake.folder.glob("lake/*/*/*/*.parquet")]


def test_a_merged_file_holds_the_rows_of_all_in_order_and_takes_their_range(tmp_path: Path) -> None:
    lake = ToldLake(tmp_path)
    before = _three_volumes(lake)
    (merged,) = merge_lake(lake.storage, before, "m")
    assert (merged.rows, merged.table, merged.table_id, merged.day) == (30, "account", 41, "2026-11-22")
    assert (lake.folder / merged.path).stat().st_size == merged.bytes
    commits = pq.ParquetFile(lake.folder / merged.path).read()["_commit_ts"].to_pylist()
    assert commits == sorted(commits)
    assert remove_merged(lake.storage, before, [merged]) == 3
    assert _visible(lake) == [merged.path]


def test_at_every_moment_of_a_merge_the_names_tell_files_with_each_row_once(tmp_path: Path) -> None:
    lake = ToldLake(tmp_path)
    before = _three_volumes(lake)
    merged = merge_lake(lake.storage, before, "m")
    every = list(range(30))
    for gone in range(4):
        assert _ids(lake.folder, live_files(_visible(lake))) == every
        assert set(_ids(lake.folder, _visible(lake))) == set(every)
        if gone < 3:
            lake.storage.remove(before[gone].path)
    assert live_files(_visible(lake)) == [file.path for file in merged]


def test_of_two_attempts_at_a_volume_one_counts() -> None:
    files = [f"lake/d.t/schema_version=7/day=2026-11-22/{5:020d}-{9:020d}-{token}.parquet" for token in ("a", "b")]
    assert live_files(files) == files[:1]


def test_days_and_versions_are_kept_apart_and_large_files_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = ToldLake(tmp_path)
    before = _three_volumes(lake)
    before += lake.changes(NOON + timedelta(days=1), ACCOUNT, [(None, {"id": 99, "balance": "1.00"})])
    monkeypatch.setattr(merge, "LARGE_BYTES", before[0].bytes)
    after = merge_lake(lake.storage, before, "m")
    assert {file.path for file in after} == {file.path for file in before}


def test_a_damaged_file_is_named_and_nothing_is_left_of_the_merge(tmp_path: Path) -> None:
    lake = ToldLake(tmp_path)
    before = _three_volumes(lake)
    path = lake.folder / before[1].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(RelayCorruptError, match=before[1].path):
        merge_lake(lake.storage, before, "m")
    assert sorted(_visible(lake)) == sorted(file.path for file in before)
    assert list(lake.folder.rglob(".*")) == []
