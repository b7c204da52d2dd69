"""A wish for some tables only, as a person types it beside what the settings' rules say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sluice.etl.changes.rules.filters import Filter, NameRule
from sluice.tidb.table_name import fits, full_name, schema_fits


@dataclass(frozen=True, slots=True)
class _ExceptGlobs(NameRule):
    """Matches every table whose ``schema.table`` none of the globs fits, and databases in which none could."""

    globs: tuple[str, ...] = ()

    def matches(self, schema: str, table: str) -> bool:
        if not table:
            return not any(schema_fits(schema, glob) for glob in self.globs)
        name = full_name(schema, table)
        return not any(fits(name, glob) for glob in self.globs)


def only_tables(filters: Filter, globs: Sequence[str]) -> Filter:
    """The filter, and of what it wants only the tables whose ``schema.table`` fits one of `globs` (`*` and `?`; their
    names in case); all of them without globs.
    """
    if not globs:
        return filters
    text = f"--table {', '.join(globs)}"
    return replace(filters, ignored_tables=(*filters.ignored_tables, _ExceptGlobs("*", "*", text, tuple(globs))))
