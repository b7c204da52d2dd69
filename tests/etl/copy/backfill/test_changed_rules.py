"""Rules that change while a pipeline runs: which tables follow former ones, and until when."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sluice.etl.copy.backfill import BackfillRequest, plan_backfill
from sluice.etl.copy.rule_changes import note_rules, outdated_tables, warn_of_outdated
from sluice.etl.operate.status import status
from sluice.etl.settings.rules import parse_filter
from sluice.etl.verify import VerifyRequest, create_verify, run_verify
from sluice.relay.jobs import Runner
from tests.etl.copy.backfill.running import DATABASE, Pipeline, pipeline, typing
from tests.etl.mariadb_fixture import MariaDBServer

ROWS, COLUMNS, OTHER = (f"{DATABASE}.load_{number}" for number in (1, 2, 3))
RULES = {
    "rows": [{"tables": [ROWS], "where": "k < 1"}],
    "columns": [{"tables": [COLUMNS], "leave-out": ["pad"]}],
}
TOML = f"""
[[filter.rows]]
tables = ["{ROWS}"]
where = "k < 1"
[[filter.columns]]
tables = ["{COLUMNS}"]
leave-out = ["pad"]
"""


@pytest.fixture
def running(
    mariadb_server: MariaDBServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    folder = tmp_path_factory.mktemp("changed_rules")
    with pipeline(mariadb_server, "sc://127.0.0.1:1", folder) as made:
        note_rules(made.settings, made.settings.open_relay())
        made.fill(transactions=30, rows=20, tables=3)
        assert made.tables()[:3] == ["load_1", "load_2", "load_3"]
        yield made


def named(running: Pipeline) -> list[str]:
    return [table.name for table in outdated_tables(running.settings)]


@pytest.mark.slow
def test_tables_whose_rules_changed_are_named_until_a_backfill_or_a_verification_has_them(
    running: Pipeline, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    note_rules(running.settings, running.settings.open_relay())
    assert named(running) == []
    running.stop()
    changed = replace(running.settings, filters=parse_filter(RULES)[0])
    again = Pipeline(changed, running.control, running.sql_port)

    # nothing applies by them yet
    assert named(again) == [ROWS, COLUMNS]
    found = status(changed)
    assert found["rules_changed"] and not found["outdated"]
    assert any("other rules" in one for one in plan_backfill(changed, request(ROWS)).problems)

    # a process that applies begins
    with caplog.at_level(logging.WARNING, "sluice.apply"):
        warn_of_outdated(changed)
    said = [line for line in caplog.messages if "follow former rules" in line]
    assert [f"sluice backfill --table {name}`" in line for name, line in zip((ROWS, COLUMNS), said)]
    assert len(said) == 2 and "[[filter.rows]]" in said[0] and "[[filter.columns]]" in said[1]
    assert [table["table"] for table in status(changed)["outdated"]] == [ROWS, COLUMNS]
    folder = tmp_path_factory.mktemp("typed")
    typed = typing(changed, folder)
    with (folder / "sluice.toml").open("a") as file:
        file.write(TOML)
    lines = typed("config", "--check", OTHER).stdout.splitlines()
    assert [line.split()[3] for line in lines if "former rules" in line] == [ROWS, COLUMNS]
    checks = json.loads(typed("doctor", "--json").stdout)
    assert f"`sluice backfill --table {ROWS}`" in json.dumps(checks)
    assert "follows former ones" in typed("status").stdout

    again.start()
    try:
        again.backfill(ROWS)
        assert named(again) == [COLUMNS]
        again.caught_up()
        wanted = again.upstream(f"SELECT * FROM {ROWS} WHERE k < 1 ORDER BY id")
        assert again.downstream(f"SELECT * FROM {ROWS} ORDER BY id") == wanted

        again.downstream(f"ALTER TABLE {COLUMNS} DROP COLUMN pad")
        job = create_verify(changed, VerifyRequest((COLUMNS,)), "test")
        assert run_verify(changed, job.id, Runner("test")).equal
        assert named(again) == []
        caplog.clear()
        warn_of_outdated(changed)
        assert not caplog.messages and not status(changed)["outdated"]
    finally:
        again.stop()


def request(name: str) -> BackfillRequest:
    return BackfillRequest((name,))
