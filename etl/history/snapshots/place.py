"""Open a pipeline for making a snapshot: its upstream, downstream, relay log and archive."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Self

from sluice.etl.changes.rules.landed_masks import LandedMasks
from sluice.etl.copy.copy_source_cluster import SourceCluster
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.dumpling import DumplingFolder
from sluice.etl.copy.source import RowSource
from sluice.etl.copy.tidb_sql import TidbAddress, TidbSql
from sluice.etl.downstream import CheckpointTable, MySQLSession
from sluice.etl.downstream.ownership import downstream_name
from sluice.etl.history.clear_values import ClearValues
from sluice.etl.history.errors import SnapshotError
from sluice.etl.history.snapshots.plan import SnapshotPlan, plan_of_source, schemas_of, table_of
from sluice.etl.history.snapshots.preflight import (
    abbreviate_problems,
    downstream_problems,
    downstream_tables,
)
from sluice.etl.history.snapshots.request import ARCHIVE, AUTO, DOWNSTREAM, TIDB, SnapshotRequest
from sluice.etl.history.snapshots.reuse import (
    changed_tables,
    ddl_tables,
    landed_windows,
    unchanged_tables,
)
from sluice.etl.history.snapshots.roll_forward import definitions_after, roll_forward_plan
from sluice.etl.settings import Settings
from sluice.relay import RelayError
from sluice.relay.archive import Archive, ArchiveSnapshot, SnapshotStore, SnapshotTable, snapshot_id
from sluice.relay.jobs import Jobs, WriteScope
from sluice.tidb import tso

__all__ = ["PipelineContext"]

_MAX_LANDING_LAG_MS = 300_000
"""TiDB is read as of what is landed if that is no older: its GC hasn't passed it, and what has
changed is known.
"""


class PipelineContext:
    """A pipeline's servers and storage.

    Every method raises CopyError, SnapshotError, DownstreamError, PDError, TiKVError, RelayError,
    OSError.
    """

    def __init__(self, settings: Settings, stack: ExitStack) -> None:
        self.settings = settings
        self.relay = settings.open_relay()
        self.jobs = Jobs.for_pipeline(self.relay)
        self.archive = Archive.open(settings.archive_url)
        self.snapshots: SnapshotStore = self.archive.snapshots
        self.masks = LandedMasks(settings.filters) if settings.lands_masked else None
        """The masks of rows that are copied from TiDB or a dump."""
        self.cluster = stack.enter_context(SourceCluster.connect(settings.upstream))

    @classmethod
    @contextmanager
    def open(cls, settings: Settings) -> Iterator[Self]:
        with ExitStack() as stack:
            yield cls(settings, stack)

    @property
    def touches(self) -> WriteScope:
        """Return an empty scope: making a snapshot writes to no table."""
        return WriteScope(downstream_name(self.settings.target), ())

    def plan(self, request: SnapshotRequest) -> SnapshotPlan:
        """Return the plan of a snapshot. Writes nothing."""
        if request.source == DOWNSTREAM:
            return self.downstream_plan()
        if request.source == ARCHIVE:
            return self.roll_forward_plan()
        source = self._source(request)
        definitions = self.cluster.definitions(source.position)
        if self.masks is not None:
            definitions = definitions.of_users()
            tables = tuple(map(self.masks.described, definitions.tables))
            definitions = replace(definitions, tables=tables)
        older, unchanged = self.unchanged(definitions, full=request.full)
        name = snapshot_id(source.position, secrets.token_hex(6))
        plan = plan_of_source(name, source, definitions, self.cluster.pd.cluster_id, unchanged)
        return replace(plan, older=older, notes=(*plan.notes, *self._archive_gap_problems(plan.ts)))

    def chosen(self, request: SnapshotRequest) -> SnapshotRequest:
        """Resolve AUTO to a possible source.

        First the downstream, which costs TiDB nothing, then TiDB, then an older snapshot.
        """
        if request.source != AUTO:
            return request
        try:
            problems = list(self.downstream_plan().problems)
        except SnapshotError as error:
            problems = [str(error)]
        if not problems:
            return replace(request, source=DOWNSTREAM)
        if self.settings.upstream.sql_host:
            return replace(request, source=TIDB)
        if self.snapshots.latest(2**63 - 1) is not None:
            return replace(request, source=ARCHIVE)
        raise SnapshotError(
            abbreviate_problems(problems), hint="set TiDB's SQL address: [upstream] sql-host"
        )

    def roll_forward_plan(self) -> SnapshotPlan:
        """Plan to roll the youngest snapshot forward through what is landed."""
        older = self.snapshots.latest(2**63 - 1)
        if older is None:
            raise SnapshotError(
                f"{self.archive.url} has no snapshot that could be rolled forward",
                hint=(
                    "make the first one from TiDB, from a dump or from the downstream: `sluice"
                    " snapshot make --from`"
                ),
            )
        clear = ClearValues.of(self.settings, "a snapshot") if self.masks is not None else None
        if clear is not None:
            clear.check_range(older.ts)
            if not clear.is_masked(table.table for table in older.tables):
                clear.check_range(0)
        last = self.relay.last() or self.archive.log.last()
        ts = max(older.ts, last.hi if last is not None else 0)
        windows = list(landed_windows(self.archive, self.relay, older.ts, ts))
        definitions = definitions_after(older, windows, ts)
        changed = changed_tables(windows, older.ts, ts)
        if changed is None:
            raise SnapshotError(
                f"what was committed between the snapshot {older.id} and {tso.text(ts)} isn't all"
                f" in {self.archive.url}",
                hint="make a snapshot from TiDB or from the downstream",
            )
        return roll_forward_plan(snapshot_id(ts, secrets.token_hex(6)), older, definitions, changed)

    def downstream_plan(self) -> SnapshotPlan:
        """Plan from the downstream as it is now: tables, and why no snapshot can be read from it.

        Rows are read as of a later checkpoint.
        """
        downstream = self.settings.downstream
        if downstream.type != "mysql":
            raise SnapshotError(
                f"[downstream] type is {downstream.type}: it can't be read",
                hint="make the snapshot from TiDB",
            )
        session = MySQLSession(downstream)
        try:
            session.connect()
            table = CheckpointTable.from_settings(session, downstream, self.cluster.pd.cluster_id)
            checkpoint = table.load() if table.exists() else None
            session.rollback()
            if checkpoint is None:
                raise SnapshotError(
                    f"{session.address} has no checkpoint: it is no replica yet",
                    hint="make the snapshot from TiDB or from a dump",
                )
            definitions = self.cluster.definitions(checkpoint.commit_ts).of_users()
            _, problems = downstream_tables(self.settings, definitions, session)
        finally:
            session.close()
        problems += downstream_problems(self.settings, self.relay, definitions)
        return SnapshotPlan(
            "",
            checkpoint.commit_ts,
            definitions.schema_version,
            self.cluster.pd.cluster_id,
            f"the downstream {downstream.host}:{downstream.port}",
            {"kind": DOWNSTREAM},
            schemas_of(definitions.schemas),
            tuple(map(table_of, definitions.tables)),
            problems=tuple(problems),
            notes=("rows are read as of the checkpoint at which the job begins to read",),
        )

    def unchanged(
        self, definitions: SourceSchema, *, full: bool
    ) -> tuple[str, dict[str, SnapshotTable]]:
        """Return the youngest usable snapshot, and the tables that have not changed since.

        It isn't later than `definitions`; the tables are by full name. "" and none if there is no
        such snapshot, `full`, or it isn't known what has changed.
        """
        older: ArchiveSnapshot | None = None if full else self.snapshots.latest(definitions.ts)
        if older is None or older.cluster_id != self.cluster.pd.cluster_id:
            return "", {}
        changed = self.changed(older.ts, definitions.ts)
        if changed is None:
            return "", {}
        return older.id, unchanged_tables(older, definitions.of_users().tables, changed)

    def changed(self, from_ts: int, to_ts: int) -> set[int] | None:
        """See `sluice.etl.history.snapshots.reuse.changed_tables`.

        None as well where the log can't be read.
        """
        try:
            return changed_tables(
                landed_windows(self.archive, self.relay, from_ts, to_ts), from_ts, to_ts
            )
        except RelayError:
            return None

    def changed_by_ddl(self, from_ts: int, to_ts: int) -> set[int] | None:
        """Return ids of the tables that DDL committed in (from_ts, to_ts] touched.

        None if not all of it is landed.
        """
        return ddl_tables(landed_windows(self.archive, self.relay, from_ts, to_ts), from_ts, to_ts)

    def ddl_since(self, ts: int) -> tuple[int, set[int] | None]:
        """Return the TSO through which DDL may have run downstream since `ts`, and its tables.

        The tables are those of `changed_by_ddl` until then.
        """
        session = MySQLSession(self.settings.downstream)
        session.connect()
        try:
            now = CheckpointTable.from_settings(
                session, self.settings.downstream, self.cluster.pd.cluster_id
            ).load(wait=True)
        finally:
            session.close()
        reached = (
            max(now.rows_through, now.pending.commit_ts if now.pending else 0)
            if now is not None
            else ts
        )
        return reached, self.changed_by_ddl(ts, reached)

    def _source(self, request: SnapshotRequest) -> RowSource:
        if request.source == TIDB:
            address = TidbAddress.from_settings(self.settings.upstream)
            last, now = self.relay.last(), self.cluster.pd.tso()
            if (
                last is not None
                and tso.physical_ms(now) - tso.physical_ms(last.hi) < _MAX_LANDING_LAG_MS
            ):
                return TidbSql(address, last.hi)
            return TidbSql.now(address)
        return DumplingFolder.open(request.source, request.options)

    def _archive_gap_problems(self, ts: int) -> list[str]:
        first = self.archive.first() or self.relay.first()
        if first is None or first.lo <= ts:
            return []
        return [
            f"what was committed between {tso.text(ts)} and {tso.text(first.lo)} is in no archive:"
            " this snapshot serves its own moment only"
        ]
