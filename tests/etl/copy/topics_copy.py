"""Bootstraps of the recorded dumps into topics, the changes behind them, and what is there then."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sluice.etl.apply import run_apply
from sluice.etl.changes.messages import Message
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.changes.rules import Filter
from sluice.etl.changes.rules.filters import NameRule
from sluice.etl.copy.bootstrap import BootstrapPlanner
from sluice.etl.copy.bootstrap_summary import BootstrapSummary
from sluice.etl.copy.copy_run import CopyProgressCounts
from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.copy.worker import make_messages
from sluice.etl.settings import Apply, Downstream, Kafka, Relay, Settings, Upstream
from tests.etl.changes.messages.recorded_messages import (
    Reader,
    messages_of,
    rebuilt,
    snapshot_rows,
)
from tests.etl.copy.copying import BANK_ONLY, CLUSTER, RECORDING, definitions
from tests.etl.downstream.sinks.kafka_pipeline import merged, row_topics
from tests.etl.preparing import local_preparer
from tests.etl.relay_from_recording import land

PARTITIONS = 3
DUMP = RECORDING / "dump-csv-plain"
"""Tables of the database `bank`."""
_COMPUTED = ("gen", "gpk")
WITHOUT_COMPUTED = Filter(
    ignored_tables=tuple(NameRule("types", name, f"types.{name}") for name in _COMPUTED)
)
"""All tables but those whose generated columns no dump holds."""


def topics(brokers: str, folder: Path, **more: Any) -> Kafka:
    prefix = f"c{secrets.token_hex(5)}"
    given: dict[str, Any] = {
        "topic": f"{prefix}.{{schema}}.{{table}}",
        "savepoint": str(folder / "savepoint"),
        "format": "canal-json",
        "dispatch": "key",
        "partitions": PARTITIONS,
        "resume_topic": f"{prefix}-resume",
        "topic_config": {"max.message.bytes": 50_000_000},
    }
    return Kafka(brokers, **(given | more))


def settings_of(folder: Path, kafka: Kafka, filters: Filter = BANK_ONLY) -> Settings:
    return Settings(
        Upstream("unused"),
        Relay(f"file://{folder}/relay"),
        Downstream(type="kafka"),
        apply=Apply(max_rows=150, worker_count=2),
        kafka=kafka,
        filters=filters,
    )


def planner(settings: Settings, dump: Path = DUMP) -> BootstrapPlanner:
    source = DumplingFolder.open(str(dump))
    return BootstrapPlanner(settings, source, definitions(source.position), CLUSTER)


def bootstrap(
    settings: Settings,
    dump: Path = DUMP,
    on_progress: Callable[[CopyProgressCounts], None] | None = None,
) -> BootstrapSummary:
    spec, options = DumplingFolder.open(str(dump)).spec(), settings.kafka.message_format
    return planner(settings, dump).run(
        lambda chunk, table: make_messages(spec, chunk, table, options), on_progress=on_progress
    )


def replicate(settings: Settings, **more: Any) -> int:
    """Apply what was landed behind the snapshot, and return the checkpoint."""
    last = settings.open_relay().last()
    assert last is not None
    return run_apply(
        settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings), **more
    ).checkpoint


def land_all(settings: Settings) -> None:
    land(RECORDING, settings.relay.url, 400, cluster_id=CLUSTER)


def copied_rows(settings: Settings, reader: Reader) -> dict[str, Counter[Any]]:
    """Return the tables that a consumer of all partitions has of the snapshot's rows."""
    found = merged(row_topics(settings.kafka))
    return rebuilt(reader.read(m) for m in found if is_snapshot(m) or not _is_row(m))


def check_changes(settings: Settings, after_ts: int) -> None:
    """Each row change behind the snapshot is there once, and nothing else."""
    relay, ddls = settings.open_relay(), set()
    for window in relay.windows(0):
        ddls |= {ddl.commit_ts for ddl in RecordedSchema.from_window(window).ddls}

    def changes(messages: Iterable[Message]) -> Counter[Any]:
        return Counter(
            (m.commit_ts, m.headers, m.value is None)
            for m in messages
            if _is_row(m) and m.commit_ts > after_ts and m.commit_ts not in ddls
            and settings.filters.wants_table(*_table_of(m).split("."))
        )  # fmt: skip

    expected = changes(messages_of(relay, settings.kafka.message_format))
    assert expected
    sent = [message for each in row_topics(settings.kafka).values() for message in each]
    assert changes(sent) == expected
    for messages in row_topics(settings.kafka).values():
        assert [m.commit_ts for m in messages] == sorted(m.commit_ts for m in messages)


def _is_row(message: Message) -> bool:
    return "start_ts" in dict(message.headers)


def _table_of(message: Message) -> str:
    return dict(message.headers)["table"].decode()


def rows_shown(settings: Settings, label: str, reader: Reader) -> dict[str, Counter[Any]]:
    """Return the rows that TiDB showed of the tables that the settings want."""
    left = [rule.table for rule in settings.filters.ignored_tables]
    only = "bank." if settings.filters == BANK_ONLY else ""
    wanted = lambda name: name.startswith(only) and name.partition(".")[2] not in left  # noqa: E731
    return snapshot_rows(RECORDING, label, reader, settings.open_relay(), wanted)


def is_snapshot(message: Message) -> bool:
    return dict(message.headers).get("snapshot") == b"true"
