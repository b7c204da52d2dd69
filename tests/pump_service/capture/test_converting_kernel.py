"""Compiled code converts and encodes rows as Python does, and leaves to it what is unusual."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.pump_service.capture import kernel
from sluice.pump_service.capture.kernel import plain
from sluice.pump_service.capture.transactions import KeyChange
from sluice.pump_service.store.binlog_head import stored_head
from sluice.tidb.codec import CodecError
from sluice.tidb.codec.memcomparable import encode_int
from sluice.tidb.codec.row import encode_insert
from sluice.tidb.record_keys import handle_of_insert, record_key
from sluice.tidb.schema import Column, Table
from sluice.tidb.stored_rows import StoredRowConverter
from tests.tidb.test_rows import batches
from tests.tidb.test_stored_rows import pairs_of, prefix_of, version_1, version_2

pytestmark = pytest.mark.skipif(not kernel.IS_COMPILED, reason="there was no compiler")
TABLE = 7


def run(
    converter: StoredRowConverter, *changes: KeyChange
) -> tuple[tuple[int, int, int], list[list[bytes]]]:
    lists: list[list[bytes]] = [[], [], []]
    return kernel.convert([*changes], 0, {TABLE: (*converter.shape, *lists)}, 1 << 40), lists  # type: ignore[arg-type]


def expected(converter: StoredRowConverter, change: KeyChange) -> list[list[bytes]]:
    """The row as Python converts it, in the list of its kind."""
    handle = change.key[11:]
    if not change.value:
        return [[converter.delete(handle, change.old_value)], [], []]
    if not change.old_value:
        return [[], [], [converter.insert(handle, change.value)]]
    return [[], [converter.update(handle, change.old_value, change.value)], []]


@st.composite
def changes(draw: st.DrawFn) -> tuple[StoredRowConverter, KeyChange]:
    table, rows = draw(batches())
    states = {
        c.id: draw(st.sampled_from([5, 5, 5, 1, 2, 3])) for c in table.columns if not c.flag & 2
    }
    defaults = {
        c.id: draw(st.sampled_from([None, None, "1"]))
        for c in table.columns
        if c.kind in ("int", "text")
    }
    columns = tuple(
        Column(**{name: getattr(c, name) for name in Column.__slots__}
               | {"state": states.get(c.id, 5), "origin_default": defaults.get(c.id)})
        for c in table.columns
    )  # fmt: skip
    changed = Table(
        TABLE,
        2,
        "shop",
        "t",
        columns,
        table.indexes,
        "",
        "",
        table.pk_is_handle,
        table.is_common_handle,
    )
    images = [b"", b""]
    for n, row in enumerate(rows[:2]):
        inserted = encode_insert(table, row)
        pairs = dict(pairs_of(inserted[prefix_of(table, inserted) :]))
        kept = {i: datum for i, datum in pairs.items() if draw(st.integers(0, 5))}
        images[n] = version_2(
            kept, large=draw(st.booleans()), checksum=draw(st.sampled_from([b"", b"\0abcd"]))
        )
    if draw(st.booleans()):
        images.reverse()
    handle = handle_of_insert(table, encode_insert(table, rows[0]))
    return StoredRowConverter(changed), KeyChange(
        record_key(TABLE, handle), images[0], images[1], not images[0]
    )


@given(changes())
def test_a_row_of_any_table_is_converted_as_in_python(
    drawn: tuple[StoredRowConverter, KeyChange],
) -> None:
    converter, change = drawn
    if change.value == change.old_value:
        assert run(converter, change) == ((1, 0, 0), [[], [], []])
        return
    found = expected(converter, change)
    size = sum(len(row) for rows in found for row in rows)
    assert run(converter, change) == ((1, 1, size), found)


@given(changes(), st.data())
def test_damaged_rows_and_keys_are_never_converted_otherwise_than_in_python(
    drawn: tuple[StoredRowConverter, KeyChange], data: st.DataObject
) -> None:
    converter, change = drawn
    parts = [bytearray(change.key[11:]), bytearray(change.value), bytearray(change.old_value)]
    for _ in range(data.draw(st.integers(1, 3))):
        part = parts[data.draw(st.sampled_from([n for n, each in enumerate(parts) if each] or [0]))]
        if not part:
            continue
        at = data.draw(st.integers(0, len(part) - 1))
        if data.draw(st.booleans()):
            part[at] = data.draw(st.integers(0, 255))
        else:
            del part[at:]
    damaged = KeyChange(
        record_key(TABLE, bytes(parts[0])), bytes(parts[1]), bytes(parts[2]), not parts[1]
    )
    (place, count, _), lists = run(converter, damaged)
    if not count:
        return
    assert place == 1
    try:
        found = expected(converter, damaged)
    except CodecError:
        # Python looks into values that it hands on as they are, compiled code into fewer of them.
        return
    assert lists == found


INT = StoredRowConverter(
    Table(
        TABLE,
        2,
        "shop",
        "t",
        (Column(1, "id", 0, 8, flag=3), Column(2, "v", 1, 3)),
        pk_is_handle=True,
    )
)


def change_of(handle: int, value: bytes, old: bytes = b"", table: int = TABLE) -> KeyChange:
    return KeyChange(record_key(table, encode_int(handle)), value, old, not value)


def test_it_stops_in_front_of_what_it_does_not_know_and_goes_on_behind_it() -> None:
    row = version_2({2: b"\x08\x02"})
    known, older = change_of(1, row), change_of(2, version_1({2: b"\x08\x02"}))
    index = KeyChange(b"t" + encode_int(TABLE) + b"_i" + bytes(16), b"0", b"", False)
    schema = KeyChange(b"mDB", b"{}", b"", False)
    for other in (older, index, schema, change_of(1, row)._replace(key=b"t")):
        (place, count, _), lists = run(INT, known, other, known)
        assert (place, count, lists[2]) == (1, 1, [INT.insert(encode_int(1), row)])
    lists: Any = ([], [], [])
    assert kernel.convert([older, known], 1, {TABLE: (*INT.shape, *lists)}, 100)[:2] == (2, 1)


def test_a_row_whose_ids_do_not_ascend_is_left_to_python() -> None:
    rows = [b"\x80\0\0\0\x02\0\x09\x02", b"\x80\0\x02\0\0\0\x09\x02\x01\0\x02\0\x05\x06"]
    for row in rows:
        (place, count, _), _ = run(INT, change_of(1, row))
        assert (place, count) == (0, 0)
        assert pairs_of(INT.insert(encode_int(1), row)[2:])[0][0] == 2


def test_changes_of_tables_that_are_not_replicated_are_left_out() -> None:
    row = version_2({2: b"\x08\x02"})
    assert kernel.convert([change_of(1, row, table=9)], 0, {9: None}, 100) == (1, 0, 0)


def test_it_stops_behind_the_room_that_it_has() -> None:
    row = version_2({2: b"\x08\x02"})
    lists: Any = ([], [], [])
    targets = {TABLE: (*INT.shape, *lists)}
    assert kernel.convert([change_of(n, row) for n in range(9)], 0, targets, 10) == (2, 2, 12)  # type: ignore[arg-type]


def test_what_makes_a_target_may_fail() -> None:
    class Unknown(dict[int, Any]):
        def __missing__(self, physical_id: int) -> Any:
            raise LookupError(str(physical_id))

    with pytest.raises(LookupError, match="9"):
        kernel.convert([change_of(1, version_2({}), table=9)], 0, Unknown(), 100)


LISTS = st.lists(st.binary(max_size=200), max_size=4)


@given(
    st.dictionaries(st.integers(1, 1 << 48), st.tuples(LISTS, LISTS, LISTS), max_size=4),
    st.integers(1, (1 << 63) - 1),
    st.integers(1, (1 << 63) - 1),
    st.integers(0, 1 << 40),
    st.binary(max_size=200),
)
def test_a_prewrite_is_encoded_as_protobuf_does(
    tables: dict[int, Any], start_ts: int, commit_ts: int, version: int, key: bytes
) -> None:
    found = kernel.encode(start_ts, commit_ts, key, version, tables)
    assert found == plain.encode(start_ts, commit_ts, key, version, tables)
    assert stored_head(found) == (0, start_ts, commit_ts)


def test_what_is_no_row_is_an_error_and_not_encoded() -> None:
    for tables in ({1: ([b""], [], [None])}, {1: ([],)}, {"x": ([b""], [], [])}):
        with pytest.raises((TypeError, IndexError)):
            kernel.encode(1, 2, b"", 3, tables)  # type: ignore[arg-type]
