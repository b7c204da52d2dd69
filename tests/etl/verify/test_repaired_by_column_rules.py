"""Repairs beside a pipeline that leaves a column out, masks and renames one, and adds two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluice.etl.changes.planning import prepare
from sluice.etl.copy.backfill import run_backfill
from sluice.etl.settings.rules import parse_filter
from sluice.etl.verify import VerifyRequest, VerifySummary, create_verify, run_verify
from sluice.etl.verify.reapply import ReplayRequest, create_or_resume, run_reapply
from sluice.etl.verify.reapply.repair_run import latest_rows_options
from sluice.etl.verify.repair import create_repair, repair_sql
from sluice.relay.jobs import Runner
from tests.etl.copy.backfill.running import DATABASE, Pipeline, pipeline
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.masking import KEY, SECTION, VARIABLE, masked

TABLE = f"{DATABASE}.load_1"
RULE = {"leave-out": ["k"], "rename": {"pad": "filling"}, "mask": {"pad": "digits"}}
ADD = {"label": "concat(id, '!')", "source": "'eu'"}
RULES = {"columns": [{"tables": [TABLE], **RULE, "add": ADD}], "mask": SECTION}


@pytest.fixture(scope="module", autouse=True)
def key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, KEY)
        yield


@pytest.fixture(scope="module")
def running(
    key: None,
    mariadb_server: MariaDBServer,
    spark_remote: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pipeline]:
    rules = {"filters": parse_filter(RULES)[0], "relay_log_values": SECTION["relay-log"]}
    folder = tmp_path_factory.mktemp("by_column_rules")
    with pipeline(mariadb_server, spark_remote, folder, **rules) as made:
        made.fill(transactions=20, rows=30, tables=1)
        made.control.workload(
            {"rate": 20, "transactions": None, "rows": 5, "tables": 1, "updates": 0}
        )
        yield made
        made.control.stop()


def damage(running: Pipeline) -> None:
    running.caught_up()
    running.downstream(f"DELETE FROM {TABLE} WHERE id % 7 = 0 AND id < 300")
    running.downstream(f"UPDATE {TABLE} SET filling = 'damaged' WHERE id % 11 = 0 AND id < 300")


def verified(running: Pipeline) -> VerifySummary:
    job = create_verify(running.settings, VerifyRequest((TABLE,)), "test")
    return run_verify(running.settings, job.id, Runner("test"))


def check(running: Pipeline) -> None:
    running.caught_up()
    with running.snapshot() as (ts, select):
        clear = running.upstream(f"SELECT id, pad FROM {TABLE} ORDER BY id", ts)
        wanted = [(n, masked(pad, "digits"), f"{n}!", "eu") for n, pad in clear]
        assert wanted[0][1] != clear[0][1]
        assert len(wanted) > 300 and select(f"SELECT * FROM {TABLE} ORDER BY id") == wanted
    assert [name for name, *_ in running.downstream(f"SHOW COLUMNS FROM {TABLE}")] == [
        "id",
        "filling",
        *ADD,
    ]


@pytest.mark.slow
def test_a_verification_finds_the_rows_and_its_repair_makes_them_what_the_rule_leaves(
    running: Pipeline,
) -> None:
    damage(running)
    summary = verified(running)
    (table,) = summary.unequal
    assert table.differences > 50
    assert b"`filling`" in b"\n".join(repair_sql(running.settings, summary))
    job = create_repair(running.settings, summary, "test")
    found = run_backfill(running.settings, job.id, Runner("test"), read=running.read)
    assert found.tables[TABLE]["inserted"] and found.tables[TABLE]["replaced"]
    check(running)
    assert verified(running).equal


@pytest.mark.slow
def test_rows_come_from_the_relay_log_as_the_rule_leaves_them(running: Pipeline) -> None:
    damage(running)
    relay = running.settings.open_relay()
    first, last = relay.first(), relay.last()
    assert first is not None and last is not None
    request = ReplayRequest(first.lo, last.hi, tables=(TABLE,))
    options = latest_rows_options(running.settings, request)
    done = run_reapply(
        running.settings,
        create_or_resume(running.settings, request, "test"),
        Runner("test"),
        prepare=lambda windows: prepare(running.settings.relay.url, windows, options),
    )
    assert done.is_done and done.repaired[TABLE]["inserted"] and done.repaired[TABLE]["replaced"]
    check(running)
