"""Floating point numbers: TiDB's order-preserving double, and the shortest decimal text.

Layout: 8 bytes big-endian. IEEE-754 bits with the top bit set for values >= 0, all bits inverted
for negative ones. -0.0 is stored as +0.0. FLOAT columns hold the double of their float32 value.
"""

import struct

from sluice.tidb.codec.errors import CodecError

_SIGN = 1 << 63
_MASK = (1 << 64) - 1


def encode_float(value: float) -> bytes:
    """Encode `value` as 8 bytes that compare bytewise in numeric order."""
    bits: int = struct.unpack(">Q", struct.pack(">d", value if value else 0.0))[0]
    return struct.pack(">Q", bits | _SIGN if value >= 0 else ~bits & _MASK)


def decode_float(data: bytes | memoryview, pos: int = 0) -> tuple[float, int]:
    """Read 8 bytes at `pos`; returns `(value, position after them)`."""
    if len(data) < pos + 8:
        raise CodecError(f"float needs 8 bytes, {max(0, len(data) - pos)} are left", pos)
    bits: int = struct.unpack_from(">Q", data, pos)[0]
    bits = bits ^ _SIGN if bits & _SIGN else ~bits & _MASK
    value: float = struct.unpack(">d", struct.pack(">Q", bits))[0]
    return value, pos + 8


def format_double(value: float) -> str:
    """Return the shortest text that reads back as `value`, as TiDB prints numbers inside JSON.

    It is plain digits for 1e-6 <= |x| < 1e21 (integers without `.0`), else `d.ddde-7` or
    `d.ddde+21` with an exponent that isn't padded.
    """
    text = repr(value)
    if "e" not in text:  # also "inf" and "nan"
        return text.removesuffix(".0")
    mantissa, _, exponent = text.partition("e")
    sign, digits = ("-", mantissa[1:]) if mantissa[0] == "-" else ("", mantissa)
    whole, _, fraction = digits.partition(".")
    point = len(whole) + int(exponent or 0)
    digits = whole + fraction
    point -= len(digits) - len(digits.lstrip("0"))
    digits = digits.strip("0")
    if not 1e-6 <= abs(value) < 1e21:
        tail = "." + digits[1:] if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{point - 1:+d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return sign + digits + "0" * (point - len(digits))
    return f"{sign}{digits[:point]}.{digits[point:]}"


def format_float(value: float) -> str:
    """Format a FLOAT as TiDB sends it in result sets, so as dumps and comparisons see it.

    It is the shortest float32 text, but only 6 significant digits below 1e-15 and from 1e15 on
    (`3.40282e38`). Rows hold the exact float32.
    """
    import numpy as np  # which takes 0.1 s, and few who import this module need it

    number = np.float32(value)
    if not np.isfinite(number):
        return "0"
    if number and not 1e-15 <= abs(number) < 1e15:
        mantissa, exponent = f"{number:.5e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    text = np.format_float_positional(number, unique=True, trim="-")
    return "0" if text == "-0" else text
