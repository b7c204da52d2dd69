"""Divide the tables of a cluster among the pumps that capture it.

The physical id alone, of a table or a partition, decides the share. So it is known before any
definition, it never changes, and pumps needn't agree on anything. A row that moves from one
partition to another may change shares: its delete and its insert are then in two of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from sluice.tidb.codec.memcomparable import decode_int
from sluice.tidb.schema import MAX_USER_TABLE_ID

MAX_SHARES = 64
ID_BYTES = 9
"""Length of a table's keys up to its id: `t` and eight bytes."""
_MIXER, _MASK = 0x9E37_79B9_7F4A_7C15, (1 << 64) - 1
_MAX_COUNTED_TABLES = 64


@dataclass(frozen=True, slots=True)
class Share:
    """Name one of `count` shares; `number` is from 1 to `count`. The default is all tables."""

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        """Raise ValueError for a share that can't be."""
        if not 1 <= self.number <= self.count <= MAX_SHARES:
            raise ValueError(
                f"invalid share {self}: expected NUMBER/COUNT with 1 <= NUMBER <= COUNT <="
                f" {MAX_SHARES}, such as 2/3"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `2/3`. Raises ValueError."""
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal()):
            raise ValueError(f"invalid share {text!r}: expected NUMBER/COUNT, such as 2/3")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def is_whole(self) -> bool:
        """Return whether it has all tables."""
        return self.count == 1

    def owns(self, physical_id: int) -> bool:
        """Return whether it has the table or partition. TiDB's own tables are in every share."""
        if physical_id > MAX_USER_TABLE_ID:
            return True
        # TiDB takes ids for tables and DDL jobs in turn: those of tables alone are often all even.
        mixed = (physical_id * _MIXER & _MASK) >> 32
        return mixed % self.count == self.number - 1

    def owns_key(self, key: bytes) -> bool:
        """Return whether it has a raw key. Schema keys are in every share."""
        if key[:1] != b"t" or len(key) < ID_BYTES:
            return True
        return self.owns(decode_int(key, 1)[0])

    def may_own(self, start: bytes, end: bytes) -> bool:
        """Return whether it may have keys in [start, end); b"" as end is without a bound."""
        if self.is_whole or not (_has_id(start) and _has_id(end)):
            return True
        first, last = decode_int(start, 1)[0], decode_int(end, 1)[0]
        last -= len(end) == ID_BYTES  # where the keys of the last table begin
        if last - first >= _MAX_COUNTED_TABLES:
            return True
        return any(self.owns(physical_id) for physical_id in range(first, last + 1))


def missing_shares(present: Iterable[Share]) -> list[Share]:
    """Return the shares that are missing; none if those of any count are all present."""
    found = set(present)
    missing: list[Share] = []
    for count in sorted({share.count for share in found}):
        lacks = {Share(number, count) for number in range(1, count + 1)} - found
        if not lacks:
            return []
        missing += sorted(lacks, key=lambda share: share.number)
    return missing


def _has_id(key: bytes) -> bool:
    return key[:1] == b"t" and len(key) >= ID_BYTES
