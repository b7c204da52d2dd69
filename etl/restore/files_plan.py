"""Plan a restore into files; nothing is computed or written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sluice.etl.changes.rules import Filter
from sluice.etl.display_units import counted
from sluice.etl.history.clear_values import ClearValues
from sluice.etl.restore.errors import RestoreError
from sluice.etl.restore.files_folder import missing_folders, read_manifest
from sluice.etl.restore.lineage import TableLineage, unmatched
from sluice.etl.restore.plan import whole_table_notes
from sluice.etl.restore.request import FilesRequest
from sluice.etl.restore.sources import LogExtent, RestoreSources
from sluice.etl.restore.unknown_rows import RequestedTables
from sluice.etl.settings import Settings
from sluice.relay.jobs import with_landed_end
from sluice.relay.json_codec import JsonDocument
from sluice.tidb import tso
from sluice.tidb.table_name import suggestion

__all__ = ["FilesPlan", "plan_files"]


@dataclass(frozen=True, slots=True)
class FilesPlan(JsonDocument):
    """The plan of a restore into files; `base`: the snapshot to compute from, "" for none.

    `rows` are those that it has of the `tables`; `problems` prevent it. `begun`: the folder holds
    this restore already, made by any process; `folders`: those that are missing, from below.
    """

    JSON_COMPLETE: ClassVar = True

    request: FilesRequest
    snapshot: str
    since: int
    tables: tuple[str, ...] = ()
    rows: int = 0
    extent: LogExtent = field(default_factory=LogExtent)
    problems: tuple[str, ...] = ()
    begun: bool = False
    folders: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the plan for people."""
        request, extent = self.request, self.extent
        snapshot = (
            f"the snapshot {self.snapshot}, as of"
            if self.snapshot
            else "no snapshot: everything since"
        )
        return [
            f"until    {tso.text(request.until)}",
            f"to       {request.folder}, as {request.kind}",
            f"snapshot     {snapshot} {tso.text(self.since)}",
            *(f"table    {name}" for name in self.tables),
            f"compute  from {counted(self.rows, 'row')} and"
            f" {counted(extent.changes, 'row change')} of"
            f" {counted(extent.windows, 'window')}, {extent.log_bytes / 1e6:,.1f} MB"
            + (f"; {extent.unarchived:,} windows are archived first" if extent.unarchived else ""),
            *(f"note     {one}" for one in self.notes),
            *(f"stops    {one}" for one in self.problems),
        ]


def plan_files(settings: Settings, request: FilesRequest) -> FilesPlan:
    """Return the request's plan, with what prevents it in `problems`.

    Raises RestoreError if the moment isn't there, ClearValuesError, relay errors, OSError.
    """
    clear = ClearValues.of(settings, "a restore")
    request.check()
    request = with_landed_end(request, settings.open_relay())
    past = RestoreSources.open(settings, request.until)

    def planned(past: RestoreSources) -> tuple[FilesPlan, bool]:
        past.check(clear)
        return _plan_from(past, request, settings.filters)

    return past.plan_with_fallback(planned)


def _plan_from(
    past: RestoreSources, request: FilesRequest, filters: Filter
) -> tuple[FilesPlan, bool]:
    """Return the plan, and whether the snapshot lacks something: an older one may not."""
    lineage = past.lineage()
    found = RequestedTables.find(lineage, past, request.tables, filters)
    family = found.family
    names = tuple(table.full_name for table in family.asked)
    held = {table.full_name: table.rows for table in past.snapshot.tables} if past.snapshot else {}
    problems = _problems(lineage, found, past, request)
    begun = False
    try:
        begun = read_manifest(request, names) is not None
        hindered = []
    except RestoreError as error:
        hindered = [str(error)]
    plan = FilesPlan(
        request,
        past.snapshot.id if past.snapshot else "",
        past.since,
        names,
        sum(held.get(name, 0) for name in names),
        past.extent(family.ids),
        (*problems, *hindered),
        begun,
        missing_folders(request.folder),
        (*whole_table_notes(filters, family.asked), *found.notes),
    )
    return plan, bool(problems)


def _problems(
    lineage: TableLineage, requested: RequestedTables, past: RestoreSources, request: FilesRequest
) -> list[str]:
    found = [*lineage.problems]
    known = [table.full_name for table in lineage.now.values()]
    found += [
        f"{glob}: no table had such a name then{suggestion(glob, known)}"
        for glob in unmatched(request.tables, requested.family)
    ]
    if lost := requested.problem(past):
        found.append(lost)
    if not requested.family.asked and not found:
        found.append(f"there was no table at {tso.text(request.until)}")
    return found
