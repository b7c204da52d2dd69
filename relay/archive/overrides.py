"""Copy operators' overrides of transactions and DDL from a relay log into the archive.

So a restore excludes and replaces what replication did. The files are those of the relay log, see
`sluice.relay.overrides`:

    <archive>/overrides/<commit_ts>.json
    <archive>/overrides/<commit_ts>.used.json

An operator may add an override when its window has been archived, and may remove it before a
checkpoint has passed it. So every pass copies them. An override that a checkpoint has passed stays,
whatever becomes of it in the relay log.
"""

from __future__ import annotations

import contextlib

from sluice.relay.overrides import OverrideExistsError, Overrides

__all__ = ["sync_overrides"]


def sync_overrides(relay: Overrides, archive: Overrides) -> int:
    """Make the archive's overrides equal to the relay log's, and return how many have changed.

    It may be repeated, and broken off anywhere. Raises RelayCorruptError, OSError.
    """
    used_there, used = archive.used_ms(), relay.used_ms()
    there = {override.named: override for override in archive.list()}
    decided = {override.named: override for override in relay.list()}
    changed = 0
    for name, override in there.items():
        if name not in used_there and override != decided.get(name):
            archive.remove(*override.key)
            changed += 1
    for name, override in decided.items():
        if name not in used_there and there.get(name) != override:
            with contextlib.suppress(OverrideExistsError):  # another process carries them over, too
                archive.add(override)
                changed += 1
    newly_used = sorted(decided.keys() & used.keys() - used_there.keys())
    archive.mark_used([decided[name] for name in newly_used])
    return changed
