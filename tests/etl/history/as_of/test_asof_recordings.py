"""Tables of recordings as of every moment of which TiDB's own rows are known, from the binlog
alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.devstack.recording import Recording
from sluice.devstack.tidb.sql.versions import Versions
from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.history.archive.archiver import Archiver
from sluice.etl.history.as_of import TimeTravelQuery, fingerprint, run_locally, tables_as_of
from sluice.etl.history.as_of.read_planner import SnapshotStart
from sluice.relay import RelayLog
from tests.etl.history.archive.archiving import LocalJobs, settings_of
from tests.etl.history.as_of.asking import (
    asked_for,
    labels,
    plain,
    rows_as_of,
    snapshot_differences,
)
from tests.etl.relay_from_recording import RECORDINGS, land

NAMES = ("types", "ddl", "edges", "bootstrap", "oldcoll", "shop")
_WITHOUT_ROWS = {"shop.gt"}
"""A temporary table."""
_DUMP = "dump_sql"
SEED, MOMENTS = 13, 2


@pytest.fixture(scope="module")
def relays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RelayLog]:
    folder = tmp_path_factory.mktemp("relays")
    return _Relays(folder)


class _Relays(dict[str, RelayLog]):
    """Land a recording when a test asks for it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, name: str) -> RelayLog:
        rows = 1000 if name == "shop" else 100
        self[name] = land(RECORDINGS / name, f"file://{self.folder}/{name}", rows)
        return self[name]


def _cases() -> Iterator[Any]:
    """Two recordings in `make test`, all in CI."""
    for name in NAMES:
        for label in labels(RECORDINGS / name):
            yield pytest.param(name, label)


def _moment(log: RelayLog, name: str, label: str) -> int:
    last = log.last()
    assert last is not None
    return min(int(labels(RECORDINGS / name)[label]["ts"]), last.hi)


@pytest.mark.quick_cases("[ddl-f_end]")
@pytest.mark.parametrize(("name", "label"), list(_cases()))
def test_every_table_is_at_every_snapshot_what_it_was_upstream(
    relays: dict[str, RelayLog], name: str, label: str
) -> None:
    log = relays[name]
    wanted = [
        full for full in labels(RECORDINGS / name)[label]["tables"] if full not in _WITHOUT_ROWS
    ]
    found = asked_for(log, _moment(log, name, label), [full.replace("[", "[[]") for full in wanted])
    assert len(found) == len(wanted)
    told = snapshot_differences(RECORDINGS / name, label, found)
    # The recorder of this one wrote NULL in place of its key.
    assert [line for line in told if name != "oldcoll" or not line.startswith("oldc.p:")] == []


@pytest.mark.slow
def test_any_commit_timestamp_gives_the_rows_that_the_stand_in_has_then(
    relays: dict[str, RelayLog],
) -> None:
    log = relays["shop"]
    versions = Versions(Recording(RECORDINGS / "shop"))
    commits = sorted(
        {ts for window in log.windows(0) for ts in log.read([window])["commit_ts"].to_pylist()}
    )
    users = {name.partition(".")[0] for name in labels(RECORDINGS / "shop")["e_end"]["tables"]}
    for ts in random.Random(SEED).sample(commits, MOMENTS):
        catalog = versions.catalog(ts)
        names = sorted(
            table.full_name for table in catalog.tables.values() if table.schema_name in users
        )
        for name, rows in rows_as_of(log, ts, names).items():
            table = catalog.find(*name.split("."))
            assert table is not None
            width = len(table.stored_columns)
            expected = [
                tuple(_plain(value) for value in row[:width]) for row in versions.rows(table, ts)
            ]
            assert plain(rows) == sorted(expected, key=repr), f"{name} at {ts}"


def _plain(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.slow
def test_a_snapshot_goes_on_to_the_same_rows_as_what_began_with_the_tables(
    relays: dict[str, RelayLog],
) -> None:
    name, log = "bootstrap", relays["bootstrap"]
    source = DumplingFolder.open((RECORDINGS / name / "dump-sql").as_uri())
    catalog = Versions(Recording(RECORDINGS / name)).catalog(source.position)
    start = SnapshotStart(
        source.position, {t.id: t for t in catalog.tables.values() if t.is_base_table}, source
    )
    wanted = list(labels(RECORDINGS / name)["z_end"]["tables"])
    for label in (_DUMP, "z_end"):
        ts = _moment(log, name, label)
        found = asked_for(log, ts, wanted, [start] if ts >= start.ts else [])
        assert snapshot_differences(RECORDINGS / name, label, found) == []


@pytest.mark.slow
def test_a_table_that_is_read_beside_others_is_the_same_as_alone(
    relays: dict[str, RelayLog], tmp_path: Path
) -> None:
    log = relays["ddl"]
    ts = _moment(log, "ddl", "f_end")
    names = [
        name for name in labels(RECORDINGS / "ddl")["f_end"]["tables"] if name not in _WITHOUT_ROWS
    ]
    together = rows_as_of(log, ts, names, buckets=5)
    for name, rows in together.items():
        assert plain(rows_as_of(log, ts, [name], buckets=1)[name]) == plain(rows)


@pytest.mark.slow
def test_what_is_read_of_an_archive_grows_with_the_tables_that_are_asked_for(
    relays: dict[str, RelayLog], tmp_path: Path
) -> None:
    settings = settings_of(relays["shop"].url, url=(tmp_path / "archive").as_uri())
    Archiver(settings, jobs=LocalJobs(settings)).through()
    ts = _moment(relays["shop"], "shop", "d_mid")
    whole, one = (
        tables_as_of(settings, ts, [glob], run=run_locally) for glob in ("bank.*", "bank.account")
    )
    assert _bytes(one) < _bytes(whole) / 2
    found = whole.fingerprints()
    assert one.fingerprints() == {"bank.account": found["bank.account"]}
    for name, rows in rows_as_of(relays["shop"], ts, ["bank.*"]).items():
        assert fingerprint(whole.tables[name].table, [rows]) == found[name]


def _bytes(past: TimeTravelQuery) -> int:
    return sum(task.bytes for plan in past.asked.plans for task in plan.tasks)
