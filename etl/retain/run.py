"""Removes what settings let go of: windows of the relay log, bases, volumes. The one road on which anything goes.

Each step leaves what is right, so a kill anywhere is made good by the next run; two at a time do the same twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from etl.retain.checked import CheckedBases
from etl.retain.contents import Contents, read_contents
from etl.retain.errors import RetainError
from etl.retain.facts import facts_of
from etl.retain.known import KnownBase
from etl.retain.needs import Facts, Keep, Needs, needs
from etl.retain.relay_windows import RelayLetGo, let_go_of_windows
from etl.retain.summaries import Listed, readable, renew_summaries
from etl.rules import Filter
from etl.settings import Settings, SettingsError
from etl.settings.pipelines import pipelines
from relay import RelayError
from relay.archive import Archive, Base, Bases, Hold, Holds, collect, living_holds
from relay.jobs import Jobs
from upstream import tso
from upstream.table_name import TableName

__all__ = ["RetainSummary", "keep_of", "retain"]

log = logging.getLogger("sluice.archive")


@dataclass(frozen=True, slots=True)
class RetainSummary:
    """What was removed: `windows` of the relay log, `bases` by id, `volumes` with their `bytes`; and what holds the
    oldest of the rest, in words.
    """

    windows: int = 0
    verified_changes: int = 0
    relay_held_by: str = ""
    bases: tuple[str, ...] = ()
    volumes: int = 0
    bytes: int = 0
    files: int = 0
    promised_ts: int = 0
    archive_held_by: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def retain(settings: Settings, stop: Callable[[], bool] = lambda: False) -> RetainSummary:
    """Remove what may go, until `stop`. What can't be judged stays, and is an error when everything else is done.
    Raises RetainError, RelayCorruptError, RelayGapError, OSError.
    """
    relay, archive = settings.open_relay(), Archive.open(settings.archive_url)
    failed: RelayError | RetainError | None = None
    gone = RelayLetGo()
    try:
        gone = let_go_of_windows(relay, archive, settings.relay.keep_ms, stop)
    except (RelayError, RetainError) as error:
        failed = error
    summary = RetainSummary(gone.windows, gone.changes, gone.held_by)
    try:
        if not stop():
            summary = _of_archive(archive, Jobs.of(relay), keep_of(settings), summary)
    finally:
        renew_summaries(relay, archive)
    log.info("retention: %s", summary.as_dict())
    if failed is not None:
        raise failed
    return summary


def keep_of(settings: Settings) -> Keep:
    """What the settings ask for. A table counts if any pipeline of this installation on the archive wants it; each
    does while the settings of another pipeline can't be read.
    """
    filters = [settings.rules.filters]
    try:
        filters += [other.rules.filters for other in _others_on(settings.archive_url)]
    except (SettingsError, OSError) as error:
        log.warning("every table counts, as the settings of another pipeline can't be read: %s", error)
        filters.append(Filter())

    def wanted(name: str) -> bool:
        table = TableName.parse(name)
        return any(each.wants_table(*table) for each in filters)

    return Keep(settings.archive.keep_ms, settings.archive.bases_keep_ms, wanted)


def _others_on(archive_url: str) -> Iterator[Settings]:
    """Yield the settings of the pipelines of this installation on that archive. Raises SettingsError."""
    for pipeline in pipelines().values():
        if pipeline.path is not None and (settings := pipeline.settings).archive_url == archive_url:
            yield settings


def _of_archive(archive: Archive, jobs: Jobs, keep: Keep, summary: RetainSummary) -> RetainSummary:
    contents = read_contents(archive, Listed(archive).day)
    _refuse_holes(archive, contents, keep)
    if not contents.volumes:
        return summary
    holds, end = Holds(archive.storage), contents.volumes[-1].hi
    living = living_holds(archive, jobs.is_over, end, bury=True)
    _go_on(archive, holds, living)
    bases, faults = readable(Bases(archive.storage).find, archive)
    snapshots = [KnownBase.of(base).snapshot for base in bases]
    facts = facts_of(archive, contents, snapshots, holds.floor().before_ts)
    if facts is None:
        return summary
    found = _judged(CheckedBases(archive), facts, bases, lambda facts: _needs(facts, keep, living), faults)
    before = max((volume.hi for volume in contents.volumes[:-1] if volume.hi <= found.before_ts), default=0)
    floor = holds.raise_floor(before, found.forget)
    living = living_holds(archive, jobs.is_over, end)
    gone = _go_on(archive, holds, living)
    removed = archive.remove(_through(floor.before_ts, living))
    files = collect(archive, jobs.is_over)
    if faults:
        raise RetainError("; ".join(faults), way_out="`sluice base forget` the damaged one, and make another")
    return replace(
        summary,
        bases=gone,
        volumes=len(removed),
        bytes=sum(volume.bytes for volume in removed),
        files=files,
        promised_ts=found.promised_ts,
        archive_held_by=found.held_by,
    )


def _go_on(archive: Archive, holds: Holds, living: Mapping[str, Hold]) -> tuple[str, ...]:
    """Forget the bases that the floor names, unless somebody reads them; which."""
    bases = Bases(archive.storage)
    held = {name for hold in living.values() for name in hold.bases}
    gone = tuple(name for name in holds.floor().bases if name not in held)
    for name in gone:
        bases.forget(name)
    if gone:
        bases.sweep()
        holds.raise_floor(0, (), gone)
        CheckedBases(archive).forget(frozenset(bases.ids()))
    return gone


def _through(before: int, living: Mapping[str, Hold]) -> int:
    """Through where the chain may go, as nobody reads what lies there."""
    return min([before, *(hold.from_ts for hold in living.values())])


def _needs(facts: Facts, keep: Keep, living: Mapping[str, Hold]) -> Needs:
    held = sorted({name for hold in living.values() for name in hold.bases})
    held_ts = min((hold.from_ts for hold in living.values()), default=None)
    return needs(facts, keep, tso.wall_clock(), held, held_ts)


def _judged(
    checked: CheckedBases, facts: Facts, bases: Sequence[Base], judge: Callable[[Facts], Needs], faults: list[str]
) -> Needs:
    """What may go, with every base that the rest relies on read; `faults` gets what is wrong with some."""
    by_id = {base.id: base for base in bases}
    while True:
        found = judge(facts)
        bad = {name: fault for name in found.rely_on if (fault := checked.fault(by_id[name])) is not None}
        if not bad:
            return found
        faults += bad.values()
        facts = replace(facts, bases=tuple(base for base in facts.bases if base.id not in bad))


def _refuse_holes(archive: Archive, contents: Contents, keep: Keep) -> None:
    """Raises RetainError if there is a hole that matters: what lies beside it may be what it is repaired with."""
    end = contents.volumes[-1].hi if contents.volumes else 0
    since = min(end, tso.wall_clock()) - tso.span(keep.log_ms) if keep.log_ms else 0
    holes: Iterable[str] = [hole.why for hole in contents.holes if hole.hi > since]
    if holes:
        raise RetainError(
            f"{archive.url} has holes, so nothing is removed from it: {'; '.join(holes)}",
            way_out="bring the files back from a copy, or wait until the holes are older than [archive] keep",
        )
