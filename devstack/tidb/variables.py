"""The rows of `mysql.tidb` in the stand-in TiKV: what a cluster was bootstrapped with.

Recordings don't hold them.

A row's value: 0x80, a flag byte (0: small), u16 number of values, u16 number of NULLs, a byte for
each column id, u16 where each value ends, the values; all little-endian (pingcap/tidb,
util/rowcodec).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from sluice.devstack.tidb.store import Store
from sluice.tidb.codec.memcomparable import encode_bytes, encode_int
from sluice.tidb.schema import Table
from sluice.tidb.tikv.meta import find_table_info

_BEGINNING, _NEWEST = 1, 1 << 63
_BYTES_FLAG = b"\x01"
_ROWS = (
    ("bootstrapped", "True", "Bootstrap flag. Do not delete."),
    ("new_collation_enabled", "", "If the new collations are enabled. Do not edit it."),
)


def put_variables(store: Store, new_collations: Callable[[], bool]) -> None:
    """Put them there, from the beginning on, if there is such a table.

    `store` has TiDB's meta keys; `new_collations` may take a while.
    """
    keys: Any = _Keys(store)
    info = find_table_info(keys, "mysql", "tidb", _NEWEST)
    if info is None:
        return
    table = Table.from_tidb(info, 0, "mysql")
    for number, (name, value, comment) in enumerate(_ROWS, 1):
        handle = (
            _BYTES_FLAG + encode_bytes(name.encode())
            if table.is_common_handle
            else encode_int(number)
        )
        texts = [text.encode() for text in (name, value or str(new_collations()), comment)]
        store.put(
            b"t" + encode_int(table.id) + b"_r" + handle,
            _row([column.id for column in table.columns], texts),
            _BEGINNING,
        )


class _Keys:
    """Scan the store as a client of TiKV does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def scan(self, start: bytes, end: bytes, ts: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of [start, end) as of `ts`."""
        return (
            (key, value)
            for key in self._store.scan(start, end)
            if (value := self._store.get(key, ts)) is not None
        )


def _row(ids: list[int], values: list[bytes]) -> bytes:
    ends = [sum(map(len, values[: n + 1])) for n in range(len(values))]
    head = struct.pack(
        f"<BBHH{len(values)}B{len(values)}H", 0x80, 0, len(values), 0, *ids[: len(values)], *ends
    )
    return head + b"".join(values)
