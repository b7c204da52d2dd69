"""Schemas have the registry's ids in the topic; one that it refuses stops in front of its rows."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sluice.etl.changes.messages import AS_TICDC, MessageFormat, encoder_for
from sluice.etl.changes.steps import MessageSchema, ScopedDdl
from sluice.etl.downstream.sinks._schema_registry import RegistryUnavailableError, SchemaRegistry
from sluice.etl.downstream.sinks.sink import ApplyError
from sluice.etl.settings import Kafka
from sluice.tidb import column_types as types
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.schema import Column, Table
from tests.etl.changes.messages.orders import ORDERS
from tests.etl.downstream.sinks.registry import Registry, basic, running_registry

VALUE = MessageSchema("default.shop.t", "value", '{"name": "t", "fields": []}')
_NOT_NULL = types.FLAG_NOT_NULL


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as found:
        yield found


def options(registry: Registry) -> Kafka:
    return Kafka(brokers="unused", format="avro", registry_url=registry.url, timeout_s=20)


def ddl(query: str) -> ScopedDdl:
    job = DdlJob(450, query=query, type=Action.ADD_COLUMN, schema_name="shop", table_name="orders")
    return ScopedDdl.from_job(job)


def test_a_schema_is_registered_once_under_its_topics_subject(registry: Registry) -> None:
    ids = SchemaRegistry(options(registry))
    assert [ids.id_of("shop.orders", VALUE) for _ in range(3)] == [1, 1, 1]
    assert (registry.asked, dict(registry.subjects)) == (1, {"shop.orders-value": [1]})
    assert registry.text(1) == VALUE.text


@pytest.mark.parametrize(
    ("fidelity", "strategy", "subject"),
    [
        ("lossless", "topic-name", "shop.orders-value"),
        (AS_TICDC, "topic-name", "shop_orders-value"),
        ("lossless", "record-name", "default.shop.t-value"),
        ("lossless", "topic-record-name", "shop.orders-default.shop.t-value"),
    ],
)
def test_subjects_are_named_as_readers_expect(
    fidelity: str, strategy: str, subject: str, registry: Registry
) -> None:
    named = replace(options(registry), fidelity=fidelity, registry_subjects=strategy)
    SchemaRegistry(named).id_of("shop.orders", VALUE)
    assert list(registry.subjects) == [subject]


def test_a_refused_schema_is_named_with_its_ddl_and_the_way_out(registry: Registry) -> None:
    ids = SchemaRegistry(options(registry))
    encoder = encoder_for(MessageFormat("avro"))
    ids.register("orders", encoder.table_schemas(ORDERS), ddl("CREATE TABLE …"))
    added = Column(7, "qty", 6, types.INT, flag=_NOT_NULL)
    after = replace(ORDERS, columns=(*ORDERS.columns, added))
    with pytest.raises(ApplyError) as refused:
        ids.register("orders", encoder.table_schemas(after), ddl("ALTER TABLE orders ADD qty INT"))
    text = str(refused.value)
    for part in (
        "'default.shop.orders' as subject 'orders-value'",
        "behind the DDL at commit_ts 450 (ALTER TABLE orders ADD qty INT)",
        "409",
        f"curl -X PUT -H 'Content-Type: application/json' -d '{{\"compatibility\": \"NONE\"}}'"
        f" {registry.url}/config/orders-value",
    ):
        assert part in text
    assert not refused.value.transient
    with_default = replace(added, origin_default="0")
    after = replace(ORDERS, columns=(*ORDERS.columns, with_default))
    ids.register("orders", encoder.table_schemas(after), ddl("ALTER TABLE orders ADD qty INT"))


def test_a_registry_in_trouble_is_asked_again_later(registry: Registry) -> None:
    ids = SchemaRegistry(options(registry))
    registry.failures = [500, 429]
    for _ in range(2):
        with pytest.raises(
            RegistryUnavailableError, match=r"registering 'default\.shop\.t'"
        ) as away:
            ids.id_of("t", VALUE)
        assert away.value.transient
    assert ids.id_of("t", VALUE) == 1
    gone = SchemaRegistry(replace(options(registry), registry_url="http://127.0.0.1:1"))
    with pytest.raises(RegistryUnavailableError, match="refused"):
        gone.id_of("t", VALUE)


def test_a_password_is_sent_and_never_shown(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.authorization = basic("sluice", "hunter2")
    secret = replace(
        options(registry), registry_user="sluice", registry_password_env="REGISTRY_PASSWORD"
    )
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter2")
    assert SchemaRegistry(secret).id_of("t", VALUE) == 1
    monkeypatch.setenv("REGISTRY_PASSWORD", "hunter3")
    with pytest.raises(ApplyError, match=r"401.*registry-password-env") as refused:
        SchemaRegistry(secret).id_of("u", VALUE)
    assert "hunter" not in str(refused.value)
    with pytest.raises(ApplyError, match="401"):
        SchemaRegistry(options(registry)).id_of("u", VALUE)


def test_what_is_no_registry_is_named(registry: Registry) -> None:
    registry.failures = [404]
    with pytest.raises(ApplyError, match=r"404.*correct \[kafka\] registry-url"):
        SchemaRegistry(options(registry)).id_of("t", VALUE)
    registry.failures = [204]
    with pytest.raises(ApplyError, match="the answer is"):
        SchemaRegistry(options(registry)).id_of("t", VALUE)


@pytest.mark.skipif(
    not os.environ.get("SLUICE_TEST_REGISTRY"), reason="for `make test-kafka`: a real registry"
)
@pytest.mark.parametrize("name", ["avro", "debezium-avro"])
def test_a_real_registry_takes_compatible_changes_and_refuses_others(name: str) -> None:
    url = os.environ["SLUICE_TEST_REGISTRY"]
    topic = f"sluice-{secrets.token_hex(6)}"
    ids = SchemaRegistry(Kafka(format=name, registry_url=url, timeout_s=20))
    encoder = encoder_for(MessageFormat(name))

    def value_id(table: Table) -> int:
        return ids.id_of(topic, encoder.table_schemas(table)[-1])

    added = Column(7, "qty", 6, types.DECIMAL, flen=10, decimal=2, flag=_NOT_NULL)
    default = replace(added, origin_default="1.50")
    with_qty = replace(ORDERS, columns=(*ORDERS.columns, default))
    found = [value_id(ORDERS), value_id(with_qty), value_id(ORDERS)]
    assert found[0] == found[2] != found[1]
    other_type = replace(ORDERS.columns[1], tp=types.INT)
    with pytest.raises(ApplyError, match="409"):
        value_id(replace(ORDERS, columns=(ORDERS.columns[0], other_type, *ORDERS.columns[2:])))
