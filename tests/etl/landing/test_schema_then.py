"""The schema that landing begins with is the same from a kept snapshot and from all DDL jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest

from sluice.etl.landing import schema_rebuild
from sluice.etl.landing._job import TableSpan
from sluice.etl.landing._tables_without_ddl import UnknownTableError
from sluice.etl.landing.schema import LandingSchema
from sluice.etl.landing.schema_rebuild import SchemaRebuilder
from sluice.relay.schema_snapshots import SchemaSnapshots
from sluice.relay.storage import open_storage
from sluice.tidb import PDClient, TiKVClient
from sluice.tidb.history import SchemaHistory
from sluice.tidb.id_maps import LiveTables
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.schema import Table
from sluice.tidb.tikv.meta import history_job_key
from tests.tidb import recorded


class History:
    """TiDB's DDL history as TiKV's client gives it, of the jobs that have ended so far.

    Counts what is read.
    """

    def __init__(self, documents: list[dict[str, Any]]) -> None:
        self._values = {
            history_job_key(document["id"]): json.dumps(document).encode() for document in documents
        }
        self.read = 0

    def get(self, key: bytes, ts: int) -> bytes | None:
        self.read += 1
        return self._values.get(key)

    def scan(
        self, start: bytes, end: bytes, ts: int, limit: int = 256, *, keys_only: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(self._values):
            if start <= key < end:
                self.read += not keys_only
                yield key, b"" if keys_only else self._values[key]


@pytest.fixture
def snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SchemaSnapshots:
    monkeypatch.setattr(schema_rebuild, "MIN_JOBS_TO_SNAPSHOT", 1)
    return SchemaSnapshots(open_storage(tmp_path.as_uri()))


def documents(name: str) -> list[dict[str, Any]]:
    return sorted(
        recorded.meta(name)[0].values(),
        key=lambda document: DdlHistoryJob.from_json(document).schema_version,
    )


def schema(
    history: Any, version: int, snapshots: SchemaSnapshots | None, *, old: bool = False
) -> SchemaHistory:
    return (
        SchemaRebuilder(history, 1 << 60, old_collations=old).at_version(version, snapshots).history
    )


@pytest.mark.parametrize(("name", "old"), [("ddl", False), ("edges", False), ("oldcoll", True)])
def test_going_on_from_a_kept_schema_gives_what_all_jobs_give_and_goes_on_alike(
    name: str, snapshots: SchemaSnapshots, *, old: bool
) -> None:
    jobs = documents(name)
    step = len(jobs) // 6 + 1
    for ended in range(0, len(jobs), step):
        version = max(
            (DdlHistoryJob.from_json(each).schema_version for each in jobs[:ended]), default=0
        )
        kept = schema(History(jobs[:ended]), version, snapshots, old=old)
        whole = schema(History(jobs[:ended]), version, None, old=old)
        assert kept.to_json() == whole.to_json()
        for document in jobs[ended : ended + step]:
            job = DdlHistoryJob.from_json(document)
            assert kept.apply(job) == whole.apply(job)
        assert kept.to_json() == whole.to_json()


def test_only_the_jobs_since_are_read(snapshots: SchemaSnapshots) -> None:
    jobs = documents("ddl")
    version = DdlHistoryJob.from_json(jobs[-3]).schema_version
    schema(History(jobs[:-2]), version, snapshots)
    history = History(jobs)
    schema(history, version, snapshots)
    assert history.read == 2


def test_a_job_of_an_earlier_version_that_came_later_is_not_passed_over(
    snapshots: SchemaSnapshots,
) -> None:
    """A long ADD INDEX ends behind jobs that were begun after it.

    Its version is higher, so nothing but a fault of ours could bring this about.
    """
    jobs = documents("ddl")
    late = next(
        job
        for job in jobs
        if DdlHistoryJob.from_json(job).finished and DdlHistoryJob.from_json(job).table_info
    )
    version = DdlHistoryJob.from_json(jobs[-1]).schema_version
    schema(History([job for job in jobs if job is not late]), version, snapshots)
    assert (
        schema(History(jobs), version, snapshots).to_json()
        == schema(History(jobs), version, None).to_json()
    )


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_a_damaged_snapshot_costs_time_and_nothing_else(
    tmp_path: Path, snapshots: SchemaSnapshots, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = documents("ddl")
    version = DdlHistoryJob.from_json(jobs[-1]).schema_version
    schema(History(jobs), version, snapshots)
    storage = open_storage(tmp_path.as_uri())
    (name,) = storage.names("schema")
    data = bytearray(storage.read(f"schema/{name}"))
    data[len(data) // 2] ^= 255
    damaged = {"cut": bytes(data[:99]), "flipped": bytes(data), "empty": b"", "foreign": b"{}"}[
        damage
    ]
    storage.replace(f"schema/{name}", damaged)
    assert (
        schema(History(jobs), version, snapshots).to_json()
        == schema(History(jobs), version, None).to_json()
    )
    assert name in caplog.text


def test_the_snapshot_is_never_ahead_of_where_landing_begins_and_two_are_kept(
    tmp_path: Path, snapshots: SchemaSnapshots
) -> None:
    jobs = documents("ddl")
    versions = [
        DdlHistoryJob.from_json(job).schema_version
        for job in jobs
        if DdlHistoryJob.from_json(job).finished
    ]
    for version in versions[-3:]:
        schema(History(jobs), version, snapshots)
    assert len(open_storage(tmp_path.as_uri()).names("schema")) == 2
    for version in versions[-4:]:
        assert (
            schema(History(jobs), version, snapshots).to_json()
            == schema(History(jobs), version, None).to_json()
        )


def test_a_kept_schema_of_other_collations_is_not_gone_on_from(snapshots: SchemaSnapshots) -> None:
    jobs = documents("oldcoll")
    version = DdlHistoryJob.from_json(jobs[-1]).schema_version
    schema(History(jobs), version, snapshots, old=False)
    found = schema(History(jobs), version, snapshots, old=True)
    assert found.to_json() == schema(History(jobs), version, None, old=True).to_json()
    assert found.has_old_collations


class _Uncounted(LiveTables):
    """Can't be gone through."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all tables were gone through")

    def copy(self) -> LiveTables:
        raise AssertionError("all tables were copied")


def test_a_window_without_ddl_costs_the_same_however_many_tables_there_are() -> None:
    history = SchemaHistory(
        tables=[Table(n, 1, "s", f"t{n}", ()) for n in range(1, 4)], schema_version=5
    )
    tables = _Uncounted()
    for n in range(1, 4):
        tables[n] = history.tables[n]
    history.tables = tables
    tikv = mock.Mock(spec=TiKVClient)
    tikv.get.return_value = b"5"
    tikv.scan.return_value = ()
    landing = LandingSchema(history, cast(PDClient, None), tikv)
    span = TableSpan(1, 10, 10, 5, 5)
    found = landing.resolve((), {2: span}, lambda seconds: False)
    assert {i: table and table.name for i, table in found.tables.items()} == {2: "t2"}
    with pytest.raises(UnknownTableError):
        landing.resolve((), {2: span, 9: span}, lambda seconds: False)
