"""Which tables are compared, as both servers have them; and which aren't, each with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from etl.base.downstream_rows import DownstreamTable, page_key
from etl.base.held_tables import HeldTable, held_tables, unlike
from etl.base.hindrances import place_of
from etl.copy.definitions import Definitions
from etl.downstream import MySQLSession
from etl.settings import Settings
from etl.verify.checksum import SUMMED_KINDS, ServerColumn
from etl.verify.side import ComparedTable
from upstream.schema import Column, Table

__all__ = ["LeftOut", "compared_tables", "only_columns"]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A table that isn't compared, by its full name upstream, and why. `is_fault`: it should be downstream as it is
    upstream, and isn't; else the settings want it so, or it is looked at another time.
    """

    name: str
    why: str
    is_fault: bool = False


def compared_tables(
    settings: Settings, definitions: Definitions, session: MySQLSession, wanted: Iterable[str] | None = None
) -> tuple[list[ComparedTable], list[LeftOut]]:
    """The upstream's tables at the checkpoint (`definitions`), the largest first, and those that aren't compared.
    `wanted`: only these, by full name. Raises DownstreamError.
    """
    names = None if wanted is None else set(wanted)
    tables = [
        table for table in definitions.of_users().tables
        if table.is_base_table and (names is None or table.full_name in names)
    ]  # fmt: skip
    places: list[DownstreamTable] = []
    left: list[LeftOut] = []
    for table in tables:
        place = place_of(settings, table)
        left.append(LeftOut(table.full_name, place)) if isinstance(place, str) else places.append(place)
    held = held_tables(session, {place.schema for place in places})
    found: list[ComparedTable] = []
    for place in places:
        there = held.get((place.schema.lower(), place.name.lower()))
        problem = unlike(place, there, session.address)
        if problem or there is None:
            left.append(LeftOut(place.table.full_name, problem, is_fault=True))
        else:
            found.append(_compared(place, there, session))
    return sorted(found, key=lambda table: -table.bytes), left


def _compared(place: DownstreamTable, there: HeldTable, session: MySQLSession) -> ComparedTable:
    columns = [column for column in place.table.columns if column.public and not column.hidden]
    lacking = [column.name for column in columns if column.name.lower() not in there.columns]
    plain = tuple(
        replace(column, generated="", generated_stored=False, offset=number)
        for number, column in enumerate(column for column in columns if column.name not in lacking)
    )
    table = only_columns(place.table, plain)
    documents = session.dialect.has_json_type
    return ComparedTable(
        table, DownstreamTable(table, place.schema, place.name), tuple(page_key(table)), _identity(table),
        tuple(ServerColumn(column, _charset(column), not column.not_null, documents=True) for column in plain),
        tuple(ServerColumn(column, *there.columns[column.name.lower()], documents=documents) for column in plain),
        _by_rows(plain, documents=documents and not session.dialect.is_tidb), there.bytes,
        tuple(f"the generated column {name} isn't downstream" for name in lacking),
    )  # fmt: skip


def only_columns(table: Table, columns: Sequence[Column]) -> Table:
    """The table with these columns, in this order, and the indexes over them alone."""
    placed = tuple(replace(column, offset=number) for number, column in enumerate(columns))
    return replace(table, columns=placed, indexes=_indexes(table, placed))


def _indexes(table: Table, columns: Sequence[Column]) -> tuple:  # type: ignore[type-arg]
    """The table's over these columns alone, with the places that they have now."""
    places = {column.name: column.offset for column in columns}
    return tuple(
        replace(index, columns=tuple((name, places[name], length) for name, _, length in index.columns))
        for index in table.indexes
        if all(name in places for name, _, _ in index.columns)
    )


def _identity(table: Table) -> tuple[str, ...]:
    known = {column.name: column for column in table.columns}
    return next((key for key in table.unique_keys() if all(known[name].not_null for name in key)), ())


def _charset(column: Column) -> str:
    """As TiDB has it."""
    return column.charset if column.kind in ("text", "enum", "set", "json") else ""


def _by_rows(columns: Sequence[Column], *, documents: bool) -> str:
    for column in columns:
        if column.kind not in SUMMED_KINDS:
            return f"servers have no common spelling of the type of {column.name}"
        if column.kind == "json" and documents:
            return f"the downstream spells JSON in its own way: {column.name}"
    return ""
