"""The recording `edges`: what breaks replicators, as a real cluster sent it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.etl.settings import Apply
from tests.etl.apply.test_apply_recordings import replay
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.relay_from_recording import RECORDINGS
from tests.etl.snapshots import differences

LABELS = [
    str(snapshot["label"])
    for snapshot in json.loads((RECORDINGS / "edges" / "snapshots.json").read_text())
]


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_the_downstream_is_the_upstream_on_every_edge(
    mariadb: MariaDBServer, tmp_path: Path, label: str, mode: str
) -> None:
    replay(mariadb, tmp_path, "edges", label, 40, Apply(mode=mode))
    assert differences(RECORDINGS / "edges", label, mariadb) == []
