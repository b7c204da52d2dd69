"""Two pumps share the tables, and what landing joins of them is TiDB's tables in a MariaDB.

All processes are real: the pumps and landing, whose windows Spark extracts and prepares. A pump and
landing die on the way, and the comparison goes on behind that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from sluice.etl import load_settings
from sluice.etl.apply import run_apply
from sluice.relay import RelayLog
from sluice.tidb.table_shares import Share
from tests.etl.captured_site import Site
from tests.etl.mariadb_fixture import MariaDBServer

DATABASE = "sluice_load"
TABLES = ("txn", "load_1", "load_2", "load_3")
SHARES = {"first": "1/2", "second": "2/2"}


@pytest.fixture
def site(tmp_path: Path, mariadb: MariaDBServer, spark_remote: str) -> Iterator[Site]:
    downstream = f'[downstream]\nhost = "127.0.0.1"\nport = {mariadb.port}'
    made = Site(tmp_path, downstream, version="8.0.11-TiDB-v8.5.1", spark=spark_remote)
    yield made
    made.close()


def rows(port: int) -> dict[str, list[tuple[Any, ...]]]:
    found = {}
    with (
        pymysql.connect(host="127.0.0.1", port=port, user="root") as connection,
        connection.cursor() as cursor,
    ):
        for name in TABLES:
            cursor.execute(f"SELECT * FROM {DATABASE}.{name}")
            found[name] = sorted(cursor.fetchall())
    return found


def landed_through(site: Site, ts: int) -> None:
    relay = RelayLog.open(f"file://{site.folder}/relay")
    names = ("land", *SHARES)
    site.wait(lambda: (last := relay.last()) is not None and last.hi >= ts, names)


def grow(site: Site, count: int = 20) -> None:
    through = site.committed() + count
    site.wait(lambda: site.committed() > through, ("cluster",))
    landed_through(site, int(site.ask("/status")["newest_commit_ts"]))


@pytest.mark.slow
def test_shares_of_two_pumps_are_joined_by_spark_into_tidb_s_tables_though_processes_die(
    site: Site, mariadb: MariaDBServer
) -> None:
    site.config.write_text(site.config.read_text().replace("-ts = 0\n", "-ts = -1\n"))
    settings = load_settings(site.config)
    for name, share in SHARES.items():
        site.pump(name, captures=True, share=share)
    logs = [site.folder / f"{name}.log" for name in SHARES]
    site.wait(lambda: all("capture begins" in log.read_text() for log in logs), tuple(SHARES))
    site.land()
    landed_through(site, 0)
    workload = {"rate": 40, "transactions": None, "rows": 3, "deletes": 0.1, "tables": 3}
    site.ask("/workload", binlogs=False, **workload)
    grow(site)
    site.kill("land")
    site.land()
    grow(site)
    site.kill("second")
    before = site.committed()
    site.wait(lambda: site.committed() > before + 20, ("cluster",))
    site.pump("second", captures=True, share=SHARES["second"])
    site.kill("land")  # amid what the pump that was away has still to give
    site.land()
    grow(site)
    site.ask("/stop", now=True)
    site.wait(lambda: site.ask("/workload")["state"] == "done")
    ts = int(site.ask("/status")["newest_commit_ts"])
    landed_through(site, ts)

    run_apply(settings, until_ts=ts, run_seconds=120)
    there = rows(mariadb.port)
    assert there == rows(site.sql)
    assert [number for number, _ in there["txn"]] == list(range(1, site.committed() + 1))

    relay = RelayLog.open(settings.relay.url)
    changes = relay.read(list(relay.windows(0))).to_pydict()
    places = list(zip(changes["commit_ts"], changes["start_ts"], strict=True))
    assert len(set(places)) == site.committed(), "each transaction has its two timestamps"
    shares = {table: Share(1, 2).owns(table) for table in set(changes["table_id"])}
    assert set(shares.values()) == {True, False}, "both pumps have tables"
    joined: dict[tuple[int, int], set[bool]] = {}
    for place, table in zip(places, changes["table_id"], strict=True):
        joined.setdefault(place, set()).add(shares[table])
    assert sum(len(found) == 2 for found in joined.values()) > 20, "transactions in two parts"
