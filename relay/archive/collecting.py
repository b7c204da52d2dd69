"""Remove files that segments no longer have: one rule, for compaction and retention alike.

A reader may still read files that a compaction replaces. They stay for `GRACE_MS`, and while a
reader's pin lives that was created before they were replaced. No reader needs what retention has
removed from the chain: it goes at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sluice.relay.archive.archive import Archive
from sluice.relay.archive.pins import DEAD_AFTER_MS, Pin, Pins
from sluice.tidb import tso

__all__ = ["GRACE_MS", "active_pins", "remove_unreferenced"]

log = logging.getLogger("sluice.archive")

GRACE_MS = 6 * 3_600_000
"""People read the lake's folders without a hold: a query that has listed them has hours to end."""


def remove_unreferenced(
    archive: Archive, is_over: Callable[[str], bool], named: frozenset[str] = frozenset()
) -> int:
    """Remove the files that no segment has, and no reader needs; return how many.

    `is_over`: whether a job is. `named`: paths that another catalog refers to; they stay. Raises
    RelayCorruptError, OSError.
    """
    last = archive.last()
    living = active_pins(archive, is_over, last.hi if last is not None else 0)
    read_since_ms = min(
        (tso.physical_ms(hold.archive_ts) for hold in living.values()), default=None
    )
    return archive.sweep(GRACE_MS, read_since_ms, named)


def active_pins(
    archive: Archive, is_over: Callable[[str], bool], now_ts: int, *, bury: bool = False
) -> dict[str, Pin]:
    """Return the pins of the archive's present readers, by name.

    They are those of jobs that aren't over, and others that were created within two days before
    `now_ts`, the archive's end (TSO). `bury`: remove the rest. Raises RelayCorruptError, OSError.
    """
    holds = Pins(archive.storage)
    living: dict[str, Pin] = {}
    for name, hold in holds.all().items():
        dead = is_over(hold.job) if hold.job else now_ts - hold.archive_ts > tso.span(DEAD_AFTER_MS)
        if not dead:
            living[name] = hold
        elif bury:
            log.info("%s reads the archive no longer: its hold %s is taken away", hold.what, name)
            holds.forget(name)
    return living
