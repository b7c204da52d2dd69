"""Rows that no change touches, computed without a shuffle: results are those of one shuffle."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.copy.snapshot_files import rows_schema, write_files
from sluice.etl.copy.source import SourceChunk
from sluice.etl.history.as_of import AsOfError, run_locally, untouched
from sluice.etl.history.as_of.aggregations import (
    AggregateResult,
    Aggregation,
    CollectDiff,
    CollectRows,
    from_ipc,
)
from sluice.etl.history.as_of.query_planner import plan_query
from sluice.etl.history.as_of.read_planner import SnapshotStart
from sluice.etl.history.as_of.read_tasks import TimeTravelPlan
from sluice.etl.history.as_of.result_files import ResultFiles
from sluice.etl.history.as_of.untouched import FinishUntouched, TouchedKeys, untouched_first
from sluice.relay import WindowLog
from sluice.relay.storage import open_storage
from sluice.tidb.schema import Table
from tests.etl.history.as_of.asking import EmptyBase, asked_for, empty_start, plain
from tests.etl.history.as_of.test_asof_histories import _QUICK, small_portions
from tests.etl.partition_history import Definition, PartitionHistory
from tests.etl.random_history import TABLES, History

NAMES = [table.full_name for table in TABLES.values()]


class FilesBase(EmptyBase):
    """A snapshot of tables, its files below a URL of nine rows at most."""

    def __init__(self, url: str, tables: dict[str, tuple[Table, pa.Table]]) -> None:
        self._url = url
        self._chunks: dict[int, list[SourceChunk]] = {}
        for name, (table, rows) in tables.items():
            given = rows.cast(rows_schema(table, ())) if rows.num_columns else rows
            files = [
                file
                for first in range(0, rows.num_rows, 9)
                for file in write_files(
                    open_storage(url), f"s/{table.id}", table, given.slice(first, 9).to_batches()
                )
            ]
            self._chunks[table.id] = [
                SourceChunk(*name.split("."), number, file.to_json(), file.row_bytes)
                for number, file in enumerate(files)
            ]

    def spec(self) -> dict[str, Any]:
        return {"kind": "snapshot", "url": self._url, "snapshot": "a test's", "position": 0}

    def chunks(self, table: Table) -> list[SourceChunk]:
        return self._chunks[table.id]


def snapshot_at(
    log: WindowLog, ts: int, names: Sequence[str], start: SnapshotStart, url: str
) -> SnapshotStart:
    found = asked_for(log, ts, names, [start])
    tables = {name: (version.table, rows) for name, (version, rows) in found.items()}
    own = {table.id: table for table, _ in tables.values()}
    return SnapshotStart(ts, own, FilesBase(url, tables))


@contextlib.contextmanager
def always(hash_bits: int = 27) -> Iterator[None]:
    """Compute untouched rows first, however little there is."""
    with (
        mock.patch.object(untouched, "_MIN_SNAPSHOT_BYTES", 1),
        mock.patch.object(untouched, "_MIN_SNAPSHOT_SHARE", 0),
        mock.patch.object(untouched, "_HASH_BITS", hash_bits),
        mock.patch.object(untouched, "_MAX_FILLED", 1),
    ):
        yield


class Run:
    """Run tasks here; `counts`: how many there were, by function."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __call__(self, function: Any, count: int) -> Iterator[AggregateResult]:
        self.counts[type(function).__name__] += count
        numbers = pa.record_batch([pa.array(range(count))], ["id"])
        for batch in function(iter([numbers])):
            yield from (AggregateResult(**row) for row in batch.to_pylist())


def shuffled_little(
    plan: TimeTravelPlan, finish: Aggregation, url: str, run: Run
) -> Iterator[AggregateResult]:
    with ResultFiles(url, inline_bytes=0) as files:
        left = yield from untouched_first(plan, finish, files, run)
        yield from run_locally(left, finish)


def rows_of(results: Iterator[AggregateResult]) -> Counter[tuple[str, str]] | str:
    """The rows, or the error in their place."""
    try:
        return Counter(
            (result.name, repr(row))
            for result in results
            for batch in from_ipc(result.payload)
            for row in plain(pa.Table.from_batches([batch]))
        )
    except AsOfError as error:
        return str(error)


@pytest.mark.slow
@_QUICK
@given(
    st.integers(0, 2**32),
    st.tuples(st.integers(5, 60), st.integers(0, 30)),
    st.lists(st.integers(1, 30), min_size=1, max_size=3),
    st.sampled_from([1, 100_000]),
    st.sampled_from([3, 27]),
)
def test_every_row_is_there_once_touched_or_not(
    seed: int, counts: tuple[int, int], sizes: Sequence[int], portion: int, hash_bits: int
) -> None:
    history, ends = History(seed), []
    for count in counts:
        history.grow(count)
        ends.append(history._ts)
    with tempfile.TemporaryDirectory() as folder, small_portions(portion), always(hash_bits):
        url = Path(folder, "archive").as_uri()
        log = history.land(f"file://{folder}/log", sizes)
        last = log.last()
        if last is None or ends[0] > last.hi:
            return
        early, late = ends[0], min(ends[1], last.hi)
        empty = empty_start(log, list(TABLES.values()))
        start = snapshot_at(log, early, NAMES, empty, url)
        run = Run()
        for plan in plan_query(log, [start], [late], NAMES).plans:
            found = rows_of(shuffled_little(plan, CollectRows(), url, run))
            assert found == rows_of(run_locally(plan, CollectRows()))
        model = {
            (table.full_name, repr(row)): count
            for name, table in TABLES.items()
            for row, count in Counter(
                tuple(row[c.name] for c in table.columns) for row in history.rows[name].values()
            ).items()
        }
        if late == ends[1]:
            assert found == model
        assert run.counts["FinishUntouched"] or not any(
            start.source.chunks(table) for table in TABLES.values()
        )
        if early < late:
            for plan in plan_query(log, [start], [early, late], NAMES).plans:
                finish = CollectDiff(early, late)
                found = rows_of(shuffled_little(plan, finish, url, run))
                assert found == rows_of(run_locally(plan, finish))
        assert [path for path in Path(folder, "archive/results").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("keyed", [False, True])
@_QUICK
@given(
    st.integers(0, 2**32),
    st.integers(5, 60),
    st.lists(st.integers(1, 30), min_size=2, max_size=4),
    st.integers(0, 9),
    st.sampled_from([3, 27]),
)
def test_ddl_moves_untouched_rows_as_it_does_others(
    keyed: bool, seed: int, count: int, sizes: list[int], at: int, hash_bits: int
) -> None:
    history = PartitionHistory(seed, keyed, locks=True)
    history.grow(count)
    history.settle()
    with tempfile.TemporaryDirectory() as folder, always(hash_bits):
        url = Path(folder, "archive").as_uri()
        log = history.land(f"file://{folder}/log", sizes)
        windows = list(log.windows(0))
        if not windows:
            return
        empty = empty_start(log, [history.table(Definition()), history.ordinary(102)])
        early, late = windows[at % len(windows)].hi, windows[-1].hi
        start = snapshot_at(log, early, ["d.t", "d.u"], empty, url)
        try:
            plans = plan_query(log, [start, empty], [late], ["d.t", "d.u"]).plans
        except AsOfError:  # the snapshot lies within DDL
            return
        for plan in plans:
            found = rows_of(shuffled_little(plan, CollectRows(), url, Run()))
            assert found == rows_of(run_locally(plan, CollectRows()))


def _plan(folder: Path) -> tuple[TimeTravelPlan, str]:
    history = History(7)
    history.grow(80)
    early = history._ts
    history.grow(4)
    log = history.land((folder / "log").as_uri(), [10])
    url = (folder / "archive").as_uri()
    start = snapshot_at(log, early, NAMES, empty_start(log, list(TABLES.values())), url)
    last = log.last()
    assert last is not None
    (plan,) = plan_query(log, [start], [last.hi], NAMES).plans
    return plan, url


def test_few_rows_are_left_for_buckets(tmp_path: Path) -> None:
    plan, url = _plan(tmp_path)
    run = Run()
    with always(), ResultFiles(url) as files:
        steps = untouched_first(plan, CollectRows(), files, run)
        done = 0
        while True:
            try:
                done += sum(batch.num_rows for batch in from_ipc(next(steps).payload))
            except StopIteration as end:
                left = end.value
                break
        shuffled = sum(
            batch.num_rows
            for result in run_locally(left, CollectRows())
            for batch in from_ipc(result.payload)
        )
    assert done > 3 * shuffled > 0
    assert run.counts["FinishUntouched"] == len(plan.tasks) - run.counts["FindTouched"]


def test_a_small_table_and_one_that_has_changed_much_are_distributed(tmp_path: Path) -> None:
    plan, url = _plan(tmp_path)
    run = Run()
    with ResultFiles(url) as files:
        for patched in (
            contextlib.nullcontext(),
            mock.patch.multiple(
                untouched, _MIN_SNAPSHOT_BYTES=1, _MIN_SNAPSHOT_SHARE=0, _HASH_BITS=3
            ),
        ):
            with patched, pytest.raises(StopIteration) as end:
                next(untouched_first(plan, CollectRows(), files, run))
            assert end.value.value is plan
    assert run.counts.keys() == {"FindTouched"}


def test_an_attempt_that_is_repeated_leaves_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    plan, url = _plan(tmp_path)

    class Twice(Run):
        def __call__(self, function: Any, count: int) -> Iterator[AggregateResult]:
            if isinstance(function, FinishUntouched):
                list(super().__call__(function, count))  # a dead executor's: nobody has them
            return super().__call__(function, count)

    with always():
        found = rows_of(shuffled_little(plan, CollectRows(), url, Twice()))
    assert found == rows_of(run_locally(plan, CollectRows()))


@given(st.lists(st.integers(0, 2**27 - 1), max_size=50), st.lists(st.integers(0, 2**27 - 1)))
def test_a_set_of_keys_has_what_was_added(added: list[int], others: list[int]) -> None:
    keys = TouchedKeys()
    keys.add(np.array(added, np.int64))
    there = TouchedKeys(keys.pack())
    assert there.have(np.array(added, np.int64)).all()
    assert there.have(np.array(others, np.int64)).tolist() == [each in added for each in others]
    assert there.filled == len(set(added)) / 2**27
