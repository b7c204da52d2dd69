"""Messages go to the partitions of TiCDC, and all of a key to one."""

from __future__ import annotations

import pytest

from sluice.etl.changes.messages import Dispatch, MessageFormat, Routing, encoder_for, row_hashes
from sluice.etl.changes.messages.message import RowBatch, split_changes
from sluice.etl.changes.messages.partition_hash import DispatchError
from sluice.etl.changes.messages.routing import check_expression, topic_name
from sluice.etl.changes.write_plans.kafka_messages import _encoded
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb import column_types as types
from sluice.tidb.schema import Column, Index, Table
from sluice.tidb.table_name import TableName
from tests.etl.changes.messages.canal_reader import CanalReader
from tests.etl.changes.messages.debezium_reader import DebeziumReader
from tests.etl.changes.messages.orders import ROW, batch_of

KEY, TABLE = Dispatch.parse("key"), Dispatch.parse("table")
NUMBERS = Table(
    1,
    1,
    "test",
    "t2",
    (Column(1, "a", 0, types.INT, flag=types.FLAG_NOT_NULL), Column(2, "b", 1, types.INT)),
    (Index(1, "u", (("a", 0, -1),), unique=True),),
)


def partition(batch: RowBatch, dispatch: str, count: int) -> int:
    _, new = row_hashes(batch, Dispatch.parse(dispatch))
    return int(new[0]) % count


@pytest.mark.parametrize(
    ("key", "of_3", "of_16"), [(1, 2, 4), (2, 0, 14), (3, 1, 8), (7, 0, 1), (8, 0, 0)]
)
def test_a_key_has_the_partition_that_ticdc_gives_it(key: int, of_3: int, of_16: int) -> None:
    batch = batch_of(INSERT, new=ROW | {"id": key})
    assert (partition(batch, "key", 3), partition(batch, "key", 16)) == (of_3, of_16)


@pytest.mark.parametrize(("a", "b", "expected"), [(11, 22, 5), (11, 0, 14), (11, 33, 2)])
def test_columns_in_any_order_have_the_partition_of_ticdcs_own_tests(
    a: int, b: int, expected: int
) -> None:
    batch = batch_of(INSERT, new={"a": a, "b": b}, table=NUMBERS)
    for named in ("columns:a,b", "columns:B, A"):
        assert partition(batch, named, 16) == expected


def test_null_and_enum_are_hashed_as_their_text() -> None:
    assert partition(batch_of(INSERT, new=ROW), "columns:st", 16) == 9
    null = partition(batch_of(INSERT, new=ROW | {"note": None}), "columns:note", 1 << 16)
    text = partition(batch_of(INSERT, new=ROW | {"note": "null"}), "columns:note", 1 << 16)
    assert null == text


def test_a_column_that_the_table_lacks_is_named() -> None:
    with pytest.raises(DispatchError, match=r"'shop.orders' has no column 'region'"):
        row_hashes(batch_of(INSERT, new=ROW), Dispatch.parse("columns:id,region"))


def test_a_changed_key_is_a_delete_where_the_key_was_and_an_insert_where_it_is() -> None:
    old, new = ROW | {"id": 1}, ROW | {"id": 3}
    batch = batch_of(UPDATE, old=old, new=new)
    of_old, of_new = (int(hashes[0]) for hashes in row_hashes(batch, KEY))
    for options, reader in (
        (MessageFormat("canal-json"), CanalReader()),
        (MessageFormat("debezium-json", with_schema=True), DebeziumReader()),
    ):
        (change,) = _encoded(encoder_for(options), batch, KEY).to_pylist()
        found = [(h, read.op) for h, m in split_changes(change) if (read := reader.read(m))]
        assert found == [(of_old, "delete"), (of_new, "insert")]


def test_an_update_in_its_partition_stays_one_message_in_its_place() -> None:
    batch = batch_of(UPDATE, old=ROW, new=ROW | {"price": "13.00"})
    encoded = _encoded(encoder_for(MessageFormat("canal-json")), batch, KEY)
    (found,) = split_changes(encoded[0].as_py())
    assert found[0] == int(row_hashes(batch, KEY)[0][0])
    plain = _encoded(encoder_for(MessageFormat("canal-json")), batch, TABLE)
    assert [h for h, _ in split_changes(plain[0].as_py())] == [0]


def test_cut_off_changes_are_an_error() -> None:
    batch = batch_of(DELETE, old=ROW)
    data = _encoded(encoder_for(MessageFormat("canal-json")), batch, KEY)[0].as_py()
    for size in (1, 11, len(data) - 1):
        with pytest.raises(ValueError, match="no whole change at byte 0"):
            list(split_changes(data[:size]))


@pytest.mark.parametrize(
    ("expression", "name", "expected"),
    [
        ("cdc-{schema}-{table}", TableName("shop", "orders"), "cdc-shop-orders"),
        ("{schema}_{table}", TableName("a b", "c$"), "a_b_c_"),
        ("{schema}", TableName("..", "c"), "__"),
        ("{table}", TableName("a", "x" * 300), "x" * 249),
        ("all", TableName("a", "b"), "all"),
    ],
)
def test_a_topic_has_the_name_that_kafka_takes(
    expression: str, name: TableName, expected: str
) -> None:
    assert topic_name(expression, name) == expected


def test_an_expression_that_names_no_topic_is_refused() -> None:
    for text in ("", "a b", "{schema}/{table}", "{database}"):
        with pytest.raises(ValueError, match="a topic's name has letters"):
            check_expression(text)


def test_the_first_rule_that_fits_a_table_decides() -> None:
    routing = Routing(
        "rest",
        (("shop.o*", "orders"), ("shop.*", "shop-{table}")),
        TABLE,
        (("log.*", Dispatch.parse("commit-ts")),),
    )
    topics = [routing.topic_of(TableName(*name)) for name in (("shop", "orders"), ("shop", "x"))]
    assert [*topics, routing.topic_of(TableName("log", "o"))] == ["orders", "shop-x", "rest"]
    assert routing.dispatch_of(TableName("log", "o")).kind == "commit-ts"
    assert routing.dispatch_of(TableName("shop", "o")) == TABLE
    assert not routing.is_one_partition
    assert Routing("rest").is_one_partition
