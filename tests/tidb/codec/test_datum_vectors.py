"""The byte vectors of vectors.tsv (id, hex, meaning, source), each checked in both directions where
the meaning says all of the value. L are literal bytes of other projects' tests and documents, E
were made by TiKV's encoder.
"""

import pathlib
import re
import struct
from collections.abc import Callable

import pytest

from sluice.tidb.codec import CodecError, Datum, decode_datum, encode_datum
from sluice.tidb.codec.binary_json import decode_json
from sluice.tidb.codec.datum import COMPACT, DURATION, FLOAT, INT, UINT, UVARINT, VARINT
from sluice.tidb.codec.decimal import decode_decimal, encode_decimal
from sluice.tidb.codec.float import decode_float, encode_float
from sluice.tidb.codec.memcomparable import (
    decode_bytes,
    decode_int,
    encode_bytes,
    encode_int,
    encode_uint,
)
from sluice.tidb.codec.row import read_pairs
from sluice.tidb.codec.times import format_duration, format_time, pack_time, parse_duration
from sluice.tidb.codec.varint import decode_uvarint, encode_uvarint

VECTORS = [
    line.split("\t")
    for line in (pathlib.Path(__file__).parent / "vectors.tsv").read_text().splitlines()
]

CHECKS: list[tuple[str, Callable[..., None]]] = []


def check(pattern: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(function: Callable[..., None]) -> Callable[..., None]:
        CHECKS.append((pattern, function))
        return function

    return register


def both_ways(data: bytes, datum: Datum) -> None:
    assert decode_datum(data) == (datum, len(data))
    assert encode_datum(datum) == data


@check(r"memcmp bytes.*: error .*")
def _(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_bytes(data)


@check(r"memcmp bytes \(asc\): bytes (.*)")
def _(data: bytes, text: str) -> None:
    raw = b"" if text == "(empty)" else bytes.fromhex(text)
    assert decode_bytes(data) == (raw, len(data))
    assert encode_bytes(raw) == data


@check(r"error: .*")
def _(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_datum(data)


@check(r"(key |row )?(int|uint) (-?\d+)")
def _(data: bytes, where: str | None, kind: str, value: str) -> None:
    compact = where == "row " or (where is None and data[0] in (VARINT, UVARINT))
    flag = (VARINT if kind == "int" else UVARINT) if compact else (INT if kind == "int" else UINT)
    both_ways(data, Datum(flag, int(value)))


@check(r"\(no flag\) memcmp bytes \"(.*)\"")
def _(data: bytes, text: str) -> None:
    assert encode_bytes(text.encode()) == data


@check(r"\(no flag\) float (\S+).*")
def _(data: bytes, value: str) -> None:
    assert decode_float(data) == (float(value), 8)
    assert encode_float(float(value)) == data


@check(r"\(no flag\) memcmp int (\d+)")
def _(data: bytes, value: str) -> None:
    assert decode_int(data) == (int(value), 8)


@check(r"\(no flag\) uvarint 0x([0-9A-F]+)")
def _(data: bytes, value: str) -> None:
    assert decode_uvarint(data) == (int(value, 16), len(data))
    assert encode_uvarint(int(value, 16)) == data


@check(r"float (\S+)")
def _(data: bytes, value: str) -> None:
    both_ways(data, Datum(FLOAT, float(value)))


@check(r"(?:PD-encoded record key -> table (\d+), handle (\d+)|the previous key as PD sees it)")
def _(data: bytes, table: str | None, handle: str | None) -> None:
    raw, end = decode_bytes(data)
    assert end == len(data)
    assert encode_bytes(raw) == data
    if table:
        assert raw == b"t" + encode_int(int(table)) + b"_r" + encode_int(int(handle or 0))


@check(r"PD-encoded table prefix: .* -> table (\d+)")
def _(data: bytes, table: str) -> None:
    assert decode_bytes(data)[0] == b"t" + encode_int(int(table))


@check(r"record key:? table (\d+)[, ]+(?:int )?handle (\d+)")
def _(data: bytes, table: str, handle: str) -> None:
    assert data == b"t" + encode_int(int(table)) + b"_r" + encode_int(int(handle))


def in_key(text: str) -> bytes:
    """Datums of a key as the vectors describe them, in key form."""
    out = b""
    for part in re.findall(r'"[^"]*"|\d{4}-\d\d-\d\d|-?\d+\.\d+|-?\d+', text):
        if part[0] == '"':
            out += b"\x01" + encode_bytes(part[1:-1].encode())
        elif re.fullmatch(r"\d{4}-.*", part):
            out += b"\x04" + encode_uint(pack_time(part))
        elif "." in part:
            out += encode_datum(Datum(FLOAT, float(part)))
        else:
            out += encode_datum(Datum(INT, int(part)))
    return out


@check(r"record key: table (\d+), common handle \((.*)\)")
def _(data: bytes, table: str, values: str) -> None:
    assert data == b"t" + encode_int(int(table)) + b"_r" + in_key(values)


@check(r"index key:? table (\d+),? index (\d+)(?:, values?)? \(?(.*?)\)?(?:,? handle (\d+))?")
def _(data: bytes, table: str, index: str, values: str, handle: str | None) -> None:
    tail = encode_datum(Datum(INT, int(handle))) if handle else b""
    assert (
        data
        == b"t" + encode_int(int(table)) + b"_i" + encode_int(int(index)) + in_key(values) + tail
    )


@check(r"common handle \((.*)\)")
def _(data: bytes, values: str) -> None:
    assert data == in_key(values)


@check(r"insert handle prefix, clustered PK \((.*)\)")
def _(data: bytes, values: str) -> None:
    text, number, day = values.split(",")
    first, pos = decode_datum(data)
    second, pos = decode_datum(data, pos)
    third, pos = decode_datum(data, pos)
    assert (first.value, second.value, pos) == (text.strip('"').encode(), int(number), len(data))
    assert isinstance(third.value, int)
    assert format_time(third.value, None) == day


@check(r"compact bytes \"(.*)\".*")
def _(data: bytes, text: str) -> None:
    both_ways(data, Datum(COMPACT, text.encode()))


@check(r"datum list: (.*)")
def _(data: bytes, text: str) -> None:
    pos, got = 0, []
    while pos < len(data):
        datum, pos = decode_datum(data, pos)
        got.append(datum.value)
    parts = re.findall(r'(\d+)|"([^"]*)"', text)
    assert got == [int(number) if number else word.encode() for number, word in parts]


@check(r"json (.*)")
def _(data: bytes, text: str) -> None:
    assert data[0] == 0x0A
    assert decode_json(data, 1) == (text, len(data))
    # dates and opaque values can't come from text; whole doubles come back as integers
    if b"\x0b" not in data and data[1] < 0x0D:
        assert encode_datum(Datum(0x0A, text)) == data


@check(r"decimal\((\d+),(\d+)\) (?:from text \S+ -> )?(\S+).*")
def _(data: bytes, precision: str, fraction: str, text: str) -> None:
    assert decode_decimal(data, 1) == (text, len(data))
    assert data[1:3] == bytes((int(precision), int(fraction)))
    assert encode_decimal(text, int(precision), int(fraction)) == data[1:]


@check(r"(row|key) datetime ([-\d]+ [:.\d]+)(?: \(packed (\d+)\))?")
def _(data: bytes, where: str, text: str, packed: str | None) -> None:
    datum = Datum(UVARINT if where == "row" else UINT, pack_time(text))
    both_ways(data, datum)
    assert isinstance(datum.value, int)
    assert format_time(datum.value, 6 if "." in text else 0) == text
    if packed:
        assert datum.value == int(packed)


@check(r"(row|key) time (\S+)")
def _(data: bytes, where: str, text: str) -> None:
    datum = Datum(VARINT if where == "row" else DURATION, parse_duration(text))
    both_ways(data, datum)
    assert isinstance(datum.value, int)
    assert format_duration(datum.value, 6 if "." in text else 0) == text


def meta_key(name: str, kind: str, field: bytes | None) -> bytes:
    return (
        b"m"
        + encode_bytes(name.encode())
        + encode_uint(ord(kind))
        + (b"" if field is None else encode_bytes(field))
    )


@check(r"meta key: (?:(string|hash|list) )?(.*)")
def _(data: bytes, kind: str | None, text: str) -> None:
    raw = decode_bytes(data)[0] if "as PD sees it" in text else data
    if kind == "string":
        assert raw == meta_key(text, "s", None)
    elif kind == "list":
        assert (
            raw == meta_key("DDLJobList", "L", None)
            if "meta" in text
            else raw == meta_key("DDLJobList", "l", None) + encode_int(0)
        )
    elif kind == "hash":
        assert raw == meta_key("DBs", "h", None)
    elif match := re.fullmatch(r"(\S+) / (\S+)", text):
        assert raw == meta_key(match[1], "h", match[2].encode())
    elif "scan" in text:
        prefix = meta_key("DDLJobHistory", "h", None)
        assert raw == (prefix if "start" in text else prefix[:-1] + b"\x69")
    else:
        assert raw == meta_key("DDLJobHistory", "h", struct.pack(">Q", 112))


ROWS: dict[str, list[tuple[int, object]]] = {
    "C79": [(1, 100), (2, b"abc"), (3, "1"), (4, 1), (5, 1), (6, 100)],
    "C80": [
        (1, 100),
        (2, b"abc"),
        (3, pack_time("2016-06-23 11:30:45")),
        (4, parse_duration("12:59:59.999999")),
    ],
    "C81": [(1, 100), (2, b"abc"), (3, "1")],
    "C82": [(1, 3223600)],
    "C83": [(1, 1)],
    "C84": [(1, 0)],
    "C85": [(1, 100), (2, b"abc"), (3, "10"), (6, parse_duration("23:23:23.67"))],
    "L45": [(1, 1), (2, "哈哈 hello".encode()), (3, None), (4, pack_time("2019-03-28 05:35:30"))],
    "C86": [(2, b"test"), (3, 2)],
    "C87": [(1, 0), (2, b"test"), (3, 2)],
    "C88": [(1, 0), (2, b"test"), (3, 2)] * 2,
    "D01": [],
    "D02": [(1, 5), (2, b"x")],
    "D03": [(1, 5), (2, b"x"), (-1, 7), (1, 6), (2, None), (-1, 7)],
    "D04": [(1, 6), (2, None), (-1, 7)],
}


def row_of(name: str, data: bytes) -> None:
    handle = 2 if name in ("C86", "D02") else 0
    got = [(column_id, datum.value) for column_id, datum, _ in read_pairs(data, handle)]
    assert got == ROWS[name]


@pytest.mark.parametrize(
    ("name", "data", "meaning"),
    [(v[0], bytes.fromhex(v[1]), v[2]) for v in VECTORS],
    ids=[v[0] for v in VECTORS],
)
def test_vector(name: str, data: bytes, meaning: str) -> None:
    if name in ROWS:
        row_of(name, data)
        return
    for pattern, function in CHECKS:
        if match := re.fullmatch(pattern, meaning):
            function(data, *match.groups())
            return
    pytest.fail(f"nothing checks {name}: {meaning}")
