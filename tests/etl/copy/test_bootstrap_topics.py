"""A dump becomes messages of its rows as they were, each once, and changes go on behind them."""

from __future__ import annotations

import json
import random
import sys
import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.copy import topics_run
from sluice.etl.copy.bootstrap import BootstrapPlanner
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.tidb_sql import TidbAddress, TidbSql
from sluice.etl.copy.worker import make_messages
from sluice.etl.downstream import CheckpointMovedError
from sluice.etl.downstream.sinks import ApplyError, read_checkpoint
from sluice.etl.downstream.sinks.kafka import KafkaSink
from sluice.etl.settings import Settings
from sluice.etl.settings.rules import parse_filter
from sluice.relay.jobs import CANCELLED, Jobs, Runner, lease
from tests.devstack.sql_harness import port
from tests.etl.changes.messages.avro_reader import AvroReader
from tests.etl.changes.messages.debezium_avro_reader import DebeziumAvroReader
from tests.etl.changes.messages.readers import READERS
from tests.etl.changes.messages.recorded_messages import snapshot_rows, snapshot_ts
from tests.etl.copy.copying import BANK_ONLY, CLUSTER, RECORDING, definitions
from tests.etl.copy.topics_copy import (
    WITHOUT_COMPUTED,
    bootstrap,
    check_changes,
    copied_rows,
    is_snapshot,
    land_all,
    planner,
    replicate,
    rows_shown,
    settings_of,
    topics,
)
from tests.etl.downstream.sinks.kafka_pipeline import prefix_of, row_topics
from tests.etl.downstream.sinks.kafka_topic import REAL, needs_broker, read_topics
from tests.etl.downstream.sinks.registry import running_registry
from tests.etl.killed_writer import ends_by_itself

pytestmark = needs_broker
ROWS = 8_732


@pytest.mark.ci_cases("[canal-json]", "[debezium-avro]")
@pytest.mark.parametrize("name", READERS)
def test_a_dump_is_what_tidb_showed_and_changes_go_on_behind_it(name: str, tmp_path: Path) -> None:
    encoding, new_reader = READERS[name]
    kafka = topics(
        REAL, tmp_path, format=encoding.name, content_compatible=encoding.content_compatible,
        debezium_schema=encoding.with_schema,
    )  # fmt: skip
    with running_registry() as registry:
        if encoding.name.endswith("avro"):
            kafka = replace(kafka, registry_url=registry.url)

            def schema(number: int) -> Any:
                return json.loads(registry.text(number))

            kind = AvroReader if name == "avro" else DebeziumAvroReader
            check_whole(settings_of(tmp_path, kafka, WITHOUT_COMPUTED), lambda: kind(schema))
        else:
            check_whole(settings_of(tmp_path, kafka, WITHOUT_COMPUTED), new_reader)


def check_whole(settings: Settings, new_reader: Any) -> None:
    """The topics are the dump, and then what the recording became."""
    summary = bootstrap(settings, RECORDING / "dump-sql")
    land_all(settings)
    reader = new_reader()
    found = copied_rows(settings, reader)
    assert found == rows_shown(settings, "dump_sql", reader)
    assert summary.rows == summary.rows_there == sum(sum(rows.values()) for rows in found.values())
    sent = [message for each in row_topics(settings.kafka).values() for message in each]
    assert {message.commit_ts for message in sent if is_snapshot(message)} == {summary.ts}
    checkpoint = read_checkpoint(settings.kafka, CLUSTER)
    assert checkpoint is not None
    assert checkpoint.commit_ts == summary.ts
    last = settings.open_relay().last()
    assert last is not None
    assert replicate(settings) == last.hi > summary.ts
    check_changes(settings, summary.ts)


def test_rows_of_a_live_tidb_lack_the_columns_that_a_rule_leaves_out(tmp_path: Path) -> None:
    kafka = topics(REAL, tmp_path)
    rule = {"tables": ["bank.*"], "leave-out": ["balance", "memo"]}
    filters = parse_filter({"replicate-do-db": ["bank"], "columns": [rule]})[0]
    settings = settings_of(tmp_path, kafka, filters)
    with port("bootstrap", region_rows=700) as opened:
        label = opened.recording.label("dump_sql")
        source = TidbSql(TidbAddress("127.0.0.1", opened.server.port), label.ts)
        copy = BootstrapPlanner(settings, source, definitions(label.ts), CLUSTER)
        copy.run(
            lambda chunk, table: make_messages(source.spec(), chunk, table, kafka.message_format)
        )
    land_all(settings)
    reader = READERS["canal-json"][1]()
    found = copied_rows(settings, reader)
    wanted = lambda name: name.startswith("bank.")  # noqa: E731
    assert found == snapshot_rows(RECORDING, "dump_sql", reader, settings.open_relay(), wanted)
    assert found and not any({"balance", "memo"} & kinds.keys() for kinds in reader.kinds.values())


def test_rows_are_reads_at_the_snapshots_moment_and_a_watermark_ends_them(tmp_path: Path) -> None:
    kafka = topics(
        REAL, tmp_path, format="debezium-json", watermark_interval_s=3600,
        transaction_topic="t-" + tmp_path.name,
    )  # fmt: skip
    summary = bootstrap(settings_of(tmp_path, kafka))
    for messages in row_topics(kafka).values():
        values = [json.loads(message.value or b"") for message in messages]
        ops = [value["op"] for value in values]
        assert ops == ["r"] * (len(ops) - 1) + ["m"]
        for value in values[:-1]:
            assert (value["source"]["commit_ts"], value["source"]["snapshot"]) == (
                summary.ts, "true",
            )  # fmt: skip
            assert value["before"] is None and value["transaction"] is None
        assert values[-1]["source"]["commit_ts"] == summary.ts
    assert not any(read_topics(REAL, kafka.transaction_topic).values())


_COPIER = textwrap.dedent("""
    import json, sys
    from pathlib import Path
    from sluice.etl.copy import topics_run
    from sluice.etl.settings import Kafka
    import sluice.relay.jobs.job
    from tests.etl.copy.copying import RECORDING
    from tests.etl.copy.topics_copy import bootstrap, replicate, settings_of
    from sluice.etl.copy.bootstrap import find_finished_job
    from sluice.relay.jobs import Jobs
    folder, section = sys.argv[1:]
    sluice.relay.jobs.job.DEAD_AFTER_S = 0.5
    topics_run._COMMIT_BYTES = 1
    settings = settings_of(Path(folder), Kafka(**json.loads(section)))
    def stop(*_):
        print("batch", flush=True)
        sys.stdin.readline()
    if find_finished_job(Jobs.for_pipeline(settings.open_relay())) is None:
        bootstrap(settings, RECORDING / "dump-sql", on_progress=stop)
    replicate(settings, on_batch=stop)
    print("done", flush=True)
""")


@pytest.mark.ci_cases("canal-json")
@pytest.mark.parametrize("name", ["canal-json", "debezium-json"])
def test_kill_9_at_any_time_leaves_each_row_and_each_change_once(name: str, tmp_path: Path) -> None:
    """Killed in the snapshot, at its end, and among the changes behind it."""
    encoding, new_reader = READERS[name]
    prefix = topics(REAL, tmp_path)
    section = {
        key: getattr(prefix, key)
        for key in ("brokers", "topic", "savepoint", "dispatch", "partitions", "resume_topic")
    } | {"format": name, "debezium_schema": encoding.with_schema}  # fmt: skip
    settings = settings_of(tmp_path, replace(prefix, format=name))
    land_all(settings)
    command = [sys.executable, "-c", _COPIER, str(tmp_path), json.dumps(section)]
    generator = random.Random(name)
    kills, sizes = 0, [3, 8, 20, 8, 4, 2, 1]
    while not ends_by_itself(command, sizes[kills] if kills < len(sizes) else None, generator):
        kills += 1
    assert kills >= 4
    reader = new_reader()
    assert copied_rows(settings, reader) == rows_shown(settings, "dump_sql", reader)
    check_changes(settings, snapshot_ts(RECORDING, "dump_sql"))


class Killed(BaseException):
    """The process ends here."""


def test_a_pipeline_waits_for_the_copy_and_a_replaced_copy_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_run, "_COMMIT_BYTES", 1)
    settings = settings_of(tmp_path, topics(REAL, tmp_path))
    seen = iter(range(4))

    def die(*_: Any) -> None:
        if next(seen, None) is None:
            raise Killed

    with pytest.raises(Killed):
        bootstrap(settings, on_progress=die)
    assert read_checkpoint(settings.kafka, CLUSTER) is None
    sink = KafkaSink(settings.kafka, CLUSTER)
    with pytest.raises(ApplyError, match="has not ended there") as refused:
        sink.recover()
    assert "sluice jobs resume" in refused.value.hint
    job = Jobs.for_pipeline(settings.open_relay()).find_open("bootstrap")
    assert job is not None
    monkeypatch.setattr(lease, "HEARTBEAT_INTERVAL_S", 600)  # it stands still
    with job.run(Runner("an old process")) as run:
        old = planner(settings).run_of(job, run)
        old._begin()  # type: ignore[union-attr]
        with_rows = bootstrap_beside(settings)
        with pytest.raises(CheckpointMovedError, match="another process writes"):
            old._topics.commit(old._position)  # type: ignore[union-attr]
    assert with_rows == ROWS


def bootstrap_beside(settings: Settings) -> int:
    """Copy what is left in another process's place; return how many rows are there."""
    import sluice.relay.jobs.job as jobs

    before, jobs.DEAD_AFTER_S = jobs.DEAD_AFTER_S, 0.0
    try:
        bootstrap(settings)
    finally:
        jobs.DEAD_AFTER_S = before
    return sum(is_snapshot(m) for each in row_topics(settings.kafka).values() for m in each)


def test_a_cancelled_copy_names_its_topics_and_another_one_refuses_them(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, topics(REAL, tmp_path))
    work = planner(settings)
    job = work.begin()
    with job.run(Runner("a test")) as run:
        made = work.run_of(job, run)
        assert made.prepare()
        made._begin()  # type: ignore[union-attr]
        summary = made.cancel()
    assert summary.state == CANCELLED
    name = f"{prefix_of(settings.kafka)}.bank.account"
    assert any(line.startswith(f"topic {name}: delete it") for line in summary.left)
    sink = KafkaSink(settings.kafka, CLUSTER)
    assert sink.recover() is None  # the position is forgotten
    sink.close()


def test_what_a_copy_cannot_go_into_is_refused_by_name(tmp_path: Path) -> None:
    binlog = topics(
        REAL, tmp_path, format="binlog", topic="x", dispatch="partition-0", partitions=0,
        resume_topic="", topic_config={},
    )  # fmt: skip
    with pytest.raises(CopyError, match="format = 'binlog' has transactions alone"):
        planner(settings_of(tmp_path, binlog)).begin()
    last_message = topics(
        REAL, tmp_path, topic="x", dispatch="partition-0", partitions=0, resume_topic=""
    )
    with pytest.raises(CopyError, match=r"name a \[kafka\] resume-topic"):
        planner(settings_of(tmp_path, last_message)).begin()
    settings = settings_of(tmp_path, topics(REAL, tmp_path), BANK_ONLY)
    bootstrap(settings)
    other = replace(settings.kafka, resume_topic=settings.kafka.resume_topic + "2")
    elsewhere = replace(settings, kafka=replace(other, savepoint=str(tmp_path / "other")))
    with pytest.raises(CopyError, match=r"there are messages in .*\.bank\.account"):
        planner(settings_of(tmp_path / "other", elsewhere.kafka)).begin()
    computed = settings_of(
        tmp_path / "third",
        topics(REAL, tmp_path / "third"),
        replace(BANK_ONLY, do_schemas=("types",)),
    )
    with pytest.raises(CopyError, match=r"types\.gen: the source has no values of the generated"):
        planner(computed, RECORDING / "dump-sql").begin()


def test_progress_counts_rows_of_each_table_once(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, topics(REAL, tmp_path))
    bootstrap(settings)
    (job,) = Jobs.for_pipeline(settings.open_relay()).list()
    tables = job.status().progress.tables
    assert sum(each.done.rows for each in tables.values()) == ROWS
    found: Counter[str] = Counter()
    for messages in row_topics(settings.kafka).values():
        for message in messages:
            found[dict(message.headers)["table"].decode()] += 1
    assert {name: each.done.rows for name, each in tables.items() if each.done.rows} == found
