"""Find the tables to compare, as both servers have them, and why others aren't compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from sluice.etl.changes.rules import Filter, RouteError, RowRuleError
from sluice.etl.copy.definitions import SourceSchema
from sluice.etl.downstream import MySQLSession
from sluice.etl.history.snapshots.downstream_catalog import (
    DownstreamTableInfo,
    mismatch,
    read_downstream_tables,
)
from sluice.etl.history.snapshots.downstream_rows import DownstreamTable, page_key
from sluice.etl.history.snapshots.preflight import downstream_table_of
from sluice.etl.settings import Settings
from sluice.etl.verify.checksum import SUMMED_KINDS, ServerColumn
from sluice.etl.verify.endpoint import ComparedTable
from sluice.etl.verify.merged_tables import (
    MergedTable,
    identity_columns,
    merged_into,
    merged_tables,
    visible_columns,
)
from sluice.tidb.folded import folded
from sluice.tidb.schema import Column, Table
from sluice.tidb.table_name import full_name

__all__ = ["ExcludedTable", "compared_tables", "only_columns", "only_downstream"]


@dataclass(frozen=True, slots=True)
class ExcludedTable:
    """A table that isn't compared, by its full name upstream, and why.

    `is_fault`: it should be downstream as it is upstream, and isn't; else the settings want it so,
    or it is looked at another time.
    """

    name: str
    why: str
    is_fault: bool = False


def compared_tables(
    settings: Settings,
    definitions: SourceSchema,
    session: MySQLSession,
    wanted: Iterable[str] | None = None,
) -> tuple[list[ComparedTable], list[ExcludedTable]]:
    """Return the upstream's tables at the checkpoint, the largest first, and the excluded ones.

    `definitions`: the schema there. `wanted`: only these, by full name; of tables that are merged
    one stands for all. Raises DownstreamError.
    """
    names = None if wanted is None else set(wanted)
    tables = [table for table in definitions.of_users().tables if table.is_base_table]
    groups, left = _groups(
        settings, [table for table in tables if names is None or table.full_name in names], tables
    )
    held = read_downstream_tables(session, {group.schema for group in groups})
    found: list[ComparedTable] = []
    for group in groups:
        first = group.place
        there = held.get((folded(first.schema), folded(first.name)))
        problem = mismatch(first, there, session.address)
        if problem or there is None:
            left += [
                ExcludedTable(table.full_name, problem, is_fault=True) for table in group.tables
            ]
        elif why := group.unlike():
            left += [ExcludedTable(table.full_name, why) for table in group.tables]
        elif lacking := _lacking_added(first.table, there):
            why = f"{first.full_name} has no column {lacking}, which [[filter.columns]] adds"
            left += [ExcludedTable(table.full_name, why, is_fault=True) for table in group.tables]
        else:
            try:
                found.append(_compared_table(group, there, session, settings.filters))
            except RowRuleError as error:
                left += [ExcludedTable(table.full_name, str(error)) for table in group.tables]
    return sorted(found, key=lambda table: -table.bytes), left


def only_downstream(
    settings: Settings, definitions: SourceSchema, session: MySQLSession
) -> list[str]:
    """Return the tables, by full name, of replicated databases that no upstream table goes to.

    Tables that the filters don't want by that name are not Sluice's. Raises DownstreamError.
    """
    filters, targets = settings.filters, set()
    for table in definitions.of_users().tables:
        with suppress(RouteError):
            target = settings.routes.target(table.schema_name, table.name)
            targets.add((target.schema, target.table))
    taken = {(schema.lower(), name.lower()) for schema, name in targets}
    found = session.query(
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE"
        " TABLE'"
    )
    schemas = {schema for schema, _ in taken}
    return sorted(
        full_name(str(schema), str(name))
        for schema, name in found
        if str(schema).lower() in schemas
        and (str(schema).lower(), str(name).lower()) not in taken
        and not str(name).startswith("sluice_")
        and filters.wants_table(str(schema), str(name))
    )


def _groups(
    settings: Settings, wanted: Sequence[Table], tables: Sequence[Table]
) -> tuple[list[MergedTable], list[ExcludedTable]]:
    """Group the wanted tables with all that are merged with them.

    Returns the groups, and why others aren't compared.
    """
    left: list[ExcludedTable] = []
    groups: list[MergedTable] = []
    targets: set[tuple[str, str]] = set()
    for table in wanted:
        target = merged_into(settings, table.schema_name, table.name)
        if target is not None:
            targets.add(target)
        elif isinstance(place := downstream_table_of(settings, table, selected_too=True), str):
            left.append(ExcludedTable(table.full_name, place))
        else:
            groups.append(MergedTable((place.table,), place.schema, place.name))
    return [
        *groups,
        *(one for one in merged_tables(settings, tables) if (one.schema, one.name) in targets),
    ], left


def _lacking_added(table: Table, there: DownstreamTableInfo) -> str:
    """Return the names of the columns that rules add and the downstream lacks."""
    added = [column.name for column in table.columns if column.computed]
    added += table.history
    return ", ".join(name for name in added if folded(name) not in there.columns)


def _compared_table(
    group: MergedTable, there: DownstreamTableInfo, session: MySQLSession, filters: Filter
) -> ComparedTable:
    place, others = group.place, group.tables[1:]
    selections = [filters.row_selection(table) for table in group.tables]
    columns = visible_columns(place.table)
    lacking = [column.name for column in columns if folded(column.name) not in there.columns]
    plain = _without_generation(columns, lacking)
    table = only_columns(place.table, plain)
    documents = session.dialect.has_json_type
    notes = [f"the generated column {name} isn't downstream" for name in lacking]
    known = {column.name.lower() for column in place.table.columns}
    known |= {name.lower() for name in place.table.history}
    if more := sorted(there.columns.keys() - known):
        notes.append(f"only the downstream has the column {', '.join(more)}")
    if own := filters.column_rules(place.table.schema_name, place.table.name):
        texts = " and ".join(rule.text for rule in own)
        notes.append(f"the columns of {table.full_name} are compared as {texts} leaves them")
    notes += [
        f"only the rows of {table.full_name} that {one.rules[0].text} selects are compared"
        for table, one in zip(group.tables, selections, strict=True)
        if one is not None
    ]
    if others:
        names = ", ".join(one.full_name for one in others)
        notes.append(
            f"compared together with {names}, as all of them are merged into {place.full_name}"
        )
    # The upstream computes columns that rules add, the downstream has them.
    held = tuple(replace(column, computed="") for column in plain)
    return ComparedTable(
        table,
        DownstreamTable(only_columns(place.table, held), place.schema, place.name),
        tuple(page_key(table)),
        identity_columns(table),
        tuple(
            ServerColumn(
                replace(column, name=column.source_name),
                _charset(column),
                not column.not_null,
                documents=True,
            )
            for column in plain
        ),
        tuple(
            ServerColumn(column, *there.columns[folded(column.name)], documents=documents)
            for column in held
        ),
        _by_rows(plain, documents=documents and not session.dialect.is_tidb),
        there.bytes,
        tuple(notes),
        tuple(only_columns(one, _columns_in_order(plain, one, lacking)) for one in others),
        tuple("TRUE" if one is None else one.sql() for one in selections)
        if any(selections)
        else (),
    )


def _without_generation(columns: Sequence[Column], lacking: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns that are downstream, generated ones as if they were plain."""
    return tuple(
        replace(column, generated="", generated_stored=False, offset=number)
        for number, column in enumerate(column for column in columns if column.name not in lacking)
    )


def _columns_in_order(
    first: Sequence[Column], table: Table, lacking: Sequence[str]
) -> list[Column]:
    """Return a merged table's columns in the first one's order, under its names."""
    own = {
        folded(column.name): column
        for column in _without_generation(visible_columns(table), lacking)
    }
    return [replace(own[folded(column.name)], name=column.name) for column in first]


def only_columns(table: Table, columns: Sequence[Column]) -> Table:
    """Return the table with these columns, in this order, and the indexes over them alone."""
    placed = tuple(replace(column, offset=number) for number, column in enumerate(columns))
    return replace(table, columns=placed, indexes=_indexes(table, placed))


def _indexes(table: Table, columns: Sequence[Column]) -> tuple:  # type: ignore[type-arg]
    """Return the table's indexes over these columns alone, with the columns' new offsets."""
    places = {column.name: column.offset for column in columns}
    return tuple(
        replace(
            index, columns=tuple((name, places[name], length) for name, _, length in index.columns)
        )
        for index in table.indexes
        if all(name in places for name, _, _ in index.columns)
    )


def _charset(column: Column) -> str:
    """Return the character set as TiDB has it."""
    return column.charset if column.kind in ("text", "enum", "set", "json") else ""


def _by_rows(columns: Sequence[Column], *, documents: bool) -> str:
    for column in columns:
        if column.kind not in SUMMED_KINDS:
            return f"servers have no common spelling of the type of {column.name}"
        if column.mask:
            return f"the column {column.name} is masked, and the key isn't given to TiDB"
        if column.kind == "json" and documents:
            return f"the downstream spells JSON in its own way: {column.name}"
    return ""
