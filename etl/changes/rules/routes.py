"""Route tables and databases to their downstream names.

A rule with a `table-pattern` is about tables, one without about whole databases; rules about tables
go first, within each kind the first that matches decides. What no rule matches keeps its name. A
target that several sources can have is **merged**: no statement of one source may take away the
rows of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.errors import SluiceError
from sluice.etl.changes.rules.name_pattern import matches, plain_name
from sluice.tidb.folded import folded
from sluice.tidb.table_name import full_name


@dataclass(frozen=True, slots=True)
class Route:
    """One rule.

    `table` "" is a rule about databases; `target_table` "" leaves tables their names.
    `source_column`: the column of the target that names the source of each row, "" for none. `text`
    is for messages.
    """

    schema: str
    table: str
    target_schema: str
    target_table: str
    text: str
    source_column: str = ""

    def matches(self, schema: str, table: str) -> bool:
        """Return whether the rule is about this table."""
        return matches(self.schema, schema) and (not self.table or matches(self.table, table))

    def names(self, schema: str, table: str) -> bool:
        """Return whether this is the table that the rule names as its target."""
        return (folded(self.target_schema), folded(self.target_table)) == (
            folded(schema),
            folded(table),
        )

    def may_bring(self, schema: str, table: str) -> bool:
        """Return whether the rule can bring a table here that keeps its name."""
        here = not self.target_table and folded(self.target_schema) == folded(schema)
        return here and (not self.table or matches(self.table, table))

    @property
    def is_merging(self) -> bool:
        """Return whether the rule by itself gives several tables one name."""
        return plain_name(self.schema) is None or bool(
            self.target_table and plain_name(self.table) is None
        )


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of a table.

    `route` None: under its own name. `sources` describes what a merged target is fed by, "" if it
    isn't.
    """

    schema: str
    table: str
    route: Route | None = None
    sources: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Return schema and table, equal for targets that are one table."""
        return folded(self.schema), folded(self.table)

    @property
    def is_merged(self) -> bool:
        return bool(self.sources)

    @property
    def source_column(self) -> str:
        """Return the column that keeps the rows of a merged target's sources apart, "" for none."""
        return self.route.source_column if self.route is not None and self.sources else ""

    @property
    def mixes_rows(self) -> bool:
        """Return whether nothing tells the rows of its sources apart."""
        return self.is_merged and not self.source_column


class RouteError(SluiceError, ValueError):
    """A table whose rows would be mixed with those of another one without a rule for that.

    Names both and the ways out.
    """

    hint = "give one of the tables another target, or write a [[route]] rule that merges them"


@dataclass(frozen=True, slots=True)
class Routes:
    """Every rule, in the order of the settings."""

    rules: tuple[Route, ...] = ()

    def target(self, schema: str, table: str) -> Target:
        """Return where a table arrives.

        Raises RouteError for one that keeps its name, and meets another there that a rule gives
        that name.
        """
        rule = self._rule(schema, table)
        target = (rule.target_schema, rule.target_table or table) if rule else (schema, table)
        naming = [other for other in self.rules if other.names(*target)]
        bringing = [other for other in self.rules if other.may_bring(*target)]
        taken = naming if rule else naming + bringing
        if taken and not (rule and rule.target_table):
            raise RouteError(
                f"{full_name(schema, table)} keeps its name and goes to {full_name(*target)}, which"
                f" is also where {taken[0].text} takes other tables. To merge them give it a rule"
                f" of its own ([[route]] schema-pattern = '{schema}', table-pattern = '{table}',"
                f" target-schema = '{target[0]}', target-table = '{target[1]}'), to keep them apart"
                " another target, to leave it out [filter] ignore-table"
            )
        if rule is None:
            return Target(schema, table)
        feeding = naming if rule.target_table else bringing
        merged = len(feeding) > 1 or rule.is_merging
        if unlike := [one for one in feeding if one.source_column != rule.source_column]:
            raise RouteError(
                f"{rule.text} and {unlike[0].text} have the same target, and not the same"
                " source-column",
                hint="give both the same `source-column`, or none",
            )
        return Target(*target, rule, ", ".join(other.text for other in feeding) if merged else "")

    def target_schema(self, schema: str) -> str:
        """Return the name under which a database arrives."""
        rule = next(
            (rule for rule in self.rules if not rule.table and matches(rule.schema, schema)), None
        )
        return rule.target_schema if rule else schema

    def concerns_schema(self, schema: str) -> bool:
        """Return whether routes connect a database with another one.

        Some table of it may arrive in another one, or tables of another one in it.
        """
        return any(
            matches(rule.schema, schema) or folded(rule.target_schema) == folded(schema)
            for rule in self.rules
        )

    def _rule(self, schema: str, table: str) -> Route | None:
        about_tables = (rule for rule in self.rules if rule.table and rule.matches(schema, table))
        return next(about_tables, None) or next(
            (rule for rule in self.rules if not rule.table and matches(rule.schema, schema)), None
        )
