"""Open a restore's sources: the snapshot nearest to the moment, and the windows after it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from sluice.etl.copy.snapshot_source import SnapshotSource
from sluice.etl.history.clear_values import ClearValues
from sluice.etl.history.history_log import HistoryLog
from sluice.etl.history.retain.archive_view import ArchiveView
from sluice.etl.history.retain.catalogue_summary import SnapshotSummary
from sluice.etl.history.retain.table_events import ReadStart
from sluice.etl.restore.errors import RestoreError
from sluice.etl.restore.lineage import TableLineage
from sluice.etl.settings import Settings
from sluice.relay import RelayError, WindowRecord
from sluice.relay.archive import Archive, ArchiveSegment, ArchiveSnapshot, SnapshotStore
from sluice.tidb import tso

__all__ = ["LogExtent", "RestoreSources"]

Plan = TypeVar("Plan")


@dataclass(frozen=True, slots=True)
class LogExtent:
    """About how much is to be read of the log for some tables: `changes` in `log_bytes` of files.

    `unarchived`: how many of the `windows` are landed and not archived yet.
    """

    windows: int = 0
    unarchived: int = 0
    changes: int = 0
    log_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RestoreSources:
    """The archive, and what is landed and not archived yet, up to `until` (TSO).

    `oldest`: where the archive begins; `archived`: where it ends, `oldest` if it is empty. `view`:
    what it holds and promises.
    """

    archive: Archive
    log: HistoryLog
    until: int
    cluster_id: int
    oldest: int
    archived: int
    snapshot: ArchiveSnapshot | None
    view: ArchiveView

    @classmethod
    def open(cls, settings: Settings, until: int, snapshot: str | None = None) -> Self:
        """Open the sources for `until`.

        `base`: the id of the snapshot to use, "" for none; None: the latest one before `until`.
        Raises RestoreError if the moment isn't there, RelayGapError, RelayCorruptError, OSError.
        """
        archive, log = Archive.open(settings.archive_url), HistoryLog.load(settings)
        begins = archive.first() or settings.open_relay().first()
        if log is None or begins is None:
            raise RestoreError(
                f"neither {settings.archive_url} nor {settings.relay.url} holds anything"
            )
        if until > log.last:
            raise RestoreError(
                f"{tso.text(until)} isn't landed yet: what was committed through"
                f" {tso.text(log.last)} is there"
            )
        oldest = begins.lo
        view = ArchiveView.load(settings)
        snapshots = SnapshotStore(archive.storage)
        if snapshot is None:
            found = _latest(view, until)
            if found is not None and found.ts < oldest and until > found.ts:
                found = None  # what came after it is gone
        else:
            found = snapshots.get(snapshot) if snapshot else None
        if found is None and until < oldest:
            raise RestoreError(
                f"the archive {settings.archive_url} begins at {tso.text(oldest)}, and there is no"
                f" snapshot before {tso.text(until)}: `sluice archive status` shows the restorable"
                " range"
            )
        end = log.archived[1] or oldest
        return cls(archive, log, until, begins.cluster_id, oldest, end, found, view)

    def before(self) -> Self | None:
        """Return the same sources from the snapshot before.

        Then without one, from where the archive begins; None behind that.
        """
        if self.snapshot is None:
            return None
        older = _latest(self.view, self.snapshot.ts, before=self.snapshot.id)
        return replace(
            self, snapshot=older if older is not None and older.ts >= self.oldest else None
        )

    def plan_with_fallback(self, plan: Callable[[RestoreSources], tuple[Plan, bool]]) -> Plan:
        """Return `plan`'s result for these sources, or for the youngest before that lack nothing.

        Its second value is whether something lacks. If something lacks in each of them, the result
        for these.
        """
        mine, lacking = plan(self)
        past = self
        while lacking and (older := past.before()) is not None:
            past = older
            found, lacking = plan(past)
            if not lacking:
                return found
        return mine

    @property
    def since(self) -> int:
        """Return the TSO from which on windows are applied."""
        return self.snapshot.ts if self.snapshot else self.oldest

    def check(self, clear: ClearValues) -> None:
        """Raise ClearValuesError if the snapshot or a window holds values that are to be masked."""
        clear.check_range(self.since)
        if self.snapshot is not None and not clear.is_masked(
            table.table for table in self.snapshot.tables
        ):
            clear.check_range(0)

    def source(self) -> SnapshotSource | None:
        """Open the snapshot's rows."""
        return (
            SnapshotSource.from_snapshot(self.archive.url, self.snapshot) if self.snapshot else None
        )

    def lineage(self) -> TableLineage:
        """Follow the schema from the snapshot to the moment.

        If that fails, the lineage holds only the problem.
        """
        try:
            source = self.source()
            known = source.definitions() if source else None
            made = TableLineage(
                self.since,
                self.oldest,
                known.tables if known else (),
                known.schemas if known else (),
            )
            made.follow(self.windows(), self.until)
        except RelayError as error:  # a hole, or damage: named, with the way out
            return TableLineage(self.since, self.oldest, problems=[str(error)])
        return made

    def lacking(self, lineage: TableLineage) -> dict[int, str]:
        """Return the tables at the moment whose rows can't be known from here: names by id.

        As `sluice.etl.history.retain.promise` has it, with the lineage's DDL behind the archive.
        Raises relay errors, OSError.
        """
        promise, facts = self.view.promise, self.view.facts
        if promise is None or facts is None or self.since < facts.lo:
            return {}
        start = ReadStart(self.since)
        if self.snapshot is not None:  # a planner looks at values of columns that it lacks
            known = SnapshotSummary.from_snapshot(self.snapshot)
            start = ReadStart(known.ts, known.tables, known.id)
        found = promise.lacking(start, max(start.ts, min(self.until, facts.hi)))
        later = (ddl.effect.tables for ddl in lineage.ddls if ddl.commit_ts > facts.hi)
        gone = {i for tables in later for i, table in tables.items() if table is None}
        return {i: name for i, name in found.items() if i not in gone}

    def windows(self) -> Iterator[WindowRecord]:
        """Yield the windows through the moment; those not archived yet, as they are landed."""
        return self._windows(self.since)

    def segments(self) -> Iterator[ArchiveSegment]:
        """Yield the archive's windows that are needed."""
        until = min(self.until, self.archived)
        if self.since < until:
            yield from self.archive.segments(self.since, until)

    def share(self, segment: ArchiveSegment) -> float:
        """About how much of a segment lies between there and the moment."""
        needed = min(segment.hi, self.until) - max(segment.lo, self.since)
        return needed / (segment.hi - segment.lo)

    def extent(self, ids: Collection[int]) -> LogExtent:
        """Return the extent of the log, for the tables of these ids."""
        windows = unarchived = changes = size = 0
        for segment in self.segments():
            inside = sum(segment.tables.get(table_id, 0) for table_id in ids)
            wanted = round(inside * self.share(segment))
            changes += wanted
            windows += segment.windows
            size += (
                round(segment.log.bytes * wanted / max(segment.changes, 1)) if segment.log else 0
            )
        for window in self.unarchived():
            unarchived += 1
            if not set(ids).isdisjoint(map(int, window.tables)):
                changes += window.changes
                size += sum(part.bytes for part in window.parts)
        return LogExtent(windows + unarchived, unarchived, changes, size)

    def unarchived(self) -> Iterator[WindowRecord]:
        """Yield the windows that are needed, and aren't archived yet."""
        return self._windows(max(self.since, self.archived))

    def _windows(self, since: int) -> Iterator[WindowRecord]:
        return itertools.chain.from_iterable(
            part.windows() for part in self.log.ranges(since, self.until)
        )


def _latest(view: ArchiveView, through_ts: int, before: str = "") -> ArchiveSnapshot | None:
    """Return the latest snapshot of then or earlier; those that can't be read are passed over.

    `before`: only those that are older than this one (id), or of the same moment and before it.
    """
    found = [
        one.id for one in view.snapshots if one.ts <= through_ts and (not before or one.id < before)
    ]
    return SnapshotStore(view.archive.storage).get(max(found)) if found else None
