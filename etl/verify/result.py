"""Define the request for a verification, and its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self

from sluice.errors import SluiceError
from sluice.etl.changes.rules import Filter, only_tables
from sluice.etl.display_units import counted
from sluice.etl.verify.endpoint import Difference
from sluice.etl.verify.errors import VerifyError
from sluice.etl.verify.tables import ExcludedTable
from sluice.relay.json_codec import JsonDocument
from sluice.relay.verification_log import TableVerified, VerificationMethod, VerifiedRun
from sluice.tidb.table_name import first_of

__all__ = ["AUTO", "METHODS", "TableResult", "VerifyRequest", "VerifySummary"]

AUTO = "auto"
METHODS = ("auto", "upstream", "archive")

_MAX_SHOWN = 10


@dataclass(frozen=True, slots=True)
class VerifyRequest(JsonDocument):
    """A request to verify; `tables`: globs of `schema.table` upstream, none: all.

    `how`: with TiDB ("upstream"), with snapshot and archive ("archive"), or AUTO: with TiDB if the
    settings name its SQL address and it still has that moment.
    """

    JSON_COMPLETE: ClassVar = True

    tables: tuple[str, ...] = ()
    how: str = AUTO

    def check(self) -> None:
        """Raise VerifyError for what isn't possible."""
        if self.how not in METHODS:
            raise VerifyError(
                f"unknown method {self.how!r} of verification", hint=f"one of {', '.join(METHODS)}"
            )
        if wrong := [glob for glob in self.tables if "." not in glob]:
            raise VerifyError(
                f"{wrong[0]!r} names no table",
                hint="write schema.table; * and ? stand for others",
            )

    def wants(self, schema: str, name: str) -> bool:
        """Return whether a table is to be compared."""
        return not self.tables or only_tables(Filter(), self.tables).wants_table(schema, name)


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
        """Return the result as the relay log has it."""
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
    """Outcome of a run.

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
        """Return the run as the relay log has it."""
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


def _why_unequal(table: TableResult) -> str:
    if table.problem:
        return f"{table.name} can't be compared: {table.problem}"
    first = table.examples[0] if table.examples else None
    row = f", among them {dict(first.key)}, {first.kind}" if first is not None else ""
    return (
        f"{table.name}: {counted(max(table.differences, 1), 'row')} of {table.rows:,} differ{row}"
    )


class UnequalError(SluiceError):
    """Both sides were compared, and aren't equal."""

    hint = (
        "`sluice verify --json` lists each row that differs; `sluice verify --repair --apply` makes"
        " them right"
    )

    @classmethod
    def from_summary(cls, summary: VerifySummary) -> Self:
        """Return the error that names the tables, and the first row of each."""
        only_downstream = [f"{name} is downstream only" for name in summary.only_downstream]
        found = [
            *first_of(map(_why_unequal, summary.unequal), _MAX_SHOWN, "tables"),
            *first_of(only_downstream, _MAX_SHOWN, "downstream only"),
            *([] if summary.tables else ["no table was compared"]),
        ]
        return cls(f"at the checkpoint {summary.ts}: {'; '.join(found)}")
