"""Schemas replayed through windows, compared with a model that looks back through the whole history
each time.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from sluice.etl.changes.recorded_schema import RecordedSchema, SchemaReplay, SchemaTimeline
from sluice.tidb.ddl_job import DdlEffect, DdlJob
from sluice.tidb.schema import Schema, Table

IDS = range(1, 6)
END = 40


@dataclass(frozen=True)
class History:
    """`changes`: (commit_ts, id, name or None) of a table or a database, ascending."""

    tables: list[tuple[int, int, str | None]]
    schemas: list[tuple[int, int, str | None]]
    stamps: list[int]
    cuts: list[int]
    """Where windows begin and end."""
    also: list[set[int]]
    """By window, tables that have rows in it."""

    def names(self, ts: int) -> dict[int, str]:
        return _names(self.tables, ts)

    def touched(self, ts: int) -> set[int]:
        return {i for at, i, _ in self.tables if at == ts}

    def windows(self) -> list[RecordedSchema]:
        found = []
        for number, (lo, hi) in enumerate(zip(self.cuts, self.cuts[1:], strict=False)):
            inside = [ts for ts in self.stamps if lo < ts <= hi]
            described = self.also[number].union(*(self.touched(ts) for ts in inside))
            tables: dict[int, Table | None] = {
                i: _table(i, n) for i, n in self.names(lo).items() if i in described
            }
            found.append(RecordedSchema(tables, tuple(map(self.ddl, inside)), (), 0))
        return found

    def ddl(self, ts: int) -> DdlJob:
        tables = {i: name and _table(i, name) for at, i, name in self.tables if at == ts}
        schemas = {i: name and Schema(i, name) for at, i, name in self.schemas if at == ts}
        return DdlJob(ts, schema_version=100 + ts, effect=DdlEffect(schemas, tables))  # type: ignore[arg-type]


def _names(changes: list[tuple[int, int, str | None]], ts: int) -> dict[int, str]:
    last = {i: name for at, i, name in sorted(changes, key=lambda change: change[0]) if at <= ts}
    return {i: name for i, name in last.items() if name is not None}


def _table(table_id: int, name: str) -> Table:
    return Table(table_id, 1, "d", name, ())


def _changes(draw: st.DrawFn, stamps: list[int], kind: str) -> list[tuple[int, int, str | None]]:
    """Changes of some ids at each timestamp; only what is there is dropped."""
    found: list[tuple[int, int, str | None]] = [
        (0, i, f"{kind}{i}") for i in draw(st.sets(st.sampled_from(IDS)))
    ]
    for ts in stamps:
        there = _names(found, ts)
        chosen = draw(st.sets(st.sampled_from(IDS), max_size=3))
        found += [
            (ts, i, None if i in there and draw(st.booleans()) else f"{kind}{i}_{ts}")
            for i in chosen
        ]
    return found


@st.composite
def histories(draw: st.DrawFn) -> History:
    stamps = sorted(draw(st.sets(st.integers(1, END), max_size=12)))
    cuts = sorted({0, END, *draw(st.sets(st.integers(1, END - 1), max_size=6))})
    also = [draw(st.sets(st.sampled_from(IDS))) for _ in cuts]
    return History(_changes(draw, stamps, "t"), _changes(draw, stamps, "s"), stamps, cuts, also)


@given(histories(), st.data())
def test_a_schema_that_is_known_at_a_timestamp_is_known_at_every_later_one(
    history: History, data: st.DataObject
):
    since = data.draw(st.integers(0, END))
    ends = sorted(data.draw(st.lists(st.integers(since, END), min_size=1, max_size=3)))
    at_since = {i: _table(i, name) for i, name in history.names(since).items()}
    schemas = [Schema(i, name) for i, name in _names(history.schemas, since).items()]
    replay = SchemaReplay(since, at_since.values(), schemas, 100)
    for begin, end in zip([since, *ends], ends, strict=False):
        seen = []
        for lo, hi, window in zip(history.cuts, history.cuts[1:], history.windows(), strict=False):
            if hi <= begin or lo >= end:
                continue
            replay.enter(window)
            for ddl in replay.advance(window.ddls, end):
                seen.append(ddl.commit_ts)
                before = {i: _table(i, n) for i, n in history.names(ddl.commit_ts - 1).items()}
                assert replay.tables == before
                assert ddl.before == {
                    i: before[i] for i in history.touched(ddl.commit_ts) & before.keys()
                }
        assert seen == [ts for ts in history.stamps if begin < ts <= end]
        assert {i: table.name for i, table in replay.tables.items()} == history.names(end)
        assert {i: schema.name for i, schema in replay.schemas.items()} == _names(
            history.schemas, end
        )
        assert replay.schema_version == 100 + max(
            (ts for ts in history.stamps if since < ts <= end), default=0
        )
        assert not replay.unknown


@given(histories(), st.data())
def test_tables_that_a_snapshot_lacks_are_found_as_soon_as_a_window_describes_them(
    history: History, data: st.DataObject
):
    since = data.draw(st.integers(0, END - 1))
    there = history.names(since)
    held = {i for i in there if data.draw(st.booleans())}
    replay = SchemaReplay(since, [_table(i, there[i]) for i in held])
    reached = set(held)
    for lo, hi, window in zip(history.cuts, history.cuts[1:], history.windows(), strict=False):
        if hi <= since:
            continue
        named = set(window.tables).union(
            *(history.touched(ts) for ts in history.stamps if lo < ts <= since)
        )
        reached |= named & history.names(max(lo, since)).keys()
        replay.enter(window)
        for ddl in replay.advance(window.ddls, END):
            before = history.names(ddl.commit_ts - 1)
            assert {i: t and t.name for i, t in ddl.before.items()} == {
                i: before[i] for i in history.touched(ddl.commit_ts) & before.keys()
            }
            reached |= history.touched(ddl.commit_ts)
        assert {i: table.name for i, table in replay.tables.items()} == {
            i: name for i, name in history.names(hi).items() if i in reached
        }
    assert replay.unknown.keys() == (there.keys() & reached) - held
    assert all(table.name == there[i] for i, table in replay.unknown.items())


@given(histories())
def test_one_window_tells_what_its_ddl_changes_as_it_was(history: History):
    for window in history.windows():
        timeline = SchemaTimeline(window)
        for ddl in window.ddls:
            before = history.names(ddl.commit_ts - 1)
            touched = history.touched(ddl.commit_ts) & before.keys()
            assert timeline.before(ddl) == {i: _table(i, before[i]) for i in touched}


def test_a_table_that_is_described_again_after_its_drop_is_unknown():
    table = _table(1, "t")
    replay = SchemaReplay(5, [table])
    dropped = DdlJob(7, effect=DdlEffect({}, {1: None}))
    assert [ddl.before for ddl in replay.advance([dropped], 9)] == [{1: table}]
    replay.enter(RecordedSchema({1: table}, (), (), 0))
    assert replay.unknown == {1: table}
