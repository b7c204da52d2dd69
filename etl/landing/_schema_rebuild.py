"""The upstream's schema as of a version: from the snapshot that the relay log keeps and the DDL jobs since, or from all
DDL jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from sluice.errors import SluiceError
from sluice.relay.schema_snapshots import SchemaSnapshots
from sluice.tidb import tso
from sluice.tidb.compact_job_list import CompactJobList
from sluice.tidb.history import SchemaHistory
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.tikv.meta import read_raw_ddl_jobs

if TYPE_CHECKING:
    from sluice.tidb import TiKVClient

log = logging.getLogger("sluice.land")

IsLate = Callable[[DdlHistoryJob], bool]
_COMMITTED_WITHIN = tso.span(10_000)
"""A job's end is the start_ts of the transaction that writes the binlog."""
MIN_JOBS_TO_SNAPSHOT = 256
"""So many DDL jobs are read within a moment; with more a snapshot is kept."""


class SchemaRebuilder:
    """Rebuilds schemas from the DDL history that `tikv` has as of `ts` (TSO). `old_collations`: see
    `sluice.tidb.old_collations`.
    """

    def __init__(self, tikv: TiKVClient, ts: int, *, old_collations: bool) -> None:
        self._tikv = tikv
        self._ts = ts
        self._old_collations = old_collations

    def without(self, version: int, early: Collection[int]) -> SchemaHistory:
        """Return the schema after all jobs through `version` but those with the ids `early`.

        Raises as `at`. A job can have a version below `version` and a binlog that comes later, see
        docs/decisions/0039-ddl-order-of-binlogs.md.
        """
        jobs = CompactJobList.from_jobs(read_raw_ddl_jobs(self._tikv, self._ts))
        history = self._empty()
        history.advance(jobs.through(version, early), version)
        return history

    def at(
        self, version: int, snapshots: SchemaSnapshots | None = None, is_late: IsLate | None = None, landed_ts: int = 0
    ) -> tuple[SchemaHistory, set[int]]:
        """The schema after all jobs through `version`, and the ids of those. Raises TiKVError, HistoryError,
        SchemaError.

        `is_late`: whether a job that ended about or behind `landed_ts` (TSO) is still to be landed: its DDL binlog may
        come behind that of a higher version.
        """
        kept = self._continue_from(version, snapshots) if snapshots is not None else None
        history, known, jobs = kept or (
            self._empty(),
            set(),
            CompactJobList.from_jobs(read_raw_ddl_jobs(self._tikv, self._ts)),
        )
        recent = jobs.ended_behind(landed_ts - _COMMITTED_WITHIN, version) if is_late is not None else ()
        late = {job.id for job in recent if is_late is not None and is_late(job)}
        if late:
            log.info("DDL jobs %s have a lower version than DDL that is landed, and are to be landed", sorted(late))
        history.advance(jobs.through(version, late), version)
        known |= jobs.ids_through(version, late)
        if snapshots is not None and len(jobs) >= MIN_JOBS_TO_SNAPSHOT and not late:
            self._save_snapshot(snapshots, history, known)
        return history, known

    def _empty(self) -> SchemaHistory:
        history = SchemaHistory()
        if self._old_collations:
            history.use_old_collations()
        return history

    def _continue_from(
        self, version: int, snapshots: SchemaSnapshots
    ) -> tuple[SchemaHistory, set[int], CompactJobList] | None:
        """A kept schema, the ids of the jobs in it, and the others; None if there is none to go on from."""
        try:
            document = snapshots.newest(version)
            if document is None:
                return None
            history, known = SchemaHistory.from_json(document["history"]), _parse_ids(document)
        except (OSError, SluiceError, KeyError, TypeError, ValueError) as error:
            log.warning("a kept schema can't be read, so all DDL jobs are gone through: %s", error)
            return None
        if history.has_old_collations != self._old_collations:
            return None
        jobs = CompactJobList.from_jobs(read_raw_ddl_jobs(self._tikv, self._ts, known))
        if jobs.first_version is not None and jobs.first_version <= history.schema_version:
            log.info("a DDL job of a version before the kept schema's came later: all DDL jobs are gone through")
            return None
        return history, known, jobs

    def _save_snapshot(self, snapshots: SchemaSnapshots, history: SchemaHistory, known: set[int]) -> None:
        try:
            snapshots.keep(history.schema_version, {"history": history.to_json(), "jobs": _deltas(known)})
        except OSError as error:  # it only saves time
            log.warning("the schema isn't kept for the next start: %s", error)


def _deltas(ids: set[int]) -> list[int]:
    """Ascending, each as the distance from the one before."""
    ordered = sorted(ids)
    return [after - before for before, after in zip([0, *ordered], ordered, strict=False)]


def _parse_ids(document: dict[str, Any]) -> set[int]:
    return set(accumulate(document["jobs"]))
