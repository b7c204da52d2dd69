"""The few SQL functions that readers of a TiDB, and generated columns of the recordings, use.

NULL in, NULL out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np

from sluice.devstack.tidb.sql.values import as_number, number_text
from sluice.tidb.tso import physical_ms

_DAYS_BEFORE_ONE = 365  # TO_DAYS('0001-01-01') is 366, date.toordinal() of it 1


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else number_text(value)


def _joined_text(value: Any) -> bytes:
    """Return a value among texts that are put together.

    Bytes are as they are, a DOUBLE never has an exponent.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        return str(np.format_float_positional(value, unique=True, trim="-")).encode()
    return _text(value).encode("utf-8", "surrogateescape")


def _concat_ws(separator: Any, *parts: Any) -> bytes | None:
    """Join the parts but NULLs."""
    if separator is None:
        return None
    return _joined_text(separator).join(_joined_text(part) for part in parts if part is not None)


def _part(value: Any, start: int, count: int) -> str | bytes:
    """Return some characters of a text, from the `start`th (0 is the first) on."""
    if isinstance(value, bytes):
        text = value.decode("utf-8", "surrogateescape")
        return text[start : start + count].encode("utf-8", "surrogateescape")
    return _text(value)[start : start + count]


def _left(value: Any, count: Any) -> str | bytes:
    return _part(value, 0, max(int(as_number(count)), 0))


def _right(value: Any, count: Any) -> str | bytes:
    wanted = min(max(int(as_number(count)), 0), len(_text(value)))
    return _part(value, len(_text(value)) - wanted, wanted)


def _substring(value: Any, position: Any, *count: Any) -> str | bytes:
    size, start = len(_text(value)), int(as_number(position))
    start = start - 1 if start > 0 else size + start if start else size
    wanted = int(as_number(count[0])) if count else size
    return _part(value, start, max(wanted, 0)) if start >= 0 else ""


def _decimal(value: Any, precision: Any, scale: Any = 0) -> Decimal:
    """Round half away from zero; a number that is too large is not known here."""
    found = Decimal(as_number(value)).quantize(Decimal(1).scaleb(-int(scale)), ROUND_HALF_UP)
    assert found.adjusted() < int(precision) - int(scale) or not found, (value, precision, scale)
    return found


def _conv(value: Any, base: Any, to_base: Any) -> str:
    """Convert a number from one base into another, as 64 bits without a sign."""
    digits = np.base_repr(int(_text(value), int(base)) & (1 << 64) - 1, int(to_base))
    return str(digits)


def _sha2(value: Any, bits: Any) -> str:
    return hashlib.new(f"sha{int(as_number(bits)) or 256}", _joined_text(value)).hexdigest()


def _strict(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: None if None in arguments else function(*arguments)


def _hex(value: Any) -> str:
    if isinstance(value, int):
        return f"{value & (1 << 64) - 1:X}"
    return (value if isinstance(value, bytes) else _text(value).encode()).hex().upper()


def _parse_tso(tso: Any) -> str:
    moment = datetime.fromtimestamp(physical_ms(int(as_number(tso))) / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "CONCAT": _strict(lambda *parts: "".join(map(_text, parts))),
    "CONCAT_WS": _concat_ws,
    "LEFT": _strict(_left),
    "RIGHT": _strict(_right),
    "SUBSTRING": _strict(_substring),
    "RTRIM": _strict(lambda v: v.rstrip(b" ") if isinstance(v, bytes) else _text(v).rstrip(" ")),
    "CONV": _strict(_conv),
    "SHA2": _strict(_sha2),
    "CONVERT_UTF8MB4": _strict(_text),
    "UPPER": _strict(lambda v: _text(v).upper()),
    "LOWER": _strict(lambda v: _text(v).lower()),
    "HEX": _strict(_hex),
    "LENGTH": _strict(lambda v: len(v) if isinstance(v, bytes) else len(_text(v).encode())),
    "YEAR": _strict(lambda v: int(_text(v)[:4])),
    "MONTH": _strict(lambda v: int(_text(v)[5:7])),
    "DAY": _strict(lambda v: int(_text(v)[8:10])),
    "HOUR": _strict(lambda v: int(_text(v).split(" ")[-1].split(":")[0])),
    "DATE": _strict(lambda v: _text(v)[:10]),
    "TO_DAYS": _strict(
        lambda v: datetime.fromisoformat(_text(v)[:10]).toordinal() + _DAYS_BEFORE_ONE
    ),
    "ABS": _strict(lambda v: abs(as_number(v))),
    "MOD": _strict(lambda a, b: as_number(a) % as_number(b) if as_number(b) else None),
    "COALESCE": lambda *items: next((item for item in items if item is not None), None),
    "IFNULL": lambda a, b: b if a is None else a,
    "TIDB_PARSE_TSO": _strict(_parse_tso),
    "CAST_CHAR": _strict(_text),
    "CAST_BINARY": _strict(lambda v: v if isinstance(v, bytes) else _text(v).encode()),
    "CAST_DECIMAL": _strict(_decimal),
    "CAST_SIGNED": _strict(lambda v: int(_decimal(v, 20))),
    "CAST_UNSIGNED": _strict(lambda v: int(as_number(v)) & (1 << 64) - 1),
}
