"""Kafka: every transaction is in the topic once, whatever stops the process that sends."""

from __future__ import annotations

import random
import secrets
import sys
import textwrap
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sluice.etl.apply import run_apply
from sluice.etl.changes.formats.binlog_file import commit_ts_of, split_records
from sluice.etl.changes.planning import BatchPayload, PrepareOptions, prepare_steps
from sluice.etl.changes.steps import CommitDetail, Step
from sluice.etl.changes.write_plans._transactions import message_head, transaction_steps
from sluice.etl.changes.write_plans.kafka_binlog import ddl_message
from sluice.etl.downstream import CheckpointError, CheckpointMovedError, SavepointFile
from sluice.etl.downstream.sinks import ApplyError, read_checkpoint
from sluice.etl.downstream.sinks._kafka_errors import KafkaUnavailableError
from sluice.etl.downstream.sinks.kafka import KafkaSink
from sluice.etl.settings import Apply, Downstream, Kafka, Relay, Settings, SettingsError, Upstream
from sluice.relay import RelayLog
from tests.etl.downstream.sinks.kafka_topic import REAL, broker, read_topic  # noqa: F401 a fixture
from tests.etl.killed_writer import ON_BATCH, ends_by_itself
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import RECORDINGS, committed, land
from tests.ports import free_port

CLUSTER = 7


@pytest.fixture
def options(broker: str, tmp_path: Path) -> Kafka:  # noqa: F811
    return Kafka(
        brokers=broker,
        topic=f"sluice-{secrets.token_hex(6)}",
        savepoint=str(tmp_path / "savepoint"),
        timeout_s=60,
    )


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> RelayLog:
    through = committed(RECORDINGS / "shop")[1500][0]
    return land(
        RECORDINGS / "shop",
        f"file://{tmp_path_factory.mktemp('shop')}",
        100,
        through=through,
        cluster_id=CLUSTER,
    )


def messages(options: Kafka, isolation: str = "read_committed") -> list[bytes]:
    """What a consumer gets from the topic."""
    found = read_topic(options, isolation, timeout_s=30)
    assert all(message.key() is None for message in found)
    return [message.value() or b"" for message in found]


def configured(relay: RelayLog, options: Kafka) -> Settings:
    return Settings(
        Upstream("unused"),
        Relay(relay.url),
        Downstream(type="kafka"),
        apply=Apply(max_rows=400),
        kafka=options,
    )


def expected(relay: RelayLog) -> list[bytes]:
    windows, window = [], relay.first()
    while window is not None:
        windows.append(window)
        window = relay.next(window.hi)
    found = []
    for step in prepare_steps(
        relay.url, BatchPayload.from_windows(windows), PrepareOptions("kafka_binlog")
    ):
        if step.kind == "transaction":
            found += [bytes(message) for _, message in split_records(memoryview(step.payload))]
        elif step.kind == "ddl":
            found.append(ddl_message(step.detail))
    return found


def message(commit_ts: int, size: int = 5) -> bytes:
    return message_head(commit_ts, size) + b"x" * size


def steps(*commit_ts: int, size: int = 5, through: int | None = None) -> list[Step]:
    """Transactions and the commit behind them."""
    sent = transaction_steps(((ts, 1, [b"x" * size]) for ts in commit_ts), step_bytes=1000)
    return [*sent, Step(CommitDetail(4), through or commit_ts[-1], changes=len(commit_ts))]


def sink_for(options: Kafka) -> KafkaSink:
    return KafkaSink(options, CLUSTER)


def test_every_transaction_is_one_message_in_commit_order(shop: RelayLog, options: Kafka) -> None:
    settings = configured(shop, options)
    last = shop.last()
    assert last is not None
    summary = run_apply(
        settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings)
    )
    assert summary.batches > 1
    found = messages(options)
    assert found == expected(shop)
    assert [commit_ts_of(m) for m in found] == sorted({commit_ts_of(m) for m in found})
    checkpoint = read_checkpoint(settings.target, CLUSTER)
    assert checkpoint is not None
    assert (checkpoint.commit_ts, checkpoint.schema_version) == (last.hi, last.schema_version)


_SENDER = textwrap.dedent("""
    import sys
    from sluice.etl.apply import run_apply
    from sluice.etl.settings import Apply, Downstream, Relay, Settings, Upstream
    from sluice.etl.settings.sinks import Kafka
    from tests.etl.downstream.sinks.kafka_topic import ask_no_mock
    from tests.etl.preparing import local_preparer
    ask_no_mock()
    url, brokers, topic, savepoint, hi = sys.argv[1:]
    options = Kafka(brokers=brokers, topic=topic, savepoint=savepoint)
    downstream, apply = Downstream(type="kafka"), Apply(max_rows=150)
    settings = Settings(Upstream("unused"), Relay(url), downstream, apply=apply, kafka=options)
    prepare = local_preparer(settings)
    run_apply(settings, until_ts=int(hi), run_seconds=240, prepare=prepare, on_batch=ON_BATCH)
    print("done", flush=True)
""").replace("ON_BATCH", ON_BATCH)


@pytest.mark.slow
def test_kill_9_at_any_time_leaves_no_gap_and_nothing_twice(shop: RelayLog, options: Kafka) -> None:
    last = shop.last()
    assert last is not None
    generator = random.Random(20261121)
    kills = 0
    finished = False
    for attempt in range(10):
        command = [
            sys.executable,
            "-c",
            _SENDER,
            shop.url,
            options.brokers,
            options.topic,
            options.savepoint,
            str(last.hi),
        ]
        finished = ends_by_itself(
            command, generator.randrange(12) if attempt < 3 else None, generator
        )
        if finished:
            break
        kills += 1
    assert finished and kills
    assert messages(options) == expected(shop)


def test_the_topic_tells_where_to_go_on_even_without_the_savepoint(options: Kafka) -> None:
    sink = sink_for(options)
    assert sink.recover() is None
    sink.run(steps(10, 20, 30))
    sink.close()
    Path(options.savepoint).unlink()
    sink = sink_for(options)
    checkpoint = sink.recover()
    sink.close()
    assert checkpoint is not None
    assert checkpoint.commit_ts == 30


def test_what_was_sent_but_not_committed_is_never_there_twice(options: Kafka) -> None:
    first = sink_for(options)
    first.recover()
    first.run([*steps(10), *steps(20, 30)[:-1]])  # as when preparing fails in the middle
    first._sender.flush("flushing")
    first.close()
    second = sink_for(options)
    checkpoint = second.recover()
    assert checkpoint is not None
    assert checkpoint.commit_ts in (10, 30)  # 30 from brokers that show what was given up
    second.run(steps(*(ts for ts in (20, 30, 40) if ts > checkpoint.commit_ts)))
    second.close()
    assert [commit_ts_of(m) for m in messages(options)] == [10, 20, 30, 40]


def test_the_checkpoint_moves_without_messages_while_nothing_happens_upstream(
    options: Kafka,
) -> None:
    sink = sink_for(options)
    sink.recover()
    sink.run(steps(10, through=15))
    sink.run([Step(CommitDetail(9), 500)])
    sink.close()
    sink = sink_for(options)
    checkpoint = sink.recover()
    sink.close()
    assert checkpoint is not None
    assert (checkpoint.commit_ts, checkpoint.schema_version) == (500, 9)
    assert len(messages(options)) == 1


def test_a_transaction_in_pieces_arrives_whole(options: Kafka) -> None:
    sink = sink_for(options)
    sink.recover()
    pieces = steps(10, 20, size=7000)
    assert sum(step.kind == "transaction" for step in pieces) > 4
    sink.run(pieces)
    sink.close()
    assert messages(options) == [message(10, 7000), message(20, 7000)]


def test_a_transaction_above_the_limit_is_named_with_the_ways_out(options: Kafka) -> None:
    small = Kafka(options.brokers, options.topic, options.savepoint, max_message_bytes=2000)
    sink = sink_for(small)
    sink.recover()
    sink.run(steps(10))
    with pytest.raises(
        ApplyError,
        match=(
            r"commit_ts 20 has a message of \d+ bytes.*max-message-bytes is 2000"
            r".*sluice txn skip 20"
        ),
    ):
        sink.run(steps(20, size=3000))
    sink.close()
    assert [commit_ts_of(m) for m in messages(options)] == [10]


def test_a_topic_that_lost_what_was_delivered_is_an_error(options: Kafka) -> None:
    sink = sink_for(options)
    sink.recover()
    sink.run(steps(10, 20))
    sink.close()
    saved = SavepointFile(Path(options.savepoint), CLUSTER)
    found = saved.load()
    assert found is not None
    saved.save(found.checkpoint, options.topic, found.offset + 1000)
    with pytest.raises(
        ApplyError,
        match=(
            r"ends before offset \d+, which was delivered by commitTS 20: it was recreated, or lost"
            r" messages"
        ),
    ):
        sink.recover()
    sink.close()


def test_a_topic_with_somebody_elses_messages_is_refused(options: Kafka) -> None:
    producer = Producer({"bootstrap.servers": options.brokers})
    producer.produce(options.topic, b"hello", partition=0)
    assert producer.flush(10) == 0
    sink = sink_for(options)
    with pytest.raises(ApplyError, match=r"offset 0 is .*another program writes to this topic"):
        sink.recover()
    sink.close()


@pytest.mark.skipif(not REAL, reason="the mock broker shuts nobody out")
def test_a_process_that_was_replaced_cannot_send_any_more(options: Kafka) -> None:
    first = sink_for(options)
    first.recover()
    first.run(steps(10))
    second = sink_for(options)
    second.recover()
    with pytest.raises(CheckpointMovedError, match="another process writes to the same topic"):
        first.run(steps(20))
    second.run(steps(20))
    first.close()
    second.close()
    assert [commit_ts_of(m) for m in messages(options)] == [10, 20]


def test_a_broker_that_is_away_can_be_tried_again(tmp_path: Path) -> None:
    port = free_port()
    sink = sink_for(Kafka(f"127.0.0.1:{port}", "t", str(tmp_path / "savepoint"), timeout_s=1))
    with pytest.raises(
        KafkaUnavailableError, match=f"topic t on 127.0.0.1:{port}, connecting: .*refused"
    ) as caught:
        sink.recover()
    assert isinstance(caught.value, OSError)  # which the apply loop takes for passing
    sink.close()


def test_secrets_come_from_where_the_settings_say_and_are_not_in_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("from-the-file\n")
    monkeypatch.setenv("SECRET_OF_TEST", "hunter2-from-the-environment")
    kafka = Kafka(
        "127.0.0.1:1",
        "t",
        str(tmp_path / "savepoint"),
        timeout_s=1,
        client={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "sluice",
        },
        client_env={"sasl.password": "SECRET_OF_TEST"},
        client_file={"ssl.key.password": str(tmp_path / "key")},
    )
    assert kafka.options()["sasl.password"] == "hunter2-from-the-environment"
    assert kafka.options()["ssl.key.password"] == "from-the-file"
    sink = sink_for(kafka)
    with pytest.raises(KafkaUnavailableError) as caught:
        sink.recover()
    assert "hunter2" not in str(caught.value) + repr(kafka)
    monkeypatch.delenv("SECRET_OF_TEST")
    with pytest.raises(
        SettingsError,
        match=(
            r'\[kafka.client-env\] "sasl.password": the environment has no variable SECRET_OF_TEST'
        ),
    ):
        sink.recover()


def test_an_option_that_the_client_does_not_know_is_named(options: Kafka) -> None:
    sink = sink_for(
        Kafka(options.brokers, options.topic, options.savepoint, client={"no.such.option": "1"})
    )
    with pytest.raises(ApplyError, match=r"no\.such\.option"):
        sink.recover()


def test_a_savepoint_of_another_cluster_is_refused(options: Kafka) -> None:
    sink = sink_for(options)
    sink.recover()
    sink.run(steps(10))
    sink.close()
    with pytest.raises(CheckpointError, match="belongs to cluster 7"):
        KafkaSink(options, 8).recover()


def test_the_topic_has_the_originals_name_by_default(tmp_path: Path) -> None:
    assert (
        sink_for(Kafka("broker:9092", savepoint=str(tmp_path / "s"))).address
        == "topic 7_obinlog on broker:9092"
    )
