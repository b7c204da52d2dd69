"""The upstream's schema while windows are landed: DDL jobs looked up in TiKV, tables attached to windows."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sluice.errors import SluiceError
from sluice.etl.changes.recorded_schema import RecordedSchema
from sluice.etl.landing._early_rows import EarlyRows, free_before
from sluice.etl.landing._job import TableSpan
from sluice.etl.landing._next_change import FinishedTableChange, LandingStopped, UnlandedJobs
from sluice.etl.landing._schema_rebuild import IsLate, SchemaRebuilder
from sluice.etl.landing._window_rows import WindowRows
from sluice.etl.landing.extract import DdlRecord
from sluice.tidb import TiKVError, read_ddl_job, read_schema_version
from sluice.tidb.compact_job_list import CompactJobList
from sluice.tidb.ddl_actions import MOVES_ROWS, WRITES_TWICE, Action
from sluice.tidb.ddl_job import DdlEffect, DdlJob, FinishedRowMove
from sluice.tidb.ddl_schema_versions import (
    LONGEST_STATEMENT,
    as_info,
    finished_row_move,
    loosened_tables,
    possibly_applied_through,
    relaxed_indexes,
    versions_of,
)
from sluice.tidb.history import RowMove, SchemaHistory
from sluice.tidb.job import DdlHistoryJob
from sluice.tidb.old_collations import binary_table
from sluice.tidb.partitions import physical_ids
from sluice.tidb.schema import STATE_PUBLIC, Table
from sluice.tidb.table_name import argument
from sluice.tidb.tikv.collations import read_new_collations
from sluice.tidb.tikv.meta import (
    find_table_by_id,
    find_table_info,
    read_raw_ddl_jobs,
    read_schema_diff,
    read_table_info,
    string_key,
    table_key,
)
from sluice.tidb.tikv.running_jobs import read_running_jobs

if TYPE_CHECKING:
    from sluice.relay.schema_snapshots import SchemaSnapshots
    from sluice.tidb import PDClient, TiKVClient

log = logging.getLogger("sluice.land")

_RETRY_DELAYS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_MAX_CACHED_DIFFS = 4096
_NO_ROWS = WindowRows()
_VERSIONS_LOOKED_BACK = 32
"""A change may be under way whose version is so far below that of DDL which is over; measured: 1 to 4."""


class UnknownTableError(SluiceError):
    """Rows belong to a table that no DDL job up to their commit has made; names table id and commit_ts."""

    way_out = "leave the transaction out: `sluice txn skip`"


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


def has_new_collations(tikv: TiKVClient, ts: int, setting: str) -> bool:
    """Whether collations mean what they say upstream, as set, or else as TiDB noted it when it was bootstrapped. Raises
    TiKVError. The table is looked for as of `ts`, a fresh TSO: in the schema that landing begins with it may not exist
    yet.
    """
    if setting != "auto":
        return setting == "true"
    table = find_table_info(tikv, "mysql", "tidb", ts)
    found = read_new_collations(tikv, int(table["id"]), ts) if table is not None else None
    if found is None:
        log.warning(
            "nothing in mysql.tidb tells whether the upstream has new collations; [upstream] new-collations does,"
            " taking it as true"
        )
    return found is not False


def reorganized_since(tikv: TiKVClient, ts: int, version: int, known: Collection[int]) -> set[int]:
    """Return the ids of tables that a job of WRITES_TWICE may reorganize behind a schema version.

    `ts`: now. `known`: ids of jobs that needn't be read. Raises TiKVError, HistoryError, SchemaError.
    """
    running = (DdlHistoryJob.from_json(document) for document in read_running_jobs(tikv, ts))
    finished = CompactJobList.from_jobs(read_raw_ddl_jobs(tikv, ts, known)).after(version)
    return {job.table_id for job in (*running, *finished) if job.type in WRITES_TWICE}


HasLanded = Callable[[int, int], bool]


@dataclass(frozen=True, slots=True)
class InitialSchema:
    """The schema that landing begins with. `relaxed`, `doubled`: as in the last window record; `snapshots`: where
    schemas are kept for the next time.
    """

    schema_version: int
    relaxed: Mapping[str, Any] | None = None
    snapshots: SchemaSnapshots | None = None
    doubled: Mapping[str, Any] | None = None
    has_landed: HasLanded = lambda job_id, since_ts: False
    """Whether a window behind a TSO names a DDL job by id. It is asked about jobs whose binlog comes late."""
    landed: tuple[int, int] | None = None
    """(lo, hi] of what is landed, empty before the first window; None: no job's binlog comes late."""


def late_jobs(begin_ts: int, has_landed: HasLanded) -> IsLate:
    """Return whether a job's DDL binlog comes behind `begin_ts` (TSO), where the relay log begins, and isn't landed."""
    return lambda job: job.finished_ts > begin_ts and not has_landed(job.id, job.start_ts)


RebuildHistory = Callable[[Collection[int]], SchemaHistory]
"""From the ids of DDL jobs: the history that landing begins with, without these jobs."""


class LandingSchema:
    """The schema as of the last landed window. After an exception from `resolve` it must be loaded again."""

    def __init__(  # noqa: PLR0913 two of them as the history was begun
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
        """Begin at `history`, which has gone past the DDL jobs with the ids `known_jobs`.

        `relaxed`: as in the last window record. `rebuilt`: makes the same history without some of these jobs.
        `has_landed`: see SchemaBegin. `doubled`: as in the last window record, and tables that are reorganized by now.
        """
        self._history = history
        self._rebuilt = rebuilt
        self._steps: list[tuple[int, int]] = []
        """Job id and schema state of each DDL binlog since the beginning."""
        self._diffs: dict[int, dict[str, Any]] = {}
        self._known_jobs = known_jobs
        self._unlanded_jobs = UnlandedJobs(pd, tikv, frozenset(known_jobs))
        self._relaxed = {int(i): list(indexes) for i, indexes in (relaxed or {}).items()}
        self._early_rows = EarlyRows(pd, tikv, self._read_diff)
        self._has_landed = has_landed
        self._weakened_tables: dict[int, tuple[int, bool]] = {}
        """By table id: a schema version that may give up keys, and whether it removes partitions; no DDL binlog of the
        table has come since."""
        self._doubled = {table_id: (0, differ) for table_id, differ in (doubled or {}).items()}
        """By table id: a schema version of a job of WRITES_TWICE that isn't over, and whether row ids differ."""
        self._finished_moves: dict[int, int] = {}
        """By table id: the newest schema version whose DDL the window has."""
        self.written_twice: frozenset[int] = frozenset()
        """The tables of the window that `resolve` has described of which TiDB may have written rows twice."""
        self._loosened_through = max(0, history.schema_version - (_VERSIONS_LOOKED_BACK if rebuilt else 0))
        self._pd = pd
        self._tikv = tikv

    @classmethod
    def load(
        cls,
        pd: PDClient,
        tikv: TiKVClient,
        begin: InitialSchema,
        new_collations: str = "auto",
    ) -> LandingSchema:
        """Rebuild it from TiDB's DDL job history. `new_collations`: see Upstream. Raises PDError, TiKVError,
        HistoryError, SchemaError.
        """
        old_collations = not has_new_collations(tikv, pd.tso(), new_collations)
        if old_collations:
            log.info("the upstream has no new collations: text compares byte for byte")
        then = SchemaRebuilder(tikv, pd.tso(), old_collations=old_collations)
        lo, hi = begin.landed or (0, 0)
        is_late = late_jobs(lo, begin.has_landed) if begin.landed else None
        history, known = then.at(begin.schema_version, begin.snapshots, is_late, hi)
        doubled = dict.fromkeys(reorganized_since(tikv, pd.tso(), begin.schema_version, known), False)
        doubled |= {int(table_id): bool(differ) for table_id, differ in (begin.doubled or {}).items()}
        return cls(
            history, pd, tikv, begin.relaxed, known,
            lambda early: then.without(begin.schema_version, early), begin.has_landed, doubled,
        )  # fmt: skip

    @property
    def schema_version(self) -> int:
        return self._history.schema_version

    def resolve(
        self,
        ddls: Sequence[DdlRecord],
        spans: Mapping[int, TableSpan],
        wait: Callable[[float], bool],
        skips: Collection[int] = (),
        rows: WindowRows = _NO_ROWS,
    ) -> RecordedSchema:
        """Move on over the window's DDL and describe it. An unknown table is no error if its rows begin in a
        transaction at `skips`, which won't be applied; later ones are found when they are.

        `spans`: which tables have rows in the window, which are `rows`. `wait(seconds)` sleeps
        and returns True if the run is to stop. Raises UnknownTableError, Stopped, PDError, TiKVError, HistoryError.
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
        self._finished_moves = {}
        for record in ddls:
            job = self._job(record, wait)
            self._steps.append((job.id, job.schema_state))
            if not job.finished:
                log.info(
                    "DDL job %d at commit_ts %d changed nothing: state=%d schema_version=%d",
                    job.id, record.commit_ts, job.state, job.schema_version,
                )  # fmt: skip
                if job.type in WRITES_TWICE:
                    self._finished_moves[job.table_id] = job.schema_version or self._loosened_through
                    self._history.written_twice[job.table_id] = job.finished_ts or record.commit_ts
                continue
            schema = self._history.schemas.get(job.schema_id)
            schema_before = schema.name if schema else job.schema_name
            since = self._history.changed_at.get(job.table_id, 0)
            effect = self._history.apply(job)
            wanted |= set(effect.tables)
            self._finished_moves |= dict.fromkeys(effect.tables, job.schema_version)
            for table_id, table in effect.tables.items():
                if table is not None:
                    born.setdefault(table_id, record.commit_ts)
            described.append(self._describe(record, job, schema_before, since, effect))
            for table_id, table in effect.tables.items():
                self._relaxed.pop(table_id, None)
                if table is not None and table_id in spans:
                    states.setdefault(table_id, []).append(table)
        truncated = {i for i in spans if i in truncated_before or i in self._history.truncated}
        known = truncated.union(i for i in spans if i in before)
        found = self._found(spans, known, born, skips, rows)
        if found:
            described = sorted([*described, *found], key=lambda ddl: ddl.commit_ts)
        self._check_known(spans, known, born, skips)
        relaxed = self._relax(spans, states, changed_before, wait)
        self.written_twice = frozenset(i for i, span in spans.items() if self._is_written_twice(i, span))
        return RecordedSchema(
            tables={i: before[i] for i in sorted(wanted) if i in before},
            ddls=tuple(described),
            truncated_tables=tuple(sorted(i for i in spans if i in truncated and i not in before)),
            schema_version=self._history.schema_version,
            moved=moved,
            relaxed=relaxed,
        )

    def _is_written_twice(self, table_id: int, span: TableSpan) -> bool:
        finished_ts = self._history.written_twice.get(table_id)
        return table_id in self._doubled or (
            finished_ts is not None and span.first_commit_ts <= finished_ts + LONGEST_STATEMENT
        )

    def with_doubled(self, described: RecordedSchema, differ: Collection[int]) -> RecordedSchema:
        """Return what `resolve` has described with the tables that are reorganized behind the window.

        `differ`: tables of `written_twice` of which the window has copies with other hidden row ids. The DDL that ends
        such a job is marked.
        """
        for table_id in differ:
            self._doubled[table_id] = self._doubled.get(table_id, (0, False))[0], True
        marked = {table_id for table_id, (_, is_differing) in self._doubled.items() if is_differing}
        ddls = tuple(
            replace(ddl, row_ids_differ=True)
            if ddl.type in WRITES_TWICE and not marked.isdisjoint(ddl.effect.tables)
            else ddl
            for ddl in described.ddls
        )
        self._doubled = {i: state for i, state in self._doubled.items() if self._finished_moves.get(i, -1) < state[0]}
        return replace(described, ddls=ddls, doubled={i: state[1] for i, state in self._doubled.items()})

    def physical_ids(self, table: Table, start_ts: int, commit_ts: int) -> set[int]:
        """Return the ids under which a transaction may have written rows of a table, by every definition meanwhile.

        Raises TiKVError.
        """
        key = table_key(table.schema_id, table.id)
        writes = self._tikv.mvcc_get_many([key])[key].writes
        moments = {start_ts, commit_ts, *(w.commit_ts for w in writes if start_ts < w.commit_ts <= commit_ts)}
        infos = [read_table_info(self._tikv, table.schema_id, table.id, ts) for ts in sorted(moments)]
        tables = [Table.from_tidb(info, table.schema_id, table.schema_name) for info in infos if info is not None]
        return {table.id}.union(*map(physical_ids, (table, *tables)))

    def _in_order(
        self,
        ddls: Sequence[DdlRecord],
        spans: Mapping[int, TableSpan],
        wait: Callable[[float], bool],
        rows: WindowRows,
    ) -> Sequence[DdlRecord]:
        """Return the DDL that the window is to have: without what is landed already, with what rows know early."""
        late = {record.job_id for record in ddls if self._is_landed(record.job_id)}
        if late:
            self._early_rows.landed -= late
            ddls = [record for record in ddls if record.job_id not in late]
        self._rebuild_before(ddls)
        newest = max((span.newest_version for span in spans.values()), default=0)
        self._scan_versions(newest, self._history.changed_at)

        self._unlanded_jobs.begin()

        def next_change(table: Table, after_version: int, *, comes: bool) -> FinishedTableChange | None:
            after = after_version or self._history.changed_at.get(table.id, 0)
            return (
                self._unlanded_jobs.wait_for_first(table, after, ddls, wait)
                if comes
                else self._unlanded_jobs.first(table, after, ddls)
            )

        @functools.cache
        def births() -> dict[int, tuple[Table, int, int]]:
            return self._births(ddls, wait)

        return self._early_rows.in_order(
            ddls, spans, self._history.tables, rows, next_change, lambda table_id: births().get(table_id)
        )

    def _births(self, ddls: Sequence[DdlRecord], wait: Callable[[float], bool]) -> dict[int, tuple[Table, int, int]]:
        """Return tables by id as the first of the window's DDL leaves them that has them, with its version and
        commit_ts.
        """
        found: dict[int, tuple[Table, int, int]] = {}
        for record in ddls:
            job = self._job(record, wait)
            for info in (job.table_info, *job.table_infos) if job.finished else ():
                if info is not None and int(info["id"]) not in found:
                    table = Table.from_tidb(info, job.schema_id, job.schema_name)
                    found[table.id] = table, job.schema_version, record.commit_ts
        return found

    def _is_landed(self, job_id: int) -> bool:
        """Whether a job was landed before its binlog, by this process or one before."""
        if job_id in self._early_rows.landed:
            return True
        if job_id not in self._known_jobs:
            return False
        raw = read_ddl_job(self._tikv, job_id, self._pd.tso())
        job = DdlHistoryJob.from_json(raw) if raw is not None else None
        return job is not None and job.finished and self._has_landed(job_id, job.start_ts)

    def _rebuild_before(self, ddls: Sequence[DdlRecord]) -> None:
        """Rebuild the history if it is past a job whose binlog comes only now.

        TiDB writes the binlog of a multi-schema change in a transaction behind the one that took its version. Landing
        that begins between the two takes the job for done, since another table's DDL has a higher version.
        """
        early = {record.job_id for record in ddls if record.job_id in self._known_jobs and self._changed(record.job_id)}
        if not early or self._rebuilt is None:
            return
        log.info("DDL jobs %s have a lower version than DDL whose binlog came before theirs", sorted(early))
        self._history = self._rebuilt(early)
        self._known_jobs = frozenset(self._known_jobs) - early
        for job_id, schema_state in self._steps:
            raw = read_ddl_job(self._tikv, job_id, self._pd.tso())
            if raw is not None:
                self._history.apply(DdlHistoryJob.from_json(raw, schema_state))

    def _changed(self, job_id: int) -> bool:
        raw = read_ddl_job(self._tikv, job_id, self._pd.tso())
        return raw is not None and DdlHistoryJob.from_json(raw).finished

    def _found(
        self,
        spans: Mapping[int, TableSpan],
        known: Collection[int],
        born: dict[int, int],
        skips: Collection[int],
        rows: WindowRows,
    ) -> list[DdlJob]:
        """Return a CREATE TABLE for each table that has rows and that no job has made, but TiKV knows.

        TiDB makes such tables when it restores or imports. `born` gets them.
        """
        made = []
        for table_id, span in spans.items():
            if table_id in known or table_id in born or table_id in self._history.moved:
                continue
            if span.first_commit_ts in skips or table_id in self._history.tables:
                continue
            table = self._table_in_tikv(table_id, span.first_commit_ts)
            if table is None:
                continue
            log.warning(
                "no DDL job has made %s (table id %d), it is taken as TiKV has it. Rows that came without a binlog are"
                " missing downstream: sluice backfill --table %s",
                table.full_name, table_id, argument(table.full_name),
            )  # fmt: skip
            self._history.found(table)
            born[table_id] = commit_ts = free_before(span.first_commit_ts, rows.commits())
            made.append(
                DdlJob(
                    commit_ts, commit_ts, 0, STATE_PUBLIC, f"CREATE TABLE {table.full_name}", type=Action.CREATE_TABLE,
                    schema_name=table.schema_name, table_name=table.name,
                    effect=DdlEffect({}, {table_id: self._history.tables[table_id]}),
                )
            )  # fmt: skip
        return made

    def _table_in_tikv(self, table_id: int, ts: int) -> Table | None:
        """Return a table as of a commit_ts, or as it is now if TiKV has collected that; None without such a table."""
        try:
            found = find_table_by_id(self._tikv, table_id, ts)
        except TiKVError:
            found = find_table_by_id(self._tikv, table_id, self._pd.tso())
        if found is None:
            return None
        schema, info = found
        return Table.from_tidb(info, int(schema["id"]), str(schema["db_name"]["O"]))

    def _check_known(
        self, spans: Mapping[int, TableSpan], known: Collection[int], born: Mapping[int, int], skips: Collection[int]
    ) -> None:
        """`known`: those that are there, or were truncated. `born`: those that the window's DDL makes, with the
        commit_ts. Raises UnknownTableError.
        """
        for table_id, span in spans.items():
            if (
                table_id in known
                or table_id in self._history.moved
                or born.get(table_id, span.first_commit_ts) < span.first_commit_ts
                or span.first_commit_ts in skips
            ):
                continue
            raise UnknownTableError(
                f"{span.rows} changes from commit_ts {span.first_commit_ts} on are of table id {table_id}, which no DDL"
                f" job up to schema version {self._history.schema_version} has made",
                way_out="if TiKV's DDL history is incomplete, start with an empty relay log from a checkpoint after"
                " these commits; if they aren't wanted, leave the transaction out: `sluice txn skip"
                f" {span.first_commit_ts}`",
            )

    def _describe(
        self, record: DdlRecord, job: DdlHistoryJob, schema_name: str, since: int, effect: DdlEffect
    ) -> DdlJob:
        """The job of a DDL binlog. `since`: the schema version of the job before it on the same table."""
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
        versions = tuple(versions_of(job, since, self._read_diff))
        return replace(described, began_ts=job.start_ts, finished_ts=job.finished_ts, versions=versions)

    def _read_diff(self, version: int) -> dict[str, Any] | None:
        if version not in self._diffs:
            diff = read_schema_diff(self._tikv, version, self._pd.tso())
            if diff is None:
                return None
            if len(self._diffs) >= _MAX_CACHED_DIFFS:
                self._diffs.clear()
            self._diffs[version] = diff
        return self._diffs[version]

    def _info_to_come(self, table: Table, newest: int, wait: Callable[[float], bool]) -> Mapping[str, Any] | None:
        """A table's TableInfo by now; if it is gone since, as the next job left it. A store whose schema version is
        behind `newest`, which rows know, is waited for.
        """
        for pause in (*_RETRY_DELAYS_S, None):
            info = read_table_info(self._tikv, table.schema_id, table.id, self._pd.tso())
            if info is not None:
                return info
            self._unlanded_jobs.begin()
            for job in self._unlanded_jobs.all(table, self._history.changed_at.get(table.id, 0)):
                if job.table_id == table.id and job.table_info is not None:
                    return job.table_info
            if pause is None or read_schema_version(self._tikv, self._pd.tso()) >= newest:
                break
            if wait(pause):
                raise LandingStopped(f"while waiting for what becomes of table {table.full_name}")
        return None

    def _moved(self, spans: Mapping[int, TableSpan]) -> tuple[FinishedRowMove, ...]:
        """DDL that is over by now, and that some of these rows don't know of."""
        late: dict[int, RowMove] = {}
        for table_id, span in spans.items():
            for moved in self._history.moved.get(table_id, ()):
                if span.oldest_version < moved.job.schema_version or span.first_commit_ts <= possibly_applied_through(
                    moved.job
                ):
                    late[moved.job.schema_version] = moved
        return tuple(
            finished_row_move(late[v], versions_of(late[v].job, late[v].since, self._read_diff)) for v in sorted(late)
        )

    def recent_moves(self, described: RecordedSchema, spans: Mapping[int, TableSpan]) -> list[FinishedRowMove]:
        """Return what DDL through the window that `resolve` has described moved lately in tables of this window."""
        inside = {ddl.job_id: ddl for ddl in described.ddls}
        wanted = set(spans).union(*(ddl.effect.tables for ddl in described.ddls))
        found = {move.job.id: move for i in sorted(wanted) for move in self._history.moved.get(i, ())}
        return [
            finished_row_move(
                move,
                inside[job_id].versions if job_id in inside else versions_of(move.job, move.since, self._read_diff),
            )
            for job_id, move in found.items()
        ]

    def definitions_to_come(self, table_id: int) -> list[Table]:
        """Return the definitions that a table has had since the window that `resolve` has described, in order.

        The last one may be that of a job that isn't over.
        """
        known = self._history.tables.get(table_id)
        if known is None:
            return []
        self._unlanded_jobs.begin()
        infos = [job.table_info for job in self._unlanded_jobs.all(known, self._history.changed_at.get(table_id, 0))]
        infos.append(read_table_info(self._tikv, known.schema_id, table_id, self._pd.tso()))
        own = [info for info in infos if info is not None and int(info["id"]) == table_id]
        tables = [Table.from_tidb(info, known.schema_id, known.schema_name) for info in own]
        return [binary_table(table) for table in tables] if self._history.has_old_collations else tables

    def _relax(
        self,
        spans: Mapping[int, TableSpan],
        states: Mapping[int, Sequence[Table]],
        changed_before: Mapping[int, int],
        wait: Callable[[float], bool],
    ) -> dict[int, tuple[int, ...]]:
        """Return the unique indexes that the upstream gives up before a DDL binlog says so.

        A schema version newer than the last DDL of a table tells of a change that was under way: which keys it gives
        up is in TiKV. `states`: the tables as they are in the window, one after the other.
        `changed_before`: the schema version of each table's last DDL before the window.
        """
        newest = self._newest_version(spans)
        relaxed = dict(self._relaxed)
        self._scan_versions(max(newest, self._history.schema_version), changed_before)
        for table_id in self._weakened_tables.keys() & states.keys():
            _, drops = self._weakened_tables[table_id]
            *_, last = states[table_id]
            to_come = relaxed_indexes(last, self._info_to_come(last, newest, wait))
            is_over = self._history.changed_at.get(table_id, 0) != changed_before.get(table_id, 0)
            if to_come or (drops and not is_over):
                self._relaxed[table_id] = to_come
            given_up = {index for table in states[table_id] for index in relaxed_indexes(table, as_info(last))}
            found = sorted(given_up.union(to_come))
            if found or drops:
                relaxed[table_id] = found
            if not to_come and not drops:
                del self._weakened_tables[table_id]
        changed_at = self._history.changed_at
        self._weakened_tables = {
            i: found for i, found in self._weakened_tables.items() if found[0] > changed_at.get(i, 0)
        }
        self._early_rows.forget(changed_at)
        return {i: tuple(indexes) for i, indexes in relaxed.items() if i in spans}

    def _scan_versions(self, newest: int, changed_before: Mapping[int, int]) -> None:
        """Note the tables whose keys or partitions a schema version through `newest` may give up, or whose columns.

        Such a version stays noted until a DDL binlog of its table comes. Another table's DDL of a higher version may
        come first.
        """
        self._early_rows.note(range(self._loosened_through + 1, newest + 1), changed_before)
        for version in range(self._loosened_through + 1, newest + 1):
            self._note_doubled(version, changed_before)
            for table_id, drops in loosened_tables((version,), self._read_diff).items():
                if version > changed_before.get(table_id, 0):
                    _, before = self._weakened_tables.get(table_id, (0, False))
                    self._weakened_tables[table_id] = version, drops or before
        self._loosened_through = max(self._loosened_through, newest)

    def _note_doubled(self, version: int, changed_before: Mapping[int, int]) -> None:
        diff = self._read_diff(version) or {}
        table_id = int(diff.get("old_table_id") or diff.get("table_id") or 0)
        if int(diff.get("type") or 0) in WRITES_TWICE and version > changed_before.get(table_id, 0):
            self._doubled[table_id] = version, self._doubled.get(table_id, (0, False))[1]

    def _newest_version(self, spans: Mapping[int, TableSpan]) -> int:
        """The newest schema version by which rows may have been written.

        They name that with which their transaction began. With metadata locks it may have used a newer one, of those
        that were there when it was committed.
        """
        if not spans:
            return 0
        then = version_at(self._tikv, max(span.last_commit_ts for span in spans.values()))
        return max(then, *(span.newest_version for span in spans.values()))

    def _job(self, record: DdlRecord, wait: Callable[[float], bool]) -> DdlHistoryJob:
        """Return the job of a DDL binlog. TiDB moves it to the history one transaction later, which is waited for."""
        waited, pause = 0.0, 0.02
        said = 0.0
        while True:
            raw = read_ddl_job(self._tikv, record.job_id, self._pd.tso())
            if raw is not None:
                return DdlHistoryJob.from_json(raw, record.schema_state)
            if waited - said >= 5:
                said = waited
                log.warning(
                    "DDL job %d (commit_ts %d, %s) is not in TiDB's history yet; waiting, %.0f s so far",
                    record.job_id, record.commit_ts, record.query[:100], waited,
                )  # fmt: skip
            if wait(pause):
                raise LandingStopped(f"while waiting for DDL job {record.job_id}")
            waited += pause
            pause = min(pause * 2, 1.0)
