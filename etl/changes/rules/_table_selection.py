"""Select tables beside the settings' rules: by globs, or by names into renamed databases.

The latter is for a restore.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sluice.etl.changes.rules.filters import OWN_SCHEMAS, Filter, NameRule
from sluice.etl.changes.rules.routes import Route, Routes, Target
from sluice.tidb.folded import folded
from sluice.tidb.table_name import fits, full_name, schema_fits

_SCHEMA_PLACEHOLDER = "{schema}"


@dataclass(frozen=True, slots=True)
class _ExceptNames(NameRule):
    """Match every table but those of `names`, and databases that have none of them.

    `names`: (schema, table) in lower case.
    """

    names: frozenset[tuple[str, str]] = frozenset()

    def matches(self, schema: str, table: str) -> bool:
        if not table:
            return all(folded(schema) != known for known, _ in self.names)
        return (folded(schema), folded(table)) not in self.names


def filter_for_tables(names: Iterable[tuple[str, str]], own_schemas: Iterable[str] = ()) -> Filter:
    """Return a filter that wants these (schema, table), in any case, and no other one.

    `own_schemas`: beside the system's, what never is a table of the upstream's.
    """
    lower = frozenset((folded(schema), folded(table)) for schema, table in names)
    rule = _ExceptNames("*", "*", "it isn't among the tables to be restored", lower)
    return Filter(
        ignored_tables=(rule,), own_schemas=OWN_SCHEMAS | {folded(name) for name in own_schemas}
    )


@dataclass(frozen=True, slots=True)
class SchemaPattern(Routes):
    """Route every database to the name `pattern` makes of its own: ``{schema}_restored``."""

    pattern: str = _SCHEMA_PLACEHOLDER

    @classmethod
    def from_pattern(cls, pattern: str) -> Routes:
        """Return the routes of this pattern; none if names stay."""
        if pattern == _SCHEMA_PLACEHOLDER:
            return Routes()
        # One rule shows that there are any; which database it sends where, `target` knows.
        return cls((Route("*", "", pattern, "", f"the pattern {pattern}"),), pattern)

    def target(self, schema: str, table: str) -> Target:
        return Target(self.target_schema(schema), table, self.rules[0])

    def target_schema(self, schema: str) -> str:
        return self.pattern.replace(_SCHEMA_PLACEHOLDER, schema)

    def concerns_schema(self, schema: str) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class _ExceptGlobs(NameRule):
    """Match tables whose ``schema.table`` fits no glob, and databases in which none could."""

    globs: tuple[str, ...] = ()

    def matches(self, schema: str, table: str) -> bool:
        if not table:
            return not any(schema_fits(schema, glob) for glob in self.globs)
        name = full_name(schema, table)
        return not any(fits(name, glob) for glob in self.globs)


def only_tables(filters: Filter, globs: Sequence[str]) -> Filter:
    """Return the filter narrowed to tables whose ``schema.table`` fits one of `globs`.

    They are `*` and `?`, and names in case; without globs nothing is narrowed.
    """
    if not globs:
        return filters
    text = f"--table {', '.join(globs)}"
    return replace(
        filters,
        ignored_tables=(*filters.ignored_tables, _ExceptGlobs("*", "*", text, tuple(globs))),
    )
