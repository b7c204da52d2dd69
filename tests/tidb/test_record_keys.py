"""Keys of rows in TiKV, made from rows as binlogs have them."""

from __future__ import annotations

import pytest

from sluice.tidb.codec import row as codec
from sluice.tidb.codec.memcomparable import encode_int
from sluice.tidb.record_keys import handle_of_insert, handles_of_images, record_key
from sluice.tidb.schema import Column, Index, Table

NOT_NULL, PRIMARY, UNSIGNED = 1, 2, 32


def clustered(*columns: Column, prefix: int = -1) -> Table:
    key = Index(
        1,
        "PRIMARY",
        tuple((c.name, n, prefix) for n, c in enumerate(columns)),
        unique=True,
        primary=True,
    )
    return Table(
        5, 1, "d", "t", (*columns, Column(9, "v", len(columns), 3)), (key,), is_common_handle=True
    )


def text(collate: str, number: int = 1, name: str = "s") -> Column:
    return Column(
        number, name, number - 1, 15, NOT_NULL | PRIMARY, charset="utf8mb4", collate=collate
    )


def test_an_insert_has_the_handle_that_tidb_makes_of_a_clustered_key() -> None:
    columns = (
        text("utf8mb4_bin"),
        Column(2, "n", 1, 8, NOT_NULL | PRIMARY),
        Column(3, "d", 2, 10, NOT_NULL | PRIMARY),
    )
    row = bytes.fromhex("0208626262620814098080808080c0d0d219")
    assert (
        handle_of_insert(clustered(*columns), row).hex()
        == "016262626200000000fb03800000000000000a0419a5420000000000"
    )


def test_a_record_key_names_the_table_or_partition_and_the_handle() -> None:
    assert record_key(43, encode_int(42451)).hex() == "74800000000000002b5f72800000000000a5d3"


@pytest.mark.parametrize(
    ("column", "value", "other"),
    [
        (text("utf8mb4_bin"), "b ", "c"),
        (text("utf8mb4_general_ci"), "bC ", "A"),
        (text("utf8mb4_nopad_bin"), "b ", "c"),
        (
            Column(1, "s", 0, 15, NOT_NULL | PRIMARY, charset="binary", collate="binary"),
            b"12345678",
            b"\0",
        ),
        (Column(1, "s", 0, 8, NOT_NULL | PRIMARY | UNSIGNED), 2**64 - 1, 1),
        (Column(1, "s", 0, 11, NOT_NULL | PRIMARY), "-10:00:00", "01:00:00"),
        (Column(1, "s", 0, 246, NOT_NULL | PRIMARY, flen=10, decimal=2), "-12.50", "3.00"),
        (Column(1, "s", 0, 5, NOT_NULL | PRIMARY), -1.5, 2.0),
        (Column(1, "s", 0, 12, NOT_NULL | PRIMARY), "2020-01-01 10:00:00", "2021-01-01 00:00:00"),
    ],
)
def test_a_row_has_the_same_handle_however_it_is_changed(
    column: Column, value: object, other: object
) -> None:
    table, image = clustered(column), {"s": value, "v": 1}
    (handle,) = handles_of_images(table, codec.encode_delete(table, image), 1)
    old, new = handles_of_images(table, codec.encode_update(table, image, {"s": other, "v": 2}), 2)
    assert handle == old != new and handle is not None
    if column.kind != "text":  # a test's insert has no sort keys
        assert handle == handle_of_insert(table, codec.encode_insert(table, image))


@pytest.mark.parametrize(("value", "handle"), [(7, 7), (2**64 - 2, -2)])
def test_an_integer_key_is_the_handle_and_an_unsigned_one_wraps(value: int, handle: int) -> None:
    table = Table(
        5,
        1,
        "d",
        "t",
        (Column(1, "k", 0, 8, NOT_NULL | PRIMARY | UNSIGNED), Column(2, "v", 1, 3)),
        pk_is_handle=True,
    )
    image = {"k": value, "v": 1}
    assert handle_of_insert(table, codec.encode_insert(table, image)) == encode_int(handle)
    assert handles_of_images(table, codec.encode_delete(table, image), 1) == [encode_int(handle)]


def test_a_table_without_a_clustered_key_has_the_hidden_row_id_in_every_change() -> None:
    table = Table(5, 1, "d", "t", (Column(1, "v", 0, 3),))
    image = {"v": 1, codec.ROWID_NAME: 60010}
    assert handle_of_insert(table, codec.encode_insert(table, image)) == encode_int(60010)
    update = codec.encode_update(table, image, image | {"v": 2})
    assert handles_of_images(table, update, 2) == [encode_int(60010)] * 2


def test_a_text_whose_order_only_tidb_knows_has_no_handle() -> None:
    table = clustered(text("utf8mb4_unicode_ci"))
    assert handles_of_images(table, codec.encode_delete(table, {"s": "ß", "v": 1}), 1) == [None]
