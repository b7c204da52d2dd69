"""Query the upstream for a backfill: the time, the tables, their sizes, and where to cut them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Self

from sluice.etl.changes.formats.key_ranges import KeyColumn, in_range
from sluice.etl.changes.formats.sql_text import quote_table
from sluice.etl.copy import CopyError
from sluice.etl.copy.definitions import SourceSchema, read_source_schema
from sluice.etl.copy.errors import BackfillError
from sluice.etl.copy.tidb_session import TidbAddress, TidbSession
from sluice.etl.landing import version_at
from sluice.etl.settings import Settings
from sluice.tidb import PDClient, TiKVClient
from sluice.tidb.schema import Table
from sluice.tidb.table_name import full_name

_MAX_ODD_KEYS = 20
"""Keys that no literal can express, one behind the other, at most."""


@dataclass(frozen=True, slots=True)
class TableSize:
    """A table's estimated size by TiDB's statistics; `rows` 0 where they have none."""

    rows: int
    bytes: int


class UpstreamCatalog:
    """The cluster of the settings.

    Used by one thread, but for `now` and `definitions`. Every method raises CopyError (TiDB),
    PDError, TiKVError.
    """

    def __init__(self, settings: Settings, pd: PDClient, tikv: TiKVClient) -> None:
        self.address = TidbAddress.from_settings(settings.upstream)
        self._new_collations = settings.upstream.new_collations
        self._pd = pd
        self._tikv = tikv
        self._session: TidbSession | None = None
        self._lock = threading.Lock()
        self._known: SourceSchema | None = None

    @classmethod
    @contextmanager
    def connect(cls, settings: Settings) -> Iterator[Self]:
        """Connect to PD, TiKV and, at the first use, TiDB."""
        with ExitStack() as stack:
            tls = settings.upstream.tls()
            pd = PDClient(settings.upstream.pd_urls, tls=tls)
            stack.callback(pd.close)
            tikv = TiKVClient(pd, tls=tls)
            stack.callback(tikv.close)
            found = cls(settings, pd, tikv)
            stack.callback(found.close)
            yield found

    @property
    def cluster_id(self) -> int:
        return self._pd.cluster_id

    def now(self) -> int:
        """Return a fresh TSO."""
        return self._pd.tso()

    def close(self) -> None:
        """Close the connection to TiDB; the next use makes another."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def definitions(self, ts: int) -> SourceSchema:
        """Return all tables as of `ts` (TSO).

        Read again only if the schema has changed since the last time.
        """
        with self._lock:
            known = self._known
            if known is None or version_at(self._tikv, ts) != known.schema_version:
                known = self._known = read_source_schema(
                    self._pd, self._tikv, ts, self._new_collations
                )
            return known

    def sizes(self) -> Mapping[str, TableSize]:
        """Return the sizes by full name."""
        rows = self._query(
            "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS, DATA_LENGTH FROM"
            " information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE'"
        )
        return {
            full_name((schema or b"").decode(), (name or b"").decode()): TableSize(
                int(count or 0), int(size or 0)
            )
            for schema, name, count, size in rows
        }

    def check_readable(self, table: Table, where: str) -> None:
        """Raise CopyError if TiDB refuses to read the table's rows with this condition.

        Reads none.
        """
        self._query(
            f"SELECT 1 FROM {quote_table(table)} WHERE {f'({where})' if where else 'TRUE'} LIMIT 0"
        )

    def key_behind(
        self,
        table: Table,
        key: list[KeyColumn],
        within: tuple[list[str] | None, list[str] | None],
        rows: int,
    ) -> list[str] | None:
        """Return the key, as literals, behind the first `rows` rows of a range [low, high).

        The table is as it is now. None if there aren't more.
        """
        return key_behind(self._query, table, key, within, rows)

    def last_key(
        self,
        table: Table,
        key: list[KeyColumn],
        within: tuple[list[str] | None, list[str] | None],
    ) -> list[str] | None:
        """Return the largest key, as literals, of a range [low, high).

        The table is as it is now. None if the range has no rows.
        """
        return _key_at(self._query, table, key, within, None)

    def _query(self, statement: str) -> list[tuple[bytes | None, ...]]:
        return self._with_retries(lambda session: session.query(statement))

    def _with_retries(
        self, ask: Callable[[TidbSession], list[tuple[bytes | None, ...]]]
    ) -> list[tuple[bytes | None, ...]]:
        """Call over the open connection, or once more over a new one."""
        fresh = self._session is None
        session = self._session = self._session or TidbSession(self.address)
        try:
            return ask(session)
        except CopyError as error:
            self.close()
            if fresh or not error.transient:
                raise
        return self._with_retries(ask)


def key_behind(
    query: Callable[[str], list[tuple[bytes | None, ...]]], table: Table, key: list[KeyColumn],
    within: tuple[list[str] | None, list[str] | None], rows: int,
) -> list[str] | None:  # fmt: skip
    """Return the key, as literals, behind the first `rows` rows of a range [low, high).

    The table is as `query` sees it; None if there aren't more. Raises BackfillError, and as
    `query`.
    """
    return _key_at(query, table, key, within, rows)


def _key_at(
    query: Callable[[str], list[tuple[bytes | None, ...]]], table: Table, key: list[KeyColumn],
    within: tuple[list[str] | None, list[str] | None], rows: int | None,
) -> list[str] | None:  # fmt: skip
    """Return the key behind the first `rows` rows of a range, or with None the last key.

    It is the next one that literals can express.
    """
    names = ", ".join(column.quoted for column in key)
    order = ", ".join(f"{column.quoted}{' DESC' if rows is None else ''}" for column in key)
    place = f"FROM {quote_table(table)} WHERE {in_range(key, *within)} ORDER BY {order}"
    for offset in range(rows or 0, (rows or 0) + _MAX_ODD_KEYS):
        found = query(f"SELECT {names} {place} LIMIT 1 OFFSET {offset}")
        if not found:
            return None
        try:
            return [
                column.literal(value or b"") for column, value in zip(key, found[0], strict=True)
            ]
        except UnicodeDecodeError:  # no literal can express it: the range goes on
            continue
    raise BackfillError(
        f"{table.full_name}: {_MAX_ODD_KEYS} keys behind each other are text that isn't utf-8: no"
        " range can end there. Copy the table by another key, or in ranges, with --from-key and"
        " --to-key"
    )
