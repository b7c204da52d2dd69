"""State what shows that the replica is right: its last verifications, and what can be restored.

`sluice status`, `top`, `doctor`, the pages and the digest take both from here, with the same words.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sluice.errors import SluiceError
from sluice.etl.display_units import counted, format_duration
from sluice.etl.settings import Settings
from sluice.relay import RelayLog
from sluice.relay.verification_log import TableVerified, Verifications
from sluice.tidb import tso

__all__ = [
    "VerifiedPart",
    "known_restorable",
    "restorable",
    "restorable_text",
    "verifications",
    "verified_part",
    "verified_text",
]


@dataclass(frozen=True, slots=True)
class VerifiedPart:
    """The last verification of each table.

    `at_ms`: when the table with the oldest verification was verified (Unix ms), 0: never; `age_ms`:
    how long ago. `tables` were verified; of `equal` all rows were compared, and none differs.
    `differing`: the tables of which rows differed, `differences`: these rows. `uncompared`: those
    that could not be compared whole, each ``table`` and ``problem``.
    """

    at_ms: int
    age_ms: float | None
    tables: int
    differing: tuple[str, ...]
    differences: int
    equal: int = 0
    uncompared: tuple[Mapping[str, str], ...] = ()

    @property
    def text(self) -> str:
        """Return what was found: ``38 tables equal, 2 differ by 2,878 rows, 1 not compared``."""
        if not self.tables:
            return "never compared"
        found = []
        if self.equal:
            found.append(f"{counted(self.equal, 'table')} equal")
        if self.differing:
            tables = counted(len(self.differing), "table differs", "tables differ")
            found.append(f"{tables} by {counted(self.differences, 'row')}")
        if self.uncompared:
            found.append(f"{counted(len(self.uncompared), 'table')} not compared")
        return ", ".join(found)


def verified_part(tables: Collection[TableVerified]) -> VerifiedPart:
    """Return what the last verification of each table found."""
    if not tables:
        return VerifiedPart(0, None, 0, (), 0)
    oldest = min(table.at_ms for table in tables)
    now_ms = time.time_ns() // 1_000_000
    problems = sorted((table.name, table.problem) for table in tables if table.problem)
    return VerifiedPart(
        oldest,
        max(0.0, float(now_ms - oldest)),
        len(tables),
        tuple(sorted(table.name for table in tables if table.differences)),
        sum(table.differences for table in tables),
        sum(table.equal for table in tables),
        tuple({"table": name, "problem": problem} for name, problem in problems),
    )


def verifications(relay: RelayLog) -> dict[str, Any]:
    """Return `verified` and `unequal` of `sluice status`, as JSON values.

    Raises RelayError, OSError.
    """
    last = Verifications(relay).last().values()
    return {
        "verified": asdict(verified_part(last)),
        "unequal": [
            {"table": table.name, "differences": table.differences, "problem": table.problem}
            for table in last
            if not table.equal
        ],
    }


def restorable(settings: Settings) -> dict[str, Any]:
    """Return `restorable` of `sluice status`, as JSON values. Raises relay errors, OSError."""
    # what reads an archive isn't loaded by commands that don't
    from sluice.etl.history.retain import restorable_tables

    found = restorable_tables(settings)
    return {
        "from_ts": found.promised_ts,
        "through_ts": found.hi if found.promised_ts else 0,
        "archived_ts": found.hi,
        "lacking": [{"table": one.name, "why": one.why} for one in found.unknown],
    }


def known_restorable(settings: Settings) -> dict[str, Any] | None:
    """Return `restorable`, None if the archive can't be read."""
    try:
        return restorable(settings)
    except (SluiceError, OSError):
        return None


def verified_text(found: Mapping[str, Any]) -> str:
    """Return `verified` of `sluice status` for people, with how old the results are."""
    verified = VerifiedPart(**found)
    if verified.age_ms is None:
        return f"{verified.text}; `sluice verify` compares"
    age = format_duration(verified.age_ms / 1000)
    return f"{verified.text}; the oldest result is {age} old"


def restorable_text(found: Mapping[str, Any] | None) -> str:
    """Return `restorable` of `sluice status` for people; None: the archive can't be read."""
    if found is None:
        return "unknown: the archive can't be read; see `sluice archive status`"
    if not found["archived_ts"]:
        return "nothing: the archive is empty"
    if found["lacking"]:
        tables = counted(len(found["lacking"]), "table")
        return f"not all: {tables} can't be restored now; see `sluice archive status`"
    if not found["from_ts"]:
        return "nothing now: there is no table"
    since, through = (tso.time_text(found[name]) for name in ("from_ts", "through_ts"))
    return f"all tables, as of every moment from {since} to {through}"
