"""Remove what the settings no longer keep: relay windows, snapshots, archive segments.

All removals go through this module.

Each step leaves what is right, so a kill anywhere is made good by the next run; two at a time do
the same twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sluice.etl.history.as_of.result_files import remove_abandoned_results
from sluice.etl.history.errors import RetainError
from sluice.etl.history.lake.iceberg_view import IcebergView
from sluice.etl.history.retain.catalogue_summary import SnapshotSummary
from sluice.etl.history.retain.checked import VerifiedSnapshots
from sluice.etl.history.retain.contents import ArchiveContents, read_contents
from sluice.etl.history.retain.facts import inventory_of
from sluice.etl.history.retain.policy import (
    ArchiveInventory,
    RetentionDecision,
    RetentionPolicy,
    decide_retention,
)
from sluice.etl.history.retain.purge_relay import PurgeResult, purge_windows
from sluice.etl.history.retain.settings_policy import policy_of
from sluice.etl.history.retain.summaries import (
    DirectSummaries,
    readable_snapshots,
    refresh_summaries,
)
from sluice.etl.settings import Settings
from sluice.relay import RelayError
from sluice.relay.archive import (
    Archive,
    ArchiveSnapshot,
    Pin,
    Pins,
    SnapshotStore,
    active_pins,
    remove_unreferenced,
)
from sluice.relay.jobs import Jobs
from sluice.tidb import tso

__all__ = ["RetainSummary", "retain"]

log = logging.getLogger("sluice.archive")


@dataclass(frozen=True, slots=True)
class RetainSummary:
    """Summarize what was removed, and what holds the oldest of the rest.

    `windows`: of the relay log; `snapshots`: their ids; `segments`, `bytes`: of the archive.
    `relay_held_by`, `archive_held_by`: what keeps the oldest window and segment, for people.
    """

    windows: int = 0
    verified_changes: int = 0
    relay_held_by: str = ""
    snapshots: tuple[str, ...] = ()
    segments: int = 0
    bytes: int = 0
    files: int = 0
    promised_ts: int = 0
    archive_held_by: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


def retain(settings: Settings, stop: Callable[[], bool] = lambda: False) -> RetainSummary:
    """Remove what may go, until `stop`.

    What can't be judged stays, and is an error when everything else is done. Raises RetainError,
    RelayCorruptError, RelayGapError, OSError; IcebergError while Iceberg's catalog is away.
    """
    relay, archive = settings.open_relay(), Archive.open(settings.archive_url)
    failed: RelayError | RetainError | None = None
    gone = PurgeResult()
    try:
        gone = purge_windows(relay, archive, settings.relay.keep_ms, stop)
    except (RelayError, RetainError) as error:
        failed = error
    summary = RetainSummary(gone.windows, gone.changes, gone.held_by)
    try:
        if not stop():
            summary = _purge_archive(
                archive,
                Jobs.for_pipeline(relay),
                policy_of(settings),
                summary,
                IcebergView.from_settings(settings),
            )
    finally:
        refresh_summaries(relay, archive)
    log.info("retention: %s", summary.as_dict())
    if failed is not None:
        raise failed
    return summary


def _purge_archive(
    archive: Archive,
    jobs: Jobs,
    keep: RetentionPolicy,
    summary: RetainSummary,
    iceberg: IcebergView | None,
) -> RetainSummary:
    contents = read_contents(archive, DirectSummaries(archive).day)
    _refuse_gaps(archive, contents, keep)
    if not contents.segments:
        return summary
    holds, end = Pins(archive.storage), contents.segments[-1].hi
    living = active_pins(archive, jobs.is_over, end, bury=True)
    _finish_removal(archive, holds, living)
    snapshots, faults = readable_snapshots(SnapshotStore(archive.storage).find, archive)
    starts = [SnapshotSummary.from_snapshot(snapshot).snapshot for snapshot in snapshots]
    facts = inventory_of(archive, contents, starts, holds.removal_mark().before_ts)
    if facts is None:
        return summary
    found = _verified_decision(
        VerifiedSnapshots(archive),
        facts,
        snapshots,
        lambda facts: _retention_decision(facts, keep, living),
        faults,
    )
    before = max(
        (segment.hi for segment in contents.segments[:-1] if segment.hi <= found.before_ts),
        default=0,
    )
    floor = holds.advance_removal(before, found.forget)
    living = active_pins(archive, jobs.is_over, end)
    gone = _finish_removal(archive, holds, living)
    removed = archive.remove(_removable_through(floor.before_ts, living))
    named: frozenset[str] = frozenset()
    if iceberg is not None:
        iceberg.update()
        named = iceberg.named_files()
    files = remove_unreferenced(archive, jobs.is_over, named)
    remove_abandoned_results(archive.storage, time.time_ns() // 1_000_000)
    if faults:
        raise RetainError(
            "; ".join(faults), hint="`sluice snapshot forget` the damaged one, and make another"
        )
    return replace(
        summary,
        snapshots=gone,
        segments=len(removed),
        bytes=sum(segment.bytes for segment in removed),
        files=files,
        promised_ts=found.promised_ts,
        archive_held_by=found.held_by,
    )


def _finish_removal(archive: Archive, holds: Pins, living: Mapping[str, Pin]) -> tuple[str, ...]:
    """Forget the snapshots of the removal mark that are not being read, and return them."""
    snapshots = SnapshotStore(archive.storage)
    held = {name for hold in living.values() for name in hold.snapshots}
    gone = tuple(name for name in holds.removal_mark().snapshots if name not in held)
    for name in gone:
        snapshots.forget(name)
    if gone:
        snapshots.sweep()
        holds.advance_removal(0, (), gone)
        VerifiedSnapshots(archive).forget(frozenset(snapshots.ids()))
    return gone


def _removable_through(before: int, living: Mapping[str, Pin]) -> int:
    """Return through where the chain may go: no reader needs what lies there."""
    return min([before, *(hold.from_ts for hold in living.values())])


def _retention_decision(
    facts: ArchiveInventory, keep: RetentionPolicy, living: Mapping[str, Pin]
) -> RetentionDecision:
    held = sorted({name for hold in living.values() for name in hold.snapshots})
    held_ts = min((hold.from_ts for hold in living.values()), default=None)
    return decide_retention(facts, keep, tso.wall_clock(), held, held_ts)


def _verified_decision(
    checked: VerifiedSnapshots,
    facts: ArchiveInventory,
    snapshots: Sequence[ArchiveSnapshot],
    judge: Callable[[ArchiveInventory], RetentionDecision],
    faults: list[str],
) -> RetentionDecision:
    """Decide what may be removed, with every snapshot that the rest relies on read.

    `faults` gets the faults of some.
    """
    by_id = {snapshot.id: snapshot for snapshot in snapshots}
    while True:
        found = judge(facts)
        bad = {
            name: fault
            for name in found.depends_on
            if (fault := checked.fault(by_id[name])) is not None
        }
        if not bad:
            return found
        faults += bad.values()
        facts = replace(
            facts,
            snapshots=tuple(snapshot for snapshot in facts.snapshots if snapshot.id not in bad),
        )


def _refuse_gaps(archive: Archive, contents: ArchiveContents, keep: RetentionPolicy) -> None:
    """Raise RetainError if there is a hole that matters.

    What lies beside it may be needed for its repair.
    """
    end = contents.segments[-1].hi if contents.segments else 0
    since = min(end, tso.wall_clock()) - tso.span(keep.log_ms) if keep.log_ms else 0
    holes: Iterable[str] = [hole.why for hole in contents.holes if hole.hi > since]
    if holes:
        raise RetainError(
            f"{archive.url} has holes, so nothing is removed from it: {'; '.join(holes)}",
            hint=(
                "bring the files back from a copy, or wait until the holes are older than [archive]"
                " keep"
            ),
        )
