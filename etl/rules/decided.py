"""Operators' decisions about transactions and DDL, put into the windows that they concern on their way to
`etl.prepare`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from relay import REPLACE, SKIP, Decision, RelayLog

log = logging.getLogger("sluice.apply")

REPLACED_BY = "replaced_by"
"""Key of a DDL: the statements, a list of strings, that are executed in its place."""


def put_into(windows: Sequence[dict[str, Any]], decisions: Sequence[Decision]) -> Sequence[dict[str, Any]]:
    """Windows as `describe_window` gives them, with ``ignored_ts`` and, in their DDL, REPLACED_BY as decided."""
    by_ts = {decision.commit_ts: decision for decision in decisions}
    for window in windows:
        window["ignored_ts"] = sorted(ts for ts, decision in by_ts.items() if decision.action == SKIP)
        window["ddls"] = [_decided(ddl, by_ts.get(int(ddl["commit_ts"]))) for ddl in window["ddls"]]
    return windows


def _decided(ddl: Mapping[str, Any], decision: Decision | None) -> dict[str, Any]:
    if decision is None or decision.action != REPLACE:
        return dict(ddl)
    return {**ddl, REPLACED_BY: list(decision.sql)}


def note_used(relay: RelayLog, decisions: Sequence[Decision]) -> list[str]:
    """Record, once a checkpoint has passed them, that decisions were used, and say so; what was said."""
    relay.decisions.mark_used(decisions)
    said = [f"commit_ts {decision.commit_ts}: {decision}" for decision in decisions]
    for line in said:
        log.warning("%s", line)
    return said


def note_late(relay: RelayLog, now: Sequence[Decision], known: Sequence[Decision]) -> list[str]:
    """Take back decisions that came while what they are about was being committed, and say so; what was said."""
    said = []
    for decision in now:
        if decision not in known and relay.decisions.remove(decision.commit_ts):
            said.append(
                f"commit_ts {decision.commit_ts}: {decision}: too late, it was being committed and is applied; the"
                " decision is taken back"
            )
            log.warning("%s", said[-1])
    return said
