"""Describe a backfill request: which tables and rows are copied again, in which way, how fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sluice.etl.copy.backfill.condition import check_condition
from sluice.etl.copy.errors import BackfillError
from sluice.relay.aligned_chunks import COMPARE, MISSING, REPLACE
from sluice.relay.json_codec import OMIT_DEFAULT, JsonDocument

MODES = (REPLACE, MISSING, COMPARE)
"""Make rows downstream what they are upstream; write only those that aren't there; compare.

COMPARE writes nothing, and reports what differs.
"""


@dataclass(frozen=True, slots=True)
class BackfillRequest(JsonDocument):
    """A request for a backfill.

    `tables`: globs of upstream names (`schema.table`). `where`: a condition in TiDB's SQL, "" for
    none. `from_key`, `to_key`: a range of the key of the one table, the first inside and the
    second outside, "" for no limit; see `sluice.etl.copy.backfill.table_key.parse_key`.
    `rows_per_second`: 0 for no limit. `only`: of these tables (full names) no rows but those that
    one of these conditions takes, on either side; SQL over the key alone that means the same to
    both, a chunk each. Repair jobs set it; a table whose key can't be cut is copied as a whole all
    the same.
    """

    JSON_COMPLETE: ClassVar = True
    JSON_FIELDS: ClassVar = {"only": OMIT_DEFAULT}

    tables: tuple[str, ...]
    where: str = ""
    from_key: str = ""
    to_key: str = ""
    mode: str = REPLACE
    rows_per_second: int = 0
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Return whether all rows of its tables are replaced."""
        part = self.where or self.from_key or self.to_key or self.only
        return self.mode == REPLACE and not part

    def check(self) -> None:
        """Raise BackfillError for a request that makes no sense."""
        if not self.tables:
            raise BackfillError(
                "which tables? give --table SCHEMA.TABLE; * and ? stand for other characters"
            )
        for glob in self.tables:
            if "." not in glob:
                raise BackfillError(
                    f"--table {glob}: a table is named with its schema, {glob}.* are all of a"
                    " schema"
                )
        if self.mode not in MODES:
            raise BackfillError(f"--mode {self.mode}: one of {', '.join(MODES)}")
        if self.rows_per_second < 0:
            raise BackfillError(
                f"--rows-per-second {self.rows_per_second}: a number from 1 on, or 0 for no limit"
            )
        if self.where:
            check_condition(self.where)
