"""The checkpoint row: through which commit timestamp the downstream is complete.

The table and the JSON are TiDB Binlog's own, so Sluice goes on where a Drainer stopped and the other way round:

    tidb_binlog.checkpoint(clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint MEDIUMTEXT)
    {"consistent": true, "commitTS": 1, "ts-map": {}, "schema-version": 0}

One key is ours, and Drainer ignores it: `"sluice": {"ddl": {...}}` while a DDL statement is being executed downstream.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Self

from etl._sql_text import quote_name
from etl.mysql import MySQLSession

_NO_SUCH_TABLE = 1146
_UNKNOWN_DATABASE = 1049
_DUPLICATE_KEY = 1062


class CheckpointError(Exception):
    """The checkpoint row can't be read; names cluster and content."""


class CheckpointMovedError(Exception):
    """The checkpoint isn't where this process left it: somebody else writes to the same downstream."""


@dataclass(frozen=True, slots=True)
class PendingDdl:
    """A DDL statement that may or may not have been executed. `fingerprint` describes the objects it affects, before it."""

    job_id: int
    commit_ts: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`commit_ts`: every transaction through it is downstream. `consistent` is false when a Drainer left changes beyond it."""

    commit_ts: int
    schema_version: int = 0
    consistent: bool = True
    ts_map: dict[str, Any] = field(default_factory=dict)
    pending: PendingDdl | None = None

    @classmethod
    def parse(cls, text: str, cluster_id: int) -> Self:
        """From the row's JSON. Raises CheckpointError."""
        try:
            document = json.loads(text)
            ours = (document.get("sluice") or {}).get("ddl")
            return cls(
                commit_ts=int(document["commitTS"]),
                schema_version=int(document.get("schema-version") or 0),
                consistent=bool(document.get("consistent", True)),
                ts_map=document.get("ts-map") or {},
                pending=PendingDdl(int(ours["job"]), int(ours["commit-ts"]), str(ours["fingerprint"])) if ours else None,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"checkpoint of cluster {cluster_id} can't be read ({error!r}): {text[:200]!r}") from error

    def to_text(self) -> str:
        """The row's JSON, keys in Drainer's order."""
        document: dict[str, Any] = {
            "consistent": self.consistent,
            "commitTS": self.commit_ts,
            "ts-map": self.ts_map,
            "schema-version": self.schema_version,
        }
        if self.pending is not None:
            document["sluice"] = {
                "ddl": {"job": self.pending.job_id, "commit-ts": self.pending.commit_ts, "fingerprint": self.pending.fingerprint}
            }
        return json.dumps(document, separators=(",", ":"))

    def at(self, commit_ts: int, schema_version: int | None = None) -> Checkpoint:
        """The checkpoint moved to `commit_ts`, with no DDL pending."""
        version = self.schema_version if schema_version is None else schema_version
        return replace(self, commit_ts=commit_ts, schema_version=version, consistent=True, pending=None)


class CheckpointTable:
    """The row of one cluster. `lock` and `save` run in the sink's current transaction."""

    def __init__(self, session: MySQLSession, cluster_id: int, schema: str = "tidb_binlog", table: str = "checkpoint") -> None:
        self._session = session
        self._cluster_id = cluster_id
        self._schema = quote_name(schema)
        self._table = f"{quote_name(schema)}.{quote_name(table)}"

    def create(self) -> None:
        """Create schema and table unless they exist (needs no right to do so if they do)."""
        try:
            self._session.query(f"SELECT 1 FROM {self._table} LIMIT 1")
        except Exception as error:
            if getattr(error, "code", 0) not in (_NO_SUCH_TABLE, _UNKNOWN_DATABASE):
                raise
            self._session.query(f"CREATE DATABASE IF NOT EXISTS {self._schema}")
            self._session.query(
                f"CREATE TABLE IF NOT EXISTS {self._table} (clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint MEDIUMTEXT)"
            )
        self._session.query("COMMIT")

    def load(self) -> Checkpoint | None:
        """The checkpoint, None when there is no row."""
        return self._select("")

    def lock(self, expected: Checkpoint | None) -> None:
        """Lock the row for this transaction; it must hold the commit timestamp of `expected` (None: no row).
        Raises CheckpointMovedError."""
        found = self._select(" FOR UPDATE")
        if (found.commit_ts if found else None) != (expected.commit_ts if expected else None):
            raise CheckpointMovedError(
                f"the checkpoint of cluster {self._cluster_id} in {self._table} on {self._session.address} is at "
                f"{found.commit_ts if found else 'no row'}, {expected.commit_ts if expected else 'no row'} expected: another process "
                "replicates to the same downstream; stop one of the two"
            )

    def save(self, checkpoint: Checkpoint, first: bool = False) -> None:
        """Write the row; `first`: there was none when this process looked. Raises CheckpointMovedError if there is one now."""
        try:
            if first:
                self._session.query(f"INSERT INTO {self._table} VALUES (%s, %s)", (self._cluster_id, checkpoint.to_text()))
            else:
                self._session.query(
                    f"UPDATE {self._table} SET checkPoint = %s WHERE clusterID = %s", (checkpoint.to_text(), self._cluster_id)
                )
        except Exception as error:
            if first and getattr(error, "code", 0) == _DUPLICATE_KEY:
                raise CheckpointMovedError(f"another process wrote the first checkpoint of cluster {self._cluster_id}") from error
            raise

    def _select(self, suffix: str) -> Checkpoint | None:
        rows = self._session.query(f"SELECT checkPoint FROM {self._table} WHERE clusterID = %s{suffix}", (self._cluster_id,))
        return Checkpoint.parse(str(rows[0][0]), self._cluster_id) if rows else None
