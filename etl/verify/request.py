"""Define the request for a verification: which tables to compare, and with what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sluice.etl.changes.rules import Filter, only_tables
from sluice.etl.verify.errors import VerifyError
from sluice.relay.json_codec import JsonDocument

__all__ = ["AUTO", "METHODS", "VerifyRequest"]

AUTO = "auto"
METHODS = ("auto", "upstream", "archive")


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
                f"{self.how!r} is no way to verify", hint=f"one of {', '.join(METHODS)}"
            )
        if wrong := [glob for glob in self.tables if "." not in glob]:
            raise VerifyError(
                f"{wrong[0]!r} names no table",
                hint="write schema.table; * and ? stand for others",
            )

    def wants(self, schema: str, name: str) -> bool:
        """Return whether a table is to be compared."""
        return not self.tables or only_tables(Filter(), self.tables).wants_table(schema, name)
