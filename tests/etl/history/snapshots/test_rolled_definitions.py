"""A snapshot rolled forward has the schema of TiDB's own history, through DDL of most kinds."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from sluice.etl.copy.source import SourceChunk
from sluice.etl.history.archive.archiver import Archiver
from sluice.etl.history.as_of import run_locally, tables_as_of
from sluice.etl.history.errors import SnapshotError
from sluice.etl.history.snapshots.chunk_writer import chunk_order, parse_written
from sluice.etl.history.snapshots.reuse import changed_tables, ddl_tables, ids_of
from sluice.etl.history.snapshots.roll_forward import (
    definitions_after,
    roll_forward,
    roll_forward_plan,
)
from sluice.relay import RelayLog, WindowRecord
from sluice.relay.archive import ArchiveSnapshot, SnapshotTable, snapshot_id
from tests.etl.history.archive.archiving import LocalJobs, settings_of
from tests.etl.history.snapshots.recorded_rows import definitions
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.story import Story, table

DDL = RECORDINGS / "ddl"


def snapshot_at(ts: int) -> ArchiveSnapshot:
    known = definitions(DDL, ts)
    tables = tuple(SnapshotTable(one.schema_name, one.name, one.to_json()) for one in known.tables)
    schemas = tuple(schema.to_json() for schema in known.schemas)
    return ArchiveSnapshot(
        snapshot_id(ts, "a"), ts, known.schema_version, 7, 0, "test", schemas, tables
    )


def windows(folder: Path) -> list[WindowRecord]:
    return list(land(DDL, f"file://{folder}/relay", 40).windows(0))


def test_ddl_behind_an_older_snapshot_leads_to_the_schema_at_any_later_moment(
    tmp_path: Path,
) -> None:
    found = windows(tmp_path)
    labels = [found[0].lo] + [one["ts"] for one in json.loads((DDL / "snapshots.json").read_text())]
    assert len(labels) > 3
    for early, late in pairwise(labels):
        rolled = definitions_after(snapshot_at(early), found, late)
        wanted = definitions(DDL, late)
        assert rolled.tables == wanted.tables
        assert rolled.schemas == wanted.schemas
        assert rolled.schema_version == wanted.schema_version


def test_only_tables_that_nothing_was_done_to_are_referred_to(tmp_path: Path) -> None:
    found = windows(tmp_path)
    middle, end = found[len(found) // 2].hi, found[-1].hi
    older = snapshot_at(middle)
    changed = changed_tables(found[len(found) // 2 :], middle, end)
    assert changed
    plan = roll_forward_plan(
        snapshot_id(end, "b"), older, definitions_after(older, found, end), changed
    )
    later = {
        table.full_name: table for table in definitions(DDL, end).tables if table.is_base_table
    }
    early = {table.full_name: table for table in definitions(DDL, middle).tables}
    assert plan.referred
    for name in plan.referred:
        assert early[name] == later[name]
        assert not ids_of(later[name]) & changed
    assert {chunk.full_name for chunk in plan.chunks} == later.keys() - set(plan.referred)


def test_a_transaction_that_landing_left_out_is_named(tmp_path: Path) -> None:
    found = windows(tmp_path)
    skipped = {"commit_ts": found[1].hi, "start_ts": 1, "why": "it was wrong"}
    found[1] = replace(found[1], skipped=(skipped,))
    with pytest.raises(SnapshotError, match=f"{found[1].hi} isn't in the archive.*it was wrong"):
        definitions_after(snapshot_at(found[0].lo), found, found[-1].hi)
    assert changed_tables(found, found[0].lo, found[-1].hi) is None


def test_which_tables_ddl_touched_is_known_only_where_it_has_landed(tmp_path: Path) -> None:
    found = windows(tmp_path)
    first, last = found[0].lo, found[-1].hi
    touched = ddl_tables(found, first, last)
    assert touched
    assert touched >= {table.id for table in definitions(DDL, last).tables}
    assert ddl_tables(found[:-1], first, last) is None
    assert ddl_tables(found, last, last) == set()


def test_a_snapshot_that_is_rolled_forward_tells_what_it_computes_and_of_each_file_as_it_comes(
    tmp_path: Path,
) -> None:
    story = Story(None, tmp_path)  # type: ignore[arg-type] # nothing is applied
    tables = [
        story.create(table(9 + n, f"t{n}", "id int", primary="id"), f"CREATE TABLE t{n}")
        for n in range(2)
    ]
    for one in tables:
        story.insert(one, {"id": 1}, {"id": 2})
    settings = settings_of(story.url, url=(tmp_path / "archive").as_uri())
    Archiver(settings, jobs=LocalJobs(settings)).through()
    last = RelayLog.open(story.url).last()
    assert last is not None
    orders = [
        chunk_order(
            n, SourceChunk(one.schema_name, one.name, 0, {}, 0), one, f"snapshots/b/{one.id}"
        )
        for n, one in enumerate(tables)
    ]  # fmt: skip
    files: list[tuple[str, int]] = []
    doing: list[str] = []
    make = roll_forward(
        lambda names: tables_as_of(settings, last.hi, names, run=run_locally),
        lambda name, file: files.append((name, file.rows)),
        doing.append,
    )
    written = parse_written(make(orders))
    assert (
        sorted(files)
        == [("d.t0", 2), ("d.t1", 2)]
        == sorted(
            (tables[n].full_name, file.rows) for n, found in written.items() for file in found
        )
    )
    assert doing == ["computing d.t0 and 1 more table"]
