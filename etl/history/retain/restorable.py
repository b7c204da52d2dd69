"""List the tables that can be restored at a timestamp from one snapshot."""

from __future__ import annotations

from sluice.etl.history.retain.catalogue_summary import SnapshotSummary
from sluice.etl.history.retain.contents import read_contents
from sluice.etl.history.retain.facts import inventory_of
from sluice.etl.history.retain.summaries import CachedSummaries
from sluice.etl.history.retain.table_events import ReadStart, restorable_at
from sluice.etl.settings import Settings
from sluice.relay.archive import Archive, ArchiveSnapshot
from sluice.tidb.table_name import TableName

__all__ = ["tables_restorable_at"]


def tables_restorable_at(
    settings: Settings, snapshot: ArchiveSnapshot | None, ts: int, *, whole: bool = True
) -> dict[int, str]:
    """Return the wanted tables that can be restored at `ts` (TSO): their names then, by id.

    They are restored from `snapshot` (None: from the archive's beginning) by reading the archive.
    `whole`: with all columns that a restore needs. Raises RelayCorruptError, OSError.
    """
    archive = Archive.open(settings.archive_url)
    facts = inventory_of(archive, read_contents(archive, CachedSummaries(archive).day), ())
    start = ReadStart(facts.lo if facts is not None else 0)
    if snapshot is not None:
        known = SnapshotSummary.from_snapshot(snapshot)
        start = known.snapshot if whole else ReadStart(known.ts, known.tables, known.id)
    turns = facts.turns if facts is not None else ()
    filters = settings.rules.filters
    had = restorable_at(start, turns, ts).items()
    return {
        i: origin.name for i, origin in had if filters.wants_table(*TableName.parse(origin.name))
    }
