"""Encoded rows, masked in place, decode to masked values, whatever form they have."""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sluice.etl.changes.masks import Mask, masked_changes, masked_columns
from sluice.etl.changes.rules import Filter
from sluice.etl.settings.rules import parse_filter
from sluice.etl.verify.masked_rows import masked_rows, permuted_digits, permuted_number
from sluice.relay import DELETE, INSERT, PART_SCHEMA, UPDATE
from sluice.tidb.codec.datum import skip_datum
from sluice.tidb.codec.decimal import encode_decimal
from sluice.tidb.rows import (
    RowDecodeError,
    decode_deletes,
    decode_inserts,
    decode_updates,
    encode_delete,
    encode_insert,
    encode_update,
)
from sluice.tidb.schema import Table
from tests.etl.masking import KEY, SECTION, VARIABLE
from tests.etl.story import table
from tests.examples import examples

MASKS = {
    "name": "hash",
    "mail": "email",
    "phone": "digits",
    "card": {"partial": 4},
    "n": {"constant": 7},
    "doc": "null",
    "born": {"constant": "1970-01-01"},
    "kind": {"constant": "y"},
    "tiny": "digits",
    "count": "digits",
    "big": "digits",
}
COLUMNS = (
    "name varchar(40)",
    "n int",
    "mail varchar(40)",
    "plain varchar(9)",
    "phone varchar(99)",
    "card text",
    "doc json",
    "born date",
    "kind enum('x','y')",
    "d decimal(10,2)",
    "tiny tinyint",
    "count int",
    "big bigint unsigned",
)
TABLES = {
    "clustered": table(11, "t", "id int", *COLUMNS, primary="id"),
    "common": table(11, "t", "id varchar(9)", *COLUMNS, primary="id"),
    "heap": table(11, "t", "id int", *COLUMNS),
}
TEXT = st.one_of(
    st.none(),
    st.text(st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs"]), max_size=12),
    st.text("0123456789-+ ", max_size=90),
    st.sampled_from(["", "a@b", "someone@example.org", "x@a.very.long.domain.example.org", "@"]),
)
ROWS = st.fixed_dictionaries(
    {
        **dict.fromkeys(("name", "mail", "phone", "card"), TEXT),
        "plain": st.sampled_from([None, "", "p"]),
        "n": st.sampled_from([None, 0, -1, 2**31 - 1]),
        "doc": st.sampled_from([None, '{"a": 1}', "[1, 2]"]),
        "born": st.sampled_from([None, "2000-02-29"]),
        "kind": st.sampled_from([None, "x", "y"]),
        "d": st.sampled_from([None, "1.50", "-3.00"]),
        "tiny": st.none() | st.integers(-(2**7), 2**7 - 1),
        "count": st.none() | st.sampled_from([0, 2**31 - 1, -(2**31)]) | st.integers(-999, 999),
        "big": st.none() | st.sampled_from([0, 2**63, 2**64 - 1]) | st.integers(0, 99_999),
    }
)


@pytest.fixture(scope="module", autouse=True)
def key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, KEY)
        yield


def filters(masks: dict[str, Any] | None = None) -> Filter:
    rule = {"tables": ["d.t"], "mask": masks or MASKS}
    return parse_filter({"columns": [rule], "mask": SECTION})[0]


def changes(kinds: list[int], rows: list[bytes]) -> pa.Table:
    zeros = [0] * len(rows)
    columns = dict.fromkeys(PART_SCHEMA.names, zeros) | {"kind": kinds, "row": rows}
    return pa.table(columns, PART_SCHEMA)


def decoded(of: Table, kind: int, rows: pa.Array) -> list[pa.RecordBatch]:
    if kind == UPDATE:
        return list(decode_updates(of, rows))
    return [(decode_inserts if kind == INSERT else decode_deletes)(of, rows)]


def check(of: Table, rows: list[tuple[int, bytes]]) -> None:
    shaped = filters().narrowed(of)
    before = changes([kind for kind, _ in rows], [row for _, row in rows])
    after = masked_changes(shaped, before)
    assert after.drop_columns("row").equals(before.drop_columns("row"))
    for kind in (INSERT, UPDATE, DELETE):
        own = pa.array([each == kind for each, _ in rows])
        clear, found = (each.filter(own)["row"].combine_chunks() for each in (before, after))
        for was, is_now in zip(
            decoded(shaped, kind, clear), decoded(shaped, kind, found), strict=True
        ):
            (wanted,) = masked_rows([was], shaped.columns)
            assert is_now.to_pylist() == wanted.to_pylist()


@pytest.mark.parametrize("form", TABLES)
@tried(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_rows_of_any_form_decode_to_masked_values(form: str, data: st.DataObject) -> None:
    of, rows = TABLES[form], []
    for number in range(data.draw(st.integers(1, 40))):
        ids = {"id": f"k{number}" if form == "common" else number, "_tidb_rowid": number}
        old, new = (data.draw(ROWS) | ids for _ in range(2))
        kind = data.draw(st.sampled_from([INSERT, UPDATE, DELETE]))
        if kind == INSERT:
            row = encode_insert(of, new)
        elif kind == UPDATE:
            row = encode_update(of, old, new)
        else:
            row = encode_delete(of, old)
        if kind == DELETE and data.draw(st.integers(0, 5)) == 0:
            row = shuffled(row, data.draw(st.integers()))
        rows.append((kind, row))
    check(of, rows)


def shuffled(row: bytes, seed: int) -> bytes:
    pairs, at = [], 0
    while at < len(row):
        end = skip_datum(row, skip_datum(row, at))
        pairs.append(row[at:end])
        at = end
    random.Random(seed).shuffle(pairs)
    return b"".join(pairs)


def test_what_isnt_masked_stays_byte_for_byte() -> None:
    of = TABLES["clustered"]
    row = encode_delete(of, {"id": 1, "plain": "p", "d": "1.50", "phone": "ab"})
    after = masked_changes(filters({"phone": "digits"}).narrowed(of), changes([DELETE], [row]))
    assert after["row"][0].as_py() == row


@pytest.mark.parametrize("count", [1, 40])
def test_a_row_that_is_cut_off_is_an_error_and_never_shown_clear(count: int) -> None:
    of = TABLES["clustered"]
    row = encode_delete(of, {"id": 1, "name": "a secret name"})
    rows = [row] * (count - 1) + [row[:-1]]
    with pytest.raises(RowDecodeError) as caught:
        masked_changes(filters().narrowed(of), changes([DELETE] * count, rows))
    assert "secret" not in str(caught.value)


def test_an_error_quotes_no_digits_of_a_masked_number() -> None:
    """A group of eight digits holds more than it can, in a row that is read by itself."""
    of = TABLES["clustered"]
    in_order = encode_delete(of, {"id": 1, "n": 5, "plain": "p", "d": "12345678.50"})
    row, whole = shuffled(in_order, 1), encode_decimal("12345678.50", 10, 2)
    assert row != in_order and whole in row
    row = row.replace(whole, whole[:2] + b"\xff\xff\xff\xff" + whole[6:])
    with pytest.raises(RowDecodeError, match="holds 2147483647"):
        decode_deletes(of, pa.array([row], pa.large_binary()))
    with pytest.raises(RowDecodeError, match="masked column") as caught:
        masked_changes(filters({"d": "null"}).narrowed(of), changes([DELETE], [row]))
    assert "2147483647" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_digits_are_permuted_by_both_implementations_alike(size: int) -> None:
    of = filters({"phone": "digits"}).narrowed(TABLES["clustered"])
    values = [f"{number:0{size}d}" for number in range(10**size)]
    batch = pa.record_batch({"phone": pa.array(values, pa.large_string())})
    phone = next(c for c in of.columns if c.name == "phone")
    found = masked_columns(batch, [phone])["phone"].to_pylist()
    assert sorted(found) == values and found != values
    assert found == [permuted_digits(KEY.encode(), v.encode()).decode() for v in values]


@pytest.mark.parametrize("spec", ["n tinyint", "n tinyint unsigned", "n smallint"])
def test_whole_numbers_are_permuted_by_both_implementations_alike(spec: str) -> None:
    clear = table(11, "t", spec)
    shaped = [c for c in filters({"n": "digits"}).narrowed(clear).columns if c.mask]
    bits, unsigned = (16 if "small" in spec else 8), "unsigned" in spec
    every = range(2**bits) if unsigned else range(-(2 ** (bits - 1)), 2 ** (bits - 1))
    kind = pa.uint64() if unsigned else pa.int64()
    batch = pa.record_batch({"n": pa.array(every, kind)})
    found = masked_columns(batch, shaped)["n"].to_pylist()
    assert sorted(found) == list(every) and found != list(every)
    for was, is_now in zip(every, found, strict=True):
        assert len(str(was)) == len(str(is_now)) and (was < 0) == (is_now < 0)
    if bits == 8:
        key = KEY.encode()
        assert found == [permuted_number(key, n, bits, unsigned=unsigned) for n in every]


def test_a_number_beyond_its_type_is_an_error_that_does_not_show_it() -> None:
    """As a row that is broken, or of another definition, may have."""
    wide = table(11, "t", "id int", "n bigint", primary="id")
    narrow = table(11, "t", "id int", "n tinyint", primary="id")
    rows = [encode_delete(wide, {"id": 1, "n": 4711})]
    with pytest.raises(RowDecodeError, match="beyond its type") as caught:
        masked_changes(filters({"n": "digits"}).narrowed(narrow), changes([DELETE], rows))
    assert "4711" not in "".join(traceback.format_exception(caught.value))


def test_bytes_that_are_no_utf8_are_masked_too() -> None:
    raw = [b"a\xe9\xff", b"\xff\xfe\xfd\xfc\xfb", b"\xe2\x82", "€uro12345".encode(), None]
    values = pa.array(raw, pa.large_binary()).view(pa.large_string())
    shaped = filters({name: MASKS[name] for name in ("name", "mail", "phone", "card")})
    columns = [c for c in shaped.narrowed(TABLES["clustered"]).columns if c.mask]
    batch = pa.record_batch({c.name: values for c in columns})
    (wanted,) = masked_rows([batch], columns)
    found = masked_columns(batch, columns)
    for name in batch.schema.names:
        one, other = (each[name].view(pa.large_binary()).to_pylist() for each in (found, wanted))
        assert one == other
    assert found["card"].view(pa.large_binary())[1].as_py() == b"*\xfe\xfd\xfc\xfb"


def test_a_mask_is_the_same_after_it_was_written_down() -> None:
    shaped = filters().narrowed(TABLES["clustered"])
    assert Table.from_json(shaped.to_json()) == shaped
    for column in shaped.columns:
        if column.mask:
            assert Mask.from_text(column.mask).to_text() == column.mask
            assert KEY not in column.mask
    assert filters().narrowed(shaped) == shaped
