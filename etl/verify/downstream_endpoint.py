"""The downstream at its checkpoint as a side of a verification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa

from sluice.etl.changes.formats.key_ranges import KeyColumn, refined_bounds
from sluice.etl.history.snapshots.consistent_reader import ConsistentReader
from sluice.etl.verify.checksum import Checksum, checksum_columns
from sluice.etl.verify.common_order import Bound, keys_in_order
from sluice.etl.verify.endpoint import ComparedTable, KeyRange

__all__ = ["DownstreamEndpoint"]


class DownstreamEndpoint:
    """See `sluice.etl.verify.endpoint.VerifyEndpoint`.

    Every method raises DownstreamError, TableChanged.
    """

    def __init__(self, snapshot: ConsistentReader, address: str) -> None:
        self._snapshot = snapshot
        self._address = address

    @property
    def ts(self) -> int:
        return self._snapshot.checkpoint.commit_ts

    @property
    def sessions(self) -> int:
        return self._snapshot.sessions

    def describe(self) -> str:
        return f"the downstream {self._address}"

    def checksum(self, session: int, table: ComparedTable, within: KeyRange) -> Checksum | None:
        if table.by_rows:
            return None
        statement = f"SELECT {checksum_columns(table.downstream)} FROM {table.place.quoted}"
        ((rows, digest),) = self._snapshot.asked(
            session, table.place, f"{statement} WHERE {within.condition(table.key)}"
        )
        return Checksum(int(rows), int(digest or 0))

    def rows(
        self, session: int, table: ComparedTable, within: KeyRange
    ) -> Iterator[pa.RecordBatch]:
        return self._snapshot.rows(session, table.place, (within.low, within.high))

    def close(self) -> None:
        self._snapshot.close()

    def even_ranges(self, session: int, table: ComparedTable, parts: int) -> list[KeyRange]:
        """Return about `parts` ranges of even width, of a table whose key is one number."""
        limits = self._snapshot.limits(session, table.place)
        if limits is None:
            return [KeyRange()]
        starts = [(str(start),) for start in refined_bounds([], *limits, parts)]
        return [KeyRange(low, high) for low, high in pairwise([None, *starts, None])]

    def in_order(self, session: int, table: ComparedTable, bounds: Sequence[Bound]) -> list[Bound]:
        """Return the keys of `bounds` that have a row, in this server's order."""
        rows = self._snapshot.asked(
            session, table.place, keys_in_order(table, table.place.quoted, bounds)
        )
        return [
            tuple(_literal(one, value) for one, value in zip(table.key, row, strict=True))
            for row in rows
        ]

    def cut(
        self, session: int, table: ComparedTable, within: KeyRange, step: int
    ) -> list[KeyRange]:
        """Cut the range into parts of `step` rows each, the last one with what is left.

        Reads the keys of all of them.
        """
        names = ", ".join(column.quoted for column in table.key)
        found: list[tuple[str, ...]] = []
        low = within.low
        while True:
            where = KeyRange(low, within.high).condition(table.key)
            rows = self._snapshot.asked(
                session,
                table.place,
                f"SELECT {names} FROM {table.place.quoted} WHERE {where} ORDER BY {names} LIMIT 1"
                f" OFFSET {step}",
            )
            if not rows:
                return [KeyRange(a, b) for a, b in pairwise([within.low, *found, within.high])]
            low = tuple(
                _literal(column, value) for column, value in zip(table.key, rows[0], strict=True)
            )
            found.append(low)


def _literal(column: KeyColumn, value: object) -> str:
    return column.literal(value if isinstance(value, bytes) else str(value).encode())
