"""The cluster's collation framework, from the variable that TiDB keeps in `mysql.tidb`."""

from __future__ import annotations

from sluice.tidb.codec.errors import CodecError
from sluice.tidb.codec.memcomparable import decode_bytes
from sluice.tidb.tikv.client import TiKVClient

_VARIABLE = b"new_collation_enabled"
_SIGN = 1 << 63


def read_new_collations(tikv: TiKVClient, table_id: int, ts: int) -> bool | None:
    """Return whether the cluster has new collations, from the rows of `mysql.tidb` as of a TSO.

    None if the table is empty, as no cluster's is. Raises TiKVError. Rows lie at ``t<table
    id>_r<handle>``; their values hold texts as they are.
    """
    prefix = b"t" + ((table_id + _SIGN) % 2**64).to_bytes(8, "big") + b"_r"
    known = None
    for key, value in tikv.scan(prefix, prefix + b"\xff", ts):
        known = False if known is None else known
        if _VARIABLE in value or _handle_text(key[len(prefix) :]) == _VARIABLE:
            return b"True" in value
    return known


def _handle_text(handle: bytes) -> bytes:
    """Return the text of a clustered key; b"" for a number."""
    if handle[:1] != b"\x01":
        return b""
    try:
        return decode_bytes(handle, 1)[0]
    except CodecError:
        return b""
