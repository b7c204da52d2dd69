"""A pipeline that runs in threads of the test, over a stand-in cluster with live traffic, and
backfills beside it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pymysql
import pytest
from click.testing import CliRunner, Result

from sluice.cli import group
from sluice.devstack.control import ClusterControl
from sluice.devstack.stack import Stack
from sluice.etl.apply import run_apply
from sluice.etl.changes.server_errors import UNKNOWN_DATABASE
from sluice.etl.copy.backfill import (
    BackfillRequest,
    BackfillSummary,
    cancel_backfill,
    create_backfill,
    run_backfill,
)
from sluice.etl.copy.backfill.reader import ReadRequest, ReadResult, read_chunk
from sluice.etl.copy.tidb_session import TidbAddress, TidbSession
from sluice.etl.landing import run_land
from sluice.etl.settings import Relay, Settings, Spark, Upstream, Window
from sluice.relay import RelayLog
from sluice.relay.jobs import CANCEL, Jobs, Runner
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer

DATABASE = "sluice_load"
_SETTLE_TIMEOUT_S = 120
CHECKPOINT = "SELECT JSON_VALUE(checkPoint, '$.commitTS') FROM tidb_binlog.checkpoint"


@dataclass
class Pipeline:
    """Landing and applying, each in a thread until `stop`; `errors` are what ended one."""

    settings: Settings
    control: ClusterControl
    sql_port: int
    errors: list[BaseException] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        self._run(lambda: run_land(self.settings, stop=self.stopped, start_ts=0))
        self.start_applying()

    def start_applying(self) -> None:
        self._run(
            lambda: run_apply(
                self.settings, stop=self.stopped, prepare=local_preparer(self.settings)
            )
        )

    def _run(self, work: Callable[[], Any]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)

        self.threads.append(threading.Thread(target=guarded, daemon=True))
        self.threads[-1].start()

    def stop(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(60)
        assert not self.errors, self.errors

    # Looking at both sides

    def upstream(self, statement: str, ts: int | None = None) -> list[tuple[Any, ...]]:
        with (
            pymysql.connect(host="127.0.0.1", port=self.sql_port, user="root") as connection,
            connection.cursor() as cursor,
        ):
            if ts is not None:
                cursor.execute(f"SET @@tidb_snapshot = '{ts}'")
            cursor.execute(statement)
            return list(cursor.fetchall())

    def downstream(self, statement: str) -> list[tuple[Any, ...]]:
        server = self.settings.downstream
        with (
            pymysql.connect(
                host=server.host, port=server.port, user=server.user, autocommit=True
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
            return list(cursor.fetchall())

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + 180
        while True:
            if self.errors:
                raise self.errors[0]
            try:
                if found := condition():
                    return found
            except (pymysql.err.ProgrammingError, IndexError):
                pass
            except pymysql.err.OperationalError as error:
                if error.args[0] != UNKNOWN_DATABASE:  # MySQL's word for a table in one
                    raise
            assert time.monotonic() < deadline, what
            time.sleep(0.05)

    def fill(self, transactions: int, rows: int, **more: int) -> None:
        """Upstream's first transactions, each of so many rows, are downstream."""
        self.control.workload({"rate": "max", "transactions": transactions, "rows": rows, **more})
        self.wait(
            lambda: len(self.control.numbered_commits()) == transactions, "the tables are filled"
        )
        self.control.stop()
        self.caught_up()

    def grow(self, transactions: int, rows: int) -> None:
        """Return when so many transactions that insert so many rows each are committed."""
        before = self.control.status()["newest_commit_ts"]
        self.control.stop()
        self.control.workload(
            {"rate": "max", "transactions": transactions, "rows": rows, "updates": 0}
        )
        self.wait(
            lambda: len(self.control.numbered_commits(before)) >= transactions, "rows are inserted"
        )

    def traffic(self, updates: float) -> None:
        """From now on 20 transactions/s, with that share of updates; the others insert rows.

        A row that is damaged must not be updated before a job that mends its table has begun:
        applying would stop, as it should.
        """
        self.control.stop()
        self.control.workload({"rate": 20, "transactions": None, "rows": 5, "updates": updates})

    def caught_up(self) -> None:
        """Wait until the downstream is past what is committed now."""
        newest = self.control.status()["newest_commit_ts"]
        self.wait(lambda: int(self.downstream(CHECKPOINT)[0][0]) >= newest, "applying caught up")

    def tables(self) -> list[str]:
        return [str(name) for (name,) in self.upstream(f"SHOW TABLES FROM {DATABASE}")]

    def compared(self) -> None:
        """Every table downstream is what it was upstream at the checkpoint, at a moment after all
        that is committed now.
        """
        self.caught_up()
        names = self.tables()
        with self.snapshot() as (ts, select):
            for name in names:
                statement = f"SELECT * FROM {DATABASE}.{name} ORDER BY id"
                assert select(statement) == self.upstream(statement, ts), name

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[tuple[int, Callable[[str], list[tuple[Any, ...]]]]]:
        """The downstream at one checkpoint: that, and what answers a SELECT."""
        server = self.settings.downstream
        with (
            pymysql.connect(host=server.host, port=server.port, user=server.user) as connection,
            connection.cursor() as cursor,
        ):

            def select(statement: str) -> list[tuple[Any, ...]]:
                cursor.execute(statement)
                return list(cursor.fetchall())

            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            yield int(select(CHECKPOINT)[0][0]), select

    # Backfilling

    def read(self, order: ReadRequest) -> ReadResult:
        """As Spark's workers read."""
        if self.errors:
            raise self.errors[0]
        with TidbSession(TidbAddress.from_settings(self.settings.upstream)) as session:
            return read_chunk(session, RelayLog.open(self.settings.relay.url).storage, order)

    def backfill(self, *tables: str, **more: Any) -> BackfillSummary:
        job = create_backfill(self.settings, BackfillRequest(tables, **more), "test")
        return run_backfill(self.settings, job.id, Runner("test"), read=self.read)

    def settle(self) -> None:
        """Cancel the backfills that aren't over, and make all tables what they are upstream."""
        relay = RelayLog.open(self.settings.relay.url)
        for job in Jobs(relay.storage).unfinished():
            cancel_backfill(self.settings, job.id, Runner("test"))
        self.traffic(updates=0)
        job = create_backfill(self.settings, BackfillRequest((f"{DATABASE}.*",)), "test")
        limit = threading.Timer(_SETTLE_TIMEOUT_S, job.order, (CANCEL, "test"))
        limit.start()
        try:
            run_backfill(self.settings, job.id, Runner("test"), read=self.read)
        finally:
            limit.cancel()
        self.caught_up()


@contextlib.contextmanager
def one_failure_alone(running: Pipeline, request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    """Yield the pipeline to a test; if it fails, the next one finds nothing of it."""
    failed = request.session.testsfailed
    yield running
    if request.session.testsfailed > failed:
        running.settle()


@contextlib.contextmanager
def pipeline(
    mariadb: MariaDBServer, spark_remote: str, folder: Path, **more: Any
) -> Iterator[Pipeline]:
    """A pipeline with nothing upstream as yet, into the server, which is emptied: another test's
    checkpoint isn't this one's.
    """
    mariadb.empty()
    stack = Stack(folder / "stack")
    try:
        stack.up(["etcd", "cluster", "pump-1", "pump-2"], live=True)
        ports = stack.site().ports
        settings = Settings(
            Upstream(
                f"http://127.0.0.1:{ports['cluster']}", initial_commit_ts=0, sql_host="127.0.0.1",
                sql_port=ports["cluster-sql"],
            ),
            Relay((folder / "relay").as_uri()),
            mariadb.downstream,
            spark=Spark(spark_remote),
            window=Window(idle_interval_ms=500),
        )  # fmt: skip
        made = Pipeline(
            replace(settings, **more),
            ClusterControl(ports["cluster-control"]),
            ports["cluster-sql"],
        )
        made.start()
        try:
            yield made
        finally:
            made.stop()
    finally:
        stack.down()


def typing(settings: Settings, folder: Path) -> Callable[..., Result]:
    """Types a command of `sluice` with these settings in a file."""
    config = folder / "sluice.toml"
    config.write_text(
        f'[upstream]\npd-urls = "{settings.upstream.pd_urls}"\nsql-host = "127.0.0.1"\nsql-port ='
        f' {settings.upstream.sql_port}\n[relay]\nurl = "{settings.relay.url}"\n[spark]\nremote ='
        f' "{settings.spark.remote}"\n[downstream]\nhost = "127.0.0.1"\nport ='
        f" {settings.downstream.port}\n"
    )

    def typed(*arguments: str) -> Result:
        return CliRunner().invoke(
            group, [*arguments, "--config", str(config)], standalone_mode=False
        )

    return typed
