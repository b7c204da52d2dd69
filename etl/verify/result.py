"""Define the results of a verification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from sluice.etl.verify.endpoint import Difference
from sluice.etl.verify.tables import ExcludedTable
from sluice.relay.verification_log import TableVerified, VerificationMethod, VerifiedRun

__all__ = ["TableResult", "VerifySummary"]


@dataclass(frozen=True, slots=True)
class TableResult:
    """A table that was to be compared.

    `name`: full name upstream, `downstream` there; `ts` (TSO): the checkpoint at which it was read;
    `rows`, `bytes`: how much the downstream has of it; `differences`: how many rows differ, at
    least if `more` parts that differ weren't read; `examples` of them; `by_rows`: how many rows
    were compared here, as the servers' checksums differed; `problem`: why it could not be compared;
    `notes`: for people.
    """

    name: str
    downstream: str
    ts: int
    rows: int = 0
    bytes: int = 0
    differences: int = 0
    more: int = 0
    by_rows: int = 0
    examples: tuple[Difference, ...] = ()
    problem: str = ""
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Return whether it was compared and no row differs."""
        return not (self.differences or self.more or self.problem)

    def verified(self, at_ms: int, how: VerificationMethod, job: str) -> TableVerified:
        """As the relay log keeps it."""
        differences = max(self.differences, int(self.more > 0))
        return TableVerified(
            self.name, self.ts, at_ms, self.rows, self.bytes, differences, how, job, self.problem
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; `from_json` is the inverse."""
        return asdict(self) | {
            "examples": [one.to_json() for one in self.examples],
            "notes": list(self.notes),
            "equal": self.equal,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Parse the result of `to_json`."""
        values = {name: value for name, value in document.items() if name != "equal"}
        examples = tuple(map(Difference.from_json, document["examples"]))
        return cls(**{**values, "examples": examples, "notes": tuple(document["notes"])})


@dataclass(frozen=True, slots=True)
class VerifySummary:
    """How a run ended.

    `state`: as in `sluice.relay.jobs.STATES`; `ts` (TSO): the last checkpoint at which both sides
    were read; `left_out`: tables that the settings keep from being equal; `at_ms`: Unix ms.
    """

    job: str
    state: str
    how: VerificationMethod = "upstream"
    ts: int = 0
    at_ms: int = 0
    seconds: float = 0.0
    tables: tuple[TableResult, ...] = ()
    left_out: tuple[ExcludedTable, ...] = field(default=())
    notes: tuple[str, ...] = ()
    only_downstream: tuple[str, ...] = ()
    """Tables that the downstream has in replicated databases, and that no table of the upstream
    goes to.
    """

    @property
    def equal(self) -> bool:
        """Return whether all was compared and equal.

        There was something to compare, all of it was, no row differs, and no table is downstream
        alone.
        """
        return (
            bool(self.tables)
            and not self.only_downstream
            and all(table.equal for table in self.tables)
        )

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    @property
    def bytes(self) -> int:
        return sum(table.bytes for table in self.tables)

    @property
    def differences(self) -> int:
        """Return how many rows differ, at least."""
        return sum(table.differences for table in self.tables)

    @property
    def unequal(self) -> tuple[TableResult, ...]:
        """Return the tables that differ, or could not be compared."""
        return tuple(table for table in self.tables if not table.equal)

    def run(self) -> VerifiedRun:
        """As the relay log keeps it."""
        tables = tuple(table.verified(self.at_ms, self.how, self.job) for table in self.tables)
        return VerifiedRun(
            self.job, self.ts, self.at_ms, self.seconds, self.how, tables, self.state
        )

    def totals(self) -> dict[str, Any]:
        """Return JSON values, without the tables that are equal."""
        return {
            "job": self.job,
            "state": self.state,
            "equal": self.equal,
            "how": self.how,
            "ts": self.ts,
            "at_ms": self.at_ms,
            "seconds": self.seconds,
            "compared": len(self.tables),
            "rows": self.rows,
            "bytes": self.bytes,
            "differences": self.differences,
            "notes": list(self.notes),
            "unequal": [table.to_json() for table in self.unequal],
            "left_out": [asdict(one) for one in self.left_out],
            "only_downstream": list(self.only_downstream),
        }

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, for scripts."""
        return self.totals() | {"tables": [table.to_json() for table in self.tables]}
