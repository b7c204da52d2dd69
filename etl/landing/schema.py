"""Keep the upstream's schema while windows are landed: find DDL jobs in TiKV for each window.

Each window's record describes the schemas that its rows need.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.landing._ddl_jobs import FinishedJobs, FinishedTableChange, UnlandedJobs, Wait
from sluice.etl.landing._doubled_tables import DoubledTables
from sluice.etl.landing._early_rows import EarlyRows
from sluice.etl.landing._job import TableSpan
from sluice.etl.landing._relaxed_keys import RelaxedKeys
from sluice.etl.landing._tables_without_ddl import TablesWithoutDdl, check_known
from sluice.etl.landing._window_rows import WindowRows
from sluice.etl.landing.extract import DdlRecord
from sluice.etl.landing.schema_rebuild import (
    HasLanded,
    InitialSchema,
    RebuildHistory,
    SchemaRebuilder,
    late_jobs,
)
from sluice.etl.landing.upstream_schema import (
    CommitVersions,
    PendingVersion,
    SchemaDiffs,
    has_new_collations,
)
from sluice.tidb.ddl_actions import MOVES_ROWS, WRITES_TWICE
from sluice.tidb.ddl_job import DdlEffect, DdlJob, FinishedRowMove
from sluice.tidb.ddl_schema_versions import finished_row_move, possibly_applied_through, versions_of
from sluice.tidb.history import RowMove, SchemaHistory
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.old_collations import binary_table
from sluice.tidb.partitions import physical_ids
from sluice.tidb.schema import Table
from sluice.tidb.tikv.meta import read_table_info, table_key

if TYPE_CHECKING:
    from sluice.tidb import PDClient, TiKVClient

log = logging.getLogger("sluice.land")

_VERSIONS_LOOKED_BACK = 32
"""A running change may have a version this far below that of finished DDL; measured: 1 to 4."""
_NO_ROWS = WindowRows()


class LandingSchema:
    """The schema as of the last landed window.

    After an exception from `resolve` it must be loaded again.
    """

    def __init__(  # noqa: PLR0913 what the last window record and the DDL jobs of the start give
        self,
        history: SchemaHistory,
        pd: PDClient,
        tikv: TiKVClient,
        relaxed: Mapping[str, Any] | None = None,
        known_jobs: Collection[int] = frozenset(),
        rebuilt: RebuildHistory | None = None,
        has_landed: HasLanded = lambda job_id, since_ts: False,
        doubled: Mapping[int, bool] | None = None,
    ) -> None:
        """Begin at `history`, which includes the DDL jobs with the ids `known_jobs`.

        `relaxed`: as in the last window record. `rebuilt` makes the same history without some of
        these jobs. `doubled`: as in the last window record, and tables that are reorganized now.
        """
        self._pd = pd
        self._tikv = tikv
        self._history = history
        self._rebuilt = rebuilt
        self._has_landed = has_landed
        self._known_jobs = known_jobs
        self._steps: list[tuple[int, int]] = []
        """Job id and schema state of each DDL binlog since the beginning."""
        self._diffs = SchemaDiffs(pd, tikv)
        self._commit_versions = CommitVersions(tikv)
        self._jobs = FinishedJobs(pd, tikv)
        self._unlanded_jobs = UnlandedJobs(pd, tikv, frozenset(known_jobs))
        self._early_rows = EarlyRows(pd, tikv, self._diffs.read)
        self._relaxed_keys = RelaxedKeys(relaxed)
        self._doubled_tables = DoubledTables(doubled or {})
        self._without_ddl = TablesWithoutDdl(pd, tikv)
        self._scanned_through = max(
            0, history.schema_version - (_VERSIONS_LOOKED_BACK if rebuilt else 0)
        )
        self.written_twice: frozenset[int] = frozenset()
        """The tables of the last window of which TiDB may have written rows twice."""

    @classmethod
    def load(
        cls, pd: PDClient, tikv: TiKVClient, begin: InitialSchema, new_collations: str = "auto"
    ) -> LandingSchema:
        """Rebuild the schema that landing begins with from TiDB's DDL jobs.

        `new_collations`: see Upstream. Raises PDError, TiKVError, HistoryError, SchemaError.
        """
        old_collations = not has_new_collations(tikv, pd.tso(), new_collations)
        if old_collations:
            log.info("the upstream has no new collations: text compares byte for byte")
        rebuilder = SchemaRebuilder(tikv, pd.tso(), old_collations=old_collations)
        lo, hi = begin.landed or (0, 0)
        is_late = late_jobs(lo, begin.has_landed) if begin.landed else None
        rebuilt = rebuilder.at_version(begin.schema_version, begin.snapshots, is_late, hi)
        doubled = dict.fromkeys(rebuilt.reorganized, False)
        doubled |= {
            int(table_id): bool(differ) for table_id, differ in (begin.doubled or {}).items()
        }
        return cls(
            rebuilt.history, pd, tikv, begin.relaxed, rebuilt.known_jobs,
            lambda early: rebuilder.without(begin.schema_version, early), begin.has_landed, doubled,
        )  # fmt: skip

    @property
    def schema_version(self) -> int:
        return self._history.schema_version

    @property
    def tables(self) -> Mapping[int, Table]:
        """Return the tables, by id, behind the last window of `resolve`."""
        return self._history.tables

    def resolve(  # noqa: PLR0913 what is known of a window
        self,
        ddls: Sequence[DdlRecord],
        spans: Mapping[int, TableSpan],
        wait: Wait,
        skips: Collection[int] = (),
        rows: WindowRows = _NO_ROWS,
        version: PendingVersion | None = None,
    ) -> RecordedSchema:
        """Move on over the window's DDL and return the window's schema.

        `spans`: by table id, where in the window the table has rows. `rows`: the rows themselves.
        `version`: that of the window's end, if it is being read already.
        An unknown table is no error if its rows begin in a transaction at `skips`, which won't be
        applied; once they are, the later rows raise. Raises UnknownTableError, LandingStopped,
        PDError, TiKVError, HistoryError.
        """
        ddls = self._in_order(ddls, spans, wait, rows)
        # Nearly all windows come without DDL, and there may be tens of thousands of tables.
        before = self._history.tables.copy() if ddls else self._history.tables
        truncated_before = set(self._history.truncated) if ddls else self._history.truncated
        changed_before = self._history.changed_at.copy() if ddls else self._history.changed_at
        states = {i: [before[i]] for i in spans if i in before}
        described = []
        moved = self._moved(spans)
        born: dict[int, int] = {}
        wanted = set(spans).union(*(move.effect.tables for move in moved))
        self._doubled_tables.begin_window()
        for record in ddls:
            job = self._jobs.await_job(record, wait)
            self._steps.append((job.id, job.schema_state))
            if not job.finished:
                log.info(
                    "DDL job %d at commit_ts %d changed nothing: state=%d schema_version=%d",
                    job.id, record.commit_ts, job.state, job.schema_version,
                )  # fmt: skip
                if job.type in WRITES_TWICE:
                    self._doubled_tables.finish(
                        (job.table_id,), job.schema_version or self._scanned_through
                    )
                    self._history.written_twice[job.table_id] = job.finished_ts or record.commit_ts
                continue
            schema = self._history.schemas.get(job.schema_id)
            schema_before = schema.name if schema else job.schema_name
            since = self._history.changed_at.get(job.table_id, 0)
            effect = self._history.apply(job)
            wanted |= set(effect.tables)
            self._doubled_tables.finish(effect.tables, job.schema_version)
            self._relaxed_keys.drop_landed(effect.tables)
            for table_id, table in effect.tables.items():
                if table is not None:
                    born.setdefault(table_id, record.commit_ts)
            described.append(self._describe(record, job, schema_before, since, effect))
            for table_id, table in effect.tables.items():
                if table is not None and table_id in spans:
                    states.setdefault(table_id, []).append(table)
        truncated = {i for i in spans if i in truncated_before or i in self._history.truncated}
        known = truncated.union(i for i in spans if i in before)
        found = self._without_ddl.add(self._history, spans, known, born, skips, rows)
        if found:
            described = sorted([*described, *found], key=lambda ddl: ddl.commit_ts)
        check_known(self._history, spans, known, born, skips)
        newest = self._commit_versions.newest(spans.values(), version)
        relaxed = self._relax(spans, states, changed_before, newest, wait)
        self.written_twice = self._doubled_tables.written_twice(spans, self._history.written_twice)
        return RecordedSchema(
            tables={i: before[i] for i in sorted(wanted) if i in before},
            ddls=tuple(described),
            truncated_tables=tuple(sorted(i for i in spans if i in truncated and i not in before)),
            schema_version=self._history.schema_version,
            moved=moved,
            relaxed=relaxed,
        )

    def with_doubled(self, described: RecordedSchema, differ: Collection[int]) -> RecordedSchema:
        """Return what `resolve` returned with the tables still reorganized behind the window.

        `differ`: tables of `written_twice` of which the window has copies with other hidden row
        ids.
        """
        return self._doubled_tables.describe(described, differ)

    def physical_ids(self, table: Table, start_ts: int, commit_ts: int) -> set[int]:
        """Return the ids under which a transaction may have written rows of a table.

        They are those of every definition meanwhile. Raises TiKVError.
        """
        key = table_key(table.schema_id, table.id)
        writes = self._tikv.mvcc_get_many([key])[key].writes
        moments = {
            start_ts,
            commit_ts,
            *(w.commit_ts for w in writes if start_ts < w.commit_ts <= commit_ts),
        }
        infos = [
            read_table_info(self._tikv, table.schema_id, table.id, ts) for ts in sorted(moments)
        ]
        tables = [
            Table.from_tidb(info, table.schema_id, table.schema_name)
            for info in infos
            if info is not None
        ]
        return {table.id}.union(*map(physical_ids, (table, *tables)))

    def _in_order(
        self,
        ddls: Sequence[DdlRecord],
        spans: Mapping[int, TableSpan],
        wait: Wait,
        rows: WindowRows,
    ) -> Sequence[DdlRecord]:
        """Return the DDL that the window is to have.

        It lacks what is landed already, and has what rows know early.
        """
        late = {record.job_id for record in ddls if self._is_landed(record.job_id)}
        if late:
            self._early_rows.landed -= late
            ddls = [record for record in ddls if record.job_id not in late]
        self._rebuild_before(ddls)
        newest = max((span.newest_version for span in spans.values()), default=0)
        self._scan_versions(newest, self._history.changed_at)

        self._unlanded_jobs.begin()

        def next_change(
            table: Table, after_version: int, *, comes: bool
        ) -> FinishedTableChange | None:
            after = after_version or self._history.changed_at.get(table.id, 0)
            return (
                self._unlanded_jobs.await_first_change(table, after, ddls, wait)
                if comes
                else self._unlanded_jobs.first_change(table, after, ddls)
            )

        @functools.cache
        def births() -> dict[int, tuple[Table, int, int]]:
            return self._births(ddls, wait)

        return self._early_rows.in_order(
            ddls,
            spans,
            self._history.tables,
            rows,
            next_change,
            lambda table_id: births().get(table_id),
        )

    def _births(self, ddls: Sequence[DdlRecord], wait: Wait) -> dict[int, tuple[Table, int, int]]:
        """Return tables by id as the first of the window's DDL that has them leaves them.

        With each come its version and commit_ts.
        """
        history = SchemaHistory.from_json(self._history.to_json())
        found: dict[int, tuple[Table, int, int]] = {}
        for record in ddls:
            job = self._jobs.await_job(record, wait)
            # not what the job's document holds: EXCHANGE PARTITION's has one table of its two
            for table_id, table in history.apply(job).tables.items():
                if table is not None:
                    found.setdefault(table_id, (table, job.schema_version, record.commit_ts))
        return found

    def _is_landed(self, job_id: int) -> bool:
        """Return whether a job was landed before its binlog, by this process or an earlier one."""
        if job_id in self._early_rows.landed:
            return True
        if job_id not in self._known_jobs:
            return False
        job = self._jobs.find(job_id)
        return job is not None and job.finished and self._has_landed(job_id, job.start_ts)

    def _rebuild_before(self, ddls: Sequence[DdlRecord]) -> None:
        """Rebuild the history if it includes a job whose binlog comes only now.

        TiDB writes the binlog of a multi-schema change in a transaction behind the one that took
        its version. Landing that begins between the two takes the job for done, since another
        table's DDL has a higher version.
        """
        known = {record.job_id for record in ddls} & set(self._known_jobs)
        early = {
            job_id
            for job_id in known
            if (job := self._jobs.find(job_id)) is not None and job.finished
        }
        if not early or self._rebuilt is None:
            return
        log.info(
            "DDL jobs %s have a lower version than DDL whose binlog came before theirs",
            sorted(early),
        )
        self._history = self._rebuilt(early)
        self._known_jobs = frozenset(self._known_jobs) - early
        for job_id, schema_state in self._steps:
            if (job := self._jobs.find(job_id, schema_state)) is not None:
                self._history.apply(job)

    def _describe(
        self, record: DdlRecord, job: DdlHistoryJob, schema_name: str, since: int, effect: DdlEffect
    ) -> DdlJob:
        """Return the job of a DDL binlog.

        `since`: the schema version of the job before it on the same table.
        """
        described = DdlJob(
            record.commit_ts,
            record.start_ts,
            record.job_id,
            record.schema_state,
            record.query,
            type=job.type,
            schema_version=job.schema_version,
            schema_name=schema_name or job.schema_name,
            table_name=job.table_name,
            effect=effect,
            time_zone=job.time_zone,
            sql_mode=job.sql_mode,
            converted_from_ts=job.start_ts,
        )
        if job.type not in MOVES_ROWS:
            return described
        versions = tuple(versions_of(job, since, self._diffs.read))
        return replace(
            described, began_ts=job.start_ts, finished_ts=job.finished_ts, versions=versions
        )

    def _moved(self, spans: Mapping[int, TableSpan]) -> tuple[FinishedRowMove, ...]:
        """Return DDL that has ended, and that some of these rows don't know of."""
        late: dict[int, RowMove] = {}
        for table_id, span in spans.items():
            for moved in self._history.moved.get(table_id, ()):
                if (
                    span.oldest_version < moved.job.schema_version
                    or span.first_commit_ts <= possibly_applied_through(moved.job)
                ):
                    late[moved.job.schema_version] = moved
        return tuple(
            finished_row_move(late[v], versions_of(late[v].job, late[v].since, self._diffs.read))
            for v in sorted(late)
        )

    def recent_moves(
        self, described: RecordedSchema, spans: Mapping[int, TableSpan]
    ) -> list[FinishedRowMove]:
        """Return what DDL through the window moved lately in tables of this window.

        The window is the one that `resolve` has described.
        """
        inside = {ddl.job_id: ddl for ddl in described.ddls}
        wanted = set(spans).union(*(ddl.effect.tables for ddl in described.ddls))
        found = {
            move.job.id: move for i in sorted(wanted) for move in self._history.moved.get(i, ())
        }
        return [
            finished_row_move(
                move,
                (
                    inside[job_id].versions
                    if job_id in inside
                    else versions_of(move.job, move.since, self._diffs.read)
                ),
            )
            for job_id, move in found.items()
        ]

    def definitions_to_come(self, table_id: int) -> list[Table]:
        """Return the definitions that a table has had since the window of `resolve`, in order.

        The last one may be that of a job that isn't over.
        """
        known = self._history.tables.get(table_id)
        if known is None:
            return []
        tables = self._unlanded_jobs.definitions(known, self._history.changed_at.get(table_id, 0))
        return (
            [binary_table(table) for table in tables]
            if self._history.has_old_collations
            else tables
        )

    def _relax(
        self,
        spans: Mapping[int, TableSpan],
        states: Mapping[int, Sequence[Table]],
        changed_before: Mapping[int, int],
        newest: int,
        wait: Wait,
    ) -> dict[int, tuple[int, ...]]:
        """Return the unique indexes that the upstream gives up before a DDL binlog names them.

        `newest`: the newest schema version by which the window's rows may have been written.
        """
        changed_at = self._history.changed_at
        self._scan_versions(max(newest, self._history.schema_version), changed_before)

        def latest_info(table: Table) -> Mapping[str, Any] | None:
            return self._unlanded_jobs.latest_info(table, changed_at.get(table.id, 0), newest, wait)

        relaxed = self._relaxed_keys.of_window(states, changed_before, changed_at, latest_info)
        self._early_rows.drop_landed(changed_at)
        return {i: indexes for i, indexes in relaxed.items() if i in spans}

    def _scan_versions(self, newest: int, changed_before: Mapping[int, int]) -> None:
        """Record what the schema versions through `newest` change before their DDL binlog comes."""
        versions = range(self._scanned_through + 1, newest + 1)
        self._early_rows.add_versions(versions, changed_before)
        for version in versions:
            self._doubled_tables.add_version(
                version, self._diffs.read(version) or {}, changed_before
            )
            self._relaxed_keys.add_version(version, self._diffs.read, changed_before)
        self._scanned_through = max(self._scanned_through, newest)
