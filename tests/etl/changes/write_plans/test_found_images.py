"""What the compiled kernels find in rows, and write of them, is what decoding by way of
`sluice.tidb.rows` gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluice.tidb.kernel
from sluice.etl.changes.formats import kernel as lines_kernel
from sluice.etl.changes.formats import load_lines_native as found_lines
from sluice.etl.changes.formats.load_data import UnsupportedColumnError, format_load
from sluice.etl.changes.formats.load_lines_native import LoadLines, format_load_native
from sluice.etl.changes.formats.sql_columns import invalid_utf8_mask
from sluice.etl.changes.write_plans.raw_changes import Images, decode, decoded_images
from sluice.relay import DELETE, INSERT, UPDATE
from sluice.tidb.codec import row as codec
from sluice.tidb.codec.varint import encode_uvarint
from sluice.tidb.kernel import DIFFERENT, SAME, UNSURE, plain
from sluice.tidb.native_images import NativeImages, RowLayout, find_images
from sluice.tidb.rows import (
    ROWID_NAME,
    RowDecodeError,
    check_collations,
    encode_delete,
    encode_insert,
    encode_update,
)
from sluice.tidb.schema import Table
from tests.compiled_kernels import compiled_kernel
from tests.examples import examples
from tests.tidb.test_rows import batches, calm, make_table, raw

Rows = list[dict[str, Any]]
Found = tuple[NativeImages, NativeImages]


@pytest.fixture(autouse=True, scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    found = compiled_kernel("tidb/kernel", tmp_path_factory.mktemp("found"))
    lines = compiled_kernel("etl/changes/formats/kernel", tmp_path_factory.mktemp("lines"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("walk", "gather", "alike"):
            patch.setattr(sluice.tidb.kernel, name, getattr(found, name))
        patch.setattr(sluice.tidb.kernel, "IS_COMPILED", True)
        patch.setattr(lines_kernel, "lines", lines.lines)
        patch.setattr(lines_kernel, "IS_COMPILED", True)
        yield


def encoded(table: Table, rows: Rows, kinds: list[int]) -> list[bytes]:
    def one(at: int, kind: int) -> bytes:
        if kind == UPDATE:
            return encode_update(table, rows[at - 1], rows[at])
        return (encode_insert if kind == INSERT else encode_delete)(table, rows[at])

    return [one(at, kind) for at, kind in enumerate(kinds)]


def sent(rows: list[bytes]) -> pa.LargeBinaryArray:
    """As a slice of more, as a segment has them."""
    return pa.array([b"before", *rows, b"\x08\x02"], pa.large_binary())[1:-1]


def find(table: Table, kinds: list[int], rows: list[bytes]) -> Found | None:
    layout = RowLayout.for_table(table)
    assert layout is not None
    places = np.arange(len(rows))
    found = find_images(
        layout, np.array(kinds, np.int8), sent(rows), places, lambda: other(table, kinds, rows)
    )
    return None if found is None else found[:2]


def other(table: Table, kinds: list[int], rows: list[bytes]) -> Any:
    old, new = decode(table, np.array(kinds, np.int8), pa.array(rows, pa.large_binary()))
    return decoded_images(old), decoded_images(new)


def shown(array: pa.Array) -> str:
    return repr(raw(pa.record_batch([array], names=["v"])))  # NaN equals itself


def same(found: NativeImages, wanted: Images) -> None:
    assert list(found) == list(wanted)
    for name in found:
        assert found[name].type == wanted[name].type
        # text needn't be utf-8
        found[name].validate(full=not str(found[name].type).endswith("string"))
        assert shown(found[name]) == shown(wanted[name])


def loaded(table: Table, images: Images, count: int) -> list[tuple[Any, bytes, int, int]]:
    return [
        (c.layout, bytes(c.payload), c.rows, c.warnings) for c in format_load(table, images, count)
    ]


def cut(lines: LoadLines) -> list[tuple[Any, bytes, int, int]]:
    return [(c.layout, bytes(c.payload), c.rows, c.warnings) for c in lines.chunks()]


KINDS = st.lists(st.sampled_from([INSERT, UPDATE, DELETE]), min_size=1, max_size=20)


@settings(calm, max_examples=examples(60))
@given(batches(), KINDS, st.data())
def test_what_is_found_is_what_is_decoded(
    batch: tuple[Table, Rows], kinds: list[int], data: st.DataObject
) -> None:
    table, rows = batch
    rows = [rows[at % len(rows)] for at in range(len(kinds))]
    bytes_sent = encoded(table, rows, kinds)
    found = find(table, kinds, bytes_sent)
    assert found is not None, "as TiDB writes them"
    for images, wanted in zip(
        found, decode(table, np.array(kinds), pa.array(bytes_sent, pa.large_binary())), strict=True
    ):
        assert images.count == len(next(iter(wanted.values())))
        same(images, wanted)
        some = np.array(
            data.draw(
                st.lists(st.integers(0, images.count - 1), max_size=9)
                if images.count
                else st.just([])
            ),
            int,
        )
        fresh = find(table, kinds, bytes_sent)
        assert fresh is not None
        asked = data.draw(st.sampled_from([*images]))
        assert shown(fresh[images is found[1]].some(asked, some)) == shown(
            wanted[asked].take(pa.array(some))
        )
        numbers = images.numbers(asked)
        assert numbers is None or numbers.tolist() == [
            v - 2**64 if v >= 2**63 else v for v in wanted[asked].to_pylist()
        ]


@settings(calm, max_examples=examples(60))
@given(batches(), KINDS)
def test_images_that_are_said_to_be_alike_or_not_are(
    batch: tuple[Table, Rows], kinds: list[int]
) -> None:
    table, rows = batch
    found = find(
        table, kinds, encoded(table, [rows[at % len(rows)] for at in range(len(kinds))], kinds)
    )
    assert found is not None
    old, new = found
    pairs = np.array(
        [(i, j) for i in range(old.count) for j in range(new.count)], np.int64
    ).reshape(-1, 2)
    # a row's hidden id isn't a value of it
    names = tuple(column.name for column in table.stored_columns)
    for asked in (None, names[:1]):
        answers = old.alike(new, pairs[:, 0], pairs[:, 1], asked)
        for (i, j), answer in zip(pairs.tolist(), answers.tolist(), strict=True):
            equal = all(
                shown(old[n][i : i + 1]) == shown(new[n][j : j + 1]) for n in asked or names
            )
            assert answer != SAME or equal
            assert answer != DIFFERENT or not equal


@settings(calm, max_examples=examples(100))
@given(batches(), KINDS, st.data())
def test_lines_are_those_that_arrow_writes(
    batch: tuple[Table, Rows], kinds: list[int], data: st.DataObject
) -> None:
    table, rows = batch
    rows = [rows[at % len(rows)] for at in range(len(kinds))]
    bytes_sent = encoded(table, rows, kinds)
    found = find(table, kinds, bytes_sent)
    assert found is not None
    new = found[1]
    if not new.count:
        return
    places = np.array(
        data.draw(st.lists(st.integers(0, new.count - 1), min_size=1, max_size=9)), np.int64
    )
    wanted = {name: new[name].take(pa.array(places)) for name in new}
    lines = format_load_native(table, new, places)
    text = [wanted[c.name] for c in table.stored_columns if c.kind == "text"]
    if lines is None:
        empty = any(
            "" in wanted[c.name].to_pylist() for c in table.stored_columns if c.kind == "enum"
        )
        missing = any(c.not_null or c.origin_default is not None for c in table.stored_columns)
        assert empty or missing or any(invalid_utf8_mask(array) is not None for array in text)
        return
    assert cut(lines) == loaded(table, wanted, len(places))
    some = np.array(
        sorted(data.draw(st.sets(st.integers(0, len(places) - 1), max_size=5))), np.int64
    )
    assert b"".join(payload for _, payload, _, _ in cut(lines.take(some))) == b"".join(
        bytes(lines.text)[lines.offsets[at] : lines.offsets[at + 1]] for at in some
    )


def damaged(rows: list[bytes], data: st.DataObject) -> list[bytes]:
    """One of them is cut off, goes on, is changed or made up."""
    victim = data.draw(st.integers(0, len(rows) - 1))
    row = bytearray(rows[victim])
    match data.draw(st.integers(0, 3)):
        case 0:
            del row[data.draw(st.integers(0, len(row))) :]
        case 1:
            row += data.draw(st.binary(min_size=1, max_size=12))
        case 2 if row:
            row[data.draw(st.integers(0, len(row) - 1))] ^= data.draw(st.integers(1, 255))
        case _:
            row = bytearray(data.draw(st.binary(max_size=40)))
    return [*rows[:victim], bytes(row), *rows[victim + 1 :]]


@settings(calm, max_examples=examples(300))
@given(batches(), KINDS, st.data())
def test_damaged_rows_are_refused_as_they_are_by_decoding_or_read_alike(
    batch: tuple[Table, Rows], kinds: list[int], data: st.DataObject
) -> None:
    table, rows = batch
    rows = [rows[at % len(rows)] for at in range(len(kinds))]
    bytes_sent = damaged(encoded(table, rows, kinds), data)
    inserted = [row for kind, row in zip(kinds, bytes_sent, strict=True) if kind == INSERT]
    layout = RowLayout.for_table(table)
    if layout is not None and layout.shows_collations and inserted:
        try:
            check_collations(table, inserted[0])
        except RowDecodeError:
            return  # said before anything is looked for
    found = find(table, kinds, bytes_sent)
    if found is None:
        return  # then decoding has it
    try:
        wanted = decode(table, np.array(kinds), pa.array(bytes_sent, pa.large_binary()))
    except RowDecodeError as error:
        with pytest.raises(RowDecodeError) as raised:
            for images in found:
                for name in images:
                    images[name]
        assert str(raised.value) == str(error)
        wanted = None
    else:
        for images, want in zip(found, wanted, strict=True):
            same(images, want)
    old, new = found
    both = (
        np.zeros(0, np.int64)
        if not (old.count and new.count)
        else np.arange(min(old.count, new.count))
    )
    old.alike(new, both, both)
    if not new.count:
        return
    try:
        lines = format_load_native(table, new, np.arange(new.count))
    except (RowDecodeError, UnsupportedColumnError):
        return
    if lines is not None:
        # every value can be decoded
        images = {name: new[name] for name in (c.name for c in table.stored_columns)}
        assert cut(lines) == loaded(table, images, new.count)


def test_rows_that_lack_columns_have_their_defaults_where_these_are_plain() -> None:
    table = make_table("int", [0, 9, 18, 13])
    full = {"id": 1, "tiny": 2, "vc": "a\tb\\c\n\0é", "e": "bé", "dt": "2017-01-00 23:59:59.000001"}
    rows = [
        encode_insert(table, full),
        encode_insert(table, {"id": 2, "tiny": None, "vc": None, "e": None, "dt": None}),
    ]
    found = find(table, [INSERT, INSERT], rows)
    assert found is not None
    lines = format_load_native(table, found[1], np.array([1, 0]))
    assert lines is not None
    assert cut(lines)[0][1] == (
        b"2\t\\N\t\\N\t\\N\t\\N\n"
        + "1\t2\ta\\tb\\\\c\\n\\0é\tbé\t2017-01-00 23:59:59.000001\n".encode()
    )


def test_rows_in_another_order_or_of_nothing_are_left_to_decoding() -> None:
    table = make_table("int", [0, 1])
    row = encode_insert(table, {"id": 1, "tiny": 2, "big": 3})
    swapped = row[:2] + row[2 + (len(row) - 2) // 2 :] + row[2 : 2 + (len(row) - 2) // 2]
    assert find(table, [INSERT], [row]) is not None
    assert find(table, [INSERT], [swapped]) is None
    assert find(table, [INSERT], [b""]) is None
    assert find(table, [UPDATE], [row[2:]]) is None, "one half of it"


def test_without_the_kernel_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table("heap", [0])
    row = encode_insert(table, {"tiny": 2, ROWID_NAME: 1})
    monkeypatch.setattr(sluice.tidb.kernel, "walk", plain.walk)
    assert find(table, [INSERT], [row]) is None
    assert codec.decode_insert(table, row) == [2, 1]


def test_cells_of_other_data_are_refused() -> None:
    table = make_table("int", [0, 9])
    found = find(table, [INSERT], [encode_insert(table, {"id": 1, "tiny": 2, "vc": "abcdef"})])
    assert found is not None
    cells, escapes = found[1].cells, bytes(256)
    ways = found_lines._column_writers(table)
    assert ways is not None
    at = np.zeros(1, np.int64)
    for short in (b"", b"abc"):
        with pytest.raises(ValueError, match="cells of other data"):
            sluice.tidb.kernel.gather(short, cells, 3, 2, at, 64)
        with pytest.raises(ValueError, match="cells of other data"):
            sluice.tidb.kernel.alike(short, cells, cells, bytes([1, 1, 3]), at, at)
        with pytest.raises(ValueError, match="cells of other data"):
            lines_kernel.lines(short, cells, 3, ways.specs, at, escapes)
    with pytest.raises(ValueError, match="cells of other data"):
        lines_kernel.lines(found[1].data, cells, 3, ways.specs, at + 1, escapes)


def pair(column_id: int, datum: bytes) -> bytes:
    return bytes((8,)) + codec.encode_varint(column_id) + datum


def one_column(kind: int, *datums: bytes) -> tuple[Table, list[bytes]]:
    """A table of a key and that column, and a row for each datum."""
    table = make_table("int", [kind])
    column = table.columns[1].id
    return table, [bytes((8, 2 * n + 2)) + pair(column, datum) for n, datum in enumerate(datums)]


def test_zero_has_no_sign_and_both_zeros_are_one_value() -> None:
    zero = b"\x06\x04\x02\x80\x00"
    table, rows = one_column(6, zero, b"\x06\x04\x02\x7f\xff", b"\x06\x04\x02\x81\x00")
    found = find(table, [INSERT] * 3, rows[:3])
    assert found is not None
    lines = format_load_native(table, found[1], np.arange(3))
    assert lines is not None
    assert bytes(lines.text) == b"1\t0.00\n2\t0.00\n3\t1.00\n"
    name = table.columns[1].name
    answers = found[1].alike(found[1], np.array([0, 0, 0]), np.array([0, 1, 2]), (name,))
    assert answers[0] == SAME
    assert answers[1] != DIFFERENT
    assert answers[2] == DIFFERENT


def test_equal_documents_in_different_bytes_arent_called_different() -> None:
    table, rows = one_column(
        20, b"\x0a\x09" + (1).to_bytes(8, "little"), b"\x0a\x0a" + (1).to_bytes(8, "little")
    )
    found = find(table, [INSERT] * 2, rows)
    assert found is not None
    assert found[1]["js"].to_pylist() == ["1", "1"]
    assert found[1].alike(found[1], np.array([0]), np.array([1]), ("js",)).tolist() == [UNSURE]


@pytest.mark.parametrize("tail", [b"", b"12345678"])
def test_text_is_written_if_it_is_utf8_and_only_then(tail: bytes) -> None:
    firsts = [*range(0x7F, 0x100)]
    texts = [
        bytes((a,)) + rest
        for a in firsts
        for rest in (b"", b"\x80", b"\xbf\xbf", b"\x80\x80", b"\xa0\x80\x80")
    ]
    texts += [
        bytes((a, b, 0x80, 0x80)) for a in (0xE0, 0xED, 0xEF, 0xF0, 0xF4) for b in range(0x7F, 0xC1)
    ]
    texts += [bytes((a, b, 0x80)) for a in (0xE0, 0xED, 0xEF, 0xF0) for b in range(0x7F, 0xC1)]
    for text in texts:
        text += tail
        table, rows = one_column(9, b"\x02" + codec.encode_varint(len(text)) + text)
        found = find(table, [INSERT], rows)
        assert found is not None
        lines = format_load_native(table, found[1], np.arange(1))
        try:
            text.decode()
        except UnicodeDecodeError:
            assert lines is None, text
        else:
            assert lines is not None, text
            assert bytes(lines.text) == b"1\t" + text + b"\n"


@pytest.mark.parametrize(
    "datum",
    [
        b"\x08" + b"\xff" * 9 + b"\x02",
        b"\x08" + b"\xff" * 10,
        b"\x09" + b"\xff" * 9 + b"\x7f",
        b"\x0a\x01" + bytes(7),
        b"\x0a\x0d\x0f",
        b"\x06\x00\x00",
        b"\x06\x02\x03\x80",
        b"\x02\x01",
        b"\x02\x7f",
        b"\x05" + bytes(7),
        b"\x04" + bytes(8),
        b"",
    ],
)
def test_datums_that_are_none_are_left_to_decoding(datum: bytes) -> None:
    for kind in (0, 6, 9, 20, 5):
        table, rows = one_column(kind, datum)
        assert find(table, [INSERT], rows) is None


def test_an_update_that_lacks_a_column_in_one_half_is_left_to_decoding() -> None:
    table = make_table("int", [0, 1])
    whole = encode_delete(table, {"id": 1, "tiny": 2, "big": 3})
    short = whole[: 2 * len(whole) // 3]
    assert find(table, [UPDATE], [whole + whole]) is not None
    assert find(table, [UPDATE], [whole + short]) is None
    assert find(table, [UPDATE], [short + whole]) is None


@pytest.mark.parametrize(
    "packed", [10000 * 13 << 46, (2000 * 13 << 46) + (24 << 36), (60 << 30), (60 << 24), 1_000_000]
)
def test_moments_that_are_none_are_not_written(packed: int) -> None:
    for kind in (13, 14):
        table, rows = one_column(kind, b"\x09" + encode_uvarint(packed))
        found = find(table, [INSERT], rows)
        assert found is not None
        assert format_load_native(table, found[1], np.arange(1)) is None
        with pytest.raises(RowDecodeError):
            found[1][table.columns[1].name]
