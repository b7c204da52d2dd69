"""LEB128 integers as TiDB's codec writes them.

Layout of `uvarint`: 7 bits a byte, least significant first, the high bit means that more follow; at
most 10 bytes, and the 10th may only be 0 or 1. `varint` is `uvarint` of the zigzag form `(value <<
1) ^ (value >> 63)`.
"""

from sluice.tidb.codec.errors import CodecError

_MASK = (1 << 64) - 1


def encode_uvarint(value: int) -> bytes:
    """Encode `value` (0 .. 2^64-1) as LEB128, 1 to 10 bytes."""
    if not 0 <= value <= _MASK:
        raise CodecError(f"{value} doesn't fit an unsigned 64-bit integer")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_uvarint(data: bytes | memoryview, pos: int = 0) -> tuple[int, int]:
    """Read an unsigned LEB128 integer at `pos`; returns `(value, position after it)`.

    Raises CodecError when the input ends inside the number or the number needs more than 64 bits.
    """
    value = 0
    for i in range(10):
        if pos + i >= len(data):
            raise CodecError("unfinished varint", pos)
        byte = data[pos + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if value > _MASK:
                break
            return value, pos + i + 1
    raise CodecError("varint needs more than 64 bits", pos)


def encode_varint(value: int) -> bytes:
    """Encode `value` (-2^63 .. 2^63-1) as zigzag LEB128, 1 to 10 bytes."""
    if not -(1 << 63) <= value < 1 << 63:
        raise CodecError(f"{value} doesn't fit a signed 64-bit integer")
    return encode_uvarint((value << 1 ^ value >> 63) & _MASK)


def decode_varint(data: bytes | memoryview, pos: int = 0) -> tuple[int, int]:
    """Read a zigzag LEB128 integer at `pos`.

    Returns `(value, position after it)`; errors as `decode_uvarint`.
    """
    raw, pos = decode_uvarint(data, pos)
    return raw >> 1 ^ -(raw & 1), pos
