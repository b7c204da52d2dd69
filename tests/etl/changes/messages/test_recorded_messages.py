"""A consumer of any format rebuilds every table of the recordings, with every change's values."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.relay import RelayLog
from tests.etl.changes.messages.readers import READERS
from tests.etl.changes.messages.recorded_messages import (
    SNAPSHOTS,
    decoded,
    messages_of,
    rebuilt,
    snapshot_rows,
    snapshot_ts,
)
from tests.etl.changes.singly_decoded import decoded_singly
from tests.etl.relay_from_recording import RECORDINGS, land

OPS = ("insert", "update", "delete")


@pytest.fixture(scope="module", params=SNAPSHOTS)
def recording(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, RelayLog]:
    folder = RECORDINGS / request.param
    through = snapshot_ts(folder, SNAPSHOTS[request.param])
    url = f"file://{tmp_path_factory.mktemp(request.param)}"
    return folder, land(folder, url, 2000, through=through)


@pytest.mark.parametrize("name", READERS)
def test_a_consumer_rebuilds_what_tidb_showed(name: str, recording: tuple[Path, RelayLog]) -> None:
    folder, relay = recording
    options, new_reader = READERS[name]
    reader = new_reader()
    found = rebuilt(reader.read(message) for message in messages_of(relay, options))
    expected = snapshot_rows(folder, SNAPSHOTS[folder.name], reader.kinds)
    assert found.keys() == expected.keys()
    for table, rows in expected.items():
        assert found[table] == rows, table


@pytest.fixture(scope="module", params=["types", "ddl", "edges"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RelayLog:
    return land(
        RECORDINGS / request.param, f"file://{tmp_path_factory.mktemp(request.param)}", 2000
    )


@pytest.mark.parametrize("name", READERS)
def test_every_change_is_a_message_with_its_values(
    name: str, whole: RelayLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [
        (commit_ts, OPS[kind], table.full_name, decoded(shown, old), decoded(shown, new))
        for commit_ts, changes in decoded_singly(whole, monkeypatch).items()
        for table, kind, old, new in changes
        for shown in [[column for column in table.stored_columns if not column.hidden]]
    ]
    options, new_reader = READERS[name]
    reader = new_reader()
    read = [(message, reader.read(message)) for message in messages_of(whole, options)]
    found = [
        (message.commit_ts, change.op, change.table, change.old, change.new)
        for message, change in read
        if change is not None and change.op in OPS
    ]
    assert len(found) == len(expected) > 100
    for one, other in zip(found, sorted(expected, key=lambda change: change[0]), strict=True):
        assert one == other
