"""Read what an archive holds, and what it promises, from its summaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sluice.etl.history.retain.catalogue_summary import DaySummary, SnapshotSummary, changes_of
from sluice.etl.history.retain.contents import ArchiveContents, read_contents
from sluice.etl.history.retain.facts import events_of_window, inventory_of
from sluice.etl.history.retain.policy import ArchiveInventory
from sluice.etl.history.retain.promise import ArchivePromise, ExistenceEvidence
from sluice.etl.history.retain.summaries import CachedSummaries, readable_snapshots
from sluice.etl.history.retain.table_events import TableEvent
from sluice.etl.settings import Settings
from sluice.relay import RelayError
from sluice.relay.archive import Archive, Pins
from sluice.tidb.table_name import full_name

__all__ = ["ArchiveView"]


@dataclass(frozen=True)
class ArchiveView:
    """What can be read of an archive: its chain, its snapshots, and the `faults` of others."""

    settings: Settings
    archive: Archive
    contents: ArchiveContents
    snapshots: tuple[SnapshotSummary, ...]
    faults: tuple[str, ...]
    facts: ArchiveInventory | None

    @classmethod
    def load(cls, settings: Settings) -> ArchiveView:
        """Read it, but no rows. Raises RelayCorruptError for the archive's own records, OSError."""
        archive = Archive.open(settings.archive_url)
        known = CachedSummaries(archive)
        contents = read_contents(archive, known.day)
        snapshots, faults = readable_snapshots(known.snapshot, archive)
        starts = [snapshot.snapshot for snapshot in snapshots]
        floor_ts = Pins(archive.storage).removal_mark().before_ts
        facts = inventory_of(archive, contents, starts, floor_ts)
        return cls(settings, archive, contents, tuple(snapshots), tuple(faults), facts)

    @cached_property
    def last_changed(self) -> Mapping[int, tuple[str, int]]:
        """Return the last day with changes of each table in the chain, by id, and its end (TSO).

        Raises RelayCorruptError, OSError.
        """
        found: dict[int, tuple[str, int]] = {}
        for day, changes in self._changes:
            found.update(dict.fromkeys(changes, (day.day, day.segments[-1].hi)))
        return found

    def change_count(self, table_id: int) -> int:
        """Return how many changes of a table are in the chain. Raises as `last_changed`."""
        return sum(changes.get(table_id, 0) for _, changes in self._changes)

    @cached_property
    def _changes(self) -> Sequence[tuple[DaySummary, Mapping[int, int]]]:
        """Return the days of the chain behind the last hole, each with its changes by table id."""
        after = min((segment.lo for segment in self.contents.unbroken), default=0)
        days = (day for day in self.contents.days if day.segments[-1].lo >= after)
        return [(day, _changes(self.archive, day, after)) for day in days]

    @cached_property
    def names(self) -> Mapping[int, str]:
        """Return the names of tables, by id: those of snapshots, of DDL, or of changes.

        Raises RelayCorruptError, OSError.
        """
        found: dict[int, str] = {}
        for snapshot in self.snapshots:
            found.update(snapshot.tables)
        turns = self.facts.turns if self.facts is not None else ()
        found.update({turn.table_id: turn.name for turn in turns if turn.name})
        others = {i: day for i, (day, _) in self.last_changed.items() if i not in found}
        return found | _changed_names(self.archive, others)

    @property
    def is_whole(self) -> bool:
        """Return whether a restore may begin where the chain does: no hole is before it."""
        segments = self.contents.unbroken
        return not self.contents.holes or segments[:1] == self.contents.segments[:1]

    @cached_property
    def promise(self) -> ArchivePromise | None:
        """Return what it promises, None if it is empty. Raises relay errors, OSError."""
        facts = self.facts
        if facts is None:
            return None
        later, through = self._later_events(facts.hi)
        evidence = ExistenceEvidence(
            changed={i: end for i, (_, end) in self.last_changed.items()},
            held=[(one.ts, frozenset(one.tables)) for one in self.snapshots if one.ts <= through],
            later=later,
            names=self.names,
            is_whole=self.is_whole,
        )
        return ArchivePromise(facts, evidence, self.settings.rules.filters.wants_table)

    def _later_events(self, since: int) -> tuple[tuple[TableEvent, ...], int]:
        """Return the table events of what is landed behind the chain, and through when (TSO).

        Without them a table of a later snapshot would seem to have been there before.
        """
        until = max((snapshot.ts for snapshot in self.snapshots), default=0)
        if until <= since:
            return (), since
        relay = self.settings.open_relay()
        found: list[TableEvent] = []
        through = since
        try:
            for window in relay.windows(since, until):
                if window.lo > through:
                    break
                found += (turn for turn in events_of_window(window) if since < turn.ts <= until)
                through = window.hi
        except RelayError:  # restores name it; these snapshots show nothing meanwhile
            return (), since
        return tuple(found), through


def _changes(archive: Archive, day: DaySummary, after: int) -> Mapping[int, int]:
    """Return a day's changes, behind the moment at which one of its segments begins."""
    if day.segments[0].lo >= after:
        return day.changes
    return changes_of(
        segment for segment in archive.catalogue.load(day.day).segments if segment.lo >= after
    )


def _changed_names(archive: Archive, where: Mapping[int, str]) -> dict[int, str]:
    """Return the names of tables that were changed on some day, by id."""
    if not where:
        return {}
    found: dict[int, str] = {}
    log = archive.log  # loads Arrow, which the usual status of an archive needn't
    for day in sorted(set(where.values()), reverse=True):
        left = {table_id for table_id, last in where.items() if last == day}
        for segment in reversed(archive.catalogue.load(day).segments):
            if left & segment.tables.keys():
                for window in log.windows(segment.lo, segment.hi):
                    for table_id in [i for i in left if window.tables.get(str(i))]:
                        table = window.tables[str(table_id)]
                        found[table_id] = full_name(table["schema_name"], table["name"])
                        left.discard(table_id)
            if not left:
                break
    return found
