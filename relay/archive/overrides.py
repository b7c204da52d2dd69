"""Operators' decisions about transactions and DDL, carried from a relay log into the archive: a
restore leaves out, and replaces, what replication did.

    <archive>/decisions/<commit_ts>.json, <commit_ts>.used.json     as in the relay log, see `sluice.relay.overrides`

A decision may be made when its window has been archived, and be taken back before a checkpoint has
passed it. So they are carried over with every pass. One that a checkpoint has passed stays,
whatever becomes of it in the relay log.
"""

from __future__ import annotations

import contextlib

from sluice.relay.overrides import OverrideExistsError, Overrides

__all__ = ["sync_overrides"]


def sync_overrides(relay: Overrides, archive: Overrides) -> int:
    """Have the archive's decisions say what the relay log's do; how many have changed.

    It may be repeated, and broken off anywhere. Raises RelayCorruptError, OSError.
    """
    used_there, used = archive.used_ms(), relay.used_ms()
    there = {decision.named: decision for decision in archive.list()}
    decided = {decision.named: decision for decision in relay.list()}
    changed = 0
    for name, decision in there.items():
        if name not in used_there and decision != decided.get(name):
            archive.remove(*decision.key)
            changed += 1
    for name, decision in decided.items():
        if name not in used_there and there.get(name) != decision:
            with contextlib.suppress(OverrideExistsError):  # another process carries them over, too
                archive.add(decision)
                changed += 1
    newly_used = sorted(decided.keys() & used.keys() - used_there.keys())
    archive.mark_used([decided[name] for name in newly_used])
    return changed
