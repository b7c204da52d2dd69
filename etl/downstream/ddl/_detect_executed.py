"""Infer from the downstream's tables which DDL ran already, where a Drainer broke off."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from sluice.etl.changes.formats.sql_text import quote_name, quote_table
from sluice.etl.downstream import MySQLSession
from sluice.etl.downstream.ddl._conversions import conversions
from sluice.etl.downstream.ddl._generate import column_type
from sluice.etl.downstream.ddl._shown import is_of_type, shown_columns
from sluice.etl.downstream.ddl._state import actual_columns
from sluice.tidb.column_types import FLAG_MULTIPLE_KEY, FLAG_PRIMARY_KEY, FLAG_UNIQUE_KEY
from sluice.tidb.ddl_actions import Action
from sluice.tidb.ddl_job import DdlJob
from sluice.tidb.folded import folded
from sluice.tidb.schema import STATE_PUBLIC, Column, Table

_KEY_FLAGS = FLAG_PRIMARY_KEY | FLAG_UNIQUE_KEY | FLAG_MULTIPLE_KEY
_INDEXES = (
    "SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND"
    " TABLE_NAME = %s"
)
_COLUMNS = (
    "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
)
_PARTITIONS = (
    "SELECT DISTINCT PARTITION_NAME FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = %s AND"
    " TABLE_NAME = %s"
)


def was_executed(session: MySQLSession, ddl: DdlJob) -> bool | None:
    """Return whether the tables that the DDL affects look as after it (True) or before it (False).

    None if both look the same, or neither.
    """
    if ddl.type == Action.TRUNCATE_TABLE:
        return None
    after = ddl.effect.tables
    states = {
        _matching_state(session, _keeps_rows(ddl.before.get(i)), _keeps_rows(table))
        for i, table in after.items()
    } - {None}
    return states.pop() if len(states) == 1 else None


Fact = tuple[str, str, str, str]
"""A kind (table, column, index, partition), the schema and table as written, the object's name.

The name is in lower case; of the kind type it is the column's name and the upstream's type.
"""


def executed_prefix(session: MySQLSession, ddls: Sequence[DdlJob]) -> tuple[int, int]:
    """Return how many of the DDL statements, in this order, have run: at least and at most.

    Each alone may look as if it had run, or hadn't, because of a later one. So all are compared
    together: after which of them are things as they are downstream?
    """
    states, columns = _states(ddls), _columns_by_type(ddls)
    telling = set().union(*states) - set(states[0]).intersection(*states)
    found = _existing_facts(session, {fact[1:3] for fact in telling})
    types, tell = _existing_types(
        session, {fact: c for fact, c in columns.items() if fact in telling}, found
    )
    telling -= columns.keys() - tell
    there = (found | types) & telling
    fitting = [count for count, state in enumerate(states) if state & telling == there]
    return (fitting[0], fitting[-1]) if fitting else (0, len(ddls))


def first_already_converted(
    session: MySQLSession, ddls: Iterable[DdlJob]
) -> tuple[DdlJob, str] | None:
    """Return the first DDL that would convert a column's values a second time, if there is one.

    The column has its new type already. The text names the column and both types.
    """
    seen = set[tuple[int, str]]()
    for ddl in ddls:
        for conversion in conversions(ddl):
            table, old, new = conversion.change.before, conversion.change.old, conversion.change.new
            names = {(table.id, folded(old.name)), (table.id, folded(new.name))}
            if not names & seen and _has_new_type(session, table, old, new):
                return ddl, conversion.title
            seen |= names
    return None


def _has_new_type(session: MySQLSession, table: Table, old: Column, new: Column) -> bool:
    found = shown_columns(session, quote_table(table)) if actual_columns(session, table) else {}
    actual = found.get(folded(new.name)) or found.get(folded(old.name))
    if actual is None:
        return False
    is_new, is_old = (
        is_of_type(session, table.schema_name, column, actual) for column in (new, old)
    )
    return is_new and not is_old


def first_not_replayable(ddls: Iterable[DdlJob]) -> DdlJob | None:
    """Return the first DDL that earlier changes can't be replayed across, if there is one.

    Those changes can't be written on the tables as the DDL leaves them.
    """
    for ddl in ddls:
        if not all(
            _same_rows(_keeps_rows(ddl.before.get(i)), _keeps_rows(table))
            for i, table in ddl.effect.tables.items()
        ):
            return ddl
    return None


def _same_rows(before: Table | None, after: Table | None) -> bool:
    """Return whether rows from before a DDL fit its table without displacing another row."""
    if before is None:
        return True
    if after is None or (before.schema_name, before.name) != (after.schema_name, after.name):
        return False
    shape = [
        [
            (c.name, c.tp, c.flag & ~_KEY_FLAGS, c.flen, c.decimal, c.charset, c.collate, c.elems)
            for c in t.columns
            if c.public
        ]
        for t in (before, after)
    ]
    unique = [
        {index.name for index in t.indexes if index.unique and index.state == STATE_PUBLIC}
        for t in (before, after)
    ]
    return (
        shape[0] == shape[1]
        and unique[1] <= unique[0]
        and _partitions(before) <= _partitions(after)
    )


def _states(ddls: Sequence[DdlJob]) -> list[set[Fact]]:
    """Return what is there before the first DDL and after each."""
    tables: dict[int, Table | None] = {}
    for ddl in ddls:
        for table_id in ddl.effect.tables:
            tables.setdefault(table_id, _keeps_rows(ddl.before.get(table_id)))
    states = [_facts(tables)]
    for ddl in ddls:
        tables |= {table_id: _keeps_rows(table) for table_id, table in ddl.effect.tables.items()}
        states.append(_facts(tables))
    return states


def _facts(tables: Mapping[int, Table | None]) -> set[Fact]:
    found = set()
    for table in tables.values():
        if table is not None:
            place = table.schema_name, table.name
            found.add(("table", *place, ""))
            found |= {("column", *place, name) for name in _columns(table)} | _type_facts(
                table
            ).keys()
            found |= {("index", *place, name) for name in _indexes(table)}
            found |= {("partition", *place, name) for name in _partitions(table)}
    return found


def _type_facts(table: Table) -> dict[Fact, Column]:
    return {
        (
            "type",
            table.schema_name,
            table.name,
            f"{folded(column.name)} {column_type(column)}",
        ): column
        for column in table.columns
        if column.public and not column.hidden and not column.generated
    }


def _columns_by_type(ddls: Iterable[DdlJob]) -> dict[Fact, Column]:
    found: dict[Fact, Column] = {}
    for ddl in ddls:
        for table in map(_keeps_rows, (*ddl.before.values(), *ddl.effect.tables.values())):
            found |= _type_facts(table) if table is not None else {}
    return found


def _existing_types(
    session: MySQLSession, columns: Mapping[Fact, Column], names: set[Fact]
) -> tuple[set[Fact], set[Fact]]:
    """Return the types that columns have there, and all types of these columns.

    A column there that has none of its types, or looks alike with several, is left out.
    """
    by_column: dict[Fact, list[Fact]] = defaultdict(list)
    for fact, column in columns.items():
        by_column["column", fact[1], fact[2], folded(column.name)].append(fact)
    there, known = set[Fact](), set[Fact]()
    for (kind, schema, table, name), facts in by_column.items():
        if len(facts) < 2 or (kind, schema, table, name) not in names:  # its name alone shows it
            continue
        actual = shown_columns(session, f"{quote_name(schema)}.{quote_name(table)}")[name]
        fitting = [fact for fact in facts if is_of_type(session, schema, columns[fact], actual)]
        if len(fitting) == 1:
            there.update(fitting)
            known.update(facts)
    return there, known


def _existing_facts(session: MySQLSession, places: set[tuple[str, str]]) -> set[Fact]:
    found = set()
    for place in places:
        for kind, query in (("column", _COLUMNS), ("index", _INDEXES), ("partition", _PARTITIONS)):
            found |= {
                (kind, *place, folded(str(name))) for (name,) in session.query(query, place) if name
            }
    return found | {
        ("table", schema, table, "") for kind, schema, table, _ in found if kind == "column"
    }


def _keeps_rows(table: Table | None) -> Table | None:
    """Return whether the statement keeps rows."""
    return table if table is not None and table.is_base_table else None


def _matching_state(
    session: MySQLSession, before: Table | None, after: Table | None
) -> bool | None:
    if before is None or after is None:
        table = before or after
        return (
            None if table is None else bool(actual_columns(session, table)) == (after is not None)
        )
    if (before.schema_name, before.name) != (after.schema_name, after.name):
        there = bool(actual_columns(session, before)), bool(actual_columns(session, after))
        return {(True, False): False, (False, True): True}.get(there)
    columns = {folded(column.name) for column in actual_columns(session, after)}
    states = {
        _compare(_columns(before), _columns(after), columns),
        _compare(_indexes(before), _indexes(after), _select_names(session, _INDEXES, after)),
        _compare(
            _partitions(before), _partitions(after), _select_names(session, _PARTITIONS, after)
        ),
    } - {None}
    return states.pop() if len(states) == 1 else None


def _compare(before: set[str], after: set[str], actual: set[str]) -> bool | None:
    new, gone = after - before, before - after
    if not new and not gone:
        return None
    if new <= actual and not gone & actual:
        return True
    return False if gone <= actual and not new & actual else None


def _columns(table: Table) -> set[str]:
    return {folded(column.name) for column in table.columns if column.public and not column.hidden}


def _indexes(table: Table) -> set[str]:
    return {
        folded(index.name)
        for index in table.indexes
        if index.state == STATE_PUBLIC and not index.primary
    }


def _partitions(table: Table) -> set[str]:
    definitions = (table.partition or {}).get("definitions") or []
    return {
        folded(str((definition.get("name") or {}).get("L") or "")) for definition in definitions
    }


def _select_names(session: MySQLSession, query: str, table: Table) -> set[str]:
    return {
        folded(str(name))
        for (name,) in session.query(query, (table.schema_name, table.name))
        if name
    }
