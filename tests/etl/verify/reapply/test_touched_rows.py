"""What a range of windows touched becomes downstream what it is upstream, whatever was done to it
there: judged by a model that keeps the rows of random histories by itself.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from sluice.etl.apply import run_apply
from sluice.etl.apply._aligned_chunks import AlignedChunkApplier
from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare
from sluice.etl.changes.rules import Filter, only_tables
from sluice.etl.verify.reapply import ReplayRangeError
from sluice.etl.verify.reapply.changed_keys import WRITE_PLAN, ChangedKeys
from sluice.etl.verify.reapply.latest_rows import condition_of, write_loads
from sluice.relay import AlignedChunk, ChunkReady, RelayLog, TableRepair
from sluice.tidb.ddl_actions import Action
from tests.etl.apply.test_apply_random import fresh, settings_for
from tests.etl.chunk_model import KEYS, Cut, Row, Told, damage, found
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.random_history import TABLES
from tests.etl.story import Story, table

KEYED = [name for name, key in KEYS.items() if key]


def touched_rows(relay: RelayLog, names: list[str], since: int, until: int) -> ChangedKeys:
    filters = only_tables(Filter(), [f"rnd.{name}" for name in names])

    def newest(windows: BatchPayload) -> Any:
        return prepare(relay.url, windows, PrepareOptions(WRITE_PLAN, filters=filters))

    return ChangedKeys(relay, newest, filters, since, until)


def key_of(name: str, row: Row) -> tuple[Any, ...]:
    return tuple(row[column] for column in KEYS[name])


def keys_of(told: Told, name: str, since: int, until: int) -> set[tuple[Any, ...]]:
    """The keys that a row had at any time in the range, and that had none or another before."""
    found: set[tuple[Any, ...]] = set()
    snapshots = [rows for at, rows in told.snapshots if at <= since][-1:]
    snapshots += [rows for at, rows in told.snapshots if since < at <= until]
    for before, after in itertools.pairwise(snapshots):
        for number in before[name].keys() | after[name].keys():
            old, new = before[name].get(number), after[name].get(number)
            if old != new:
                found |= {key_of(name, row) for row in (old, new) if row is not None}
    return found


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))]
)
def test_what_was_touched_becomes_what_it_is_upstream_at_each_chunk(
    mariadb: MariaDBServer, seed: int
) -> None:
    rng = random.Random(seed)
    sizes, size = [rng.randint(1, 30) for _ in range(3)], rng.choice([1, 3, 1000])
    told = Told.of(seed, rng.randint(10, 90))
    stamps = [ts for ts, _ in told.history.transactions]
    last = stamps[-1]
    since, until = sorted(rng.choices([0, *stamps[: len(stamps) // 2]], k=2))
    with contextlib.closing(fresh(mariadb)) as connection, tempfile.TemporaryDirectory() as folder:
        relay = told.history.land(f"file://{folder}", sizes)
        first = relay.first()
        assert first is not None
        since = max(since, first.lo)
        until = max(until, since)
        config = settings_for(mariadb, f"file://{folder}", 5)
        run_apply(config, until_ts=until, run_seconds=240, prepare=local_preparer(config))
        names = rng.sample(KEYED, 2)
        for name in names:
            damage(connection, name, rng)
        touched = touched_rows(relay, names, since, until)
        touched.collect()
        ids = {TABLES[name].id: name for name in names}
        assert {
            TABLES[name].id for name in names if keys_of(told, name, since, until)
        } <= touched.tables.keys()
        chunks = [
            (table_id, number, rows.slice(first, size))
            for table_id in touched.tables
            for rows in [touched.rows(table_id)]
            for number, first in enumerate(range(0, rows.num_rows, size), 1)
        ]
        moments = sorted(
            rng.sample(range(until + 1, last), min(len(chunks), max(0, last - until - 1)))
        )
        asked = {}
        for at_ts, (table_id, number, rows) in zip(moments, chunks):
            asked[at_ts] = ids[table_id], appoint(relay, touched, table_id, number, rows, at_ts)
        relay.aligned_chunks.begin_repair(TableRepair("job", "job", tuple(ids)))
        kept, done = AlignedChunkApplier.apply, []

        def keep(self: AlignedChunkApplier, aligned_chunk: AlignedChunk, *rest: Any) -> None:
            kept(self, aligned_chunk, *rest)
            name, keys = asked[aligned_chunk.at_ts]
            done.append(aligned_chunk.at_ts)
            whole = Cut(name)
            here = {
                key_of(name, dict(zip(names_of(name), row))): row
                for row in found(connection, whole)
            }
            upstream = {
                key_of(name, dict(zip(names_of(name), row))): row
                for row in told.expected(aligned_chunk.at_ts, whole)
            }
            declined = notes(connection)[aligned_chunk.at_ts]["declined"]
            if declined:
                assert "holds a value that must be unique" in declined
                return
            for key in keys:
                assert here.get(key) == upstream.get(key), (name, key, aligned_chunk)

        with mock.patch.object(AlignedChunkApplier, "apply", keep):
            run_apply(config, until_ts=last, run_seconds=240, prepare=local_preparer(config))
        assert done == list(asked)


def names_of(name: str) -> list[str]:
    return [column.name for column in TABLES[name].columns]


def notes(connection: Any) -> dict[int, dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT at_ts, result FROM tidb_binlog.sluice_chunks")
        return {int(at_ts): json.loads(result) for at_ts, result in cursor.fetchall()}


def appoint(
    relay: RelayLog, touched: ChangedKeys, table_id: int, number: int, keys: pa.Table, at_ts: int
) -> set[tuple[Any, ...]]:
    """An aligned chunk for a chunk of keys, ready; the keys."""
    table = touched.tables[table_id]
    touched.advance(at_ts)
    rows = touched.current(table_id, keys)
    relay.aligned_chunks.make(
        AlignedChunk(
            at_ts,
            "job",
            number,
            table.id,
            table.schema_name,
            table.name,
            condition=condition_of(table, rows),
        )
    )
    loads = write_loads(relay.storage, table, rows, f"jobs/job/{at_ts}")
    relay.aligned_chunks.settle(at_ts, ChunkReady(table.to_json(), at_ts, loads))
    columns = [rows[name].to_pylist() for name in KEYS[table.name]]
    return set(zip(*columns))


def touched_in(story: Story, *names: str) -> ChangedKeys:
    relay = RelayLog.open(story._url)
    first, last = relay.first(), relay.last()
    assert first is not None and last is not None
    filters = only_tables(Filter(), [f"d.{name}" for name in names])

    def newest(windows: BatchPayload) -> Any:
        return prepare(relay.url, windows, PrepareOptions(WRITE_PLAN, filters=filters))

    return ChangedKeys(relay, newest, filters, first.lo, last.hi)


def test_ddl_that_changes_or_removes_rows_is_refused_and_an_index_is_not(tmp_path: Path) -> None:
    story = Story(None, tmp_path)  # type: ignore[arg-type] # nothing is applied
    item = story.create(
        table(11, "item", "id int", "v int", primary="id"), "CREATE TABLE item (...)"
    )
    story.insert(item, {"id": 1, "v": 1})
    indexed = table(11, "item", "id int", "v int", primary="id", unique=("v",))
    story.statement(Action.ADD_INDEX, "CREATE UNIQUE INDEX u2 ON item (v)", indexed)
    story.insert(indexed, {"id": 2, "v": 2})
    touched = touched_in(story, "item")
    touched.collect()
    assert sorted(touched.rows(11)["id"].to_pylist()) == [1, 2]
    wider = table(11, "item", "id int", "v int", "w int", primary="id", unique=("v",))
    story.statement(Action.ADD_COLUMN, "ALTER TABLE item ADD COLUMN w INT", wider)
    with pytest.raises(
        ReplayRangeError, match=r"DDL job \d+ at commit_ts \d+ \(ALTER TABLE item ADD .*--since \d+"
    ):
        touched_in(story, "item").collect()
    story.statement(Action.DROP_TABLE, "DROP TABLE item", 11)
    with pytest.raises(ReplayRangeError, match="changed a table, or moved or removed rows"):
        touched.advance(RelayLog.open(story._url).last().hi)  # type: ignore[union-attr]


def test_a_table_without_a_key_is_refused_by_name(tmp_path: Path) -> None:
    story = Story(None, tmp_path)  # type: ignore[arg-type]
    log = story.create(table(12, "log", "v int"), "CREATE TABLE log (v INT)")
    story.insert(log, {"v": 1})
    with pytest.raises(
        ReplayRangeError, match=r"d\.log has no key.*`sluice backfill --table d\.log`"
    ):
        touched_in(story, "log").collect()
