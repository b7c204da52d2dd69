"""A model of a pipeline's rules: what the downstream holds by them, and at which DDL it must stop.

It shares no code with Sluice: rows are plain Python, and refusals are what docs/how-to/
shape-what-is-replicated.md promises.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.etl.changes.rules import Route
from tests.judge.conditions import Cells, Condition, leaves, text_of, truth
from tests.judge.invented_tidb import (
    MERGED,
    SOURCE_KIND,
    Alteration,
    Name,
    RowEvent,
    Shown,
    State,
    Upstream,
)
from tests.judge.kept_rows import Keeping, KeyChange
from tests.judge.shapes import KEY_VARIABLE, Added, Mask
from tests.judge.tables import Column, Index, Table, quoted

OPERATIONS = ("insert", "update", "delete")


class UndecidedError(Exception):
    """The model can't tell what the rules make of the history."""


@dataclass(frozen=True)
class RowRule:
    """`[[filter.rows]]` of some tables, by upstream name."""

    tables: frozenset[Name]
    condition: Condition
    operations: tuple[str, ...] = OPERATIONS

    @property
    def is_of_changes(self) -> bool:
        return self.operations != OPERATIONS or any(leaf.side for leaf in leaves(self.condition))


@dataclass(frozen=True)
class ColumnRule:
    """`[[filter.columns]]` of some tables; columns by their upstream names."""

    tables: frozenset[Name]
    leave_out: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    mask: Mapping[str, Mask] = field(default_factory=dict)
    add: Mapping[str, Added] = field(default_factory=dict)
    keeping: Keeping | None = None

    def leaves_out(self, column: str) -> bool:
        """Return whether the downstream lacks the column."""
        if self.keep:
            return column.lower() not in map(str.lower, self.keep)
        return column.lower() in map(str.lower, self.leave_out)


@dataclass(frozen=True)
class Refusal:
    """A DDL job at which applying must stop, its commit timestamp, and why."""

    job: int
    ts: int
    why: str


@dataclass
class Rules:
    """Rules for a history."""

    rows: list[RowRule] = field(default_factory=list)
    columns: list[ColumnRule] = field(default_factory=list)
    targets: dict[Name, Name] = field(default_factory=dict)
    """Tables that routes rename, by upstream name."""
    is_captured: bool = False
    """Whether of each row a transaction's outcome is known alone, as TiKV has it."""

    def document(self) -> dict[str, Any]:
        """Return `[filter]` of the settings."""
        made: dict[str, Any] = {}
        if self.rows:
            made["rows"] = [
                {"tables": _globs(rule.tables), "where": text_of(rule.condition)}
                | ({"operations": list(rule.operations)} if rule.operations != OPERATIONS else {})
                for rule in self.rows
            ]
        if self.columns:
            made["columns"] = [_column_settings(rule) for rule in self.columns]
            made["mask"] = {"key-env": KEY_VARIABLE, "relay-log": "clear"}
        return made

    def routes(self) -> tuple[Route, ...]:
        """Return the settings' routes of single tables."""
        return tuple(
            Route(re.escape(schema), re.escape(table), *target, f"a table, {number}")
            for number, ((schema, table), target) in enumerate(self.targets.items(), 1)
        )

    # --- refusals

    def refusal(self, upstream: Upstream) -> Refusal | None:
        """Return the first DDL at which applying must stop. Raises UndecidedError."""
        merged = {table.id for table in upstream.merged}
        for each in upstream.alterations:
            why = self._why_not(each, is_merged=each.after.table.id in merged)
            if why:
                return Refusal(each.job, each.ts, why)
        return None

    def _why_not(self, each: Alteration, *, is_merged: bool) -> str:
        names = [each.after.name]
        names += [each.before.name] if each.before else []
        names += [each.exchanged] if each.exchanged else []
        for kind, some in (("rows", self.rows), ("columns", self.columns)):
            about: list[list[bool]] = [[name in rule.tables for rule in some] for name in names]
            if any(one != about[0] for one in about):
                return f"{kind} of {names} have other rules"
        name, table = each.after.name, each.after.table
        columns, rows = self._columns_of(name), self._rows_of(name)
        if columns and is_merged:
            return "merged"
        if each.before and (why := _changed(columns, rows, each.before.table, table)):
            return why
        return _misfit(columns, rows, table)

    def _columns_of(self, name: Name) -> list[ColumnRule]:
        return [rule for rule in self.columns if name in rule.tables]

    def _rows_of(self, name: Name) -> list[RowRule]:
        return [rule for rule in self.rows if name in rule.tables]

    # --- what the downstream holds

    def state(self, upstream: Upstream, ts: int, tables: Iterable[Shown]) -> State:
        """Return what the downstream holds at `ts`, when the upstream had these tables."""
        found: State = {}
        for shown in tables:
            place = self._place(upstream, shown)
            columns, rows = self._shaped(upstream, ts, shown)
            if place in found:
                rows += found[place][1]
            found[place] = columns, rows
        return found

    def _place(self, upstream: Upstream, shown: Shown) -> Name:
        if shown.is_merged:
            return MERGED
        if shown.name in self.targets:
            return self.targets[shown.name]
        return upstream.full_name(shown.table)

    def _shaped(
        self, upstream: Upstream, ts: int, shown: Shown
    ) -> tuple[dict[str, Any], Counter[tuple[Any, ...]]]:
        table, rules = shown.table, self._rows_of(shown.name)
        if any(rule.is_of_changes for rule in rules):
            rows = _after_changes(upstream, ts, table, rules, is_captured=self.is_captured)
        else:
            rows = [
                row.values
                for row in table.rows
                if all(
                    truth(rule.condition, None, _cells(table, row.values), "new") for rule in rules
                )
            ]
        columns = _Shape(self._columns_of(shown.name), table)
        keeping = next(
            (each.keeping for each in self._columns_of(shown.name) if each.keeping), None
        )
        if keeping:
            found = _kept(upstream, ts, table, rules, is_captured=self.is_captured)
            kept = keeping.rows(found, columns.row)
            return columns.kinds | keeping.kinds, Counter(kept)
        source = upstream.source(shown.name) if shown.is_merged else {}
        kinds = columns.kinds | (dict([SOURCE_KIND]) if source else {})
        return kinds, Counter((*columns.row(values), *source.values()) for values in rows)


class _Shape:
    """The columns that rules make of a table's."""

    def __init__(self, rules: list[ColumnRule], table: Table) -> None:
        self._table = table
        self._added = {name: made for rule in rules for name, made in rule.add.items()}
        self._kept: list[tuple[Column, Mask | None]] = []
        self.kinds: dict[str, Any] = {}
        for column in table.columns:
            if any(rule.leaves_out(column.name) for rule in rules):
                continue
            mask = next(filter(None, (_of(rule.mask, column.name) for rule in rules)), None)
            name = next(filter(None, (_of(rule.rename, column.name) for rule in rules)), None)
            self._kept.append((column, mask))
            self.kinds[name or column.name] = column.kind
        self.kinds |= {name: made.kind for name, made in self._added.items()}

    def row(self, values: Mapping[int, Any]) -> tuple[Any, ...]:
        """Return the row as it is compared."""
        found = []
        for column, mask in self._kept:
            value = values[column.id]
            found.append(column.kind.shown(mask.value(column.kind, value) if mask else value))
        by_name = {column.name.lower(): values[column.id] for column in self._table.columns}
        found += [made.kind.shown(made.value(by_name)) for made in self._added.values()]
        return tuple(found)


def _after_changes(
    upstream: Upstream, ts: int, table: Table, rules: list[RowRule], *, is_captured: bool
) -> list[Mapping[int, Any]]:
    """Return the rows that changes left, of a table with a key whose columns were never altered."""
    rows: dict[tuple[Any, ...], Mapping[int, Any]] = {}
    for _, key, values, is_there in _kept(upstream, ts, table, rules, is_captured=is_captured):
        rows.pop(key, None)
        if is_there:
            rows[key] = values
    return list(rows.values())


def _kept(
    upstream: Upstream, ts: int, table: Table, rules: list[RowRule], *, is_captured: bool
) -> list[KeyChange]:
    """Return what changes did to keys, of a table as `_after_changes` takes it."""
    assert table.primary
    ids = [(table.column(name).kind, table.column(name).id) for name in table.primary.columns]

    def key_of(values: Mapping[int, Any]) -> tuple[Any, ...]:
        return tuple(kind.key(values[i], upstream.new_collation) for kind, i in ids)

    events = [event for event in upstream.events if event.table_id == table.id and event.ts <= ts]
    return [
        (event.ts, key_of(values), values, is_there)
        for event in (_outcomes(events, key_of) if is_captured else events)
        for values, is_there in zip(_selected(table, event, rules), (False, True), strict=True)
        if values is not None
    ]


def _outcomes(
    events: list[RowEvent], key_of: Callable[[Mapping[int, Any]], tuple[Any, ...]]
) -> list[RowEvent]:
    """Return what each transaction made of each key: no more than one change."""
    found: dict[tuple[Any, ...], RowEvent] = {}
    for event in events:
        for old, new in ((event.old, None), (None, event.new)):
            if old is None and new is None:
                continue
            key = event.ts, key_of(old or new or {})
            was = found.get(key)
            before = was.old if was is not None else old
            found[key] = RowEvent(event.ts, event.table_id, before, new)
    return [event for event in found.values() if event.old is not None or event.new is not None]


def _selected(
    table: Table, event: RowEvent, rules: list[RowRule]
) -> tuple[Mapping[int, Any] | None, Mapping[int, Any] | None]:
    """Return the row that goes and the one that comes by a change."""
    kind = "insert" if event.old is None else "delete" if event.new is None else "update"
    old, new = (
        None if values is None else _cells(table, values) for values in (event.old, event.new)
    )
    about = [rule for rule in rules if kind in rule.operations]
    goes, comes = (
        values
        if values is not None and all(truth(r.condition, old, new, side) for r in about)
        else None
        for side, values in (("old", event.old), ("new", event.new))
    )
    return goes, comes


def _cells(table: Table, values: Mapping[int, Any]) -> Cells:
    return {column.name.lower(): (column.kind, values[column.id]) for column in table.columns}


def _of(found: Mapping[str, Any], column: str) -> Any:
    return next((made for name, made in found.items() if name.lower() == column.lower()), None)


def _misfit(columns: list[ColumnRule], rows: list[RowRule], table: Table) -> str:
    """Return why a table can't have such rules, "" if it can. Raises UndecidedError."""
    out = {c.name.lower() for c in table.columns if any(r.leaves_out(c.name) for r in columns)}
    shaped = _Shape(columns, table)
    needed = {table.by.lower()} if table.by else set()
    for needing in table.columns:
        if needing.generated and needing.name.lower() not in out:
            needed |= _named_in(needing.generated.expression, table)
    unique = [index for index in table.indexes if index.unique]
    free = [index for index in unique if _may_be_masked(table, index)]
    keys = needed | {name.lower() for i in unique for name in i.columns}
    unmasked = needed | {name.lower() for i in unique if i not in free for name in i.columns}
    names = {c.name.lower(): c for c in table.columns}
    if out == set(names):
        return "no column is left"
    if out & keys:
        return f"keys need {out & keys}"
    for rule in columns:
        for what, given, needed in (
            ("masked", rule.mask, unmasked),
            ("renamed", rule.rename, keys),
        ):
            if used := {name.lower() for name in given} & needed:
                return f"keys need the {what} {used}"
        for name, mask in rule.mask.items():
            for index in free:
                if name.lower() in map(str.lower, index.columns) and not mask.keeps_apart(
                    names[name.lower()].kind, index.prefix
                ):
                    return f"{index.name} needs {name} as it is"
            column = names.get(name.lower())
            if column is not None and (column.generated or not mask.fits(column)):
                return f"the mask of {name} doesn't fit"
    shown = [name.lower() for name in shaped.kinds]
    if len(set(shown)) < len(table.columns) - len(out) + sum(len(rule.add) for rule in columns):
        return "two columns of a name"
    masked = {name.lower() for rule in columns for name in rule.mask}
    for rule in columns:
        for added, made in rule.add.items():
            if added.lower() in names:
                return f"there is a column {added}"
            for name, kind in made.reads.items():
                column = names.get(name.lower())
                if column is None or name.lower() in out | masked or column.generated:
                    return f"{added} can't read {name}"
                if column.kind != kind:
                    raise UndecidedError(f"{added} reads another type")
    for row_rule in rows:
        for leaf in leaves(row_rule.condition):
            for name in filter(None, (leaf.column, leaf.other)):
                column = names.get(name.lower())
                if column is None or name.lower() in out | masked:
                    return f"the condition can't read {name}"
                if column.generated and not column.generated.stored:
                    return f"{name} isn't stored"
                if column.kind != leaf.kind:
                    raise UndecidedError(f"the condition reads another type of {name}")
    return ""


def _may_be_masked(table: Table, index: Index) -> bool:
    """Return whether it is a key of whole rows that are found by another one, the primary."""
    return not index.primary and table.primary is not None and not table.partitions


def _changed(columns: list[ColumnRule], rows: list[RowRule], old: Table, new: Table) -> str:
    """Return why rules mean something else of a table behind a DDL, "" if they don't."""
    before = {column.id: column for column in old.columns}
    for column in new.columns:
        was = before.get(column.id) or before.get(column.made_from)
        if was is None:
            continue
        was_out, is_out = (
            any(rule.leaves_out(each.name) for rule in columns) for each in (was, column)
        )
        if was_out != is_out:
            return f"{was.name} is left out under one of two names"
        masks = [
            next(filter(None, (_of(rule.mask, each.name) for rule in columns)), None)
            for each in (was, column)
        ]
        if not is_out and masks[0] is not masks[1]:
            return f"{was.name} is masked under one of two names"
        if not is_out and masks[0] and masks[0].setting != "null" and was.kind != column.kind:
            return f"{was.name} is masked, and has another type"
    read = {name for rule in columns for made in rule.add.values() for name in made.reads}
    read |= {
        name
        for rule in rows
        for leaf in leaves(rule.condition)
        for name in (leaf.column, leaf.other)
    }
    for name in filter(None, read):
        after, there = (
            next((c for c in table.columns if c.name.lower() == name.lower()), None)
            for table in (new, old)
        )
        if after is None or there is None or there.id != after.id or there.kind != after.kind:
            return f"{name} is another column"
    return ""


def _named_in(expression: str, table: Table) -> set[str]:
    return {column.name.lower() for column in table.columns if quoted(column.name) in expression}


def _globs(tables: Iterable[Name]) -> list[str]:
    """Return the tables' texts: of names with a dot, or a backquote first, in backquotes."""
    return sorted(
        ".".join(quoted(part) if "." in part or part.startswith("`") else part for part in name)
        for name in tables
    )


def _column_settings(rule: ColumnRule) -> dict[str, Any]:
    made: dict[str, Any] = {"tables": _globs(rule.tables)}
    for key, names in (("leave-out", rule.leave_out), ("keep", rule.keep)):
        if names:
            made[key] = list(names)
    if rule.rename:
        made["rename"] = dict(rule.rename)
    if rule.mask:
        made["mask"] = {name: mask.setting for name, mask in rule.mask.items()}
    if rule.keeping:
        made |= rule.keeping.setting
    if rule.add:
        made["add"] = {
            name: {"value": one.expression, "type": one.type} if one.type else one.expression
            for name, one in rule.add.items()
        }
    return made


def recompared(rules: Rules, upstream: Upstream) -> list[tuple[int, State]]:
    """Return what the downstream shall hold at each of the history's noted moments."""
    stop = rules.refusal(upstream)
    return [
        (ts, rules.state(upstream, ts, shown))
        for (ts, _), shown in zip(upstream.states, upstream.shown, strict=True)
        if stop is None or ts < stop.ts
    ]
