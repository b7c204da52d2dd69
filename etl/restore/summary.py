"""Summarize the outcome of a restore."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.relay.jobs import DONE

__all__ = ["RestoreSummary", "RestoreVerification"]


@dataclass(frozen=True, slots=True)
class RestoreVerification:
    """How the restored tables were verified.

    `tables` with `rows` were compared with the state that Spark computes from snapshot and archive,
    and those of `with_tidb` with TiDB as of the moment; `note` names what wasn't, and why.
    """

    tables: int = 0
    rows: int = 0
    with_tidb: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class RestoreSummary:
    """What was done.

    `snapshot_rows`, `changes` and `ddls` count what this process loaded and applied; `seconds` of
    each stage, and of all. `state`: DONE, PAUSED or CANCELLED; `left`: what a cancelled one left.
    """

    job: str
    to: str
    until: int
    tables: int
    snapshot_rows: int = 0
    changes: int = 0
    ddls: int = 0
    seconds: float = 0.0
    stages_s: Mapping[str, float] = field(default_factory=dict)
    verified: RestoreVerification = RestoreVerification()
    pace: Mapping[str, float] = field(default_factory=dict)
    """The measured pace of this restore, see `sluice.etl.restore.estimate`."""
    warnings: tuple[str, ...] = ()
    state: str = DONE
    left: tuple[str, ...] = ()
