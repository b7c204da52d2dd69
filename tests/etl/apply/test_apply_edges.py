"""The recording `edges`: what breaks replicators, as a real cluster sent it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS, land
from tests.etl.snapshots import differences

SNAPSHOTS = json.loads((RECORDINGS / "edges" / "snapshots.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param("atomic", marks=pytest.mark.slow), "parallel"])
def test_the_downstream_is_the_upstream_on_every_edge(
    mariadb: MariaDBServer, tmp_path: Path, mode: str
) -> None:
    url = f"file://{tmp_path}/relay"
    settings = Settings(Upstream("unused"), Relay(url), mariadb.downstream, apply=Apply(mode=mode))
    land(RECORDINGS / "edges", url, 40, until=SNAPSHOTS[-1]["ts"])
    for snapshot in SNAPSHOTS:
        run_apply(
            settings,
            until_ts=snapshot["ts"],
            run_seconds=120,
            prepare=local_preparer(settings),
        )
        assert differences(RECORDINGS / "edges", snapshot["label"], mariadb) == []
