"""Where the tables of a backfill are cut, while rows are appended faster than chunks are copied."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from sluice.etl.copy.backfill import BackfillPlan, BackfillTablePlan
from sluice.etl.copy.backfill.chunk_cutter import ChunkCutter
from sluice.etl.copy.backfill.progress_state import (
    BackfillChunk,
    BackfillState,
    BackfillTableState,
)
from sluice.etl.copy.backfill.upstream_catalog import UpstreamCatalog
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.settings import Downstream, Relay, Settings, Upstream
from sluice.tidb.column_types import FLAG_NOT_NULL, FLAG_PRIMARY_KEY
from sluice.tidb.schema import Column, Schema, Table
from tests.etl.copy.given_rows import NOW, serving

TABLE = Table(
    70, 2, "s", "t",
    (Column(1, "id", 0, 8, FLAG_NOT_NULL | FLAG_PRIMARY_KEY), Column(2, "v", 1, 8)),
    pk_is_handle=True,
)  # fmt: skip
ROWS, CHUNK_ROWS, APPENDED = 100, 10, 35
MOST_CHUNKS = 60
"""A job that makes so many of ROWS rows follows the table."""


class GivenUpstream(UpstreamCatalog):
    """A cluster of one table, without PD and TiKV."""

    def definitions(self, ts: int) -> SourceSchema:
        return SourceSchema(NOW, 1, (Schema(2, "s"),), (TABLE,))

    def now(self) -> int:
        return NOW


class Copy:
    """A job over the table, whose rows are `ids`; every chunk's rows are counted in `copied`."""

    def __init__(self, upstream: UpstreamCatalog, rows: list[list[Any]]) -> None:
        self.rows, self.upstream = rows, upstream
        self.state = BackfillState([BackfillTableState(is_begun=True)])
        self.limits: tuple[list[str] | None, list[str] | None] = (None, None)
        self.done: list[BackfillChunk] = []
        self.copied: set[int] = set()

    def append(self, count: int) -> None:
        last = self.rows[-1][0] if self.rows else 0
        self.rows += [[last + n, 0] for n in range(1, count + 1)]

    def limited(self, low: list[str] | None, high: list[str] | None) -> None:
        self.limits = low, high
        self.state.tables[0].low = low

    def work(
        self,
        between: Callable[[], None] = lambda: None,
        fails: Callable[[BackfillChunk], bool] = lambda chunk: False,
    ) -> None:
        """Copy chunk after chunk, with `between` after each; those that fail are tried again."""
        plan = BackfillTablePlan(70, "s.t", "s.t", ("id",), low=self.limits[0], high=self.limits[1])
        cutter = ChunkCutter(
            self.upstream, BackfillPlan("replace", (plan,)), self.state, lambda: CHUNK_ROWS
        )
        for _ in range(MOST_CHUNKS):
            chunk = cutter.reopen(())
            if chunk is None:
                if self.state.tables[0].is_cut:
                    return
                chunk = cutter.next_chunk(0, TABLE)
            if not fails(chunk):
                self.state.open.pop(chunk.number)
                self.done.append(chunk)
                self.copied |= {row[0] for row in self.rows if within(chunk, row[0])}
            between()
        raise AssertionError(f"{MOST_CHUNKS} chunks, and no end")

    def ranges(self) -> list[tuple[list[str] | None, list[str] | None]]:
        """The ranges of the chunks that are done, ascending."""
        return [
            (chunk.low, chunk.high)
            for chunk in sorted(self.done, key=lambda one: int((one.low or ["-1"])[0]))
        ]

    def assert_is_whole(self) -> None:
        """Every key within the limits lies in exactly one chunk."""
        ranges = self.ranges()
        assert (ranges[0][0], ranges[-1][1]) == self.limits
        for (_, high), (low, _) in pairwise(ranges):
            assert high is not None and high == low


def within(chunk: BackfillChunk, key: int) -> bool:
    low, high = chunk.low, chunk.high
    return (low is None or key >= int(low[0])) and (high is None or key < int(high[0]))


@pytest.fixture
def copy() -> Iterator[Copy]:
    rows: list[list[Any]] = [[n, 0] for n in range(1, ROWS + 1)]
    with serving(TABLE, rows, 1_000) as address:
        nobody: Any = None
        upstream = GivenUpstream(
            Settings(
                Upstream("unused", sql_host=address.host, sql_port=address.port),
                Relay("file:///unused"),
                Downstream("unused"),
            ),
            nobody,
            nobody,
        )
        try:
            yield Copy(upstream, rows)
        finally:
            upstream.close()


def test_a_table_that_grows_faster_than_its_chunks_is_copied_to_the_end_of_the_beginning(
    copy: Copy,
) -> None:
    copy.work(between=lambda: copy.append(APPENDED))
    copy.assert_is_whole()
    assert (copy.done[0].low, copy.done[0].high) == ([str(ROWS)], None)
    assert copy.copied == set(range(1, ROWS + 1))
    assert len(copy.done) == ROWS // CHUNK_ROWS + 1


def test_an_open_chunk_that_fails_takes_only_what_was_appended_since(copy: Copy) -> None:
    failed: list[list[str] | None] = []

    def fails(chunk: BackfillChunk) -> bool:
        if chunk.high is None and len(failed) < 3:
            failed.append(chunk.low)
            return True
        return False

    copy.work(between=lambda: copy.append(APPENDED), fails=fails)
    copy.assert_is_whole()
    ends = [ROWS + n * APPENDED for n in range(4)]
    assert failed == [[str(end)] for end in ends[:3]]
    assert copy.ranges()[-1] == ([str(ends[3])], None)
    assert copy.copied == set(range(1, ends[3] + 1))


@pytest.mark.parametrize("rows", [0, 1, CHUNK_ROWS])
def test_a_table_of_one_chunk_is_one_chunk(copy: Copy, rows: int) -> None:
    del copy.rows[rows:]
    copy.work(between=lambda: copy.append(APPENDED))
    copy.assert_is_whole()
    assert copy.ranges() == [(None, None)]


def test_a_range_that_was_asked_for_ends_as_it_was_while_it_grows(copy: Copy) -> None:
    copy.limited(["21"], ["1000000"])
    copy.work(between=lambda: copy.append(APPENDED))
    copy.assert_is_whole()
    assert copy.copied == set(range(21, ROWS + 1))


def test_a_range_that_ends_among_the_rows_is_copied_whole(copy: Copy) -> None:
    copy.limited(["21"], ["58"])
    copy.work(between=lambda: copy.append(APPENDED))
    copy.assert_is_whole()
    assert copy.copied == set(range(21, 58))


def test_a_job_that_was_begun_without_an_end_gets_one_where_it_goes_on(copy: Copy) -> None:
    kept = copy.state.to_json()
    del kept["tables"][0]["end"]
    kept["tables"][0]["low"] = ["41"]
    copy.state = BackfillState.from_json(json.loads(json.dumps(kept)))
    copy.work(between=lambda: copy.append(APPENDED))
    assert copy.copied == set(range(41, ROWS + 1))


def test_a_job_that_goes_on_after_each_chunk_keeps_its_end(copy: Copy) -> None:
    def again() -> None:
        copy.append(APPENDED)
        copy.state.tables[:] = BackfillState.from_json(
            json.loads(json.dumps(copy.state.to_json()))
        ).tables

    copy.work(between=again)
    copy.assert_is_whole()
    assert copy.copied == set(range(1, ROWS + 1))
