"""Leave columns of a table out, by `[[filter.columns]]`.

A column that is left out is, for everything behind this, one that isn't public: TiDB's rows have
such columns while a DDL adds or drops them, so decoders skip them, and no statement names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sluice.errors import SluiceError
from sluice.etl.changes.formats.ddl_text import tokens
from sluice.tidb.columns import STATE_WRITE_ONLY
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Index, Table
from sluice.tidb.table_name import fits, full_name


class ColumnRuleError(SluiceError, ValueError):
    """A rule that leaves out a column that the table can't be without; names rule and column."""

    hint = (
        "change `leave-out`, `keep` or `tables` of the rule in the settings, or leave the table out"
        " by [filter] ignore-table"
    )


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """A rule of `[[filter.columns]]`.

    `tables`: globs of full upstream names; `leave_out` or `keep`: names of columns, of which the
    other is empty; `text` names the rule in messages.
    """

    tables: tuple[str, ...]
    leave_out: tuple[str, ...]
    keep: tuple[str, ...]
    text: str

    def matches(self, schema: str, table: str) -> bool:
        """Return whether the rule is about this table, in any case."""
        name = folded(full_name(schema, table))
        return any(fits(name, folded(glob)) for glob in self.tables)

    def leaves_out(self, column: Column) -> bool:
        """Return whether the rule leaves out a column of a table that it is about."""
        return self.leaves_out_name(column.source_name)

    def leaves_out_name(self, column: str) -> bool:
        """Return whether the rule leaves out a column of this name."""
        name = folded(column)
        if self.keep:
            return not any(name == folded(kept) for kept in self.keep)
        return any(name == folded(left) for left in self.leave_out)


def left_out_columns(rules: tuple[ColumnRule, ...], table: Table) -> dict[str, ColumnRule]:
    """Return the public columns that rules leave out, by name, each with the first that does."""
    found: dict[str, ColumnRule] = {}
    for column in table.columns:
        rule = next((rule for rule in rules if rule.leaves_out(column)), None)
        if rule is not None and column.public and not column.hidden:
            found[column.name] = rule
    return found


def without_columns(rules: tuple[ColumnRule, ...], table: Table) -> Table:
    """Return the table without the columns that rules leave out, and without indexes over them.

    Raises ColumnRuleError if a key, a generated column, a foreign key or the partitioning needs one
    of them, or none is left.
    """
    left_out = left_out_columns(rules, table)
    if not left_out:
        return table
    if user := next(_users(table, {folded(name): name for name in left_out}), None):
        what, name = user
        raise ColumnRuleError(
            f"{left_out[name].text} leaves out column {name} of {table.full_name}, which {what}"
            " needs"
        )
    columns = tuple(
        replace(column, state=STATE_WRITE_ONLY, upstream_name=column.name)
        if column.name in left_out
        else column
        for column in table.columns
    )
    if not any(column.public and not column.hidden for column in columns):
        rule = next(iter(left_out.values()))
        raise ColumnRuleError(f"{rule.text} leaves no column of {table.full_name}")
    names = {folded(name) for name in left_out}
    indexes = tuple(index for index in table.indexes if not _names_of(index) & names)
    return replace(table, columns=columns, indexes=indexes)


def _users(table: Table, left_out: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (what needs it, name) for columns that can't be left out, given by folded name."""
    for name in table.primary_key:
        if folded(name) in left_out:
            yield "the primary key", left_out[folded(name)]
    for index in table.indexes:
        for name in sorted(_names_of(index) & left_out.keys()):
            if index.unique or index.primary:
                yield f"the key {index.name}", left_out[name]
    for column in table.columns:
        if column.generated and column.name not in left_out.values():
            for name in _words(column.generated) & left_out.keys():
                what = "an index over an expression" if column.hidden else f"column {column.name}"
                yield what, left_out[name]
    for key in table.foreign_keys:
        for name in _names_in(key.get("cols")) & left_out.keys():
            yield "a foreign key", left_out[name]
    if table.partition is not None:
        named = _words(str(table.partition.get("expr") or ""))
        for name in (named | _names_in(table.partition.get("columns"))) & left_out.keys():
            yield "the partitioning", left_out[name]


def _names_of(index: Index) -> set[str]:
    return {folded(name) for name, _, _ in index.columns}


def _names_in(names: object) -> set[str]:
    """Return the folded names in a list of TiDB's, of texts or of objects with `O` and `L`."""
    found = names if isinstance(names, list | tuple) else ()
    return {folded(str(name["L"] if isinstance(name, dict) else name)) for name in found}


def _words(expression: str) -> set[str]:
    """Return the folded names in an expression. What only looks like one is among them."""
    return {folded(word.strip("`").replace("``", "`")) for word in tokens(expression)}
