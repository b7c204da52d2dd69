"""A stream's reader, asked as Spark asks it: offsets, limits, marks, DDL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from sluice.relay import RelayLog
from sluice.relay.consumers import Consumers, applies
from sluice.spark import ChangesError, SluiceDataSource
from sluice.spark import stream as stream_module
from sluice.spark.portions import concerned_windows
from sluice.spark.stream import ChangeStreamReader
from sluice.tidb import tso
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.story import Story, column, table, wider
from tests.examples import examples
from tests.spark.folded import snapshot_of

TABLE = table(21, "t", "id int not null", "a varchar(10)", primary="id")


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> RelayLog:
    loaded, middle = (
        snapshot_of(RECORDINGS / "shop", label)["ts"] for label in ("a_loaded", "b_mid")
    )
    through = loaded + (middle - loaded) // 4
    return land(RECORDINGS / "shop", f"file://{tmp_path_factory.mktemp('relay')}", 50, through)


def stream(relay: RelayLog, name: str, **options: Any) -> ChangeStreamReader:
    given = {key: str(value) for key, value in options.items()}
    source = SluiceDataSource({"relay": relay.url, "table": name, **given})
    return source.streamReader(source.schema())  # type: ignore[return-value]


def rows_between(reader: ChangeStreamReader, start: Any, end: Any) -> list[dict[str, Any]]:
    batches = (batch for part in reader.partitions(start, end) for batch in reader.read(part))
    return [row for batch in batches for row in batch.to_pylist()]


def _identities(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted((r["_commit_ts"], r["_start_ts"], r["_pos"], r["_op"]) for r in rows)


def test_batches_of_any_size_hold_whole_transactions_and_together_each_change_once(
    relay: RelayLog,
) -> None:
    first = relay.first()
    assert first is not None
    whole = stream(relay, "bank.cart", since=first.lo)
    expected = rows_between(
        whole, {"tso": first.lo}, whole.latestOffset({"tso": first.lo}, ReadAllAvailable())
    )

    @settings(max_examples=examples(20))
    @given(st.integers(1, 400), st.integers(1, 12))
    def in_batches(max_rows: int, max_windows: int) -> None:
        reader = stream(
            relay,
            "bank.cart",
            since=first.lo,
            maxRowsPerTrigger=max_rows,
            maxWindowsPerTrigger=max_windows,
        )
        at, found, seen = reader.initialOffset(), [], set[int]()
        while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
            rows = rows_between(reader, at, end)
            commits = {row["_commit_ts"] for row in rows}
            assert not commits & seen and all(at["tso"] < ts <= end["tso"] for ts in commits)
            windows = list(relay.windows(at["tso"], end["tso"]))
            concerned = [w for w in windows if w.parts]
            assert len(concerned) == 1 or sum(w.changes for w in concerned) <= max_rows or not rows
            seen |= commits
            found += rows
            at = end
        assert _identities(found) == _identities(expected)
        assert len(_identities(found)) == len(set(_identities(found)))

    in_batches()


def test_a_query_that_reads_what_there_is_ends_though_more_lands(tmp_path: Path) -> None:
    told = Story(None, tmp_path)  # type: ignore[arg-type] # nothing is applied
    told.create(TABLE, "CREATE TABLE t")
    told.insert(TABLE, {"id": 1, "a": "x"})
    log = RelayLog.open(told.url)
    first = log.first()
    assert first is not None
    reader = stream(log, "d.t", since=first.lo)
    reader.prepareForTriggerAvailableNow()
    told.insert(TABLE, {"id": 2, "a": "y"})
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert [row["id"] for row in rows_between(reader, start, end)] == [1]
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    again = stream(log, "d.t")
    last = again.latestOffset(end, again.getDefaultReadLimit())
    assert [row["id"] for row in rows_between(again, end, last)] == [2]
    assert again.initialOffset() == last == again.reportLatestOffset()


def test_a_mark_follows_what_is_committed_and_doesnt_count_as_a_pipeline(tmp_path: Path) -> None:
    told = Story(None, tmp_path)  # type: ignore[arg-type]
    told.create(TABLE, "CREATE TABLE t")
    told.insert(TABLE, {"id": 1, "a": "x"})
    log = RelayLog.open(told.url)
    first = log.first()
    assert first is not None
    reader = stream(log, "d.t", since=first.lo, consumer="lake-house")
    assert Consumers(log).positions() == {}
    start = reader.initialOffset()
    assert list(Consumers(log).positions().values()) == [first.lo]
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert list(Consumers(log).positions().values()) == [first.lo]
    reader.commit(end)
    assert list(Consumers(log).positions().values()) == [end["tso"]]
    assert not any(map(applies, Consumers(log).positions()))
    stream(log, "d.t", since=first.lo).commit(end)  # without a name it leaves no mark
    assert len(Consumers(log).positions()) == 1


def test_a_column_that_comes_while_a_stream_runs_ends_it_and_a_restart_has_it(
    tmp_path: Path,
) -> None:
    told = Story(None, tmp_path)  # type: ignore[arg-type]
    told.create(TABLE, "CREATE TABLE t")
    told.insert(TABLE, {"id": 1, "a": "x"})
    log = RelayLog.open(told.url)
    first = log.first()
    assert first is not None
    running = stream(log, "d.t", since=first.lo)
    longer = wider(TABLE, column(3, "m int"))
    told.statement(5, "ALTER TABLE t ADD m", longer)
    told.insert(longer, {"id": 2, "a": "y", "m": 8})
    end = running.latestOffset({"tso": first.lo}, ReadAllAvailable())
    with pytest.raises(ChangesError, match=r"other columns .* than when the query began: m"):
        rows_between(running, {"tso": first.lo}, end)
    again = stream(log, "d.t", since=first.lo)
    rows = rows_between(again, {"tso": first.lo}, end)
    assert [(row["id"], row["m"]) for row in rows] == [(1, None), (2, 8)]
    shorter = replace(longer, columns=(longer.columns[0], longer.columns[2]))
    told.statement(6, "ALTER TABLE t DROP a", shorter)
    behind = stream(log, "d.t", since=first.lo)  # which has yet to read rows with the old column
    assert [row["m"] for row in rows_between(behind, {"tso": first.lo}, end)] == [None, 8]


def test_an_offset_whose_changes_are_gone_is_refused(tmp_path: Path) -> None:
    told = Story(None, tmp_path)  # type: ignore[arg-type]
    told.create(TABLE, "CREATE TABLE t")
    log = RelayLog.open(told.url)
    first = log.first()
    assert first is not None
    reader = stream(log, "d.t")
    with pytest.raises(ChangesError, match="is in neither"):
        reader.latestOffset({"tso": first.lo - 1}, ReadAllAvailable())
    with pytest.raises(ChangesError, match="is in neither"):
        stream(log, "d.t", since=first.lo - 1).initialOffset()


def test_without_changes_of_its_table_a_stream_moves_on_once_a_minute(tmp_path: Path) -> None:
    told = Story(None, tmp_path)  # type: ignore[arg-type]
    told.create(TABLE, "CREATE TABLE t")
    other = told.create(replace(TABLE, id=22, name="u"), "CREATE TABLE u")
    log = RelayLog.open(told.url)
    reader = stream(log, "d.t")
    start = reader.initialOffset()
    told.insert(other, {"id": 1, "a": "x"})
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    told._ts += tso.span(61_000)
    told.insert(other, {"id": 2, "a": "x"})
    moved = stream(log, "d.t").latestOffset(start, ReadAllAvailable())
    assert moved == reader.reportLatestOffset() and reader.partitions(start, moved) == []


def test_while_its_table_is_idle_a_stream_reads_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Story(None, tmp_path)  # type: ignore[arg-type]
    told.create(TABLE, "CREATE TABLE t")
    other = told.create(replace(TABLE, id=22, name="u"), "CREATE TABLE u")
    log = RelayLog.open(told.url)
    monkeypatch.setattr(stream_module, "_LOOK_INTERVAL_S", 0.0)
    ranges: list[tuple[int, int]] = []

    def noted(past: Any, name: Any, since: int, until: int) -> Any:
        ranges.append((since, until))
        return concerned_windows(past, name, since, until)

    monkeypatch.setattr(stream_module, "concerned_windows", noted)
    reader = stream(log, "d.t")
    start = reader.initialOffset()
    for number in range(3):
        told.insert(other, {"id": number, "a": "x"})
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    assert [since for since, _ in ranges] == [start["tso"], *(until for _, until in ranges[:-1])]
    told.insert(TABLE, {"id": 1, "a": "mine"})
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert [row["a"] for row in rows_between(reader, start, end)] == ["mine"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxRowsPerTrigger": "0"}, "'maxRowsPerTrigger' is '0'"),
        ({"maxWindowsPerTrigger": "many"}, "'maxWindowsPerTrigger' is 'many'"),
        ({"until": "2026-11-21T09:22:30Z"}, "a stream has no until"),
    ],
)
def test_options_that_make_no_sense_are_named(
    relay: RelayLog, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ChangesError, match=message):
        source = SluiceDataSource({"relay": relay.url, "table": "bank.cart", **options})
        source.streamReader(StructType())
