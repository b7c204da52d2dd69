"""What the upstream's databases and tables were at a timestamp, from TiDB's DDL job history, as landing knows them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from etl.landing import has_new_collations, version_at
from upstream import TiKVError, read_ddl_jobs
from upstream.history import SYSTEM_SCHEMAS, SchemaHistory
from upstream.job import Job
from upstream.schema import Schema, Table

if TYPE_CHECKING:
    from upstream import PDClient, TiKVClient

log = logging.getLogger("sluice.copy")


@dataclass(frozen=True, slots=True)
class Definitions:
    """The upstream's schema as of `ts` (TSO). `tables`: views and sequences are among them."""

    ts: int
    schema_version: int
    schemas: tuple[Schema, ...]
    tables: tuple[Table, ...]

    @classmethod
    def of(cls, history: SchemaHistory, ts: int) -> Definitions:
        """From a history that stands at `ts`."""
        return cls(
            ts,
            history.schema_version,
            tuple(sorted(history.schemas.values(), key=lambda schema: schema.name)),
            tuple(sorted(history.tables.values(), key=lambda table: (table.schema_name, table.name))),
        )

    def of_users(self) -> Definitions:
        """Without TiDB's own databases."""
        return replace(
            self,
            schemas=tuple(schema for schema in self.schemas if schema.name.lower() not in SYSTEM_SCHEMAS),
            tables=tuple(table for table in self.tables if table.schema_name.lower() not in SYSTEM_SCHEMAS),
        )


def read_definitions(pd: PDClient, tikv: TiKVClient, ts: int, new_collations: str) -> Definitions:
    """The upstream's schema as of `ts`. `new_collations`: see `etl.settings`. Raises PDError, TiKVError,
    HistoryError.
    """
    now = pd.tso()
    jobs = [Job.from_json(raw) for raw in read_ddl_jobs(tikv, now)]
    history = SchemaHistory.from_jobs(jobs, _version(tikv, jobs, ts))
    if not has_new_collations(tikv, now, new_collations):
        history.use_old_collations()
    return Definitions.of(history, ts)


def _version(tikv: TiKVClient, jobs: list[Job], ts: int) -> int:
    """The schema version at `ts`. TiKV may have collected what it was then; each finished job says when it ended."""
    by_jobs = max((job.schema_version for job in jobs if job.finished and job.finished_ts <= ts), default=0)
    try:
        version = version_at(tikv, ts)
    except TiKVError as error:
        log.warning("TiKV doesn't tell the schema version at %d, the DDL jobs say %d: %s", ts, by_jobs, error)
        return by_jobs
    return version or by_jobs
