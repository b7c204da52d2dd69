"""What the upstream's databases and tables were at a timestamp, from TiDB's DDL job history, as landing knows them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from etl.landing import has_new_collations, version_at
from upstream import TiKVError
from upstream.history import SYSTEM_SCHEMAS, SchemaHistory
from upstream.packed_jobs import PackedJobs
from upstream.schema import Schema, Table
from upstream.tikv.meta import read_raw_ddl_jobs

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
    jobs = PackedJobs.of(read_raw_ddl_jobs(tikv, now))
    version = _version(tikv, jobs, ts)
    history = SchemaHistory()
    if not has_new_collations(tikv, now, new_collations):
        history.use_old_collations()
    history.advance(jobs.through(version), version)
    return Definitions.of(history, ts)


def _version(tikv: TiKVClient, jobs: PackedJobs, ts: int) -> int:
    """The schema version at `ts`. TiKV may have collected what it was then; each finished job says when it ended."""
    by_jobs = jobs.version_at(ts)
    try:
        version = version_at(tikv, ts)
    except TiKVError as error:
        log.warning("TiKV doesn't tell the schema version at %d, the DDL jobs say %d: %s", ts, by_jobs, error)
        return by_jobs
    return version or by_jobs
