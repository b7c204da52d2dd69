"""Which tables can be had at a moment, from one base."""

from __future__ import annotations

from etl.retain.contents import read_contents
from etl.retain.facts import facts_of
from etl.retain.known import KnownBase
from etl.retain.origins import Snapshot, known_at
from etl.retain.summaries import Summaries
from etl.settings import Settings
from relay.archive import Archive, Base
from upstream.table_name import TableName

__all__ = ["had_at"]


def had_at(settings: Settings, base: Base | None, ts: int, *, whole: bool = True) -> dict[int, str]:
    """The tables that the settings want and that can be had at `ts` (TSO) from `base` (None: from the archive's
    beginning) by reading the archive: their names then, by id. `whole`: with all columns that a restore needs. Raises
    RelayCorruptError, OSError.
    """
    archive = Archive.open(settings.archive_url)
    facts = facts_of(archive, read_contents(archive, Summaries(archive).day), ())
    start = Snapshot(facts.lo if facts is not None else 0)
    if base is not None:
        known = KnownBase.of(base)
        start = known.snapshot if whole else Snapshot(known.ts, known.tables, known.id)
    turns = facts.turns if facts is not None else ()
    filters = settings.rules.filters
    had = known_at(start, turns, ts).items()
    return {i: origin.name for i, origin in had if filters.wants_table(*TableName.parse(origin.name))}
