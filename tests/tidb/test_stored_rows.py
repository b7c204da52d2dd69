"""Rows as TiKV stores them become the bytes that TiDB has in a binlog for the same change."""

from __future__ import annotations

import collections
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.tidb.codec import CodecError
from sluice.tidb.codec.datum import decode_datum, skip_datum
from sluice.tidb.codec.memcomparable import encode_int
from sluice.tidb.codec.row import HANDLE_ID, ROWID_NAME, encode_delete, encode_insert, encode_update
from sluice.tidb.old_collations import binary_table
from sluice.tidb.record_keys import (
    handle_of_insert,
    handles_of_images,
    record_key,
    split_record_key,
)
from sluice.tidb.schema import Column, Table
from sluice.tidb.stored_rows import StoredRowConverter
from tests.tidb.test_rows import batches
from tests.tidb.test_rows_recorded import walk

Pairs = dict[int, bytes]


def pairs_of(row: bytes) -> list[tuple[int, bytes]]:
    """Column ids and datums, in order."""
    found, pos = [], len(row) if row == b"\0" else 0
    while pos < len(row):
        key, begin = decode_datum(row, pos)
        pos = skip_datum(row, begin)
        assert isinstance(key.value, int)
        found.append((key.value, row[begin:pos]))
    return found


def version_1(pairs: Pairs) -> bytes:
    ids = {i: b"\x08" + zigzag(i) for i in pairs}
    return b"".join(ids[i] + datum for i, datum in pairs.items()) or b"\0"


def zigzag(value: int) -> bytes:
    rest, out = value << 1 ^ value >> 63, b""
    while rest > 0x7F:
        out, rest = out + bytes((rest & 0x7F | 0x80,)), rest >> 7
    return out + bytes((rest,))


def version_2(pairs: Pairs, *, large: bool = False, checksum: bytes = b"") -> bytes:
    """The newer format, from datums of the older one."""
    values = {i: body(datum) for i, datum in sorted(pairs.items()) if datum != b"\0"}
    nulls = sorted(i for i, datum in pairs.items() if datum == b"\0")
    data = b"".join(values.values())
    large = large or len(data) > 0xFFFF or any(i > 0xFF for i in pairs)
    ends, at = [], 0
    for value in values.values():
        at += len(value)
        ends.append(at)
    head = struct.pack("<BBHH", 0x80, large | (2 if checksum else 0), len(values), len(nulls))
    ids = struct.pack(f"<{len(pairs)}{'I' if large else 'B'}", *values, *nulls)
    return head + ids + struct.pack(f"<{len(ends)}{'I' if large else 'H'}", *ends) + data + checksum


def body(datum: bytes) -> bytes:
    flag = datum[0]
    if flag in (0x08, 0x09):
        value = decode_datum(datum)[0].value
        assert isinstance(value, int)
        for code in "bhiq" if flag == 0x08 else "BHIQ":
            try:
                return struct.pack(f"<{code}", value)
            except struct.error:
                continue
    if flag == 0x02:
        text = decode_datum(datum)[0].value
        assert isinstance(text, bytes)
        return text
    return datum[1:]


FORMATS = {"version 1": version_1, "version 2": version_2}


@pytest.mark.parametrize("form", FORMATS)
@given(batch=batches())
def test_a_stored_row_of_any_type_gives_the_bytes_of_the_binlog(
    form: str, batch: tuple[Table, list[dict[str, Any]]]
) -> None:
    table, rows = batch
    converter, stored = StoredRowConverter(table), FORMATS[form]
    last: tuple[dict[str, Any], bytes] | None = None
    for row in rows:
        inserted = encode_insert(table, row)
        handle = handle_of_insert(table, inserted)
        value = stored(dict(pairs_of(inserted[prefix_of(table, inserted) :])))
        assert converter.insert(handle, value) == inserted
        if table.handle_kind != "common":  # the codec's inserts have no sort keys, and so no handle
            assert converter.delete(handle, value) == encode_delete(table, row)
        if last is not None and table.handle_kind == "heap":
            old = last[0] | {ROWID_NAME: row[ROWID_NAME]}
            assert converter.update(handle, last[1], value) == encode_update(table, old, row)
        last = row, value


def prefix_of(table: Table, inserted: bytes) -> int:
    pos = 0
    for _ in (
        table.primary_index.columns
        if table.handle_kind == "common" and table.primary_index
        else (0,)
    ):
        pos = skip_datum(inserted, pos)
    return pos


@pytest.mark.ci_cases("types", "ddl", "edges", "oldcoll")
@pytest.mark.quick_cases(every=3)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "name", ["types", "ddl", pytest.param("shop", marks=pytest.mark.slow), "edges", "oldcoll"]
)
def test_changes_of_a_recorded_tidb_come_out_of_its_rows_byte_for_byte(
    name: str, form: str
) -> None:
    """The state of TiKV is kept as the recorded changes make it.

    A row that one transaction changes twice has no counterpart, since TiKV knows the net effect
    only.
    """
    stored = FORMATS[form]
    state: dict[tuple[int, bytes], bytes] = {}
    compared: collections.Counter[str] = collections.Counter()
    converters: dict[int, StoredRowConverter] = {}
    known: dict[Table, Table] = {}
    for _, mutation, found_table in walk(name):
        table = found_table
        if name == "oldcoll":
            table = known.setdefault(found_table, binary_table(found_table))
        converter = converters.get(table.id)
        if converter is None or converter.table is not table:
            if converter is not None and replaces_a_column(converter.table, table):
                state = {place: value for place, value in state.items() if place[0] != table.id}
            converter = converters[table.id] = StoredRowConverter(table)
        lists = [
            iter(mutation.inserted_rows),
            iter(mutation.updated_rows),
            None,
            None,
            iter(mutation.deleted_rows),
        ]
        for kind in mutation.sequence:
            rows = lists[kind]
            assert rows is not None
            row = next(rows)
            if kind == 0:
                handle = handle_of_insert(table, row)
                inserted = dict(pairs_of(row[prefix_of(table, row) :]))
                value = stored(inserted)
                if inserted.keys() <= {c.id for c in table.columns}:
                    assert converter.insert(handle, value) == row, (table.full_name, handle.hex())
                state[table.id, handle] = value
                compared["insert"] += 1
                continue
            images, pairs = (2 if kind == 1 else 1), pairs_of(row)
            handles = handles_of_images(table, row, images)
            if None in handles or (table.is_partitioned and table.handle_kind == "heap"):
                # only TiDB knows the key, or partitions count their row ids for themselves
                continue
            place = table.id, handles[0] or b""
            old = state.pop(place, None)
            new = stored({i: d for i, d in pairs[len(pairs) // 2 :] if i != HANDLE_ID})
            if kind == 1:
                state[place] = new
            ids = [i for i, _ in pairs[: len(pairs) // images]]
            defined = [c.id for c in table.columns if c.public and not c.virtual]
            if table.handle_kind == "heap":
                defined.append(HANDLE_ID)
            if old is None or set(ids) - virtual_of(table) != set(defined):
                continue  # the row is ahead of the DDL that the test knows, or behind it
            found = (
                converter.update(place[1], old, new)
                if kind == 1
                else converter.delete(place[1], old)
            )
            if ids == defined:
                assert found == row, (table.full_name, row.hex())
                compared["update" if kind == 1 else "delete"] += 1
            else:  # virtual columns, or ALTER TABLE has moved a column
                same = sorted(pair for pair in pairs if pair[0] not in virtual_of(table))
                assert sorted(pairs_of(found)) == same, (table.full_name, row.hex())
                compared["other order"] += 1
    assert compared["insert"] > 100 and compared["update"] >= 40, compared
    assert compared["delete"] >= 18 or name == "ddl", compared


def virtual_of(table: Table) -> set[int]:
    return {c.id for c in table.columns if c.virtual}


def replaces_a_column(before: Table, after: Table) -> bool:
    """Whether TiDB has filled a new column from an old one, which no binlog shows."""
    old, new = ({c.id for c in table.columns if c.public} for table in (before, after))
    return bool(old - new) and bool(new - old)


def test_a_column_that_the_row_is_older_than_has_its_first_default_in_updates_and_deletes() -> None:
    columns = (
        Column(1, "id", 0, 8, flag=3),
        Column(2, "added", 1, 3, origin_default="7"),
        Column(3, "nullable", 2, 3),
        Column(4, "needed", 3, 15, flag=1, charset="utf8mb4", collate="utf8mb4_bin"),
    )
    table = Table(7, 2, "shop", "t", columns, pk_is_handle=True)
    converter, handle = StoredRowConverter(table), encode_int(5)
    full = {"id": 5, "added": 7, "nullable": None, "needed": ""}
    assert converter.delete(handle, version_2({})) == encode_delete(table, full)
    changed = version_2({2: b"\x08\x10", 4: b"\x02\x02x"})
    assert converter.update(handle, version_1({}), changed) == encode_update(
        table, full, full | {"added": 8, "needed": "x"}
    )


def test_columns_that_come_or_go_are_in_both_images_of_an_update_and_a_deleted_one_in_none() -> (
    None
):
    columns = (
        Column(1, "id", 0, 8, flag=3),
        Column(2, "coming", 1, 3, state=2, origin_default="9"),
        Column(3, "going", 2, 3, state=1),
        Column(4, "virtual", 3, 3, generated="id+1"),
    )
    converter = StoredRowConverter(Table(7, 2, "shop", "t", columns, pk_is_handle=True))
    found = pairs_of(
        converter.update(encode_int(5), version_2({3: b"\x08\x02"}), version_2({2: b"\x08\x04"}))
    )
    assert found == [(1, b"\x08\x0a"), (2, b"\x08\x12"), (1, b"\x08\x0a"), (2, b"\x08\x04")]


def test_ids_above_255_large_values_and_checksums_are_read() -> None:
    columns = (
        Column(1, "id", 0, 8, flag=3),
        Column(300, "v", 1, 15, charset="utf8mb4", collate="utf8mb4_bin"),
    )
    converter = StoredRowConverter(Table(7, 2, "shop", "t", columns, pk_is_handle=True))
    text = b"x" * 70_000
    row = converter.insert(
        encode_int(-3), version_2({300: b"\x02" + zigzag(len(text)) + text}, checksum=b"\x01abcd")
    )
    assert (
        pairs_of(row[2:]) == [(300, b"\x02" + zigzag(len(text)) + text)] and row[:2] == b"\x08\x05"
    )


@given(
    pairs=st.dictionaries(st.integers(1, 300), st.just(b"\x08\x02"), min_size=1, max_size=5),
    data=st.data(),
)
def test_a_row_that_is_cut_off_is_an_error(pairs: Pairs, data: st.DataObject) -> None:
    table = Table(7, 2, "shop", "t", tuple(Column(i, f"c{i}", n, 3) for n, i in enumerate(pairs)))
    whole = version_2(pairs)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(CodecError):
        StoredRowConverter(table).insert(encode_int(1), cut)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.binary(min_size=1, max_size=12))
def test_a_rows_key_gives_back_table_and_handle_and_other_keys_nothing(
    table_id: int, handle: bytes
) -> None:
    key = record_key(table_id, handle)
    assert split_record_key(key) == (table_id, handle)
    assert split_record_key(key.replace(b"_r", b"_i", 1)) is None or b"_r" in key[:9]
    assert split_record_key(b"m" + key[1:]) is None
