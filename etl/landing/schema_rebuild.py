"""Rebuild the schema that landing begins with, from a snapshot and the DDL jobs since, or from all.

TiDB's DDL history is read as of one TSO, once: it may hold a gigabyte. Only a snapshot that turns
out to be unusable costs a second reading.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.errors import SluiceError
from sluice.relay.schema_snapshots import SchemaSnapshots
from sluice.tidb import tso
from sluice.tidb.compact_job_list import CompactJobList
from sluice.tidb.ddl_actions import WRITES_TWICE
from sluice.tidb.history import SchemaHistory
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.tikv.meta import read_raw_ddl_jobs, read_running_jobs

if TYPE_CHECKING:
    from sluice.tidb import TiKVClient

log = logging.getLogger("sluice.land")

IsLate = Callable[[DdlHistoryJob], bool]
HasLanded = Callable[[int, int], bool]
"""Returns whether a window behind a TSO names a DDL job, by the job's id and the TSO."""
RebuildHistory = Callable[[Collection[int]], SchemaHistory]
"""Returns the history that landing begins with, without the DDL jobs of these ids."""

_COMMITTED_WITHIN = tso.span(10_000)
"""A job's end is the start_ts of the transaction that writes the binlog."""
MIN_JOBS_TO_SNAPSHOT = 256
"""Fewer DDL jobs are read in an instant; from this number on a snapshot is written."""


@dataclass(frozen=True, slots=True)
class InitialSchema:
    """The schema that landing begins with. `relaxed` and `doubled` are the last window record's."""

    schema_version: int
    relaxed: Mapping[str, Any] | None = None
    snapshots: SchemaSnapshots | None = None
    """The store of schemas for the next start."""
    doubled: Mapping[str, Any] | None = None
    has_landed: HasLanded = lambda job_id, since_ts: False
    """Called for jobs whose binlog comes late."""
    landed: tuple[int, int] | None = None
    """(lo, hi] of what is landed, empty before the first window; None: no job's binlog is late."""


def late_jobs(begin_ts: int, has_landed: HasLanded) -> IsLate:
    """Return a test for jobs whose DDL binlog is behind `begin_ts` and not landed.

    `begin_ts` (TSO): where the relay log begins.
    """
    return lambda job: job.finished_ts > begin_ts and not has_landed(job.id, job.start_ts)


class RebuiltSchema(NamedTuple):
    """A schema as of a version, and what TiDB's DDL jobs show of the time behind it."""

    history: SchemaHistory
    known_jobs: set[int]
    """Ids of the DDL jobs that `history` includes."""
    reorganized: set[int]
    """Ids of tables that a job behind the version has reorganized or may be reorganizing.

    It is a job of WRITES_TWICE.
    """


class SchemaRebuilder:
    """Rebuild schemas from the DDL jobs that `tikv` has as of `ts` (TSO).

    `old_collations`: see `sluice.tidb.old_collations`.
    """

    def __init__(self, tikv: TiKVClient, ts: int, *, old_collations: bool) -> None:
        self._tikv = tikv
        self._ts = ts
        self._old_collations = old_collations

    def without(self, version: int, early: Collection[int]) -> SchemaHistory:
        """Return the schema after all jobs through `version` except those with the ids `early`.

        Raises as `at_version`. A job can have a version below `version` and a binlog that comes
        later, see docs/decisions/0039-ddl-order-of-binlogs.md.
        """
        history = self._empty()
        history.advance(self._read_jobs().through(version, early), version)
        return history

    def at_version(
        self,
        version: int,
        snapshots: SchemaSnapshots | None = None,
        is_late: IsLate | None = None,
        landed_ts: int = 0,
    ) -> RebuiltSchema:
        """Return the schema after all jobs through `version`.

        Raises TiKVError, HistoryError, SchemaError.

        `is_late`: whether a job that ended about or behind `landed_ts` (TSO) is still to be landed.
        Its DDL binlog may come behind that of a higher version.
        """
        kept = self._continue_from(version, snapshots) if snapshots is not None else None
        history, known, jobs = kept or (self._empty(), set(), self._read_jobs())
        recent = (
            jobs.ended_behind(landed_ts - _COMMITTED_WITHIN, version) if is_late is not None else ()
        )
        late = {job.id for job in recent if is_late is not None and is_late(job)}
        if late:
            log.info(
                "DDL jobs %s have a lower version than DDL that is landed, and are to be landed",
                sorted(late),
            )
        history.advance(jobs.through(version, late), version)
        known |= jobs.ids_through(version, late)
        if snapshots is not None and len(jobs) >= MIN_JOBS_TO_SNAPSHOT and not late:
            self._save_snapshot(snapshots, history, known)
        return RebuiltSchema(history, known, self._reorganized(jobs, version))

    def _read_jobs(self, known: Collection[int] = frozenset()) -> CompactJobList:
        return CompactJobList.from_jobs(read_raw_ddl_jobs(self._tikv, self._ts, known))

    def _reorganized(self, finished: CompactJobList, version: int) -> set[int]:
        # As of the same TSO as the finished ones: a job that ends between two TSOs would be in
        # neither list.
        running = (
            DdlHistoryJob.from_json(document)
            for document in read_running_jobs(self._tikv, self._ts)
        )
        return {
            job.table_id for job in (*running, *finished.after(version)) if job.type in WRITES_TWICE
        }

    def _empty(self) -> SchemaHistory:
        history = SchemaHistory()
        if self._old_collations:
            history.use_old_collations()
        return history

    def _continue_from(
        self, version: int, snapshots: SchemaSnapshots
    ) -> tuple[SchemaHistory, set[int], CompactJobList] | None:
        """Return a snapshot's schema, the ids of its jobs, and the other jobs.

        None without a usable snapshot.
        """
        try:
            document = snapshots.newest(version)
            if document is None:
                return None
            history, known = SchemaHistory.from_json(document["history"]), _parse_ids(document)
        except (OSError, SluiceError, KeyError, TypeError, ValueError) as error:
            log.warning("cannot read the schema snapshot, reading all DDL jobs instead: %s", error)
            return None
        if history.has_old_collations != self._old_collations:
            return None
        jobs = self._read_jobs(known)
        if jobs.first_version is not None and jobs.first_version <= history.schema_version:
            log.info(
                "a DDL job older than the schema snapshot was added since: reading all DDL jobs"
            )
            return None
        return history, known, jobs

    def _save_snapshot(
        self, snapshots: SchemaSnapshots, history: SchemaHistory, known: set[int]
    ) -> None:
        try:
            snapshots.keep(
                history.schema_version, {"history": history.to_json(), "jobs": _deltas(known)}
            )
        except OSError as error:  # it only saves time
            log.warning("cannot write the schema snapshot; the next start takes longer: %s", error)


def _deltas(ids: set[int]) -> list[int]:
    """Return the ids in ascending order, each as the distance from the one before."""
    ordered = sorted(ids)
    return [after - before for before, after in zip([0, *ordered], ordered, strict=False)]


def _parse_ids(document: dict[str, Any]) -> set[int]:
    return set(accumulate(document["jobs"]))
