"""What a plan tells, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sluice.etl.changes.rules import Filter, NameRule, Route, Routes
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.copy.plan import CopyPlan, make_copy_plan
from sluice.tidb.schema import Column, Schema, Table
from tests.etl.copy.copying import BANK_ONLY, RECORDING, definitions
from tests.etl.copy.dump_writer import POSITION, write


def recorded(
    filters: Filter, routes: Routes | None = None, globs: tuple[str, ...] = ()
) -> CopyPlan:
    source = DumplingFolder.open(str(RECORDING / "dump-csv-plain"))
    return make_copy_plan(source, definitions(source.position), filters, routes or Routes(), globs)


def test_a_plan_is_the_same_after_it_was_written_down() -> None:
    plan = recorded(BANK_ONLY)
    assert plan.problems == () and len(plan.tables) == 6 and plan.bytes > 400_000
    assert CopyPlan.from_json(plan.to_json()) == plan


def test_tables_that_the_rules_want_and_the_dump_lacks_stop() -> None:
    (problem,) = recorded(Filter()).problems
    assert "doesn't hold types.ai" in problem and "[filter]" in problem


def test_tables_that_nobody_asked_for_are_told() -> None:
    plan = recorded(BANK_ONLY, globs=("bank.acc*",))
    assert [planned.target for planned in plan.tables] == ["bank.account"] and not plan.problems
    assert any("not copied, as no --table names them: bank.child" in note for note in plan.notes)
    assert any(
        "TIMESTAMPs" in note or "views" in note or "not copied" in note for note in plan.notes
    )
    (problem,) = recorded(BANK_ONLY, globs=("bank.acc*", "bnk.*")).problems
    assert "--table bnk.*" in problem


def test_filters_and_routes_say_what_goes_where() -> None:
    routes = Routes((Route("bank", "acc*", "copy", "", "a rule"),))
    filters = replace(BANK_ONLY, ignored_tables=(NameRule("bank", "log_nopk", "ignored"),))
    targets = [planned.target for planned in recorded(filters, routes).tables]
    assert targets == ["copy.account", "bank.child", "bank.empty_one", "bank.ledger", "bank.parts"]


def test_generated_columns_that_only_tidb_computes_surely_stop(tmp_path: Path) -> None:
    columns = (
        Column(1, "a", 0, 5),
        Column(2, "b", 1, 5, generated="exp(`a`)", generated_stored=True),
    )
    made = Table(7, 3, "d", "t", columns)
    url = write(tmp_path, {"d.t.0.sql": b"INSERT INTO `t` (`a`) VALUES\n(1.5);\n"})
    plan = make_copy_plan(
        DumplingFolder.open(url),
        SourceSchema(POSITION, 1, (Schema(3, "d"),), (made,)),
        Filter(),
        Routes(),
    )
    assert "d.t: b would be plain columns downstream" in plan.problems[0]


def test_a_dump_of_another_cluster_stops(tmp_path: Path) -> None:
    url = write(tmp_path, {"d.t.0.sql": b"INSERT INTO `t` VALUES\n(1);\n"})
    plan = make_copy_plan(
        DumplingFolder.open(url), SourceSchema(POSITION, 1, (), ()), Filter(), Routes()
    )
    assert "the upstream had no d.t at" in plan.problems[0]
