"""What a plan says before anything is written: what is copied where, and what hinders it."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.etl.changes.rules import EventRule, Filter, NameRule, Route, Routes
from sluice.etl.copy.backfill import BackfillPlan, BackfillRequest
from sluice.etl.copy.backfill.plan import make_backfill_plan
from sluice.etl.copy.backfill.upstream_catalog import UpstreamCatalog
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.settings import Downstream, Relay, Settings, Upstream
from sluice.tidb.column_types import FLAG_NOT_NULL, FLAG_PRIMARY_KEY
from sluice.tidb.schema import Column, Schema, Table
from tests.etl.copy.given_rows import NOW, serving_all

FLAG = FLAG_NOT_NULL | FLAG_PRIMARY_KEY


def table(number: int, name: str, *, keyed: bool = True) -> Table:
    columns = (Column(1, "id", 0, 8, FLAG if keyed else 0), Column(2, "v", 1, 8))
    return Table(number, 2, "s", name, columns, pk_is_handle=keyed)


TABLES = [
    table(70, "t"),
    table(71, "part"),
    table(72, "left"),
    table(73, "m1"),
    table(74, "bare", keyed=False),
]
FILTERS = Filter(
    ignored_tables=(NameRule("s", "left", "ignore-table s.left"),),
    events=(EventRule(NameRule("s", "part", "part"), frozenset({"delete"})),),
)
ROUTES = Routes((Route("s", "m*", "s", "merged", "m"), Route("s", "t", "x", "y", "t")))
HELD = {"x.y": {"id", "v"}, "s.bare": {"id"}}


def planned(*tables: str, held: dict[str, set[str]] | None = None, **more: Any) -> BackfillPlan:
    definitions = SourceSchema(NOW, 1, (Schema(2, "s"),), tuple(TABLES))
    with serving_all(
        TABLES, {t.id: [[1, 1], [2, 2]] if t.pk_is_handle else [[1, 1, 1]] for t in TABLES}, 1
    ) as address:
        upstream = Upstream("unused", sql_host=address.host, sql_port=address.port)
        nobody: Any = None  # the time is not asked, nor the schema
        reached = UpstreamCatalog(
            Settings(upstream, Relay("file:///unused"), Downstream("unused")), nobody, nobody
        )
        try:
            request = BackfillRequest(tables, **more)
            return make_backfill_plan(
                request, definitions, (FILTERS, ROUTES), reached, HELD if held is None else held
            )
        finally:
            reached.close()


def test_a_table_goes_where_its_route_leads_in_ranges_of_its_key() -> None:
    plan = planned("s.t", from_key="1", to_key="5", rows_per_second=2)
    (found,) = plan.tables
    assert (found.name, found.target, found.key, found.low, found.high) == (
        "s.t",
        "x.y",
        ("id",),
        ["1"],
        ["5"],
    )
    assert not plan.problems and not found.is_created
    assert BackfillPlan.from_json(plan.to_json()) == plan


def test_a_table_that_is_not_there_downstream_is_created_unless_only_compared() -> None:
    plan = planned("s.t", held={})
    assert plan.tables[0].is_created and not plan.problems and "is created" in plan.notes[0]
    assert "nothing to compare" in planned("s.t", held={}, mode="compare").problems[0]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("s.part", "replicated in part"),
        ("s.left", "ignore-table s.left"),
        ("s.m1", "merged into s.merged"),
        ("s.bare", "lacks the columns v"),
        ("nothing.*", "no table of such a name"),
    ],
)
def test_what_can_not_be_exact_is_refused_by_name(asked: str, named: str) -> None:
    plan = planned(asked)
    assert len(plan.problems) == 1 and named in plan.problems[0] and not plan.tables


@pytest.mark.parametrize(
    ("more", "named"),
    [({"from_key": "1"}, "no key that ranges"), ({"where": "v = 1"}, "rows of a condition")],
)
def test_a_table_without_a_key_is_copied_as_a_whole_or_not_at_all(
    more: dict[str, str], named: str
) -> None:
    held = {"s.bare": {"id", "v"}}
    assert named in planned("s.bare", held=held, **more).problems[0]
    plan = planned("s.bare", held=held)
    assert plan.tables[0].key == () and not plan.problems and "as one chunk" in plan.notes[0]


def test_a_condition_that_tidb_refuses_is_told_and_globs_leave_out_what_is_not_replicated() -> None:
    assert "Unknown column 'nonsense'" in planned("s.t", where="nonsense = 1").problems[0]
    assert "aren't reported" in planned("s.t", where="v = 1").notes[0]
    assert [found.name for found in planned("s.[tl]*").tables] == ["s.t"]
    assert "about one table" in planned("s.t", "s.bare", from_key="1").problems[0]
