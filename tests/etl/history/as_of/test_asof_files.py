"""Results and tables that Spark's workers hand over as files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import RequestError
from sluice.etl.history.as_of.aggregations import AggregateResult
from sluice.etl.history.as_of.result_files import (
    INLINE_BYTES,
    ResultFiles,
    remove_abandoned_results,
)
from sluice.etl.history.as_of.table_folders import TableFolders
from sluice.relay import RelayCorruptError
from sluice.relay.archive import DEAD_AFTER_MS, SnapshotFile
from sluice.relay.storage import open_storage

NOTHING: Any = None
"""What an aggregation is of: those here don't look at it."""


class Given:
    """An aggregation with these results."""

    def __init__(self, results: list[AggregateResult]) -> None:
        self._results = results

    def __call__(self, family: Any, found: Any) -> Iterator[AggregateResult]:
        yield from self._results


_SIZES = st.lists(st.integers(0, INLINE_BYTES + 1), max_size=6)


@given(buckets=st.lists(_SIZES, max_size=4))
def test_results_of_any_size_arrive_in_order_and_leave_no_file(
    tmp_path_factory: pytest.TempPathFactory, buckets: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("archive")
    made = [
        [AggregateResult(at, f"s.t{at}", b"%d" % at + bytes(size)) for at, size in enumerate(sizes)]
        for sizes in buckets
    ]
    with ResultFiles(folder.as_uri()) as files:
        sent = [r for bucket in made for r in files.of(Given(bucket))(NOTHING, NOTHING)]
        assert sum(len(result.payload) for result in sent) <= len(made) * (INLINE_BYTES + 200)
        assert list(files.read(iter(sent))) == [result for bucket in made for result in bucket]
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_a_result_file_that_is_gone_or_damaged_is_an_error_and_what_is_left_of_it_goes(
    tmp_path: Path,
) -> None:
    made = Given([AggregateResult(1, "s.t", bytes(100))])
    for harm in (Path.unlink, lambda path: path.write_bytes(b"x" + path.read_bytes()[1:])):
        with ResultFiles(tmp_path.as_uri(), inline_bytes=0) as files:
            sent = [*files.of(made)(NOTHING, NOTHING), *files.of(made)(NOTHING, NOTHING)]
            harm(tmp_path / sent[0].name)
            with pytest.raises(RelayCorruptError, match="aren't what a worker wrote"):
                list(files.read(iter(sent)))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_a_killed_client_left_goes_after_two_days_and_nothing_else(tmp_path: Path) -> None:
    now = 10 * DEAD_AFTER_MS
    for name in (f"{now - DEAD_AFTER_MS - 1}-a", f"{now - DEAD_AFTER_MS}-b", "of-people"):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "file").touch()
    assert remove_abandoned_results(open_storage(tmp_path.as_uri()), now) == 1
    left = {path.name for path in (tmp_path / "results").iterdir()}
    assert left == {f"{now - DEAD_AFTER_MS}-b", "of-people"}


def _write(folder: Path, name: str) -> SnapshotFile:
    path = folder / "s.t.parquet" / name
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": [1]}), path)
    return SnapshotFile(f"s.t.parquet/{name}", 1, path.stat().st_size, 0, 8)


def test_a_tables_folder_is_marked_as_whole_with_the_files_of_tasks_that_counted(
    tmp_path: Path,
) -> None:
    with TableFolders(tmp_path.as_uri(), ["s.t"]) as folders:
        counted, _lost = _write(tmp_path, "a.parquet"), _write(tmp_path, "b.parquet")
        folders.commit({"s.t": [counted]})
    names = {path.name for path in (tmp_path / "s.t.parquet").iterdir()}
    assert names == {"a.parquet", "_SUCCESS"}
    with pytest.raises(RequestError, match=r"s\.t\.parquet exists"):
        TableFolders(tmp_path.as_uri(), ["s.t"])


def test_a_tables_folder_without_a_file_that_was_written_is_refused_and_removed(
    tmp_path: Path,
) -> None:
    missing = SnapshotFile("s.t.parquet/elsewhere.parquet", 1, 1, 0, 1)
    with (
        pytest.raises(RequestError, match="it isn't there"),
        TableFolders(tmp_path.as_uri(), ["s.t"]) as folders,
    ):
        folders.commit({"s.t": [_write(tmp_path, "a.parquet"), missing]})
    assert list(tmp_path.iterdir()) == []
