"""A pump's disk is lost with transactions that only it had: the runbook's commands bring their rows
back, and tell which transactions they were.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import Result

from sluice.devstack.stack import Stack, StackError
from sluice.etl.downstream.sinks import ApplyError
from sluice.etl.landing.planner import UnreadPumpError
from sluice.relay import RelayLog
from tests.etl.copy.backfill.running import DATABASE, Pipeline, pipeline, typing
from tests.etl.mariadb_fixture import MariaDBServer

pytestmark = pytest.mark.slow

MARKED = f"{DATABASE}.txn"
"""Each transaction has a row here, with its number for a key."""


@pytest.fixture
def running(
    mariadb_server: MariaDBServer,
    spark_remote: str,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
) -> Iterator[Pipeline]:
    with pipeline(mariadb_server, spark_remote, tmp_path) as found:
        yield found
        found.control.stop()


def write(running: Pipeline, transactions: int, updates: float) -> None:
    before = len(running.control.numbered_commits())
    running.control.workload(
        {"rate": "max", "transactions": transactions, "rows": 5, "updates": updates}
    )
    running.wait(
        lambda: (
            len(running.control.numbered_commits()) == before + transactions
            and running.control.status()["newest_commit_ts"]
        ),
        "they are committed",
    )
    running.control.stop()


def lose_pump_2(running: Pipeline, stack: Stack) -> Pipeline:
    """Transactions are on pump-2 that nobody has read when it and its disk are gone.

    The pipeline that goes on.
    """
    write(running, 40, 0.5)
    running.caught_up()
    running.stop()
    write(running, 30, 0)
    stack.stop(["pump-2"], 0)
    shutil.rmtree(stack.home / "pump-2")
    return Pipeline(running.settings, running.control, running.sql_port)


def said(typed: Callable[..., Result], *words: str, code: int | None) -> str:
    done = typed(*words)
    assert done.return_value == code, (words, done.output, done.exception)
    return done.stdout


def resume_when_repair(running: Pipeline, log: RelayLog) -> None:
    """As somebody does who reads that the repair has begun: applying starts again."""
    running.wait(log.aligned_chunks.repairs, "the repair has begun")
    running.start_applying()


def test_what_is_lost_is_said_to_the_transaction_and_brought_back_by_the_runbooks_commands(
    running: Pipeline, tmp_path: Path
) -> None:
    stack, typed = Stack(tmp_path / "stack"), typing(running.settings, tmp_path)
    again = lose_pump_2(running, stack)
    with pytest.raises(StackError, match=r"is a disk not mounted"):
        stack.up(["pump-2"], live=True)
    newest = running.control.status()["newest_commit_ts"]
    log = RelayLog.open(running.settings.relay.url)
    landed = log.last()
    assert landed is not None and landed.hi < newest
    said(typed, "pumps", "offline", "pump-2", "--gone", code=None)
    again.start()
    again.threads[0].join(180)
    stopped = again.errors.pop()
    assert (
        isinstance(stopped, UnreadPumpError)
        and "'pump-2'" in str(stopped)
        and str(landed.hi) in str(stopped)
    )
    again.stop()
    said(typed, "pumps", "forget", "pump-2", code=None)
    again = Pipeline(running.settings, running.control, running.sql_port)
    again.start()
    try:
        again.caught_up()
        there = {number for (number,) in again.downstream(f"SELECT id FROM {MARKED}")}
        gone = {ts for ts, _, number in running.control.numbered_commits() if number not in there}
        assert gone, "pump-2 had some of them alone"
        found = json.loads(said(typed, "verify", "--json", code=1))
        notes = [
            note for table in found["tables"] if table["name"] == MARKED for note in table["notes"]
        ]
        assert {
            int(ts) for note in notes for ts in re.findall(r"^lost: committed at (\d+) ", note)
        } == gone
        assert (
            f"{len(gone)} transactions wrote rows upstream of which no binlog has landed"
            in "".join(notes)
        )
        differing = [table["name"] for table in found["tables"] if table["differences"]]
        # What changes a row that a lost transaction made stops applying; the repair goes on with
        # it.
        write(running, 60, 1)
        again.threads[1].join(180)
        assert isinstance(stopped := again.errors.pop(), ApplyError) and DATABASE in str(stopped)
        with ThreadPoolExecutor() as pool:
            resumed = pool.submit(resume_when_repair, again, log)
            said(typed, "verify", *differing, "--repair", "--apply", code=0)
            resumed.result()
        stack.up(["pump-2"], live=True)
        write(running, 20, 0.5)
        assert said(typed, "verify", code=0).splitlines()[-1].startswith("equal: ")
        again.compared()
    finally:
        again.stop()
