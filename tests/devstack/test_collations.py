"""The stand-in cluster says of a recorded one whether it has new collations, as its rows show."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.devstack.collations import recorded_new_collations
from sluice.devstack.recording import Recording, RecordingError
from sluice.etl.landing import version_at
from sluice.etl.landing.schema import LandingSchema
from sluice.etl.landing.schema_rebuild import InitialSchema
from sluice.etl.landing.upstream_schema import has_new_collations
from sluice.tidb import PDClient, TiKVClient, read_ddl_jobs
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.old_collations import is_binary
from tests.devstack.cluster_harness import RECORDINGS, Journal, cluster, etcd, pumps


@pytest.fixture(scope="module")
def etcd_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with etcd(tmp_path_factory.mktemp("etcd")) as url:
        yield url


def copied(name: str, folder: Path, **said: bool) -> Path:
    """A recording under another name, its recording.json with more keys."""
    shutil.copytree(RECORDINGS / name, folder)
    head = json.loads((folder / "recording.json").read_text())
    (folder / "recording.json").write_text(json.dumps({**head, "name": "x", **said}))
    return folder


@pytest.mark.quick_cases("oldcoll", "types")
@pytest.mark.parametrize(
    ("name", "expected"), [("oldcoll", False), ("types", True), ("shop", True)]
)
def test_tikv_has_the_row_of_mysql_tidb_under_whatever_name_a_recording_goes(
    etcd_url: str, tmp_path: Path, name: str, expected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        cluster(etcd_url, copied(name, tmp_path / "x")) as started,
        PDClient(started.url, timeout_s=60) as pd,
        TiKVClient(pd) as tikv,
    ):
        assert has_new_collations(tikv, pd.tso(), "auto") is expected
        assert "nothing in mysql.tidb" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("begins", ["before the first DDL", "at the end"])
def test_landing_finds_that_a_recorded_cluster_compares_bytes(
    etcd_url: str, caplog: pytest.LogCaptureFixture, begins: str
) -> None:
    """Also where it begins with the empty schema of before `mysql.tidb` was made."""
    with (
        cluster(etcd_url, RECORDINGS / "oldcoll") as started,
        PDClient(started.url, timeout_s=60) as pd,
        TiKVClient(pd) as tikv,
    ):
        with pumps(started.url, pd.cluster_id, Journal()):
            started.post("/replay")
            assert started.wait_state("done", "failed")["state"] == "done"
        end = version_at(tikv, pd.tso())
        landing = LandingSchema.load(pd, tikv, InitialSchema(end if begins == "at the end" else 0))
        history = landing._history
        for job in sorted(
            (DdlHistoryJob.from_json(raw) for raw in read_ddl_jobs(tikv, pd.tso())),
            key=lambda job: job.schema_version,
        ):
            history.apply(job)
        tables = [table for table in history.tables.values() if table.schema_name == "oldc"]
        assert {table.name for table in tables} >= {"p", "l"}
        assert all(map(is_binary, tables))
        assert "nothing in mysql.tidb" not in caplog.text


def test_where_no_row_shows_it_the_recording_may_say_it(tmp_path: Path) -> None:
    assert recorded_new_collations(Recording(RECORDINGS / "edges")) is True
    assert (
        recorded_new_collations(
            Recording(copied("edges", tmp_path / "said", new_collation_enabled=False))
        )
        is False
    )


def test_a_recording_that_says_otherwise_than_its_rows_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        RecordingError,
        match=(
            r"recording\.json has new_collation_enabled true, the rows .* show false; take the"
            r" key out"
        ),
    ):
        recorded_new_collations(
            Recording(copied("oldcoll", tmp_path / "x", new_collation_enabled=True))
        )
