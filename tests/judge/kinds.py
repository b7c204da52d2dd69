"""Column types: how a value is made, written into a row, written in SQL, compared upstream, and
read back downstream.

Values of the model: int (integers, YEAR, BIT), Decimal, float, bytes (text and binary alike), str
(dates and times, ENUM, SET), JSON documents as Python objects. None is NULL.
"""

from __future__ import annotations

import base64
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from typing import Any

from tests.judge import wire

NOT_NULL, PRIMARY, UNSIGNED, ZEROFILL, BINARY = 1, 2, 32, 64, 128
_WORDS = (
    b"",
    b"a",
    b"A",
    b"a ",
    b"aa",
    b"b",
    b"Zz",
    b"'",
    b'"',
    b"\\",
    b"\\'",
    b"%s",
    b"%",
    b"\0",
    b"\n",
    b"\x1a",
    b"\t",
    b"`",
    b"--",
    b"x'y\\",
)
_WIDE = ("é", "É", "ß", "日本", "😀", "ı")
_CASELESS = ("日本", "😀")
_EXACT = Context(prec=100)
_DAYS = ("2020-01-01", "1999-12-31", "2024-02-29", "2021-07-15")
_CLOCKS = ("00:00:00", "12:34:56", "23:59:59", "20:00:00")
_DOCUMENTS: tuple[Any, ...] = (
    1,
    -7,
    "a",
    "it's",
    'q"\\',
    [],
    {},
    [1, "x", None],
    {"a": 1, "b": [True, {"c": "'"}]},
    True,
    "2020",
)


@dataclass(frozen=True)
class Kind:
    """A column type. `family` says what values are; `sql` is the type in TiDB's normal form."""

    family: str
    sql: str
    tp: int
    flen: int = -1
    decimal: int = 0
    flag: int = 0
    charset: str = "binary"
    collate: str = "binary"
    elems: tuple[str, ...] = ()
    values: Callable[[random.Random], Any] | None = None
    """Makes values of a special look, such as digits in a VARCHAR."""

    def value(self, rng: random.Random) -> Any:
        """A random value that TiDB would have stored in such a column."""
        return self.values(rng) if self.values else _VALUES[self.family](self, rng)

    @property
    def is_text(self) -> bool:
        return self.family == "text"

    def datum(self, value: Any) -> bytes:
        """The value as in a row."""
        return wire.NIL if value is None else _DATUM[self.family](self, value)

    def handle(self, value: Any, new_collation: bool) -> bytes:
        """The value as in the handle of an inserted row with a clustered key."""
        if self.is_text and new_collation:
            return wire.compact(self._sort_key(value))
        if self.family == "time":
            return b"\x07" + struct.pack(">Q", wire.nanoseconds(value) + (1 << 63))
        return self.datum(value)

    def _sort_key(self, value: bytes) -> bytes:
        """What TiDB makes of a text in keys; where that is of many tables, anything alike."""
        plain = value.rstrip(b" ")
        if self.collate.endswith("_bin"):
            return plain
        if plain.isascii() and self.collate.endswith("general_ci"):
            return b"".join(bytes((0, byte)) for byte in plain.upper())
        return repr(self.key(value, True)).encode()

    def restored(self, new_collation: bool) -> bool:
        """Whether a clustered key's column is in the row as well."""
        return (
            new_collation and self.is_text and not (self.collate.endswith("_bin") and self.tp != 15)
        )

    def key(self, value: Any, new_collation: bool, prefix: int = -1) -> Any:
        """Equal for values that a unique index upstream, of so many characters or bytes, holds for
        the same.
        """
        if value is not None and prefix > 0:
            value = value.decode()[:prefix].encode() if self.is_text else value[:prefix]
        if value is None or not self.is_text:
            return json.dumps(value) if self.family == "json" else value
        if not new_collation:
            return value
        value = value.rstrip(b" ")
        return value if self.collate.endswith("_bin") else value.decode("utf-8", "replace").upper()

    def literal(self, value: Any) -> str:
        """The value as TiDB's parser writes it into a statement."""
        if value is None:
            return "NULL"
        if self.family in ("int", "decimal", "double", "float"):
            return str(value)
        if self.family == "year":
            return f"'{value:04}'"
        if self.family == "bit":
            return f"b'{value:b}'"
        text = value.decode() if isinstance(value, bytes) else value
        return "_UTF8MB4'" + text.replace("\\", "\\\\").replace("'", "''") + "'"

    def default(self, value: Any) -> tuple[str | None, str | None]:
        """(default, default_bit) in TiDB's ColumnInfo."""
        if value is None:
            return None, None
        if self.family == "bit":
            raw = value.to_bytes((self.flen + 7) // 8, "big")
            return None, base64.b64encode(raw).decode()
        if isinstance(value, bytes):
            return value.decode(), None
        if self.family == "year":
            return f"{value:04}", None  # 0 would be 2000
        return (f"{value:.{self.decimal}f}" if self.family == "decimal" else str(value)), None

    def read(self, raw: bytes | None) -> Any:
        """The value from what a MySQL server sends as text.

        What it can't be stays bytes, and differs.
        """
        try:
            return None if raw is None else _READ[self.family](raw)
        except (ValueError, ArithmeticError, UnicodeDecodeError):
            return raw

    def shown(self, value: Any) -> Any:
        """A value of the model so that equal ones are equal: hashable."""
        if value is None:
            return None
        if self.family == "json":
            return json.dumps(value, sort_keys=True)
        if self.family == "decimal":
            return _exact(value)
        return value

    def type_info(self, flags: int) -> dict[str, Any]:
        """FieldType as JSON."""
        return {
            "Tp": self.tp,
            "Flag": self.flag | flags,
            "Flen": self.flen,
            "Decimal": self.decimal,
            "Charset": self.charset,
            "Collate": self.collate,
            "Elems": list(self.elems) or None,
            "ElemsIsBinaryLit": None,
            "Array": False,
        }


def _exact(value: Decimal) -> Decimal:
    return _EXACT.normalize(value) if value else Decimal(0)


def _integer(kind: Kind, rng: random.Random) -> int:
    bits = {1: 8, 2: 16, 9: 24, 3: 32, 8: 64}[kind.tp]
    low, high = (
        (0, (1 << bits) - 1) if kind.flag & UNSIGNED else (-(1 << bits - 1), (1 << bits - 1) - 1)
    )
    return rng.choice((rng.randint(0, 12), rng.randint(0, 12), low, high, max(low, -1)))


def _decimal(kind: Kind, rng: random.Random) -> Decimal:
    whole = kind.flen - kind.decimal
    top = 10**whole - 1
    number = rng.choice(
        (rng.randint(0, 9), top - rng.randint(0, 3), top - rng.randint(0, 9), -top, -1, 0)
    )
    return Decimal(
        f"{number}.{rng.randint(0, 10**kind.decimal - 1):0{kind.decimal}}"
        if kind.decimal
        else number
    )


def _text(kind: Kind, rng: random.Random) -> bytes:
    word = rng.choice(_WORDS) + (rng.choice(_WORDS) if rng.random() < 0.3 else b"")
    if kind.charset == "utf8mb4" and rng.random() < 0.2:
        word += rng.choice(_WIDE if kind.collate.endswith("_bin") else _CASELESS).encode()
    text = word.decode()[: kind.flen if kind.flen > 0 else 40]
    return (text.rstrip(" ") if kind.tp == 254 else text).encode()


def _bytes(kind: Kind, rng: random.Random) -> bytes:
    size = min(kind.flen if kind.flen > 0 else 12, 12)
    data = rng.choice(
        (rng.choice(_WORDS), rng.randbytes(rng.randint(0, size)), b"\xff\xfe", b"a\0")
    )[:size]
    return data.ljust(kind.flen, b"\0") if kind.tp == 254 else data


def _clock(kind: Kind, rng: random.Random) -> str:
    fraction = "." + "".join(rng.choice("059") for _ in range(kind.decimal)) if kind.decimal else ""
    return rng.choice(_CLOCKS) + fraction


_VALUES: dict[str, Callable[[Kind, random.Random], Any]] = {
    "int": _integer,
    "decimal": _decimal,
    "float": lambda k, r: r.choice(
        (0.0, 0.5, -1.25, 100.125, 3.0, struct.unpack("<f", struct.pack("<f", 1.1))[0])
    ),
    "double": lambda k, r: r.choice((0.0, 0.5, -1.25, 1.1, 1e10, 2.5e-7, 3.0)),
    "bit": lambda k, r: r.choice((0, 1, 39, (1 << k.flen) - 1)) & (1 << k.flen) - 1,
    "year": lambda k, r: r.choice((0, 1901, 2003, 2155)),
    "date": lambda k, r: r.choice(_DAYS),
    "datetime": lambda k, r: f"{r.choice(_DAYS)} {_clock(k, r)}",
    "timestamp": lambda k, r: f"{r.choice(_DAYS)} {_clock(k, r)}",
    "time": lambda k, r: (
        r.choice(("", "-"))
        + r.choice(("00:00:01", "11:59:59", "838:59:58", "01:02:03"))
        + ("." + "".join(r.choice("059") for _ in range(k.decimal)) if k.decimal else "")
    ),
    "text": _text,
    "bytes": _bytes,
    "enum": lambda k, r: r.choice(k.elems),
    "set": lambda k, r: ",".join(e for e in k.elems if r.random() < 0.5),
    "json": lambda k, r: r.choice(_DOCUMENTS),
}

_DATUM: dict[str, Callable[[Kind, Any], bytes]] = {
    "int": lambda k, v: wire.unsigned(v) if k.flag & UNSIGNED else wire.integer(v),
    "decimal": lambda k, v: wire.decimal(v, k.flen, k.decimal),
    "float": lambda k, v: wire.real(v),
    "double": lambda k, v: wire.real(v),
    "bit": lambda k, v: wire.unsigned(v),
    "year": lambda k, v: wire.integer(v),
    "date": lambda k, v: wire.unsigned(wire.packed_time(v)),
    "datetime": lambda k, v: wire.unsigned(wire.packed_time(v)),
    "timestamp": lambda k, v: wire.unsigned(wire.packed_time(v)),
    "time": lambda k, v: wire.integer(wire.nanoseconds(v)),
    "text": lambda k, v: wire.compact(v),
    "bytes": lambda k, v: wire.compact(v),
    "enum": lambda k, v: wire.unsigned(k.elems.index(v) + 1 if v else 0),
    "set": lambda k, v: wire.unsigned(sum(1 << k.elems.index(e) for e in v.split(",") if e)),
    "json": lambda k, v: wire.json_datum(v),
}

_READ: dict[str, Callable[[bytes], Any]] = {
    "int": int,
    "year": int,
    "decimal": lambda raw: _exact(Decimal(raw.decode())),
    "float": lambda raw: struct.unpack("<f", struct.pack("<f", float(raw)))[0],
    "double": float,
    "bit": lambda raw: int.from_bytes(raw, "big"),
    "text": bytes,
    "bytes": bytes,
    "json": lambda raw: json.dumps(json.loads(raw), sort_keys=True),
    **dict.fromkeys(("date", "datetime", "timestamp", "time", "enum", "set"), bytes.decode),
}


def _int(name: str, tp: int, flen: int, flag: int = 0) -> Kind:
    return Kind("int", name + (" UNSIGNED" if flag else ""), tp, flen, 0, flag | BINARY)


def varchar(size: int, charset: str = "utf8mb4", collate: str = "utf8mb4_bin") -> Kind:
    """VARCHAR(size)."""
    more = (
        ""
        if (charset, collate) == ("utf8mb4", "utf8mb4_bin")
        else f" CHARACTER SET {charset.upper()} COLLATE {collate}"
    )
    return Kind("text", f"VARCHAR({size}){more}", 15, size, 0, 0, charset, collate)


INT, BIGINT, UBIGINT = _int("INT", 3, 11), _int("BIGINT", 8, 20), _int("BIGINT", 8, 20, UNSIGNED)
DATE, DATETIME, YEAR = (
    Kind("date", "DATE", 10, 10, 0, BINARY),
    Kind("datetime", "DATETIME", 12, 19, 0, BINARY),
    Kind("year", "YEAR", 13, 4, 0, 224),
)
TIMESTAMP = Kind("timestamp", "TIMESTAMP", 7, 19, 0, BINARY)
FLOAT, DOUBLE = (
    Kind("float", "FLOAT", 4, 12, -1, BINARY),
    Kind("double", "DOUBLE", 5, 22, -1, BINARY),
)
JSON = Kind("json", "JSON", 0xF5, 4294967295, 0, BINARY)
TEXT = Kind("text", "TEXT", 0xFC, 65535, 0, 0, "utf8mb4", "utf8mb4_bin")
BLOB = Kind("bytes", "BLOB", 0xFC, 65535, 0, BINARY)
ENUM = Kind(
    "enum", "ENUM('a','b','it''s')", 0xF7, -1, 0, 0, "utf8mb4", "utf8mb4_bin", ("a", "b", "it's")
)
SET = Kind("set", "SET('p','q','r')", 0xF8, -1, 0, 0, "utf8mb4", "utf8mb4_bin", ("p", "q", "r"))
DIGITS = replace(varchar(30), values=lambda r: str(r.choice((0, 7, 42, -3, 2003))).encode())
DAYS = replace(varchar(30), values=lambda r: f"{r.choice(_DAYS)} {r.choice(_CLOCKS)}".encode())
DOCUMENTS = replace(TEXT, values=lambda r: json.dumps(r.choice(_DOCUMENTS)).encode())


SHOWN_DOUBLE = Kind(
    "double",
    "DOUBLE(12,3)",
    5,
    12,
    3,
    BINARY,
    values=lambda r: r.choice((-0.001, -0.29, -1.5, 0.25, 999999999.999)),
)


def _single(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _price(rng: random.Random) -> Decimal:
    return Decimal(rng.choice(("0.00", "12.50", "9999999999.99", "0.01")))


def decimal(precision: int, fraction: int) -> Kind:
    """DECIMAL(precision, fraction)."""
    return Kind("decimal", f"DECIMAL({precision},{fraction})", 0xF6, precision, fraction, BINARY)


KEYS = (
    INT,
    BIGINT,
    UBIGINT,
    decimal(20, 0),
    decimal(30, 10),
    varchar(20),
    varchar(20, "utf8mb4", "utf8mb4_general_ci"),
    DATETIME,
    DATE,
    Kind("bytes", "VARBINARY(12)", 15, 12, 0, BINARY),
    Kind("datetime", "DATETIME(3)", 12, 23, 3, BINARY),
    TIMESTAMP,
    _int("TINYINT", 1, 4),
    YEAR,
)
"""Types of key columns."""

PLAIN = (
    *KEYS,
    _int("SMALLINT", 2, 6),
    _int("MEDIUMINT", 9, 9),
    _int("INT", 3, 10, UNSIGNED),
    decimal(8, 3),
    decimal(65, 30),
    FLOAT,
    DOUBLE,
    TEXT,
    BLOB,
    ENUM,
    SET,
    JSON,
    Kind("bit", "BIT(6)", 16, 6, 0, UNSIGNED),
    Kind("bit", "BIT(40)", 16, 40, 0, UNSIGNED),
    Kind("timestamp", "TIMESTAMP(6)", 7, 26, 6, BINARY),
    Kind("time", "TIME", 11, 10, 0, BINARY),
    Kind("time", "TIME(6)", 11, 17, 6, BINARY),
    Kind("text", "CHAR(9)", 254, 9, 0, 0, "utf8mb4", "utf8mb4_bin"),
    Kind("bytes", "BINARY(5)", 254, 5, 0, BINARY),
    varchar(20, "latin1", "latin1_bin"),
    varchar(20, "ascii", "ascii_bin"),
    DIGITS,
    DAYS,
    DOCUMENTS,
    SHOWN_DOUBLE,
    Kind(
        "float",
        "FLOAT(7,2)",
        4,
        7,
        2,
        BINARY,
        values=lambda r: _single(r.choice((-0.29, -1.15, 0.5, 99999.99))),
    ),
    Kind("int", "INT(7) UNSIGNED ZEROFILL", 3, 7, 0, UNSIGNED | ZEROFILL | BINARY),
    Kind(
        "decimal",
        "DECIMAL(12,2) UNSIGNED ZEROFILL",
        0xF6,
        12,
        2,
        UNSIGNED | ZEROFILL | BINARY,
        values=_price,
    ),
    varchar(20, "utf8mb4", "utf8mb4_unicode_ci"),
    varchar(20, "gbk", "gbk_bin"),
    Kind("text", "TINYTEXT", 0xF9, 255, 0, 0, "utf8mb4", "utf8mb4_bin"),
    Kind("bytes", "LONGBLOB", 0xFB, 4294967295, 0, BINARY),
    Kind("time", "TIME(3)", 11, 14, 3, BINARY),
)
"""Types of all columns."""


def _text_of(value: Any) -> bytes:
    return str(value).encode()


CONVERSIONS: tuple[tuple[Callable[[Kind], bool], Kind, Callable[[Any], Any]], ...] = (
    (lambda k: k.family == "int", varchar(40), _text_of),
    (lambda k: k.family == "int", decimal(30, 2), lambda v: Decimal(f"{v}.00")),
    (lambda k: k.family == "int" and k.tp != 8, JSON, int),
    (lambda k: k is DIGITS, BIGINT, lambda v: int(v.decode())),
    (lambda k: k is DAYS, DATETIME, lambda v: v.decode()),
    (lambda k: k is DOCUMENTS, JSON, json.loads),
    (lambda k: k.family in ("date", "datetime", "timestamp", "time"), varchar(40), _text_of),
    (lambda k: k.family == "timestamp" and k.decimal == 0, DATETIME, str),
    (lambda k: k.family == "date", JSON, str),
    (lambda k: k.family == "date", DATETIME, lambda v: v + " 00:00:00"),
    (lambda k: k.family == "year", varchar(10), _text_of),
    (lambda k: k.family == "bit", BLOB, _text_of),
    (lambda k: k.family == "enum", varchar(20), _text_of),
    (lambda k: k.family in ("set", "enum"), JSON, json.loads),
    (lambda k: k.family == "decimal", varchar(90), lambda v: str(v).encode()),
    (lambda k: k is SHOWN_DOUBLE, varchar(40), lambda v: str(v).encode()),
    (lambda k: k is SHOWN_DOUBLE, decimal(30, 5), lambda v: Decimal(f"{v:.3f}00")),
    (lambda k: k.family == "bit" and k.flen < 64, BIGINT, int),
    (lambda k: k is ENUM, INT, lambda v: ENUM.elems.index(v) + 1),
    (lambda k: k is SET, BIGINT, lambda v: sum(1 << SET.elems.index(e) for e in v.split(",") if e)),
    (lambda k: k.family == "date", BIGINT, lambda v: int(v.replace("-", ""))),
    (lambda k: k is DATETIME, BIGINT, lambda v: int("".join(c for c in v if c.isdigit()))),
    (lambda k: k.family == "time" and k.decimal == 0, INT, lambda v: int(v.replace(":", ""))),
    (
        lambda k: k is JSON,
        TEXT,
        lambda v: json.dumps(v, ensure_ascii=False, sort_keys=True).encode(),
    ),
    (lambda k: k is DATE, YEAR, lambda v: int(v[:4])),
)
"""Changes of a column's type that TiDB does by writing every row anew: which types, to which, and
the new value. Only such whose result was seen in recordings of a real TiDB or follows from its
documentation beyond doubt.
"""

CONVERTIBLE = tuple(kind for kind in PLAIN if any(suits(kind) for suits, _, _ in CONVERSIONS))
"""Types that `CONVERSIONS` has something for."""
