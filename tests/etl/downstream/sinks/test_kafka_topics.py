"""Many topics and partitions have each transaction once and whole, each key in its order."""

from __future__ import annotations

import json
import random
import secrets
import sys
import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from sluice.etl.apply import run_apply
from sluice.etl.changes.messages import Message
from sluice.etl.changes.steps import CommitDetail, Step
from sluice.etl.downstream import CheckpointMovedError
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.downstream.sinks import ApplyError, _kafka_client, read_checkpoint
from sluice.etl.downstream.sinks._topic_limits import TopicLimits
from sluice.etl.downstream.sinks.kafka import KafkaSink, is_unused, sent_through
from sluice.etl.operate import status
from sluice.etl.settings import Kafka
from sluice.relay import RelayLog
from sluice.relay.measures import CounterStore
from tests.etl.changes.messages.avro_reader import AvroReader
from tests.etl.changes.messages.debezium_avro_reader import DebeziumAvroReader
from tests.etl.changes.messages.readers import READERS
from tests.etl.changes.messages.recorded_messages import messages_of, rebuilt, snapshot_rows
from tests.etl.downstream.sinks.kafka_pipeline import (  # noqa: F401 fixtures
    CLUSTER,
    PARTITIONS,
    applied,
    broker,
    configured,
    identity,
    landed,
    markers,
    merged,
    prefix_of,
    row_topics,
    spread,
)
from tests.etl.downstream.sinks.kafka_topic import needs_broker, read_topics
from tests.etl.downstream.sinks.registry import running_registry
from tests.etl.killed_writer import ON_BATCH, ends_by_itself
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS

pytestmark = needs_broker


def check_whole(relay: RelayLog, options: Kafka) -> None:
    """Each change is there once, each key in one partition and in order, markers count all."""
    found = row_topics(options)
    rows = {p: [m for m in ms if b'"isDdl":true' not in m.value] for p, ms in found.items()}  # type: ignore[operator]
    expected = list(messages_of(relay, options.message_format))
    expected = [m for m in expected if b'"isDdl":true' not in (m.value or b"")]
    sent = Counter(identity(message) for messages in rows.values() for message in messages)
    assert sent == Counter(map(identity, expected))
    places: dict[tuple[Any, ...], tuple[str, int]] = {}
    for place, messages in rows.items():
        assert [m.commit_ts for m in messages] == sorted(m.commit_ts for m in messages)
        for message in messages:
            value = json.loads(message.value or b"")
            assert place[0] == f"{prefix_of(options)}.{value['database']}.{value['table']}"
            if value["pkNames"]:
                key = tuple(value["data"][0][name] for name in value["pkNames"])
                assert places.setdefault((value["table"], *key), place) == place
    assert len(set(places.values())) > PARTITIONS
    counted: dict[str, Counter[str]] = {}
    for message in expected:
        counter = counted.setdefault(str(message.commit_ts), Counter())
        counter[dict(message.headers)["table"].decode()] += 1
    told = markers(options)
    begins, ends = told[::2], told[1::2]
    assert [(m["status"], m["id"]) for m in begins] == [("BEGIN", ts) for ts in counted]
    assert [(m["status"], m["id"]) for m in ends] == [("END", ts) for ts in counted]
    for marker in ends:
        counts = {c["data_collection"]: c["event_count"] for c in marker["data_collections"]}
        assert counts == counted[marker["id"]]
        assert marker["event_count"] == sum(counts.values())


def test_every_change_is_once_in_the_partition_of_its_key_and_in_its_transactions_count(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    applied(relays["shop"], options)
    check_whole(relays["shop"], options)
    last = relays["shop"].last()
    checkpoint = read_checkpoint(options, CLUSTER)
    assert last is not None and checkpoint is not None
    assert checkpoint.commit_ts == last.hi


@pytest.mark.ci_cases("shop-debezium-json", "ddl-canal-json")
@pytest.mark.parametrize("name", ["canal-json", "debezium-json"])
@pytest.mark.parametrize("recording", ["shop", "ddl"])
def test_the_topics_of_all_tables_rebuild_them(
    recording: str, name: str, relays: dict[str, RelayLog], options: Kafka
) -> None:
    encoding, new_reader = READERS[name]
    options = replace(options, format=name, debezium_schema=encoding.with_schema)
    applied(relays[recording], options)
    reader = new_reader()
    label = {"shop": "b_mid", "ddl": "a_two_items"}[recording]
    found = rebuilt(map(reader.read, merged(row_topics(options))))
    assert found == snapshot_rows(RECORDINGS / recording, label, reader, relays[recording])


@pytest.mark.parametrize(
    ("name", "new_reader"), [("avro", AvroReader), ("debezium-avro", DebeziumAvroReader)]
)
def test_each_table_has_its_subjects_in_the_registry_and_its_topic_rebuilds_it(
    name: str,
    new_reader: type[AvroReader | DebeziumAvroReader],
    relays: dict[str, RelayLog],
    options: Kafka,
) -> None:
    with running_registry() as registry:
        options = replace(options, format=name, registry_url=registry.url)
        applied(relays["shop"], options)
        reader = new_reader(lambda schema_id: json.loads(registry.text(schema_id)))
        found = rebuilt(map(reader.read, merged(row_topics(options))))
        expected = snapshot_rows(RECORDINGS / "shop", "b_mid", reader, relays["shop"])
    assert found == expected
    prefix = options.topic.partition("{")[0]
    assert {f"{prefix}{table}-value" for table in expected} <= registry.subjects.keys()


def test_a_ddl_statement_is_in_every_partition_of_its_table_between_its_rows(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    applied(relays["ddl"], options)
    statements: dict[str, list[list[str]]] = {}
    for (topic, _), messages in row_topics(options).items():
        assert [m.commit_ts for m in messages] == sorted(m.commit_ts for m in messages)
        ddl = [json.loads(m.value or b"") for m in messages if b'"isDdl":true' in (m.value or b"")]
        statements.setdefault(topic, []).append([statement["sql"] for statement in ddl])
    assert any(seen[0] for seen in statements.values())
    for seen in statements.values():
        assert seen == [seen[0]] * PARTITIONS


def test_a_control_topic_has_ddl_and_watermarks_and_the_tables_topics_have_none(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    control = f"{prefix_of(options)}-control"
    options = replace(options, control_topic=control, watermark_interval_s=1)
    applied(relays["ddl"], options)
    ((_, told),) = read_topics(options.brokers, control).items()
    types = Counter(json.loads(message.value() or b"")["type"] for message in told)
    assert types["TIDB_WATERMARK"] >= 1
    assert types.keys() > {"TIDB_WATERMARK"}
    assert not types.keys() & {"INSERT", "UPDATE", "DELETE"}
    rows = {
        json.loads(m.value or b"")["type"]
        for messages in row_topics(options).values()
        for m in messages
    }
    assert rows <= {"INSERT", "UPDATE", "DELETE"}


def test_a_watermark_is_in_every_partition_and_nothing_older_comes_behind_it(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    applied(relays["shop"], replace(options, watermark_interval_s=1))
    for messages in row_topics(options).values():
        watermark = 0
        for message in messages:
            if b"TIDB_WATERMARK" in (message.value or b""):
                watermark = message.commit_ts
            else:
                assert message.commit_ts > watermark
        # topics of one commit step have the same first watermark
        assert any(b"TIDB_WATERMARK" in (m.value or b"") for m in messages)


_SENDER = textwrap.dedent("""
    import json, sys
    from sluice.etl.apply import run_apply
    from sluice.etl.settings import Apply, Downstream, Relay, Settings, Upstream
    from sluice.etl.settings.sinks import Kafka
    from tests.etl.preparing import local_preparer
    url, section, hi = sys.argv[1:]
    downstream, apply = Downstream(type="kafka"), Apply(max_rows=150)
    kafka = Kafka(**json.loads(section))
    settings = Settings(Upstream("unused"), Relay(url), downstream, apply=apply, kafka=kafka)
    prepare = local_preparer(settings)
    run_apply(settings, until_ts=int(hi), run_seconds=240, prepare=prepare, on_batch=ON_BATCH)
    print("done", flush=True)
""").replace("ON_BATCH", ON_BATCH)


def test_kill_9_at_any_time_leaves_each_transaction_whole_and_once_in_all_topics(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    last = relays["shop"].last()
    assert last is not None
    section = {
        key: getattr(options, key)
        for key in ("brokers", "topic", "savepoint", "format", "dispatch", "partitions",
                    "resume_topic", "transaction_topic")
    }  # fmt: skip
    command = [
        sys.executable, "-c", _SENDER, relays["shop"].url, json.dumps(section), str(last.hi)
    ]  # fmt: skip
    generator = random.Random(20261127)
    kills = 0
    while not ends_by_itself(command, generator.randrange(6) if kills < 4 else None, generator):
        kills += 1
        if kills == 2:
            Path(options.savepoint).unlink(missing_ok=True)
    assert kills == 4
    check_whole(relays["shop"], options)


def test_a_process_that_was_replaced_cannot_send_any_more(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    first = KafkaSink(options, CLUSTER)
    first.recover()
    second = KafkaSink(replace(options, savepoint=options.savepoint + "2"), CLUSTER)
    second.recover()
    first._topics.resume_from({})
    with pytest.raises(CheckpointMovedError, match="another process writes to the same topic"):
        first._send(Message(5, None, b"x"), options.resume_topic)
        first._sender.flush("flushing")
        first.run([Step(CommitDetail(4), 10)])
    first.close()
    second.close()


def test_the_resume_record_shows_where_to_go_on_without_the_savepoint(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    assert is_unused(replace(options, resume_topic=options.resume_topic), CLUSTER)
    applied(relays["ddl"], options)
    Path(options.savepoint).unlink()
    sink = KafkaSink(options, CLUSTER)
    checkpoint = sink.recover()
    sink.close()
    assert checkpoint is not None
    newest = max(m.commit_ts for messages in row_topics(options).values() for m in messages)
    assert checkpoint.commit_ts == sent_through(options, CLUSTER) >= newest
    assert not is_unused(options, CLUSTER)


def test_a_pipeline_that_had_one_partition_goes_on_in_several_without_its_savepoint(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    topic = f"{prefix_of(options)}.all"
    one = replace(
        options, topic=topic, dispatch="partition-0", resume_topic="", transaction_topic=""
    )
    first = list(relays["shop"].windows(0))[20]
    settings = configured(relays["shop"], one)
    run_apply(settings, until_ts=first.hi, run_seconds=240, prepare=local_preparer(settings))
    sent = sum(map(len, row_topics(options).values()))
    assert sent > 100
    admin = AdminClient({"bootstrap.servers": options.brokers})
    admin.create_partitions([NewPartitions(topic, PARTITIONS)])[topic].result()
    Path(options.savepoint).unlink()
    applied(relays["shop"], replace(options, topic=topic))
    found = [m for messages in row_topics(options).values() for m in messages]
    rows = Counter(identity(m) for m in found if b'"isDdl":true' not in (m.value or b""))
    expected = messages_of(relays["shop"], options.message_format)
    assert rows == Counter(identity(m) for m in expected if b'"isDdl":true' not in (m.value or b""))
    assert len(found) > sent


def test_a_topic_that_grew_is_refused_until_the_settings_say_so(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    applied(relays["shop"], options)
    admin = AdminClient({"bootstrap.servers": options.brokers})
    topic = next(iter(row_topics(options)))[0]
    admin.create_partitions([NewPartitions(topic, PARTITIONS + 2)])[topic].result()
    sink = KafkaSink(options, CLUSTER)
    with pytest.raises(ApplyError, match=f"'{topic}'.* has 6 partitions, it had 4") as caught:
        sink.recover()
    assert "set [kafka] partitions = 6" in caught.value.hint
    sink.close()
    accepted = replace(options, partitions=PARTITIONS + 2, watermark_interval_s=3600)
    sink = KafkaSink(accepted, CLUSTER)
    checkpoint = sink.recover()
    assert checkpoint is not None
    sink._send(Message(checkpoint.commit_ts + 1, None, b"{}", (("commit_ts", b"1"),)), topic, 5)
    sink.run([Step(CommitDetail(4), checkpoint.commit_ts + 1)])
    found = row_topics(options)
    for partition in range(PARTITIONS):
        before = [m.commit_ts for m in found[topic, partition] if b"WATERMARK" in (m.value or b"")]
        assert before == [checkpoint.commit_ts, checkpoint.commit_ts + 1]
    sink.recover()  # what was accepted is remembered
    sink.close()


def test_a_topic_that_is_gone_is_refused_by_name(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    applied(relays["ddl"], options)
    admin = AdminClient({"bootstrap.servers": options.brokers})
    topic = next(iter(row_topics(options)))[0]
    admin.delete_topics([topic])[topic].result()
    sink = KafkaSink(options, CLUSTER)
    with pytest.raises(ApplyError, match=f"topic '{topic}' is not on .* any more"):
        sink.recover()
    sink.close()


def test_a_topic_with_other_partitions_than_the_settings_say_is_refused(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    topic = f"{prefix_of(options)}.all"
    admin = AdminClient({"bootstrap.servers": options.brokers})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    options = replace(options, topic=topic)
    with pytest.raises(ApplyError, match=r"has 2 partitions, \[kafka\] partitions is 4") as caught:
        applied(relays["ddl"], options)
    assert "set [kafka] partitions = 2" in caught.value.hint


def test_two_tables_that_would_share_a_topic_of_their_own_are_both_named(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    sink = KafkaSink(options, CLUSTER)
    sink.recover()
    for table in ("a.x", "a.x", "`a.x`.y"):
        sink._topics.place_of(Message(1, None, b"", (("table", table.encode()),)))
    sink._topics._routing = replace(
        sink._topics._routing, topic=prefix_of(options) + "_{schema}_{table}"
    )
    sink._topics.place_of(Message(1, None, b"", (("table", b"a_b.c"),)))
    with pytest.raises(ApplyError, match=r"tables 'a_b\.c' and 'a\.b_c' have one topic"):
        sink._topics.place_of(Message(1, None, b"", (("table", b"a.b_c"),)))
    sink.close()


def test_resume_records_in_a_topic_that_forgets_are_refused(options: Kafka) -> None:
    admin = AdminClient({"bootstrap.servers": options.brokers})
    admin.create_topics([NewTopic(options.resume_topic, 1, 1)])[options.resume_topic].result()
    sink = KafkaSink(options, CLUSTER)
    with pytest.raises(ApplyError, match=r"has cleanup\.policy=delete") as caught:
        sink.recover()
    assert "kafka-configs.sh" in caught.value.hint
    sink.close()


def test_a_message_that_the_topic_does_not_take_is_refused_with_the_partitions_name(
    options: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_limits = TopicLimits(1_000_000_000, None)  # as without the right to ask for them
    monkeypatch.setattr(_kafka_client, "ask_limits", lambda *_: no_limits)
    sink = KafkaSink(replace(options, topic_config={"max.message.bytes": 2000}), CLUSTER)
    sink.recover()
    headers = (("commit_ts", b"5"), ("start_ts", b"4"), ("table", b"shop.orders"))
    large = Message(5, None, secrets.token_bytes(5000), headers)
    place = rf"{prefix_of(options)}\.shop\.orders\[\d\]"
    with pytest.raises(ApplyError, match=rf"{place} refused a message.*max\.message\.bytes"):
        sink._send_row(1, large, ())
        sink.run([Step(CommitDetail(4), 10)])
    checkpoint = sink.recover()
    assert checkpoint is None
    assert not any(row_topics(options).values())
    sink.close()


def test_messages_bytes_and_errors_are_counted_by_topic(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    applied(relays["shop"], options)
    settings = configured(relays["shop"], options)
    counts = CounterStore(settings.open_relay(), downstream_name(options)).totals().apply.counts
    found = read_topics(options.brokers, prefix_of(options))
    for topic in {name for name, _ in found}:
        sent = [m for (name, _), each in found.items() if name == topic for m in each]
        assert counts[f"topic.messages.{topic}"] == len(sent), topic
        size = sum(len(m.key() or b"") + len(m.value() or b"") for m in sent)
        assert counts[f"topic.bytes.{topic}"] == size, topic
    assert not any(name.startswith("topic.errors.") for name in counts)
    shown = status(settings)
    assert [each["topic"] for each in shown["topics"]] == sorted({name for name, _ in found})
    for each in shown["topics"]:
        assert each["messages"] == counts[f"topic.messages.{each['topic']}"]
        assert (each["bytes"], each["errors"]) == (counts[f"topic.bytes.{each['topic']}"], 0)


def test_an_error_is_counted_for_the_topic_that_it_is_about(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    described = replace(options, format="debezium-json", debezium_schema=True)
    refusing = replace(described, topic=f"{prefix_of(options)}.small", max_message_bytes=1000)
    with pytest.raises(ApplyError, match=r"max-message-bytes is 1000"):
        applied(
            relays["ddl"],
            replace(
                refusing, savepoint=options.savepoint + "2", resume_topic=options.resume_topic + "2"
            ),
        )
    settings = configured(relays["ddl"], refusing)
    counts = CounterStore(settings.open_relay(), downstream_name(refusing)).totals().apply.counts
    assert counts[f"topic.errors.{prefix_of(options)}.small"] >= 1


def test_at_least_once_has_no_gaps_between_offsets_and_every_change(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    applied(relays["shop"], replace(options, delivery="at-least-once"))
    check_whole(relays["shop"], options)
    for messages in read_topics(options.brokers, prefix_of(options) + ".").values():
        assert [message.offset() for message in messages] == list(range(len(messages)))


def test_every_partition_has_a_tables_schema_before_its_rows_and_markers_count_none(
    relays: dict[str, RelayLog], options: Kafka
) -> None:
    options = replace(options, format="simple")
    applied(relays["shop"], options)
    rows: Counter[str] = Counter()
    for messages in row_topics(options).values():
        known = set()
        for message in messages:
            value = json.loads(message.value or b"")
            if value["type"] == "BOOTSTRAP":
                schema = value["tableSchema"]
                known.add((schema["schema"], schema["table"], schema["version"]))
            elif "schemaVersion" in value:
                assert (value["database"], value["table"], value["schemaVersion"]) in known
                rows[str(value["commitTs"])] += 1
        assert known
    counts = {m["id"]: m["event_count"] for m in markers(options) if m["status"] == "END"}
    assert counts == rows
