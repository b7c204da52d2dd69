"""Filters and routes as they are written in sluice.toml, and in drainer.toml under the same names.

    [filter]                                            # drainer.toml: [syncer]
    replicate-do-db = ["shop", "~^log_"]
    replicate-do-table = [{ db-name = "shop", tbl-name = "order_*" }]
    ignore-db = ["test"]                                # drainer.toml: ignore-schemas = "test,..."
    ignore-table = [{ db-name = "shop", tbl-name = "~_tmp$" }]
    ignore-txn-commit-ts = [470614793860415502]

    [filter.binlog-filter-rule.no-deletes]
    ignore-event = ["delete", "drop table"]
    ignore-sql = ["^ALTER TABLE .* ADD COLUMN"]
    [[filter.table-migrate-rule]]
    source = { schema = "shop", table = "log_*" }
    binlog-filter-rule = ["no-deletes"]

    [[filter.rows]]
    tables = ["shop.orders*"]
    where = "region = 'eu'"

    [[route]]
    schema-pattern = "shard_*"
    table-pattern = "order"
    target-schema = "shop"
    target-table = "order"

Rules in a list are counted from 1 in messages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sluice.etl.changes.conditions import ConditionError, parse_condition
from sluice.etl.changes.rules import (
    ALL_KINDS,
    DDL_EVENTS,
    GROUP_EVENTS,
    NO_HISTORY,
    OWN_SCHEMAS,
    ROW_EVENTS,
    ColumnRule,
    ComputedColumn,
    EventRule,
    Filter,
    History,
    NameRule,
    PatternError,
    Route,
    Routes,
    RowRule,
    check,
)
from sluice.etl.settings.mask_rules import MaskSection, parse_mask_section, parse_masks
from sluice.etl.settings.rule_error import RuleError
from sluice.tidb.codec.row import ROWID_NAME
from sluice.tidb.folded import folded
from sluice.tidb.history import SYSTEM_SCHEMAS

FILTER_KEYS = (
    "rows",
    "columns",
    "mask",
    "replicate-do-db",
    "replicate-do-table",
    "ignore-db",
    "ignore-schemas",
    "ignore-table",
    "ignore-txn-commit-ts",
    "binlog-filter-rule",
    "table-migrate-rule",
    "case-sensitive",
    "sync-ddl",
)
_EVENTS = (*ROW_EVENTS, *DDL_EVENTS, *GROUP_EVENTS)
_ROUTE_NAMES = ("schema-pattern", "table-pattern", "target-schema", "target-table")
_ROUTE_KEYS = (*_ROUTE_NAMES, "source-column")
_ROW_RULE_KEYS = ("tables", "where", "operations")
_COLUMN_RULE_KEYS = (
    "tables",
    "leave-out",
    "keep",
    "rename",
    "mask",
    "add",
    "soft-delete",
    "history",
)
_HISTORY_NAMES = {"from": "valid_from", "to": "valid_to", "commit-ts": "commit_ts"}
"""Keys of `history`, and the columns' names if it gives none."""
_MAX_NAME_CHARS = 64


def parse_filter(
    raw: Mapping[str, Any], own_schemas: Sequence[str] = ()
) -> tuple[Filter, frozenset[int]]:
    """Return the filter and the commit timestamps to be ignored.

    `own_schemas`: what else is never replicated. Raises RuleError.
    """
    for key in raw:
        if key not in FILTER_KEYS:
            raise RuleError(f"unknown key [filter] {key}; known are {', '.join(FILTER_KEYS)}")
    schemas = [part.strip() for part in _typed(raw, "ignore-schemas", str, "").split(",")]
    ignored = [
        _pattern(f"[filter] ignore-schemas[{n}]", text) for n, text in enumerate(schemas, 1) if text
    ]
    _typed(raw, "case-sensitive", bool, default=False)
    return Filter(
        do_schemas=_patterns(raw, "replicate-do-db"),
        do_tables=_name_rules(raw, "replicate-do-table"),
        ignored_schemas=(*_patterns(raw, "ignore-db"), *ignored),
        ignored_tables=_name_rules(raw, "ignore-table"),
        events=_event_rules(raw),
        own_schemas=OWN_SCHEMAS | {folded(name) for name in own_schemas},
        rows=_row_rules(raw),
        columns=_column_rules(raw, parse_mask_section(raw.get("mask", {}))),
    ), _timestamps(raw)


def parse_routes(raw: object, own_schemas: Sequence[str] = ()) -> Routes:
    """Return the rules of ``[[route]]``. Raises RuleError."""
    if not isinstance(raw, list) or not all(isinstance(rule, dict) for rule in raw):
        raise RuleError("route must be written as [[route]], once a rule")
    rules = []
    for number, rule in enumerate(raw, 1):
        where = f"[[route]] {number}"
        for key, value in rule.items():
            if key not in _ROUTE_KEYS:
                raise RuleError(f"{where}: unknown key {key}; known are {', '.join(_ROUTE_KEYS)}")
            if not isinstance(value, str) or not value:
                raise RuleError(f"{where} {key} = {value!r}: a text expected")
        for key in ("schema-pattern", "target-schema"):
            if key not in rule:
                raise RuleError(f"{where}: {key} is missing")
        if "target-table" in rule and "table-pattern" not in rule:
            raise RuleError(
                f"{where} target-table = {rule['target-table']!r}: without table-pattern it would"
                " take every table of a database there"
            )
        for key in ("schema-pattern", "table-pattern"):
            if key in rule:
                _pattern(f"{where} {key}", rule[key])
        for key in ("target-schema", "target-table"):
            name = rule.get(key, "")
            if len(name) > _MAX_NAME_CHARS or name != name.rstrip() or "\0" in name:
                raise RuleError(f"{where} {key} = {name!r}: no name for a {key.partition('-')[2]}")
        if folded(rule["target-schema"]) in SYSTEM_SCHEMAS | OWN_SCHEMAS | {
            folded(name) for name in own_schemas
        }:
            raise RuleError(
                f"{where} target-schema = {rule['target-schema']!r}: belongs to the server or to"
                " Sluice"
            )
        column = rule.get("source-column", "")
        if column:
            _check_column_name(f"{where} source-column", column)
            if "target-table" not in rule:
                raise RuleError(
                    f"{where} source-column = {column!r}: without target-table no tables are merged"
                )
        schema, table, target_schema, target_table = (
            str(rule.get(key, "")) for key in _ROUTE_NAMES
        )
        source = ".".join(repr(part) for part in (schema, table) if part)
        target = ".".join(part for part in (target_schema, target_table) if part)
        rules.append(
            Route(
                schema,
                table,
                target_schema,
                target_table,
                f"{where} ({source} to {target})",
                column,
            )
        )
    return Routes(tuple(rules))


def _typed(raw: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = raw.get(key, default)
    if type(value) is not kind:
        raise RuleError(f"[filter] {key} = {value!r}: {kind.__name__} expected")
    return value


def _list(raw: Mapping[str, Any], key: str, kind: type, what: str) -> list[Any]:
    values = _typed(raw, key, list, [])
    for number, value in enumerate(values, 1):
        if type(value) is not kind:
            raise RuleError(f"[filter] {key}[{number}] = {value!r}: {what} expected")
    return list(values)


def _pattern(where: str, text: object) -> str:
    if not isinstance(text, str):
        raise RuleError(f"{where} = {text!r}: a name or pattern expected")
    try:
        check(text)
    except PatternError as error:
        raise RuleError(f"{where} = {text!r}: {error}") from None
    return text


def _patterns(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(
        _pattern(f"[filter] {key}[{n}]", text)
        for n, text in enumerate(_list(raw, key, str, "a name or pattern"), 1)
    )


def _name_rules(raw: Mapping[str, Any], key: str) -> tuple[NameRule, ...]:
    rules = []
    for number, rule in enumerate(
        _list(raw, key, dict, '{ db-name = "...", tbl-name = "..." }'), 1
    ):
        where = f"[filter] {key}[{number}]"
        rules.append(_name_rule(where, rule, "db-name", "tbl-name"))
    return tuple(rules)


def _name_rule(where: str, rule: Mapping[str, Any], schema: str, table: str) -> NameRule:
    for part in rule:
        if part not in (schema, table):
            raise RuleError(f"{where}: unknown key {part}; known are {schema}, {table}")
    for part in (schema, table):
        if part not in rule:
            raise RuleError(f"{where}: {part} is missing")
        _pattern(f"{where} {part}", rule[part])
    return NameRule(
        rule[schema], rule[table], f"{where} ({schema} {rule[schema]!r}, {table} {rule[table]!r})"
    )


def _timestamps(raw: Mapping[str, Any]) -> frozenset[int]:
    return frozenset(_list(raw, "ignore-txn-commit-ts", int, "a commit timestamp (TSO)"))


def _event_rules(raw: Mapping[str, Any]) -> tuple[EventRule, ...]:
    kinds = {}
    for name, rule in _typed(raw, "binlog-filter-rule", dict, {}).items():
        where = f"[filter.binlog-filter-rule.{name}]"
        if not isinstance(rule, dict):
            raise RuleError(f"{where} must be a table")
        _check_keys(where, rule, ("ignore-event", "ignore-sql"))
        kinds[name] = (
            _checked(where, rule, "ignore-event", _event),
            _checked(where, rule, "ignore-sql", _expression),
        )
    rules: list[EventRule] = []
    for number, rule in enumerate(_list(raw, "table-migrate-rule", dict, "a table"), 1):
        where = f"[[filter.table-migrate-rule]] {number}"
        for key in rule:
            if key not in ("source", "binlog-filter-rule", "target"):
                raise RuleError(f"{where}: unknown key {key}; known are source, binlog-filter-rule")
        if not isinstance(rule.get("source"), dict):
            raise RuleError(f'{where}: source = {{ schema = "...", table = "..." }} is missing')
        names = _name_rule(f"{where} source", rule["source"], "schema", "table")
        for name in _checked(where, rule, "binlog-filter-rule", lambda _, text: text):
            if name not in kinds:
                raise RuleError(
                    f"{where}: there is no binlog-filter-rule {name!r}; there are"
                    f" {', '.join(kinds) or 'none'}"
                )
            events, statements = kinds[name]
            label = NameRule(
                names.schema,
                names.table,
                f"[filter.binlog-filter-rule.{name}] for {names.schema}.{names.table}",
            )
            rules.append(EventRule(label, frozenset(events), tuple(statements)))
    if not _typed(raw, "sync-ddl", bool, default=True):
        rules.append(EventRule(NameRule("*", "*", "[filter] sync-ddl"), frozenset({"all ddl"})))
    return tuple(rules)


def _row_rules(raw: Mapping[str, Any]) -> tuple[RowRule, ...]:
    rules = []
    for number, rule in enumerate(_list(raw, "rows", dict, "[[filter.rows]]"), 1):
        where = f"[[filter.rows]] {number}"
        _check_keys(where, rule, _ROW_RULE_KEYS)
        tables = _checked(where, rule, "tables", lambda _, text: text)
        if not tables:
            raise RuleError(f'{where}: tables = ["schema.table", …] is missing')
        condition = rule.get("where")
        if not isinstance(condition, str):
            raise RuleError(f"{where}: where = {condition!r}: a condition expected")
        try:
            parse_condition(condition)
        except ConditionError as error:
            raise RuleError(f"{where} where: {error}") from None
        operations = _checked(where, rule, "operations", _operation)
        kinds = frozenset(map(ROW_EVENTS.index, operations)) or ALL_KINDS
        rules.append(RowRule(tuple(tables), condition, kinds, f"{where} ({condition[:200]})"))
    return tuple(rules)


def _column_rules(raw: Mapping[str, Any], section: MaskSection) -> tuple[ColumnRule, ...]:
    rules = []
    for number, rule in enumerate(_list(raw, "columns", dict, "[[filter.columns]]"), 1):
        where = f"[[filter.columns]] {number}"
        _check_keys(where, rule, _COLUMN_RULE_KEYS)
        tables, left_out, kept = (
            tuple(_checked(where, rule, key, lambda _, text: text))
            for key in ("tables", "leave-out", "keep")
        )
        renamed = _renamed_columns(f"{where} rename", rule.get("rename", {}))
        masks = parse_masks(f"{where} mask", rule.get("mask", {}), section)
        added = _added_columns(f"{where} add", rule.get("add", {}))
        if not tables:
            raise RuleError(f'{where}: tables = ["schema.table", …] is missing')
        soft_delete = _soft_delete(f"{where} soft-delete", rule.get("soft-delete", ""))
        history = _history(f"{where} history", rule.get("history"))
        given = left_out or kept or renamed or masks or added or soft_delete or history
        if (left_out and kept) or not given:
            raise RuleError(
                f'{where}: either leave-out = ["column", …] or keep = [...] is needed, or rename ='
                ' { column = "new name" }, or mask = { column = "hash" }, or add = { column ='
                ' "expression" }, or soft-delete = "column", or history = { from = "column", to ='
                ' "column" }'
            )
        parts = [
            *([f"leave-out {', '.join(left_out)}"] if left_out else []),
            *([f"keep {', '.join(kept)}"] if kept else []),
            *(
                [f"rename {', '.join(f'{old} to {new}' for old, new in renamed)}"]
                if renamed
                else []
            ),
            *([f"mask {', '.join(name for name, _ in masks)}"] if masks else []),
            *([f"add {', '.join(name for name, _ in added)}"] if added else []),
            *([f"soft-delete {soft_delete}"] if soft_delete else []),
            *([f"history {', '.join(history.names)}"] if history else []),
        ]
        text = f"{where} ({'; '.join(parts)[:200]})"
        made = ColumnRule(tables, left_out, kept, text, renamed, masks, added, soft_delete, history)
        for what, names in (("renames", renamed), ("masks", masks)):
            for name, _ in names:
                if made.leaves_out(name):
                    raise RuleError(f"{where}: it leaves out the column {name} that it {what}")
        rules.append(made)
    return tuple(rules)


def _renamed_columns(where: str, raw: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(raw, Mapping) or not all(isinstance(name, str) for name in raw.values()):
        raise RuleError(f'{where} = {raw!r}: {{ column = "new name" }} expected')
    for names in (raw.keys(), raw.values()):
        _check_unique(where, names)
    for name in raw.values():
        _check_column_name(where, name)
    return tuple(raw.items())


def _added_columns(where: str, raw: Any) -> tuple[tuple[str, ComputedColumn], ...]:
    if not isinstance(raw, Mapping):
        raise RuleError(f'{where} = {raw!r}: {{ column = "expression" }} expected')
    _check_unique(where, raw)
    return tuple(
        (name, _added_column(f"{where} {name}", name, given)) for name, given in raw.items()
    )


def _added_column(where: str, name: str, given: Any) -> ComputedColumn:
    _check_column_name(where, name)
    parts = given if isinstance(given, Mapping) else {"value": given}
    if not {"value"} <= parts.keys() <= {"value", "type"} or not all(
        isinstance(part, str) and part for part in parts.values()
    ):
        raise RuleError(
            f'{where} = {given!r}: "expression" or {{ value = "expression", type ='
            ' "VARCHAR(200)" } expected'
        )
    made = ComputedColumn(**parts)
    try:
        made.check()
    except ConditionError as error:
        raise RuleError(f"{where}: {error}") from None
    return made


def _soft_delete(where: str, name: Any) -> str:
    if not isinstance(name, str):
        raise RuleError(f'{where} = {name!r}: "column" expected')
    if name:
        _check_column_name(where, name)
    return name


def _history(where: str, raw: Any) -> History:
    if raw is None:
        return NO_HISTORY
    if not isinstance(raw, Mapping) or not all(isinstance(name, str) for name in raw.values()):
        raise RuleError(f'{where} = {raw!r}: {{ from = "column", to = "column" }} expected')
    _check_keys(where, raw, tuple(_HISTORY_NAMES))
    names = {key: raw.get(key, name) for key, name in _HISTORY_NAMES.items()}
    for name in names.values():
        _check_column_name(where, name)
    _check_unique(where, names.values())
    return History(names["from"], names["to"], names["commit-ts"])


def _check_unique(where: str, names: Iterable[str]) -> None:
    for name, count in Counter(map(folded, names)).items():
        if count > 1:
            raise RuleError(f"{where}: {name} is there twice")


def _check_column_name(where: str, name: str) -> None:
    is_wide = any(not 0 < ord(sign) <= 0xFFFF for sign in name)
    if is_wide or not 0 < len(name) <= _MAX_NAME_CHARS or name != name.rstrip():
        raise RuleError(f"{where}: no server takes {name!r} for a column's name")
    if folded(name) == ROWID_NAME:
        raise RuleError(f"{where}: {name} is the name of TiDB's hidden row id")


def _check_keys(where: str, rule: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in rule:
        if key not in known:
            raise RuleError(f"{where}: unknown key {key}; known are {', '.join(known)}")


def _operation(where: str, text: str) -> str:
    if text not in ROW_EVENTS:
        raise RuleError(f"{where} = {text!r}: there are {', '.join(ROW_EVENTS)}")
    return text


def _checked(
    where: str, rule: Mapping[str, Any], key: str, take: Callable[[str, str], str]
) -> list[str]:
    values = rule.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise RuleError(f"{where} {key} = {values!r}: a list of texts expected")
    return [take(f"{where} {key}[{n}]", value) for n, value in enumerate(values, 1)]


def is_event(text: str) -> bool:
    """Return whether the event filter knows an event by this name."""
    return " ".join(text.lower().split()) in _EVENTS


def _event(where: str, text: str) -> str:
    event = " ".join(text.lower().split())
    if not is_event(text):
        raise RuleError(
            f"{where} = {text!r}: no such event; there are {', '.join(_EVENTS)}. For anything finer"
            " use ignore-sql"
        )
    return event


def _expression(where: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise RuleError(f"{where} = {text!r}: {error.msg} at position {error.pos}") from None
    return text
