"""What restoring into files is going to do; nothing is computed or written."""

from __future__ import annotations

from dataclasses import dataclass, field

from etl.restore.errors import RestoreError
from etl.restore.into_files import FilesRequest, check_folder
from etl.restore.lineage import Family, Lineage, unmatched
from etl.restore.past import Extent, Past
from etl.settings import Settings
from upstream import tso

__all__ = ["FilesPlan", "plan_files"]


@dataclass(frozen=True, slots=True)
class FilesPlan:
    """`base`: what tables are computed from, "" for none; `rows` are those that it has of the `tables`; `problems`
    hinder it.
    """

    request: FilesRequest
    base: str
    since: int
    tables: tuple[str, ...] = ()
    rows: int = 0
    extent: Extent = field(default_factory=Extent)
    problems: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The plan for people."""
        request, extent = self.request, self.extent
        base = f"the base {self.base}, as of" if self.base else "no base: everything since"
        return [
            f"until    {tso.text(request.until)}",
            f"to       {request.folder}, as {request.kind}",
            f"base     {base} {tso.text(self.since)}",
            *(f"table    {name}" for name in self.tables),
            f"compute  from {self.rows:,} rows and {extent.changes:,} row changes of {extent.windows:,} windows,"
            f" {extent.log_bytes / 1e6:,.1f} MB"
            + (f"; {extent.unarchived:,} windows are archived first" if extent.unarchived else ""),
            *(f"stops    {one}" for one in self.problems),
        ]


def plan_files(settings: Settings, request: FilesRequest) -> FilesPlan:
    """What the request comes to, and in `problems` what hinders it. Raises RestoreError if the moment isn't there,
    relay errors, OSError.
    """
    past: Past | None = Past.of(settings.archive_url, settings.relay.url, request.until)
    youngest: FilesPlan | None = None
    while past is not None:
        plan = _from(past, request)
        if not plan.problems:
            return plan
        youngest = youngest or plan
        past = past.before()
    assert youngest is not None
    return youngest


def _from(past: Past, request: FilesRequest) -> FilesPlan:
    lineage = past.lineage()
    family = lineage.family(request.tables)
    names = tuple(table.full_name for table in family.asked)
    held = {table.full_name: table.rows for table in past.base.tables} if past.base else {}
    return FilesPlan(
        request,
        past.base.id if past.base else "",
        past.since,
        names,
        sum(held.get(name, 0) for name in names),
        past.extent(family.ids),
        tuple(_problems(lineage, family, request)),
    )


def _problems(lineage: Lineage, family: Family, request: FilesRequest) -> list[str]:
    found = [*lineage.problems]
    found += [f"{glob}: no table had such a name then" for glob in unmatched(request.tables, family)]
    found += [
        f"{lineage.unknown[i].full_name}: no base holds its rows" for i in sorted(family.ids & lineage.unknown.keys())
    ]
    try:
        check_folder(request)
    except RestoreError as error:
        found.append(str(error))
    return found
