"""A real TiKV's change data, captured, landed and applied to a real MariaDB: what TiDB showed, at
every snapshot.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.settings import Apply, Relay, Settings, Upstream
from tests.etl.captured_recording import build
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import land
from tests.etl.snapshots import differences


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("captured") / "recording"
    return folder, build(folder)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_every_snapshot_of_all_recordings_is_equal_downstream(
    mariadb: MariaDBServer, tmp_path: Path, captured: tuple[Path, list[str]], mode: str
) -> None:
    folder, labels = captured
    url = f"file://{tmp_path}/relay"
    windows = [window.hi for window in land(folder, url, 1).windows(0)]
    settings = Settings(Upstream("unused"), Relay(url), mariadb.downstream, apply=Apply(mode=mode))
    times = {
        each["label"]: each["ts"] for each in json.loads((folder / "snapshots.json").read_text())
    }
    found = {}
    for label in labels:
        until_ts = max(hi for hi in windows if hi <= times[label])
        run_apply(settings, until_ts=until_ts, run_seconds=120, prepare=local_preparer(settings))
        if different := differences(folder, label, mariadb):
            found[label] = different
    assert found == {}
