"""While files are compacted, who reads the folders sees each row once if it goes by the files'
names.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sluice.etl.history.lake import live_files, remove_superseded
from tests.etl.history.lake.told_lake import ToldLake
from tests.etl.story import column, table

ACCOUNT = table(
    41, "account", column(1, "id int not null"), column(2, "balance decimal(12,2)"), primary="id"
)
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def _ids(folder: Path, paths: Sequence[str]) -> list[int]:
    return sorted(
        i for path in paths for i in pq.ParquetFile(folder / path).read()["id"].to_pylist()
    )


def _visible(lake: ToldLake) -> list[str]:
    return [str(path.relative_to(lake.folder)) for path in lake.folder.glob("lake/*/*/*/*.parquet")]


def test_at_every_moment_of_a_compaction_the_names_tell_files_with_each_row_once(
    tmp_path: Path,
) -> None:
    lake = ToldLake(tmp_path)
    before = []
    for number in range(3):
        rows = [{"id": number * 10 + i, "balance": f"{i}.50"} for i in range(10)]
        before += lake.changes(
            NOON + timedelta(hours=number), ACCOUNT, [(None, row) for row in rows]
        )
    every = list(range(30))
    assert _ids(lake.folder, live_files(_visible(lake))) == every
    (compacted,) = lake.compacted()
    for gone in range(3):
        assert _ids(lake.folder, live_files(_visible(lake))) == every
        assert set(_ids(lake.folder, _visible(lake))) == set(every)
        lake.storage.remove(before[gone].path)
    remove_superseded(lake.storage, before, [compacted])
    assert live_files(_visible(lake)) == _visible(lake) == [compacted.path]
    commits = pq.ParquetFile(lake.folder / compacted.path).read()["_commit_ts"].to_pylist()
    assert commits == sorted(commits)


def test_of_two_attempts_at_a_segment_one_counts() -> None:
    files = [
        f"lake/d.t/schema_version=7/day=2026-11-22/{5:020d}-{9:020d}-{token}.parquet"
        for token in ("a", "b")
    ]
    assert live_files(files) == files[:1]


def test_neighbours_and_other_folders_count_beside_each_other() -> None:
    files = [
        f"lake/d.t/schema_version={version}/day=2026-11-22/{lo:020d}-{hi:020d}-a.parquet"
        for version, lo, hi in ((7, 1, 5), (7, 5, 9), (8, 1, 9))
    ]
    assert live_files(files) == files


def test_what_isn_t_finished_leaves_no_file(tmp_path: Path) -> None:
    lake = ToldLake(tmp_path)
    (file,) = lake.changes(NOON, ACCOUNT, [(None, {"id": 1, "balance": "1.00"})])
    with pytest.raises(RuntimeError, match="before its end"):
        lake.fails()
    assert [str(path.relative_to(lake.folder)) for path in lake.folder.rglob("*.parquet*")] == [
        file.path
    ]
