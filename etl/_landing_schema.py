"""The upstream's schema while windows are landed: DDL jobs looked up in TiKV, tables attached to windows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etl._landing_job import TableSpan
from etl.explode import DdlRecord
from upstream import read_ddl_job, read_ddl_jobs, read_schema_version
from upstream.history import Job, SchemaHistory
from upstream.meta import string_key

if TYPE_CHECKING:
    from upstream import PDClient, TiKVClient

log = logging.getLogger("sluice.land")

_DONE, _SYNCED = 4, 6


class UnknownTableError(Exception):
    """Rows belong to a table that no DDL job up to their commit has made; names table id and commit_ts."""


class Stopped(Exception):
    """The run was told to stop while it waited; nothing of the window has been committed."""


@dataclass(frozen=True, slots=True)
class WindowSchema:
    """What a window record says of schemas."""

    tables: dict[str, Any]
    ddls: tuple[dict[str, Any], ...]
    truncated_tables: tuple[int, ...]
    schema_version: int


def version_at(tikv: TiKVClient, ts: int) -> int:
    """The schema version whose DDL was committed by ts; 0 before the first.

    TiDB takes a new version in a transaction of its own, just before the one that carries out the DDL and writes
    ``Diff:<version>``. Between the two the version says too much by one.
    """
    if ts == 0:
        return 0
    version = read_schema_version(tikv, ts)
    if version and tikv.get(string_key(f"Diff:{version}"), ts) is None:
        return version - 1
    return version


class LandingSchema:
    """The schema as of the last landed window. After an exception from `resolve` it must be loaded again."""

    def __init__(self, history: SchemaHistory, pd: PDClient, tikv: TiKVClient) -> None:
        self._history = history
        self._pd = pd
        self._tikv = tikv

    @classmethod
    def load(cls, pd: PDClient, tikv: TiKVClient, schema_version: int) -> LandingSchema:
        """Rebuild it from TiDB's DDL job history. Raises PDError, TiKVError."""
        jobs = (Job.from_json(raw) for raw in read_ddl_jobs(tikv, pd.tso()))
        return cls(SchemaHistory.from_jobs(jobs, schema_version), pd, tikv)

    @property
    def schema_version(self) -> int:
        return self._history.schema_version

    def resolve(
        self, ddls: Sequence[DdlRecord], spans: Mapping[int, TableSpan], wait: Callable[[float], bool], skips: Collection[int] = ()
    ) -> WindowSchema:
        """Move on over the window's DDL and describe it. An unknown table is no error if its rows begin in a transaction at
        `skips`, which won't be applied; later ones are found when they are.

        `spans` says which tables have rows in the window. `wait(seconds)` sleeps and returns True if the run is to stop.
        Raises UnknownTableError, Stopped, PDError, TiKVError, HistoryError.
        """
        before = dict(self._history.tables)
        truncated_before = set(self._history.truncated)
        described = []
        born: dict[int, int] = {}
        wanted = set(spans)
        for record in ddls:
            job = self._job(record, wait)
            if job.state not in (_DONE, _SYNCED):
                log.info("DDL job %d at commit_ts %d is in state %d: skipped", job.id, record.commit_ts, job.state)
                continue
            schema = self._history.schemas.get(job.schema_id)
            schema_before = schema.name if schema else job.schema_name
            effect = self._history.apply(job)
            wanted |= set(effect.tables)
            for table_id, table in effect.tables.items():
                if table is not None:
                    born.setdefault(table_id, record.commit_ts)
            described.append({
                **record.to_dict(), "type": job.type, "schema_version": job.schema_version,
                "schema_name": schema_before or job.schema_name, "table_name": job.table_name, "effect": effect.to_json(),
                "time_zone": job.time_zone, "as_typed": job.as_typed(record.query),
            })  # fmt: skip
        truncated = truncated_before | self._history.truncated
        for table_id, span in spans.items():
            if table_id in before or table_id in truncated or born.get(table_id, span.first_commit_ts) < span.first_commit_ts:
                continue
            if span.first_commit_ts in skips:
                continue
            raise UnknownTableError(
                f"{span.rows} changes from commit_ts {span.first_commit_ts} on are of table id {table_id}, which no DDL job up "
                f"to schema version {self._history.schema_version} has made; if TiKV's DDL history is incomplete, start "
                "with an empty relay log from a checkpoint after these commits; if they aren't wanted, leave the transaction out: "
                f"`sluice txn skip {span.first_commit_ts}`"
            )
        return WindowSchema(
            tables={str(i): before[i].to_json() for i in sorted(wanted) if i in before},
            ddls=tuple(described),
            truncated_tables=tuple(sorted(i for i in spans if i in truncated and i not in before)),
            schema_version=self._history.schema_version,
        )

    def _job(self, record: DdlRecord, wait: Callable[[float], bool]) -> Job:
        """The job of a DDL binlog. TiDB moves it to the history one transaction later: wait until it is there."""
        waited, pause = 0.0, 0.02
        said = 0.0
        while True:
            raw = read_ddl_job(self._tikv, record.job_id, self._pd.tso())
            if raw is not None:
                return Job.from_json(raw, record.schema_state)
            if waited - said >= 5:
                said = waited
                log.warning(
                    "DDL job %d (commit_ts %d, %s) is not in TiDB's history yet; waiting, %.0f s so far",
                    record.job_id, record.commit_ts, record.query[:100], waited,
                )  # fmt: skip
            if wait(pause):
                raise Stopped(f"while waiting for DDL job {record.job_id}")
            waited += pause
            pause = min(pause * 2, 1.0)
