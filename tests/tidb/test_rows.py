"""Batch decoding against generated rows: every type, every key, every row shape.

And refusal of anything corrupt.
"""

import string
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.tidb.codec import CodecError, Datum, encode_datum
from sluice.tidb.codec import row as reference
from sluice.tidb.codec.binary_json import decode_json, encode_json
from sluice.tidb.codec.datum import COMPACT, NIL, UVARINT, VARINT
from sluice.tidb.codec.times import format_duration
from sluice.tidb.rows import (
    ROWID_NAME,
    DecodeStats,
    RowDecodeError,
    arrow_schema,
    decode_deletes,
    decode_inserts,
    decode_updates,
    encode_delete,
    encode_insert,
    encode_update,
)
from sluice.tidb.schema import Column, Index, Table
from tests.examples import examples

COLUMNS = [
    ("tiny", {"tp": 1}),
    ("big", {"tp": 8}),
    ("ubig", {"tp": 8, "flag": 32}),
    ("year", {"tp": 13, "flag": 32}),
    ("f", {"tp": 4}),
    ("d", {"tp": 5}),
    ("dec", {"tp": 0xF6, "flen": 12, "decimal": 3}),
    ("dec65", {"tp": 0xF6, "flen": 65, "decimal": 30}),
    ("frac", {"tp": 0xF6, "flen": 4, "decimal": 4}),
    ("vc", {"tp": 15, "charset": "utf8mb4", "collate": "utf8mb4_bin"}),
    ("vb", {"tp": 15, "charset": "binary"}),
    ("text", {"tp": 0xFC, "charset": "latin1"}),
    ("day", {"tp": 10}),
    ("dt", {"tp": 12, "decimal": 6}),
    ("dt1", {"tp": 12, "decimal": 1}),
    ("ts", {"tp": 7, "decimal": 0}),
    ("tm", {"tp": 11, "decimal": 4}),
    ("bit", {"tp": 16, "flen": 64}),
    ("e", {"tp": 0xF7, "elems": ("a", "bé", "c,")}),
    ("s", {"tp": 0xF8, "elems": tuple(string.ascii_letters[:52])}),
    ("js", {"tp": 0xF5}),
]


def values_of(column: Column) -> st.SearchStrategy[Any]:
    """Values as decoding gives them."""
    match column.kind:
        case "int":
            low, high = (0, (1 << 64) - 1) if column.unsigned else (-(1 << 63), (1 << 63) - 1)
            return st.integers(low, high) | st.sampled_from([low, high, 0, 63, 64, 127, 128])
        case "year":
            return st.sampled_from([0, 1901, 2155])
        case "float":
            return st.floats(width=32, allow_nan=False).map(lambda f: f + 0.0)
        case "double":
            return st.floats(allow_nan=False).map(lambda f: f + 0.0)
        case "decimal":
            top, scale = 10**column.flen - 1, column.decimal
            whole = st.integers(-top, top) | st.sampled_from([0, 1, -1, top, -top])
            return whole.map(
                lambda n: (
                    f"{'-' if n < 0 else ''}{abs(n) // 10**scale}.{abs(n) % 10**scale:0{scale}}"
                )
            )
        case "text":
            return st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(
                str.encode
            ) | st.just(b"\xff\xc3")
        case "binary":
            return st.binary(max_size=20) | st.just(bytes(300))
        case "date":
            return st.sampled_from(["0000-00-00", "2007-00-01", "9999-12-31", "2024-02-29"])
        case "datetime" | "timestamp":
            tail = st.integers(0, 10**column.fsp - 1).map(
                lambda f: f".{f:0{column.fsp}}" if column.fsp else ""
            )
            heads = ["0000-00-00 00:00:00", "2017-01-00 23:59:59", "9999-12-31 12:34:56"]
            return st.tuples(st.sampled_from(heads), tail).map("".join)
        case "time":
            return st.integers(-30203999999, 30203999999).map(
                lambda t: format_duration(t * 100_000, column.fsp)
            )
        case "bit":
            return st.integers(0, (1 << 64) - 1)
        case "enum":
            return st.sampled_from(["", *column.elems])
        case "set":
            return st.sets(st.integers(0, 51)).map(
                lambda s: ",".join(column.elems[i] for i in sorted(s))
            )
        case _:
            documents = [
                "null",
                "[]",
                '{"a": [1, "x", {}]}',
                "true",
                '"é"',
                "-1.5",
                str((1 << 64) - 1),
                "0",
            ]
            return st.sampled_from(documents).map(lambda t: decode_json(encode_json(t))[0])


def make_table(kind: str, picks: list[int], null_defaults: bool = True) -> Table:
    """A table with a key of `kind` and some of COLUMNS, their ids not in order."""
    columns = []
    if kind in ("int", "uint"):
        columns.append(Column(1, "id", 0, 8, flag=3 | (32 if kind == "uint" else 0)))
    if kind == "common":
        columns.append(
            Column(1, "k1", 0, 15, flag=3, charset="utf8mb4", collate="utf8mb4_general_ci")
        )
        columns.append(Column(2, "k2", 1, 11, flag=3, decimal=6))
        columns.append(Column(3, "k3", 2, 0xF6, flag=3, flen=10, decimal=2))
    for pick in picks:
        name, more = COLUMNS[pick]
        default = None if null_defaults else "1"
        columns.append(Column(100 - pick * 3, name, len(columns), default=default, **more))  # type: ignore[arg-type]
    index = Index(
        1, "PRIMARY", (("k2", 1, -1), ("k1", 0, -1), ("k3", 2, -1)), unique=True, primary=True
    )
    common = kind == "common"
    return Table(
        7,
        2,
        "shop",
        "odd`name",
        tuple(columns),
        (index,) if common else (),
        "",
        "",
        kind in ("int", "uint"),
        common,
    )


@st.composite
def batches(draw: st.DrawFn) -> tuple[Table, list[dict[str, Any]]]:
    kind = draw(st.sampled_from(["int", "uint", "common", "heap"]))
    picks = draw(st.lists(st.integers(0, len(COLUMNS) - 1), unique=True, min_size=1, max_size=6))
    table = make_table(kind, picks, draw(st.booleans()))
    fields: dict[str, st.SearchStrategy[Any]] = {
        c.name: values_of(c) if c.flag & 1 else st.none() | values_of(c) for c in table.columns
    }
    if kind == "heap":
        fields[ROWID_NAME] = st.integers(-5, 1 << 62)
    return table, draw(st.lists(st.fixed_dictionaries(fields), min_size=1, max_size=12))


def raw(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows with text as bytes: it needn't be utf-8."""
    columns = {
        n: c.cast(pa.large_binary()) if c.type == pa.large_string() else c
        for n, c in zip(batch.schema.names, batch.columns, strict=True)
    }
    return pa.table(columns).to_pylist()


def as_bytes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v.encode() if isinstance(v, str) else v for k, v in row.items()} for row in rows]


def binary(rows: list[bytes]) -> pa.LargeBinaryArray:
    return pa.array(rows, pa.large_binary())


calm = settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@calm
@given(batches(), st.sampled_from([0, 1000]))
def test_encoded_rows_decode_to_the_same_values(
    batch: tuple[Table, list[dict[str, Any]]], small: int
) -> None:
    table, rows = batch
    stats = DecodeStats()
    inserted = decode_inserts(
        table, binary([encode_insert(table, r) for r in rows]), stats, small_batch=small
    )
    assert raw(inserted) == as_bytes(rows)
    assert inserted.schema == arrow_schema(table)
    deleted = decode_deletes(
        table, binary([encode_delete(table, r) for r in rows]), stats, small_batch=small
    )
    assert raw(deleted) == as_bytes(rows)
    updates = binary([encode_update(table, o, n) for o, n in zip(rows, rows[::-1], strict=True)])
    old, new = decode_updates(table, updates, stats, small_batch=small)
    assert raw(old) == as_bytes(rows)
    assert raw(new) == as_bytes(rows[::-1])
    assert stats.rows == 3 * len(rows)
    assert stats.fallback == 0
    assert stats.small == (3 * len(rows) if small else 0)


@calm
@given(batches(), st.data())
def test_corrupt_rows_give_what_the_reference_gives(
    batch: tuple[Table, list[dict[str, Any]]], data: st.DataObject
) -> None:
    """Bytes cut off or changed anywhere: the batch decoder returns the reference's values or raises
    at its row, never anything else, and the good rows around don't hide it.
    """
    table, rows = batch
    what = data.draw(st.sampled_from(["insert", "delete", "update"]))
    encode = {
        "insert": encode_insert,
        "delete": encode_delete,
        "update": lambda t, r: encode_update(t, r, rows[0]),
    }[what]
    encoded = [encode(table, r) for r in rows]
    victim = data.draw(st.integers(0, len(rows) - 1))
    broken = bytearray(encoded[victim])
    if data.draw(st.booleans()):
        broken = broken[: data.draw(st.integers(0, len(broken) - 1))]
    else:
        broken[data.draw(st.integers(0, len(broken) - 1))] ^= data.draw(st.integers(1, 255))
    encoded[victim] = bytes(broken)
    one = {
        "insert": reference.decode_insert,
        "delete": reference.decode_delete,
        "update": reference.decode_update,
    }[what]
    many: Any = {"insert": decode_inserts, "delete": decode_deletes, "update": decode_updates}[what]
    try:
        want: Any = one(table, encoded[victim])
    except CodecError as error:
        with pytest.raises(RowDecodeError) as raised:
            many(table, binary(encoded), small_batch=0)
        assert (raised.value.row, raised.value.offset) == (victim, error.position)
        assert "shop.odd`name (id 7)" in str(raised.value)
        return
    got = many(table, binary(encoded), small_batch=0)
    for batch_of, values in zip(got, want, strict=True) if what == "update" else [(got, want)]:
        row = list(raw(batch_of)[victim].values())
        # NaN equals itself
        assert repr(row) == repr([v.encode() if isinstance(v, str) else v for v in values])


def pair(column_id: int, datum: Datum) -> bytes:
    return encode_datum(Datum(VARINT, column_id)) + encode_datum(datum)


def simple(**more: Any) -> Table:
    columns = (
        Column(1, "id", 0, 3, flag=3),
        Column(2, "a", 1, 15, charset="utf8mb4", **more),
        Column(3, "b", 2, 3),
    )
    return Table(9, 2, "s", "t", columns, pk_is_handle=True)


def test_rows_of_many_shapes_are_decoded_together_and_in_order() -> None:
    table, rows = simple(), []
    for i in range(300):
        pairs = [
            pair(2, Datum(COMPACT, b"v%d" % i)),
            pair(3, Datum(VARINT, i)),
            pair(77, Datum(COMPACT, b"dropped")),
        ]
        chosen = [p for bit, p in enumerate(pairs) if i >> bit & 1]
        if i % 5 == 0:
            chosen.reverse()
        rows.append(encode_datum(Datum(VARINT, i)) + (b"".join(chosen) or b"\0"))
    stats = DecodeStats()
    got = decode_inserts(table, binary(rows), stats).to_pylist()
    assert got == [
        {"id": i, "a": f"v{i}" if i & 1 else None, "b": i if i & 2 else None} for i in range(300)
    ]
    assert stats.fallback == 0


def test_rows_with_more_orders_than_are_tried_are_counted_as_fallback_and_still_right() -> None:
    columns = (
        Column(1, "id", 0, 3, flag=3),
        *(Column(i + 2, f"c{i}", i + 1, 3) for i in range(30)),
    )
    table = Table(9, 2, "s", "t", columns, pk_is_handle=True)
    rows = []
    for i in range(60):
        order = [(j * 7 + i) % 30 for j in range(30)]
        rows.append(
            encode_datum(Datum(VARINT, i))
            + b"".join(pair(c + 2, Datum(VARINT, c * i)) for c in order)
        )
    stats = DecodeStats()
    got = decode_inserts(table, binary(rows), stats).to_pylist()
    assert got == [{"id": i, **{f"c{c}": c * i for c in range(30)}} for i in range(60)]
    assert 0 < stats.fallback < 60


@pytest.mark.parametrize("small", [0, 100])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ({"tp": 3, "origin_default": "7", "flag": 1}, 7),
        ({"tp": 3}, None),
        ({"tp": 3, "flag": 1}, 0),
        ({"tp": 8, "flag": 33, "origin_default": str((1 << 64) - 1)}, (1 << 64) - 1),
        ({"tp": 15, "charset": "utf8mb4", "origin_default": "日本"}, "日本"),
        ({"tp": 0xFE, "charset": "binary", "flen": 4, "flag": 1}, bytes(4)),
        ({"tp": 0xFE, "charset": "binary", "flen": 4, "origin_default": "ab"}, b"ab\0\0"),
        (
            {"tp": 0xFE, "charset": "binary", "flen": 5, "origin_default": "\ufffd\0\0\0\0"},
            b"\xef\xbf\xbd\0\0",
        ),
        ({"tp": 15, "charset": "binary", "flen": 2, "origin_default": "\ufffd"}, b"\xef\xbf"),
        ({"tp": 16, "origin_default": b"\x01\x02"}, 258),
        ({"tp": 0xF6, "flen": 8, "decimal": 2, "flag": 1}, "0.00"),
        ({"tp": 0xF6, "flen": 8, "decimal": 2, "origin_default": "1.5"}, "1.50"),
        ({"tp": 4, "origin_default": "0.1"}, struct.unpack("f", struct.pack("f", 0.1))[0]),
        ({"tp": 12, "decimal": 3, "flag": 1}, "0000-00-00 00:00:00.000"),
        (
            {"tp": 7, "decimal": 3, "origin_default": "2024-01-02 03:04:05"},
            "2024-01-02 03:04:05.000",
        ),
        ({"tp": 10, "origin_default": "2024-01-02"}, "2024-01-02"),
        ({"tp": 11, "decimal": 2, "flag": 1}, "00:00:00.00"),
        ({"tp": 0xF7, "elems": ("x", "y"), "flag": 1}, "x"),
        ({"tp": 0xF7, "elems": ("x", "y"), "origin_default": "y"}, "y"),
        ({"tp": 0xF8, "elems": ("x", "y"), "flag": 1}, ""),
        ({"tp": 0xF5, "flag": 1}, "null"),
    ],
)
def test_a_column_the_row_does_not_have_gets_its_origin_default_or_null_or_zero(
    column: dict[str, Any], value: Any, small: int
) -> None:
    added = Column(2, "added", 1, **column)
    table = Table(
        9,
        2,
        "s",
        "t",
        (Column(1, "id", 0, 3, flag=3), added, Column(3, "b", 2, 3)),
        pk_is_handle=True,
    )
    have = pair(1, Datum(VARINT, 5)) + pair(3, Datum(VARINT, 6))
    want = {"id": 5, "added": value, "b": 6}
    inserts = binary([encode_datum(Datum(VARINT, 5)) + pair(3, Datum(VARINT, 6))] * 10)
    assert decode_inserts(table, inserts, small_batch=small).to_pylist() == [want] * 10
    assert decode_deletes(table, binary([have] * 10), small_batch=small).to_pylist() == [want] * 10
    old, new = decode_updates(table, binary([have + have] * 10), small_batch=small)
    assert old.to_pylist() == new.to_pylist() == [want] * 10


def test_rows_with_and_without_a_column_mix() -> None:
    table = simple(origin_default="old")
    rows = []
    for i in range(50):
        value = [b"", pair(2, Datum(COMPACT, b"new")), pair(2, Datum(NIL, None))][i % 3]
        rows.append(encode_datum(Datum(VARINT, i)) + value + pair(3, Datum(VARINT, i)))
    got = decode_inserts(table, binary(rows)).to_pylist()
    assert [r["a"] for r in got] == [["old", "new", None][i % 3] for i in range(50)]


@pytest.mark.parametrize("small", [0, 100])
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda good: good[:-1], "left|unfinished|missing"),
        (lambda good: good + pair(2, Datum(COMPACT, b"x")), "odd"),
        (lambda good: pair(1, Datum(VARINT, 1)) + pair(2, Datum(NIL, None)), "one half"),
        (lambda good: pair(1, Datum(VARINT, 1)) * 4, "twice"),
        (lambda good: b"\x0b" + good, "0x0b"),
    ],
)
def test_a_corrupt_update_names_table_row_place_and_reason(
    make: Any, says: str, small: int
) -> None:
    good = pair(1, Datum(VARINT, 1)) + pair(2, Datum(COMPACT, b"abc"))
    rows = [good + good] * 20
    rows[13] = make(good + good)
    with pytest.raises(RowDecodeError, match=says) as raised:
        decode_updates(simple(), binary(rows), small_batch=small)
    assert raised.value.row == 13
    assert raised.value.table_id == 9
    assert "s.t" in str(raised.value)


@pytest.mark.parametrize(
    ("column", "datum"),
    [
        ({"tp": 0xF7, "elems": ("a",)}, Datum(UVARINT, 2)),
        ({"tp": 0xF8, "elems": ("a",)}, Datum(UVARINT, 2)),
        ({"tp": 12}, Datum(UVARINT, (1 << 64) - 1)),
        ({"tp": 11}, Datum(VARINT, 10**18)),
        ({"tp": 8}, Datum(UVARINT, 1 << 63)),
        ({"tp": 15, "charset": "utf8mb4"}, Datum(VARINT, 1)),
        ({"tp": 0xE0}, Datum(VARINT, 1)),
    ],
)
def test_values_a_column_can_not_have_are_refused(column: dict[str, Any], datum: Datum) -> None:
    table = Table(
        9,
        2,
        "s",
        "t",
        (Column(1, "id", 0, 3, flag=3), Column(2, "c", 1, **column)),
        pk_is_handle=True,
    )
    good = encode_datum(Datum(VARINT, 1)) + pair(2, Datum(NIL, None))
    with pytest.raises(RowDecodeError, match=r"row 11.*(c'|invalid packed|no TIME)"):
        decode_inserts(
            table, binary([good] * 11 + [encode_datum(Datum(VARINT, 1)) + pair(2, datum)])
        )


def test_decimals_of_mixed_precision_decode_together() -> None:
    table = Table(
        9,
        2,
        "s",
        "t",
        (Column(1, "id", 0, 3, flag=3), Column(2, "n", 1, 0xF6, flen=20, decimal=4)),
        pk_is_handle=True,
    )
    numbers = [str(Decimal(n * 7919).scaleb(-(n % 5))) for n in range(-40, 40)]
    plain = [f"{Decimal(n):f}" for n in numbers]
    rows = [encode_datum(Datum(VARINT, 1)) + pair(2, Datum(6, n)) for n in plain]
    assert decode_inserts(table, binary(rows))["n"].to_pylist() == plain


def test_slices_chunks_and_empty_batches_decode() -> None:
    table = simple()
    rows = [encode_insert(table, {"id": i, "a": f"text {i}" * 30, "b": i}) for i in range(100)]
    whole = binary(rows)
    assert decode_inserts(table, whole.slice(40, 30))["b"].to_pylist() == list(range(40, 70))
    chunked = pa.chunked_array([whole.slice(0, 50), whole.slice(50)])
    assert decode_inserts(table, chunked)["b"].to_pylist() == list(range(100))
    assert decode_inserts(table, pa.array(rows, pa.binary()))["b"].to_pylist() == list(range(100))
    for small in (-1, 8):
        empty = decode_inserts(table, binary([]), small_batch=small)
        assert (empty.num_rows, empty.schema) == (0, arrow_schema(table))
        assert [b.num_rows for b in decode_updates(table, binary([]), small_batch=small)] == [0, 0]


def test_hidden_virtual_and_unfinished_columns_are_left_out() -> None:
    columns = (
        Column(1, "id", 0, 3, flag=3),
        Column(2, "v", 1, 3, generated="id + 1"),
        Column(3, "g", 2, 3, generated="id + 1", generated_stored=True),
        Column(4, "soon", 3, 15, state=2, charset="utf8mb4"),
    )
    table = Table(9, 2, "s", "t", columns, pk_is_handle=True)
    row = b"".join(pair(i, Datum(VARINT, i)) for i in (1, 2, 3)) + pair(4, Datum(COMPACT, b"x"))
    stats = DecodeStats()
    assert decode_deletes(table, binary([row] * 20), stats).to_pylist() == [{"id": 1, "g": 3}] * 20
    assert stats.fallback == 0


def test_a_row_that_ends_early_does_not_take_the_next_rows_first_column() -> None:
    one, two, three = (
        pair(1, Datum(VARINT, 1)),
        pair(2, Datum(COMPACT, b"x")),
        pair(3, Datum(VARINT, 9)),
    )
    rows = [one + two, three, one + three]
    stats = DecodeStats()
    got = decode_deletes(simple(flag=1), binary(rows * 10), stats).to_pylist()
    assert (
        got
        == [{"id": 1, "a": "x", "b": None}, {"id": 0, "a": "", "b": 9}, {"id": 1, "a": "", "b": 9}]
        * 10
    )
    assert stats.fallback == 0


def test_a_row_without_its_hidden_row_id_is_refused() -> None:
    table = Table(9, 2, "s", "t", (Column(1, "a", 0, 3),))
    rows = [pair(1, Datum(VARINT, 4)) + pair(-1, Datum(VARINT, i)) for i in range(20)]
    assert decode_deletes(table, binary(rows))[ROWID_NAME].to_pylist() == list(range(20))
    rows[13] = pair(1, Datum(VARINT, 4))
    with pytest.raises(RowDecodeError, match=r"row 13.*row id is missing"):
        decode_deletes(table, binary(rows))


def test_negative_zero_decimals_lose_their_sign() -> None:
    table = Table(
        9,
        2,
        "s",
        "t",
        (Column(1, "id", 0, 3, flag=3), Column(2, "n", 1, 0xF6, flen=4, decimal=2)),
        pk_is_handle=True,
    )
    row = (
        encode_datum(Datum(VARINT, 1))
        + encode_datum(Datum(VARINT, 2))
        + bytes.fromhex("0604027fff")
    )
    for small in (0, 100):
        assert (
            decode_inserts(table, binary([row] * 9), small_batch=small)["n"].to_pylist()
            == ["0.00"] * 9
        )
