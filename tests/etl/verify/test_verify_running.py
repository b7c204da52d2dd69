"""Verification beside a pipeline that runs, under live traffic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sluice.cli import group
from sluice.etl.settings import Verify
from sluice.etl.tasks.job_kinds import begin, work
from sluice.etl.tasks.verify import VerifyKind
from sluice.etl.verify import (
    TableResult,
    VerifyError,
    VerifyRequest,
    VerifySummary,
    create_verify,
    run_verify,
)
from sluice.etl.verify.result import UnequalError
from sluice.etl.verify.result_collector import ResultCollector
from sluice.expectations.upstream_rows import compared_with_upstream
from sluice.relay.jobs import CANCEL, CANCELLED, DONE, PAUSE, PAUSED, Runner
from sluice.relay.verification_log import Verifications
from sluice.tidb import tso
from tests.etl.copy.backfill.running import DATABASE, Pipeline, pipeline
from tests.etl.mariadb_fixture import MariaDBServer


@pytest.fixture(scope="module")
def running(
    mariadb_server: MariaDBServer, spark_remote: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pipeline]:
    with pipeline(mariadb_server, spark_remote, tmp_path_factory.mktemp("verify")) as found:
        found.fill(transactions=40, rows=50)
        yield found
        found.control.stop()


def verified(running: Pipeline, *tables: str) -> VerifySummary:
    job = create_verify(running.settings, VerifyRequest(tables), "test")
    return run_verify(running.settings, job.id, Runner("test"))


def table_of(running: Pipeline) -> str:
    (name, *_), *_ = running.upstream(f"SHOW TABLES FROM {DATABASE}")
    return f"{DATABASE}.{name}"


@pytest.mark.slow
def test_both_sides_are_equal_at_a_checkpoint_while_they_change(running: Pipeline) -> None:
    running.traffic(updates=0.5)
    summary = verified(running)
    running.control.stop()
    assert (summary.state, summary.equal, summary.unequal) == (DONE, True, ())
    assert summary.rows >= 2000 and summary.how == "upstream"
    last = Verifications(running.settings.open_relay()).last()
    assert {name: table.equal for name, table in last.items()} == {
        table.name: True for table in summary.tables
    }
    assert all(table.ts == summary.ts and table.job == summary.job for table in last.values())


def test_a_row_that_differs_comes_with_both_values_and_what_the_binlog_says_of_it(
    running: Pipeline,
) -> None:
    running.caught_up()
    name = table_of(running)
    ((key,),) = running.upstream(f"SELECT id FROM {name} ORDER BY id LIMIT 1")
    ((before,),) = running.downstream(f"SELECT k FROM {name} WHERE id = {key}")
    running.downstream(f"UPDATE {name} SET k = k + 1 WHERE id = {key}")
    try:
        summary = verified(running, name)
    finally:
        running.downstream(f"UPDATE {name} SET k = k - 1 WHERE id = {key}")
    (table,) = summary.unequal
    (one,) = table.examples
    assert (table.differences, one.kind, one.key, one.columns) == (
        1,
        "changed",
        {"id": key},
        ("k",),
    )
    assert one.upstream is not None and one.downstream is not None
    assert (one.upstream["k"], one.downstream["k"]) == (before, before + 1)
    lo, hi = map(int, one.window.strip("(]").split(", "))
    assert lo < one.commit_ts <= hi and tso.text(one.commit_ts) in one.binlog
    last = Verifications(running.settings.open_relay()).last()[name]
    assert (last.differences, last.equal) == (1, False)


@pytest.mark.slow
def test_an_expectation_of_being_equal_to_the_upstream_finds_the_row_that_is_not(
    running: Pipeline,
) -> None:
    running.caught_up()
    name = table_of(running)
    met, said, rows = compared_with_upstream(running.settings, name, "auto")
    assert (met, rows) == (True, []) and "as of " in said
    ((key,),) = running.upstream(f"SELECT id FROM {name} ORDER BY id DESC LIMIT 1")
    running.downstream(f"UPDATE {name} SET k = k + 1 WHERE id = {key}")
    try:
        met, said, rows = compared_with_upstream(running.settings, name, "auto")
    finally:
        running.downstream(f"UPDATE {name} SET k = k - 1 WHERE id = {key}")
    assert not met and said.startswith("1 rows differ")
    assert (rows[0]["row"], rows[0]["columns"]) == (f"id = {key}", "k")
    with pytest.raises(VerifyError, match="no table nothing"):
        compared_with_upstream(running.settings, "nothing.like_this", "auto")


@pytest.mark.slow
def test_a_paused_verification_goes_on_with_the_tables_that_are_left(
    running: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.caught_up()
    job = create_verify(running.settings, VerifyRequest(), "test")
    take = ResultCollector.take

    def paused_then(self: Any, result: TableResult) -> None:
        take(self, result)
        job.order(PAUSE, "test")
        self.run.look()

    monkeypatch.setattr(ResultCollector, "take", paused_then)
    paused = run_verify(running.settings, job.id, Runner("test"))
    assert (paused.state, len(paused.tables)) == (PAUSED, 1)
    monkeypatch.setattr(ResultCollector, "take", take)
    summary = run_verify(running.settings, job.id, Runner("test"))
    assert (summary.state, summary.equal, len(summary.tables)) == (
        DONE,
        True,
        len(running.tables()),
    )
    assert paused.tables[0] in summary.tables, "it was not compared again"
    given_up = create_verify(running.settings, VerifyRequest(), "test")
    given_up.order(CANCEL, "test")
    assert run_verify(running.settings, given_up.id, Runner("test")).state == CANCELLED


@pytest.mark.slow
def test_the_dag_compares_when_it_is_due_and_fails_for_rows_that_differ(running: Pipeline) -> None:
    running.caught_up()
    form = {"tables": [], "how": "auto"}
    assert begin(running.settings, "verify", form, "a run", scheduled=True)["job"] is None, (
        "only when it is asked for"
    )
    often = replace(running.settings, verify=Verify(every="1h"))
    name = begin(often, "verify", form, "a run", scheduled=True)["job"]
    assert (name is None) == ("less than" in VerifyKind().not_due(often)), (
        "it was compared a moment ago, by another test"
    )
    table = table_of(running)
    asked = {"tables": [table, " "], "how": "auto"}
    name = begin(running.settings, "verify", asked, "manual__1")["job"]
    assert name is not None
    assert begin(running.settings, "verify", asked, "run 2")["job"] == name, (
        "the one that was begun"
    )
    assert work(running.settings, "verify", name, "run 1")["compared"] == 1
    running.downstream(f"INSERT INTO {table} SELECT -1, k, pad FROM {table} LIMIT 1")
    try:
        name = begin(running.settings, "verify", asked, "run 3")["job"]
        with pytest.raises(
            UnequalError, match=rf"{table}: 1 row of .* differ, among them {{'id': -1}}, extra"
        ):
            work(running.settings, "verify", name, "run 3")
    finally:
        running.downstream(f"DELETE FROM {table} WHERE id = -1")
    assert work(running.settings, "verify", None, "run 4") == {}


@pytest.mark.slow
def test_the_command_says_what_differs_and_its_exit_code_is_1(
    running: Pipeline, tmp_path: Path
) -> None:
    running.caught_up()
    settings, table = running.settings, table_of(running)
    config = tmp_path / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "{settings.upstream.pd_urls}"\nsql-host = "127.0.0.1"\nsql-port ='
        f' {settings.upstream.sql_port}\n[relay]\nurl = "{settings.relay.url}"\n[spark]\nremote ='
        f' "{settings.spark.remote}"\n[downstream]\nhost = "127.0.0.1"\nport ='
        f" {settings.downstream.port}\n"
    )

    def verify(*words: str) -> Result:
        return CliRunner().invoke(
            group, ["verify", *words, "--config", str(config)], standalone_mode=False
        )

    equal = verify()
    assert equal.return_value == 0, equal.exception
    assert f"equal: {len(running.tables())} tables, " in equal.output
    schema = table.partition(".")[0]
    running.downstream(f"CREATE TABLE {schema}.left_over (id INT)")
    try:
        more = verify()
    finally:
        running.downstream(f"DROP TABLE {schema}.left_over")
    assert (
        more.return_value == 1 and f"{schema}.left_over: only the downstream has it" in more.output
    )
    ((key,),) = running.upstream(f"SELECT id FROM {table} ORDER BY id LIMIT 1")
    ((before,),) = running.downstream(f"SELECT pad FROM {table} WHERE id = {key}")
    running.downstream(f"UPDATE {table} SET pad = 'other' WHERE id = {key}")
    try:
        wrong = verify(table)
        as_json = verify(table, "--json")
    finally:
        running.downstream(f"UPDATE {table} SET pad = '{before}' WHERE id = {key}")
    assert (wrong.return_value, as_json.return_value) == (1, 1), (
        wrong.exception,
        as_json.exception,
    )
    told = json.loads(as_json.stdout)
    assert (
        f"{table}: 1 row of" in wrong.output and f"id={key} is another downstream" in wrong.output
    )
    assert (told["equal"], told["differences"], told["tables"][0]["examples"][0]["columns"]) == (
        False,
        1,
        ["pad"],
    )


def test_what_can_not_be_verified_is_said_before_a_job_begins(running: Pipeline) -> None:
    with pytest.raises(VerifyError, match="no table nothing"):
        verified(running, "nothing.like_this")
    name = table_of(running)
    with pytest.raises(VerifyError, match=rf"no table {name}x; did you mean .*{name}"):
        verified(running, name, f"{name}x")  # of several one is mistyped
    with pytest.raises(VerifyError, match=r"schema\.table"):
        verified(running, "orders")
    without = replace(running.settings, upstream=replace(running.settings.upstream, sql_host=""))
    with pytest.raises(VerifyError, match="sql-host"):
        create_verify(without, VerifyRequest(how="upstream"), "test")
