"""A message above what its topic takes fits by compression or a claim check, or stops by name."""

from __future__ import annotations

import base64
import datetime
import json
import re
import secrets
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from sluice.etl.changes.messages import Encoder, Message, MessageFormat, encoder_for, split_frames
from sluice.etl.changes.steps import CommitDetail, Step
from sluice.etl.downstream.sinks import ApplyError
from sluice.etl.downstream.sinks._large_messages import ClaimChecks
from sluice.etl.downstream.sinks._topic_limits import wire_bytes
from sluice.etl.downstream.sinks.kafka import KafkaSink
from sluice.etl.settings import Kafka
from sluice.relay import INSERT
from tests.etl.changes.messages.canal_reader import CanalReader
from tests.etl.changes.messages.orders import COMMIT_TS, ROW, batch_of
from tests.etl.changes.messages.recorded_messages import rebuilt, snapshot_rows, snapshot_ts
from tests.etl.downstream.sinks.kafka_pipeline import (  # noqa: F401 fixtures
    CLUSTER,
    applied,
    broker,
    prefix_of,
    read,
    row_topics,
    spread,
)
from tests.etl.downstream.sinks.kafka_topic import needs_broker, read_topics
from tests.etl.relay_from_recording import RECORDINGS, land

LIMIT = 20_000
KEPT_MS = 86_400_000


@pytest.fixture
def small(options: Kafka) -> Kafka:
    """A pipeline whose topics take little, and keep it for a day."""
    config = {"max.message.bytes": LIMIT, "retention.ms": KEPT_MS}
    return replace(options, topic_config=config)


def claiming(options: Kafka, folder: Path, **changes: Any) -> Kafka:
    url = f"file://{folder}/claims"
    return replace(options, large_messages="claim-check", claim_check_url=url, **changes)


def sent(encoder: Encoder, note: str, number: int = 7) -> Message:
    batch = batch_of(INSERT, new=ROW | {"id": number, "note": note})
    (frame,) = encoder.rows(batch).to_pylist()
    return next(split_frames(frame))


def noise(size: int) -> str:
    return secrets.token_hex(size // 2)


def deliver(options: Kafka, *notes: str) -> list[Message]:
    """Send an order with each note as one transaction, and return them as they are whole."""
    encoder = encoder_for(options.message_format)
    messages = [sent(encoder, note, number) for number, note in enumerate(notes)]
    sink = KafkaSink(options, CLUSTER)
    try:
        sink.recover()
        for message in messages:
            sink._send_row(0, message, encoder.schemas)
        sink.run([Step(CommitDetail(4), COMMIT_TS)])
    finally:
        sink.close()
    return messages


def received(options: Kafka) -> list[Message]:
    return [message for messages in row_topics(options).values() for message in messages]


def claimed(location: str) -> dict[str, bytes | None]:
    found = json.loads(Path(location.removeprefix("file://")).read_bytes())
    return {name: None if text is None else base64.b64decode(text) for name, text in found.items()}


@needs_broker
@pytest.mark.parametrize("name", ["canal-json", "debezium-json"])
def test_a_row_above_the_topics_limit_is_refused_with_its_key_and_the_settings(
    name: str, small: Kafka
) -> None:
    options = replace(small, format=name)
    with pytest.raises(ApplyError) as caught:
        deliver(options, "small", noise(LIMIT))
    error = caught.value
    text = f"{error} {error.hint}"
    for part in (
        f"commit_ts {COMMIT_TS}",
        "table 'shop.orders'",
        '"id"',
        f"topic '{prefix_of(options)}.shop.orders' takes {LIMIT}",
        f"max.message.bytes of topic '{prefix_of(options)}.shop.orders' ({LIMIT})",
        "[kafka] max-message-bytes (1000000000)",
        '"compression.type" = "zstd"',
        "large-messages = 'claim-check' or 'key-only'",
        f"sluice txn skip {COMMIT_TS}",
    ):
        assert part in text
    assert received(options) == []


@needs_broker
def test_what_counts_as_fitting_is_taken_up_to_the_last_byte(small: Kafka) -> None:
    encoder = encoder_for(small.message_format)
    spare = LIMIT - wire_bytes(sent(encoder, ""))
    for note in (noise(spare)[:spare], noise(spare)[: spare - 1], "x" * spare):
        deliver(small, note)
        small = replace(small, topic=f"{prefix_of(small)}.{secrets.token_hex(2)}.{{table}}",
                        resume_topic=f"{prefix_of(small)}-{secrets.token_hex(2)}")  # fmt: skip
    with pytest.raises(ApplyError, match="takes 20000"):
        deliver(small, "x" * (spare + 1))


@needs_broker
def test_a_claim_check_has_the_whole_message_and_its_topic_the_key(
    small: Kafka, tmp_path: Path
) -> None:
    options = claiming(small, tmp_path)
    note = noise(LIMIT)
    first, large, last = deliver(options, "small", note, "small")
    one, short, other = received(options)
    assert (one.value, other.value) == (first.value, last.value)
    value = json.loads(short.value or b"")
    assert value["data"] == [{"id": "1"}]
    location = value["_tidb"]["claimCheckLocation"]
    topic = f"{prefix_of(options)}.shop.orders"
    assert re.search(rf"/{topic}/0-{COMMIT_TS}-2-[0-9a-f]{{16}}\.json$", location)
    assert claimed(location) == {"key": None, "value": large.value}
    assert short.headers == large.headers


@needs_broker
@pytest.mark.parametrize("name", ["canal-json", "open-protocol", "simple"])
def test_the_key_alone_is_sent_where_the_settings_say_so(name: str, small: Kafka) -> None:
    options = replace(small, format=name, large_messages="key-only")
    note = noise(2 * LIMIT)
    deliver(options, note)
    values = [message.value or b"" for message in received(options)]
    assert any(b"andleKey" in value or b'"h":true' in value for value in values)
    assert not any(note[:50].encode() in value for value in values)


@needs_broker
@pytest.mark.parametrize("codec", ["zstd", "lz4", "gzip", "snappy"])
def test_what_fits_compressed_is_sent_whole(codec: str, small: Kafka) -> None:
    options = replace(small, client={"compression.type": codec})
    (large,) = deliver(options, "x" * 5 * LIMIT)
    (found,) = received(options)
    assert found.value == large.value
    with pytest.raises(ApplyError, match="takes 20000"):
        deliver(replace(options, topic=f"{prefix_of(options)}.2"), noise(2 * LIMIT))


@needs_broker
def test_many_small_messages_make_no_batch_that_a_topic_refuses(
    small: Kafka, tmp_path: Path
) -> None:
    notes = [noise(2000) for _ in range(100)]
    deliver(small, *notes)
    assert len(received(small)) == 100
    there = replace(
        small,
        topic=f"{prefix_of(small)}-there",
        topics={},
        partitions=0,
        topic_config={},
        resume_topic=f"{prefix_of(small)}-there-resume",
        savepoint=str(tmp_path / "other"),
    )
    admin = AdminClient({"bootstrap.servers": small.brokers})
    new = NewTopic(there.topic, 2, 1, config={"max.message.bytes": str(LIMIT)})
    admin.create_topics([new])[there.topic].result()
    encoder = encoder_for(there.message_format)
    sink = KafkaSink(there, CLUSTER)
    sink.recover()
    with pytest.raises(OSError, match="the next connection makes smaller ones"):
        sink._send_row(0, sent(encoder, "x"), ())
    sink.recover()
    for number, note in enumerate(notes):
        sink._send_row(0, sent(encoder, note, number), ())
    sink.run([Step(CommitDetail(4), COMMIT_TS)])
    sink.close()
    found = read_topics(there.brokers, f"{prefix_of(small)}-there")[there.topic, 0]
    assert len(found) == 100


@needs_broker
def test_a_transaction_that_is_sent_again_replaces_its_files(small: Kafka, tmp_path: Path) -> None:
    options = claiming(small, tmp_path)
    encoder = encoder_for(options.message_format)
    large = sent(encoder, noise(LIMIT))
    for commits in (False, True):
        sink = KafkaSink(options, CLUSTER)
        sink.recover()
        sink._send_row(0, large, ())
        if commits:
            sink.run([Step(CommitDetail(4), COMMIT_TS)])
        sink.close()
    (found,) = received(options)
    (file,) = (each for each in (tmp_path / "claims").rglob("*") if each.is_file())
    assert json.loads(found.value or b"")["_tidb"]["claimCheckLocation"] == f"file://{file}"


@needs_broker
def test_files_that_would_go_before_their_messages_are_refused(
    small: Kafka, tmp_path: Path
) -> None:
    kept_longer = small.topic_config | {"retention.ms": 2 * KEPT_MS}
    for config, shown in (
        (kept_longer, "for 2 days"),
        (small.topic_config | {"cleanup.policy": "compact"}, "for ever"),
    ):
        prefix = f"t{secrets.token_hex(5)}"
        options = claiming(
            replace(small, topic_config=config, topic=f"{prefix}.{{table}}"),
            tmp_path,
            claim_check_keep_days=1,
            resume_topic=f"{prefix}-resume",
        )
        with pytest.raises(ApplyError, match=f"keeps messages {shown}.*claim-check-keep-days is 1"):
            deliver(options, noise(LIMIT))
    deliver(claiming(small, tmp_path, claim_check_keep_days=1), noise(LIMIT))


@needs_broker
def test_a_recording_with_a_row_of_megabytes_is_rebuilt_from_topics_and_files(
    options: Kafka, tmp_path: Path
) -> None:
    folder = RECORDINGS / "types"
    through = snapshot_ts(folder, "end")
    relay = land(folder, f"file://{tmp_path}/relay", 2, through=through, cluster_id=CLUSTER)
    options = claiming(replace(options, partitions=1), tmp_path)
    applied(relay, options)
    locations: Counter[str] = Counter()

    def whole(message: Message) -> Message:
        location = json.loads(message.value or b"")["_tidb"].get("claimCheckLocation")
        if not location:
            return message
        locations[location] += 1
        return message._replace(value=claimed(location)["value"])

    ordered: dict[int, list[Message]] = {}
    for messages in row_topics(options).values():
        for message in messages:
            ordered.setdefault(message.commit_ts, []).append(message)
    reader = CanalReader()
    found = rebuilt(reader.read(whole(m)) for _, each in sorted(ordered.items()) for m in each)
    assert found == snapshot_rows(folder, "end", reader, relay)
    assert locations
    assert max(locations.values()) == 1


def test_other_rows_with_the_same_number_at_a_snapshots_moment_have_files_of_their_own() -> None:
    encoder = encoder_for(MessageFormat("canal-json"))
    checks = ClaimChecks(Kafka(claim_check_url="file:///claims"))
    rows = [sent(encoder, "x", number) for number in (1, 2, 1)]
    found = [checks.location("t", 0, row, 1, encoder.key_of(row, ())) for row in rows]
    assert found[0] != found[1]
    assert found[0] == found[2]


def test_files_go_when_their_day_is_over_for_long_enough(tmp_path: Path) -> None:
    options = Kafka(claim_check_url=f"file://{tmp_path}", claim_check_keep_days=2)
    for day in ("2026-11-24", "2026-11-25", "2026-11-26", "not-a-day"):
        (tmp_path / day / "topic").mkdir(parents=True)
        (tmp_path / day / "topic" / "0-1-1.json").write_bytes(b"{}")
    now = datetime.datetime(2026, 11, 28, 12, tzinfo=datetime.UTC)
    assert ClaimChecks(options).clean_up(now) == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["2026-11-26", "not-a-day"]


def test_a_store_that_is_gone_hinders_nothing_but_its_clean_up(tmp_path: Path) -> None:
    (tmp_path / "2020-01-01").write_text("a file")
    options = Kafka(claim_check_url=f"file://{tmp_path}", claim_check_keep_days=2)
    assert ClaimChecks(options).clean_up(datetime.datetime.now(datetime.UTC)) == 0
