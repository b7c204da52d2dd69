"""Keep the results of aligned chunks (`sluice.relay.aligned_chunks`) in the downstream itself.

    tidb_binlog.sluice_chunks(
        job VARCHAR(64), at_ts BIGINT UNSIGNED, result MEDIUMTEXT, PRIMARY KEY (job, at_ts))

A result is written in the transaction that writes the chunk's rows: either both are there or none.
The result of a chunk that was declined is written too.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Self

from sluice.etl.changes.formats.sql_text import fill_placeholders, quote_name
from sluice.etl.downstream.checkpoint import refuse_newer
from sluice.etl.downstream.mysql import MySQLSession


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """The outcome of a chunk, in rows.

    Where nothing was to be written (`compare`), what `replace` would have done.

    `rows` upstream in the chunk; of them `same` were there already, `inserted` had a key that
    wasn't, `replaced` one that was, with other values. `deleted`: were there and aren't upstream.
    `displaced`: lay outside of the chunk and held a unique value that belongs to one of its rows.
    `kept`: not written, as their key is there (`missing`).
    """

    rows: int = 0
    same: int = 0
    inserted: int = 0
    replaced: int = 0
    deleted: int = 0
    displaced: int = 0
    kept: int = 0
    examples: tuple[str, ...] = ()
    """Some of the rows that differed, by key, for people."""
    declined: str = ""
    """Why nothing was done; "" if it was."""
    is_passing: bool = False
    """True if the chunk may fit when its rows are read again."""
    write_ms: float = field(default=0.0, compare=False)
    """Duration of the write; the job makes the next chunks larger or smaller by it."""

    @property
    def differing(self) -> int:
        """Return the number of rows that differed from the upstream's, on either side."""
        return self.inserted + self.replaced + self.deleted + self.kept

    def to_text(self) -> str:
        """Return the text that the table holds."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the result from its text, the inverse of `to_text`."""
        raw = json.loads(text)
        refuse_newer("a note in sluice_chunks", raw)
        return cls(**raw | {"examples": tuple(raw["examples"])})


class ChunkResults:
    """The notes of all jobs.

    Every method runs in the session's current transaction and raises DownstreamError.
    """

    def __init__(self, schema: str) -> None:
        """Name the table in `schema`, the checkpoint's."""
        self._place = schema, "sluice_chunks"
        self._table = f"{quote_name(schema)}.`sluice_chunks`"

    def exists(self, session: MySQLSession) -> bool:
        """Return whether there is such a table."""
        return bool(
            session.query(
                "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME"
                " = %s",
                self._place,
            )
        )

    def create(self, session: MySQLSession) -> None:
        """Create the table unless it exists; commits what is open.

        The checkpoint's schema is there.
        """
        if not self.exists(session):
            session.execute(
                f"CREATE TABLE IF NOT EXISTS {self._table} (job VARCHAR(64) CHARACTER SET ascii NOT"
                " NULL, at_ts BIGINT UNSIGNED NOT NULL, result MEDIUMTEXT CHARACTER SET utf8mb4"
                " NOT NULL, PRIMARY KEY (job, at_ts)) ENGINE=InnoDB"
            )

    def find(self, session: MySQLSession, job: str, at_ts: int) -> ChunkResult | None:
        """Return the result of one aligned chunk; the table must exist."""
        found = session.query(
            f"SELECT result FROM {self._table} WHERE job = %s AND at_ts = %s", (job, at_ts)
        )
        return ChunkResult.parse(str(found[0][0])) if found else None

    def of_job(self, session: MySQLSession, job: str) -> dict[int, ChunkResult]:
        """Return the results of a job by `at_ts`; none without the table."""
        if not self.exists(session):
            return {}
        found = session.query(f"SELECT at_ts, result FROM {self._table} WHERE job = %s", (job,))
        return {int(at_ts): ChunkResult.parse(str(text)) for at_ts, text in found}

    def jobs(self, session: MySQLSession) -> list[str]:
        """Return the jobs with results; none without the table."""
        if not self.exists(session):
            return []
        return [str(job) for (job,) in session.query(f"SELECT DISTINCT job FROM {self._table}")]

    def check_formats(self, session: MySQLSession) -> None:
        """Read what has a format of its own, if any has. Raises NewerCheckpointError."""
        if self.exists(session):
            for (text,) in session.query(
                f"SELECT result FROM {self._table} WHERE LOCATE('\"format\"', result) > 0 LIMIT 100"
            ):
                ChunkResult.parse(str(text))

    def note(self, session: MySQLSession, job: str, at_ts: int, result: ChunkResult) -> None:
        """Write a note; refused by the server if there is one."""
        session.execute(
            fill_placeholders(
                f"INSERT INTO {self._table} VALUES (%s, %s, %s)", (job, at_ts, result.to_text())
            )
        )

    def forget(self, session: MySQLSession, job: str) -> None:
        """Remove the job's notes: it is over. The table is there."""
        session.execute(fill_placeholders(f"DELETE FROM {self._table} WHERE job = %s", (job,)))
