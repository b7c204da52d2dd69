"""A replica of a TiDB without binlogs: the copy waits for a capture, and nothing is missing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from sluice.etl import load_settings
from sluice.etl.apply import run_apply
from sluice.etl.copy import BootstrapRequest, plan_bootstrap, run_bootstrap
from sluice.etl.copy.bootstrap import KIND
from sluice.etl.copy.sources import BootstrapSpec
from sluice.etl.copy.worker import make_loads
from sluice.relay import RelayLog
from sluice.relay.jobs import Jobs
from tests.etl.captured_site import Site
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer

DATABASE = "sluice_load"
FROM_TIDB = BootstrapRequest("tidb://")


@pytest.fixture
def site(tmp_path: Path, mariadb: MariaDBServer) -> Iterator[Site]:
    downstream = f'[downstream]\nhost = "127.0.0.1"\nport = {mariadb.port}'
    made = Site(tmp_path, downstream, version="8.0.11-TiDB-v8.5.1")
    yield made
    made.close()


def rows(port: int) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of the workload's tables."""
    with (
        pymysql.connect(host="127.0.0.1", port=port, user="root") as connection,
        connection.cursor() as cursor,
    ):
        found = {}
        for name in ("txn", "load_1"):
            cursor.execute(f"SELECT * FROM {DATABASE}.{name}")
            found[name] = sorted(cursor.fetchall())
        return found


@pytest.mark.slow
def test_a_replica_begins_beside_a_tidb_without_binlogs_while_it_writes_and_the_pump_dies(
    site: Site, mariadb: MariaDBServer
) -> None:
    settings = load_settings(site.config)
    site.write(binlogs=False)
    site.wait(lambda: site.committed() > 20, ("cluster",))
    (problem,) = plan_bootstrap(settings, FROM_TIDB).problems
    assert "v8.5.1" in problem and "`sluice pump -capture`" in problem

    failures: list[BaseException] = []
    chunks = 0

    def make(chunk: Any, table: Any) -> Any:
        nonlocal chunks
        chunks += 1
        if chunks == 1:  # what is committed from here on is in the capture alone
            site.kill("capture")
            before = site.committed()
            site.wait(lambda: site.committed() > before + 20, ("cluster",))
            site.pump("capture", captures=True)
        job = Jobs.for_pipeline(settings.open_relay()).find_open(KIND)
        assert job is not None
        return make_loads(BootstrapSpec.from_json(job.spec.asked).source, chunk, table)

    def copy() -> None:
        try:
            run_bootstrap(settings, FROM_TIDB, make=make)
        except BaseException as error:
            failures.append(error)

    copying = threading.Thread(target=copy)
    copying.start()
    site.pump("capture", captures=True)
    copying.join()
    assert not failures, failures
    assert chunks

    site.land()
    for victim in ("land", "capture"):
        site.grows()
        site.kill(victim)
        site.land() if victim == "land" else site.pump("capture", captures=True)
    site.grows()
    site.ask("/stop", now=True)
    site.wait(lambda: site.ask("/workload")["state"] == "done")
    ts = int(site.ask("/status")["newest_commit_ts"])
    relay = RelayLog.open(settings.relay.url)
    site.wait(lambda: (last := relay.last()) is not None and last.hi >= ts, ("land", "capture"))
    run_apply(settings, until_ts=ts, run_seconds=60, prepare=local_preparer(settings))
    there = rows(mariadb.port)
    assert there == rows(site.sql)
    assert [number for number, _ in there["txn"]] == list(range(1, site.committed() + 1))
