"""A consumer of any format rebuilds every table of the recordings, with every change's values."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

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


def _part(quick: str, every: Iterable[str]) -> list[Any]:
    """One recording in `make test`, all in CI."""
    return [name if name == quick else pytest.param(name, marks=pytest.mark.slow) for name in every]


@pytest.fixture(scope="module", params=_part("types", SNAPSHOTS))
def recording(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, RelayLog]:
    folder = RECORDINGS / request.param
    through = snapshot_ts(folder, SNAPSHOTS[request.param])
    url = f"file://{tmp_path_factory.mktemp(request.param)}"
    return folder, land(folder, url, 2000, through=through)


@pytest.mark.ci_cases("-canal-json]", "-debezium-avro]", "-simple]")
@pytest.mark.quick_cases("-canal-json]", "-debezium-avro]")
@pytest.mark.parametrize("name", READERS)
def test_a_consumer_rebuilds_what_tidb_showed(name: str, recording: tuple[Path, RelayLog]) -> None:
    folder, relay = recording
    options, new_reader = READERS[name]
    reader = new_reader()
    found = rebuilt(reader.read(message) for message in messages_of(relay, options))
    expected = snapshot_rows(folder, SNAPSHOTS[folder.name], reader, relay)
    assert found.keys() == expected.keys()
    for table, rows in expected.items():
        assert found[table] == rows, table


@pytest.fixture(scope="module", params=_part("types", ["types", "ddl", "edges"]))
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RelayLog:
    return land(
        RECORDINGS / request.param, f"file://{tmp_path_factory.mktemp(request.param)}", 2000
    )


@pytest.mark.ci_cases("-open-protocol]", "shop-")
@pytest.mark.quick_cases("-open-protocol]")
@pytest.mark.parametrize("name", READERS)
def test_every_change_is_a_message_with_its_values(
    name: str, whole: RelayLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = iter(
        [
            (commit_ts, OPS[kind], table, old, new)
            for commit_ts, changes in sorted(decoded_singly(whole, monkeypatch).items())
            for table, kind, old, new in changes
        ]
    )
    options, new_reader = READERS[name]
    reader = new_reader()
    count = 0
    messages = messages_of(whole, options)
    for message in messages:
        change = reader.read(message)
        if change is None or change.op not in OPS:
            continue
        commit_ts, op, table, old, new = next(expected)
        assert (message.commit_ts, change.table) == (commit_ts, table.full_name)
        shown = [column for column in table.stored_columns if not column.hidden]
        old, new = (decoded(shown, image, reader) for image in (old, new))
        if op != change.op:  # the key has changed
            assert (op, change.op, change.old) == ("update", "delete", old)
            (change,) = filter(None, map(reader.read, islice(messages, 2)))
            op, old = "insert", None
        assert (change.op, change.old, change.new) == (op, old, new)
        count += 1
    assert next(expected, None) is None
    assert count > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["canal-json", "open-protocol", "avro", "simple"])
@pytest.mark.parametrize("whole", ["types"], indirect=True)
def test_timestamps_are_in_the_zone_of_the_settings(name: str, whole: RelayLog) -> None:
    options, new_reader = READERS[name]
    moments: dict[str, list[datetime.datetime]] = {}
    for zone in ("UTC", "+08:00"):
        reader = new_reader()
        messages = messages_of(whole, replace(options, time_zone=zone, with_checksum=False))
        moments[zone] = [
            datetime.datetime.fromisoformat(value[:19])
            for change in map(reader.read, messages)
            if change is not None and change.new is not None
            for column, value in change.new.items()
            if reader.columns[column] == "timestamp" and value and value[:4] != "0000"
        ]
    assert moments["UTC"]
    later = datetime.timedelta(hours=8)
    assert [moment + later for moment in moments["UTC"]] == moments["+08:00"]
