"""Keep rules as a document, and find what a change of rules means for a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from sluice.etl.changes.masks import key_fingerprint
from sluice.etl.changes.rules.filters import Filter
from sluice.etl.changes.rules.routes import RouteError, Routes
from sluice.relay.json_codec import JsonDocument, from_bytes, to_bytes
from sluice.tidb.folded import folded
from sluice.tidb.table_name import full_name


@dataclass(frozen=True, slots=True)
class RecordedRules(JsonDocument):
    """Rules, with the fingerprint of each mask's key by its place: no key is in a document."""

    filters: Filter
    routes: Routes
    keys: Mapping[str, str]

    @classmethod
    def of(cls, filters: Filter, routes: Routes) -> Self:
        """Return the record of rules. Raises MaskKeyError."""
        places = {mask.key for rule in filters.columns for _, mask in rule.masks if mask.key}
        return cls(filters, routes, {place: key_fingerprint(place) for place in sorted(places)})

    def to_text(self) -> str:
        """Return the text that `from_text` reads."""
        return to_bytes(self).decode()

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse the result of `to_text`. Raises NewerFormatError, ValueError."""
        return from_bytes(cls, text.encode(), "the rules applied last")

    def wants(self, schema: str, table: str) -> bool:
        """Return whether the downstream has exactly what the rules make of the table's rows."""
        return self.filters.wants_table(schema, table) and not self.filters.leaves_changes_out(
            schema, table
        )

    def target(self, schema: str, table: str) -> str:
        """Return where the table goes, as text."""
        try:
            found = self.routes.target(schema, table)
        except RouteError:
            return "nowhere, by rules that contradict each other"
        column = found.source_column
        return f"{full_name(found.schema, found.table)}{f', by {column}' if column else ''}"

    def selection(self, schema: str, table: str) -> object:
        """Return what is equal for rules that select the same rows of a table."""
        return sorted(
            (rule.where, sorted(rule.kinds)) for rule in self.filters.row_rules(schema, table)
        )

    def shape(self, schema: str, table: str) -> object:
        """Return what is equal for rules that make the same columns and values of a table."""
        rules = self.filters.column_rules(schema, table)
        return (
            sorted({folded(name) for rule in rules for name in rule.leave_out}),
            sorted({tuple(sorted(map(folded, rule.keep))) for rule in rules if rule.keep}),
            sorted({(folded(old), new) for rule in rules for old, new in rule.rename}),
            sorted({folded(rule.soft_delete) for rule in rules if rule.soft_delete}),
            sorted({rule.history.names for rule in rules if rule.history}),
            sorted(
                {
                    (
                        folded(name),
                        mask.kind,
                        mask.argument,
                        self.keys.get(mask.key, ""),
                        folded(mask.by),
                    )
                    for rule in rules
                    for name, mask in rule.masks
                }
            ),
            sorted(
                {
                    (folded(name), made.value, made.type)
                    for rule in rules
                    for name, made in rule.added
                }
            ),
        )


def rule_differences(
    before: RecordedRules, after: RecordedRules, schema: str, table: str
) -> Iterator[str]:
    """Yield why rows of a table that were written by the rules before aren't as those after say.

    Nothing for a table that isn't replicated by the rules after, or of whose changes they leave
    some out: then no rule says which rows are downstream.
    """
    if not after.wants(schema, table):
        return
    if not before.wants(schema, table):
        yield "rules left out changes of it"
        return
    targets = before.target(schema, table), after.target(schema, table)
    if targets[0] != targets[1]:
        yield f"[[route]] took it to {targets[0]} before, and not to {targets[1]}"
    if before.selection(schema, table) != after.selection(schema, table):
        yield "[[filter.rows]] selected other rows"
    if before.shape(schema, table) != after.shape(schema, table):
        yield "[[filter.columns]] made other columns or values of it"
