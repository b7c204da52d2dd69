"""Restores to any commit, and to right before it: the rows are what a model of the cluster has
then.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from sluice.devstack.recording import Recording
from sluice.devstack.tidb.sql.versions import Versions
from sluice.etl.downstream import open_session
from sluice.etl.history.snapshots.downstream_rows import DownstreamTable, read_page
from sluice.etl.restore import RestoreRequest
from sluice.etl.tasks.form_fields import restore_request
from sluice.relay import RelayLog
from sluice.tidb.schema import Table
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS
from tests.etl.restore.restoring import archive_of, restore, settings_of

SHOP = RECORDINGS / "shop"
SEED, MOMENTS = 5, 1


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> str:
    return archive_of("shop", tmp_path_factory.mktemp("moments"), 700)


@pytest.fixture(scope="module")
def versions() -> Versions:
    return Versions(Recording(SHOP))


def commits(url: str) -> list[int]:
    log = RelayLog.open(url)
    return sorted(
        {ts for window in log.windows(0) for ts in log.read([window])["commit_ts"].to_pylist()}
    )


def moments(url: str, seed: int, count: int) -> Iterator[tuple[str, int]]:
    """As a person types them, and the last TSO that is in."""
    for ts in random.Random(seed).sample(commits(url)[1:], count):
        yield str(ts), ts
        yield f"before:{ts}", ts - 1


def check(server: MariaDBServer, url: str, versions: Versions, said: str, ts: int) -> list[str]:
    """Tables that aren't as in the model."""
    server.empty()
    settings = settings_of(server, url)
    request: RestoreRequest = restore_request({"until": said, "verify": False})
    assert request.until == ts
    restore(settings, request)
    tables = [
        table for table in versions.catalog(ts).tables.values() if table.schema_name == "bank"
    ]
    return [
        f"{t.full_name} at {said}"
        for t in tables
        if restored(server, t) != modelled(versions, t, ts)
    ]


def restored(server: MariaDBServer, table: Table) -> list[tuple[object, ...]]:
    place = DownstreamTable(table, f"{table.schema_name}_restored", table.name)
    with open_session(server.downstream) as session:
        rows = [row for batch, _ in read_page(session, place, "TRUE") for row in batch.to_pylist()]
    return sorted((tuple(map(plain, row.values())) for row in rows), key=repr)


def modelled(versions: Versions, table: Table, ts: int) -> list[tuple[object, ...]]:
    places = [
        n for n, column in enumerate(table.stored_columns) if column in table.writable_columns
    ]
    return sorted(
        (tuple(plain(row[n]) for n in places) for row in versions.rows(table, ts)), key=repr
    )


def plain(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.slow
def test_any_commit_is_in_and_the_same_one_is_out_right_before_it(
    mariadb: MariaDBServer, shop: str, versions: Versions
) -> None:
    for said, ts in moments(shop, SEED, MOMENTS):
        assert check(mariadb, shop, versions, said, ts) == []
