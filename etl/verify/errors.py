"""Define the errors of verification and of reapplying past windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from sluice.errors import RequestError, SluiceError

if TYPE_CHECKING:
    from sluice.etl.verify.result import VerifySummary
_MAX_SHOWN = 10


class VerifyError(SluiceError):
    """Whether both sides are equal can't be determined."""

    hint = "do what the message asks for, and verify again"


class UnequalError(SluiceError):
    """Both sides were compared, and aren't equal."""

    hint = (
        "`sluice verify --json` lists each row that differs; `sluice verify --repair --apply` makes"
        " them right"
    )

    @classmethod
    def of(cls, summary: VerifySummary) -> Self:
        """Names the tables, and the first row of each."""
        told = []
        for table in summary.unequal[:_MAX_SHOWN]:
            if table.problem:
                told.append(f"{table.name} can't be compared: {table.problem}")
                continue
            first = table.examples[0] if table.examples else None
            row = f", among them {dict(first.key)}, {first.kind}" if first is not None else ""
            told.append(
                f"{table.name}: {max(table.differences, 1):,} rows of {table.rows:,} differ{row}"
            )
        told += [f"{name} is downstream only" for name in summary.only_downstream[:_MAX_SHOWN]]
        told += [] if summary.tables else ["no table was compared"]
        more = (
            f"; and {len(summary.unequal) - _MAX_SHOWN} more tables"
            if len(summary.unequal) > _MAX_SHOWN
            else ""
        )
        return cls(f"at the checkpoint {summary.ts}: {'; '.join(told)}{more}")


class ReplayRangeError(RequestError):
    """An impossible request that changed nothing; the message has the reason and a way out."""
