"""Purge the relay log's windows that all consumers and the archive have.

A window goes once it is behind every consumer by the time to keep, and the archive has it. Reading
both has shown that just before; or the archive has had it, and has removed it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sluice.etl.history.errors import NotArchivedError
from sluice.etl.history.retain.verify import verify_window
from sluice.relay import RelayLog
from sluice.relay.archive import Archive, Pins
from sluice.relay.consumers import Consumers, applies
from sluice.tidb import tso

__all__ = ["PurgeResult", "purge_windows"]

_WINDOWS_PER_BATCH = 64
_CHANGES_PER_BATCH = 500_000


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """Counts of what was purged from the relay log.

    It is `windows`, of which `changes` were read in the archive, too. `held_by` names what keeps
    the oldest of the rest.
    """

    windows: int = 0
    changes: int = 0
    held_by: str = ""


def purge_windows(
    relay: RelayLog, archive: Archive, keep_ms: int, stop: Callable[[], bool]
) -> PurgeResult:
    """Remove windows from the relay log, oldest first, until `stop`.

    `keep_ms`: 0 keeps all. Nothing goes before a pipeline that applies is known. Killed anywhere,
    the next call goes on. Raises NotArchivedError, RelayCorruptError, RelayGapError, OSError.
    """
    if not keep_ms:
        return PurgeResult(held_by="[relay] keep, which isn't set")
    positions = Consumers(relay).positions()
    if not any(map(applies, positions)):
        return PurgeResult(held_by="that no pipeline has applied anything yet")
    last = min(positions, key=lambda name: positions[name])
    before = positions[last] - tso.span(keep_ms)
    windows = changes = 0
    for through, verified in _verified_through(relay, archive, before):
        windows += relay.purge(through, stop)
        changes += verified
        if stop():
            break
    first = relay.first()
    late = archive.last()
    if first is not None and first.hi <= before and (late is None or late.hi < first.hi):
        return PurgeResult(
            windows, changes, f"the archive, which has nothing of {tso.text(first.hi)}"
        )
    return PurgeResult(
        windows, changes, f"[relay] keep behind {last}, which is at {tso.text(positions[last])}"
    )


def _verified_through(relay: RelayLog, archive: Archive, before: int) -> Iterator[tuple[int, int]]:
    """Yield the TSO through which the archive has the relay log's windows, step by step.

    A step is a few windows; with it comes the number of changes that were read for it.
    """
    first, began = relay.first(), archive.first()
    if first is None or began is None or first.hi > before:
        return
    floor = min(Pins(archive.storage).removal_mark().before_ts, before)
    through = max(first.lo, floor)
    if floor > first.lo:
        yield floor, 0
    elif began.lo > first.lo:
        raise NotArchivedError(
            f"{archive.url} begins at {tso.text(began.lo)}: what {relay.url} has before, from"
            f" {tso.text(first.lo)} on, isn't in it, and stays"
        )
    windows = changes = 0
    for archived in archive.log.windows(through, before):
        if archived.hi > before:
            break
        changes += verify_window(relay, archive, archived)
        windows += 1
        through = archived.hi
        if windows == _WINDOWS_PER_BATCH or changes >= _CHANGES_PER_BATCH:
            yield through, changes
            windows = changes = 0
    if windows:
        yield through, changes
