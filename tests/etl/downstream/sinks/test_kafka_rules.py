"""Row and column rules through a broker: readers have the rows and columns that rules leave."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import SluiceError
from sluice.etl.changes.messages import Message
from sluice.etl.settings import Kafka
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.ddl_actions import Action
from sluice.tidb.rows import ROWID_NAME, encode_delete, encode_insert, encode_update
from sluice.tidb.schema import Index
from tests.etl.changes.messages.readers import READERS
from tests.etl.changes.messages.recorded_messages import Reader, frozen, rebuilt
from tests.etl.downstream.sinks.kafka_pipeline import (  # noqa: F401 fixtures
    broker,
    markers,
    merged,
    row_topics,
    spread,
)
from tests.etl.downstream.sinks.kafka_topic import needs_broker
from tests.etl.downstream.sinks.told_topics import apply, format_of, settings_to, story_of
from tests.etl.story import Row, column, table, wider

pytestmark = needs_broker

ORDERS = table(11, "orders", "id int", "region varchar(9)", "amount int", primary="id")
BY_REGION = {"rows": [{"tables": ["d.orders"], "where": "region = 'eu'"}]}


def order(number: int, region: str | None, amount: int) -> Row:
    return {"id": number, "region": region, "amount": amount}


def meant(row: Row | None) -> Row | None:
    """A row as readers have it."""
    return row and {
        name: value.encode() if isinstance(value, str) else value
        for name, value in row.items()
        if name != ROWID_NAME
    }


def changes_by_ts(messages: list[Message], reader: Reader) -> list[list[tuple[Any, ...]]]:
    """What each transaction changes, by commit ts; the parts of a moved key are apart."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for message in messages:
        change = reader.read(message)
        if change is not None:
            assert change.table == "d.orders"
            found.setdefault(message.commit_ts, []).append((change.op, change.old, change.new))
    return [sorted(each, key=repr) for each in found.values()]


@pytest.mark.parametrize("name", READERS)
def test_a_row_that_crosses_a_rules_border_is_an_insert_or_a_delete_in_every_format(
    name: str, options: Kafka, tmp_path: Path
) -> None:
    story = story_of(tmp_path)
    story.create(ORDERS, "CREATE TABLE orders (...)")
    first, stays, away = order(1, "eu", 10), order(2, "eu", 20), order(3, "us", 30)
    moved, back = first | {"region": "us"}, first | {"region": "eu", "amount": 11}
    new_key, raised = stays | {"id": 5}, stays | {"amount": 21}
    story.insert(ORDERS, first, stays, away)
    # one transaction: leaves, stays, and is outside before and behind
    story.changes(
        *(
            (ORDERS, UPDATE, encode_update(ORDERS, old, new))
            for old, new in (
                (first, moved),
                (stays, raised),
                (away, away | {"region": None}),
            )
        )
    )
    story.update(ORDERS, moved, back)  # comes back
    story.changes(
        (ORDERS, DELETE, encode_delete(ORDERS, raised)),
        (ORDERS, INSERT, encode_insert(ORDERS, new_key)),
        (ORDERS, DELETE, encode_delete(ORDERS, away | {"region": None})),
    )
    with format_of(name, options) as used:
        apply(settings_to(story.url, used.options, BY_REGION))
        sent = merged(row_topics(used.options))
        changes = changes_by_ts(sent, used.reader())
        assert rebuilt(map(used.reader().read, sent)) == {
            "d.orders": Counter(frozen(meant(row) or {}) for row in (back, new_key))
        }
    expected = [
        [("insert", None, first), ("insert", None, stays)],
        [("delete", first, None), ("update", stays, raised)],
        [("insert", None, back)],
        [("delete", raised, None), ("insert", None, new_key)],
    ]
    assert changes == [
        sorted(((op, meant(old), meant(new)) for op, old, new in each), key=repr)
        for each in expected
    ]
    # a tombstone behind each delete, if the format has them
    deleted = [m for m in sent if m.value is None and m.key is not None]
    assert len(deleted) == (2 if "avro" in name or "debezium" in name else 0)
    ends = [marker for marker in markers(used.options) if marker["status"] == "END"]
    assert [marker["event_count"] for marker in ends] == [len(each) for each in expected]
    assert {each["data_collection"] for m in ends for each in m["data_collections"]} == {"d.orders"}


CUSTOMERS = table(
    12, "customers", "id int", "name varchar(9)", "email varchar(20)", "phone int", primary="id"
)
NEW_NAMES = {"name": "title", "grade": "level"}
WITHOUT = {
    "columns": [
        {"tables": ["d.cust*"], "leave-out": ["EMAIL", "phone", "fax"]},
        {"tables": ["d.cust*"], "rename": {"NAME": "title", "grade": "level"}},
    ]
}
SECRETS = (b"secret", b"email", b"EMAIL", b"phone", b"fax", b"2071118394")


def customer(number: int, name: str | None, **more: Any) -> Row:
    return {"id": number, "name": name, "email": f"secret{number}", "phone": 2_071_118_394, **more}


def shown(row: Row) -> Row:
    return {NEW_NAMES.get(n, n): v for n, v in row.items() if n not in ("email", "phone", "fax")}


def told(folder: Path) -> tuple[Any, list[Row]]:
    """A table with columns that are left out, through their DDL; the rows at the end."""
    story = story_of(folder)
    story.create(
        CUSTOMERS, "CREATE TABLE customers (id int primary key, name varchar(9), email ...)"
    )
    one, two = customer(1, "a"), customer(2, None)
    story.insert(CUSTOMERS, one, two)
    one = story.update(CUSTOMERS, one, {"email": "secret9"})  # of a column that is left out alone
    indexed = replace(CUSTOMERS, indexes=(Index(7, "by_email", (("email", 2, -1),), unique=False),))
    story.statement(Action.ADD_INDEX, "ALTER TABLE customers ADD INDEX by_email (email)", indexed)
    faxed = wider(indexed, column(5, "fax varchar(9)"))
    story.statement(Action.ADD_COLUMN, "ALTER TABLE customers ADD COLUMN fax varchar(9)", faxed)
    three = customer(3, "c", fax="secret")
    story.insert(faxed, three)
    graded = wider(faxed, column(6, "grade int"))
    query = "ALTER TABLE customers ADD COLUMN grade int AFTER phone, ADD INDEX (phone)"
    story.statement(Action.MULTI_SCHEMA_CHANGE, query, graded)
    four = customer(4, "d", fax="secret", grade=9)
    story.insert(graded, four)
    left = tuple(c for c in graded.columns if c.name != "email")
    dropped = replace(
        graded, columns=tuple(replace(c, offset=n) for n, c in enumerate(left)), indexes=()
    )
    query = "ALTER TABLE customers DROP COLUMN email"
    story.statement(Action.DROP_COLUMN, query, dropped)
    del four["email"]
    story.delete(dropped, four)
    five = customer(5, "e", fax="secret", grade=1)
    story.insert(dropped, five)
    return story, [one, two, three, five]


@pytest.mark.parametrize("name", READERS)
def test_readers_of_every_format_find_new_names_and_nothing_of_left_out_columns(
    name: str, options: Kafka, tmp_path: Path
) -> None:
    story, rows = told(tmp_path)
    with format_of(name, options) as used:
        apply(settings_to(story.url, used.options, WITHOUT))
        sent = merged(row_topics(used.options))
        found = rebuilt(map(used.reader().read, sent))
        assert found == {"d.customers": Counter(frozen(meant(shown(row)) or {}) for row in rows)}
        everything = [
            *used.registry.texts.copy(),
            *used.registry.subjects,
            *(part for m in sent for part in (m.key, m.value, *(v for _, v in m.headers)) if part),
        ]
        # a statement about left-out columns alone is no new version of a schema
        assert all(len(versions) <= 2 for versions in used.registry.subjects.values())
    for part in everything:
        raw = part.encode() if isinstance(part, str) else part
        assert not [secret for secret in SECRETS if secret in raw], raw
    # an update of a column that is left out is still an event of its transaction
    ends = [marker for marker in markers(used.options) if marker["status"] == "END"]
    assert [marker["event_count"] for marker in ends] == [2, 1, 1, 1, 1, 1]


def test_statements_in_topics_name_the_columns_that_are_left(
    options: Kafka, tmp_path: Path
) -> None:
    story, _ = told(tmp_path)
    apply(settings_to(story.url, options, WITHOUT))
    sent = merged(row_topics(options))
    documents = [json.loads(message.value or b"{}") for message in sent]
    first, *others = [each["sql"] for each in documents if each["isDdl"] and each["table"]]
    assert first.startswith("CREATE TABLE `d`.`customers` (`id` INT NOT NULL, `title` VARCHAR(9)")
    assert others == ["ALTER TABLE `d`.`customers` ADD COLUMN `level` INT NULL DEFAULT NULL"]


def test_rows_are_dispatched_by_a_columns_new_name(options: Kafka, tmp_path: Path) -> None:
    story, rows = told(tmp_path)
    apply(settings_to(story.url, replace(options, dispatch="columns:title"), WITHOUT))
    sent = [m for m in merged(row_topics(options)) if not json.loads(m.value or b"{}")["isDdl"]]
    assert len(sent) > len(rows)


def test_a_dispatch_by_a_left_out_column_stops_by_the_tables_and_the_columns_name(
    options: Kafka, tmp_path: Path
) -> None:
    story, _ = told(tmp_path)
    by_phone = replace(options, dispatch="columns:phone")
    with pytest.raises(SluiceError, match=r"'d\.customers' has no column 'phone'.*leaves it out"):
        apply(settings_to(story.url, by_phone, WITHOUT))
    sent = merged(row_topics(options))
    assert all(json.loads(message.value or b"{}")["isDdl"] for message in sent)
