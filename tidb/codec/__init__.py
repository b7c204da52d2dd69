"""TiDB's value formats, one module a format, encode and decode side by side."""

from sluice.tidb.codec.datum import Datum, decode_datum, encode_datum, skip_datum
from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.memcomparable import (
    decode_bytes,
    decode_int,
    decode_uint,
    encode_bytes,
    encode_int,
    encode_uint,
)

__all__ = [
    "CodecError",
    "Datum",
    "decode_bytes",
    "decode_datum",
    "decode_int",
    "decode_uint",
    "encode_bytes",
    "encode_datum",
    "encode_int",
    "encode_uint",
    "skip_datum",
]
