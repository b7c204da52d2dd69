"""Recordings of a real cluster, restored to each of their snapshots from the archive alone: no
difference.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.etl.restore import RestoreRequest
from sluice.relay import RelayLog
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS
from tests.etl.restore.restoring import INTO, archive_of, restore, settings_of
from tests.etl.snapshots import differences


@pytest.mark.slow
@pytest.mark.ci_cases("types", "shop")
@pytest.mark.parametrize(
    "recording",
    ["types", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ddl", "shop", "edges"))],
)
def test_a_recording_restored_to_each_label_is_its_snapshot(
    mariadb: MariaDBServer, tmp_path: Path, recording: str
) -> None:
    settings = settings_of(mariadb, archive_of(recording, tmp_path))
    last = RelayLog.open(settings.relay.url).last()
    end = last.hi if last else 0  # behind the last commit the recording goes on for a moment
    snapshots = json.loads((RECORDINGS / recording / "snapshots.json").read_text())
    for snapshot in snapshots:
        mariadb.empty()
        is_last = snapshot is snapshots[-1]
        summary = restore(settings, RestoreRequest(min(snapshot["ts"], end), verify=is_last))
        assert not is_last or (summary.verified.tables, summary.verified.note) == (
            summary.tables,
            "",
        )
        assert differences(RECORDINGS / recording, snapshot["label"], mariadb, INTO) == []
