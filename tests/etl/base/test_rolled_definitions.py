"""The schema that a base rolled forward has is what TiDB's own history says it was, through DDL of most kinds."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from etl.base.errors import BaseError
from etl.base.rolled import definitions_after, rolled_plan
from etl.base.unchanged import changed_tables, ddl_tables, ids_of
from relay import Window
from relay.archive import Base, BaseTable, base_id
from tests.etl.base.recorded_rows import definitions
from tests.etl.relay_from_recording import RECORDINGS, land

DDL = RECORDINGS / "ddl"


def base_at(ts: int) -> Base:
    known = definitions(DDL, ts)
    tables = tuple(BaseTable(one.schema_name, one.name, one.to_json()) for one in known.tables)
    schemas = tuple(schema.to_json() for schema in known.schemas)
    return Base(base_id(ts, "a"), ts, known.schema_version, 7, 0, "test", schemas, tables)


def windows(folder: Path) -> list[Window]:
    return list(land(DDL, f"file://{folder}/relay", 40).windows(0))


def test_ddl_behind_an_older_base_leads_to_the_schema_at_any_later_moment(tmp_path: Path) -> None:
    found = windows(tmp_path)
    labels = [found[0].lo] + [one["ts"] for one in json.loads((DDL / "snapshots.json").read_text())]
    assert len(labels) > 3
    for early, late in pairwise(labels):
        rolled = definitions_after(base_at(early), found, late)
        wanted = definitions(DDL, late)
        assert rolled.tables == wanted.tables
        assert rolled.schemas == wanted.schemas
        assert rolled.schema_version == wanted.schema_version


def test_only_tables_that_nothing_was_done_to_are_referred_to(tmp_path: Path) -> None:
    found = windows(tmp_path)
    middle, end = found[len(found) // 2].hi, found[-1].hi
    older = base_at(middle)
    changed = changed_tables(found[len(found) // 2 :], middle, end)
    assert changed
    plan = rolled_plan(base_id(end, "b"), older, definitions_after(older, found, end), changed)
    later = {table.full_name: table for table in definitions(DDL, end).tables if table.is_base_table}
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
    with pytest.raises(BaseError, match=f"{found[1].hi} isn't in the archive.*it was wrong"):
        definitions_after(base_at(found[0].lo), found, found[-1].hi)
    assert changed_tables(found, found[0].lo, found[-1].hi) is None


def test_which_tables_ddl_touched_is_known_only_where_it_has_landed(tmp_path: Path) -> None:
    found = windows(tmp_path)
    first, last = found[0].lo, found[-1].hi
    touched = ddl_tables(found, first, last)
    assert touched
    assert touched >= {table.id for table in definitions(DDL, last).tables}
    assert ddl_tables(found[:-1], first, last) is None
    assert ddl_tables(found, last, last) == set()
