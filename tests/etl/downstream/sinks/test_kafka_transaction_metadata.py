"""Each message of Debezium's has its place in the transaction whose END counts it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest

from sluice.etl.settings import Kafka
from sluice.relay import RelayLog
from tests.etl.changes.messages.avro_reader import record_of
from tests.etl.downstream.sinks.kafka_pipeline import (  # noqa: F401 fixtures
    applied,
    broker,
    landed,
    markers,
    row_topics,
    spread,
)
from tests.etl.downstream.sinks.kafka_topic import needs_broker
from tests.etl.downstream.sinks.registry import running_registry

pytestmark = needs_broker


@pytest.mark.ci_cases("debezium-json")
@pytest.mark.parametrize("name", ["debezium-json", "debezium-avro"])
def test_places_count_from_one_to_what_the_end_of_their_transaction_says(
    name: str, relays: dict[str, RelayLog], options: Kafka
) -> None:
    with running_registry() as registry:
        options = replace(
            options, format=name, registry_url=registry.url if name == "debezium-avro" else ""
        )
        applied(relays["shop"], options)

        def envelope(value: bytes) -> dict[str, Any]:
            if name == "debezium-json":
                found = json.loads(value)
            else:
                _, found = record_of(value, lambda number: json.loads(registry.text(number)))
            assert isinstance(found, dict)
            return found

        rows = [
            (message, envelope(message.value))
            for messages in row_topics(options).values()
            for message in messages
            if message.value is not None
        ]
    total, by_table = defaultdict(list), defaultdict(list)
    for message, value in rows:
        if "ddl" in value or value["op"] == "t":
            continue
        block = value["transaction"]
        assert block["id"] == str(message.commit_ts)
        table = f"{value['source']['db']}.{value['source']['table']}"
        total[block["id"]].append(block["total_order"])
        by_table[block["id"], table].append(block["data_collection_order"])
    ends = {marker["id"]: marker for marker in markers(options) if marker["status"] == "END"}
    assert total.keys() == ends.keys()
    assert max(map(len, total.values())) > 3
    for name_of, marker in ends.items():
        assert sorted(total[name_of]) == list(range(1, marker["event_count"] + 1))
        counts = Counter()
        for (ts, table), orders in by_table.items():
            if ts == name_of:
                assert sorted(orders) == list(range(1, len(orders) + 1))
                counts[table] = len(orders)
        assert counts == {
            each["data_collection"]: each["event_count"] for each in marker["data_collections"]
        }
