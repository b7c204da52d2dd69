"""A topic in a format of row changes has each change once, and says itself where to go on."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.etl.apply import run_apply
from sluice.etl.changes.messages import Message, MessageFormat
from sluice.etl.changes.steps import CommitDetail, Step
from sluice.etl.changes.write_plans._transactions import transaction_steps
from sluice.etl.downstream.sinks import ApplyError, read_checkpoint
from sluice.etl.downstream.sinks.kafka import KafkaSink, sent_through
from sluice.etl.settings import Apply, Downstream, Kafka, Relay, Settings, Upstream
from sluice.relay import RelayLog
from tests.etl.changes.messages.avro_reader import AvroReader
from tests.etl.changes.messages.readers import READERS
from tests.etl.changes.messages.recorded_messages import (
    messages_of,
    rebuilt,
    snapshot_rows,
    snapshot_ts,
)
from tests.etl.downstream.sinks.kafka_topic import broker, read_topic  # noqa: F401 a fixture
from tests.etl.downstream.sinks.registry import running_registry
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS, land

CLUSTER = 7
RECORDING, SNAPSHOT = RECORDINGS / "ddl", "a_two_items"


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> RelayLog:
    url = f"file://{tmp_path_factory.mktemp('ddl')}"
    through = snapshot_ts(RECORDING, SNAPSHOT)
    return land(RECORDING, url, 2, through=through, cluster_id=CLUSTER)


@pytest.fixture
def topic(broker: str, tmp_path: Path) -> Kafka:  # noqa: F811
    return Kafka(
        brokers=broker,
        topic=f"sluice-{secrets.token_hex(6)}",
        savepoint=str(tmp_path / "savepoint"),
        format="canal-json",
    )


def consumed(options: Kafka) -> list[Message]:
    """Return what a consumer gets from the topic."""
    found = []
    for message in read_topic(options):
        headers = tuple((name, bytes(value)) for name, value in message.headers() or ())
        commit_ts = int(dict(headers)["commit_ts"])
        found.append(Message(commit_ts, message.key(), message.value(), headers))
    return found


@pytest.mark.parametrize("name", ["canal-json", "debezium-json", "open-protocol", "simple"])
def test_a_topic_has_every_change_once_and_rebuilds_the_tables(
    name: str, relay: RelayLog, topic: Kafka
) -> None:
    encoding, new_reader = READERS[name]
    options = replace(topic, format=name, debezium_schema=encoding.with_schema)
    settings = Settings(
        Upstream("unused"),
        Relay(relay.url),
        Downstream(type="kafka"),
        apply=Apply(max_rows=1),
        kafka=options,
    )
    last = relay.last()
    assert last is not None
    summary = run_apply(
        settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings)
    )
    assert summary.batches > 1
    found = consumed(options)
    expected = messages_of(relay, encoding)
    assert [(m.commit_ts, m.key, m.headers) for m in found] == [
        (m.commit_ts, m.key, m.headers) for m in expected
    ]
    reader = new_reader()
    assert rebuilt(map(reader.read, found)) == snapshot_rows(RECORDING, SNAPSHOT, reader, relay)
    checkpoint = read_checkpoint(settings.target, CLUSTER)
    assert checkpoint is not None
    assert checkpoint.commit_ts == last.hi


def test_a_topic_in_avro_has_the_registrys_ids_and_rebuilds_the_tables(
    relay: RelayLog, topic: Kafka
) -> None:
    with running_registry() as registry:
        options = replace(
            topic, format="avro", registry_url=registry.url, registry_subjects="record-name"
        )
        settings = Settings(
            Upstream("unused"), Relay(relay.url), Downstream(type="kafka"), kafka=options
        )
        last = relay.last()
        assert last is not None
        run_apply(settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings))
        reader = AvroReader(lambda schema_id: json.loads(registry.text(schema_id)))
        found = rebuilt(map(reader.read, consumed(options)))
        assert found == snapshot_rows(RECORDING, SNAPSHOT, reader, relay)


def test_a_refused_schema_leaves_nothing_of_its_transaction_in_the_topic(
    relay: RelayLog, topic: Kafka
) -> None:
    with running_registry() as registry:
        options = replace(topic, format="avro", registry_url=registry.url)
        settings = Settings(
            Upstream("unused"),
            Relay(relay.url),
            Downstream(type="kafka"),
            apply=Apply(max_rows=1),
            kafka=options,
        )
        last = relay.last()
        assert last is not None
        registry.limit = 1  # the key's
        with pytest.raises(ApplyError, match=r"behind the DDL at commit_ts .* 409"):
            run_apply(settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings))
        assert consumed(options) == []
        registry.limit = 100
        run_apply(settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings))
        expected = messages_of(relay, MessageFormat("avro"))
        assert [m.commit_ts for m in consumed(options)] == [m.commit_ts for m in expected]


def test_a_registry_that_fails_twice_registers_once_and_doubles_no_row(
    relay: RelayLog, topic: Kafka, tmp_path: Path
) -> None:
    last = relay.last()
    assert last is not None
    found = []
    for failures in ([], [500, 500]):
        with running_registry() as registry:
            options = replace(
                topic,
                topic=f"{topic.topic}-{len(failures)}",
                savepoint=str(tmp_path / f"savepoint-{len(failures)}"),
                format="avro",
                registry_url=registry.url,
                registry_subjects="record-name",
            )
            settings = Settings(
                Upstream("unused"), Relay(relay.url), Downstream(type="kafka"), kafka=options
            )
            registry.failures = list(failures)
            run_apply(settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings))
            assert registry.failures == []
            found.append((registry.asked - len(failures), registry.texts, consumed(options)))
    without, behind = found  # requests that were answered, schemas, messages
    assert behind == without
    assert without[2]


@pytest.mark.slow
def test_the_topic_says_where_to_go_on_even_without_the_savepoint(
    relay: RelayLog, topic: Kafka
) -> None:
    settings = Settings(Upstream("unused"), Relay(relay.url), Downstream(type="kafka"), kafka=topic)
    last = relay.last()
    assert last is not None
    run_apply(settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings))
    sent = consumed(topic)
    Path(topic.savepoint).unlink()
    sink = KafkaSink(topic, CLUSTER)
    checkpoint = sink.recover()
    sink.close()
    assert checkpoint is not None
    assert checkpoint.commit_ts == sent[-1].commit_ts == sent_through(topic, CLUSTER)


def test_a_topic_of_another_format_is_refused_by_name(topic: Kafka) -> None:
    binlog = KafkaSink(replace(topic, format="binlog"), CLUSTER)
    binlog.recover()
    steps = transaction_steps(iter([(10, 1, [b"x" * 5])]))
    binlog.run([*steps, Step(CommitDetail(4), 10, changes=1)])
    binlog.close()
    sink = KafkaSink(topic, CLUSTER)
    with pytest.raises(ApplyError, match=r"offset 0 has no header commit_ts.*'canal-json'"):
        sink.recover()
    sink.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "canal-json",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("open-protocol", "simple")),
    ],
)
def test_a_watermark_is_in_the_transaction_that_it_closes_and_shows_where_to_go_on(
    name: str, topic: Kafka
) -> None:
    options = replace(topic, format=name, watermark_interval_s=3600)
    sink = KafkaSink(options, CLUSTER)
    sink.recover()
    sink.run([Step(CommitDetail(4), 10), Step(CommitDetail(4), 20)])
    sink.close()
    (only,) = consumed(options)
    reader = READERS[name][1]()
    assert reader.read(only) is None
    assert (only.commit_ts, sent_through(options, CLUSTER)) == (10, 10)
    sink = KafkaSink(options, CLUSTER)
    checkpoint = sink.recover()
    assert checkpoint is not None
    assert checkpoint.commit_ts == 20  # of the savepoint
    sink.run([Step(CommitDetail(4), 30)])
    sink.close()
    assert [message.commit_ts for message in consumed(options)] == [10, 30]
