"""Past windows into a Kafka topic of their own: each transaction once, wherever the job was broken
off.
"""

from __future__ import annotations

import secrets
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from sluice.etl.changes.formats.binlog_file import commit_ts_of, split_records
from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare_steps
from sluice.etl.changes.write_plans.kafka_binlog import ddl_message
from sluice.etl.downstream import SavepointFile
from sluice.etl.settings import Downstream, Kafka, Relay, Settings, Upstream
from sluice.etl.verify.reapply import ReplayRangeError, ReplayRequest
from sluice.relay import RelayLog
from tests.etl.changes.messages.recorded_messages import messages_of
from tests.etl.downstream.sinks.kafka_topic import (  # noqa: F401 a fixture
    REAL,
    broker,
    needs_broker,
    read_topics,
)
from tests.etl.relay_from_recording import RECORDINGS, committed, land
from tests.etl.verify.reapply.reapplying import (
    Enough,
    between,
    pipeline_with,
    reapply,
    small_batches,
    stop_after,
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> RelayLog:
    through = committed(RECORDINGS / "shop")[1500][0]
    return land(
        RECORDINGS / "shop", f"file://{tmp_path_factory.mktemp('shop')}", 100, through=through
    )


def topic(brokers: str, folder: Path) -> dict[str, Any]:
    name = f"again-{secrets.token_hex(6)}"
    kafka = {"brokers": brokers, "topic": name, "savepoint": str(folder / name), "timeout-s": 60}
    return small_batches({"downstream": {"type": "kafka"}, "kafka": kafka}, 400)


def messages(target: dict[str, Any]) -> list[bytes]:
    options = {
        "bootstrap.servers": target["kafka"]["brokers"],
        "group.id": "test",
        "enable.partition.eof": True,
    }
    consumer = Consumer(
        {**options, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(target["kafka"]["topic"], 0, 0)])
    found = []
    while True:
        message = consumer.poll(60)
        assert message is not None
        if message.error():
            break
        found.append(message.value() or b"")
    consumer.close()
    return found


def expected(relay: RelayLog) -> list[bytes]:
    found = []
    windows = relay.windows(0)
    for step in prepare_steps(
        relay.url, BatchPayload.from_windows(windows), PrepareOptions("kafka_binlog")
    ):
        if step.kind == "transaction":
            found += [bytes(message) for _, message in split_records(memoryview(step.payload))]
        elif step.kind == "ddl":
            found.append(ddl_message(step.detail))
    return found


def break_off_twice(
    pipeline: Settings, request: ReplayRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Break a job off after two windows, and then between Kafka's commit and the savepoint."""
    with pytest.raises(Enough):
        reapply(pipeline, request, stop_after(2))
    save, saves = SavepointFile.save, iter(range(2))

    def broken_off(self: SavepointFile, *place: Any) -> None:
        if next(saves, None) is None:
            raise Enough
        save(self, *place)

    monkeypatch.setattr(SavepointFile, "save", broken_off)
    with pytest.raises(Enough):
        reapply(pipeline, request)
    monkeypatch.undo()


@pytest.mark.slow
def test_a_topic_is_filled_again_and_each_transaction_is_in_it_once(
    shop: RelayLog,
    broker: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Broken off between what the topic has and what the savepoint says of it, too."""
    pipeline, target = pipeline_with(shop.url, tmp_path / "running"), topic(broker, tmp_path)
    whole = expected(shop)
    since, until = (commit_ts_of(whole[len(whole) * part // 5]) for part in (1, 4))
    request = ReplayRequest(since, until, target)
    break_off_twice(pipeline, request, monkeypatch)
    assert reapply(pipeline, request).through == until
    assert messages(target) == between(whole, since, until)


@needs_broker
def test_past_windows_fill_topics_of_another_format_by_key_and_each_change_is_there_once(
    shop: RelayLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a new consumer beside the live stream; broken off twice, once behind Kafka's commit."""
    pipeline, target = pipeline_with(shop.url, tmp_path / "running"), topic(REAL, tmp_path)
    prefix = target["kafka"]["topic"]
    target["kafka"] |= {
        "topic": prefix + ".{schema}.{table}",
        "format": "open-protocol",
        "dispatch": "key",
        "partitions": 3,
        "resume-topic": f"{prefix}-resume",
    }
    options = Kafka(REAL, prefix + ".{schema}.{table}", format="open-protocol", dispatch="key")
    every = messages_of(shop, options.message_format)
    rows = [m for m in every if b'"t":1}' in (m.key or b"")]
    since, until = (rows[len(rows) * part // 5].commit_ts for part in (1, 4))
    request = ReplayRequest(since, until, target)
    break_off_twice(pipeline, request, monkeypatch)
    assert reapply(pipeline, request).through == until
    found = read_topics(REAL, prefix + ".")
    sent = Counter((m.key(), m.value()) for each in found.values() for m in each)
    wanted = Counter((m.key, m.value) for m in rows if since < m.commit_ts <= until)
    assert {key: n for key, n in sent.items() if b'"t":1}' in key[0]} == wanted
    assert len(found) > 3


def test_a_topic_that_is_the_pipelines_or_holds_messages_is_refused(
    shop: RelayLog,
    broker: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    first, last = shop.first(), shop.last()
    assert first is not None and last is not None
    target = topic(broker, tmp_path)
    own = Kafka(brokers=broker, topic=target["kafka"]["topic"], savepoint=str(tmp_path / "own"))
    running = Settings(Upstream("unused"), Relay(shop.url), Downstream(type="kafka"), kafka=own)
    with pytest.raises(ReplayRangeError, match="the pipeline writes to this topic"):
        reapply(running, ReplayRequest(first.lo, last.hi, target))
    pipeline = pipeline_with(shop.url, tmp_path / "running")
    reapply(pipeline, ReplayRequest(first.lo, first.hi, target))
    again = {**target, "kafka": {**target["kafka"], "savepoint": str(tmp_path / "another")}}
    with pytest.raises(
        ReplayRangeError, match=r"there are messages in the topic again-\w+ already"
    ):
        reapply(pipeline, ReplayRequest(first.hi, last.hi, again))
