"""Refuse to show clear values of a pipeline that masks columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from sluice.errors import RequestError
from sluice.etl.changes.rules import Filter, masks_digest
from sluice.etl.settings import Settings
from sluice.tidb import tso
from sluice.tidb.schema import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ClearValues", "ClearValuesError", "check_clear_values"]


class ClearValuesError(RequestError):
    """The pipeline masks columns, and what is asked for would show their clear values."""

    hint = (
        "the relay log and the archive hold clear values: whoever may see these asks with a"
        " settings file of the same [relay] and [archive] that masks nothing (-c)"
    )


@dataclass(frozen=True, slots=True)
class ClearValues:
    """Where the past of a pipeline holds clear values of columns that its rules mask.

    `since_ts` (TSO): behind it all windows are masked; 0 if nothing is to be refused.
    """

    filters: Filter
    since_ts: int = 0
    rule: str = ""

    @classmethod
    def of(cls, settings: Settings, what: str) -> Self:
        """Look where they are; `what` shows values, begins the message.

        Raises ClearValuesError if they are everywhere, relay errors, OSError.
        """
        rule = settings.filters.masking_rule
        if rule is None:
            return cls(settings.filters)
        refused = ClearValuesError(
            f"{what} would show clear values of columns that {rule.text} masks"
        )
        if not settings.lands_masked:
            raise refused
        from sluice.relay.landed_masks import LandedMasksLog

        landed = LandedMasksLog(settings.open_relay().storage).load()
        if landed.digest != masks_digest(settings.filters):
            raise refused
        return cls(settings.filters, landed.since_ts, rule.text)

    def check_range(self, since_ts: int) -> None:
        """Raise ClearValuesError if windows behind a TSO hold clear values."""
        if since_ts < self.since_ts:
            raise ClearValuesError(
                f"what was committed between {tso.text(since_ts)} and {tso.text(self.since_ts)}"
                f" holds clear values of columns that {self.rule} masks",
                hint=f"ask for what came behind {self.since_ts}: the relay log is masked there",
            )

    def is_masked(self, tables: Iterable[Mapping[str, Any]]) -> bool:
        """Return whether a snapshot with these tables (`Table.to_json`) holds no clear values."""
        if not self.rule:
            return True
        masks = self.filters.masks_alone()
        shaped = (masks.narrowed(Table.from_json(document)) for document in tables)
        return not any(c.mask and not c.landed_mask for table in shaped for c in table.columns)


def check_clear_values(settings: Settings, what: str) -> None:
    """Raise ClearValuesError if a rule masks columns; `what` shows values, begins the message."""
    rule = settings.filters.masking_rule
    if rule is not None:
        raise ClearValuesError(f"{what} would show clear values of columns that {rule.text} masks")
