"""Leave columns out, mask them, give them other names, add some: `[[filter.columns]]`.

A column that is left out is, for everything behind this, one that isn't public: TiDB's rows have
such columns while a DDL adds or drops them, so decoders skip them, and no statement names them. A
renamed one has its new name everywhere behind this. What reads the upstream asks for
`Column.source_name`. A masked one has `Column.mask`, by which its values are masked in one place
(`sluice.etl.changes.masks`), and masked defaults. An added one is a generated column that no row
holds (`sluice.etl.changes.rules.computed_columns`), behind all others.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from sluice.errors import SluiceError
from sluice.etl.changes.conditions import ConditionError
from sluice.etl.changes.formats.ddl_text import tokens
from sluice.etl.changes.masks import Mask, by_refusal, key_refusal, masked_column
from sluice.etl.changes.rules.computed_columns import ComputedColumn
from sluice.tidb.columns import STATE_WRITE_ONLY
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Index, Table
from sluice.tidb.table_name import fits, full_name

_Given = TypeVar("_Given")


@dataclass(frozen=True, slots=True)
class History:
    """Names of the columns that say when a version began, when it ended, and which commit made it.

    All "" for a rule that keeps no versions.
    """

    since: str = ""
    until: str = ""
    commit_ts: str = ""

    def __bool__(self) -> bool:
        return bool(self.since)

    @property
    def names(self) -> tuple[str, str, str]:
        """Return the names in the order of the columns."""
        return self.since, self.until, self.commit_ts


NO_HISTORY = History()
_LANDED_HINT = (
    "give the settings the masks and the key by which these windows were landed; to change a mask,"
    " pause landing, let the pipeline apply all that has landed, change it, and go on"
)


class ColumnRuleError(SluiceError, ValueError):
    """A rule that makes no sense for a table's columns; names rule and column."""

    hint = (
        "change `leave-out`, `keep`, `rename`, `mask`, `add`, `soft-delete`, `history` or `tables`"
        " of the rule in the settings, or leave the table out by [filter] ignore-table"
    )


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """A rule of `[[filter.columns]]`.

    `tables`: globs of full upstream names; `leave_out`, `keep`: names of columns, of which one is
    empty at least; `rename`: pairs of an upstream name and the one downstream; `masks`: masks by
    upstream name; `added`: columns that the downstream alone has, by their names there;
    `soft_delete`: the column that marks rows as deleted there, "" for deletes that remove rows;
    `history`: the columns of versions, if these are kept; `text` names the rule in messages.
    """

    tables: tuple[str, ...]
    leave_out: tuple[str, ...]
    keep: tuple[str, ...]
    text: str
    rename: tuple[tuple[str, str], ...] = ()
    masks: tuple[tuple[str, Mask], ...] = ()
    added: tuple[tuple[str, ComputedColumn], ...] = ()
    soft_delete: str = ""
    history: History = NO_HISTORY

    @property
    def effect(self) -> str:
        """Return what the rule does to columns, for messages: "RULE masks and renames columns"."""
        verbs = [
            verb
            for verb, given in (
                ("leaves out", self.leave_out or self.keep),
                ("masks", self.masks),
                ("renames", self.rename),
                ("adds", self.added or self.soft_delete or self.history),
            )
            if given
        ]
        return f"{self.text} {' and '.join(verbs)} columns"

    def matches(self, schema: str, table: str) -> bool:
        """Return whether the rule is about this table, in any case."""
        name = folded(full_name(schema, table))
        return any(fits(name, folded(glob)) for glob in self.tables)

    def leaves_out(self, column: str) -> bool:
        """Return whether the rule leaves out the upstream's column of this name."""
        if self.keep:
            return folded(column) not in map(folded, self.keep)
        return folded(column) in map(folded, self.leave_out)

    def new_name(self, column: str) -> str:
        """Return the name that the rule gives the upstream's column of this name, "" for none."""
        return next((new for old, new in self.rename if folded(old) == folded(column)), "")

    def mask_of(self, column: str) -> Mask | None:
        """Return the mask that the rule gives the upstream's column of this name."""
        return next((mask for name, mask in self.masks if folded(name) == folded(column)), None)


def left_out_columns(rules: tuple[ColumnRule, ...], table: Table) -> dict[str, ColumnRule]:
    """Return the public columns that rules leave out, by name, each with the first that does."""
    found: dict[str, ColumnRule] = {}
    for column in table.columns:
        rule = next((rule for rule in rules if rule.leaves_out(column.source_name)), None)
        if rule is not None and column.public and not (column.hidden or column.computed):
            found[column.name] = rule
    return found


def renamed_columns(
    rules: tuple[ColumnRule, ...], table: Table
) -> dict[str, tuple[str, ColumnRule]]:
    """Return the new names of the public columns that rules rename, each with the first rule.

    They are by the column's name in `table`: a table that is shaped already has none. Raises
    ColumnRuleError for two rules that give a column different names.
    """
    found = _given_by_column(rules, table, ColumnRule.new_name, "give", "different names")
    return {name: given for name, given in found.items() if given[0] != name}


def masks_by_column(
    rules: tuple[ColumnRule, ...], table: Table
) -> dict[str, tuple[Mask, ColumnRule]]:
    """Return the masks of the public columns that rules mask, each with the first rule that does.

    They are by the column's name in `table`. Raises ColumnRuleError for two rules that mask a
    column differently.
    """
    return _given_by_column(rules, table, ColumnRule.mask_of, "mask", "differently")


def _given_by_column(
    rules: tuple[ColumnRule, ...],
    table: Table,
    given_by: Callable[[ColumnRule, str], _Given | None],
    verb: str,
    difference: str,
) -> dict[str, tuple[_Given, ColumnRule]]:
    """Return what rules give the public columns, by their names in `table`, with the first rule.

    Raises ColumnRuleError where two rules give a column different things.
    """
    found: dict[str, tuple[_Given, ColumnRule]] = {}
    for column in table.columns:
        if not column.public or column.hidden or column.computed:
            continue
        named = [(given, rule) for rule in rules if (given := given_by(rule, column.source_name))]
        if len({given for given, _ in named}) > 1:
            raise ColumnRuleError(
                f"{named[0][1].text} and {named[1][1].text} {verb} column {column.source_name} of"
                f" {table.full_name} {difference}"
            )
        if named:
            found[column.name] = named[0]
    return found


def shaped_table(rules: tuple[ColumnRule, ...], table: Table) -> Table:
    """Return the table with the columns, their names and masks, that rules make of it.

    Raises ColumnRuleError, see `_without_columns`, `_masked`, `_renamed` and `_with_added`.
    """
    return _with_added(rules, _renamed(rules, _masked(rules, _without_columns(rules, table))))


def added_columns(
    rules: tuple[ColumnRule, ...], table: Table
) -> dict[str, tuple[ComputedColumn, ColumnRule]]:
    """Return the columns that rules add, by name, each with the first rule that does.

    Raises ColumnRuleError for two rules that give a name to different ones.
    """
    found: dict[str, tuple[str, ComputedColumn, ColumnRule]] = {}
    for rule in rules:
        for name, made in rule.added:
            _, known, first = found.setdefault(folded(name), (name, made, rule))
            if known != made:
                raise ColumnRuleError(
                    f"{first.text} and {rule.text} add different columns {name} to"
                    f" {table.full_name}"
                )
    return {name: (made, rule) for name, made, rule in found.values()}


def columns_read(rules: tuple[ColumnRule, ...], table: Table) -> dict[Column, tuple[str, str]]:
    """Return the columns that added ones are computed from: (the first added one, its rule).

    `table`: as rules shape it. Raises ColumnRuleError.
    """
    found: dict[Column, tuple[str, str]] = {}
    for name, (made, rule) in added_columns(rules, table).items():
        with _named(rule, name, table):
            for column in made.bound(table).columns:
                found.setdefault(column, (name, rule.text))
    return found


def _with_added(rules: tuple[ColumnRule, ...], table: Table) -> Table:
    """Return the table with the columns that rules add.

    Raises ColumnRuleError for a name that a column has, and for an expression that makes no sense
    for the table, or of which servers may compute different values.
    """
    added = added_columns(rules, table) if any(rule.added for rule in rules) else {}
    there = {folded(column.name): column for column in table.columns}
    there |= {folded(column.source_name): column for column in table.columns}
    columns: list[Column] = []
    for name, (made, rule) in added.items():
        taken = there.get(folded(name))
        if taken is not None and taken.computed:  # the table is shaped already
            continue
        with _named(rule, name, table):
            if taken is not None:
                raise ConditionError("the table has a column of this name")
            columns.append(made.column(name, len(columns), table))
    return replace(table, columns=(*table.columns, *columns)) if columns else table


@contextlib.contextmanager
def _named(rule: ColumnRule, name: str, table: Table) -> Iterator[None]:
    """Raise an error of a column that a rule adds by the names of both."""
    try:
        yield
    except ConditionError as error:
        raise ColumnRuleError(
            f"{rule.text} adds column {name} to {table.full_name}: {error}"
        ) from error


def _masked(rules: tuple[ColumnRule, ...], table: Table) -> Table:
    """Return the table with masks on the columns that rules mask.

    Raises ColumnRuleError if a mask doesn't fit its column, or a key, a generated column, a foreign
    key or the partitioning needs the column.
    """
    if not any(rule.masks for rule in rules):
        check_landed_masks(table, {})
        return table
    masks = masks_by_column(rules, table)
    check_landed_masks(table, masks)
    gone = {column.name for column in table.columns if column.upstream_name and not column.public}
    by_folded = {folded(name): name for name in masks}
    unique = {index.name: index for index in table.indexes if _keeps_masked(table, index)}
    for what, name in _users(table, by_folded, gone, unique):
        raise ColumnRuleError(
            f"{masks[name][1].text} masks column {name} of {table.full_name}, which {what} needs"
        )
    columns = []
    for column in table.columns:
        if column.name in masks and not column.mask:
            mask, rule = masks[column.name]
            if column.landed_mask:  # its defaults are masked, too
                columns.append(replace(column, mask=mask.to_text()))
                continue
            if why := (
                "it is generated"
                if column.generated
                else mask.refusal(column) or by_refusal(table, mask)
            ):
                raise ColumnRuleError(
                    f"{rule.text} can't mask column {column.name} of {table.full_name} as"
                    f" {mask}: {why}"
                )
            _check_keys(rule, table, column, mask)
            column = masked_column(column, mask)
        columns.append(column)
    return replace(table, columns=tuple(columns))


def check_landed_masks(
    table: Table, masks: Mapping[str, tuple[Mask, ColumnRule]] | None = None
) -> None:
    """Check that rules mask a table of a window record as landing did, or more of its columns.

    `masks`: see `masks_by_column`. Raises ColumnRuleError.
    """
    if not table.landed_masks:
        return
    for column in table.columns:
        given = (masks or {}).get(column.name)
        if column.landed_mask and column.public and not _is_landed(given, column):
            landed = Mask.from_text(column.landed_mask)
            key = f" with the key {landed.key}" if landed.key else ""
            how = f"{given[1].text} masks it otherwise" if given else "no rule here masks it"
            raise ColumnRuleError(
                f"the relay log holds values of column {column.source_name} of {table.full_name}"
                f" masked as {landed}{key}, and {how}",
                hint=_LANDED_HINT,
            )
        if given and given[0].by and not column.landed_mask:
            by = folded(given[0].by)
            if any(folded(c.source_name) == by and c.landed_mask for c in table.columns):
                raise ColumnRuleError(
                    f"{given[1].text} shifts column {column.source_name} of {table.full_name} by"
                    f" the clear values of column {given[0].by}, and the relay log holds masked"
                    " ones",
                    hint=_LANDED_HINT,
                )


def _is_landed(given: tuple[Mask, ColumnRule] | None, column: Column) -> bool:
    return given is not None and given[0].landed_text() == column.landed_mask


def _keeps_masked(table: Table, index: Index) -> bool:
    """Return whether an index is a unique key by which no row is looked for downstream.

    Rows are looked for by the primary key of whole tables.
    """
    if index.primary or not index.unique or table.partition is not None:
        return False
    return bool(table.primary_key)


def _check_keys(rule: ColumnRule, table: Table, column: Column, mask: Mask) -> None:
    """Check that masked values of a unique key's column stay unique. Raises ColumnRuleError."""
    for index in table.indexes:
        for name, _, chars in index.columns if index.unique else ():
            if folded(name) == folded(column.name) and (why := key_refusal(mask, column, chars)):
                raise ColumnRuleError(
                    f"{rule.text} masks column {column.name} of {table.full_name}, which the key"
                    f" {index.name} needs: {why}"
                )


def _renamed(rules: tuple[ColumnRule, ...], table: Table) -> Table:
    """Return the table with the columns under the names that rules give them.

    Raises ColumnRuleError if a key, a generated column, a foreign key or the partitioning names one
    of them, or another column has the new name.
    """
    renamed = renamed_columns(rules, table)
    if not renamed:
        return table
    gone = {column.name for column in table.columns if column.upstream_name and not column.public}
    if user := next(_users(table, {folded(name): name for name in renamed}, gone), None):
        what, name = user
        raise ColumnRuleError(
            f"{renamed[name][1].text} renames column {name} of {table.full_name}, which {what}"
            " names"
        )
    columns = tuple(
        replace(column, name=renamed[column.name][0], upstream_name=column.source_name)
        if column.name in renamed
        else column
        for column in table.columns
    )
    taken = Counter(folded(column.name) for column in columns)
    for old, (new, rule) in renamed.items():
        if taken[folded(new)] > 1:
            raise ColumnRuleError(
                f"{rule.text} renames column {old} of {table.full_name} to {new}, which is the name"
                " of another column"
            )
    new_names = {old: new for old, (new, _) in renamed.items()}
    indexes = tuple(
        replace(
            index, columns=tuple((new_names.get(n, n), at, size) for n, at, size in index.columns)
        )
        for index in table.indexes
    )
    return replace(table, columns=columns, indexes=indexes)


def _without_columns(rules: tuple[ColumnRule, ...], table: Table) -> Table:
    """Return the table without the columns that rules leave out, and without indexes over them.

    Raises ColumnRuleError if a key, a generated column, a foreign key or the partitioning needs one
    of them, or none is left.
    """
    left_out = left_out_columns(rules, table)
    if not left_out:
        return table
    if user := next(_users(table, {folded(name): name for name in left_out}, left_out), None):
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


def _users(
    table: Table,
    shaped: dict[str, str],
    gone: Container[str],
    unneeding: Container[str] = (),
) -> Iterator[tuple[str, str]]:
    """Yield (what needs it, name) for the columns `shaped`, given by folded name, that are needed.

    `gone`: names of columns that are left out, and need none; `unneeding`: names of indexes that
    don't, either.
    """
    for name in table.primary_key:
        if folded(name) in shaped:
            yield "the primary key", shaped[folded(name)]
    for index in table.indexes:
        for name in sorted(_names_of(index) & shaped.keys()):
            if (index.unique or index.primary) and index.name not in unneeding:
                yield f"the key {index.name}", shaped[name]
    for column in table.columns:
        if column.generated and not column.computed and column.name not in gone:
            for name in _words(column.generated) & shaped.keys():
                what = "an index over an expression" if column.hidden else f"column {column.name}"
                yield what, shaped[name]
    for key in table.foreign_keys:
        for name in _names_in(key.get("cols")) & shaped.keys():
            yield "a foreign key", shaped[name]
    if table.partition is not None:
        named = _words(str(table.partition.get("expr") or ""))
        for name in (named | _names_in(table.partition.get("columns"))) & shaped.keys():
            yield "the partitioning", shaped[name]


def _names_of(index: Index) -> set[str]:
    return {folded(name) for name, _, _ in index.columns}


def _names_in(names: object) -> set[str]:
    """Return the folded names in a list of TiDB's, of texts or of objects with `O` and `L`."""
    found = names if isinstance(names, list | tuple) else ()
    return {folded(str(name["L"] if isinstance(name, dict) else name)) for name in found}


def _words(expression: str) -> set[str]:
    """Return the folded names in an expression. What only looks like one is among them."""
    return {folded(word.strip("`").replace("``", "`")) for word in tokens(expression)}
