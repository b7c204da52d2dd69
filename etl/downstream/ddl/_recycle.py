"""Keep the rows of dropped and truncated tables for a while, for RECOVER and FLASHBACK.

These statements bring back rows that are in no binlog. A dropped table is renamed to `t<table
id>_<unix seconds of the drop>` in the session's recycle schema, and removed for good once the
checkpoint is `keep_s` past it.
"""

from __future__ import annotations

import re

from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.sql_text import quote_name
from sluice.etl.downstream import DownstreamError, MySQLSession
from sluice.tidb import tso
from sluice.tidb.table_name import full_name

_NAME = re.compile(r"t(\d+)_(\d+)\Z")


def unix_seconds(commit_ts: int) -> int:
    """Return the Unix seconds of a TSO."""
    return tso.physical_ms(commit_ts) // 1000


class RecycleBin:
    """Dropped tables of one downstream. `keep_s` 0: tables are dropped at once."""

    def __init__(self, session: MySQLSession, keep_s: int) -> None:
        self._session = session
        self._schema = session.recycle_schema
        self._keep_s = keep_s

    def drop(self, schema: str, table: str, table_id: int, commit_ts: int) -> list[str]:
        """Take a table away; warnings."""
        name = f"{quote_name(schema)}.{quote_name(table)}"
        if not self._session.query(
            "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (schema, table),
        ):
            return [f"{full_name(schema, table)} was gone already"]
        if self._keep_s <= 0:
            self._session.execute(f"DROP TABLE {name}")
            return []
        reason = "it takes part in foreign keys"
        if not self._in_foreign_keys(schema, table):
            try:
                self._session.execute(f"CREATE DATABASE IF NOT EXISTS {quote_name(self._schema)}")
                self._session.execute(
                    f"RENAME TABLE {name} TO {self._recycled_name(table_id, commit_ts)}"
                )
                return []
            except DownstreamError as error:
                if error.code != server_errors.TRIGGER_IN_WRONG_SCHEMA:
                    raise
                reason = error.message
        self._session.execute(f"DROP TABLE {name}")
        return [
            f"{full_name(schema, table)} is dropped for good, RECOVER TABLE won't bring it back:"
            f" {reason}"
        ]

    def truncate(self, schema: str, table: str, old_id: int, commit_ts: int) -> list[str]:
        """Put an empty table in the place of one whose id was `old_id`; warnings.

        May be repeated for the same `commit_ts`.
        """
        name = f"{quote_name(schema)}.{quote_name(table)}"
        if self._keep_s > 0 and any(
            row[:2] == (old_id, unix_seconds(commit_ts)) for row in self._list()
        ):
            return []  # done before an interruption
        if self._keep_s <= 0 or self._in_foreign_keys(schema, table):
            self._session.execute(f"TRUNCATE TABLE {name}")
            return []
        fresh = f"{quote_name(self._schema)}.{quote_name('sluice_fresh')}"
        self._session.execute(f"CREATE DATABASE IF NOT EXISTS {quote_name(self._schema)}")
        self._session.execute(f"DROP TABLE IF EXISTS {fresh}")
        self._session.execute(f"CREATE TABLE {fresh} LIKE {name}")
        self._session.execute(
            f"RENAME TABLE {name} TO {self._recycled_name(old_id, commit_ts)}, {fresh} TO {name}"
        )
        return []

    def recover(self, schema: str, table: str, table_id: int) -> bool:
        """Bring the table with this id back under a name; False if it isn't here."""
        kept = [row for row in self._list() if row[0] == table_id]
        if not kept:
            return False
        _, _, name = max(kept)
        self._session.execute(
            f"RENAME TABLE {quote_name(self._schema)}.{quote_name(name)} TO"
            f" {quote_name(schema)}.{quote_name(table)}"
        )
        return True

    def purge(self, commit_ts: int) -> list[str]:
        """Remove what was dropped more than `keep_s` before `commit_ts`; names of what went."""
        gone = [
            name
            for _, dropped, name in self._list()
            if unix_seconds(commit_ts) - dropped > self._keep_s
        ]
        for name in gone:
            self._session.execute(
                f"DROP TABLE IF EXISTS {quote_name(self._schema)}.{quote_name(name)}"
            )
        return gone

    def _recycled_name(self, table_id: int, commit_ts: int) -> str:
        return f"{quote_name(self._schema)}.{quote_name(f't{table_id}_{unix_seconds(commit_ts)}')}"

    def _list(self) -> list[tuple[int, int, str]]:
        rows = self._session.query(
            "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s",
            (self._schema,),
        )
        matches = ((_NAME.match(str(name)), str(name)) for (name,) in rows)
        return [(int(match[1]), int(match[2]), name) for match, name in matches if match]

    def _in_foreign_keys(self, schema: str, table: str) -> bool:
        return bool(
            self._session.query(
                "SELECT 1 FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE (CONSTRAINT_SCHEMA"
                " = %s AND TABLE_NAME = %s) OR (UNIQUE_CONSTRAINT_SCHEMA = %s AND"
                " REFERENCED_TABLE_NAME = %s) LIMIT 1",
                (schema, table, schema, table),
            )
        )
