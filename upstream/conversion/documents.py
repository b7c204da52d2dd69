"""JSON by TiDB's rules, from the text that it prints."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from upstream.codec.binary_json import decode_json, encode_json, quote
from upstream.codec.errors import CodecError
from upstream.codec.float import format_double
from upstream.conversion import numbers
from upstream.conversion.context import MisfitError, RefusedError
from upstream.conversion.numbers import MAX_INT, MAX_UINT, MIN_INT

_EXACT_INTEGERS = 1 << 53
_NO_UTF8 = re.compile("[\udc80-\udcff]")


class Ambiguous(float):
    """A number whose text is that of an integer and of a double, which differ."""

    text: str


def read(text: str) -> Any:
    """The document; numbers without point and exponent are integers if they have 64 bits."""
    return json.loads(text, parse_int=_integer)


def _integer(text: str) -> int | float:
    number = int(text)
    if not MIN_INT <= number <= MAX_UINT:
        return float(text)
    if abs(number) >= _EXACT_INTEGERS and format_double(float(number)) == text and int(float(number)) != number:
        found = Ambiguous(float(number))
        found.text = text
        return found
    return number


def write(value: Any) -> str:
    """A string, an integer or a double as TiDB prints it in JSON."""
    if isinstance(value, float):
        return format_double(value)
    return quote(value) if isinstance(value, str) else str(value)


def write_bytes(text: bytes) -> str:
    """A string as TiDB prints it in JSON; what isn't utf-8 is shown as a replacement character's escape."""
    return _NO_UTF8.sub(r"\\ufffd", quote(text.decode("utf-8", "surrogateescape")))


def parse_text(text: bytes) -> str:
    """JSON text as TiDB prints it after having read it. Raises MisfitError with NULL."""
    try:
        decoded = text.decode()
        json.loads(decoded, parse_constant=_no_constant)
        return decode_json(encode_json(decoded))[0]
    except (CodecError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise MisfitError(None, "no JSON") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def unquoted(value: Any, text: str) -> bytes:
    """A string without its quotes, anything else as its text."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else text.encode()


def to_int(value: Any, low: int, high: int) -> int:
    """An integer of a type. Strings are read as integers of 64 bits, whatever the type: what TiDB then stores may be
    beyond it. Raises MisfitError, RefusedError.
    """
    _refuse_ambiguous(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return numbers.clip(value, low, high)
    if isinstance(value, float):
        return numbers.float_to_int(value, low, high)
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        return _stored(raw, low, high)
    raise MisfitError(0, "no number")


def _stored(raw: bytes, low: int, high: int) -> int:
    misfit = None
    value: object
    negative = len(raw) > 1 and raw[:1] == b"-"
    try:
        value = numbers.text_to_int(raw, unsigned=not negative)
    except MisfitError as found:
        misfit, value = found, found.instead
        if value is None:
            value = MAX_UINT
    assert isinstance(value, int)
    # 64 bits, taken for signed or unsigned as the column is
    value = value & MAX_UINT if low == 0 else (value + MAX_INT + 1 & MAX_UINT) - MAX_INT - 1
    if not low <= value <= high:
        raise RefusedError(f"TiDB stored {value}, which is beyond the type's range")
    if misfit is not None:
        raise MisfitError(value, str(misfit))
    return value


def to_float(value: Any) -> float:
    """Raises MisfitError."""
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, str):
        return numbers.text_to_float(value.encode("utf-8", "surrogateescape"))
    raise MisfitError(0.0, "no number")


def to_decimal(value: Any) -> Decimal:
    """Raises MisfitError, RefusedError."""
    _refuse_ambiguous(value)
    if isinstance(value, (bool, int)):
        return Decimal(int(value))
    if isinstance(value, float):
        return numbers.EXACT.create_decimal(repr(value))
    if isinstance(value, str):
        return numbers.text_to_decimal(value.encode("utf-8", "surrogateescape"))
    raise MisfitError(Decimal(0), "no number")


def _refuse_ambiguous(value: Any) -> None:
    if isinstance(value, Ambiguous):
        raise RefusedError(
            f"{value.text} may be an integer or a double; their last digits differ, and the text doesn't tell"
        )
