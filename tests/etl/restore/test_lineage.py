"""Which tables a restore can have, from a snapshot and the windows behind it."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.etl.restore.lineage import TableLineage
from sluice.relay import WindowRecord
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlEffect, DdlJob
from sluice.tidb.schema import Table
from tests.etl.story import table

_T, _GONE = table(30, "t", "id int"), table(31, "gone", "id int")
_NEXT = table(32, "gone", "id int")
_SINCE, _END = 50, 200


def ddl(commit_ts: int, kind: Action, tables: dict[int, Table | None]) -> dict[str, Any]:
    return DdlJob(commit_ts, type=kind, effect=DdlEffect({}, tables)).to_json()


def lineage(held: tuple[Table, ...], ddls: list[dict[str, Any]]) -> TableLineage:
    """Of a snapshot at 50 with these tables, and a window (10, 100] that begins before it."""
    made = TableLineage(_SINCE, 10, held, ())
    documents = {str(each.id): each.to_json() for each in (_T, _GONE)}
    made.follow([WindowRecord(10, 100, 7, "t", 0, 1, 0, 9, (), documents, tuple(ddls))], _END)
    return made


@pytest.mark.parametrize(
    ("kind", "effect", "held"),
    [
        (Action.DROP_TABLE, {31: None}, (_T,)),
        (Action.TRUNCATE_TABLE, {31: None, 32: _NEXT}, (_T, _NEXT)),
    ],
)
def test_a_table_that_was_gone_before_the_snapshot_is_not_missed_in_it(
    kind: Action, effect: dict[int, Table | None], held: tuple[Table, ...]
) -> None:
    found = lineage(held, [ddl(40, kind, effect)])
    assert found.unknown == {}
    assert found.now.keys() == {each.id for each in held}


def test_a_table_that_the_snapshot_should_hold_is_missed_in_it() -> None:
    assert lineage((_T,), [ddl(60, Action.DROP_TABLE, {31: None})]).unknown.keys() == {31}
    assert lineage((_T, _GONE), [ddl(40, Action.CREATE_TABLE, {32: _NEXT})]).unknown.keys() == {32}
