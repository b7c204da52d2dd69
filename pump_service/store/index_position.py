"""Encode how far an index is, for storing it in the index itself."""

from __future__ import annotations

import struct
from typing import NamedTuple

from sluice.pump_service.store.segment import RecordPointer

_U64_PAIR = struct.Struct("<QQ")
_SYNCED = struct.Struct("<12s12sQ")


class IndexPosition(NamedTuple):
    """Hold how far the index is.

    That is the last record in it, the last commit that left the sorter with its timestamp, and the
    long transactions (commit_ts -> start_ts). In LevelDB: head, handled, u64 max_commit_ts, then
    pairs of u64, little-endian.
    """

    head: RecordPointer
    handled: RecordPointer
    max_commit_ts: int
    long_transactions: dict[int, int]

    def encode(self) -> bytes:
        """Return its stored form."""
        return _SYNCED.pack(
            self.head.encode(), self.handled.encode(), self.max_commit_ts
        ) + encode_pairs(self.long_transactions)

    @classmethod
    def decode(cls, data: bytes) -> IndexPosition:
        """Return the position that `encode` encoded."""
        head, handled, top = _SYNCED.unpack_from(data)
        return cls(
            RecordPointer.decode(head),
            RecordPointer.decode(handled),
            top,
            decode_pairs(data[_SYNCED.size :]),
        )


def encode_pairs(long_transactions: dict[int, int]) -> bytes:
    """Return commit_ts and start_ts of each, u64 little-endian."""
    return b"".join(_U64_PAIR.pack(*pair) for pair in long_transactions.items())


def decode_pairs(data: bytes) -> dict[int, int]:
    """Return the transactions that `encode_pairs` encoded."""
    return dict(_U64_PAIR.iter_unpack(data))
