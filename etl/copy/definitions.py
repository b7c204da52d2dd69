"""Read the upstream's databases and tables at a timestamp from TiDB's DDL job history.

Landing reads them in the same way.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sluice.etl.landing import has_new_collations, version_at
from sluice.tidb import TiKVError
from sluice.tidb.compact_job_list import CompactJobList
from sluice.tidb.history import SYSTEM_SCHEMAS, SchemaHistory
from sluice.tidb.schema import Schema, Table
from sluice.tidb.tikv.meta import read_raw_ddl_jobs

if TYPE_CHECKING:
    from sluice.tidb import PDClient, TiKVClient

log = logging.getLogger("sluice.copy")


@dataclass(frozen=True, slots=True)
class SourceSchema:
    """The upstream's schema as of `ts` (TSO). `tables`: views and sequences are among them."""

    ts: int
    schema_version: int
    schemas: tuple[Schema, ...]
    tables: tuple[Table, ...]

    @classmethod
    def from_history(cls, history: SchemaHistory, ts: int) -> SourceSchema:
        """Return the schema of a history that stands at `ts`."""
        return cls(
            ts,
            history.schema_version,
            tuple(sorted(history.schemas.values(), key=lambda schema: schema.name)),
            tuple(
                sorted(history.tables.values(), key=lambda table: (table.schema_name, table.name))
            ),
        )

    def of_users(self) -> SourceSchema:
        """Return the definitions without TiDB's own databases."""
        return replace(
            self,
            schemas=tuple(
                schema for schema in self.schemas if schema.name.lower() not in SYSTEM_SCHEMAS
            ),
            tables=tuple(
                table for table in self.tables if table.schema_name.lower() not in SYSTEM_SCHEMAS
            ),
        )


def read_source_schema(
    pd: PDClient, tikv: TiKVClient, ts: int, new_collations: str
) -> SourceSchema:
    """Return the upstream's schema as of `ts`.

    `new_collations`: see `sluice.etl.settings`. Raises PDError, TiKVError, HistoryError.
    """
    now = pd.tso()
    jobs = CompactJobList.from_jobs(read_raw_ddl_jobs(tikv, now))
    version = _version(tikv, jobs, ts)
    history = SchemaHistory()
    if not has_new_collations(tikv, now, new_collations):
        history.use_old_collations()
    history.advance(jobs.through(version), version)
    return SourceSchema.from_history(history, ts)


def _version(tikv: TiKVClient, jobs: CompactJobList, ts: int) -> int:
    """Return the schema version at `ts`.

    TiKV may have collected what it was then; each finished job has its end.
    """
    by_jobs = jobs.version_at(ts)
    try:
        version = version_at(tikv, ts)
    except TiKVError as error:
        log.warning(
            "TiKV doesn't give the schema version at %d, by the DDL jobs it is %d: %s",
            ts,
            by_jobs,
            error,
        )
        return by_jobs
    return version or by_jobs
