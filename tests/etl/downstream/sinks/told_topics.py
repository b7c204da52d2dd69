"""A story that a pipeline brings to topics of a format, and what its readers find there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from sluice.etl.apply import run_apply
from sluice.etl.settings import Apply, Downstream, Kafka, Relay, Settings, Upstream
from sluice.etl.settings.rules import parse_filter
from tests.etl.changes.messages.avro_reader import AvroReader
from tests.etl.changes.messages.debezium_avro_reader import DebeziumAvroReader
from tests.etl.changes.messages.readers import READERS
from tests.etl.changes.messages.recorded_messages import Reader
from tests.etl.downstream.sinks.registry import Registry, running_registry
from tests.etl.mariadb_fixture import MariaDBServer
from tests.etl.preparing import local_preparer
from tests.etl.story import Story

AVRO_READERS = {"avro": AvroReader, "debezium-avro": DebeziumAvroReader}


@dataclass(frozen=True)
class Format:
    """A format's settings and its reader; `registry` is used by Avro's alone."""

    options: Kafka
    registry: Registry
    name: str

    def reader(self) -> Reader:
        if self.name in AVRO_READERS:
            return AVRO_READERS[self.name](lambda number: json.loads(self.registry.text(number)))
        return READERS[self.name][1]()


@contextlib.contextmanager
def format_of(name: str, options: Kafka) -> Iterator[Format]:
    """Yield one of READERS, with a registry where it needs one."""
    encoding = READERS[name][0]
    options = replace(
        options,
        format=encoding.name,
        content_compatible=encoding.content_compatible,
        debezium_schema=encoding.with_schema,
        integrity="correctness" if encoding.with_checksum else "none",
    )
    with running_registry() as registry:
        if encoding.name in AVRO_READERS:
            options = replace(options, registry_url=registry.url, registry_subjects="record-name")
        yield Format(options, registry, name)


def story_of(folder: Path) -> Story:
    """Return a story without a server."""
    return Story(cast(MariaDBServer, None), folder)


def settings_to(
    url: str,
    kafka: Kafka,
    rules: dict[str, Any] | None = None,
    max_rows: int = 3,
) -> Settings:
    """Return settings of a pipeline from the relay log at `url`, with `rules` of [filter]."""
    return Settings(
        Upstream("unused"),
        Relay(url),
        Downstream(type="kafka"),
        apply=Apply(max_rows=max_rows),
        kafka=kafka,
        filters=parse_filter(rules or {})[0],
    )


def apply(settings: Settings) -> None:
    last = settings.open_relay().last()
    assert last is not None
    run_apply(settings, until_ts=last.hi, run_seconds=240, prepare=local_preparer(settings))
