"""Numbers by TiDB's rules: rounding, bounds, and what it reads out of text."""

from __future__ import annotations

import math
import re
import struct
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext

from sluice.tidb import column_types
from sluice.tidb.conversion.context import NotConvertible, ValueOutOfRange

_BITS = {
    column_types.TINYINT: 8,
    column_types.SMALLINT: 16,
    column_types.MEDIUMINT: 24,
    column_types.INT: 32,
    column_types.BIGINT: 64,
}
_WORD, _WORDS = 9, 9  # digits of a decimal's word, words of a decimal
_FLOAT = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_DECIMAL = re.compile(rb"[+-]?(\d*)(?:\.(\d*))?")
_EXPONENT = re.compile(rb"[+-]?\d+")
_BLANK = (
    " \t\n\v\f\r\x85\xa0\u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
_SIGN_SECOND = re.compile(rb"\d[+-]\d")
MAX_FLOAT32 = 3.4028234663852885981170418348451692544e38
MAX_INT, MIN_INT, MAX_UINT = (1 << 63) - 1, -(1 << 63), (1 << 64) - 1
OUT_OF_RANGE = "out of range"
"""The message of `text_to_int` for more than 64 bits."""
EXACT = Context(prec=400, Emax=999_999, Emin=-999_999)


def bounds(tp: int, *, unsigned: bool) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type, by TiDB's type number.

    64 bits for any other type.
    """
    bits = _BITS.get(tp, 64)
    return (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)


def clip(value: int, low: int, high: int) -> int:
    """Return `value` within the bounds. Raises ValueOutOfRange with the nearer one."""
    if low <= value <= high:
        return value
    raise ValueOutOfRange(low if value < low else high, f"out of range {low} to {high}")


def round_even(value: float) -> float:
    """Round to the nearest integer, halves to the even one."""
    return value if math.isinf(value) else float(round(value))


def float_to_int(value: float, low: int, high: int) -> int:
    """Convert a finite float to an integer of a type, halves to the even one.

    Raises ValueOutOfRange; NotConvertible where TiDB stores 64 bits in a smaller unsigned type.
    """
    number = round(value)
    if low == 0 and number >= high and high != MAX_UINT:
        raise NotConvertible(f"TiDB stored {MAX_UINT}, which is beyond the type's range")
    return high if float(number) == float(high) else clip(number, low, high)


def decimal_to_int(value: Decimal, low: int, high: int) -> int:
    """Convert a decimal to an integer of a type, halves away from zero.

    Raises ValueOutOfRange. Raises NotConvertible for a decimal that is rounded up and too large for
    an unsigned type: older versions of TiDB store one less than the greatest value.
    """
    number = int(value.to_integral_value(ROUND_HALF_UP, EXACT))
    if low == 0 and number > high and number > value:
        raise NotConvertible("versions of TiDB cut off a decimal that is rounded up differently")
    return clip(number, low, high)


def trim(text: bytes) -> bytes:
    """Strip the white space around a text, that of Unicode included."""
    return text.decode("utf-8", "surrogateescape").strip(_BLANK).encode("utf-8", "surrogateescape")


def float_prefix(text: bytes) -> tuple[bytes, bool]:
    """Return the number at the beginning of `text`, and whether that is all of it.

    Blanks around it don't count. The number is "0" if there is none.
    """
    text = trim(text)
    if _SIGN_SECOND.match(text):
        raise NotConvertible("versions of TiDB read a sign behind the first digit differently")
    match = _FLOAT.match(text)
    if match is None:
        return b"0", False
    rest = text[match.end() :]
    return match[0], not rest or rest[:1] == b"\0" or (
        rest in (b"e", b"E") and b"e" not in match[0].lower()
    )


def text_to_int(text: bytes, *, unsigned: bool = False) -> int:
    """Return the integer of 64 bits at the beginning of `text`, rounded half up.

    Raises ValueOutOfRange when there is more, or it is out of range: TiDB then stores the nearer
    bound, for unsigned types NULL.
    """
    low, high = (0, MAX_UINT) if unsigned else (MIN_INT, MAX_INT)
    number, whole = float_prefix(text)
    mantissa, _, exponent = number.lower().partition(b"e")
    if exponent and int(exponent) >= 0 and len(mantissa.partition(b".")[0]) + int(exponent) > 21:
        raise NotConvertible("versions of TiDB read integers with such an exponent differently")
    if unsigned and number.startswith(b"-") and not number.strip(b"-0"):
        raise NotConvertible("versions of TiDB read -0 differently")
    shift = int(exponent or b"0")
    value = (
        0
        if shift < -400
        else int(EXACT.create_decimal(number.decode()).to_integral_value(ROUND_HALF_UP, EXACT))
    )
    if not low <= value <= high:
        raise ValueOutOfRange(None if unsigned else low if value < low else high, OUT_OF_RANGE)
    if not whole:
        raise ValueOutOfRange(value, "not a number to its end")
    return value


def text_to_float(text: bytes) -> float:
    """Return the number at the beginning of `text`.

    Raises ValueOutOfRange when there is more, or it is beyond a double.
    """
    number, whole = float_prefix(text)
    value = float(number)
    if math.isinf(value):
        raise ValueOutOfRange(math.copysign(1.7976931348623157e308, value), "out of range")
    if not whole:
        raise ValueOutOfRange(value, "not a number to its end")
    return value


def text_to_decimal(text: bytes) -> Decimal:
    """Return the decimal at the beginning of `text`; what follows is ignored silently.

    Raises ValueOutOfRange when there is none.
    """
    text = text.lstrip(b" \t")
    match = _DECIMAL.match(text)
    whole, fraction = (match[1], match[2] or b"") if match else (b"", b"")
    if match is None or not whole + fraction:
        raise ValueOutOfRange(Decimal(0), "no number")
    sign = "-" if text.startswith(b"-") else ""
    words = -(-len(whole) // _WORD)
    if words > _WORDS or words - (-len(fraction) // _WORD) > _WORDS:
        raise NotConvertible("a decimal of more digits than TiDB's numbers have")
    value = EXACT.create_decimal(f"{sign}{whole.decode() or '0'}.{fraction.decode()}")
    rest = text[match.end() :]
    return value if rest[:1] not in (b"e", b"E") else _shifted(value, trim(rest[1:]))


def _shifted(value: Decimal, exponent: bytes) -> Decimal:
    match = _EXPONENT.match(exponent)
    if match is None:
        raise ValueOutOfRange(value, "an exponent without digits")
    shift = int(match[0])
    if value and value.adjusted() + shift >= _WORD * _WORDS:
        raise ValueOutOfRange(Decimal(10).scaleb(_WORD * _WORDS).copy_sign(value), "too large")
    if not value or value.adjusted() + shift < -_WORD * _WORDS:
        return Decimal(0)
    result = value.scaleb(shift, EXACT)
    if match.end() != len(exponent):
        raise ValueOutOfRange(result, "an exponent with something behind it")
    return result


def fit_decimal(value: Decimal, flen: int, decimal: int, *, unsigned: bool) -> str:
    """Return `value` as the text of a DECIMAL(flen, decimal), rounded half up.

    Raises ValueOutOfRange with the greatest or the least.
    """
    with localcontext(EXACT):
        number = value.quantize(Decimal(1).scaleb(-decimal), ROUND_HALF_UP)
        most = (Decimal(10) ** flen - 1).scaleb(-decimal)
        if abs(number) > most:
            limit = most.copy_sign(number)
            raise ValueOutOfRange(
                f"{Decimal(0) if unsigned and limit < 0 else limit:.{decimal}f}", "out of range"
            )
        if unsigned and number < 0:
            raise ValueOutOfRange(f"{Decimal(0):.{decimal}f}", "negative")
        return f"{number if number else abs(number):.{decimal}f}"


def fit_float(value: float, flen: int, decimal: int, *, unsigned: bool, single: bool) -> float:
    """Return `value` as a FLOAT (`single`) or DOUBLE, with (flen, decimal) if neither is -1.

    Raises ValueOutOfRange.
    """
    misfit = ""
    if flen != -1 and decimal != -1:
        shift = float(f"1e{decimal}")
        moved = value * shift
        if not math.isinf(moved):
            value = round_even(moved) / shift
        most = float(f"1e{flen - decimal}") - float(f"1e{-decimal}")
        if abs(value) > most:
            value, misfit = math.copysign(most, value), "out of range"
    if unsigned and value < 0:
        raise ValueOutOfRange(0.0, "negative")
    if single:
        if abs(value) > MAX_FLOAT32:
            raise ValueOutOfRange(math.copysign(MAX_FLOAT32, value), "out of range")
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    if misfit:
        raise ValueOutOfRange(value, misfit)
    return value + 0.0
