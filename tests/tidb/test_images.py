"""Columns that are decoded on demand hold what decoding all rows at once gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.tidb import row_images as images_module
from sluice.tidb.row_images import JoinedImages, RowImages
from sluice.tidb.rows import (
    DecodeStats,
    RowDecodeError,
    decode_deletes,
    decode_inserts,
    decode_updates,
    encode_delete,
    encode_insert,
    encode_update,
    images_of,
)
from sluice.tidb.schema import Table
from tests.examples import examples
from tests.tidb.test_rows import batches, binary, calm, raw

_DECODE: dict[str, Any] = {
    "insert": decode_inserts,
    "delete": decode_deletes,
    "update": decode_updates,
}


def encoded(what: str, table: Table, rows: list[dict[str, Any]]) -> list[bytes]:
    if what == "update":
        return [encode_update(table, old, new) for old, new in zip(rows, rows[::-1], strict=True)]
    encode = encode_insert if what == "insert" else encode_delete
    return [encode(table, row) for row in rows]


def eager(what: str, table: Table, rows: Any, stats: DecodeStats | None = None) -> list[Any]:
    found = _DECODE[what](table, rows, stats)
    return list(found) if what == "update" else [found]


def same(images: RowImages, batch: Any, places: Any) -> None:
    for name in images:
        got, want = images[name], batch.column(batch.schema.get_field_index(name))
        assert got.type == want.type
        got.validate(full=not str(got.type).endswith("string"))  # text needn't be utf-8
        assert repr(_plain(name, got)) == repr(_plain(name, want.take(places)))  # NaN equals itself


def _plain(name: str, array: Any) -> list[Any]:
    return raw(pa.record_batch([array], names=[name]))


@pytest.fixture(autouse=True, scope="module")
def few() -> Iterator[None]:
    """Some rows are picked of few, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images_module, "_SMALL_ROW_COUNT", 20)
        yield


@settings(calm, max_examples=examples(20))
@given(batches(), st.sampled_from(["insert", "delete", "update"]), st.data())
def test_any_rows_of_any_column_are_what_decoding_everything_gives(
    batch: tuple[Table, list[dict[str, Any]]], what: str, data: st.DataObject
) -> None:
    table, rows = batch
    rows = rows * 9  # more than are decoded row by row
    sent = binary(encoded(what, table, rows))
    counted, wanted = DecodeStats(), DecodeStats()
    whole = eager(what, table, sent, wanted)
    found = images_of(what, table, sent, counted)
    assert (counted.rows, counted.absent) == (wanted.rows, wanted.absent)
    some = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20)), np.int64)
    again = np.array(
        data.draw(st.lists(st.integers(0, max(0, len(some) - 1)), max_size=9 if len(some) else 0)),
        int,
    )
    for images, want in zip(found, whole, strict=True):
        asked = data.draw(st.sampled_from([*images]))
        taken = images.take(some)
        same(taken.take(again), want, pa.array(some[again]))
        assert repr(_plain(asked, images.some(asked, some))) == repr(_plain(asked, taken[asked]))
        same(taken, want, pa.array(some))
        same(images, want, pa.array(np.arange(len(rows))))
        marks = images.marks(asked)
        # the same rows nine times
        assert marks is None or len(np.unique(np.reshape(marks, (9, -1)), axis=0)) == 1
        order = np.random.default_rng(len(some)).permutation(2 * len(rows))
        joined = JoinedImages([found[0], images], order)
        double = pa.concat_batches([whole[0], want])
        same(joined.take(some), double, pa.array(order[some]))
        same(joined, double, pa.array(order))


@settings(calm, max_examples=examples(20))
@given(batches(), st.sampled_from(["insert", "delete", "update"]), st.data())
def test_a_corrupt_row_is_refused_as_by_decoding_everything_or_what_is_asked_for_is_whole(
    batch: tuple[Table, list[dict[str, Any]]], what: str, data: st.DataObject
) -> None:
    table, rows = batch
    rows = rows * 9
    sent = encoded(what, table, rows)
    victim = data.draw(st.integers(0, len(rows) - 1))
    broken = bytearray(sent[victim])
    broken[data.draw(st.integers(0, len(broken) - 1))] ^= data.draw(st.integers(1, 255))
    sent[victim] = bytes(broken)

    def ask() -> None:
        for images, want in zip(images_of(what, table, binary(sent)), whole, strict=True):
            same(images, want, pa.array(np.arange(len(rows))))

    try:
        whole = eager(what, table, binary(sent))
    except RowDecodeError as error:
        with pytest.raises(RowDecodeError) as raised:
            found = images_of(what, table, binary(sent))
            for images in found:
                for name in images:
                    images[name]
        assert str(raised.value) == str(error)
        return
    ask()
