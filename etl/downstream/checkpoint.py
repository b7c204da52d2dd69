"""Read and write the checkpoint row: the commit ts through which the downstream is complete.

The table and the JSON are TiDB Binlog's own, so Sluice goes on where a Drainer stopped and the
other way round:

    tidb_binlog.checkpoint(clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint MEDIUMTEXT)
    {"consistent": true, "commitTS": 1, "ts-map": {}, "schema-version": 0}

One key is ours, and Drainer ignores it: `"sluice": {"owner": "..."}` names the pipeline that wrote
the row, and is gone once a Drainer writes it; `"sluice": {"process": token}` is renewed by every
process that goes on from the row; `"sluice": {"ddl": {...}}` stands there while a DDL statement is
being executed downstream, `"sluice": {"in-flight": {...}}` while several sessions write what comes
after commitTS, `"sluice": {"safe-until": ts}` while changes through that commit timestamp may be
downstream already, left there by a Drainer that wasn't stopped in good order. The protocol is in
docs/explanation/exactly-once.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from sluice.errors import SluiceError
from sluice.etl.changes import server_errors
from sluice.etl.changes.formats.sql_text import literal, quote_name
from sluice.etl.downstream._writer_lock import WriterLock
from sluice.etl.downstream.mysql import MySQLSession
from sluice.etl.settings import Downstream

FORMAT = 1
"""Format of what Sluice keeps beside a checkpoint; a newer one has `"format": 2`."""

ROW_FORMAT = 2
"""The newest format of the row: `"sluice": {"format": 2, ...}` while it names a shared timestamp.

Without one the row has no format, which means 1.
"""


class CheckpointError(SluiceError):
    """The checkpoint row can't be read; names cluster and content."""

    hint = "repair the checkpoint row by hand, or remove it to begin where the relay log does"


class NewerCheckpointError(CheckpointError):
    """A newer version of Sluice wrote the checkpoint.

    Going on from it here could lose or repeat changes.
    """

    hint = "install the version of Sluice that wrote it, or a newer one; nothing was changed"


class CheckpointMovedError(SluiceError):
    """The checkpoint isn't where this process left it: another process writes there."""

    hint = (
        "find the other process that writes to this downstream and end it, then let the task go on"
    )


@dataclass(frozen=True, slots=True)
class PendingDdl:
    """A DDL statement that may have been executed; `fingerprint` is of its objects before it."""

    job_id: int
    commit_ts: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class SharedTimestamp:
    """A timestamp right behind the checkpoint: rows and DDL, or several DDL, were committed at it.

    Its rows are downstream, and its DDL of `jobs`.
    """

    ts: int
    jobs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why an in-flight batch is not written again until an operator decides.

    `sluice accept` names it by `token`; `decided` has the commit timestamps with overrides before.
    """

    token: str
    text: str
    decided: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InFlight:
    """Changes after the checkpoint through `until` (TSO) that several sessions are writing.

    Each of them may be downstream or not. `left_out`: commit timestamps of transactions that were
    ignored when it began, so that nothing of them is downstream. `rules`: the digest of the rules
    by which its changes were prepared (`sluice.etl.changes.rules.rules_digest`).
    """

    until: int
    left_out: tuple[int, ...] = ()
    rules: str = ""
    refused: Blocked | None = None

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Parse the row's part. Raises KeyError, ValueError, TypeError."""
        refused = document.get("blocked")
        return cls(
            int(document["until"]),
            tuple(map(int, document.get("left-out") or ())),
            str(document.get("rules") or ""),
            (
                Blocked(
                    str(refused["id"]),
                    str(refused["text"]),
                    tuple(map(int, refused.get("decided") or ())),
                )
                if refused
                else None
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the row's part."""
        document: dict[str, Any] = {"until": self.until}
        if self.left_out:
            document["left-out"] = list(self.left_out)
        if self.rules:
            document["rules"] = self.rules
        if self.refused is not None:
            document["blocked"] = {
                "id": self.refused.token,
                "text": self.refused.text,
                "decided": list(self.refused.decided),
            }
        return document


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`commit_ts`: every transaction through it is downstream.

    `consistent` is false when a Drainer left changes beyond it, or while a `flight` is under way.
    """

    commit_ts: int
    schema_version: int = 0
    consistent: bool = True
    ts_map: dict[str, Any] = field(default_factory=dict)
    pending: PendingDdl | None = None
    flight: InFlight | None = None
    shared: SharedTimestamp | None = None
    safe_until: int = 0
    """Set when a Drainer left it inconsistent: nothing committed after this TSO is downstream.

    0: it isn't known yet.
    """
    copied: tuple[str, ...] = ()
    """Tables without a key (``schema.table``) that an operator made what they were at `commit_ts`.

    Nothing beyond it is in them.
    """
    owner: str = field(default="", compare=False)
    """The pipeline that wrote it, see `relay.Ownership`; empty: a Drainer, or people."""
    process: str = field(default="", compare=False)
    """The process that wrote the row last; "" if it was a Drainer.

    Rows that differ only in it are equal.
    """

    @classmethod
    def parse(cls, text: str, cluster_id: int) -> Self:
        """Return the checkpoint from the row's JSON. Raises CheckpointError."""
        try:
            document = json.loads(text)
            sluice = document.get("sluice") or {}
            refuse_newer(f"the checkpoint of cluster {cluster_id}", sluice, ROW_FORMAT)
            ours, flight, shared = sluice.get("ddl"), sluice.get("in-flight"), sluice.get("shared")
            return cls(
                commit_ts=int(document["commitTS"]),
                schema_version=int(document.get("schema-version") or 0),
                consistent=bool(document.get("consistent", False)),
                ts_map=document.get("ts-map") or {},
                pending=(
                    PendingDdl(int(ours["job"]), int(ours["commit-ts"]), str(ours["fingerprint"]))
                    if ours
                    else None
                ),
                flight=InFlight.from_json(flight) if flight else None,
                shared=SharedTimestamp(int(shared["ts"]), tuple(map(int, shared["jobs"])))
                if shared
                else None,
                safe_until=int(sluice.get("safe-until") or 0),
                copied=tuple(map(str, sluice.get("copied") or ())),
                owner=str(sluice.get("owner") or ""),
                process=str(sluice.get("process") or ""),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"checkpoint of cluster {cluster_id} can't be read ({error!r}): {text[:200]!r}"
            ) from error

    def to_text(self) -> str:
        """Return the row's JSON, keys in Drainer's order."""
        document: dict[str, Any] = {
            "consistent": self.consistent,
            "commitTS": self.commit_ts,
            "ts-map": self.ts_map,
            "schema-version": self.schema_version,
        }
        ours: dict[str, Any] = {"process": self.process} if self.process else {}
        if self.pending is not None:
            ours["ddl"] = {
                "job": self.pending.job_id,
                "commit-ts": self.pending.commit_ts,
                "fingerprint": self.pending.fingerprint,
            }
        if self.flight is not None:
            ours["in-flight"] = self.flight.to_json()
        if self.shared is not None:
            ours |= {
                "format": ROW_FORMAT,
                "shared": {"ts": self.shared.ts, "jobs": list(self.shared.jobs)},
            }
        if self.safe_until:
            ours["safe-until"] = self.safe_until
        if self.copied:
            ours["copied"] = list(self.copied)
        if self.owner:
            ours["owner"] = self.owner
        if ours:
            document["sluice"] = ours
        return json.dumps(document, separators=(",", ":"))

    def at(self, commit_ts: int, schema_version: int | None = None) -> Checkpoint:
        """Return the checkpoint moved to `commit_ts`, with nothing pending.

        It is consistent unless an in-flight batch or a Drainer's changes may reach further.
        """
        # DDL of different tables needn't come in the order of its versions.
        version = max(self.schema_version, schema_version or 0)
        flight = self.flight if self.flight is not None and commit_ts < self.flight.until else None
        shared = self.shared if self.shared is not None and commit_ts < self.shared.ts else None
        ts_map = self.ts_map if commit_ts == self.commit_ts else {}
        moved = replace(
            self,
            commit_ts=commit_ts,
            schema_version=version,
            ts_map=ts_map,
            pending=None,
            flight=flight,
            shared=shared,
        )
        return (
            moved
            if flight is not None or commit_ts < self.safe_until
            else replace(moved, consistent=True, safe_until=0, copied=())
        )

    def before_rest_of(self, ts: int, job_id: int | None = None) -> Checkpoint:
        """Return the checkpoint in front of `ts` (TSO), whose rows are downstream.

        So is its DDL of `job_id`, unless that is None.
        """
        jobs = self.shared.jobs if self.shared is not None and self.shared.ts == ts else ()
        return replace(
            self.at(ts - 1), shared=SharedTimestamp(ts, jobs if job_id is None else (*jobs, job_id))
        )

    @property
    def rows_through(self) -> int:
        """Return the commit ts through which all rows are downstream; DDL: `commit_ts`."""
        return self.commit_ts if self.shared is None else self.shared.ts

    @property
    def needs_safe_mode(self) -> bool:
        """Return whether changes after it may be downstream, left there by a Drainer."""
        return not self.consistent and self.flight is None


def refuse_newer(what: str, ours: Mapping[str, Any], reads: int = FORMAT) -> None:
    """Raise NewerCheckpointError if `ours`, Sluice's part of `what`, has an unknown format."""
    found = ours.get("format", FORMAT)
    if found not in range(1, reads + 1):
        raise NewerCheckpointError(
            f"{what} has format {found}, this version of Sluice reads {reads}: a newer version"
            " wrote it",
            hint=NewerCheckpointError.hint,
        )


def _writer_text(found: Checkpoint | None, expected: Checkpoint | None) -> str:
    if found is None or found.owner == (expected.owner if expected else ""):
        return ""
    return f", pipeline {found.owner}" if found.owner else ", a Drainer it seems"


class CheckpointTable:
    """The row of one cluster. `lock` and `save` run in the sink's current transaction."""

    def __init__(
        self,
        session: MySQLSession,
        cluster_id: int,
        schema: str = "tidb_binlog",
        table: str = "checkpoint",
    ) -> None:
        self._session = session
        self.cluster_id = cluster_id
        self.schema = schema
        self._schema = quote_name(schema)
        self._place = schema, table
        self._table = f"{quote_name(schema)}.{quote_name(table)}"
        self._known: tuple[Checkpoint, str] | None = None
        """A checkpoint, and the text of its row."""

    @classmethod
    def from_settings(cls, session: MySQLSession, settings: Downstream, cluster_id: int) -> Self:
        """Return the table of the row that the settings name."""
        return cls(session, cluster_id, settings.checkpoint_schema, settings.checkpoint_table)

    def writer_lock(self) -> WriterLock:
        """Return the lock of the process that writes where this row is the checkpoint."""
        return WriterLock(self.cluster_id, *self._place)

    def exists(self) -> bool:
        """Return whether there is such a table."""
        try:
            self._session.query(f"SELECT 1 FROM {self._table} LIMIT 1")
            return True
        except Exception as error:
            if getattr(error, "code", 0) not in (
                server_errors.NO_SUCH_TABLE,
                server_errors.UNKNOWN_DATABASE,
            ):
                raise
            return False

    def create(self) -> None:
        """Create schema and table unless they exist (needs no right to do so if they do).

        Raises CheckpointError if rows there can't be rolled back.
        """
        if not self.exists():
            self._session.query(f"CREATE DATABASE IF NOT EXISTS {self._schema}")
            self._session.query(
                f"CREATE TABLE IF NOT EXISTS {self._table} (clusterID BIGINT UNSIGNED PRIMARY KEY,"
                " checkPoint MEDIUMTEXT)"
            )
        engine = self._session.engines_without_transactions([self._place])[0]
        if engine:
            raise CheckpointError(
                f"the checkpoint table {self._table} on {self._session.address} is in the storage"
                f" engine {engine}, which has no transactions",
                hint="ALTER TABLE ... ENGINE = InnoDB",
            )
        self._session.query("COMMIT")

    def load(self, *, wait: bool = False) -> Checkpoint | None:
        """Return the checkpoint, None when there is no row.

        `wait`: wait for a transaction that is changing it, such as one whose connection is gone
        while it is committed; the row is locked until the caller's transaction ends.
        """
        return self._select(" FOR UPDATE" if wait else "")

    def lock(self, expected: Checkpoint | None, *, shared: bool = False) -> None:
        """Lock the row for this transaction; it must be `expected` (None: no row).

        Owner and process count. `shared`: other sessions may hold the lock, too, and none can
        change the row. Raises CheckpointMovedError.
        """
        self.expect(expected, self._session.query(self.lock_statement(shared=shared)))

    def lock_statement(self, *, shared: bool = False) -> str:
        """Return the query by which `lock` locks the row."""
        return self._selection(
            f" {self._session.dialect.shared_lock_clause if shared else 'FOR UPDATE'}"
        )

    def expect(self, expected: Checkpoint | None, rows: Sequence[tuple[Any, ...]]) -> None:
        """Check that the row is `expected`; `rows`: the answer to `lock_statement`.

        Raises CheckpointMovedError.
        """
        if expected is not None and rows and rows[0][0] == self._text_of(expected):
            return
        found = self._read(rows)
        if found != expected or (
            found
            and expected
            and (found.owner, found.process) != (expected.owner, expected.process)
        ):
            raise self.moved(found, expected)

    def moved(self, found: Checkpoint | None, expected: Checkpoint | None) -> CheckpointMovedError:
        """Return the error for a row that is `found` in place of `expected`."""
        return CheckpointMovedError(
            f"the checkpoint of cluster {self.cluster_id} in {self._table} on"
            f" {self._session.address} is at {found.commit_ts if found else 'no row'},"
            f" {expected.commit_ts if expected else 'no row'} expected: another process replicates"
            f" to the same downstream{_writer_text(found, expected)}, or has taken over from this"
            " one; stop one of the two"
        )

    def save(self, checkpoint: Checkpoint, *, first: bool = False) -> None:
        """Write the row; `first`: there was none when this process looked.

        Raises CheckpointMovedError if there is one now.
        """
        try:
            if first:
                self._session.query(
                    f"INSERT INTO {self._table} VALUES (%s, %s)",
                    (self.cluster_id, checkpoint.to_text()),
                )
            else:
                self._session.query(self.save_statement(checkpoint))
        except Exception as error:
            if first and getattr(error, "code", 0) == server_errors.DUPLICATE_ENTRY:
                raise CheckpointMovedError(
                    f"another process wrote the first checkpoint of cluster {self.cluster_id}"
                ) from error
            raise

    def save_statement(self, checkpoint: Checkpoint) -> str:
        """Return the statement by which `save` writes the row where there is one."""
        text = literal(self._text_of(checkpoint))
        return f"UPDATE {self._table} SET checkPoint = {text} WHERE clusterID = {self.cluster_id}"

    def swap_statement(self, expected: Checkpoint, checkpoint: Checkpoint) -> str:
        """Return the statement that locks the row, and writes it if its text is `expected`'s.

        It affects one row then, else none, also where the written text equals the row's.
        """
        # before `checkpoint`, whose text is the one that is wanted again
        before = literal(self._text_of(expected))
        return f"{self.save_statement(checkpoint)} AND CAST(checkPoint AS BINARY) = {before}"

    def _text_of(self, checkpoint: Checkpoint) -> str:
        if self._known is None or self._known[0] is not checkpoint:
            self._known = checkpoint, checkpoint.to_text()
        return self._known[1]

    def _select(self, suffix: str) -> Checkpoint | None:
        return self._read(self._session.query(self._selection(suffix)))

    def _selection(self, suffix: str) -> str:
        return f"SELECT checkPoint FROM {self._table} WHERE clusterID = {self.cluster_id}{suffix}"

    def _read(self, rows: Sequence[tuple[Any, ...]]) -> Checkpoint | None:
        return Checkpoint.parse(str(rows[0][0]), self.cluster_id) if rows else None
