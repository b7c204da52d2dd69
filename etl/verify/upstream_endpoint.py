"""TiDB at one timestamp as a side of a verification."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa

from sluice.etl.changes.formats.sql_text import quote_table
from sluice.etl.copy.errors import CopyError
from sluice.etl.copy.tidb_session import TidbAddress, TidbSession, read_rows
from sluice.etl.copy.tidb_sql import TidbSql
from sluice.etl.verify.checksum import Checksum, checksum_columns
from sluice.etl.verify.common_order import Bound, keys_in_order
from sluice.etl.verify.endpoint import ComparedTable, KeyRange
from sluice.etl.verify.masked_rows import masked_rows

__all__ = ["UpstreamEndpoint"]


class UpstreamEndpoint:
    """See `sluice.etl.verify.endpoint.VerifyEndpoint`. Every method raises CopyError."""

    def __init__(self, address: TidbAddress, ts: int, sessions: int) -> None:
        """Prepare the endpoint; nothing is connected to yet."""
        self._address = address
        self._source = TidbSql(address, ts)
        self.ts = ts
        self.sessions = sessions
        self._open: dict[int, TidbSession] = {}
        self._lock = threading.Lock()

    def describe(self) -> str:
        return f"TiDB at {self._address.shown}"

    def checksum(self, session: int, table: ComparedTable, within: KeyRange) -> Checksum | None:
        if table.by_rows:
            return None
        count = digest = 0
        for source, condition in table.upstream_rows(within):
            statement = f"SELECT {checksum_columns(table.upstream)} FROM {quote_table(source)}"
            ((rows, summed),) = self._session(session).query(f"{statement} WHERE {condition}")
            count, digest = count + int(rows or 0), digest + int(summed or 0)
        return Checksum(count, digest)

    def rows(
        self, session: int, table: ComparedTable, within: KeyRange
    ) -> Iterator[pa.RecordBatch]:
        reader = self._session(session)
        whole = False
        try:
            for source, condition in table.upstream_rows(within):
                yield from masked_rows(read_rows(reader, source, condition), source.columns)
            whole = True
        finally:
            # a result that isn't read to its end leaves the connection unusable
            if not whole:
                self._drop(session)

    def ranges(self, table: ComparedTable) -> list[KeyRange]:
        """Return ranges of the table, from region to region.

        Only of a table whose rows TiDB keeps in the order of `key`.
        """
        chunks = self._source.chunks(table.table)
        starts: Sequence[tuple[str, ...]] = [
            tuple(chunk.place["key_low"]) for chunk in chunks if chunk.place["key_low"]
        ]
        return [KeyRange(low, high) for low, high in pairwise([None, *starts, None])]

    def in_order(self, session: int, table: ComparedTable, bounds: Sequence[Bound]) -> list[Bound]:
        """Return the keys of `bounds` that have a row, in the order of this server."""
        rows = self._session(session).query(keys_in_order(table, quote_table(table.table), bounds))
        return [
            tuple(one.literal(value or b"") for one, value in zip(table.key, row, strict=True))
            for row in rows
        ]

    def close(self) -> None:
        for number in list(self._open):
            self._drop(number)

    def _session(self, number: int) -> TidbSession:
        with self._lock:
            found = self._open.get(number)
        if found is None:
            found = TidbSession(self._address)
            try:
                found.read_at(self.ts)
            except CopyError:
                found.close()
                raise
            with self._lock:
                self._open[number] = found
        return found

    def _drop(self, number: int) -> None:
        with self._lock:
            session = self._open.pop(number, None)
        if session is not None:
            with contextlib.suppress(CopyError):
                session.close()
