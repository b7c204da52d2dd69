"""Byte strings in TiDB's order-preserving form, used in TiKV keys and in PD's region bounds.

Layout: groups of 9 bytes, 8 of data (zero padded) and a marker `0xFF - padding`. After a marker
0xFF another group follows; the last group always has 1 to 8 bytes of padding, so a length divisible
by 8 ends with a group of zeros and marker 0xF7. Encoded length: `(len // 8 + 1) * 9`. Integers are
8 bytes big-endian, signed ones with the sign bit flipped.
"""

import struct

from sluice.tidb.codec.errors import CodecError

_GROUP = 8
_SIGN = 1 << 63
_MASK = (1 << 64) - 1


def encode_bytes(data: bytes) -> bytes:
    """Encode `data` in groups of 8 with markers; the result compares bytewise as `data` does."""
    out = bytearray()
    for start in range(0, len(data) + 1, _GROUP):
        group = data[start : start + _GROUP]
        padding = _GROUP - len(group)
        out += group
        out += bytes(padding)
        out.append(0xFF - padding)
    return bytes(out)


def decode_bytes(data: bytes | memoryview, pos: int = 0) -> tuple[bytes, int]:
    """Read one encoded byte string at `pos`; returns `(bytes, position after the last group)`.

    Raises CodecError on a short group, a marker below 0xF7 or padding that isn't zero.
    """
    out = bytearray()
    while True:
        group = bytes(data[pos : pos + _GROUP + 1])
        if len(group) < _GROUP + 1:
            raise CodecError(f"memcomparable group has {len(group)} bytes, not 9", pos)
        padding = 0xFF - group[_GROUP]
        if padding > _GROUP:
            raise CodecError(
                f"memcomparable marker is 0x{group[_GROUP]:02x}, below 0xf7", pos + _GROUP
            )
        pos += _GROUP + 1
        out += group[: _GROUP - padding]
        if padding:
            if any(group[_GROUP - padding : _GROUP]):
                raise CodecError("memcomparable padding isn't zero", pos - 1 - padding)
            return bytes(out), pos


def encode_int(value: int) -> bytes:
    """Encode a signed 64-bit integer as 8 bytes that compare bytewise in numeric order."""
    if not -_SIGN <= value < _SIGN:
        raise CodecError(f"{value} doesn't fit a signed 64-bit integer")
    return struct.pack(">Q", (value + _SIGN) & _MASK)


def decode_int(data: bytes | memoryview, pos: int = 0) -> tuple[int, int]:
    """Read a signed integer written by `encode_int`; returns `(value, position after it)`."""
    value, pos = decode_uint(data, pos)
    return value - _SIGN, pos


def encode_uint(value: int) -> bytes:
    """Encode an unsigned 64-bit integer as 8 bytes big-endian."""
    if not 0 <= value <= _MASK:
        raise CodecError(f"{value} doesn't fit an unsigned 64-bit integer")
    return struct.pack(">Q", value)


def decode_uint(data: bytes | memoryview, pos: int = 0) -> tuple[int, int]:
    """Read 8 bytes big-endian at `pos`; returns `(value, position after them)`."""
    if len(data) < pos + 8:
        raise CodecError(f"integer needs 8 bytes, {max(0, len(data) - pos)} are left", pos)
    return struct.unpack_from(">Q", data, pos)[0], pos + 8
