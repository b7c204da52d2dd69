"""Consumers of every format rebuild every recording's tables from a topic, to its last snapshot."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from sluice.etl.changes.steps import ScopedDdl
from sluice.etl.settings import Kafka
from sluice.relay import RelayLog
from tests.etl.changes.messages.ddl_follower import DdlFollower, jobs_of
from tests.etl.changes.messages.readers import READERS
from tests.etl.changes.messages.recorded_messages import snapshot_rows, snapshot_ts
from tests.etl.downstream.sinks.kafka_topic import REAL, needs_broker
from tests.etl.downstream.sinks.test_kafka_formats import consumed
from tests.etl.downstream.sinks.told_topics import apply, format_of, settings_to
from tests.etl.relay_from_recording import RECORDINGS, land

pytestmark = [pytest.mark.slow, needs_broker]

LAST = {
    "bootstrap": ("z_end", 0),
    "conversions": ("a_before", 0),  # behind it statements compute all rows anew
    "ddl": ("f_end", 3),
    "edges": ("f_end", 7),
    "oldcoll": ("b_end", 0),
    "shop": ("e_end", 0),
    "types": ("end", 0),
}
"""The last snapshot of each, and how many of its tables have rows that a statement computed or
moved, which no message has.
"""
NOT_RECORDED = {"oldc.p"}
"""Its snapshot has NULL in place of the key."""
Landed = tuple[Path, str, RelayLog, list[ScopedDdl]]


@pytest.fixture(scope="module", params=LAST)
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Landed:
    folder, (label, _) = RECORDINGS / request.param, LAST[request.param]
    url = f"file://{tmp_path_factory.mktemp(request.param)}"
    relay = land(folder, url, 2000, through=snapshot_ts(folder, label))
    return folder, label, relay, jobs_of(relay)


def tables_of(folder: Path, label: str) -> set[str]:
    """Return the tables that the snapshot has, which need not be all."""
    listed = json.loads((folder / "snapshots.json").read_text())
    return set(next(each["tables"] for each in listed if each["label"] == label))


@pytest.fixture
def topic(tmp_path: Path) -> Kafka:
    name = f"sluice-{secrets.token_hex(6)}"
    new = NewTopic(name, 1, 1, config={"max.message.bytes": "20000000"})
    client = AdminClient({"bootstrap.servers": REAL})
    client.create_topics([new])[name].result()
    return Kafka(brokers=REAL, topic=name, savepoint=str(tmp_path / "savepoint"))


@pytest.mark.ci_cases("[types-", "[ddl-")
@pytest.mark.parametrize("name", READERS)
def test_a_consumer_rebuilds_what_tidb_showed_in_the_end(
    name: str, recording: Landed, topic: Kafka
) -> None:
    folder, label, relay, jobs = recording
    with format_of(name, topic) as used:
        used.registry.takes_all = True  # statements change keys and types
        apply(settings_to(relay.url, used.options, max_rows=20_000))
        reader = used.reader()
        follower = DdlFollower(reader, jobs)
        found = follower.follow(consumed(used.options))
    left_out = follower.left | NOT_RECORDED
    expected = snapshot_rows(folder, label, reader, relay, lambda each: each not in left_out)
    recorded = tables_of(folder, label)
    assert {each for each in found if each in recorded} - left_out == expected.keys()
    for table, rows in expected.items():
        assert found[table] == rows, table
    assert len(expected) > len(follower.left)
    assert len(follower.left) == LAST[folder.name][1]
