"""DDL jobs that tell of rows without a binlog are named with the backfill that brings them.

No others are.
"""

from __future__ import annotations

import logging

import pytest

from sluice.etl.changes.rules import Filter, only_tables
from sluice.etl.landing._report import LandingCounters
from sluice.etl.landing._without_binlog import warn_without_binlog
from sluice.relay import RelayLog
from sluice.relay.measures import CounterStore
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlEffect, DdlJob
from tests.etl.story import table

ITEM = table(11, "item", "id int", primary="id")
NAMED = "run `sluice backfill --table d.item`"


def ddl(kind: int, query: str, *, schema: str = "d") -> DdlJob:
    return DdlJob(
        40, job_id=7, query=query, type=kind, schema_name=schema, effect=DdlEffect({}, {11: ITEM})
    )


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (ddl(Action.CREATE_TABLE, "/*from(br)*/CREATE TABLE `item` (`id` int)"), NAMED),
        (ddl(Action.CREATE_TABLES, "/*from(br)*/CREATE TABLE `item` (`id` int);"), NAMED),
        (
            ddl(Action.FLASHBACK_CLUSTER, "FLASHBACK CLUSTER TO TIMESTAMP '2026-01-01'"),
            "applying stops there",
        ),
        (
            ddl(
                Action.CREATE_TABLE, "CREATE TABLE `task_meta_v2` ()", schema="lightning_task_info"
            ),
            "physical mode",
        ),
        (
            ddl(
                Action.CREATE_SCHEMA,
                "CREATE DATABASE `lightning_task_info`",
                schema="lightning_task_info",
            ),
            "physical",
        ),
    ],
)
def test_a_job_whose_rows_come_without_a_binlog_is_named_with_what_brings_them(
    job: DdlJob, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sluice.land")
    assert warn_without_binlog([job], Filter().wants_table) == [job]
    (line,) = (record.getMessage() for record in caplog.records)
    assert "DDL job 7 at commit_ts 40" in line and said in line


@pytest.mark.parametrize(
    "job",
    [
        ddl(Action.CREATE_TABLE, "CREATE TABLE `item` (`id` int) COMMENT '/*from(br)*/'"),
        ddl(Action.ADD_COLUMN, "/*from(br)*/ALTER TABLE `item` ADD COLUMN `v` int"),
        ddl(Action.CREATE_SCHEMA, "CREATE DATABASE `d`"),
    ],
)
def test_other_jobs_are_not(job: DdlJob, caplog: pytest.LogCaptureFixture) -> None:
    assert not warn_without_binlog([job], Filter().wants_table) and not caplog.records


def test_a_restore_of_tables_that_are_left_out_is_not(caplog: pytest.LogCaptureFixture) -> None:
    job = ddl(Action.CREATE_TABLES, "/*from(br)*/CREATE TABLE `item` (`id` int)")
    assert (
        warn_without_binlog([job], only_tables(Filter(), ("d.other",)).wants_table) == []
        and not caplog.records
    )


def test_a_restore_of_many_tables_names_twenty_and_the_number_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = {n: table(n, f"item{n:02}", "id int", primary="id") for n in range(11, 34)}
    query = "/*from(br)*/CREATE TABLE `item11` (`id` int)"
    job = DdlJob(
        40, job_id=7, query=query, type=Action.CREATE_TABLES, schema_name="d",
        effect=DdlEffect({}, made),
    )  # fmt: skip
    warn_without_binlog([job], Filter().wants_table)
    line = caplog.records[0].getMessage()
    assert line.count("--table d.item") == 20
    assert "--table d.item30`, and 3 more tables" in line


def test_they_are_counted_for_the_metric(tmp_path) -> None:
    relay = RelayLog.open((tmp_path / "relay").as_uri())
    counting = LandingCounters(relay)
    counting.without_binlog(2)
    counting.close()
    assert CounterStore(relay).totals().land.counts["without_binlog"] == 2
