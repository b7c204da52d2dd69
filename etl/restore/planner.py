"""Plan a restore into a database; nothing is written, and little is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sluice.etl.changes.formats.table_fallbacks import columns_lacking_in_snapshot
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.copy.plan import CopyPlan, PlannedTable, make_copy_plan
from sluice.etl.downstream import is_same_server, open_session
from sluice.etl.history.clear_values import ClearValues
from sluice.etl.restore.emptied_tables import overridden_commits
from sluice.etl.restore.errors import RestoreError
from sluice.etl.restore.estimate import TimeEstimate
from sluice.etl.restore.lineage import (
    Name,
    RestoreGroup,
    TableLineage,
    missing_references,
    unmatched,
)
from sluice.etl.restore.plan import RestoreCost, RestorePlan, whole_table_notes
from sluice.etl.restore.request import RestoreRequest
from sluice.etl.restore.sources import RestoreSources
from sluice.etl.restore.target_inspection import TargetState, inspect_target
from sluice.etl.restore.unknown_rows import RequestedTables
from sluice.etl.settings import Settings
from sluice.relay.jobs import Jobs, with_landed_end
from sluice.tidb import tso
from sluice.tidb.folded import folded
from sluice.tidb.schema import Table
from sluice.tidb.table_name import abbreviate, exactly, fits, full_name, suggestion

__all__ = ["plan_restore"]

_DISK_SPACE_FACTOR = 1.5
"""The disk space of rows in a database, relative to their size in memory: free space in pages, and
keys.
"""
_MAX_STATEMENT_CHARS = 200


def plan_restore(settings: Settings, request: RestoreRequest) -> RestorePlan:
    """Return the request's plan, with what prevents it in `problems`.

    Raises RestoreError if there can't be a plan, ClearValuesError, SettingsError, DownstreamError,
    RelayError, OSError.
    """
    clear = ClearValues.of(settings, "a restore")
    request.check()
    request = with_landed_end(request, settings.open_relay())

    def planned(past: RestoreSources) -> tuple[RestorePlan, bool]:
        past.check(clear)
        planner = _RestorePlanner(settings, request, past)
        return planner.plan(), planner.is_snapshot_lacking

    return RestoreSources.open(settings, request.until).plan_with_fallback(planned)


class _RestorePlanner:
    def __init__(self, settings: Settings, request: RestoreRequest, past: RestoreSources) -> None:
        self._settings = settings
        self._request = request
        self._sources = past
        self._own = request.server(settings)
        self._schemas: set[str] = set()
        self._without_rows: frozenset[int] = frozenset()
        self._problems: list[str] = []
        self._notes: list[str] = []
        self.is_snapshot_lacking = False
        """True if the snapshot lacks some of the requested tables: an older one may not."""

    def plan(self) -> RestorePlan:
        past, request = self._sources, self._request
        if self._own.downstream.type != "mysql":
            raise RestoreError(
                f"[downstream] type is {self._own.downstream.type}: a database is restored to a"
                " database"
            )
        lineage = past.lineage()
        found = RequestedTables.find(
            lineage,
            past,
            request.tables,
            self._settings.rules.filters,
            overridden_commits(self._settings, past.since, request.until),
        )
        family = found.family
        self._notes += (*whole_table_notes(self._settings.filters, family.asked), *found.notes)
        self._without_rows = found.without_rows
        self._inspect(found, lineage)
        self._schemas = {table.schema_name for table in lineage.now.values()}
        own = request.settings(self._settings, "-", family.names)
        targets = self._targets(family)
        held = self._held(targets)
        made = RestorePlan(
            until=request.until,
            since=past.since,
            snapshot=past.snapshot.id if past.snapshot else "",
            cluster_id=past.cluster_id,
            to=(
                f"{own.downstream.user}@{own.downstream.host}:{own.downstream.port},"
                f" {_databases(request, family)}"
            ),
            copy=_with_empty(self._copy(family, own), found.made, own),
            asked=family.asked,
            others=family.others,
            schemas=tuple(lineage.schemas.values()),
            ids=tuple(sorted(family.ids - self._without_rows)),
            names=tuple(sorted(family.names)),
            without_rows=tuple(sorted(self._without_rows)),
            replaced=tuple(name for name in held.tables if self._may_replace(name)),
            new_schemas=tuple(held.new_schemas),
            ddls=tuple(
                f"{tso.text(d.commit_ts)}: {' '.join(d.query.split())[:_MAX_STATEMENT_CHARS]}"
                for d in family.ddls
            ),
        )
        made = self._with_cost(made)
        return replace(
            made,
            notes=(*made.copy.notes, *self._notes),
            problems=tuple(dict.fromkeys((*self._problems, *made.copy.problems))),
        )

    # What is asked for

    def _inspect(self, found: RequestedTables, lineage: TableLineage) -> None:
        family = found.family
        self._problems += lineage.problems
        for glob in unmatched(self._request.tables, family):
            self._problems.append(
                f"--table {glob}: no table had such a name at {tso.text(self._request.until)}"
                f"{suggestion(glob, (t.full_name for t in lineage.now.values()))}"
            )
        self.is_snapshot_lacking |= bool(found.lost or unmatched(self._request.tables, family))
        if lost := found.problem(self._sources):
            self._problems.append(lost)
        if not family.asked and not self._problems:
            self._problems.append(f"there was no table at {tso.text(self._request.until)}")
        for table, others in missing_references(family).items():
            self._notes.append(
                f"{table} has foreign keys to {abbreviate(others)}, which isn't restored with it"
            )
        asked = {table.id for table in family.asked}
        empty = sorted(
            {
                table.full_name
                for table in (*family.begun, *found.made)
                if table.id in self._without_rows
            }
        )
        if empty:
            self._notes.append(
                f"{abbreviate(empty)}: made without rows, as they are gone by then; DDL between"
                " needs the table"
            )
        more = sorted(
            table.full_name for table in family.begun if table.id not in asked | self._without_rows
        )
        if more:
            self._notes.append(
                f"{abbreviate(more)}: loaded too, as they had the name or the rows of what is"
                " asked for; removed in the end"
            )

    def _copy(self, family: RestoreGroup, own: Settings) -> CopyPlan:
        """Return what of the snapshot is loaded."""
        past, source = self._sources, self._sources.source()
        if source is None or past.snapshot is None:
            return CopyPlan(past.since, 0)
        known = {table.id for table in source.definitions().tables}
        tables = tuple(table for table in family.begun if table.id in known)
        wanted = SourceSchema(past.since, past.snapshot.schema_version, (), tables)
        if not tables:
            return CopyPlan(past.since, past.snapshot.schema_version)
        source.left_empty = self._without_rows
        self.is_snapshot_lacking |= any(
            columns_lacking_in_snapshot(held)
            for table in tables
            if table.id not in self._without_rows
            and (held := past.snapshot.table(table.schema_name, table.name)) is not None
        )
        return make_copy_plan(source, wanted, own.filters, own.routes)

    # Where it goes

    def _targets(self, family: RestoreGroup) -> list[Name]:
        names = {*family.names, *((table.schema_name, table.name) for table in family.others)}
        try:
            return sorted({(self._request.target_schema(schema), table) for schema, table in names})
        except RestoreError as error:
            self._problems.append(str(error))
            return []

    def _held(self, targets: list[Name]) -> TargetState:
        with open_session(self._own.downstream) as session:
            held = inspect_target(session, targets)
            pipeline = self._settings.downstream
            beside = pipeline.type == "mysql" and (
                not self._request.target or is_same_server(session, pipeline)
            )
        if beside:
            self._check_beside({folded(schema) for schema, _ in targets})
        taken = [name for name in held.tables if not self._may_replace(name)]
        if taken:
            shown = [full_name(schema, name) for schema, name in taken]
            self._problems.append(
                f"{abbreviate(shown)} {'is' if len(shown) == 1 else 'are'} there already: give"
                " another --into, or"
                " have them"
                " replaced:"
                f" {' '.join(f'--replace {name}' for name in shown[:3])}"
                f"{' …' if len(shown) > 3 else ''}"
            )
        for (schema, name), why in held.not_replaceable.items():
            if self._may_replace((schema, name)):
                self._problems.append(
                    f"{full_name(schema, name)} can't be replaced: {why}. Drop it first"
                )
        return held

    def _may_replace(self, name: Name) -> bool:
        return any(
            fits(folded(full_name(*name)), folded(exactly(one))) for one in self._request.replacing
        )

    def _check_beside(self, targets: set[str]) -> None:
        """Note a problem if the restore would go where the pipeline writes on its own server."""
        pipeline = self._settings
        written = {
            folded(pipeline.routes.target_schema(schema))
            for schema in self._schemas
            if pipeline.filters.wants_schema(schema)
        } | {folded(rule.target_schema) for rule in pipeline.routes.rules}
        if shared := sorted(targets & written):
            self._problems.append(
                f"the pipeline replicates to the databases {abbreviate(shared)} of this server:"
                " give another --into, such as {schema}_restored"
            )

    # What it takes

    def _with_cost(self, plan: RestorePlan) -> RestorePlan:
        past = self._sources
        extent = past.extent(plan.ids)
        rows, row_bytes = _snapshot_size(plan, past)
        jobs = Jobs.for_pipeline(self._settings.open_relay())
        pace = TimeEstimate.from_last_restore(jobs.list())
        cost = RestoreCost(
            rows, row_bytes, extent.changes, extent.log_bytes,
            round((row_bytes + extent.log_bytes * _UNPACKED_FACTOR) * _DISK_SPACE_FACTOR),
            round(pace.seconds(rows, row_bytes, extent.changes, verify=self._request.verify), 1),
        )  # fmt: skip
        return replace(plan, windows=extent.windows, unarchived=extent.unarchived, cost=cost)


_UNPACKED_FACTOR = 5
"""A row in a database to its share of a file of the archive."""


def _snapshot_size(plan: RestorePlan, past: RestoreSources) -> tuple[int, int]:
    """Return how many rows of the snapshot are loaded, and their bytes in memory."""
    if past.snapshot is None:
        return 0, 0
    rows: Mapping[Name, int] = {(one.schema, one.name): one.rows for one in past.snapshot.tables}
    loaded = (
        planned.table for planned in plan.copy.tables if planned.table.id not in plan.without_rows
    )
    return sum(rows.get((table.schema_name, table.name), 0) for table in loaded), plan.copy.bytes


def _with_empty(plan: CopyPlan, tables: Sequence[Table], own: Settings) -> CopyPlan:
    """Return the plan with tables to be made that the source doesn't hold."""
    made = []
    for table in tables:
        target = own.routes.target(table.schema_name, table.name)
        made.append(PlannedTable(table, target.schema, target.table, target.is_merged, 0))
    return replace(plan, tables=(*plan.tables, *made))


def _databases(request: RestoreRequest, family: RestoreGroup) -> str:
    """Return the names of the databases that tables go to, for people."""
    names = sorted(
        {request.into.replace("{schema}", t.schema_name) for t in (*family.asked, *family.others)}
    )
    return f"database{'' if len(names) == 1 else 's'} {abbreviate(names or [request.into])}"
