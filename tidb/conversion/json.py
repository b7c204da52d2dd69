"""JSON by TiDB's rules, from the text that it prints."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from sluice.tidb.codec.binary_json import decode_json, encode_json, quote
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.float import format_double
from sluice.tidb.conversion import numbers
from sluice.tidb.conversion.context import ConversionSession, NotConvertible, ValueOutOfRange
from sluice.tidb.conversion.numbers import MAX_INT, MAX_UINT, MIN_INT

_EXACT_INTEGERS = 1 << 53
_NO_UTF8 = re.compile("[\udc80-\udcff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DEPTH = 100
_TYPED = re.compile(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d\.\d{6})?\Z|-?\d{2,3}:\d\d:\d\d\.\d{6}\Z")


class AmbiguousNumber(float):
    """A number with a text that an integer and a double share, which differ."""

    text: str


def read(text: str) -> Any:
    """Parse a document; numbers without point and exponent are integers if they have 64 bits."""
    return json.loads(text, parse_int=_integer)


def _integer(text: str) -> int | float:
    number = int(text)
    if not MIN_INT <= number <= MAX_UINT:
        return float(text)
    if (
        abs(number) >= _EXACT_INTEGERS
        and format_double(float(number)) == text
        and int(float(number)) != number
    ):
        found = AmbiguousNumber(float(number))
        found.text = text
        return found
    return number


def write(value: Any) -> str:
    """Format a string, an integer or a double as TiDB prints it in JSON."""
    if isinstance(value, float):
        return format_double(value)
    return quote(value) if isinstance(value, str) else str(value)


def write_bytes(text: bytes) -> str:
    """Format a string as TiDB prints it in JSON.

    Bytes that aren't UTF-8 become a replacement character's escape.
    """
    return _NO_UTF8.sub(r"\\ufffd", quote(text.decode("utf-8", "surrogateescape")))


def parse_text(text: bytes, session: ConversionSession) -> str:
    """Read a JSON text, and return it as TiDB prints it.

    Raises ValueOutOfRange with NULL, NotConvertible.
    """
    try:
        document = _whole_characters(
            json.loads(text.decode("utf-8", "surrogateescape"), parse_constant=_no_constant)
        )
        shown = decode_json(encode_json(json.dumps(document)))[0]
        deep = _depth(document) > _MAX_DEPTH
    except (CodecError, ValueError) as error:
        raise ValueOutOfRange(None, "no JSON") from error
    except RecursionError as error:
        raise NotConvertible("JSON that is nested so deep") from error
    if deep and not session.strict:
        raise NotConvertible(
            f"JSON that is nested deeper than {_MAX_DEPTH}: versions of TiDB read it, or don't"
        )
    return shown


def _whole_characters(value: Any) -> Any:
    """Put a replacement character in place of each byte that isn't UTF-8, as Go does.

    Half a pair of surrogates is replaced, too.
    """
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {_whole_characters(key): _whole_characters(item) for key, item in value.items()}
    return value


def _depth(value: Any) -> int:
    if not isinstance(value, (list, dict)):
        return 0
    return 1 + max(
        (_depth(item) for item in (value.values() if isinstance(value, dict) else value)), default=0
    )


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def unquoted(value: Any, text: str, session: ConversionSession) -> bytes:
    """Return a string without its quotes, anything else as its text. Raises NotConvertible."""
    if isinstance(value, str):
        if not session.strict:  # which takes only what is a date as a string
            _refuse_typed(value)
        if len(value) > 1 and value[0] == value[-1] == '"':
            raise NotConvertible(
                "a JSON string with quotes of its own around it, which TiDB may take for its own"
            )
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else text.encode()


def to_int(value: Any, low: int, high: int) -> int:
    """Return a document as an integer of a type.

    Strings are read as integers of 64 bits, whatever the type: what TiDB then stores may be beyond
    it. Raises ValueOutOfRange, NotConvertible.
    """
    _refuse_ambiguous(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return numbers.clip(value, low, high)
    if isinstance(value, float):
        return numbers.float_to_int(value, low, high)
    if isinstance(value, str):
        _refuse_typed(value)
        raw = value.encode("utf-8", "surrogateescape")
        return _stored(raw, low, high)
    raise ValueOutOfRange(0, "no number")


def _stored(raw: bytes, low: int, high: int) -> int:
    misfit = None
    value: object
    negative = len(raw) > 1 and raw[:1] == b"-"
    try:
        value = numbers.text_to_int(raw, unsigned=not negative)
    except ValueOutOfRange as found:
        misfit, value = found, found.replacement
        if value is None:
            value = MAX_UINT
    assert isinstance(value, int)
    # 64 bits, taken for signed or unsigned as the column is
    value = value & MAX_UINT if low == 0 else (value + MAX_INT + 1 & MAX_UINT) - MAX_INT - 1
    if not low <= value <= high:
        raise NotConvertible(f"TiDB stored {value}, which is beyond the type's range")
    if misfit is not None:
        raise ValueOutOfRange(value, str(misfit))
    return value


def to_float(value: Any) -> float:
    """Return a document as a float. Raises ValueOutOfRange, NotConvertible."""
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, str):
        _refuse_typed(value)
        return numbers.text_to_float(value.encode("utf-8", "surrogateescape"))
    raise ValueOutOfRange(0.0, "no number")


def to_decimal(value: Any) -> Decimal:
    """Return a document as a decimal. Raises ValueOutOfRange, NotConvertible."""
    _refuse_ambiguous(value)
    if isinstance(value, (bool, int)):
        return Decimal(int(value))
    if isinstance(value, float):
        return numbers.EXACT.create_decimal(repr(value))
    if isinstance(value, str):
        _refuse_typed(value)
        return numbers.text_to_decimal(value.encode("utf-8", "surrogateescape"))
    raise ValueOutOfRange(Decimal(0), "no number")


def _refuse_ambiguous(value: Any) -> None:
    if isinstance(value, AmbiguousNumber):
        raise NotConvertible(
            f"{value.text} may be an integer or a double; their last digits differ, and the text"
            " doesn't show which"
        )


def _refuse_typed(value: str) -> None:
    if _TYPED.match(value):
        raise NotConvertible(
            "it may be a string or a date or time in JSON, which the text doesn't show"
        )
