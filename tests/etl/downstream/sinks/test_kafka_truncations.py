"""TRUNCATE TABLE as op t: where DDL goes, in the partition of the table's rows, or nowhere."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.etl.changes.messages import Message
from sluice.etl.settings import Kafka
from tests.etl.changes.messages.recorded_messages import Change, Row, frozen, rebuilt
from tests.etl.downstream.sinks.kafka_pipeline import (  # noqa: F401 fixtures
    broker,
    read,
    row_topics,
    spread,
)
from tests.etl.downstream.sinks.kafka_topic import needs_broker, read_topics
from tests.etl.downstream.sinks.told_topics import Format, apply, format_of, settings_to
from tests.etl.downstream.sinks.truncated_tables import BEFORE, BEHIND, emptied_tables
from tests.etl.story import Story

pytestmark = needs_broker

FORMATS = ("debezium-json", "debezium-avro")


@pytest.fixture(name="story")
def told(tmp_path: Path) -> Story:
    return emptied_tables(tmp_path)


def rows(*some: list[Row]) -> Counter[Any]:
    return Counter(frozen(row) for each in some for row in each)


def changes_of(used: Format, messages: list[Message]) -> list[Change]:
    reader = used.reader()
    return [change for change in map(reader.read, messages) if change is not None]


def control_messages(options: Kafka) -> list[Message]:
    found = read_topics(options.brokers, options.control_topic)
    return [read(message) for messages in found.values() for message in messages]


def with_control_topic(options: Kafka, **more: Any) -> Kafka:
    return replace(options, control_topic=f"{options.resume_topic}-control", **more)


@pytest.mark.parametrize("name", FORMATS)
def test_with_rows_op_t_is_between_them_beside_a_control_topic(
    name: str, options: Kafka, story: Story
) -> None:
    options = with_control_topic(options, dispatch="table", truncate_messages="with-rows")
    with format_of(name, options) as used:
        apply(settings_to(story.url, used.options))
        found = {place: each for place, each in row_topics(used.options).items() if each}
        assert len(found) == 2  # one partition a table
        for messages in found.values():
            changes = changes_of(used, messages)
            assert [change.op for change in changes].count("truncate") == 1
            assert list(rebuilt(changes).values()) == [rows(BEHIND)]
        assert changes_of(used, control_messages(used.options)) == []


@pytest.mark.parametrize("name", FORMATS)
def test_with_ddl_op_t_of_several_tables_is_in_the_control_topic(
    name: str, options: Kafka, story: Story
) -> None:
    options = with_control_topic(options)
    with format_of(name, options) as used:
        used = replace(used, options=replace(used.options, registry_subjects="topic-name"))
        apply(settings_to(story.url, used.options))
        emptied = changes_of(used, control_messages(used.options))
        assert [(each.op, each.table) for each in emptied] == [
            ("truncate", "d.orders"),
            ("truncate", "d.items"),
        ]
        subjects = {each for each in used.registry.subjects if used.options.control_topic in each}
        assert subjects == (
            {
                f"{options.control_topic}-default.d.{each}.Envelope-value"
                for each in ("orders", "items")
            }
            if used.options.registry_url
            else set()
        )
        for messages in row_topics(used.options).values():
            assert "truncate" not in {change.op for change in changes_of(used, messages)}


@pytest.mark.parametrize("name", FORMATS)
def test_none_leaves_the_rows_with_readers_and_a_warning_names_the_table(
    name: str, options: Kafka, story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    options = replace(options, truncate_messages="none", dispatch="table")
    with format_of(name, options) as used, caplog.at_level(logging.WARNING, "sluice"):
        apply(settings_to(story.url, used.options))
        every = (changes_of(used, messages) for messages in row_topics(used.options).values())
        changes = [change for some in every for change in some]
        assert {change.op for change in changes} == {"insert"}
        found = Counter(frozen(change.new or {}) for change in changes)
        assert found == rows(BEFORE, BEFORE, BEHIND, BEHIND)
    warned = [each.getMessage() for each in caplog.records if "op t" in each.getMessage()]
    assert len(warned) == 2
    assert "table=d.orders commit_ts=" in warned[0] and "table=d.items" in warned[1]
